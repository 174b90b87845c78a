"""Vector databases by their clients: Qdrant, Chroma and LanceDB, on a server, in a folder or in the cloud."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, choose, require
from mio_rag.stores.rows import Fields, bounds_of, conditions, flat, kept, literal, text_keys, values_of
from mio_rag.types import Passage

_SAMPLE = 1000  # rows whose metadata show the keys


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


class LanceStore:
    """A table of LanceDB, as a `mio_rag.Store`.

    table: a `lancedb` table with a column of vectors.
    """

    def __init__(self, table: Any, fields: Fields | None = None) -> None:
        self._table, self._fields = table, fields or Fields()
        schema = table.schema
        self._types: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        for field in schema:
            inner = list(field.type) if str(field.type).startswith("struct") else []
            for one in inner:
                self._types[one.name], self._paths[one.name] = str(one.type), f"{field.name}.{one.name}"
            if not inner:
                self._types[field.name], self._paths[field.name] = str(field.type), field.name
        vector = self._fields.of("vector", schema.names)
        if vector is None:
            raise InputError(f"no column of the table holds vectors: name it (vector=...), of {schema.names}")
        self._vector = vector

    @classmethod
    def open(cls, place: str, collection: str, fields: Fields, options: Mapping[str, str]) -> LanceStore:
        """Open a folder or URI."""
        module = require("lancedb", "lancedb", "a LanceDB table")
        base = module.connect(place)
        try:
            return cls(base.open_table(collection), fields)
        except (FileNotFoundError, ValueError) as error:
            raise InputError(f"LanceDB has no table '{collection}' in {place}") from error

    def search(
        self, question: str, vector: NDArray[np.float32], k: int, where: Mapping[str, Any] | None
    ) -> Sequence[Passage]:
        """Return the nearest rows by cosine."""
        found = self._table.search(vector, vector_column_name=self._vector).distance_type("cosine").limit(k)
        if only := self._filter(where):
            found = found.where(only, prefilter=True)
        return kept(self._passage(row) for row in found.to_list())

    def by_title(self, names: Sequence[str]) -> Sequence[Passage]:
        """Return the rows with one of these titles."""
        title = self._fields.of("title", self._types)
        if title is None:
            return []
        values = ", ".join(map(literal, names))
        found = self._table.search().where(f"{self._paths[title]} IN ({values})").limit(4 * len(names))
        return kept(self._passage(row) for row in found.to_list())

    def keys(self) -> set[str]:
        """Return the columns."""
        return set(self._types) - {self._vector}

    def count(self, where: Mapping[str, Any] | None) -> int:
        """Return how many rows there are."""
        return int(self._table.count_rows(self._filter(where) or None))

    def _passage(self, row: dict[str, Any]) -> Passage | None:
        vector, distance = row.pop(self._vector), row.pop("_distance", None)
        row.pop("_rowid", None)
        number = hashlib.sha256(str(sorted(row.items())).encode()).hexdigest()[:16]
        return self._fields.passage(row, number, vector, None if distance is None else 1 - distance)

    def _filter(self, where: Mapping[str, Any] | None) -> str:
        must = []
        for one in conditions(where):
            field = self._fields.key(one.key, self._types)
            kind, path = self._types.get(field), self._paths.get(field)
            if kind is None:
                continue
            is_text, is_number = "string" in kind, any(part in kind for part in ("int", "float", "double"))
            if (values := values_of(one)) is not None:
                wanted = str if "string" in kind else int if "int" in kind else float
                values = [value for value in values if isinstance(value, wanted)]
                if kind.startswith(("list", "large_list")):
                    must.append(" OR ".join(f"array_has({path}, {literal(v)})" for v in values) or "false")
                elif is_text or is_number:
                    must.append(f"{path} IN ({', '.join(map(literal, values))})" if values else "false")
            elif (bound := bounds_of(one)) is not None and (
                is_text if isinstance(bound[1], str) else is_number
            ):
                must.append(f"{path} {bound[0]} {literal(bound[1])}")
        return " AND ".join(f"({each})" for each in must)
