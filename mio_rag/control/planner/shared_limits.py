"""What branches that run side by side may spend together, and the meter of one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mio_rag.control.costs import Call, Costs, Spent
from mio_rag.control.meter import LimitReached, Limits, Meter, Replies, Reply
from mio_rag.generation import Generator, Prompt
from mio_rag.generation.protocol import CHOICE_TOKENS
from mio_rag.types import Answer

__all__ = ["BranchMeter", "SharedLimits"]


@dataclass(eq=False)
class SharedLimits:
    """Tokens, steps and seconds of one question, shared by all branches.

    A call holds the most that it may take before it is made, so that calls side by side never exceed the
    limit together. What is set aside for the answer only the answer may use.

    Parameters
    ----------
    reserve : int
        Tokens set aside for the answer.
    """

    limits: Limits
    reserve: int
    spent: int = 0
    held: int = 0
    steps: int = 0
    remembered: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        if self.limits.tokens < self.reserve:
            raise LimitReached(f"{self.limits.tokens} tokens")

    @property
    def seconds(self) -> float:
        """Since the question was taken up, as if every reply had been waited for."""
        return time.perf_counter() - self._started + self.remembered

    def step(self) -> None:
        """Begin one more executor that asks a model, or raise `LimitReached`."""
        with self._lock:
            if self.steps >= self.limits.steps:
                raise LimitReached(f"{self.limits.steps} steps")
            self.steps += 1

    def check(self) -> None:
        """Raise `LimitReached` if nothing more may begin."""
        if self.seconds >= self.limits.seconds:
            raise LimitReached(f"{self.limits.seconds:g} seconds")

    def hold(self, tokens: int, final: bool) -> None:
        """Set so many tokens aside for a call, or raise `LimitReached`."""
        with self._lock:
            reserve = 0 if final else self.reserve
            if self.spent + self.held + tokens + reserve > self.limits.tokens:
                raise LimitReached(f"{self.limits.tokens} tokens")
            self.held += tokens

    def settle(self, held: int, spent: int, remembered: float) -> None:
        """A call has ended: what it held is free, what it took is spent."""
        with self._lock:
            self.held -= held
            self.spent += spent
            self.remembered += remembered


class BranchMeter(Meter):
    """A meter of a branch: its own account, and limits shared with the others.

    Parameters
    ----------
    shared : SharedLimits
        What may be spent.
    """

    def __init__(self, generator: Generator, shared: SharedLimits, replies: Replies) -> None:
        super().__init__(generator, shared.limits, 0, replies, Costs())
        self._shared = shared
        self.asking: tuple[str, int, int, float] | None = None  # part, prompt, longest reply, since when
        self._beside: list[BranchMeter] = []

    @property
    def seconds_left(self) -> float:
        """As `Meter.seconds_left`, of the question: branches begin late."""
        return self._shared.limits.seconds - self._shared.seconds

    def beside(self) -> BranchMeter:
        """As `Meter.beside`, from the shared limits; until `joined` it is told with this one."""
        other = BranchMeter(self.generator, self._shared, self._replies)
        self._beside.append(other)
        return other

    def joined(self) -> None:
        """What those beside spent is in the books of this one now."""
        self._beside.clear()

    def generate(self, part: str, prompt: Prompt, max_tokens: int, *, final: bool = False) -> Answer:
        """As `Meter.generate`, from the shared limits; the final answer may use what is set aside for it."""
        with self._paid(part, prompt, max_tokens, final):
            return super().generate(part, prompt, max_tokens, final=True)

    def choose(self, part: str, prompt: Prompt, *, final: bool = False) -> Reply:
        """As `Meter.choose`, likewise."""
        with self._paid(part, prompt, CHOICE_TOKENS, final):
            return super().choose(part, prompt, final=True)

    @contextmanager
    def _paid(self, part: str, prompt: Prompt, max_tokens: int, final: bool) -> Iterator[None]:
        into = self.generator.prompt_tokens(prompt)
        self._shared.hold(into + max_tokens, final)
        before, told = self.tokens, self._remembered
        self.asking = (part, into, max_tokens, time.perf_counter())
        try:
            yield
        finally:
            self.asking = None
            self._shared.settle(into + max_tokens, self.tokens - before, self._remembered - told)

    def given_up(self) -> tuple[Spent, ...]:
        """What those beside spent, and calls that are on their way, in full: what nobody reports is spent."""
        found = [spent for other in self._beside for spent in (*other.costs.spent, *other.given_up())]
        if (asking := self.asking) is not None:
            part, into, out, since = asking
            call = Call(part, time.perf_counter() - since, 1, 0, into, out)
            found.append(Spent(call, (), self.generator.name))
        return tuple(found)
