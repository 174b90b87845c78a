"""Qdrant: a server, or the client's own store in a folder or in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, choose, require
from mio_rag.stores.rows import Fields, bounds_of, conditions, flat, kept, text_keys, values_of
from mio_rag.types import Passage

_SAMPLE = 1000  # points whose payload shows the keys


class QdrantStore:
    """A collection of Qdrant, as a `mio_rag.Store`.

    client: a `qdrant_client.QdrantClient`.
    fields: where passages keep what they have; `vector` names one of several vectors.
    """

    def __init__(self, client: Any, collection: str, fields: Fields | None = None) -> None:
        self._models = require("qdrant_client.models", "qdrant", "a Qdrant collection")
        self._client, self._collection, self._fields = client, collection, fields or Fields()
        self._lock = Lock()  # the local store is not made for threads
        names = [one.name for one in client.get_collections().collections]
        if collection not in names:
            raise InputError(f"Qdrant has no collection '{collection}': {choose(collection, names)}")
        vectors = client.get_collection(collection).config.params.vectors
        self._vector = self._fields.vector
        if isinstance(vectors, Mapping):
            self._vector = self._vector or next(iter(vectors))
            if self._vector not in vectors:
                hint = choose(self._vector, vectors)
                raise InputError(f"'{collection}' has no vector '{self._vector}': {hint}")
            vectors = vectors[self._vector]
        self._distance = str(vectors.distance.value).lower()
        points, _ = client.scroll(collection, limit=_SAMPLE, with_payload=True)
        self._payload = {name for point in points for name in (point.payload or {})}
        self._nested = next((name for name in ("metadata", "meta") if name in self._payload), None)
        rows = [flat(point.payload or {}) for point in points]
        self._keys, self._texts = {name for row in rows for name in row}, text_keys(rows)

    @classmethod
    def open(cls, place: str, collection: str, fields: Fields, options: Mapping[str, str]) -> QdrantStore:
        """Open HOST[:PORT] or a folder."""
        module = require("qdrant_client", "qdrant", "a Qdrant collection")
        if place.startswith("//"):
            host, _, port = place[2:].partition(":")
            secure = options.get("https", "") in ("1", "true")
            client = module.QdrantClient(
                url=f"{'https' if secure else 'http'}://{host}:{port or 6333}", api_key=options.get("api_key")
            )
        else:
            client = module.QdrantClient(path=place)
        return cls(client, collection, fields)

    def search(
        self, question: str, vector: NDArray[np.float32], k: int, where: Mapping[str, Any] | None
    ) -> Sequence[Passage]:
        """Return the nearest points."""
        with self._lock:
            found = self._client.query_points(
                self._collection, query=vector.tolist(), using=self._vector, limit=k,
                query_filter=self._filter(where), with_payload=True, with_vectors=True,
            ).points  # fmt: skip
        return kept(self._passage(point, self._score(point.score)) for point in found)

    def by_title(self, names: Sequence[str]) -> Sequence[Passage]:
        """Return the points with one of these titles."""
        title = self._fields.of("title", self._keys)
        if title is None:
            return []
        with self._lock:
            points, _ = self._client.scroll(
                self._collection, limit=4 * len(names), with_payload=True, with_vectors=True,
                scroll_filter=self._filter({title: {"in": list(names)}}),
            )  # fmt: skip
        return kept(self._passage(point, None) for point in points)

    def keys(self) -> set[str]:
        """Return the keys of the first payloads."""
        return self._keys

    def count(self, where: Mapping[str, Any] | None) -> int:
        """Return how many points there are."""
        with self._lock:
            return int(self._client.count(self._collection, count_filter=self._filter(where)).count)

    def _score(self, score: float) -> float:
        """Euclidean distances stand in the field `score`, too."""
        return score if self._distance in ("cosine", "dot") else -score

    def _passage(self, point: Any, score: float | None) -> Passage | None:
        vector = point.vector.get(self._vector) if isinstance(point.vector, Mapping) else point.vector
        return self._fields.passage(point.payload or {}, point.id, vector, score)

    def _filter(self, where: Mapping[str, Any] | None) -> Any:
        models, must = self._models, []
        for one in conditions(where):
            field = self._fields.key(one.key, self._keys)
            if field not in self._keys:
                continue
            is_text = field in self._texts
            if field not in self._payload and self._nested is not None:
                field = f"{self._nested}.{field}"
            if (values := values_of(one)) is not None:
                texts = models.MatchAny(any=[v for v in values if isinstance(v, str)])
                numbers = [models.Range(gte=v, lte=v) for v in values if isinstance(v, float)]
                should = [models.FieldCondition(key=field, match=texts)]
                should += [models.FieldCondition(key=field, range=one) for one in numbers]
                must.append(models.Filter(should=should))
            elif not is_text and (bound := bounds_of(one)) is not None and not isinstance(bound[1], str):
                limits = {"gte" if bound[0] == ">=" else "lte": float(bound[1])}
                must.append(models.FieldCondition(key=field, range=models.Range(**limits)))
        return models.Filter(must=must) if must else None
