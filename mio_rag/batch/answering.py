"""The threads of a run: each claims a question, holds what it may cost, has it answered, and settles."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from mio_rag.allocation.pacer import LARGEST_PRICE, Pacer
from mio_rag.batch.ledger import Claim, Ledger
from mio_rag.batch.retrying import Retrying
from mio_rag.errors import SpentError
from mio_rag.generation import Generator, make_generator
from mio_rag.generation.protocol import content_of
from mio_rag.generation.replies import RememberingGenerator
from mio_rag.policies.compose import compose, pacer_of, specs_of
from mio_rag.policies.setup import Setup
from mio_rag.policy import READER, Policy
from mio_rag.policy_files import Resolved
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.session.costs import Prices
from mio_rag.session.loop import Account
from mio_rag.session.models import Models
from mio_rag.session.trace import Outcome, Trace
from mio_rag.types import GenerationError, Question

_NANO = 1e9  # dollars are counted in whole billionths, rounded up


class Unit:
    """Tokens, or billionths of a dollar, both as whole numbers.

    Parameters
    ----------
    prices : Prices
        By model, as a policy names them.
    dollars : bool
    """

    def __init__(self, prices: Prices, dollars: bool) -> None:
        self.prices, self.dollars = prices, dollars

    @property
    def name(self) -> str:
        """As summaries have it."""
        return "dollars" if self.dollars else "tokens"

    def of(self, model: str, into: int, out: int) -> int:
        """What tokens into and out of a model cost."""
        if not self.dollars:
            return into + out
        cost = self.prices.of(model, into, out)
        assert cost is not None
        return math.ceil(cost * _NANO)

    def spent(self, trace: Trace) -> int:
        """Of everything that a question took; steps name the models."""
        return sum(
            self.of(step.model or READER, call.prompt_tokens, call.completion_tokens)
            for step in trace.steps
            for call in step.calls
        )

    def most(self, into: int, out: int) -> int:
        """The most that so many tokens may cost, by whichever model."""
        return max((self.of(name, into, out) for name in self.prices.dollars), default=into + out)

    def given(self, total: float) -> int:
        """A total as it is counted."""
        return math.floor(total * _NANO) if self.dollars else int(total)

    def told(self, cost: int) -> float:
        """A cost as people read it."""
        return cost / _NANO if self.dollars else float(cost)


#: What the output says of every question: `_told`, and `cpu_seconds`.
TOLD = (
    *("answer", "choice", "selected_ids", "complete", "token_price", "prompt_tokens", "completion_tokens"),
    *("lm_calls", "way", "error", "cpu_seconds"),
)


@dataclass(frozen=True)
class Rest:
    """What is left of a total of tokens, of a batch that may have been begun before.

    Parameters
    ----------
    tokens, questions : int
        Left to spend, and to be asked.
    price : float or None
        Of a token, where it was left.
    """

    tokens: int
    questions: int
    price: float | None

    def pacer(self, most: int) -> Pacer:
        """A pacer that goes on; what is spent is the ledger's to know."""
        price = None if self.price is None else min(LARGEST_PRICE, self.price)
        return Pacer(max(1, self.tokens), max(1, self.questions), price=price, most=most)


@dataclass(frozen=True, eq=False)
class Job:
    """All that is to be known to answer; sent to every worker.

    Parameters
    ----------
    folder : Path
        Of the batch.
    states : Resolved
        What the files of the policy hold.
    total : int or None
        As `Unit` counts it.
    rest : Rest or None
        Of a total of tokens; None: the policy's own price, or its own pacer.
    """

    folder: Path
    policy: Policy
    states: Resolved
    unit: Unit
    retries: int
    total: int | None
    rest: Rest | None

    def pacer(self) -> Pacer | None:
        """Who keeps the total of tokens; None: the price is fixed."""
        return (
            pacer_of(self.policy)
            if self.rest is None
            else self.rest.pacer(self.policy.limits.max_total_tokens)
        )


@dataclass(frozen=True)
class Answered:
    """What came of a question; plain data, so that it can come from elsewhere.

    Parameters
    ----------
    cost : int
        In the unit of the batch.
    told : dict
        Its line of the output.
    failed : bool
        Whether it should be tried again.
    is_spent : bool
        Whether it was turned away since the total is spent.
    unread : bool
        Whether nothing was read, so that no model was asked for an answer: nothing was worth it, or `short`.
    short : int
        What would have to be held for it, where something is worth reading and the rest of the total has no
        room for that; otherwise 0.
    """

    cost: int
    told: dict[str, Any]
    failed: bool = False
    is_spent: bool = False
    unread: bool = False
    short: int = 0

    @property
    def why(self) -> str:
        """What went wrong, if anything."""
        return str(self.told.get("error") or "")


