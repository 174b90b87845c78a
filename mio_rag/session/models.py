"""Generators that actions name, opened when they are first asked, and what they cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from mio_rag.errors import InputError
from mio_rag.generation import Generator, check_generator, make_generator
from mio_rag.session.costs import Prices
from mio_rag.session.trace import Step
from mio_rag.settings import Settings


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


READER = "reader"
_Dollars = Annotated[float, Field(ge=0)]


class WorkflowSettings(Settings):
    """What `ControlSettings.kinds["workflow"]` holds."""

    models: dict[str, str] = Field(default_factory=dict)
    """Name -> generator, as `make_generator` takes it; "reader" is the answering model, and no name here."""
    prices: dict[str, tuple[_Dollars, _Dollars]] = Field(default_factory=dict)
    """Name -> dollars per million tokens into it and out of it; "reader" has one too."""
    depth: Annotated[int, Field(ge=0)] = 2
    """Workflows within each other."""
    threads: Annotated[int, Field(ge=1)] = 4
    """Branches that run in parallel."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Longest time of a step that sets none itself."""

    @field_validator("models")
    @classmethod
    def _known(cls, models: dict[str, str]) -> dict[str, str]:
        problems = [f"'{READER}' is the answering model: choose another name"] * (READER in models)
        for name, spec in models.items():
            try:
                check_generator(spec)
            except InputError as error:
                problems += [f"'{name}': {problem}" for problem in error.problems]
        if problems:
            raise InputError(problems)
        return models


def workflow_settings(kinds: Mapping[str, Any]) -> WorkflowSettings:
    """Those of workflows in `ControlSettings.kinds`; raises as `WorkflowSettings`."""
    return WorkflowSettings.from_dict(dict(kinds.get("workflow") or {}))


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
