"""Search by strategies for a service: pools for requests, ratings, and what a bandit learned as metrics."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.control.bandit.agent import make_road
from mio_rag.control.bandit.insights import stats
from mio_rag.control.bandit.road import Road, Travelled
from mio_rag.control.bandit.strategist import Strategist
from mio_rag.control.settings import ControlSettings
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.generation import Generator
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["Found", "Searching", "Strategies"]

_SHARE = 0.7  # of the time that a request has left: the rest is for selection and answer
_LEAST_SECONDS = 0.05


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

    Raises
    ------
    InputError
        If the strategies cannot be used here.
    """

    def __init__(
        self, given: Strategies, index: CorpusIndex, generator: Generator, counter: TokenCounter
    ) -> None:
        self._index, self._counter, self._lock = index, counter, threading.Lock()
        settings = ControlSettings(kinds=given.kinds)
        self._road = make_road(given.controller, settings, Retriever(index), generator, Selector())

    @property
    def learns(self) -> bool:
        """Whether ratings are of use."""
        return isinstance(self._road.chooser, Strategist)

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
        with self._lock:
            left = max(_LEAST_SECONDS, _SHARE * (deadline - time.monotonic()))
            how = self._road.settings
            retriever = Retriever(self._index, pool=size, counter=self._counter)
            road = Road(
                self._road.chooser,
                retriever,
                self._road.generator,
                selector,
                replace(how, deadline_seconds=min(how.deadline_seconds, left)),
            )
            try:
                travelled = road.travel(Question("question", question), budget_tokens, self._counter)
            except InfeasibleError:  # the response tells why; there was nothing to learn
                return Found(retriever.retrieve(question))
        return Found(travelled.searched.pool, _said(travelled))

    def valued(self, selector: Selector, pool: Candidates) -> tuple[Selector, Candidates]:
        """Selector and pool with what ratings say of passages, where a bandit gives that a weight."""
        return self._road.chooser.valued(selector, pool)

    def rate(self, identity: str, helpful: bool) -> bool:
        """Take in a rating; False where the question was rated before.

        Raises
        ------
        InputError
            If there is no such question, or nobody learns.
        """
        chooser = self._road.chooser
        if not isinstance(chooser, Strategist):
            raise InputError("this service learns nothing from ratings: start it with --strategies bandit")
        return chooser.feedback(identity, 1 if helpful else -1)

    def stats(self) -> dict[str, Any] | None:
        """What was learned, as `mio_rag.control.bandit.insights.stats`; None where nobody learns."""
        chooser = self._road.chooser
        if not isinstance(chooser, Strategist):
            return None
        with self._lock:
            chooser.refresh()
            return stats(chooser.learned)

    def close(self) -> None:
        """Close the state."""
        if isinstance(self._road.chooser, Strategist):
            self._road.chooser.close()


def _said(travelled: Travelled) -> dict[str, Any]:
    tried = travelled.searched.tried
    return {
        "id": travelled.choice.id,
        "strategies": list(travelled.choice.strategies),
        "why": travelled.choice.why,
        "prompt_tokens": sum(one.amount.prompt_tokens for one in tried),
        "completion_tokens": sum(one.amount.completion_tokens for one in tried),
        "notes": list(travelled.searched.notes),
        "found_by": {i: dict(ranks) for i, ranks in travelled.searched.found.items()},
    }
