"""What an agent knows about one question."""

from __future__ import annotations

from dataclasses import dataclass, field

from mio_rag.candidates import Candidates
from mio_rag.control.meter import Reply
from mio_rag.selection.result import Selection
from mio_rag.types import Passage, Question

__all__ = ["Memory"]

NOTES_ID = "notes"


@dataclass
class Memory:
    """The state of one question: what was read, asked and noted.

    Parameters
    ----------
    pool : Candidates or None
        What all queries so far have found.
    selection : Selection or None
        What is read of it.
    queries, notes : list of str
        What was searched for, and what was thought.
    draft : Reply or None
        An answer from exactly this state, if one was made to measure the uncertainty.
    """

    question: Question
    budget_tokens: int
    pool: Candidates | None = None
    selection: Selection | None = None
    queries: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    draft: Reply | None = None

    def last_notes(self, kept: int) -> list[str]:
        """The last so many notes; of 0 there are none."""
        return self.notes[max(0, len(self.notes) - kept) :]

    def passages(self, kept_notes: int) -> tuple[Passage, ...]:
        """The evidence, then the last notes as one more passage."""
        read = () if self.selection is None else self.selection.passages
        kept = self.last_notes(kept_notes)
        return (*read, Passage(NOTES_ID, "\n".join(kept), "Notes")) if kept else read
