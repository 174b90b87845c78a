"""Re-rankers: slower models that score question and passage together; the score is one more feature.

    maxsim[:ID_OR_PATH]          late interaction over token embeddings, the packaged MiniLM's or another's
    cross-encoder:ID_OR_PATH     a sentence-transformers CrossEncoder
    yes-no:GENERATOR             log-odds of Yes against No when a language model is asked whether it helps;
                                 GENERATOR as elsewhere, for instance yes-no:gguf:PATH

A re-ranker scores pairs of texts. Scores are kept on disk by content (the model, the question, the passage as
a reader sees it), so that no pair is scored twice. `Candidates.scores` holds them under the re-ranker's name:
a relevance model sees them as the features score:NAME and gap:NAME, and rankings can go by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.context import render_passage
from mio_rag.errors import InputError
from mio_rag.retrieval.cache import EmbeddingCache, cache_folder
from mio_rag.retrieval.reranker import KINDS, FloatArray, Pair, Progress, Reranker

__all__ = [
    "make_reranker",
    "make_rerankers",
    "rescored",
    "scored_pairs",
    "spec_problems",
]

_SLICE = 256  # pairs between two writes to the cache: what an interrupt can lose


def scored_pairs(
    reranker: Reranker, pairs: Sequence[Pair], progress: Progress | None = None, cache: bool = True
) -> FloatArray:
    """Scores of pairs, from the cache where they are there.

    Raises
    ------
    InputError
        If the re-ranker gives another number of scores, or one that is not finite.
    """
    store = EmbeddingCache(cache_folder() / "rerank.sqlite", "score") if cache else None
    keys = {pair: f"{len(pair[0])}\0{pair[0]}{pair[1]}" for pair in pairs}
    held = store.get(reranker.fingerprint, list(keys.values())) if store else {}
    known = {pair: float(held[key][0]) for pair, key in keys.items() if key in held and held[key].size == 1}
    if progress and known:
        progress(len(known))
    fresh = [pair for pair in keys if pair not in known]
    for first in range(0, len(fresh), _SLICE):
        part = fresh[first : first + _SLICE]
        # In the cache's precision at once, so that a second run gives the same numbers.
        values = np.asarray(reranker.score(part, progress), dtype=np.float32).astype(np.float64)
        if values.shape != (len(part),) or not np.all(np.isfinite(values)):
            raise InputError(
                f"re-ranker '{reranker.name}' gave scores of shape {values.shape} for {len(part)} pairs, or "
                "some that are not finite: it cannot be used"
            )
        known.update(zip(part, values.tolist(), strict=True))
        if store:
            store.put(reranker.fingerprint, {keys[p]: np.array([known[p]], dtype=np.float32) for p in part})
    return np.array([known[pair] for pair in pairs])


def rescored(
    pools: Sequence[Candidates], reranker: Reranker, progress: Progress | None = None, cache: bool = True
) -> list[Candidates]:
    """The pools with the scores of a re-ranker; all pairs at once, so that a passage is read once for all.

    Raises
    ------
    InputError
        If candidates do not know their question.
    """
    if any(len(pool) and not pool.question.strip() for pool in pools):
        raise InputError(
            f"re-ranker '{reranker.name}' needs candidates that know their question: pass question=..."
        )
    texts = [[render_passage(pool.passage(i)) for i in range(len(pool))] for pool in pools]
    pairs = [(pool.question, text) for pool, part in zip(pools, texts, strict=True) for text in part]
    values = scored_pairs(reranker, pairs, progress, cache)
    parts = np.split(values, np.cumsum([len(pool) for pool in pools])[:-1]) if pools else []
    return [
        replace(pool, scores={**pool.scores, reranker.name: part})
        for pool, part in zip(pools, parts, strict=True)
    ]


def spec_problems(specs: Sequence[str]) -> list[str]:
    """What is wrong with specifications by their form alone; no model is loaded."""
    problems = []
    kinds = [spec.strip().partition(":")[0] for spec in specs]
    problems += [f"re-ranker '{k}' is given twice" for k in dict.fromkeys(kinds) if kinds.count(k) > 1]
    for spec, kind in zip(specs, kinds, strict=True):
        if kind not in KINDS or (kind != "maxsim" and not spec.partition(":")[2].strip()):
            problems.append(
                f"re-ranker '{spec}' is not known: give maxsim, maxsim:ID_OR_PATH, cross-encoder:ID_OR_PATH "
                "or yes-no:GENERATOR (for instance yes-no:gguf:model.gguf)"
            )
    return problems


def make_reranker(spec: str) -> Reranker:
    """The re-ranker of a specification; see the head of this module.

    Raises
    ------
    InputError
        For another form, or a model that cannot be loaded.
    MissingExtraError
        Without the packages that it needs.
    """
    if problems := spec_problems([spec]):
        raise InputError(problems)
    from mio_rag.retrieval import rerankers

    kind, _, target = spec.strip().partition(":")
    if kind == "maxsim":
        return rerankers.MaxSim(target or None)
    if kind == "cross-encoder":
        return rerankers.CrossEncoderReranker(target)
    from mio_rag.generation import make_generator

    return rerankers.YesNo(make_generator(target))


def make_rerankers(given: Sequence[str | Reranker]) -> tuple[Reranker, ...]:
    """The re-rankers of specifications, in order; what is one already stays.

    Raises
    ------
    InputError
        As `make_reranker`, and where two would write the same scores.
    """
    made = tuple(make_reranker(one) if isinstance(one, str) else one for one in given)
    names = [one.name for one in made]
    taken = {"dense", "bm25", "fused"} & set(names)
    if len(set(names)) < len(names) or taken:
        raise InputError(
            f"re-rankers {', '.join(names)}: each needs a name of its own, and none of dense, bm25, fused"
        )
    return made
