"""Who chooses the strategies of a question: always the same ones, or a bandit that learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mio_rag.learning.contribution import Contributions
from mio_rag.pool import Candidates
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.session.costs import Amount
from mio_rag.session.search import Searched
from mio_rag.session.strategies import check_strategies
from mio_rag.types import Question

__all__ = ["Choice", "Chooser", "Fixed", "Seen"]


@dataclass(frozen=True)
class Choice:
    """Strategies for one question.

    Parameters
    ----------
    id : str
        By which feedback names the question; blank where nobody learns.
    strategies : tuple of str
    weights : mapping of str to float
        In the merged ranking.
    base : tuple of str
        Those that always run.
    why : str
        In words.
    about : dict
        What a trace keeps of it: propensity, certificate, kind of the round. Plain data.
    """

    id: str
    strategies: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    base: tuple[str, ...] = ()
    why: str = ""
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Seen:
    """What came of a choice.

    Parameters
    ----------
    searched : Searched
    selection : Selection or None
        What was read; None where nothing could be.
    contributions : Contributions or None
        None where they cannot be had.
    costs : mapping of str to Amount
        What each strategy spent.
    """

    searched: Searched
    selection: Selection | None
    contributions: Contributions | None
    costs: Mapping[str, Amount]

    @property
    def pool(self) -> Candidates:
        """What was found."""
        return self.searched.pool


class Chooser(Protocol):
    """Chooses strategies, and hears what came of it."""

    @property
    def name(self) -> str:
        """As ledgers and traces show it."""
        ...

    @property
    def possible(self) -> tuple[str, ...]:
        """Strategies that it may choose; all that these need must be there."""
        ...

    @property
    def learns(self) -> bool:
        """Whether it wants to know contributions, which take programs to solve."""
        ...

    def choose(self, question: Question, retriever: Retriever) -> Choice:
        """Strategies for a question."""
        ...

    def learn(self, choice: Choice, seen: Seen) -> None:
        """Take in what came of it; to be called once for a choice."""
        ...

    def price_tokens(self, price: float) -> None:
        """From now on, choose at this price of a token."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same strategies for every question."""

    strategies: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategies", check_strategies(self.strategies))

    @property
    def name(self) -> str:
        """Their names, joined by "+"."""
        return "+".join(self.strategies)

    @property
    def possible(self) -> tuple[str, ...]:
        """Those."""
        return self.strategies

    @property
    def learns(self) -> bool:
        """No."""
        return False

    def choose(self, question: Question, retriever: Retriever) -> Choice:
        """Those."""
        return Choice("", self.strategies)

    def learn(self, choice: Choice, seen: Seen) -> None:
        """Nothing."""

    def price_tokens(self, price: float) -> None:
        """Nothing."""
