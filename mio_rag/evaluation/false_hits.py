"""How often a cache by meaning would give the answer of another question, measured on a question set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy  # loads scipy.stats, a second, where it is first used

from mio_rag.answer_cache import normal_question
from mio_rag.errors import InputError
from mio_rag.measures import normalize_answer
from mio_rag.retrieval.embedders import Embedder
from mio_rag.types import Question

__all__ = ["COSINES", "FalseHits", "false_hits"]

#: Cosines from which on two questions may count as one.
COSINES = (0.80, 0.85, 0.90, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)
_ROWS = 512  # questions compared with all others at a time


@dataclass(frozen=True)
class FalseHits:
    """What a cache would do from a cosine on.

    Parameters
    ----------
    cosine : float
    questions : int
    hits : int
        Questions whose closest other one is as close as that.
    false : int
        Hits of which no accepted answer is one of that other question.
    rate, low, high : float or None
        False ones among the hits, with the exact 95 % interval (Clopper and Pearson, 1934); None without
        hits.
    examples : tuple of (str, str)
        Some false hits, the closest first: what is asked, and what would answer it.
    """

    cosine: float
    questions: int
    hits: int
    false: int
    rate: float | None
    low: float | None
    high: float | None
    examples: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def false_hits(
    questions: Sequence[Question], embedder: Embedder, cosines: Sequence[float] = COSINES, examples: int = 3
) -> list[FalseHits]:
    """Hits and false hits by cosine, were each question asked after all the others.

    Questions that are the same word for word are counted once. Two unanswerable ones have the same answer.

    Parameters
    ----------
    cosines : sequence of float
        Each in (0, 1].

    Raises
    ------
    InputError
        With fewer than two questions that have a key, or cosines out of range.

    Notes
    -----
    A set of questions is denser than what one person asks and less repetitive than what many do: the rate
    among hits is that of near questions, and says nothing of how often a paraphrase comes.
    """
    if bad := [c for c in cosines if not 0 < c <= 1]:
        raise InputError(f"cosines={', '.join(f'{c:g}' for c in bad)} must be in (0, 1]")
    keyed = [q for q in questions if q.answers or q.type == "unanswerable"]
    asked = list({normal_question(q.text): q for q in keyed}.values())
    if len(asked) < 2:
        raise InputError(f"{len(asked)} different questions have an accepted answer: at least 2 are needed")
    vectors = embedder.encode([q.text for q in asked])
    closest, cosine = np.zeros(len(asked), dtype=np.int64), np.zeros(len(asked))
    for first in range(0, len(asked), _ROWS):
        part = vectors[first : first + _ROWS] @ vectors.T
        rows = np.arange(len(part))
        part[rows, first + rows] = -np.inf
        closest[first : first + _ROWS] = part.argmax(axis=1)
        cosine[first : first + _ROWS] = part.max(axis=1)
    accepted = [{normalize_answer(a) for a in q.answers} or {""} for q in asked]
    wrong = np.array([not accepted[k] & accepted[int(other)] for k, other in enumerate(closest)])
    order = np.argsort(-cosine, kind="stable")
    found = []
    for threshold in sorted(cosines):
        hit = cosine >= threshold
        hits, false = int(hit.sum()), int((hit & wrong).sum())
        interval = scipy.stats.binomtest(false, hits).proportion_ci(0.95, "exact") if hits else None
        shown = [int(k) for k in order if hit[k] and wrong[k]][:examples]
        found.append(
            FalseHits(
                float(threshold),
                len(asked),
                hits,
                false,
                false / hits if hits else None,
                None if interval is None else float(interval.low),
                None if interval is None else float(interval.high),
                tuple((asked[k].text, asked[int(closest[k])].text) for k in shown),
            )
        )
    return found
