"""LanceDB: tables in a folder or in the cloud."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, require
from mio_rag.stores.rows import Fields, bounds_of, conditions, kept, literal, values_of
from mio_rag.types import Passage


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
