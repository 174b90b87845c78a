"""The suite for selection methods: `check_method`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from mio_rag.context import RegexCounter
from mio_rag.errors import InputError
from mio_rag.methods import Method, Order, make_methods
from mio_rag.pool import Pool
from mio_rag.selection.selector import Selector


def check_method(name: str | Order, *, pools: int = 20, seed: int = 0) -> None:
    """Check that a method keeps what the harness relies on; raise `AssertionError` with every failed case.

    It gets random pools: of one passage, of equal scores, with copies, without what it does not need. It must
    return known ids, each once; the same ids for the same pool; and leave the pool as it was. What is read
    must fit the budget and follow the constraints of a selector.

    name: of `register_method`, or of the package; or the function itself.

    Raises `InputError` for an unknown name.
    """
    (method,) = make_methods([name], Selector())
    (bound,) = make_methods([name], Selector(max_per_source=1))
    failures: list[str] = []
    for case in range(pools):
        pool = _pool(np.random.default_rng([seed, case]), case, method)
        for budget in (1, 40, 10_000):
            for problem in _problems(method, bound, pool, budget):
                failures.append(f"pool {case} of {len(pool)} passages, {budget} tokens: {problem}")
    if failures:
        raise AssertionError(
            f"method '{method.name}' failed {len(failures)} checks:\n" + "\n".join(failures[:20])
        )


def _problems(method: Method, bound: Method, pool: Pool, budget: int) -> list[str]:
    counter, before = RegexCounter(), _content(pool)
    try:
        first, again = (method.select(pool, budget, counter) for _ in range(2))
        sourced = bound.select(pool, budget, counter)
    except InputError as error:
        return [str(error)]
    found = []
    if _content(pool) != before:
        found.append("it changed the pool")
    if first.ids != again.ids:
        found.append(f"it chose {list(first.ids)}, and then {list(again.ids)}")
    if first.tokens_used > budget:
        found.append(f"{first.tokens_used} tokens are read")
    if pool.sources is not None:
        read = [pool.sources[sourced.pool.ids.index(i)] for i in sourced.ids if i in sourced.pool.ids]
        if len(set(read)) < len(read):
            found.append("max_per_source=1 is exceeded")
    return found


def _content(pool: Pool) -> str:
    arrays = (pool.relevance, pool.tokens, pool.embeddings)
    return json.dumps([list(pool.ids), list(pool.texts), [None if a is None else a.tolist() for a in arrays]])


def _pool(rng: np.random.Generator, case: int, method: Method) -> Pool:
    """A random pool; every third lacks what the method does not name as needed."""
    n = 1 if case == 0 else int(rng.integers(2, 25))
    vectors = rng.normal(size=(n, 6))
    if case % 4 == 1:
        vectors[1:] = vectors[0]  # copies, of equal scores
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = rng.normal(size=6)
    relevance = vectors @ query / np.linalg.norm(query)
    texts = [f"passage {k} " + "word " * int(rng.integers(1, 40)) for k in range(n)]
    names = {"dense", "bm25", "fused", method.score, *method.needs} - {"", *Pool.__dataclass_fields__}
    scores = {one: relevance if one == "dense" else rng.random(n) for one in sorted(names)}
    columns: dict[str, Any] = {
        "relevance": relevance, "tokens": RegexCounter().count(texts), "embeddings": vectors,
        "query_embedding": query, "titles": [f"Title {k}" for k in range(n)], "scores": scores,
        "sources": [f"s{k % 3}" for k in range(n)], "dates": ["2026-01-01"] * n, "links": np.zeros((n, n)),
        "duplicates": np.zeros((n, n)), "question": "Which passage?",
    }  # fmt: skip
    pool = Pool([f"p{k}" for k in range(n)], texts, **columns)
    if case % 3 < 2 or method.selector.solver != "topk":
        return pool
    spare = {"embeddings", "query_embedding", "titles", "dates", "links", "duplicates"} - set(method.needs)
    absent: dict[str, Any] = dict.fromkeys(spare)
    return replace(pool, **absent)
