"""One question to its answer and its cost: what a thread of this process does, or a worker elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mio_rag.allocation.pacer import LARGEST_PRICE, Pacer
from mio_rag.batch.asking.ledger import Claim
from mio_rag.batch.asking.retrying import Retrying
from mio_rag.batch.asking.unit import Unit
from mio_rag.control.composed.controller import compose, pacer_of, specs_of
from mio_rag.control.composed.parts import READER
from mio_rag.control.composed.policy import Policy
from mio_rag.control.composed.states import States
from mio_rag.control.controller import Setup
from mio_rag.errors import SpentError
from mio_rag.generation import Generator, make_generator
from mio_rag.generation.protocol import content_of
from mio_rag.generation.replies import RememberingGenerator
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.session.loop import Account
from mio_rag.session.models import Models
from mio_rag.session.trace import Outcome
from mio_rag.types import Question

__all__ = ["TOLD", "Answered", "Answering", "Job", "Rest", "make_reader"]

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
    states : States
        What the files of the policy hold.
    total : int or None
        As `Unit` counts it.
    rest : Rest or None
        Of a total of tokens; None: the policy's own price, or its own pacer.
    """

    folder: Path
    policy: Policy
    states: States
    unit: Unit
    retries: int
    total: int | None
    rest: Rest | None

    def pacer(self) -> Pacer | None:
        """Who keeps the total of tokens; None: the price is fixed."""
        return pacer_of(self.policy) if self.rest is None else self.rest.pacer(self.policy.limits.tokens)


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
        self._evidence = job.policy.limits.evidence_tokens
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
