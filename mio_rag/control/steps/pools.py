"""Two pools of one index as one."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.sentences import Sentences

__all__ = ["merge_pools"]

FloatArray = NDArray[np.float64]


def merge_pools(one: Candidates, other: Candidates, size: int, keep: set[str]) -> Candidates:
    """Two pools of one index as one, best first: the `size` most relevant passages, and those to keep.

    Relevance and scores are the larger of the two, on their own scale (a logit may well be below 0); scores
    that only one pool has are left out, since 0 would be a score like any other. Question and query embedding
    are those of the first pool. Links and duplicates are known within each pool, and 0 between passages that
    were never in one pool. A pool without places, dates or duplicates has found none.
    """
    size_of_one, place = len(one), {passage: i for i, passage in enumerate(one.ids)}
    at = np.array([place.setdefault(passage, len(place)) for passage in other.ids], dtype=np.int64)
    known = list(place)

    def larger(first: FloatArray, second: FloatArray) -> FloatArray:
        column = np.full(len(known), -np.inf)
        column[:size_of_one] = first
        column[at] = np.maximum(column[at], second)
        return column

    relevance = larger(one.relevance, other.relevance)
    scores = {n: larger(one.scores[n], other.scores[n]) for n in one.scores if n in other.scores}
    best = np.argsort(-relevance, kind="stable")
    kept = [i for rank, i in enumerate(best.tolist()) if rank < size or known[i] in keep]
    ids = [known[i] for i in kept]
    back = {i: k for k, i in enumerate(at.tolist())}
    taken = [(one, i) if i < size_of_one else (other, back[i]) for i in kept]
    has_sources = one.sources is not None and other.sources is not None
    embedded = one.embeddings is not None and other.embeddings is not None
    return Candidates(
        ids=ids,
        texts=[pool.texts[i] for pool, i in taken],
        relevance=relevance[kept],
        tokens=np.array([pool.tokens[i] for pool, i in taken]),
        embeddings=np.array([pool.embeddings[i] for pool, i in taken if pool.embeddings is not None])
        if embedded
        else None,
        query_embedding=one.query_embedding,
        titles=[pool.titles[i] if pool.titles is not None else "" for pool, i in taken],
        sources=[pool.sources[i] for pool, i in taken if pool.sources is not None] if has_sources else None,
        scores={name: column[kept] for name, column in scores.items()},
        question=one.question,
        embedder=one.embedder if one.embedder == other.embedder else "",
        links=_merged_matrix("links", (one, other), ids),
        duplicates=_merged_matrix("duplicates", (one, other), ids),
        spans=_merged_spans(taken) if has_sources else None,
        dates=None
        if one.dates is None and other.dates is None
        else [pool.dates[i] if pool.dates is not None else "" for pool, i in taken],
        positions=None
        if one.positions is None or other.positions is None
        else np.array([pool.positions[i] for pool, i in taken if pool.positions is not None]),
        sentences=_merged_sentences(taken),
        documents=None
        if one.documents is None and other.documents is None
        else [pool.documents[i] if pool.documents is not None else "" for pool, i in taken],
    )


def _merged_spans(taken: list[tuple[Candidates, int]]) -> NDArray[np.int64] | None:
    """Places of passages of several pools; None where no pool knows any."""
    if all(pool.spans is None for pool, _ in taken):
        return None
    found = [(-1, -1) if pool.spans is None else pool.spans[i] for pool, i in taken]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _merged_sentences(taken: list[tuple[Candidates, int]]) -> Sentences | None:
    """The sentences of passages of several pools; None where a pool does not know them."""
    own = [
        pool.sentences.among(np.array([i], dtype=np.int64)) for pool, i in taken if pool.sentences is not None
    ]
    if len(own) < len(taken) or not own:
        return None
    vectors = [found.embeddings for found in own if found.embeddings is not None]
    return Sentences(
        np.repeat(np.arange(len(own)), [len(found.owners) for found in own]),
        np.concatenate([found.spans for found in own]),
        np.concatenate(vectors) if len(vectors) == len(own) else None,
    )


def _merged_matrix(
    name: Literal["links", "duplicates"], pools: tuple[Candidates, Candidates], ids: list[str]
) -> NDArray[np.float32] | None:
    """Links or duplicates among these passages, as far as a pool holds both.

    None where a pool has no links, or neither has duplicates.
    """
    known_in = [getattr(pool, name) is not None for pool in pools]
    if not (all(known_in) if name == "links" else any(known_in)):
        return None
    place = {passage: k for k, passage in enumerate(ids)}
    merged = np.zeros((len(ids), len(ids)), dtype=np.float32)
    for pool in pools:
        known = pool.links if name == "links" else pool.duplicates
        if known is None:
            continue
        rows = [i for i, passage in enumerate(pool.ids) if passage in place]
        at = [place[pool.ids[i]] for i in rows]
        merged[np.ix_(at, at)] = np.maximum(merged[np.ix_(at, at)], known[np.ix_(rows, rows)])
    return merged
