"""The next search without asking a model: the question together with what was read.

Pseudo-relevance feedback: words of the best passage that was not used for it yet, behind the question's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mio_rag.control.memory import Memory
from mio_rag.control.meter import Meter

__all__ = ["FeedbackDecomposer"]

_WORDS = 40  # of the passage: a longer query drowns the question


@dataclass(frozen=True)
class FeedbackDecomposer:
    """Searches for the question with the title and the first words of a passage that is read."""

    def next_query(self, memory: Memory, doubt: float, meter: Meter) -> str:
        """The question itself first; later with the next best passage, as long as there is one."""
        question = memory.question.text
        if not memory.queries or memory.selection is None:
            return question
        pool = memory.selection.candidates
        order = sorted(memory.selection.chosen, key=lambda i: -float(np.asarray(pool.relevance)[i]))
        known = set(memory.queries)
        for place in order:
            passage = pool.passage(place)
            words = " ".join([question, passage.title, *passage.text.split()[:_WORDS]])
            if words not in known:
                return words
        return question
