"""Search by strategies for a service: pools for requests, ratings, and what a bandit learned as metrics."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from mio_rag.allocation.pacer import Pacer
from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.control.bandit.agent import make_pipeline
from mio_rag.control.bandit.pipeline import PipelineResult, SearchPipeline
from mio_rag.control.bandit.strategist import Strategist
from mio_rag.control.costs import Costs
from mio_rag.control.settings import ControlSettings
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.generation import Generator
from mio_rag.learning.bandit_report import stats
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.service.pacing import held_tokens
from mio_rag.types import Question

__all__ = ["Found", "Searching", "Strategies", "searching_of"]


@dataclass(frozen=True)
class Strategies:
    """By which strategies a service searches.

    Parameters
    ----------
    controller : str
        As `mio_rag.control.make` names it: strategies:raw+hyde, strategies:bandit.
    kinds : dict
        Of `ControlSettings`.
    """

    controller: str
    kinds: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Found:
    """A pool, and what a response says of how it was found; None: as without strategies."""

    pool: Candidates
    said: dict[str, Any] | None = None


class Searching:
    """Searches for requests, in worker threads; the model is asked for one request at a time.

    Parameters
    ----------
    lock : threading.Lock, optional
        Of who else asks the model.
    pacer : Pacer, optional
        Counts what strategies ask the model, and sets the price of a token that a bandit goes by.
    """

    def __init__(
        self,
        pipeline: SearchPipeline,
        counter: TokenCounter,
        lock: threading.Lock | None = None,
        pacer: Pacer | None = None,
    ) -> None:
        self._pipeline, self._counter, self._pacer = pipeline, counter, pacer
        self._lock = threading.Lock() if lock is None else lock

    @property
    def learns(self) -> bool:
        """Whether ratings are of use."""
        return isinstance(self._pipeline.chooser, Strategist)

    def find(
        self, question: str, size: int, selector: Selector, budget_tokens: int, deadline: float
    ) -> Found:
        """The pool of a question.

        Parameters
        ----------
        selector, budget_tokens
            By which a bandit measures what strategies add.
        deadline : float
            Of the request, by `time.monotonic`: strategies that would take most of it are left out.
        """
        chooser, how, costs = self._pipeline.chooser, self._pipeline.settings, Costs()
        count = len(chooser.possible)
        with self._lock, held_tokens(self._pacer, count * how.tokens, count) as held:
            if held.reservation is not None:
                how = replace(how, tokens=max(1, held.reservation.allowed // count))
                if isinstance(chooser, Strategist):
                    chooser.price_tokens(held.reservation.price)
            how = how.within(deadline - time.monotonic())
            retriever = Retriever(self._pipeline.retriever.index, pool=size, counter=self._counter)
            pipeline = SearchPipeline(chooser, retriever, self._pipeline.generator, selector, how)
            try:
                result = pipeline.run(
                    Question("question", question), budget_tokens, self._counter, costs=costs
                )
            except InfeasibleError:  # the response tells why; there was nothing to learn
                return Found(retriever.retrieve(question))
            finally:
                spent = costs.total()
                held.used = (spent.prompt_tokens + spent.completion_tokens) or None
        return Found(result.searched.pool, _said(result))

    def valued(self, selector: Selector, pool: Candidates) -> tuple[Selector, Candidates]:
        """Selector and pool with what ratings say of passages, where a bandit gives that a weight."""
        return self._pipeline.chooser.valued(selector, pool)

    def rate(self, identity: str, helpful: bool) -> bool:
        """Take in a rating; False where the question was rated before.

        Raises
        ------
        InputError
            If there is no such question, or nobody learns.
        """
        chooser = self._pipeline.chooser
        if not isinstance(chooser, Strategist):
            raise InputError("this service learns nothing from ratings: start it with --strategies bandit")
        return chooser.feedback(identity, 1 if helpful else -1)

    def stats(self) -> dict[str, Any] | None:
        """What was learned, as `mio_rag.learning.bandit_report.stats`; None where nobody learns."""
        chooser = self._pipeline.chooser
        if not isinstance(chooser, Strategist):
            return None
        with chooser.settled() as learned:  # not the lock of searches: these wait for a model
            return stats(learned)

    def close(self) -> None:
        """Close the state."""
        if isinstance(self._pipeline.chooser, Strategist):
            self._pipeline.chooser.close()


def searching_of(
    given: Strategies, index: CorpusIndex, generator: Generator, counter: TokenCounter
) -> Searching:
    """Who searches by these strategies.

    Raises
    ------
    InputError
        If they cannot be used here.
    """
    settings = ControlSettings(kinds=given.kinds)
    return Searching(
        make_pipeline(given.controller, settings, Retriever(index), generator, Selector()), counter
    )


def _said(result: PipelineResult) -> dict[str, Any]:
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
