"""PostgreSQL with pgvector."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, choose, require
from mio_rag.stores.rows import Fields, bounds_of, conditions, kept, quoted, values_of
from mio_rag.types import Passage

_NUMBERS = ("int2", "int4", "int8", "float4", "float8", "numeric")
_NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,2})?\s*$"
#: Class of an index -> operator that it serves.
_OPERATORS = {"vector_cosine_ops": "<=>", "vector_l2_ops": "<->", "vector_ip_ops": "<#>"}


class PostgresStore:
    """A table with a pgvector column, as a `mio_rag.Store`.

    connection: a psycopg connection, in autocommit mode.
    """

    def __init__(self, connection: Any, table: str, fields: Fields | None = None) -> None:
        self._connection, self._fields, self._lock = connection, fields or Fields(), Lock()
        self._table = ".".join(map(quoted, table.split(".")))
        name = table.rpartition(".")[2]
        rows = self._all(
            "select column_name, udt_name from information_schema.columns where table_name = %s", [name]
        )
        self._types = dict(rows)
        if not self._types:
            found = self._all("select tablename from pg_tables where schemaname = 'public'")
            tables = [row[0] for row in found]
            raise InputError(f"PostgreSQL has no table '{table}': {choose(name, tables)}")
        vectors = [column for column, kind in self._types.items() if kind in ("vector", "halfvec")]
        vector = self._fields.vector or (vectors[0] if vectors else None)
        if vector not in vectors:
            raise InputError(f"'{table}' has no column of vectors '{vector}', only {list(self._types)}")
        self._vector = str(vector)
        self._json = next((c for c, kind in self._types.items() if kind in ("jsonb", "json")), None)
        indexes = self._all("select indexdef from pg_indexes where tablename = %s", [name])
        found = [re.search(r"(vector_\w+_ops)", row[0]) for row in indexes if self._vector in row[0]]
        classes = [one[1] for one in found if one is not None]
        # An index serves one operator alone.
        self._operator = next((_OPERATORS[one] for one in classes if one in _OPERATORS), "<=>")
        version = self._all("select extversion from pg_extension where extname = 'vector'")
        self._iterative = bool(version) and tuple(map(int, version[0][0].split(".")[:2])) >= (0, 8)
        self._columns = [c for c in self._types if c != self._vector]
        self._keys = set(self._columns)
        if self._json is not None:
            first = f"(select * from {self._table} limit 1000) t"
            sample = f"select distinct jsonb_object_keys({quoted(self._json)}::jsonb) from {first}"
            self._keys |= {row[0] for row in self._all(sample)}

    @classmethod
    def open(cls, place: str, collection: str, fields: Fields, options: Mapping[str, str]) -> PostgresStore:
        """Open a database by its URL."""
        psycopg = require("psycopg", "pgvector", "a pgvector table")
        query = "&".join(f"{key}={value}" for key, value in options.items())
        try:
            connection = psycopg.connect(f"postgresql:{place}{'?' if query else ''}{query}", autocommit=True)
        except psycopg.Error as error:
            raise InputError(f"PostgreSQL cannot be reached: {str(error).strip()}") from error
        return cls(connection, collection, fields)

    def search(
        self, question: str, vector: NDArray[np.float32], k: int, where: Mapping[str, Any] | None
    ) -> Sequence[Passage]:
        """Return the nearest rows; under a filter an approximate index is searched until there are enough."""
        condition, values = self._filter(where)
        given = "[" + ",".join(map(str, vector.tolist())) + "]"
        distance = f"{quoted(self._vector)} {self._operator} %s::vector"
        text = (
            f"select {self._listed}, {quoted(self._vector)}::text, {distance} from {self._table} {condition} "
            f"order by {distance} limit %s"
        )
        with self._lock, self._connection.transaction():
            cursor = self._connection.cursor()
            cursor.execute(f"set local hnsw.ef_search = {min(max(k, 40), 1000)}")
            if self._iterative:
                cursor.execute("set local hnsw.iterative_scan = strict_order")
                cursor.execute("set local ivfflat.iterative_scan = relaxed_order")
            rows = cursor.execute(text, [given, *values, given, k]).fetchall()
        return kept(self._passage(row[:-1], self._score(row[-1])) for row in rows)

    def by_title(self, names: Sequence[str]) -> Sequence[Passage]:
        """Return the rows with one of these titles."""
        title = self._fields.of("title", self._keys)
        if title is None:
            return []
        condition, values = self._filter({"title": {"in": list(names)}})
        text = f"select {self._listed}, {quoted(self._vector)}::text from {self._table} {condition} limit %s"
        return kept(self._passage(row, None) for row in self._all(text, [*values, 4 * len(names)]))

    def keys(self) -> set[str]:
        """Return the columns, and the keys of the first rows' JSON."""
        return self._keys

    def count(self, where: Mapping[str, Any] | None) -> int:
        """Return how many rows there are."""
        condition, values = self._filter(where)
        return int(self._all(f"select count(*) from {self._table} {condition}", values)[0][0])

    @property
    def _listed(self) -> str:
        return ", ".join(map(quoted, self._columns))

    def _all(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            found: list[Any] = self._connection.execute(text, values).fetchall()
            return found

    def _score(self, distance: float) -> float:
        return {"<=>": 1 - distance, "<#>": -distance, "<->": 1 - distance**2 / 2}[self._operator]

    def _passage(self, row: Sequence[Any], score: float | None) -> Passage | None:
        plain = {
            name: value.isoformat() if hasattr(value, "isoformat") else value
            for name, value in zip(self._columns, row, strict=False)
        }
        return self._fields.passage(plain, plain.get("id"), json.loads(row[-1]), score)

    def _filter(self, where: Mapping[str, Any] | None) -> tuple[str, list[Any]]:
        must, values = [], list[Any]()
        for one in conditions(where):
            field = self._fields.key(one.key, self._keys)
            inner = None
            if field in self._types:
                column = f"{quoted(field)}::text"
            elif self._json is not None:
                column, inner = f"({quoted(self._json)} ->> %s)", f"({quoted(self._json)}::jsonb -> %s)"
            else:
                continue
            name = [] if inner is None else [field]
            if (allowed := values_of(one)) is not None:
                texts = [str(value) for value in allowed]
                is_list = self._types.get(field, "").startswith("_")
                if is_list:
                    must.append(f"{quoted(field)}::text[] && %s")
                    values.append(texts)
                elif self._types.get(field) in _NUMBERS:  # written 5, 5.0 or 5.00
                    must.append(f"{quoted(field)}::float8 = any(%s::float8[])")
                    values.append([value for value in allowed if isinstance(value, float)])
                elif inner is None:
                    must.append(f"{column} = any(%s)")
                    values.append(texts)
                else:  # a value, or one of a list
                    must.append(f"({column} = any(%s) or {inner} ?| %s)")
                    values += [*name, texts, *name, texts]
            elif (bound := bounds_of(one)) is not None:
                if isinstance(bound[1], str):
                    must.append(f'{column} collate "C" {bound[0]} %s')
                    values += [*name, bound[1]]
                else:
                    holds = f"({column})::float8 {bound[0]} %s"
                    must.append(
                        f"case when {column} ~ '{_NUMBER}' then {holds} else {column} is not null end"
                    )
                    values += [*name, *name, float(bound[1]), *name]
        return ("where " + " and ".join(must) if must else ""), values
