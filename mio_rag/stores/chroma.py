"""Chroma: a server, a folder, or a client of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, choose, require
from mio_rag.stores.rows import Fields, bounds_of, conditions, flat, kept, text_keys, values_of
from mio_rag.types import Passage

_SAMPLE = 1000  # rows whose metadata show the keys


class ChromaStore:
    """A collection of Chroma, as a `mio_rag.Store`.

    client: a client of `chromadb`.
    fields: where the metadata keep what passages have; the text is the document.
    """

    def __init__(self, client: Any, collection: str, fields: Fields | None = None) -> None:
        names = [getattr(one, "name", one) for one in client.list_collections()]
        if collection not in names:
            raise InputError(f"Chroma has no collection '{collection}': {choose(collection, names)}")
        # Without embedding_function=None Chroma would fetch a model.
        self._collection = client.get_collection(collection, embedding_function=None)
        settings = getattr(self._collection, "configuration_json", None) or {}
        spaces = [settings.get(name) or {} for name in ("hnsw", "spann")]
        metadata = self._collection.metadata or {}
        known = [one["space"] for one in spaces if "space" in one]
        self._space = known[0] if known else metadata.get("hnsw:space", "l2")
        self._fields = fields or Fields()
        first = self._collection.get(limit=_SAMPLE, include=["metadatas"])["metadatas"] or []
        rows = [flat(row or {}) for row in first]
        self._keys, self._texts = {name for row in rows for name in row}, text_keys(rows)

    @classmethod
    def open(cls, place: str, collection: str, fields: Fields, options: Mapping[str, str]) -> ChromaStore:
        """Open HOST[:PORT] or a folder."""
        module = require("chromadb", "chroma", "a Chroma collection")
        quiet = module.Settings(anonymized_telemetry=False)
        if place.startswith("//"):
            host, _, port = place[2:].partition(":")
            client = module.HttpClient(host=host, port=int(port or 8000), settings=quiet)
        else:
            try:
                client = module.PersistentClient(path=place, settings=quiet)
            except ValueError:  # a client of this process has it open, mostly with the usual settings
                client = module.PersistentClient(path=place)
        return cls(client, collection, fields)

    def search(
        self, question: str, vector: NDArray[np.float32], k: int, where: Mapping[str, Any] | None
    ) -> Sequence[Passage]:
        """Return the nearest documents; Chroma gives fewer where it has fewer."""
        found = self._collection.query(
            query_embeddings=[vector.tolist()], n_results=k, where=self._filter(where),
            include=["documents", "metadatas", "embeddings", "distances"],
        )  # fmt: skip
        columns = [found[name][0] for name in ("ids", "documents", "metadatas", "embeddings", "distances")]
        return kept(self._passage(row, self._score(d)) for *row, d in zip(*columns, strict=True))

    def by_title(self, names: Sequence[str]) -> Sequence[Passage]:
        """Return the documents with one of these titles."""
        title = self._fields.of("title", self._keys)
        if title is None:
            return []
        found = self._collection.get(
            where={title: {"$in": list(names)}}, include=["documents", "metadatas", "embeddings"]
        )
        columns = [found[name] for name in ("ids", "documents", "metadatas", "embeddings")]
        return kept(self._passage(row, None) for row in zip(*columns, strict=True))

    def keys(self) -> set[str]:
        """Return the keys of the first metadata."""
        return self._keys

    def count(self, where: Mapping[str, Any] | None) -> int:
        """Return how many documents there are."""
        if (only := self._filter(where)) is None:
            return int(self._collection.count())
        return len(self._collection.get(where=only, include=[])["ids"])

    def _score(self, distance: float) -> float:
        """Chroma's distances are squared for "l2", and 1 - product for "ip" and "cosine"."""
        return 1 - distance / (2 if self._space == "l2" else 1)

    def _passage(self, hit: Sequence[Any], score: float | None) -> Passage | None:
        number, text, metadata, vector = hit
        return self._fields.passage({"text": text, **(metadata or {})}, number, vector, score)

    def _filter(self, where: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Chroma takes one key a mapping, and keeps lists apart: those are left to us."""
        must: list[dict[str, Any]] = []
        for one in conditions(where):
            field = self._fields.key(one.key, self._keys)
            if field not in self._keys:
                continue
            if (values := values_of(one)) is not None:
                either: list[dict[str, Any]] = [{field: value} for value in values]
                either += [{field: {"$contains": value}} for value in values]
                must.append({"$or": either})
            elif field in self._texts:
                continue
            elif (bound := bounds_of(one)) is not None and not isinstance(bound[1], str):
                must.append({field: {"$gte" if bound[0] == ">=" else "$lte": float(bound[1])}})
        if not must:
            return None
        return must[0] if len(must) == 1 else {"$and": must}
