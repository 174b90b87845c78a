"""The threads of a run: each claims a question, reserves its cost, has it answered, and settles."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from mio_rag.allocation.pacer import LARGEST_PRICE, Pacer
from mio_rag.batch.ledger import Claim, Ledger
from mio_rag.errors import SpentError
from mio_rag.generation import Generator, Prompt, make_generator
from mio_rag.generation.base import WrappedGenerator, charged, repeated
from mio_rag.generation.protocol import CHOICE_TOKENS, Choice, content_of
from mio_rag.generation.replies import RememberingGenerator, ReplyFile
from mio_rag.policies.compose import compose, pacer_of, specs_of
from mio_rag.policies.setup import Setup
from mio_rag.policy import Policy
from mio_rag.policy.files import Resolved
from mio_rag.policy.tables import READER
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.session.budget import Models, Prices
from mio_rag.session.loop import Account
from mio_rag.session.trace import Outcome, Trace
from mio_rag.types import Answer, GenerationError, Question

T = TypeVar("T")

_NANO = 1e9  # dollars are counted in whole billionths, rounded up
_ABORT_AFTER = 20  # consecutive questions that the model failed: the cause is not the question
_POLL_SECONDS = 0.05
_LIVES = 3  # workers that may die with one question

#: Keys of every line of the output, besides those of the ledger.
TOLD = (
    *("answer", "choice", "selected_ids", "read", "complete", "token_price", "prompt_tokens"),
    *("completion_tokens", "lm_calls", "way", "error", "cpu_seconds"),
)


@dataclass(frozen=True)
class Unit:
    """Counts costs in whole tokens, or in whole billionths of a dollar.

    prices: by model, as a policy names them.
    """

    prices: Prices
    dollars: bool

    @property
    def name(self) -> str:
        """Of what is counted."""
        return "dollars" if self.dollars else "tokens"

    def of(self, model: str, into: int, out: int) -> int:
        """Return the cost of tokens into and out of a model."""
        if not self.dollars:
            return into + out
        cost = self.prices.of(model, into, out)
        assert cost is not None
        return math.ceil(cost * _NANO)

    def spent(self, trace: Trace) -> int:
        """Return the cost of a question."""
        calls = ((step.model or READER, call) for step in trace.steps for call in step.calls)
        return sum(self.of(model, call.prompt_tokens, call.completion_tokens) for model, call in calls)

    def most(self, into: int, out: int) -> int:
        """Return the most that so many tokens may cost, by any model."""
        return max((self.of(name, into, out) for name in self.prices.dollars), default=into + out)

    def given(self, total: float) -> int:
        """Return a total as it is counted."""
        return math.floor(total * _NANO) if self.dollars else int(total)

    def told(self, cost: int) -> float:
        """Return a cost as people read it."""
        return cost / _NANO if self.dollars else float(cost)


@dataclass(frozen=True)
class Rest:
    """The rest of a total: tokens to spend, questions to ask, and the last price of a token, if any."""

    tokens: int
    questions: int
    price: float | None


@dataclass(frozen=True, eq=False)
class Job:
    """Everything that a worker needs; sent to each.

    states: content of the policy's files.
    total: as `Unit` counts it; rest: of a total of tokens; None: the policy's own price or pacer.
    """

    folder: Path
    policy: Policy
    states: Resolved
    unit: Unit
    retries: int
    total: int | None
    rest: Rest | None

    def pacer(self) -> Pacer | None:
        """Make the pacer of the total of tokens; None: the price is fixed."""
        if self.rest is None:
            return pacer_of(self.policy)
        price = None if self.rest.price is None else min(LARGEST_PRICE, self.rest.price)
        most = self.policy.limits.max_total_tokens
        return Pacer(max(1, self.rest.tokens), max(1, self.rest.questions), price=price, most=most)


@dataclass(frozen=True)
class Answered:
    """The result of a question, as plain data: its cost in the unit of the batch, its line of the output.

    failed: whether it should be tried again.
    is_spent: whether it was refused since the total is spent.
    unread: whether nothing was read, so that no model was asked: nothing was worth it, or `short`.
    short: what would have to be reserved for it, where something is worth reading that the rest of the total
        does not allow; otherwise 0.
    """

    cost: int
    told: dict[str, Any]
    failed: bool = False
    is_spent: bool = False
    unread: bool = False
    short: int = 0


class Retrying(WrappedGenerator):
    """Repeats a call after a failure, and waits longer each time.

    inner: should not repeat requests itself, since such calls cannot be counted.
    retries: repetitions of one call, >= 0.
    untold: called with (prompt tokens, most tokens of the reply) of a call that the server may have charged
        although no reply came; returns whether it may be repeated.
    """

    def __init__(
        self,
        inner: Generator,
        retries: int,
        untold: Callable[[int, int], bool],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._retries, self._untold, self._wait = retries, untold, wait
        self._barred: Callable[[], bool] = lambda: False

    def telling(self, untold: Callable[[int, int], bool], barred: Callable[[], bool]) -> Retrying:
        """Return a copy for one question, with its own `untold`; `barred`: whether calls are forbidden."""
        other = copy.copy(self)
        other._untold, other._barred = untold, barred
        return other

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count tokens, which may ask a server."""
        return repeated(lambda: self._inner.count(texts), self._retries, wait=self._wait)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Count a prompt, which may ask a server."""
        return repeated(lambda: self._inner.prompt_tokens(prompt), self._retries, wait=self._wait)

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer; `GenerationError` if every attempt failed."""
        return self._tried(prompt, max_tokens, lambda: self._inner.generate(prompt, max_tokens=max_tokens))

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """Choose; `GenerationError` if every attempt failed."""
        return self._tried(prompt, CHOICE_TOKENS, lambda: self._inner.choose_scored(prompt, choices))

    def _tried(self, prompt: Prompt, max_tokens: int, ask: Callable[[], T]) -> T:
        def allowed(error: GenerationError) -> bool:
            # Generators of others may say so by the cause alone.
            if not (error.untold or isinstance(error.__cause__, (TimeoutError, ConnectionError))):
                return error.spent is None  # an unusable reply would come again
            lost = charged(error, self, prompt, max_tokens)
            assert lost is not None
            error.spent, error.untold = None, False  # counted here, and nowhere else
            error.__cause__ = None
            return self._untold(lost.prompt_tokens, lost.completion_tokens)

        if self._barred():
            raise GenerationError("the total allows no further call: an earlier one never reported its cost")
        return repeated(ask, self._retries, allowed, self._wait)


