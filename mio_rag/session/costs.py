"""What was spent on one question, part by part.

    costs = Costs()
    with costs.part("plan"):
        with costs.part("retrieve", retrieval_calls=1):
            ...

A part's own seconds are those that no part within it took, so that all of them add up. Everything is counted
also where a part fails: it was spent either way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mio_rag.settings import Settings

_Count = Annotated[int, Field(ge=0)]
_Dollars = Annotated[float, Field(ge=0)]
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Call:
    """One use of a part, and what it took.

    part: decompose, retrieve, select, reason, measure or answer.
    lm_calls: replies of the language model; one that failed without a reply took its seconds alone.
    """

    part: str
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    lm_calls: _Count = 0
    retrieval_calls: _Count = 0
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0

    def __add__(self, other: Call) -> Call:
        return Call(
            self.part,
            self.seconds + other.seconds,
            self.lm_calls + other.lm_calls,
            self.retrieval_calls + other.retrieval_calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    @property
    def tokens(self) -> int:
        """Into and out of the model."""
        return self.prompt_tokens + self.completion_tokens


def totals(calls: Sequence[Call]) -> dict[str, Call]:
    """The calls of each part, added up."""
    sums: dict[str, Call] = {}
    for call in calls:
        sums[call.part] = sums.get(call.part, Call(call.part, 0.0)) + call
    return sums


class _Table(Settings):
    dollars: dict[str, tuple[_Dollars, _Dollars]]


@dataclass(frozen=True)
class Prices:
    """What tokens cost, by model.

    dollars: name of a model -> dollars per million tokens into it and out of it, finite and >= 0. Raises
        `InputError` with every price that is none.
    """

    dollars: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dollars", _Table(dollars=dict(self.dollars)).dollars)

    def of(self, model: str, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Dollars for these tokens; None where the model has no price, though no tokens cost nothing."""
        if not prompt_tokens and not completion_tokens:
            return 0.0
        if model not in self.dollars:
            return None
        into, out = self.dollars[model]
        return (prompt_tokens * into + completion_tokens * out) / 1e6


@dataclass(frozen=True)
class Amount:
    """What was spent, added up.

    tokens: name of a model -> tokens into it and out of it.
    peak_memory_mb: most memory that the process has held by then; see `peak_memory_mb`. None for parts.
    """

    seconds: float = 0.0
    lm_calls: int = 0
    retrieval_calls: int = 0
    tokens: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    peak_memory_mb: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Into all models."""
        return sum(into for into, _ in self.tokens.values())

    @property
    def completion_tokens(self) -> int:
        """Out of all models."""
        return sum(out for _, out in self.tokens.values())

    def dollars(self, prices: Prices) -> float | None:
        """What the tokens cost; None if a model that was used has no price."""
        each = [prices.of(model, into, out) for model, (into, out) in self.tokens.items()]
        known = [price for price in each if price is not None]
        return sum(known) if len(known) == len(each) else None


@dataclass(frozen=True)
class Spent:
    """A call, and the model that replied; None: no language model was asked."""

    call: Call
    model: str | None = None


class Costs:
    """A record of calls, in the order in which they ended."""

    def __init__(self) -> None:
        self.spent: list[Spent] = []
        self._elsewhere: list[float] = []  # of each open part: seconds that were counted as something else

    @contextmanager
    def part(self, name: str, *, retrieval_calls: int = 0) -> Iterator[None]:
        """Count what happens inside, less what parts and calls within it count, also where it raises."""
        began = time.perf_counter()
        self._elsewhere.append(0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - began
            own = max(0.0, took - self._elsewhere.pop())
            self.add(Call(name, own, retrieval_calls=retrieval_calls), waited=took)

    def add(self, call: Call, *, model: str | None = None, waited: float = 0.0) -> None:
        """Count a call.

        model: who replied.
        waited: seconds of the open part that went by in it; fewer than the call's own where its reply was
            stored.
        """
        if self._elsewhere:
            self._elsewhere[-1] += waited
        self.spent.append(Spent(call, model))

    def include(self, other: Costs, *, waited: float = 0.0) -> None:
        """Count all of another record within the open part, such as that of a branch that ran in parallel.

        waited: seconds of the open part that went by in it.
        """
        if self._elsewhere:
            self._elsewhere[-1] += waited
        self.spent += other.spent

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls."""
        return tuple(spent.call for spent in self.spent)

    def total(self) -> Amount:
        """Everything, and the most memory that the process has held by now."""
        return replace(_added(self.spent), peak_memory_mb=peak_memory_mb() if self.spent else None)

    def by_part(self) -> dict[str, Amount]:
        """What each part spent itself; all together are the total."""
        names = dict.fromkeys(spent.call.part for spent in self.spent)
        return {name: _added([s for s in self.spent if s.call.part == name]) for name in names}


def _added(spent: Sequence[Spent]) -> Amount:
    tokens: dict[str, tuple[int, int]] = {}
    for one in spent:
        if one.model is not None:
            into, out = tokens.get(one.model, (0, 0))
            tokens[one.model] = into + one.call.prompt_tokens, out + one.call.completion_tokens
    whole = sum((one.call for one in spent), Call("", 0.0))
    return Amount(whole.seconds, whole.lm_calls, whole.retrieval_calls, tokens)


def peak_memory_mb() -> float | None:
    """Most resident memory of this process so far, in millions of bytes; None where it is not reported."""
    try:  # resource.getrusage would count what the process held that started this one
        with _STATUS.open("rb") as status:
            line = next(line for line in status if line.startswith(b"VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e6
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
