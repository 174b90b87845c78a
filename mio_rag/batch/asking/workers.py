"""The threads of a run: each claims a question, holds what it may cost, has it answered, and settles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from mio_rag.batch.asking.answering import Answered
from mio_rag.batch.asking.ledger import Claim, Ledger
from mio_rag.types import GenerationError, Question

__all__ = ["Died", "Team", "Workers"]

_ABORT_AFTER = 20  # questions in a row that the model failed: the cause is not the question
_POLL_SECONDS = 0.05
_LIVES = 3  # workers that one question may take with it


class Died(Exception):
    """Whoever was to answer is gone, and nobody knows what was spent."""


class Team(Protocol):
    """Who answers; threads share it."""

    def most(self, question: Question) -> int:
        """The most that a question may cost."""
        ...

    def least(self, question: Question) -> int | None:
        """With how little it can be asked, where it then reads less; None: not with less than the most."""
        ...

    def answer(self, claim: Claim) -> Answered:
        """What came of a question.

        Raises
        ------
        Died
        """
        ...


class Workers:
    """The threads of one run.

    Parameters
    ----------
    total : int or None
        What may be spent, in the unit of the ledger.
    stop : Event
        Once it is set, nothing more is begun.
    count : int
        Questions of the batch, for `progress`.
    """

    def __init__(
        self,
        ledger: Ledger,
        team: Team,
        total: int | None,
        stop: threading.Event,
        progress: Callable[[int, int], None] | None,
        count: int,
    ) -> None:
        self.ledger, self.team, self.total, self.stop = ledger, team, total, stop
        self.progress, self.count = progress, count
        self.failure: Exception | None = None
        #: The least that would have been held for a question, of those that what is left did not allow, and
        #: whether that is with what is worth reading.
        self.short: tuple[int, bool] | None = None
        #: Questions for which what is worth reading had no room in what is left.
        self.crowded = 0
        self._lock = threading.Lock()
        self._next, self._under_way, self._failing = -1, 0, 0

    def tell(self, done: int) -> None:
        """Say how many more are finished."""
        if self.progress is not None and done:
            self.progress(done, self.count)

    def work(self, threads: int) -> None:
        """Ask until nothing is left, or nothing more is allowed."""
        with ThreadPoolExecutor(threads) as pool:
            workers = [pool.submit(self._worker) for _ in range(threads)]
            try:
                for worker in workers:
                    worker.result()
            except BaseException:
                self.stop.set()
                raise

    def _worker(self) -> None:
        while not self.stop.is_set():
            try:
                claim = self._claimed()
                if claim is None:
                    return
                try:
                    self._answer(claim)
                finally:
                    with self._lock:
                        self._under_way -= 1
            except BaseException as error:
                self.stop.set()
                if not isinstance(error, Exception):
                    raise
                self.failure = self.failure or error
                return

    def _claimed(self) -> Claim | None:
        """The next question, with the most that it may cost held; None: nothing more can be asked."""
        with self._lock:
            found = self.ledger.next_open(self._next)
            if found is None:
                return None
            number, question = found
            self._next = number
        held = self._held(number, question)
        return Claim(number, question, held) if held else None

    def _held(self, number: int, question: Question) -> int:
        """Hold the most that a question may cost, now or once others have told what they took.

        Where nothing will be freed any more, it is asked with what is left, if that is enough; 0: it is not.
        """
        cost = self.team.most(question)
        while not self.stop.is_set():
            with self._lock:
                last = not self._under_way
                if held := self.ledger.hold(number, cost, self.total):
                    self._under_way += 1
                    return held
            if last:
                least = self.team.least(question)
                with self._lock:
                    if self._under_way:
                        continue  # another question was begun meanwhile: what it leaves may do
                    held = self.ledger.hold(number, cost, self.total, least)
                    self._under_way += held > 0
                    if not held:
                        self._lack(cost if least is None else min(cost, least), reads=False)
                return held
            time.sleep(_POLL_SECONDS)
        return 0

    def _lack(self, needed: int, *, reads: bool) -> None:
        """Note what a question would have needed."""
        self.short = min(self.short or (needed, reads), (needed, reads))

    def _answer(self, claim: Claim) -> None:
        found = self._answered(claim)
        if found is None:
            return
        self.ledger.settle(
            claim, found.cost, found.told, failed=found.failed, unread=found.unread, short=found.short > 0
        )
        if found.short:
            with self._lock:
                self.crowded += 1
                self._lack(found.short, reads=True)
        if found.is_spent:
            self.stop.set()
        elif found.failed:
            with self._lock:
                self._failing += 1
                if self._failing >= _ABORT_AFTER and self.failure is None:
                    self.stop.set()
                    self.failure = GenerationError(
                        f"{self._failing} questions in a row failed, the last with: {found.why}. What is "
                        "finished is kept: fix the cause and run the same again"
                    )
        else:
            with self._lock:
                self._failing = 0
        if not found.unread:
            self.tell(1)

    def _answered(self, claim: Claim) -> Answered | None:
        """What came of a question; None where too little is left to ask it again."""
        for life in range(_LIVES):
            try:
                return self.team.answer(claim)
            except Died as died:
                if life == _LIVES - 1:
                    why = f"{died}; so did {life} others with this question"
                    self.ledger.abandon(claim, again=False)
                    return Answered(0, {"error": why}, failed=True)
                self.ledger.abandon(claim, again=True)
                with self._lock:
                    self._under_way -= 1
                held = self._held(claim.number, claim.question)
                if not held:
                    with self._lock:
                        self._under_way += 1  # the caller takes it off
                    return None
                claim = Claim(claim.number, claim.question, held)
        raise AssertionError("unreachable")