class _QuestionModels(Models):
    """The reader, and the models that workflows name, for one question; lost calls are charged to it.

    Always the same ones, since replies are cached by model.

    lose: counts a call that never reported its cost, as `Ledger.lose`.
    """

    def __init__(self, shared: Models, claim: Claim, unit: Unit, lose: Callable[[Claim, int], bool]) -> None:
        super().__init__(
            {name: name for name in shared.names}, lambda name: self.wrapped(name, shared.get(name))
        )
        self._claim, self._unit, self._lose = claim, unit, lose
        #: Set at the end of the question: its abandoned calls are counted by then.
        self.over = threading.Event()
        self._barred = False  # the total allows no further call

    def wrapped(self, name: str, generator: Generator) -> Retrying:
        """Return a model that charges its lost calls to this question."""
        assert isinstance(generator, Retrying)

        def untold(into: int, out: int) -> bool:
            if self.over.is_set():
                return False
            if not self._lose(self._claim, self._unit.of(name, into, out)):
                self._barred = True
            return not self._barred

        return generator.telling(untold, lambda: self._barred)


class Answering:
    """Answers questions under a policy; threads may share it.

    index, generator: or the folder, and the name, which are opened and closed here.
    lose: counts a call of a question that never reported its cost, as `Ledger.lose`.
    pacer: of a policy with a total.
    replies: path or ReplyFile of the cache of replies.
    """

    def __init__(
        self,
        index: CorpusIndex | str | Path,
        generator: Generator | str,
        job: Job,
        lose: Callable[[Claim, int], bool],
        pacer: Account | None,
        replies: Path | ReplyFile,
    ) -> None:
        self._unit, self._lose, self._opened = job.unit, lose, ExitStack()

        def make(spec: str) -> Generator:
            return make_reader(spec, replies)

        def tried(inner: Generator) -> Retrying:
            return Retrying(inner, job.retries, lambda into, out: False)

        corpus = index if isinstance(index, CorpusIndex) else CorpusIndex.load(index)
        if isinstance(generator, str):
            generator = make(generator)
            self._opened.callback(generator.close)
        self._reader = tried(generator)
        setup = Setup(retriever=Retriever(corpus, counter=self._reader))
        models = Models(specs_of(job.policy), lambda spec: tried(make(spec)))
        self._evidence = job.policy.limits.budget
        self._session = compose(job.policy, setup, states=job.states, pacer=pacer, models=models)
        self._opened.callback(self._session.close)
        #: What answers depend on, besides the policy.
        self.about = {"index": corpus.digest(), "reader": content_of(generator)}

    def most(self, question: Question) -> int:
        """Return the most that a question may cost; under a total of tokens, one answer's worth."""
        most = self._unit.most(*self._session.most_tokens(question, self._reader))
        least = self.least(question)
        return most if least is None else min(most, least - 1 + self._evidence)

    def least(self, question: Question) -> int | None:
        """Return the cost with one token of evidence; None: not known, or there is no total of tokens."""
        if self._unit.dollars or self._session.account is None:
            return None
        return self._session.least_tokens(question, self._reader)

    def answer(self, claim: Claim) -> Answered:
        """Answer a question for which its cost is reserved; failures are part of the result."""
        began = time.thread_time()
        budget, least = 10**9, self.least(claim.question)
        if least is not None:
            budget = max(1, claim.held - least + 1)
        models = _QuestionModels(self._session.models, claim, self._unit, self._lose)
        try:
            mine = replace(self._session, models=models)
            found = mine.attempt(claim.question, models.wrapped(READER, self._reader), budget)
        finally:
            models.over.set()
        trace, selection = found.trace, found.selection
        read_nothing = found.error is None and selection is not None and not selection.chosen
        unread = read_nothing and not trace.answer and trace.choice is None
        short = (least or 1) - 1 + trace.wanted if unread and trace.wanted else 0
        failed = found.error is not None or any(step.failed for step in trace.steps)
        seconds = {"cpu_seconds": round(time.thread_time() - began, 6)}
        is_spent = isinstance(found.error, SpentError)
        return Answered(self._unit.spent(trace), _told(found) | seconds, failed, is_spent, unread, short)

    def close(self) -> None:
        """Close what was opened here."""
        self._opened.close()


