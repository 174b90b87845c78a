"""The account of one question: what it may spend and did, part by part; the only way to ask a model.

    costs = Costs()
    with costs.part("plan"):
        with costs.part("retrieve", retrieval_calls=1):
            ...

A part's own seconds are those that no part within it took, so that all of them add up. Everything is counted
also where a part fails: it was spent either way.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mio_rag.errors import UnsuitableModelError
from mio_rag.generation import Generator, Prompt, make_generator
from mio_rag.generation.base import allowance, charged
from mio_rag.generation.protocol import CHOICE_TOKENS, GrammarWriter
from mio_rag.settings import Settings
from mio_rag.types import Answer

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


class Limits(Settings):
    """Limits of one question. Every decider and every tool obeys them."""

    steps: Annotated[int, Field(ge=0)] = 10
    """Most actions that ask a model before the answer."""
    tokens: Annotated[int, Field(ge=1)] = 20_000
    """Most tokens into and out of all models, the answer included, which is reserved from the start."""
    seconds: Annotated[float, Field(gt=0)] = 120.0
    """Then no model is asked but for the answer, and nothing is searched again. A call in progress is not cut
    short."""

    def lowered(self, other: Limits) -> Limits:
        """The lower of both; a default of `other` lowers nothing."""
        given = other.to_dict(defaults=False)
        return self.replace(**{name: min(value, getattr(self, name)) for name, value in given.items()})


@dataclass(frozen=True)
class Reply:
    """An answer; of a question with options, the position of the chosen one and its probability."""

    answer: Answer
    choice: int | None = None
    probability: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it is neither text nor a choice."""
        return self.choice is None and not self.answer.text.strip()


#: Earlier replies by generator (its `id`), prompt, longest answer and temperature. Models decode greedily, or
#: with a seed, so the same prompt gives the same reply. Must not outlive the generators.
Replies = dict[tuple[int, str, str, int, float], Reply]


class LimitReached(Exception):
    """The next action or call could exceed a limit; the text names the limit."""


class Budget:
    """Tokens, steps and seconds of one question, shared by all its branches.

    A call holds its maximum before it is made, so that parallel calls never exceed the limit together. Only
    the final answer may use the reserve.

    reader: asked by every action that names no model.
    reserve: tokens set aside for the answer; `LimitReached` if they alone exceed the limit.
    models: name -> generator, of the models that actions name.
    threads: actions that run in parallel, at most.
    replies: replies that other runs on the question received. They are not asked for again, but are charged
        with the tokens and seconds that they took.
    """

    def __init__(
        self,
        reader: Generator,
        limits: Limits,
        reserve: int = 0,
        *,
        models: Callable[[str], Generator] | None = None,
        threads: int = 4,
        replies: Replies | None = None,
    ) -> None:
        if limits.tokens < reserve:
            raise LimitReached(f"{limits.tokens} tokens")
        self.reader, self.limits, self.reserve, self._models = reader, limits, reserve, models
        self.places = threading.BoundedSemaphore(threads)
        self.replies: Replies = {} if replies is None else replies
        self._spent = self._held = self._steps = 0
        self._remembered = 0.0  # seconds that known replies took when they were given
        self._lock = threading.Lock()
        self._started = time.perf_counter()

    @property
    def seconds_left(self) -> float:
        """Until no further action may begin, as if every reply had been waited for; below 0 after that."""
        return self.limits.seconds - (time.perf_counter() - self._started + self._remembered)

    def step(self) -> None:
        """Begin one more action that asks a model, or raise `LimitReached`."""
        with self._lock:
            if self._steps >= self.limits.steps:
                raise LimitReached(f"{self.limits.steps} steps")
            self._steps += 1

    def check(self) -> None:
        """Raise `LimitReached` if no further action may begin."""
        if self.seconds_left <= 0:
            raise LimitReached(f"{self.limits.seconds:g} seconds")

    def hold(self, tokens: int, *, final: bool = False) -> None:
        """Hold tokens for a call, or raise `LimitReached`."""
        with self._lock:
            reserve = 0 if final else self.reserve
            if self._spent + self._held + tokens + reserve > self.limits.tokens:
                raise LimitReached(f"{self.limits.tokens} tokens")
            self._held += tokens

    def settle(self, held: int, spent: int, remembered: float = 0.0) -> None:
        """Release what a call held, and record what it spent."""
        with self._lock:
            self._held -= held
            self._spent += spent
            self._remembered += remembered

    def branch(self, model: str | None = None) -> Branch:
        """The account of one action that asks this model; None: the reader."""
        return Branch(self, self.reader if model is None or self._models is None else self._models(model))


