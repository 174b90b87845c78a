"""Pools of passages for tests of selections."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector

PLAIN = Selector.raw(redundancy_weight=0, passage_penalty=0)


def pool(n: int = 12, seed: int = 0, **changes) -> Candidates:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 6)) + 0.7
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = rng.normal(size=6) + 0.7
    query /= np.linalg.norm(query)
    fields = {
        "ids": [f"p{k}" for k in range(n)],
        "texts": [f"passage number {k}" for k in range(n)],
        "relevance": vectors @ query,
        "tokens": rng.integers(5, 40, n),
        "embeddings": vectors,
        "query_embedding": query,
        "sources": [f"doc{k % 3}" for k in range(n)],
    }
    return Candidates(**{**fields, **changes})


def simple(relevance: Sequence[float], tokens: Sequence[int], **changes) -> Candidates:
    n = len(relevance)
    return Candidates([f"p{k}" for k in range(n)], ["text"] * n, relevance, tokens, **changes)


def replace(value: Any, **changes: Any) -> Any:
    """A settings object or a data class with changes."""
    return value.replace(**changes) if isinstance(value, Selector) else dataclasses.replace(value, **changes)
