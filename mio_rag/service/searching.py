"""Search by strategies for a service: pools for requests, ratings, and what a bandit has learned."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from mio_rag.allocation.pacer import Pacer
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.generation import Generator
from mio_rag.learning.bandit_report import stats
from mio_rag.learning.strategist import PipelineResult, SearchPipeline, Strategist
from mio_rag.policies.make import make_pipeline
from mio_rag.policies.setup import ControlSettings
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.service.requests import held_tokens
from mio_rag.service.settings import Strategies
from mio_rag.session.costs import Costs
from mio_rag.types import Question


@dataclass(frozen=True, eq=False)
class Found:
    """A pool, and what a response reports of the search; empty without strategies."""

    pool: Candidates
    report: dict[str, Any] = field(default_factory=dict)


class Searching:
    """Searches for requests, in worker threads.

    pacer: counts what strategies ask the model, and sets the token price that a bandit goes by.
    """

    def __init__(self, pipeline: SearchPipeline, pacer: Pacer | None = None) -> None:
        self._pipeline, self._pacer = pipeline, pacer

    @property
    def learns(self) -> bool:
        """Whether ratings are of use."""
        return isinstance(self._pipeline.chooser, Strategist)

    def find(
        self, question: str, size: int, selector: Selector, budget_tokens: int, deadline: float
    ) -> Found:
        """Return the pool of a question.

        selector, budget_tokens: by which a bandit measures what strategies add.
        deadline: of the request, by `time.monotonic`: strategies that would take most of it are left out.
        """
        chooser, how, costs = self._pipeline.chooser, self._pipeline.settings, Costs()
        reader = self._pipeline.generator
        count = len(chooser.possible)
        price = None
        with held_tokens(self._pacer, count * how.tokens, count) as held:
            if held.reservation is not None:
                how = replace(how, tokens=max(1, held.reservation.allowed // count))
                price = held.reservation.price
            how = how.within(deadline - time.monotonic())
            retriever = Retriever(self._pipeline.retriever.index, pool=size, counter=reader)
            pipeline = SearchPipeline(chooser, retriever, reader, selector, how)
            try:
                asked = Question("question", question)
                result = pipeline.run(asked, budget_tokens, reader, price=price, costs=costs)
            except InfeasibleError:  # the response reports why; there was nothing to learn
                return Found(retriever.retrieve(question))
            finally:
                total = costs.total()
                held.used = (total.prompt_tokens + total.completion_tokens) or None
        return Found(result.searched.pool, {"search": _report(result)})

    def rate(self, identity: str, helpful: bool) -> bool:
        """Record a rating; False if the question was rated before.

        Raises `InputError` if there is no such question, or nothing is learned.
        """
        chooser = self._pipeline.chooser
        if not isinstance(chooser, Strategist):
            raise InputError("this service learns nothing from ratings: start it with --strategies bandit")
        return chooser.feedback(identity, 1 if helpful else -1)

    def stats(self) -> dict[str, Any] | None:
        """Return what was learned, as `mio_rag.learning.bandit_report.stats`; None if nothing is learned."""
        chooser = self._pipeline.chooser
        if not isinstance(chooser, Strategist):
            return None
        with chooser.settled() as learned:
            return stats(learned)

    def close(self) -> None:
        """Close the state."""
        if isinstance(self._pipeline.chooser, Strategist):
            self._pipeline.chooser.close()


def searching_of(given: Strategies, index: CorpusIndex, generator: Generator) -> Searching:
    """Return what searches by these strategies; `InputError` if they cannot be used here."""
    settings = ControlSettings(kinds=given.kinds)
    return Searching(make_pipeline(given.controller, settings, Retriever(index), generator, Selector()))


def _report(result: PipelineResult) -> dict[str, Any]:
    tried = result.searched.tried
    return {
        "id": result.choice.id,
        "strategies": list(result.choice.strategies),
        "why": result.choice.why,
        "prompt_tokens": sum(one.amount.prompt_tokens for one in tried),
        "completion_tokens": sum(one.amount.completion_tokens for one in tried),
        "notes": list(result.searched.notes),
        "found_by": {i: dict(ranks) for i, ranks in result.searched.found.items()},
    }
