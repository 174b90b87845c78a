"""Generators that actions name, opened when they are first asked, and what they cost."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mio_rag.errors import InputError
from mio_rag.generation import Generator, check_generator, make_generator
from mio_rag.session.costs import Prices
from mio_rag.session.trace import Step


class Models:
    """Generators by name; threads may share them.

    specs: what `make_generator` takes, or a generator, which is not closed here.
    make: opens a generator instead of `make_generator`.
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


_READER = "reader"


@dataclass(frozen=True)
class WorkflowSettings:
    """What `ControlSettings.kinds["workflow"]` holds.

    models: name -> generator, as `make_generator` takes it; "reader" is whoever answers, and is no name here.
    prices: name -> dollars per million tokens into it and out of it; "reader" has one too.
    depth: how many workflows may lie within each other, >= 0.
    threads: branches that run side by side, >= 1.
    seconds: longest time of one executor that sets none itself.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    depth: int = 2
    threads: int = 4
    seconds: float | None = None

    def __post_init__(self) -> None:
        problems = [f"model '{_READER}' is whoever answers: choose another name"] * (_READER in self.models)
        for name, spec in self.models.items():
            try:
                check_generator(spec)
            except InputError as error:
                problems += [f"model '{name}': {problem}" for problem in error.problems]
        for name, least in (("depth", 0), ("threads", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                problems.append(f"workflow setting {name}={value!r} must be a whole number >= {least}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            problems.append(f"workflow setting seconds={self.seconds!r} must be > 0")
        try:
            Prices(self.prices)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(problems)

    @classmethod
    def of(cls, data: Any) -> WorkflowSettings:
        """The settings of plain data; None: the defaults.

        Raises `InputError` for unknown names, and as the class.
        """
        given = dict(data or {})
        known = cls.__dataclass_fields__
        if unknown := sorted(set(given) - set(known)):
            raise InputError(
                f"workflow settings {', '.join(unknown)} are unknown: known are {', '.join(known)}"
            )
        if "prices" in given:
            given["prices"] = {name: tuple(pair) for name, pair in given["prices"].items()}
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `ControlSettings.kinds` holds it."""
        return {
            "models": dict(self.models),
            "prices": {name: list(pair) for name, pair in self.prices.items()},
            "depth": self.depth,
            "threads": self.threads,
            "seconds": self.seconds,
        }


def workflow_settings(kinds: Mapping[str, Any]) -> WorkflowSettings:
    """Those of workflows in `ControlSettings.kinds`; raises as `WorkflowSettings`."""
    return WorkflowSettings.of(kinds.get("workflow"))


#: What costs may be counted in.
COSTS = ("tokens", "dollars")


def dollars(steps: Iterable[Step], settings: WorkflowSettings) -> float | None:
    """What the tokens of steps cost; None where a model that was asked has no price."""
    prices = Prices(settings.prices)
    each = [
        prices.of(step.model or "reader", call.prompt_tokens, call.completion_tokens)
        for step in steps
        for call in step.calls
    ]
    known = [price for price in each if price is not None]
    return sum(known) if settings.prices and len(known) == len(each) else None
