"""What a relevance model looks at: one number for each candidate and feature.

    cosine             inner product of question and passage
    cosine_gap         cosine minus the best cosine of the pool (<= 0)
    bm25               log(1 + BM25 score)
    bm25_share         BM25 score over the best of the pool
    log_rank_dense     log of the rank in the pool by cosine, by BM25, by fused score (1 is the best)
    log_rank_bm25
    log_rank_fused
    title_share        share of the title's words that the question holds; without a title, of the name that
                       the passage opens with
    title_named        1 where the question holds all of it, word after word
    log_words          log of the passage's length in words
    spread_gap         cosine minus the best cosine of the pool, in standard deviations of the pool's cosines
    log_rank_best      the smaller of log_rank_dense and log_rank_bm25
    log_rank_given     log of the rank by the score that the candidates came with; equal scores share the mean
    given_gap          that score minus the best of the pool, in standard deviations of the pool's scores
    question_cover     share of the question's words that the passage holds; rare words weigh more
    question_names     share of the question's capitalised words and numbers that the passage holds
    score:NAME         `Candidates.scores[NAME]` as it is: a re-ranker's score, for instance
    gap:NAME           that score minus the best of the pool (<= 0)

from the whole pool, the same for each of its passages (`mio_rag.relevance.pool`), all >= 0:

    pool_agreement     share of the ten best passages that cosine and BM25 have in common
    pool_correlation   of cosine and BM25; 0 where it is negative
    pool_dense_lead    best cosine minus the second, in standard deviations, at most 3
    pool_bm25_lead     best BM25 score minus the second, over the best
    pool_question_words   words of the question that are not common ones, over 10, at most 2
    pool_question_names   capitalised words and numbers of the question, at most 5

products of one of these and one of the pool, written "a*b"; and, from the probabilities p of the stage before
and the evidence links of the pool, of weight w <= 1:

    best_mentioning    largest w p among the passages that mention this one
    best_mentioned     largest w p among the passages that this one mentions
    mention_weight     largest w among the mentions of this passage: how rare its name is
    is_mentioned       1 where another passage mentions it
    does_mention       1 where it mentions another passage

Under embedding uncertainty the cosine of a passage may be lower by up to its loss h. Then `cosine` and
`cosine_gap` both fall by h, and gaps in standard deviations by h over one of these: the best cosine and the
spread are what the search observed, properties of the question. So are the ranks, and what is told of a whole
pool. A model whose weights on these, on their products with what is told of the pool, on `best_mentioning`
and on `best_mentioned` are not negative is monotone in every cosine, and its value at the lowered cosines is
its exact worst case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.names import leading_name, name_key
from mio_rag.relevance.pool import (
    GIVEN,
    MADE,
    given,
    log_rank,
    pool_facts,
    question_cover,
    question_names,
    spread,
)

__all__ = [
    "BASE_FEATURES",
    "LINK_FEATURES",
    "available_features",
    "cosine_slopes",
    "feature_matrix",
    "is_monotone",
    "missing",
    "product_problem",
]

FloatArray = NDArray[np.float64]

LINK_FEATURES = ("best_mentioning", "best_mentioned", "mention_weight", "is_mentioned", "does_mention")
#: What falls with a passage's own cosine; a weight on it must not be negative, nor one on those links.
_BY_COSINE = ("cosine", "cosine_gap", "spread_gap", "given_gap")
_MONOTONE = (*_BY_COSINE, "best_mentioning", "best_mentioned")


def _score(candidates: Candidates, name: str) -> FloatArray:
    return np.asarray(candidates.scores[name], dtype=np.float64)


def _share_of_best(scores: FloatArray) -> FloatArray:
    best = float(scores.max(initial=0.0))
    return scores / best if best > 0 else np.zeros_like(scores)


@lru_cache(maxsize=1)  # two features of the same pool ask for them
def _names(candidates: Candidates) -> list[str]:
    titles = candidates.titles or [""] * len(candidates)
    pairs = zip(titles, candidates.texts, strict=True)
    return [name_key(title.strip() or leading_name(text)) for title, text in pairs]


def _gap_in_spreads(scores: FloatArray) -> FloatArray:
    width = spread(scores)
    return scores / width - scores.max() / width if width else np.zeros_like(scores)


def _shared_rank(scores: FloatArray) -> FloatArray:
    _, group = np.unique(scores, return_inverse=True)
    return np.asarray((np.bincount(group, log_rank(scores)) / np.bincount(group))[group])


def _best_rank(candidates: Candidates) -> FloatArray:
    return np.minimum(log_rank(_score(candidates, "dense")), log_rank(_score(candidates, "bm25")))


def _of_pool(candidates: Candidates, name: str) -> FloatArray:
    return np.full(len(candidates), pool_facts(candidates)[name])


def _title_share(candidates: Candidates) -> FloatArray:
    asked = set(name_key(candidates.question).split())
    words = [set(key.split()) for key in _names(candidates)]
    return np.array([len(w & asked) / len(w) if w else 0.0 for w in words])


def _title_named(candidates: Candidates) -> FloatArray:
    asked = f" {name_key(candidates.question)} "
    return np.array([float(bool(key) and f" {key} " in asked) for key in _names(candidates)])


def _log_words(candidates: Candidates) -> FloatArray:
    return np.array([np.log1p(len(text.split())) for text in candidates.texts])


#: name -> (what candidates must have, how it is made)
_BASE: dict[str, tuple[str, Callable[[Candidates], FloatArray]]] = {
    "cosine": ("scores['dense']", lambda c: _score(c, "dense")),
    "cosine_gap": ("scores['dense']", lambda c: _score(c, "dense") - _score(c, "dense").max()),
    "bm25": ("scores['bm25']", lambda c: np.log1p(np.maximum(_score(c, "bm25"), 0.0))),
    "bm25_share": ("scores['bm25']", lambda c: _share_of_best(_score(c, "bm25"))),
    "log_rank_dense": ("scores['dense']", lambda c: log_rank(_score(c, "dense"))),
    "log_rank_bm25": ("scores['bm25']", lambda c: log_rank(_score(c, "bm25"))),
    "log_rank_fused": ("scores['fused']", lambda c: log_rank(_score(c, "fused"))),
    "title_share": ("question", _title_share),
    "title_named": ("question", _title_named),
    "log_words": ("texts", _log_words),
}
#: What models are fitted on where nothing else is asked for.
BASE_FEATURES = tuple(_BASE)
_BASE |= {
    "spread_gap": ("scores['dense']", lambda c: _gap_in_spreads(_score(c, "dense"))),
    "log_rank_given": ("relevance", lambda c: _shared_rank(given(c))),
    "given_gap": ("relevance", lambda c: _gap_in_spreads(given(c))),
    "log_rank_best": ("pool", _best_rank),
    "question_cover": ("question", question_cover),
    "question_names": ("question", question_names),
}
_POOL = ("agreement", "correlation", "dense_lead", "bm25_lead", "question_words", "question_names")
_BASE |= {f"pool_{name}": ("pool", partial(_of_pool, name=f"pool_{name}")) for name in _POOL}


def is_monotone(name: str) -> bool:
    """Whether a weight on this feature must not be negative, so that worst cases pass through exactly."""
    return any(part in _MONOTONE for part in name.split("*"))


def product_problem(name: str) -> str | None:
    """Why a product of features is none that a model can use; None for a good one, and for no product."""
    parts = name.split("*")
    of_pool = [part.startswith("pool_") for part in parts]
    if len(parts) == 1 or (len(parts) == 2 and any(of_pool) and all(part in _BASE for part in parts)):
        return None
    return (
        f"'{name}' is no product of a feature of the passage and one of the pool (pool_...): scores of "
        "re-rankers and links cannot be multiplied"
    )


def cosine_slopes(candidates: Candidates, names: Sequence[str]) -> FloatArray:
    """By how much each feature falls with a passage's own cosine, as long as ranks stay; shape (k,)."""
    return np.array([_slope(candidates, name) for name in names])


