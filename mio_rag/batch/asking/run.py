"""Run a policy over many questions: threads ask, one ledger counts."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mio_rag.answer_cache import index_digest
from mio_rag.batch.asking.ledger import Claim, Ledger
from mio_rag.batch.asking.retrying import Retrying
from mio_rag.control.composed.controller import Composed, compose
from mio_rag.control.composed.parts import READER, Price
from mio_rag.control.composed.policy import Policy
from mio_rag.control.composed.states import read_states
from mio_rag.control.composed.trace import PolicyTrace
from mio_rag.control.controller import Failure, Outcome, Setup
from mio_rag.errors import InputError, SpentError
from mio_rag.files import locked, replaced, write_atomically
from mio_rag.generation import Generator
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.types import GenerationError, Question

__all__ = ["AskedSummary", "ask_many"]

_NANO = 1e9  # dollars are counted in whole billionths, rounded up
_ABORT_AFTER = 20  # questions in a row that the model failed: the cause is not the question
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class AskedSummary:
    """What a batch of questions has come to.

    Parameters
    ----------
    questions, answered, failed, left : int
        Of the input; `failed` are tried again by the next run, `left` were not asked since the total is
        spent, or the run was interrupted.
    done_before : int
        Answered when this run began.
    spent, lost : float
        Tokens or dollars: on answers; on calls that never told what they took.
    unit : str
        tokens or dollars.
    total : float or None
        What may be spent.
    """

    out: Path
    questions: int
    answered: int
    failed: int
    left: int
    done_before: int
    spent: float
    lost: float
    unit: str
    total: float | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "out": str(self.out)}


class _Unit:
    """What costs are counted in: tokens, or billionths of a dollar, both as whole numbers."""

    def __init__(self, policy: Policy, dollars: bool) -> None:
        self.prices = policy.prices
        self.dollars = dollars

    def of(self, model: str, into: int, out: int) -> int:
        if not self.dollars:
            return into + out
        cost = self.prices.of(model, into, out)
        assert cost is not None
        return math.ceil(cost * _NANO)

    def spent(self, trace: PolicyTrace) -> int:
        """Of everything that a question took; steps name the models."""
        return sum(
            self.of(step.model or READER, call.prompt_tokens, call.completion_tokens)
            for step in trace.steps
            for call in step.calls
        )

    def most(self, into: int, out: int) -> int:
        """The most that so many tokens may cost, by whichever model."""
        return max((self.of(name, into, out) for name in self.prices.dollars), default=into + out)

    def told(self, cost: int) -> float:
        return cost / _NANO if self.dollars else float(cost)


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


def ask_many(
    questions: Sequence[Question],
    index: CorpusIndex,
    generator: Generator,
    policy: Policy,
    out: str | Path,
    *,
    total_tokens: int | None = None,
    total_dollars: float | None = None,
    concurrency: int = 4,
    retries: int = 5,
    stop: threading.Event | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AskedSummary:
    """Answer every question under a policy; resumes an interrupted run.

    Parameters
    ----------
    questions : sequence of Question
    generator : Generator
        The reader. It should not repeat requests itself, and keep its replies in a file (``replies=``), so
        that what was paid for is not asked for again.
    out : path
        Folder of the ledger and the answers; one run at a time.
    total_tokens : int, optional
        That all questions together may take. The policy's pacer then sets the price.
    total_dollars : float, optional
        Likewise in money, by the prices of the policy's models; the price is the policy's own.
    concurrency : int
        Questions under way at a time, >= 1.
    retries : int
        Repetitions of a call that failed, >= 0.
    stop : Event, optional
        Once it is set, what is under way is finished, and nothing more is begun.
    progress : callable, optional
        Called with (questions just finished, all).

    Returns
    -------
    AskedSummary
        Also in ``summary.json``; the answers are in ``answers.jsonl``.

    Raises
    ------
    InputError
        For a policy, a total or a folder that do not fit, all problems at once.
    GenerationError
        When 20 questions in a row fail; what is finished is kept.
    """
    began, folder = time.perf_counter(), Path(out)
    dollars = total_dollars is not None
    policy = _checked(policy, len(questions), folder, total_tokens, total_dollars, concurrency, retries)
    unit = _Unit(policy, dollars)
    total = math.floor(total_dollars * _NANO) if total_dollars is not None else total_tokens
    states = read_states(policy)
    with locked(folder):
        ledger = Ledger(folder / "ledger.sqlite")
        run: _Run | None = None
        try:
            about = {
                "policy": replace(policy, price=Price(token=0.0)).sha256
                if policy.price.total is not None
                else states.sha256,
                "questions": _digest(questions),
                "index": index_digest(index),
                "reader": generator.identity or generator.name,
                "unit": "dollars" if dollars else "tokens",
            }
            ledger.begin(about, questions)
            run = _Run(ledger, unit, total, stop or threading.Event(), progress, len(questions))
            run.reader = Retrying(generator, retries, run.untold)
            setup = Setup(retriever=Retriever(_for_threads(index), counter=run.reader))
            run.composed = compose(policy, setup, states=states)
            before = ledger.account().states.get("answered", 0)
            run.tell(before)
            run.work(concurrency)
            account = ledger.account()
            _export(ledger, folder / "answers.jsonl")
        finally:
            if run is not None and run.composed is not None:
                run.composed.close()
            ledger.close()
        counts = account.states
        answered, failed = counts.get("answered", 0), counts.get("failed", 0)
        summary = AskedSummary(
            folder,
            len(questions),
            answered,
            failed,
            len(questions) - answered - failed,
            before,
            unit.told(account.spent),
            unit.told(account.lost),
            "dollars" if dollars else "tokens",
            total_dollars if dollars else total_tokens,
            time.perf_counter() - began,
        )
        write_atomically(folder / "summary.json", json.dumps(summary.to_dict(), indent=1))
    if run.failure is not None:
        raise run.failure
    return summary


def _for_threads(index: CorpusIndex) -> CorpusIndex:
    """The index with an embedder that threads may share."""
    return replace(index, embedder=_Locked(index.embedder))


def _checked(
    policy: Policy,
    count: int,
    folder: Path,
    total_tokens: int | None,
    total_dollars: float | None,
    concurrency: int,
    retries: int,
) -> Policy:
    """The policy to run, with the total as its price where that is in tokens."""
    problems = []
    if not count:
        problems.append("there are no questions")
    if concurrency < 1 or retries < 0:
        problems.append(f"concurrency={concurrency} must be >= 1 and retries={retries} >= 0")
    if total_tokens is not None and total_dollars is not None:
        problems.append("a total in tokens and one in dollars exclude each other: give one of them")
    if total_dollars is not None:
        if not 0 < total_dollars < math.inf:
            problems.append(f"a total of {total_dollars!r} dollars is none: give a number > 0")
        unpriced = [n for n in (READER, *policy.models) if n not in policy.prices.dollars]
        if unpriced:
            told = ", ".join(dict.fromkeys(unpriced))
            problems.append(
                f"a total in dollars needs the price of {told}: give [models.NAME] input and output"
            )
    if problems:
        raise InputError(problems)
    if total_tokens is not None:
        state = str(folder / "pacer.sqlite")
        return replace(policy, price=Price(total=total_tokens, questions=count, state=state))
    return policy


def _digest(questions: Sequence[Question]) -> str:
    import hashlib

    digest = hashlib.sha256()
    for question in questions:
        digest.update(json.dumps([question.id, question.text, list(question.choices)]).encode())
    return digest.hexdigest()


class _Run:
    """The threads of one run."""

    def __init__(
        self,
        ledger: Ledger,
        unit: _Unit,
        total: int | None,
        stop: threading.Event,
        progress: Callable[[int, int], None] | None,
        count: int,
    ) -> None:
        self.ledger, self.unit, self.total, self.stop = ledger, unit, total, stop
        self.progress, self.count = progress, count
        self.reader: Retrying
        self.composed: Composed | None = None
        self.failure: Exception | None = None
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._next, self._under_way, self._failing = -1, 0, 0

    def tell(self, done: int) -> None:
        """Say how many more are finished."""
        if self.progress is not None and done:
            self.progress(done, self.count)

    def untold(self, into: int, out: int) -> bool:
        """A call of this thread's question that may have been charged; whether it may be repeated."""
        return self.ledger.lose(self._mine.claim, self.unit.most(into, out), self.total)

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
            claim = self._claimed()
            if claim is None:
                return
            try:
                self._mine.claim = claim
                self._answer(claim)
            except BaseException as error:
                self.stop.set()
                if not isinstance(error, Exception):
                    raise
                self.failure = self.failure or error
                return
            finally:
                with self._lock:
                    self._under_way -= 1

    def _claimed(self) -> Claim | None:
        """The next question, with the most that it may cost held; None: nothing more can be asked."""
        assert self.composed is not None
        with self._lock:
            found = self.ledger.next_open(self._next)
            if found is None:
                return None
            number, question = found
            self._next = number
        cost = self.unit.most(*self.composed.most_tokens(question, self.reader))
        while not self.stop.is_set():
            with self._lock:
                if self.ledger.hold(number, cost, self.total):
                    self._under_way += 1
                    return Claim(number, question)
                if not self._under_way:
                    return None  # nothing will be freed any more
            time.sleep(_POLL_SECONDS)
        return None

    def _answer(self, claim: Claim) -> None:
        assert self.composed is not None
        found = self.composed.attempt(claim.question, self.reader, 10**9)
        assert isinstance(found.trace, PolicyTrace)
        cost = self.unit.spent(found.trace)
        failed = isinstance(found, Failure) or _answered_without(found.trace)
        self.ledger.settle(claim, cost, _told(found), failed=failed)
        if isinstance(found, Failure) and isinstance(found.error, SpentError):
            self.stop.set()
        elif failed:
            with self._lock:
                self._failing += 1
                if self._failing >= _ABORT_AFTER and self.failure is None:
                    self.stop.set()
                    self.failure = GenerationError(
                        f"{self._failing} questions in a row failed, the last with: {_why(found)}. What is "
                        "finished is kept: fix the cause and run the same again"
                    )
        else:
            with self._lock:
                self._failing = 0
        self.tell(1)


def _answered_without(trace: PolicyTrace) -> bool:
    """Whether the model failed for good on the way, so that the answer rests on less than it should."""
    return any("GenerationError" in (step.dropped or "") for step in trace.steps)


def _why(found: Outcome | Failure) -> str:
    if isinstance(found, Failure):
        return str(found.error)
    dropped = [getattr(step, "dropped", None) for step in found.trace.steps]
    return next((str(why) for why in reversed(dropped) if why), "")


def _told(found: Outcome | Failure) -> dict[str, Any]:
    """What the output says of a question."""
    trace, amount = found.trace, found.costs.total()
    assert isinstance(trace, PolicyTrace)
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


def _export(ledger: Ledger, path: Path) -> None:
    """All questions in order, as lines of JSON."""
    with replaced(path) as partial, partial.open("w", encoding="utf-8", errors="replace") as file:
        for row in ledger.rows():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
