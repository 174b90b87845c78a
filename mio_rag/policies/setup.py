"""What policies are made of, and how the harness sees one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, InstanceOf

from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.generation import Generator
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits, Replies
from mio_rag.session.trace import Outcome
from mio_rag.settings import Settings
from mio_rag.types import Question


class ControlSettings(Settings):
    """How agents decide and where they end."""

    model: InstanceOf[RetrievalMDP] = RetrievalMDP()
    """The decision process of retrieving, reasoning and stopping."""
    gauge: Literal["tracked", "confidence", "evidence", "complete"] = "tracked"
    """How U is known where a controller's name does not say."""
    limits: Limits = Limits()
    stop_at: Annotated[float, Field(ge=0, le=1)] = 0.05
    """U at which always-reason, always-retrieve and threshold stop."""
    note_tokens: Annotated[int, Field(ge=1)] = 48
    """Longest note."""
    kept_notes: Annotated[int, Field(ge=0)] = 4
    """How many of the last notes the model sees."""
    kinds: Mapping[str, Any] = {}
    """Settings of further kinds of controllers, by the name of the kind, which checks its own."""


class Controller(Protocol):
    """Answers questions, deciding on its own how. A `mio_rag.session.loop.Session` is one."""

    @property
    def name(self) -> str:
        """As ledgers and traces show it."""
        ...

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome:
        """Answer a question; as `Session.attempt`."""
        ...


@dataclass(frozen=True, eq=False)
class Setup:
    """What controllers are made of.

    retriever: none: closed book, nothing is retrieved.
    max_tokens: longest answer.
    seed: of whatever is drawn.
    """

    settings: ControlSettings = field(default_factory=ControlSettings)
    retriever: Retriever | None = None
    selector: Selector = field(default_factory=Selector)
    max_tokens: int = 32
    seed: int = 0


@dataclass(frozen=True)
class Kind:
    """A kind of controller, as `mio_rag.policies.make` knows it.

    name: how its controllers are named, up to a ":" or "@"; with "-N" in the end, any that begin alike.
    make: (name, setup) -> controller.
    check: (name, settings, closed_book): raises `InputError` for a name that makes no sense; loads nothing.
    rival: whether it is what others are compared with; what the package proposes is not.
    files: (name) -> digests of the files that a name refers to, by what they hold, for records of runs.
    """

    name: str
    make: Callable[[str, Setup], Controller]
    check: Callable[[str, ControlSettings, bool], object] = lambda name, settings, closed_book: None
    rival: bool = True
    files: Callable[[str], Mapping[str, str]] = lambda name: {}

    def covers(self, name: str) -> bool:
        """Whether a controller of that name is of this kind."""
        stem = name.partition(":")[0].partition("@")[0]
        return stem.startswith(self.name[:-1]) if self.name.endswith("-N") else stem == self.name