class Branch:
    """What one action spends. All its calls go through the budget of the question.

    costs: calls of this action, in order.
    closed: why this action may ask no model; None: it may.
    """

    def __init__(self, budget: Budget, generator: Generator) -> None:
        self.budget, self.generator = budget, generator
        self.costs = Costs()
        self.closed: str | None = None
        self._asking: tuple[str, int, int, float] | None = None  # part, prompt, longest reply, since when
        self._parallel: list[Branch] = []

    @property
    def tokens(self) -> int:
        """Spent by this action, into and out of models."""
        return sum(call.tokens for call in self.costs.calls)

    def parallel(self) -> Branch:
        """A branch with costs of its own, for work that runs in parallel; ends with `joined`."""
        other = Branch(self.budget, self.generator)
        other.closed = self.closed
        self._parallel.append(other)
        return other

    def joined(self) -> None:
        """The costs of parallel branches have been included here."""
        self._parallel.clear()

    def timed(self, part: str, searches: int = 0) -> AbstractContextManager[None]:
        """Count what happens inside as a use of a part, also if it fails; see `Costs.part`."""
        return self.costs.part(part, retrieval_calls=searches)

    def generate(self, part: str, prompt: Prompt, max_tokens: int, *, final: bool = False) -> Answer:
        """Let the model answer, if the limits allow it; the `final` answer may use the reserve."""

        def ask() -> Reply:
            return Reply(self.generator.generate(prompt, max_tokens=max_tokens))

        return self._call(part, prompt, max_tokens, ask, final=final).answer

    def choose(self, part: str, prompt: Prompt, *, final: bool = False) -> Reply:
        """Let the model choose among the options of the prompt's question; limits as in `generate`."""

        def ask() -> Reply:
            chosen = self.generator.choose_scored(prompt, prompt.question.choices)
            return Reply(chosen.answer, chosen.index, chosen.probability)

        return self._call(part, prompt, CHOICE_TOKENS, ask, "\nchoose", final=final)

    def write(self, part: str, prompt: Prompt, grammar: str | None, max_tokens: int) -> Answer:
        """Let the model write under a grammar (GBNF); None: freely."""

        def ask() -> Reply:
            if grammar is None:
                return Reply(self.generator.generate(prompt, max_tokens=max_tokens))
            if not isinstance(self.generator, GrammarWriter):
                raise UnsuitableModelError(
                    f"{self.generator.name} cannot be held to a grammar: use a gguf: model, or "
                    "planner-lm:free"
                )
            return Reply(self.generator.write(prompt, grammar, max_tokens=max_tokens))

        return self._call(part, prompt, max_tokens, ask, f"\n{grammar}").answer

    def unfinished(self) -> tuple[Spent, ...]:
        """Costs of parallel branches and of calls in progress; a call without a reply counts in full."""
        found = [spent for other in self._parallel for spent in (*other.costs.spent, *other.unfinished())]
        if (asking := self._asking) is not None:
            part, into, out, since = asking
            call = Call(part, time.perf_counter() - since, 1, 0, into, out)
            found.append(Spent(call, self.generator.name))
        return tuple(found)

    def _call(
        self,
        part: str,
        prompt: Prompt,
        max_tokens: int,
        ask: Callable[[], Reply],
        variant: str = "",
        final: bool = False,
    ) -> Reply:
        """Make a call within the limits, and charge it. `variant`: what else its reply depends on."""
        if self.closed is not None and not final:
            raise LimitReached(self.closed)
        into = self.generator.prompt_tokens(prompt)
        held, before, remembered = into + max_tokens, self.tokens, 0.0
        self.budget.hold(held, final=final)
        self._asking = (part, into, max_tokens, time.perf_counter())

        def again(more: int, out: int) -> bool:
            """Hold an attempt more: the one before may have been charged."""
            nonlocal held
            try:
                self.budget.hold(more + out, final=final)
            except LimitReached:
                return False
            held += more + out
            if (asking := self._asking) is not None:
                self._asking = (part, asking[1] + more, asking[2] + out, asking[3])
            return True

        key = (id(self.generator), prompt.system + variant, prompt.user, max_tokens, prompt.temperature)
        start, replies = time.perf_counter(), self.budget.replies
        said: Answer | None = None
        try:
            try:
                with allowance(again):
                    if key not in replies:
                        replies[key] = ask()
                said = replies[key].answer
            except BaseException as error:
                said = charged(error, self.generator, prompt, max_tokens, time.perf_counter() - start)
                raise
            finally:
                waited = time.perf_counter() - start
                if said is None:  # it failed without a reply
                    self.costs.add(Call(part, waited), waited=waited)
                else:
                    remembered = said.latency_seconds - waited
                    call = Call(part, said.latency_seconds, 1, 0, said.prompt_tokens, said.completion_tokens)
                    self.costs.add(call, model=self.generator.name, waited=waited)
        finally:
            self._asking = None
            self.budget.settle(held, self.tokens - before, remembered)
        return replies[key]


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