def make_reader(spec: str, replies: Any) -> Generator:
    """Make a generator that repeats nothing itself, and caches replies where it identifies its model."""
    options = {"retries": 0} if spec.strip().startswith("openai:") else {}
    made = make_generator(spec, **options)
    if made.identity is None or isinstance(made, RememberingGenerator):
        return made
    return RememberingGenerator(made, replies, paid=True)  # by this ledger, for this question or another


def _told(found: Outcome) -> dict[str, Any]:
    """The line of the output; of what was read id and source, and page and section in a document."""
    trace, amount, selection = found.trace, found.costs.total(), found.selection
    why = str(found.error or next((s.dropped for s in reversed(trace.steps) if s.dropped), ""))
    read = (
        () if selection is None else [(b.passage.source, part) for b in selection.blocks for part in b.parts]
    )
    return {
        "answer": trace.answer,
        "choice": trace.choice,
        "selected_ids": [] if selection is None else list(selection.ids),
        "read": [
            {"id": part.id, "source": source, "page": part.page, "section": list(part.section)}
            for source, part in read
        ],
        "complete": trace.complete,
        "token_price": trace.token_price,
        "prompt_tokens": amount.prompt_tokens,
        "completion_tokens": amount.completion_tokens,
        "lm_calls": amount.lm_calls,
        "way": [step.why for step in trace.steps],
        "error": why or None,
    }


