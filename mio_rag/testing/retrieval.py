"""The suites for selection methods and for stores: `check_method`, `check_store`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mio_rag.context import RegexCounter
from mio_rag.entries import unit_rows
from mio_rag.errors import InputError, MioRagError, Notice
from mio_rag.filters import Filter
from mio_rag.methods import Method, Order, make_methods
from mio_rag.pool import Pool
from mio_rag.retrieval.embedders import Embedder, make_embedder
from mio_rag.selection.selector import Selector
from mio_rag.stores.base import Store, StoreIndex
from mio_rag.types import Passage


def _report(what: str, failures: list[str]) -> None:
    if failures:
        listed = "\n".join(failures[:20])
        raise AssertionError(f"{what} failed {len(failures)} checks:\n{listed}")


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
    _report(f"method '{method.name}'", failures)


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


def check_store(
    store: Store,
    embedder: Embedder | str = "minilm",
    *,
    question: str = "What is this about?",
    where: Mapping[str, Any] | None = None,
) -> None:
    """Check that a store keeps what `mio_rag.Store` promises; raise `AssertionError` with every failed check.

    Checked are the order of hits, the scale of their scores (larger is better), their vectors (made by this
    embedder), a filter, a key that no passage has, and more hits asked for than there are.

    where: a filter that some passages meet, but not all.
    """
    model = make_embedder(embedder) if isinstance(embedder, str) else embedder
    vector = unit_rows(model.encode([question]))[0]
    failures: list[str] = []

    def found(k: int) -> list[Passage]:
        try:
            return list(store.search(question, vector, k, None))
        except Exception as error:
            failures.append(f"search(k={k}, where=None) raised {type(error).__name__}: {error}")
            return []

    hits = found(5)
    if not hits and not failures:
        failures.append("search found nothing")
    if strange := [type(one).__name__ for one in hits if not isinstance(one, Passage)]:
        raise AssertionError(f"search returned a {strange[0]}, expected Passage objects")
    if len(hits) > 5:
        failures.append(f"search(k=5) returned {len(hits)} passages")
    if len({one.id for one in hits}) < len(hits):
        failures.append("two hits have one id")
    scores = [one.score for one in hits if one.score is not None]
    if scores != sorted(scores, reverse=True):
        failures.append(f"scores do not descend ({scores}): return similarities, larger is better")
    if hits and all(one.vector is not None for one in hits):
        cosine = unit_rows(np.array([one.vector for one in hits])) @ vector
        if (np.diff(cosine) > 1e-3).any():
            failures.append(f"hits are not in the order of their vectors ({cosine.round(4).tolist()})")
    if hits and len(everything := found(10_000)) < len(hits):
        failures.append(f"search(k=10000) returned {len(everything)} passages, search(k=5) {len(hits)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            index = StoreIndex.of(store, model)
            index.hits(question, 20)
            if where is not None:
                chosen = index.only(where).hits(question, 20)
                if chosen is None or not all(map(Filter(where).holds, chosen.passages)):
                    failures.append(f"nothing was found under the filter {dict(where)}")
    except MioRagError as error:
        failures.append(str(error))
    if callable(getattr(store, "keys", None)):
        try:
            StoreIndex.of(store, model).only({"no_such_key": 1})
            failures.append("keys() names 'no_such_key', which no passage has")
        except MioRagError:
            pass
    _report(type(store).__name__, failures)
