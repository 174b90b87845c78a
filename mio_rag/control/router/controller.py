"""Controllers with tiers.

tier:NAME      every question at one tier
routed         a router chooses the tier of each question
random-tier    drawn, with the shares that the router gave to the tiers in training; without one, all alike
oracle-tier    the cheapest tier whose answer is right, charged as if that had been known: a bound for all
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.control.controller import Failure, Outcome, Setup
from mio_rag.control.costs import Call, Costs, totals
from mio_rag.control.meter import LimitReached, Meter, Replies, Reply
from mio_rag.control.router.reader import TierReader, search, top_score
from mio_rag.control.router.tier import Tier
from mio_rag.control.router.trace import TierTrace
from mio_rag.control.router.worked import answer_worked, labels
from mio_rag.control.trace import Step, read_passages
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation import Generator, build_prompt
from mio_rag.generation.window import context_budget
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.types import Question

__all__ = ["Always", "Choice", "Chooser", "Correction", "Drawn", "Oracle", "Tiered"]


@dataclass(frozen=True)
class Correction:
    """More is read where the search is weak.

    Parameters
    ----------
    below : float
        Cosine of the best passage under which a search is weak.
    more : int
        Passages that are then read beside those of the tier; the dearest tier reads no more.
    """

    below: float
    more: int = 5


@dataclass(frozen=True)
class Choice:
    """A tier, and what spoke for it.

    Parameters
    ----------
    place : int
        Among the tiers.
    scores : mapping of str to float, optional
        Tier -> probability or utility.
    unsure : bool
        Whether several tiers were plausible, and a dearer one than the best was taken.
    """

    place: int
    scores: Mapping[str, float] | None = None
    unsure: bool = False


class Chooser(Protocol):
    """Chooses a tier."""

    def choose(self, question: Question, pool: Candidates) -> Choice:
        """The tier for a question, from its text and what the search found."""
        ...


@dataclass(frozen=True)
class Always:
    """One tier for all questions."""

    place: int

    def choose(self, question: Question, pool: Candidates) -> Choice:
        """That tier."""
        return Choice(self.place)


@dataclass(frozen=True)
class Drawn:
    """A tier by lot, the same for a question in every run.

    Parameters
    ----------
    shares : tuple of float
        Of the tiers; >= 0, adding up to 1.
    """

    shares: tuple[float, ...]
    seed: int = 0

    def choose(self, question: Question, pool: Candidates) -> Choice:
        """The tier that was drawn."""
        rng = np.random.default_rng([self.seed, zlib.crc32(question.id.encode())])
        place = int(np.searchsorted(np.cumsum(self.shares), rng.random(), side="right"))
        return Choice(min(place, len(self.shares) - 1))


@dataclass(frozen=True, eq=False)
class Tiered:
    """Searches, chooses a tier, reads at it and answers.

    Parameters
    ----------
    name : str
        As the ledger shows it.
    settings : mapping
        What its decisions depend on, as plain data for its traces.
    correction : Correction or None
        None: a weak search is taken as it is.
    """

    name: str
    tiers: tuple[Tier, ...]
    chooser: Chooser
    retriever: Retriever
    setup: Setup
    settings: Mapping[str, Any] = field(default_factory=dict)
    correction: Correction | None = None

    def __post_init__(self) -> None:
        for tier in self.tiers:
            TierReader(tier, self.retriever, self.setup.selector)  # says what the search is too shallow for

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        """As `Controller.attempt`; at most `budget_tokens` are read, whatever a tier allows."""
        if budget_tokens < 1:
            raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
        run = _Run(self, question, generator, int(budget_tokens))
        try:
            reply = run.answer(replies)
        except MioRagError as error:
            return Failure(error, run.selection, run.trace(None, error), run.costs)
        return Outcome(reply, run.selection, run.trace(reply, None), run.costs)

    def in_force(self, found: Outcome) -> dict[str, Any]:
        """What decided how much was read, as plain data; what had no say is None.

        The tier and its context; a budget of tokens, redundancy and the price of a passage only where the
        program chose the passages. Empty where nothing was read.
        """
        trace, selection = found.trace, found.selection
        assert isinstance(trace, TierTrace)
        if selection is None:
            return {}
        tier = next(one for one in self.tiers if one.name == trace.tier)
        budget, selector = selection.budget_tokens, self.setup.selector
        by_program = tier.token_price is not None
        return {
            "tier": tier.name,
            "context": tier.context,
            "context_unit": tier.unit,
            "budget_tokens": budget if by_program else None,
            "redundancy_weight": selector.redundancy_weight if by_program else None,
            "passage_penalty": selector.penalty(selection.pool, budget) if by_program else None,
        }


@dataclass(eq=False)
class _Run:
    """One question on its way; its trace can be told at any time."""

    tiered: Tiered
    question: Question
    generator: Generator
    budget_tokens: int
    costs: Costs = field(default_factory=Costs)
    selection: Selection | None = None
    tier: Tier | None = None
    choice: Choice | None = None
    corrected: bool = False
    top: float | None = None
    ended: str = "stop"
    opening: tuple[Call, ...] = ()
    steps: tuple[Step, ...] = ()

    def answer(self, replies: Replies | None) -> Reply:
        limits = self.tiered.setup.settings.limits
        bare = self.generator.prompt_tokens(build_prompt(self.question))
        longest = max(tier.new_tokens for tier in self.tiered.tiers)
        meter = Meter(self.generator, limits, bare + longest, replies, self.costs)
        try:
            meter.check()
            if limits.steps < 1:
                raise LimitReached("0 steps")
            self._read(meter, limits.tokens - bare)
        except LimitReached as limit:
            self.ended = str(limit)
        tier = self.tier or self.tiered.tiers[0]
        prompt = build_prompt(self.question, () if self.selection is None else self.selection.passages)
        if self.question.choices:
            return meter.choose("answer", prompt, final=True)
        return Reply(meter.generate("answer", prompt, tier.new_tokens, final=True))

    def _read(self, meter: Meter, room: int) -> None:
        """Search, choose a tier, and read at it."""
        tiered = self.tiered
        pool = search(tiered.retriever, self.question.text, meter)
        with meter.timed("route"):
            self.choice = tiered.chooser.choose(self.question, pool)
            self.tier = tiered.tiers[self.choice.place]
            self.top = top_score(pool)
            last = self.choice.place == len(tiered.tiers) - 1
            weak = tiered.correction is not None and self.top < tiered.correction.below
            more_there_is = self.tier.depth < tiered.retriever.pool
            self.corrected = weak and not last and more_there_is
        self.opening = meter.take()
        allowed = context_budget(
            self.generator,
            self.question,
            min(self.budget_tokens, max(1, room - self.tier.new_tokens - _SEAM)),
            max_tokens=self.tier.new_tokens,
        )
        more = tiered.correction.more if tiered.correction is not None and self.corrected else 0
        reader = TierReader(self.tier, tiered.retriever, tiered.setup.selector)
        self.selection = reader.read(pool, allowed, self.generator, meter, more)
        ids = self.selection.ids
        self.steps = (Step(0, "read", self.question.text, "", ids, ids, meter.take()),)

    def trace(self, reply: Reply | None, error: MioRagError | None) -> TierTrace:
        """All that was done; what a part took that failed counts with the answer."""
        done = (*self.opening, *(call for step in self.steps for call in step.calls))
        closing = self.costs.calls[len(done) :]
        return TierTrace(
            question_id=self.question.id,
            question=self.question.text,
            choices=self.question.choices,
            controller=self.tiered.name,
            budget_tokens=self.budget_tokens,
            settings={**self.tiered.settings, "seed": int(self.tiered.setup.seed)},
            steps=self.steps,
            ended=self.ended if error is None else "error",
            passages=read_passages(self.selection),
            answer="" if reply is None else reply.answer.text,
            choice=None if reply is None else reply.choice,
            generator=self.generator.name,
            opening=self.opening,
            closing=closing,
            parts=totals((*done, *closing)),
            error=None if error is None else f"{type(error).__name__}: {error}",
            tier="" if self.tier is None else self.tier.name,
            scores=None
            if self.choice is None or self.choice.scores is None
            else {name: float(score) for name, score in self.choice.scores.items()},
            unsure=self.choice is not None and self.choice.unsure,
            corrected=self.corrected,
            top_score=self.top,
        )


_SEAM = 16  # tokens that a chat template and separators may take beside what was counted


@dataclass(frozen=True, eq=False)
class Oracle:
    """Goes up the tiers until an answer is right, and is charged for that tier alone.

    A bound, not a way to answer: it looks at the right answers. Where no tier is right it takes the one that
    the published rule names (see `mio_rag.control.router.worked.labels`).

    Parameters
    ----------
    rungs : sequence of Tiered
        One for each tier, in the order of their cost.
    """

    name: str
    rungs: Sequence[Tiered]

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        """As `Controller.attempt`.

        Raises
        ------
        InputError
            If no right answer of the question is known.
        """
        answer_worked(question, "", None)
        known: Replies = {} if replies is None else replies
        tried: list[Outcome | Failure] = []
        for rung in self.rungs:
            found = rung.attempt(question, generator, budget_tokens, known)
            tried.append(found)
            reply = found.reply
            if reply is not None and answer_worked(question, reply.answer.text, reply.choice):
                return found
        none = np.zeros((1, len(tried)))
        return tried[int(labels(none, [len(question.gold_ids) > 1])[0])]
