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
    score:NAME         `Candidates.scores[NAME]` as it is: a re-ranker's score, for instance
    gap:NAME           that score minus the best of the pool (<= 0)

and, from the probabilities p of the stage before and the evidence links of the pool, of weight w <= 1:

    best_mentioning    largest w p among the passages that mention this one
    best_mentioned     largest w p among the passages that this one mentions
    mention_weight     largest w among the mentions of this passage: how rare its name is
    is_mentioned       1 where another passage mentions it
    does_mention       1 where it mentions another passage

Under embedding uncertainty the cosine of a passage may be lower by up to its loss h. Then `cosine` and
`cosine_gap` both fall by h, the best cosine of the pool being what the search observed, a property of the
question; so do not the ranks, which are what the search reported. A model whose weights on `cosine`,
`cosine_gap`, `best_mentioning` and `best_mentioned` are not negative is monotone in every cosine, and its
value at the lowered cosines is its exact worst case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.names import leading_name, name_key

__all__ = ["BASE_FEATURES", "LINK_FEATURES", "MONOTONE", "available_features", "feature_matrix"]

FloatArray = NDArray[np.float64]

LINK_FEATURES = ("best_mentioning", "best_mentioned", "mention_weight", "is_mentioned", "does_mention")
#: Features whose weight must not be negative, so that worst cases pass through the model exactly.
MONOTONE = ("cosine", "cosine_gap", "best_mentioning", "best_mentioned")


def _score(candidates: Candidates, name: str) -> FloatArray:
    return np.asarray(candidates.scores[name], dtype=np.float64)


def _log_rank(scores: FloatArray) -> FloatArray:
    order = np.argsort(-scores, kind="stable")
    ranks = np.empty(scores.size)
    ranks[order] = np.arange(1, scores.size + 1)
    return np.asarray(np.log(ranks))


def _share_of_best(scores: FloatArray) -> FloatArray:
    best = float(scores.max(initial=0.0))
    return scores / best if best > 0 else np.zeros_like(scores)


@lru_cache(maxsize=1)  # two features of the same pool ask for them
def _names(candidates: Candidates) -> list[str]:
    titles = candidates.titles or [""] * len(candidates)
    pairs = zip(titles, candidates.texts, strict=True)
    return [name_key(title.strip() or leading_name(text)) for title, text in pairs]


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
    "log_rank_dense": ("scores['dense']", lambda c: _log_rank(_score(c, "dense"))),
    "log_rank_bm25": ("scores['bm25']", lambda c: _log_rank(_score(c, "bm25"))),
    "log_rank_fused": ("scores['fused']", lambda c: _log_rank(_score(c, "fused"))),
    "title_share": ("question", _title_share),
    "title_named": ("question", _title_named),
    "log_words": ("texts", _log_words),
}
BASE_FEATURES = tuple(_BASE)


@lru_cache(maxsize=2 * len(_BASE))  # worst cases and attacks ask for the same pool at many losses
def _base_feature(candidates: Candidates, name: str) -> FloatArray:
    values = np.array(_BASE[name][1](candidates), dtype=np.float64)
    values.flags.writeable = False
    return values


def _missing(candidates: Candidates, name: str) -> str | None:
    """What candidates lack for a feature, or None."""
    if name in LINK_FEATURES:
        return "links" if candidates.links is None else None
    if name.startswith(("score:", "gap:")):
        key = name.partition(":")[2]
        return f"scores['{key}']" if key not in candidates.scores else None
    if name not in _BASE:
        return "a feature of that name"
    needed = _BASE[name][0]
    if needed.startswith("scores"):
        return None if needed.split("'")[1] in candidates.scores else needed
    return None if getattr(candidates, needed) else needed


def available_features(candidates: Candidates, *, links: bool = True) -> tuple[str, ...]:
    """Names of the features that these candidates can give, scores of re-rankers included."""
    added = [key for key in sorted(candidates.scores) if key not in ("dense", "bm25", "fused")]
    extra = [f"{kind}:{key}" for key in added for kind in ("score", "gap")]
    names = [*BASE_FEATURES, *extra, *(LINK_FEATURES if links else ())]
    return tuple(name for name in names if _missing(candidates, name) is None)


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
    lacking = {name: need for name in names if (need := _missing(candidates, name)) is not None}
    if lacking:
        listed = ", ".join(f"'{name}' (needs {need})" for name, need in lacking.items())
        raise InputError(
            f"the relevance model cannot be used here: these candidates lack {listed}. Retrieve them with "
            "Retriever and an index that holds what is missing (scores of a re-ranker: --rerank), pass it in "
            "Candidates, or fit a model without these features (mio-rag calibrate)"
        )
    columns: list[FloatArray] = []
    for name in names:
        if name in LINK_FEATURES:
            columns.append(_link_feature(candidates, name, before))
        elif name.startswith(("score:", "gap:")):
            kind, _, key = name.partition(":")
            values = _score(candidates, key)
            columns.append(values - values.max(initial=-np.inf) if kind == "gap" else values)
        else:
            values = _base_feature(candidates, name)
            columns.append(values - cosine_loss if name in ("cosine", "cosine_gap") else values)
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
