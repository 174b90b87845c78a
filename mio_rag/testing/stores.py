"""A suite for authors of stores."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from mio_rag.entries import unit_rows
from mio_rag.errors import MioRagError, Notice
from mio_rag.filters import Filter
from mio_rag.retrieval.embedders import Embedder, make_embedder
from mio_rag.stores.base import Store, StoreIndex
from mio_rag.types import Passage


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

    def found(k: int, condition: Mapping[str, Any] | None = None) -> list[Passage]:
        try:
            return list(store.search(question, vector, k, condition))
        except Exception as error:
            failures.append(f"search(k={k}, where={condition}) raised {type(error).__name__}: {error}")
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
    if failures:
        raise AssertionError(f"{type(store).__name__} failed {len(failures)} checks:\n" + "\n".join(failures))
