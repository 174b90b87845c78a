"""The probability that the collection holds an answer at all.

Relevance is fitted on questions whose answers are in the collection, so it is the probability that a passage
is needed *if* there is an answer. Whether there is one is told by how much of the question the pool holds:

    cover          largest share of the question's words that one passage holds; rare words weigh more
    first_cover    the same of the best passage by fused score
    top_cover      the mean of the three best by fused score
    cosine         the best cosine, where the embedder is known

and a logistic regression on them, fitted on questions of public sets: asked of their own collection, and of
the collections of other sets, which hold no answer. Both count the same there; `OUTSIDE` says how many
questions are thought to be of the second kind. `python -m benchmarks default` made the weights and measures
what they bring on sets that they were not fitted on. They do not recognise a question whose passages are
about the same thing, but do not answer it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.relevance.pool import best_fused, question_cover

__all__ = ["OUTSIDE", "SIGNALS", "Answerable", "pool_signals"]

#: Share of questions that the collection is not about, as far as nothing is known of them.
OUTSIDE = 0.1

#: Names of the numbers that a pool gives.
SIGNALS = ("cover", "first_cover", "top_cover", "cosine")

_TOP = 3  # passages of `top_cover`
_FARTHEST = 30.0  # log-odds are held so far from 0


def pool_signals(candidates: Candidates) -> dict[str, float] | None:
    """What a pool tells, by the names of `SIGNALS`; None without a question or the scores of a search."""
    found = _signals(candidates)
    return None if found is None else dict(zip(SIGNALS, found, strict=True))


@lru_cache(maxsize=4)
def _signals(candidates: Candidates) -> tuple[float, ...] | None:
    scores = candidates.scores
    if len(candidates) == 0 or not candidates.question.strip() or not {"dense", "fused"} <= set(scores):
        return None
    best = best_fused(candidates)
    cover = question_cover(candidates)[best]
    cosines = np.asarray(scores["dense"], dtype=np.float64)
    if candidates.embeddings is not None and candidates.query_embedding is not None:
        # Of this question: in a pool that another query has added to, scores are those of either.
        cosines = np.asarray(candidates.embeddings @ candidates.query_embedding, dtype=np.float64)
    head = float(cover[0]), float(cover[:_TOP].mean())
    return float(cover.max()), *head, float(cosines[best].max())


@dataclass(frozen=True)
class Answerable:
    """The regression.

    Parameters
    ----------
    weights : mapping of str to float
        Names of `SIGNALS` -> weights; on questions of both kinds alike.
    intercept : float

    Raises
    ------
    InputError
        For a name that is not one of `SIGNALS`, or a number that is not finite.
    """

    weights: Mapping[str, float]
    intercept: float

    def __post_init__(self) -> None:
        problems = []
        if strange := sorted(set(self.weights) - set(SIGNALS)):
            problems.append(f"unknown signals {', '.join(strange)}: choose from {', '.join(SIGNALS)}")
        if not all(math.isfinite(value) for value in (*self.weights.values(), self.intercept)):
            problems.append("weights and intercept must be finite")
        if problems:
            raise InputError(problems)

    @property
    def by_cosine(self) -> bool:
        """Whether the best cosine counts, for an embedder that is known: only then prices go by this.

        By words alone too many questions of filings and reports look as if they were about something else.
        """
        return "cosine" in self.weights

    def probability(self, candidates: Candidates) -> float | None:
        """That the collection which this pool comes from holds an answer, in (0, 1); None if nothing tells.

        Parameters
        ----------
        candidates : Candidates
            A pool of a `Retriever`, with its question.
        """
        signals = pool_signals(candidates)
        if signals is None:
            return None
        odds = self.intercept + sum(weight * signals[name] for name, weight in self.weights.items())
        odds += math.log((1 - OUTSIDE) / OUTSIDE)
        return 1 / (1 + math.exp(-min(_FARTHEST, max(-_FARTHEST, odds))))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"intercept": self.intercept, "weights": dict(self.weights)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Answerable:
        """What `to_dict` wrote."""
        weights = {str(name): float(weight) for name, weight in data["weights"].items()}
        return cls(weights, float(data["intercept"]))
