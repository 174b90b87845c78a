"""Generators that actions name, opened when they are first asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from mio_rag.generation import Generator, make_generator


class Models:
    """Generators by name; threads may share them.

    Parameters
    ----------
    specs : mapping of str to str or Generator
        What `make_generator` takes, or a generator, which is not closed here.
    make : callable, optional
        Opens a generator instead of `make_generator`.
    """

    def __init__(
        self, specs: Mapping[str, str | Generator], make: Callable[[str], Generator] = make_generator
    ) -> None:
        self._specs, self._make = dict(specs), make
        self._open: dict[str, Generator] = {}
        self._opening = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all."""
        return tuple(self._specs)

    def get(self, name: str) -> Generator:
        """The generator of a name; it must be one of `names`."""
        given = self._specs[name]
        if not isinstance(given, str):
            return given
        with self._opening:
            if name not in self._open:
                self._open[name] = self._make(given)
            return self._open[name]

    def close(self) -> None:
        """Close those that were opened here."""
        for generator in self._open.values():
            generator.close()
        self._open.clear()
