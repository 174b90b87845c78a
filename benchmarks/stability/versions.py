"""A question's pool as other embeddings of the same passages show it.

    random     a random error of a given l2 norm in every embedding
    pq         the index compressed by product quantisation, and decoded
    encoder    a second encoder for passages and question; its cosines are brought to the mean and the spread
               that the first encoder's have in the pool, since scales differ between encoders

The passages of the pool stay the same: what changes is what the program is told about them.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, require
from mio_rag.frontier.dataset import perturbed
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex
from mio_rag.retrieval.embedders import Embedder, make_embedder
from mio_rag.retrieval.texts import embedded_text
from mio_rag.types import Question

VERSIONS = ("random", "pq", "encoder")


class Versions:
    """Makes the other versions of an index's pools.

    Parameters
    ----------
    index : CorpusIndex
    encoder : str
        The second embedder; "tfidf" is fitted on the index's passages.
    parts : int
        Bytes of a product code; must divide the dimensions.
    radius : float
        l2 norm of the random error.
    seed : int
    """

    def __init__(self, index: CorpusIndex, encoder: str, parts: int, radius: float, seed: int) -> None:
        self._index, self._radius, self._seed = index, radius, seed
        self._decoded = _decoded(index.embeddings(range(len(index))), parts)
        self._encoder: Embedder = make_embedder(encoder)
        self._encoder.fit([embedded_text(p) for p in index.passages])

    def of(self, question: Question, pool: Candidates) -> dict[str, Candidates]:
        """By name."""
        assert pool.positions is not None
        assert pool.query_embedding is not None
        rng = np.random.default_rng([self._seed, zlib.crc32(question.id.encode("utf-8", "replace"))])
        coded = self._decoded[pool.positions]
        texts = [embedded_text(self._index.passages[int(k)]) for k in pool.positions]
        vectors = self._encoder.encode([*texts, question.text])
        own = vectors[:-1] @ vectors[-1].astype(np.float64)
        query = pool.query_embedding
        return {
            "random": perturbed(pool, self._radius, "l2", rng),
            "pq": _seen(pool, coded, query, coded.astype(np.float64) @ query.astype(np.float64)),
            "encoder": _seen(pool, vectors[:-1], vectors[-1], _rescaled(own, pool.relevance)),
        }


def _seen(
    pool: Candidates,
    embeddings: NDArray[np.float32],
    query: NDArray[np.float32],
    cosine: NDArray[np.float64],
) -> Candidates:
    return replace(
        pool,
        embeddings=embeddings,
        query_embedding=query,
        relevance=cosine,
        scores={**pool.scores, "dense": cosine},
    )


def _rescaled(values: NDArray[np.float64], like: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values with the mean and the spread of others."""
    spread = float(values.std())
    share = float(like.std()) / spread if spread > 0 else 0.0
    return np.asarray((values - values.mean()) * share + float(like.mean()))


def _decoded(vectors: NDArray[np.float32], parts: int) -> NDArray[np.float32]:
    faiss: Any = require("faiss", "retrieval", "compressed indexes")
    bits = min(8, int(np.log2(max(2, vectors.shape[0]))))
    if vectors.shape[1] % parts:
        raise InputError(f"--parts={parts} does not divide the {vectors.shape[1]} dimensions of the index")
    codec = faiss.IndexPQ(vectors.shape[1], parts, bits)
    codec.pq.cp.min_points_per_centroid = 1  # a small corpus is no mistake here: its own code is asked for
    codec.train(vectors)
    return np.asarray(codec.sa_decode(codec.sa_encode(vectors)), dtype=np.float32)