class Died(Exception):
    """The worker died, and what it spent is unknown."""


class Workers:
    """The threads of one run.

    team: `Answering`, or workers of a cluster; its `answer` raises `Died` if the worker died.
    total: what may be spent, in the unit of the ledger.
    stop: once it is set, no question is begun.
    """

    def __init__(
        self,
        ledger: Ledger,
        team: Any,
        questions: Sequence[Question],
        total: int | None,
        stop: threading.Event,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.ledger, self.team, self.questions, self.total, self.stop = ledger, team, questions, total, stop
        self.progress = progress
        self.failure: Exception | None = None
        #: The smallest reservation that the rest of the total did not allow.
        self.short: int | None = None
        #: Questions for which what is worth reading did not fit the rest of the total.
        self.crowded = 0
        self._lock = threading.Lock()
        self._next, self._in_progress, self._failing = -1, 0, 0

    def report(self, done: int) -> None:
        """Call `progress` with the number of questions just finished."""
        if self.progress is not None and done:
            self.progress(done, len(self.questions))

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
                with self._lock:
                    number = self.ledger.next_open(self._next)
                    if number is None:
                        return
                    self._next = number
                held = self._held(number, self.questions[number])
                if not held:
                    return
                try:
                    self._answer(Claim(number, self.questions[number], held))
                finally:
                    with self._lock:
                        self._in_progress -= 1
            except BaseException as error:
                self.stop.set()
                if not isinstance(error, Exception):
                    raise
                self.failure = self.failure or error
                return

    def _held(self, number: int, question: Question) -> int:
        """Reserve the most that a question may cost, now or when others have settled.

        Once nothing else is in progress, it is asked with what is left, if that is enough; 0: it is not.
        """
        cost = self.team.most(question)
        while not self.stop.is_set():
            with self._lock:
                last = not self._in_progress
                if held := self.ledger.hold(number, cost, self.total):
                    self._in_progress += 1
                    return held
            if last:
                least = self.team.least(question)
                with self._lock:
                    if self._in_progress:
                        continue  # another question was begun meanwhile: what it leaves may be enough
                    held = self.ledger.hold(number, cost, self.total, least)
                    self._in_progress += held > 0
                    if not held:
                        self._lack(cost if least is None else min(cost, least))
                return held
            time.sleep(_POLL_SECONDS)
        return 0

    def _lack(self, needed: int) -> None:
        self.short = min(self.short or needed, needed)

    def _answer(self, claim: Claim) -> None:
        outcome = self._answered(claim)
        if outcome is None:
            return
        claim, found = outcome
        unread = "unread" if found.unread else "answered"
        state = "failed" if found.failed else "open" if found.short else unread
        self.ledger.settle(claim, found.cost, found.told, state)
        with self._lock:
            if found.short:
                self.crowded += 1
                self._lack(found.short)
            if found.is_spent:
                self.stop.set()
            else:
                self._failing = self._failing + 1 if found.failed else 0
            if self._failing >= _ABORT_AFTER and self.failure is None:
                self.stop.set()
                self.failure = GenerationError(
                    f"{self._failing} questions in a row failed, the last with: {found.told.get('error')}. "
                    "What is finished is kept: fix the cause and run the same again"
                )
        if not found.unread:
            self.report(1)

    def _answered(self, claim: Claim) -> tuple[Claim, Answered] | None:
        """The result of a question, and its last claim; None where too little is left to ask it again."""
        for life in range(_LIVES):
            try:
                return claim, self.team.answer(claim)
            except Died as died:
                last = life == _LIVES - 1
                self.ledger.abandon(claim, again=not last)
                if last:
                    why = f"{died}; so did {life} others with this question"
                    return claim, Answered(0, {"error": why}, failed=True)
                with self._lock:
                    self._in_progress -= 1
                held = self._held(claim.number, claim.question)
                if not held:
                    with self._lock:
                        self._in_progress += 1  # the caller subtracts it
                    return None
                claim = replace(claim, held=held)
        raise AssertionError("unreachable")
