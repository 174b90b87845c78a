"""The steps of a controller, each behind a protocol: who asks, who finds, who thinks, who answers.

Each can be replaced by anything that has its one method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mio_rag.control.memory import Memory
from mio_rag.control.meter import Meter, Reply
from mio_rag.generation import Prompt

__all__ = ["AnswerSynthesizer", "EvidenceFinder", "Parts", "QueryDecomposer", "Reasoner"]


class QueryDecomposer(Protocol):
    """Says what to search for next."""

    def next_query(self, memory: Memory, doubt: float, meter: Meter) -> str:
        """A query from the question, the history and U."""
        ...


class EvidenceFinder(Protocol):
    """Searches, and decides what is read of all that was found."""

    def find(self, memory: Memory, query: str, meter: Meter) -> tuple[str, ...]:
        """Take pool and selection of the memory forward; the ids that are read now and were not before."""
        ...


class Reasoner(Protocol):
    """Thinks one step further."""

    def reason(self, memory: Memory, meter: Meter) -> str:
        """A note: one more fact or conclusion."""
        ...


class AnswerSynthesizer(Protocol):
    """Answers from what was read and noted."""

    def prompt(self, memory: Memory) -> Prompt:
        """What the model is asked in the end."""
        ...

    def answer(self, memory: Memory, meter: Meter) -> Reply:
        """The answer, or the choice."""
        ...


@dataclass(frozen=True)
class Parts:
    """The four parts of an agent; without a finder it answers from what the model knows."""

    decomposer: QueryDecomposer
    finder: EvidenceFinder | None
    reasoner: Reasoner
    synthesizer: AnswerSynthesizer
