"""What may still be spent on one question, and a generator that keeps to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from mio_rag.control.costs import Call, Costs
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation import Generator, Prompt
from mio_rag.generation.base import charged
from mio_rag.generation.protocol import CHOICE_TOKENS
from mio_rag.types import Answer

__all__ = ["LimitReached", "Limits", "Meter", "OutOfSteps", "Replies", "Reply"]


@dataclass(frozen=True)
class Limits:
    """Where every run ends, whatever its controller wants.

    Parameters
    ----------
    steps : int
        Most actions before the answer, >= 0.
    tokens : int
        Most tokens into and out of the language model for one question, the answer included. A call that
        could go beyond is not made; what the answer may take is set aside from the start.
    seconds : float
        No action begins after so many seconds. A call that runs is not cut short, and the answer is still
        given.
    """

    steps: int = 10
    tokens: int = 20_000
    seconds: float = 120.0

    def __post_init__(self) -> None:
        problems = []
        if self.steps < 0 or self.steps != int(self.steps):
            problems.append(f"steps={self.steps!r} must be a whole number >= 0")
        if self.tokens < 1 or self.tokens != int(self.tokens):
            problems.append(f"tokens={self.tokens!r} must be a whole number >= 1")
        if not self.seconds > 0:
            problems.append(f"seconds={self.seconds!r} must be > 0")
        if problems:
            raise InputError([f"limit {problem}" for problem in problems])
        for name, kind in (("steps", int), ("tokens", int), ("seconds", float)):  # traces hold plain numbers
            object.__setattr__(self, name, kind(getattr(self, name)))


@dataclass(frozen=True)
class Reply:
    """An answer; where there are options, with the position of the chosen one and its probability."""

    answer: Answer
    choice: int | None = None
    probability: float | None = None


#: What was said before, by generator (its `id`), prompt and longest answer: models decode greedily, so it
#: would be said again. It is not to outlive the generators.
Replies = dict[tuple[int, str, str, int], Reply]


class LimitReached(Exception):
    """The next call could go beyond a limit; the text says beyond which."""


class Meter:
    """A generator that counts, by part, and refuses what a limit forbids.

    Parameters
    ----------
    reserve : int
        Tokens set aside for the answer.
    replies : dict, optional
        Replies that other runs on the question got already. They are not asked for again, but they count with
        the tokens and the seconds that they took.
    costs : Costs, optional
        What was spent already, and where to count on. Meters that share a record share the limit on tokens.
    """

    def __init__(
        self,
        generator: Generator,
        limits: Limits,
        reserve: int,
        replies: Replies | None = None,
        costs: Costs | None = None,
    ) -> None:
        if limits.tokens < reserve:
            raise InputError(
                f"limit tokens={limits.tokens} is below the {reserve} that the answer alone may take: raise "
                "it, or lower the token budget"
            )
        self.generator, self.limits, self._reserve = generator, limits, reserve
        self._replies: Replies = {} if replies is None else replies
        self._started = time.perf_counter()
        self._remembered = 0.0  # what replies took when they were first given, beyond getting them now
        self.costs = Costs() if costs is None else costs
        self._told = len(self.costs.spent)

    @property
    def tokens(self) -> int:
        """Spent so far, into and out of models."""
        return sum(call.prompt_tokens + call.completion_tokens for call in self.costs.calls)

    @property
    def seconds(self) -> float:
        """Time since the question was taken up, as if every reply had been waited for."""
        return time.perf_counter() - self._started + self._remembered

    @property
    def seconds_left(self) -> float:
        """Until no further action may begin; below 0 where that was before."""
        return self.limits.seconds - self.seconds

    def take(self) -> tuple[Call, ...]:
        """The calls since this was last asked."""
        calls = self.costs.calls[self._told :]
        self._told += len(calls)
        return calls

    def beside(self) -> Meter:
        """A meter with books of its own, for what runs side by side with others; it may take what is left."""
        left = max(0, self.limits.tokens - self.tokens - self._reserve)
        return Meter(self.generator, replace(self.limits, tokens=max(1, left)), 0, self._replies)

    def joined(self) -> None:
        """Say that what those beside spent is in these books now."""

    def check(self) -> None:
        """Raise `LimitReached` if no further action may begin."""
        if self.seconds >= self.limits.seconds:
            raise LimitReached(f"{self.limits.seconds:g} seconds")

    def generate(self, part: str, prompt: Prompt, max_tokens: int, *, final: bool = False) -> Answer:
        """Let the model answer, if the limit on tokens allows it; the `final` answer it always does."""
        if not final:
            self._affordable(prompt, max_tokens)

        def ask() -> Reply:
            return Reply(self.generator.generate(prompt, max_tokens=max_tokens))

        return self._asked(part, prompt, max_tokens, max_tokens, ask).answer

    def choose(self, part: str, prompt: Prompt, *, final: bool = False) -> Reply:
        """Let the model choose among the options of the prompt's question; limits as in `generate`."""
        if not final:
            self._affordable(prompt, CHOICE_TOKENS)

        def choose() -> Reply:
            chosen = self.generator.choose_scored(prompt, prompt.question.choices)
            return Reply(chosen.answer, chosen.index, chosen.probability)

        return self._asked(part, prompt, CHOICE_TOKENS, 0, choose)

    def timed(self, part: str, retrieval_calls: int = 0) -> AbstractContextManager[None]:
        """Count what happens inside as a use of a part, also where it fails; see `Costs.part`."""
        return self.costs.part(part, retrieval_calls=retrieval_calls)

    def _affordable(self, prompt: Prompt, max_tokens: int) -> None:
        needed = self.generator.prompt_tokens(prompt) + max_tokens
        if self.tokens + needed + self._reserve > self.limits.tokens:
            raise LimitReached(f"{self.limits.tokens} tokens")

    def _asked(
        self, part: str, prompt: Prompt, max_tokens: int, kind: int, ask: Callable[[], Reply]
    ) -> Reply:
        """A reply from those given before, or a new one, counted as if it had been waited for."""
        start, key = time.perf_counter(), (id(self.generator), prompt.system, prompt.user, kind)
        if key not in self._replies:
            try:
                self._replies[key] = ask()
            except MioRagError as error:
                seconds = time.perf_counter() - start
                self._charge(part, charged(error, self.generator, prompt, max_tokens, seconds), seconds)
                raise
        self._charge(part, self._replies[key].answer, time.perf_counter() - start)
        return self._replies[key]

    def _charge(self, part: str, said: Answer | None, waited: float) -> None:
        """Count a use of the model: what it said, or the time that it took to say nothing."""
        if said is None:
            self.costs.add(Call(part, waited), waited=waited)
            return
        self._remembered += said.latency_seconds - waited
        call = Call(part, said.latency_seconds, 1, 0, said.prompt_tokens, said.completion_tokens)
        self.costs.add(call, model=self.generator.name, waited=waited)


class OutOfSteps(Meter):
    """A meter where no model may be asked any more: what needs one is left out."""

    def _affordable(self, prompt: Prompt, max_tokens: int) -> None:
        raise LimitReached(f"{self.limits.steps} steps")