def _slope(candidates: Candidates, name: str) -> float:
    first, _, second = name.partition("*")
    if second:  # of a passage's own feature and one that is the same for the pool
        own, pool = (first, second) if first in _BY_COSINE else (second, first)
        return _slope(candidates, own) * (pool_facts(candidates)[pool] if own in _BY_COSINE else 0.0)
    if name not in _BY_COSINE:
        return 0.0
    if name in ("cosine", "cosine_gap"):
        return 1.0
    width = spread(_score(candidates, "dense") if name == "spread_gap" else given(candidates))
    return 1.0 / width if width else 0.0


@lru_cache(maxsize=2 * len(_BASE))  # worst cases and attacks ask for the same pool at many losses
def _base_feature(candidates: Candidates, name: str) -> FloatArray:
    values = np.array(_BASE[name][1](candidates), dtype=np.float64)
    values.flags.writeable = False
    return values


def missing(candidates: Candidates, name: str) -> str | None:
    """What candidates lack for a feature, or None where they have it all."""
    known = _lacking(candidates, tuple(candidates.scores))
    if name not in known:
        known[name] = _missing(candidates, name)
    return known[name]


@lru_cache(maxsize=4)  # choosing the weights and using them ask the same
def _lacking(candidates: Candidates, scores: tuple[str, ...]) -> dict[str, str | None]:
    return {}


