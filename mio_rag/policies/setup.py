"""What policies are made of, and how the harness sees one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.generation import Generator
from mio_rag.learning.rules import GAUGES
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits, Replies
from mio_rag.session.trace import Outcome
from mio_rag.types import Question


@dataclass(frozen=True)
class ControlSettings:
    """How agents decide and where they end.

    model: the decision process of retrieving, reasoning and stopping.
    gauge: how U is known where a controller's name does not say: one of `GAUGES`.
    stop_at: U at which always-reason, always-retrieve and threshold stop.
    note_tokens: longest note, >= 1.
    kept_notes: how many of the last notes the model sees, >= 0.
    kinds: settings of further kinds of controllers, by the name of the kind, which checks its own.
    """

    model: RetrievalMDP = field(default_factory=RetrievalMDP)
    gauge: str = "tracked"
    limits: Limits = field(default_factory=Limits)
    stop_at: float = 0.05
    note_tokens: int = 48
    kept_notes: int = 4
    kinds: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = []
        if self.note_tokens < 1:
            problems.append(f"note_tokens={self.note_tokens} must be >= 1")
        if self.kept_notes < 0:
            problems.append(f"kept_notes={self.kept_notes} must be >= 0")
        if not 0 <= self.stop_at <= 1:
            problems.append(f"stop_at={self.stop_at!r} must be in [0, 1]")
        if self.gauge not in GAUGES:
            problems.append(f"'{self.gauge}' is not a way to measure U: choose {', '.join(GAUGES)}")
        if problems:
            raise InputError(problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for run records and traces."""
        data = asdict(self) | {"model": self.model.to_dict(), "limits": self.limits.to_dict()}
        if not self.kinds:  # records of runs are compared: those without have always been written without
            del data["kinds"]
        return data


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

    name: how its controllers are named: up to a ":" or "@", what stands behind is the kind's own. With "-N"
        in the end, any that begin alike.
    make: (name, setup) -> controller.
    check: (name, settings, closed_book): raises `InputError` for a name of this kind that makes no sense;
        loads nothing. By default every name does.
    rival: whether it is what others are compared with; what the package proposes is not.
    files: (name) -> digests of the files that a name refers to, by what they hold, for records of runs. Files
        that settings refer to are told by the settings.
    """

    name: str
    make: Callable[[str, Setup], Controller]
    check: Callable[[str, ControlSettings, bool], None] = lambda name, settings, closed_book: None
    rival: bool = True
    files: Callable[[str], Mapping[str, str]] = lambda name: {}

    def covers(self, name: str) -> bool:
        """Whether a controller of that name is of this kind."""
        stem = name.partition(":")[0].partition("@")[0]
        return stem.startswith(self.name[:-1]) if self.name.endswith("-N") else stem == self.name