class _Locked:
    """An embedder for threads, one at a time."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._lock, self.name = inner, threading.Lock(), inner.name

    def encode(self, texts: Sequence[str], progress: Any = None) -> Any:
        """As the embedder does."""
        with self._lock:
            return self._inner.encode(texts, progress)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Asked:
    """A question under way: whatever thread asks a model for it, a call that never tells is its own."""

    def __init__(self, claim: Claim, unit: Unit, lose: Callable[[Claim, int], bool]) -> None:
        self._claim, self._unit, self._lose = claim, unit, lose
        #: Set in the end: a call that nobody waits for any longer was counted when it was given up.
        self.over = threading.Event()
        #: Set where the total allows no further call: what the question held is lost.
        self.barred = threading.Event()

    def by(self, model: str, generator: Retrying) -> Retrying:
        """A model, asked for this question."""

        def untold(into: int, out: int) -> bool:
            if self.over.is_set():
                return False
            if not self._lose(self._claim, self._unit.of(model, into, out)):
                self.barred.set()
            return not self.barred.is_set()

        return generator.telling(untold, self.barred.is_set)


class _Told(Models):
    """The models that workflows name, asked for one question; they stay open."""

    def __init__(self, shared: Models, asked: _Asked) -> None:
        super().__init__({})
        self._shared, self._asked = shared, asked

    def get(self, name: str) -> Generator:
        """As `Models.get`: always the same, since replies are known by who gave them."""
        with self._opening:
            if name not in self._open:
                generator = self._shared.get(name)
                assert isinstance(generator, Retrying)
                self._open[name] = self._asked.by(name, generator)
            return self._open[name]


class Answering:
    """Answers questions under a policy; threads may share it.

    Parameters
    ----------
    lose : callable
        Told of a call that a question made and that never told what it took, as `Ledger.lose`.
    pacer : Account or None
        Of a policy with a total.
    make : callable
        Opens a generator that workflows name.
    """

    def __init__(
        self,
        index: CorpusIndex,
        generator: Generator,
        job: Job,
        lose: Callable[[Claim, int], bool],
        pacer: Account | None,
        make: Callable[[str], Generator] = make_generator,
    ) -> None:
        self._unit, self._lose = job.unit, lose

        def tried(inner: Generator) -> Retrying:
            return Retrying(inner, job.retries, lambda into, out: False)

        self._reader = tried(generator)
        shared = replace(index, embedder=_Locked(index.embedder))
        setup = Setup(retriever=Retriever(shared, counter=self._reader))
        models = Models(specs_of(job.policy), lambda spec: tried(make(spec)))
        self._evidence = job.policy.limits.budget
        self._session = compose(job.policy, setup, states=job.states, pacer=pacer, models=models)
        #: What answers depend on beside the policy.
        self.about = {"index": index.digest(), "reader": content_of(generator)}

    def most(self, question: Question) -> int:
        """The most that a question may cost; under a total of tokens its pacer allows one answer's worth."""
        most = self._unit.most(*self._session.most_tokens(question, self._reader))
        least = self.least(question)
        return most if least is None else min(most, least - 1 + self._evidence)

    def least(self, question: Question) -> int | None:
        """With how little it can be asked: under a total of tokens, with hardly any evidence."""
        if self._unit.dollars or self._session.account is None:
            return None
        return self._session.least_tokens(question, self._reader)

    def answer(self, claim: Claim) -> Answered:
        """Answer a question that is held in the ledger; whatever fails is told."""
        began = time.thread_time()
        budget, least = 10**9, self.least(claim.question)
        if least is not None:
            budget = max(1, claim.held - least + 1)
        asked = _Asked(claim, self._unit, self._lose)
        try:
            mine = replace(self._session, models=_Told(self._session.models, asked))
            found = mine.attempt(claim.question, asked.by(READER, self._reader), budget)
        finally:
            asked.over.set()
        unread = _is_unread(found)
        return Answered(
            self._unit.spent(found.trace),
            _told(found) | {"cpu_seconds": round(time.thread_time() - began, 6)},
            found.error is not None or any(step.failed for step in found.trace.steps),
            isinstance(found.error, SpentError),
            unread,
            _needed(least, found.trace.wanted) if unread else 0,
        )

    def close(self) -> None:
        """Close what was opened here."""
        self._session.close()


def make_reader(spec: str, replies: Any = None) -> Generator:
    """A generator for batches: without repetitions of its own, and with kept replies where it can have them.

    Parameters
    ----------
    replies : path or ReplyFile, optional
        Where replies are kept.
    """
    options = {"retries": 0} if spec.strip().startswith("openai:") else {}
    made = make_generator(spec, **options)
    if replies is None or made.identity is None or isinstance(made, RememberingGenerator):
        return made
    return RememberingGenerator(made, replies)


def _why(found: Outcome) -> str:
    if found.error is not None:
        return str(found.error)
    dropped = [step.dropped for step in found.trace.steps]
    return next((str(why) for why in reversed(dropped) if why), "")


def _needed(least: int | None, wanted: int) -> int:
    """Tokens with which a question could be asked that had no room: of all but evidence, and of evidence.

    `least` is that with a single token of evidence; 0 where no evidence was wanted.
    """
    return (1 if least is None else least) - 1 + wanted if wanted else 0


def _is_unread(found: Outcome) -> bool:
    if found.error is not None or found.selection is None or found.selection.chosen:
        return False
    return not found.trace.answer and found.trace.choice is None


def _told(found: Outcome) -> dict[str, Any]:
    """What the output says of a question."""
    trace, amount = found.trace, found.costs.total()
    return {
        "answer": trace.answer,
        "choice": trace.choice,
        "selected_ids": [] if found.selection is None else list(found.selection.ids),
        "complete": trace.complete,
        "token_price": trace.token_price,
        "prompt_tokens": amount.prompt_tokens,
        "completion_tokens": amount.completion_tokens,
        "lm_calls": amount.lm_calls,
        "way": [step.why for step in trace.steps],
        "error": _why(found) or None,
    }


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
