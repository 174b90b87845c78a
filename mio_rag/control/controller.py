"""What every controller is: asked a question, it answers or fails, and tells what it did and spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from mio_rag.control.costs import Costs
from mio_rag.control.meter import Replies, Reply
from mio_rag.control.settings import ControlSettings
from mio_rag.control.trace import Trace
from mio_rag.errors import MioRagError
from mio_rag.generation import Generator
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["Controller", "Failure", "Kind", "Outcome", "Resuming", "Setup", "answered"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The answer, what was read for it, how it came about and what it cost."""

    reply: Reply
    selection: Selection | None
    trace: Trace
    costs: Costs
    error: None = None


@dataclass(frozen=True, eq=False)
class Failure:
    """Why there is no answer; what was read, done and spent until then."""

    error: MioRagError
    selection: Selection | None
    trace: Trace
    costs: Costs
    reply: None = None


class Controller(Protocol):
    """Answers questions, deciding on its own how: when to retrieve, how much to read, what to ask for."""

    @property
    def name(self) -> str:
        """As ledgers and traces show it."""
        ...

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        """Answer a question.

        Parameters
        ----------
        budget_tokens : int
            Largest block of evidence at a time, >= 1.
        replies : dict, optional
            What the generator said to others on this question; it is taken from there, and added to.

        Returns
        -------
        Outcome or Failure
            A failure for any `MioRagError` on the way, with costs and trace until then; all else is raised.

        Raises
        ------
        InputError
            For a budget that is none.
        """
        ...


@runtime_checkable
class Resuming(Protocol):
    """A controller whose decisions depend on what questions before have spent."""

    def take_up(self, spent: Sequence[int]) -> None:
        """Count questions that another process has asked.

        Parameters
        ----------
        spent : sequence of int
            Tokens of each, into and out of all models, in the order in which they were asked.
        """
        ...


def answered(found: Outcome | Failure) -> Outcome:
    """The outcome; a failure's error is raised."""
    if found.error is not None:
        raise found.error
    return found


@dataclass(frozen=True, eq=False)
class Setup:
    """What controllers are made of.

    Parameters
    ----------
    retriever : Retriever or None
        None: closed book, nothing is retrieved.
    max_tokens : int
        Longest answer.
    seed : int
        Of whatever is drawn.
    """

    settings: ControlSettings = field(default_factory=ControlSettings)
    retriever: Retriever | None = None
    selector: Selector = field(default_factory=Selector)
    max_tokens: int = 32
    seed: int = 0


def _unchecked(name: str, settings: ControlSettings, closed_book: bool) -> None:
    """Any name of the kind will do."""


def _no_files(name: str) -> Mapping[str, str]:
    """Names of the kind refer to no files."""
    return {}


@dataclass(frozen=True)
class Kind:
    """A kind of controller, as `mio_rag.control.make` knows it.

    Parameters
    ----------
    name : str
        How its controllers are named: up to a ":" or "@", what stands behind is the kind's own. With "-N" in
        the end, any that begin alike.
    make : callable
        (name, setup) -> controller.
    check : callable
        (name, settings, closed_book): raises `InputError` for a name of this kind that makes no sense; loads
        nothing. By default every name does.
    rival : bool
        Whether it is what others are compared with; what the package proposes is not.
    files : callable, optional
        (name) -> digests of the files that a name refers to, by what they hold, for records of runs. Files
        that settings refer to are told by the settings.
    """

    name: str
    make: Callable[[str, Setup], Controller]
    check: Callable[[str, ControlSettings, bool], None] = _unchecked
    rival: bool = True
    files: Callable[[str], Mapping[str, str]] = _no_files

    def covers(self, name: str) -> bool:
        """Whether a controller of that name is of this kind."""
        stem = name.partition(":")[0].partition("@")[0]
        return stem.startswith(self.name[:-1]) if self.name.endswith("-N") else stem == self.name
