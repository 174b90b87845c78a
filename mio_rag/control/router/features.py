"""What a router sees of a question: its embedding, and what the search found before anything is read.

    best_cosine, second_cosine, fifth_cosine   of the pool with the question; of a shorter pool the last
    best_bm25                                  log(1 + the best BM25 score)
    likely_1, likely_2, likely_5               the largest probabilities that a passage is needed
    expected                                   their sum over the pool: how many are expected to be needed
    covered_2, covered_5, covered_10           share of that sum among the first passages of the search

and what `mio_rag.relevance` tells of a whole pool (pool_agreement to pool_question_names). The probabilities
are those of the relevance model that the selector would take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance.features import pool_facts
from mio_rag.selection.selector import Selector

__all__ = ["FEATURES", "SEARCH", "Seen", "look"]

FloatArray = NDArray[np.float64]

#: What a router may go by.
FEATURES = ("question", "question+search")

_RANKS = (1, 2, 5)
_DEPTHS = (2, 5, 10)
_FACTS = (
    "pool_agreement",
    "pool_correlation",
    "pool_dense_lead",
    "pool_bm25_lead",
    "pool_question_words",
    "pool_question_names",
)

#: Names of the numbers of `Seen.search`.
SEARCH = (
    "best_cosine",
    "second_cosine",
    "fifth_cosine",
    "best_bm25",
    *_FACTS,
    *(f"likely_{rank}" for rank in _RANKS),
    "expected",
    *(f"covered_{depth}" for depth in _DEPTHS),
)

_PROBABILITIES = Selector()


@dataclass(frozen=True, eq=False)
class Seen:
    """One question, as a router sees it.

    Parameters
    ----------
    embedding : array, shape (d,)
        Of length 1.
    search : array, shape (len(SEARCH),)
    """

    text: str
    embedding: FloatArray
    search: FloatArray


def look(pool: Candidates, selector: Selector | None = None) -> Seen:
    """What a pool shows of its question.

    Parameters
    ----------
    selector : Selector, optional
        Whose relevance model says how probable passages are; by default that of `Selector()`. A router must
        see with the one that it was trained with.

    Raises
    ------
    InputError
        If the pool is empty, or was not found by a `Retriever`.
    """
    if len(pool) == 0 or pool.query_embedding is None or not {"dense", "bm25"} <= set(pool.scores):
        raise InputError("a router needs a pool that a Retriever found, with at least one passage")
    query = np.asarray(pool.query_embedding, dtype=np.float64)
    cosines = np.sort(pool.scores["dense"])[::-1]
    likely = np.clip((selector or _PROBABILITIES).valued(pool).relevance, 0.0, 1.0)
    expected = float(likely.sum())
    facts = pool_facts(pool)
    search = [
        *_at(cosines, _RANKS),
        float(np.log1p(max(0.0, float(pool.scores["bm25"].max())))),
        *(float(facts[name]) for name in _FACTS),
        *_at(np.sort(likely)[::-1], _RANKS),
        expected,
        *(float(likely[:depth].sum()) / expected if expected > 0 else 0.0 for depth in _DEPTHS),
    ]
    return Seen(pool.question, query / max(float(np.linalg.norm(query)), 1e-12), np.array(search))


def _at(values: FloatArray, ranks: Sequence[int]) -> list[float]:
    """The values at ranks from 1; the last one where there are fewer."""
    return [float(values[min(rank, len(values)) - 1]) for rank in ranks]