def _missing(candidates: Candidates, name: str) -> str | None:
    if "*" in name:
        return next((need for part in name.split("*") if (need := missing(candidates, part))), None)
    if name in LINK_FEATURES:
        return "links" if candidates.links is None else None
    if name.startswith(("score:", "gap:")):
        key = name.partition(":")[2]
        return f"scores['{key}']" if key not in candidates.scores else None
    if name not in _BASE:
        return "a feature of that name"
    needed = _BASE[name][0]
    if needed == "relevance":
        return None
    if needed == "pool":
        parts = ("log_rank_dense", "log_rank_bm25", "title_share")
        return next((need for part in parts if (need := missing(candidates, part))), None)
    if needed.startswith("scores"):
        return None if needed.split("'")[1] in candidates.scores else needed
    return None if getattr(candidates, needed) else needed


def available_features(candidates: Candidates, *, links: bool = True) -> tuple[str, ...]:
    """Names of the features that these candidates can give, scores of re-rankers included."""
    added = [key for key in sorted(candidates.scores) if key not in ("dense", "bm25", "fused", GIVEN, MADE)]
    extra = [f"{kind}:{key}" for key in added for kind in ("score", "gap")]
    names = [*BASE_FEATURES, *extra, *(LINK_FEATURES if links else ())]
    return tuple(name for name in names if missing(candidates, name) is None)


def feature_matrix(
    candidates: Candidates,
    names: Sequence[str],
    *,
    before: FloatArray | None = None,
    cosine_loss: FloatArray | float = 0.0,
) -> FloatArray:
    """Features of a pool.

    Parameters
    ----------
    names : sequence of str, length k
    before : ndarray, shape (n,), optional
        Probabilities of the stage before; needed by the link features.
    cosine_loss : float or ndarray of shape (n,)
        By how much each cosine may be lower than it looks, >= 0; negative values raise it.

    Returns
    -------
    ndarray, shape (n, k)

    Raises
    ------
    InputError
        Naming every feature that cannot be made, and what it lacks.
    """
    lacking = {name: need for name in names if (need := missing(candidates, name)) is not None}
    if lacking:
        listed = ", ".join(f"'{name}' (needs {need})" for name, need in lacking.items())
        raise InputError(
            f"the relevance model cannot be used here: these candidates lack {listed}. Retrieve them with "
            "Retriever and an index that holds what is missing (scores of a re-ranker: --rerank), pass it in "
            "Candidates, or fit a model without these features (mio-rag calibrate)"
        )
    columns: list[FloatArray] = []
    is_lowered = np.any(cosine_loss)
    for name in names:
        if name in LINK_FEATURES:
            columns.append(_link_feature(candidates, name, before))
        elif name.startswith(("score:", "gap:")):
            kind, _, key = name.partition(":")
            values = _score(candidates, key)
            columns.append(values - values.max(initial=-np.inf) if kind == "gap" else values)
        else:
            values = np.ones(len(candidates))
            for part in name.split("*"):
                values = values * _base_feature(candidates, part)
            slope = _slope(candidates, name) if is_lowered else 0.0
            columns.append(values - slope * cosine_loss if slope else values)
    return np.stack(columns, axis=1) if columns else np.zeros((len(candidates), 0))


def _link_feature(candidates: Candidates, name: str, before: FloatArray | None) -> FloatArray:
    assert candidates.links is not None
    weights = candidates.links.astype(np.float64)
    if name == "mention_weight":
        return np.asarray(weights.max(axis=0, initial=0.0))
    if name in ("is_mentioned", "does_mention"):
        return np.asarray(np.any(weights > 0, axis=0 if name == "is_mentioned" else 1), dtype=np.float64)
    if before is None:
        raise InputError(f"feature '{name}' belongs to a later stage: the first has no probabilities to use")
    if name == "best_mentioning":
        return np.asarray((weights * before[:, None]).max(axis=0, initial=0.0))
    return np.asarray((weights * before[None, :]).max(axis=1, initial=0.0))
