"""A controller that searches by strategies: choose, search, select, answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mio_rag.control.bandit.chooser import Chooser, Fixed
from mio_rag.control.bandit.pipeline import PipelineResult, SearchPipeline
from mio_rag.control.bandit.strategist import open_strategist
from mio_rag.control.bandit.trace import SearchTrace
from mio_rag.control.controller import Failure, Outcome, Setup
from mio_rag.control.costs import Call, Costs, totals
from mio_rag.control.memory import Memory
from mio_rag.control.meter import LimitReached, Limits, Meter, Replies, Reply
from mio_rag.control.settings import ControlSettings
from mio_rag.control.steps.write import LmSynthesizer
from mio_rag.control.trace import Step, read_passages
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation import Generator
from mio_rag.generation.protocol import CHOICE_TOKENS
from mio_rag.generation.window import window_room
from mio_rag.learning.bandit import StrategyOptions, options_of
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.types import GenerationError, Question

__all__ = ["Searcher", "check_searcher", "make_pipeline", "make_searcher"]


@dataclass(frozen=True, eq=False)
class Searcher:
    """A controller: choose strategies, search by them, select from what they find, and answer once."""

    name: str
    chooser: Chooser
    retriever: Retriever
    selector: Selector
    options: StrategyOptions
    limits: Limits = field(default_factory=Limits)
    max_tokens: int = 32

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        """Answer a question; as `Controller.attempt`."""
        if budget_tokens < 1:
            raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
        run = _Run(self, question, generator, Memory(question, int(budget_tokens)))
        try:
            reply = run.answer(replies)
        except MioRagError as error:
            return Failure(error, run.memory.selection, run.trace(None, error), run.costs)
        return Outcome(reply, run.memory.selection, run.trace(reply), run.costs)


@dataclass(eq=False)
class _Run:
    """One question on its way."""

    searcher: Searcher
    question: Question
    generator: Generator
    memory: Memory
    costs: Costs = field(default_factory=Costs)
    result: PipelineResult | None = None
    searching: tuple[Call, ...] = ()

    def answer(self, replies: Replies | None) -> Reply:
        searcher, memory = self.searcher, self.memory
        room = window_room(self.generator, self.question, max_tokens=searcher.max_tokens)
        if room is not None:
            memory.budget_tokens = min(memory.budget_tokens, room)
        synthesizer = LmSynthesizer(searcher.max_tokens)
        longest = max(searcher.max_tokens, CHOICE_TOKENS) if self.question.choices else searcher.max_tokens
        asked = self.generator.prompt_tokens(synthesizer.prompt(memory))
        reserve = asked + memory.budget_tokens + longest
        meter = Meter(self.generator, searcher.limits, reserve, replies, self.costs)
        settings = searcher.options.search_settings(searcher.limits.tokens - reserve)
        pipeline = SearchPipeline(
            searcher.chooser, searcher.retriever, self.generator, searcher.selector, settings
        )
        self.result = pipeline.run(
            self.question, memory.budget_tokens, self.generator, costs=self.costs, replies=replies
        )
        self.searching = meter.take()
        memory.pool, memory.selection = self.result.searched.pool, self.result.selection
        try:
            return synthesizer.answer(memory, meter)
        except LimitReached as limit:
            raise GenerationError(f"the answer would go beyond the limit of {limit}: raise it") from limit

    def trace(self, reply: Reply | None, error: MioRagError | None = None) -> SearchTrace:
        """What was done until now."""
        calls, result, searcher = self.costs.calls, self.result, self.searcher
        ids = () if self.memory.selection is None else self.memory.selection.ids
        steps: list[Step] = []
        notes: tuple[str, ...] = ()
        choice: dict[str, Any] = {}
        found: dict[str, dict[str, int]] = {}
        if result is not None:
            notes, chosen = result.searched.notes, result.choice
            choice = {
                "id": chosen.id,
                "strategies": list(chosen.strategies),
                "why": chosen.why,
                **chosen.about,
            }
            found = {i: result.found_by(i) for i in ids}
            for number, one in enumerate(result.searched.tried):
                own = tuple(i for i in ids if one.strategy in found[i])
                asked = " | ".join(one.found.queries)
                steps.append(Step(number, one.strategy, asked, one.found.note, own, own, one.costs.calls))
        # The calls of strategies stand in their steps; those before the answer that are none of theirs open.
        rest = list(self.searching or calls)
        for step in steps:
            for call in step.calls:
                rest.remove(call)
        closing = calls[len(self.searching) :] if self.searching else ()
        return SearchTrace(
            question_id=self.question.id,
            question=self.question.text,
            choices=self.question.choices,
            controller=searcher.name,
            budget_tokens=self.memory.budget_tokens,
            settings={"max_tokens": searcher.max_tokens, **searcher.options.to_dict()},
            steps=tuple(steps),
            ended="stop" if error is None else "error",
            passages=read_passages(self.memory.selection),
            answer="" if reply is None else reply.answer.text,
            choice=None if reply is None else reply.choice,
            generator=self.generator.name,
            opening=tuple(rest),
            closing=tuple(closing),
            parts=totals(calls),
            error=None if error is None else f"{type(error).__name__}: {error}",
            found=found,
            chosen=choice,
            notes=notes,
        )


def check_searcher(name: str, settings: ControlSettings, closed_book: bool) -> None:
    """Raise `InputError` for a name that `make_searcher` does not know, or that makes no sense here."""
    problems = ["strategies search in a corpus, and a closed-book run has none"] if closed_book else []
    try:
        options = options_of(settings.kinds)
        names = _named(name)
        if names is None and options.state is None:
            problems.append("the bandit needs a file for what it learns: give --strategy-state FILE.sqlite")
        if names is not None:
            Fixed(names)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)


def make_searcher(name: str, setup: Setup) -> Searcher:
    """The controller of a name: strategies:raw+hyde, strategies:all or strategies:bandit.

    Raises
    ------
    InputError
        For another name, no corpus, or a state that cannot be used.
    """
    check_searcher(name, setup.settings, setup.retriever is None)
    assert setup.retriever is not None
    options, names = options_of(setup.settings.kinds), _named(name)
    chooser: Chooser = open_strategist(options, setup.retriever.index) if names is None else Fixed(names)
    return Searcher(
        name, chooser, setup.retriever, setup.selector, options, setup.settings.limits, setup.max_tokens
    )


def make_pipeline(
    name: str,
    settings: ControlSettings,
    retriever: Retriever,
    generator: Generator | None,
    selector: Selector,
) -> SearchPipeline:
    """The pipeline from question to selection that a controller of that name takes, for who wants no answer.

    Parameters
    ----------
    generator : Generator or None
        None will do where no strategy asks a model.

    Raises
    ------
    InputError
        As `make_searcher`, and where a strategy lacks a model or links.
    """
    made = make_searcher(name, Setup(settings, retriever, selector))
    return SearchPipeline(made.chooser, retriever, generator, selector, made.options.search)


def _named(name: str) -> tuple[str, ...] | None:
    """The strategies that a name lists; None where a bandit chooses."""
    listed = name.partition(":")[2].strip()
    return None if listed == "bandit" else tuple(part for part in listed.split("+"))
