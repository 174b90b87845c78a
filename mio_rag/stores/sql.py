"""Tables asked in SQL: PostgreSQL with pgvector, SQLite with sqlite-vec."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, MissingExtraError, choose, install, require
from mio_rag.stores.rows import Fields, bounds_of, conditions, kept, quoted, values_of
from mio_rag.types import Passage

_NUMBERS = ("int2", "int4", "int8", "float4", "float8", "numeric")
_NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,2})?\s*$"
#: Class of an index -> operator that it serves.
_OPERATORS = {"vector_cosine_ops": "<=>", "vector_l2_ops": "<->", "vector_ip_ops": "<#>"}


class _SqlStore:
    """What tables that are asked in SQL have in common."""

    _hole, _cast = "?", ""  # how a value is marked in a query, and how a vector is read
    _connection: Any
    _table: str
    _lock: Lock
    _fields: Fields
    _vector: str
    _columns: list[str]
    _keys: set[str]

    def by_title(self, names: Sequence[str]) -> Sequence[Passage]:
        """Return the rows with one of these titles."""
        if self._fields.of("title", self._keys) is None:
            return []
        condition, values = self._filter({"title": {"in": list(names)}})
        text = f"select {self._listed} from {self._table} {condition} limit {self._hole}"
        return kept(self._passage(row, None) for row in self._all(text, [*values, 4 * len(names)]))

    def keys(self) -> set[str]:
        """Return the columns, and the keys of the first rows' JSON where a column holds such."""
        return self._keys

    def count(self, where: Mapping[str, Any] | None) -> int:
        """Return how many rows there are."""
        condition, values = self._filter(where)
        return int(self._all(f"select count(*) from {self._table} {condition}", values)[0][0])

    @property
    def _listed(self) -> str:
        return ", ".join([*map(quoted, self._columns), quoted(self._vector) + self._cast])

    def _all(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            found: list[Any] = self._connection.execute(text, list(values)).fetchall()
            return found

    def _filter(self, where: Mapping[str, Any] | None) -> tuple[str, list[Any]]:
        raise NotImplementedError

    def _passage(self, row: Sequence[Any], score: float | None) -> Passage | None:
        raise NotImplementedError


class PostgresStore(_SqlStore):
    """A table with a pgvector column, as a `mio_rag.Store`.

    connection: a psycopg connection, in autocommit mode.
    """

    _hole, _cast = "%s", "::text"

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
            f"select {self._listed}, {distance} from {self._table} {condition} order by {distance} limit %s"
        )
        with self._lock, self._connection.transaction():
            cursor = self._connection.cursor()
            cursor.execute(f"set local hnsw.ef_search = {min(max(k, 40), 1000)}")
            if self._iterative:
                cursor.execute("set local hnsw.iterative_scan = strict_order")
                cursor.execute("set local ivfflat.iterative_scan = relaxed_order")
            rows = cursor.execute(text, [given, *values, given, k]).fetchall()
        return kept(self._passage(row[:-1], self._score(row[-1])) for row in rows)

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


_MOST = 4096  # hits that sqlite-vec returns


class SqliteStore(_SqlStore):
    """A vec0 table of sqlite-vec, as a `mio_rag.Store`.

    connection: of `sqlite3` or `pysqlite3`, with sqlite-vec loaded, for use from several threads.
    """

    def __init__(self, connection: Any, table: str, fields: Fields | None = None) -> None:
        self._connection, self._table, self._lock = connection, quoted(table), Lock()
        self._fields = fields or Fields()
        made = "select name, sql from sqlite_master where sql like '%using vec0%'"
        tables: dict[str, str] = dict(self._all(made))
        if table not in tables:
            plain = self._all("select 1 from sqlite_master where name = ?", [table])
            what = (
                f"'{table}' is no vec0 table of sqlite-vec"
                if plain
                else f"the file has no vec0 table '{table}'"
            )
            hint = choose(table, tables) if tables else "create virtual table ... using vec0(...) makes one"
            raise InputError(f"{what}: {hint}")
        vectors = dict(re.findall(r"(\w+)\s+float\[\d+\]([^,]*)", tables[table], re.IGNORECASE))
        vector = self._fields.vector or next(iter(vectors), None)
        if vector not in vectors:
            raise InputError(f"'{table}' has no column of floats '{vector}': {choose(vector, vectors)}")
        self._vector = str(vector)
        metric = re.search(r"distance_metric\s*=\s*(\w+)", vectors[self._vector], re.IGNORECASE)
        self._metric = "l2" if metric is None else metric[1].lower()
        columns = [row[1] for row in self._all(f"pragma table_info({self._table})")]
        hidden = {"distance", "k", self._vector, table}
        self._columns = ["rowid", *(name for name in columns if name not in (*hidden, "rowid"))]
        self._keys = set(self._columns) - {"rowid"}

    @classmethod
    def open(cls, place: str, collection: str, fields: Fields, options: Mapping[str, str]) -> SqliteStore:
        """Open a file."""
        if not Path(place).is_file():
            raise InputError(f"{place} does not exist: give sqlite:FILE/TABLE")
        return cls(connect(place), collection, fields)

    def search(
        self, question: str, vector: NDArray[np.float32], k: int, where: Mapping[str, Any] | None
    ) -> Sequence[Passage]:
        """Return the nearest rows, 4,096 at most."""
        condition, values = self._filter(where)
        inside = f" and rowid in (select rowid from {self._table} {condition})" if condition else ""
        text = (
            f"select {self._listed}, distance from {self._table} "
            f"where {quoted(self._vector)} match ? and k = ?{inside} order by distance"
        )
        rows = self._all(text, [np.asarray(vector, np.float32).tobytes(), min(k, _MOST), *values])
        return kept(self._passage(row[:-1], self._score(row[-1])) for row in rows)

    def _score(self, distance: float | None) -> float | None:
        """The cosine distance from a row of zeros is unknown."""
        if distance is None:
            return None
        return 1 - distance if self._metric == "cosine" else 1 - distance**2 / 2

    def _passage(self, row: Sequence[Any], score: float | None) -> Passage | None:
        plain = {name: value for name, value in zip(self._columns, row, strict=False) if name != "rowid"}
        return self._fields.passage(plain, row[0], np.frombuffer(row[-1], np.float32), score)

    def _filter(self, where: Mapping[str, Any] | None) -> tuple[str, list[Any]]:
        must, values = [], list[Any]()
        for one in conditions(where):
            field = self._fields.key(one.key, self._columns)
            if field not in self._columns:
                continue
            if (allowed := values_of(one)) is not None:
                must.append(f"{quoted(field)} in ({', '.join('?' * len(allowed))})")
                values += allowed
            elif (bound := bounds_of(one)) is not None:
                other = "<>" if isinstance(bound[1], str) else "="  # texts and numbers are compared by us
                must.append(f"({quoted(field)} {bound[0]} ? or typeof({quoted(field)}) {other} 'text')")
                values.append(bound[1])
        return ("where " + " and ".join(must) if must else ""), values


def connect(path: str | Path) -> Any:
    """Open a file with sqlite-vec, by pysqlite3 where this Python cannot load extensions.

    Raises `MissingExtraError` if neither can.
    """
    vec = require("sqlite_vec", "sqlite", "a table of sqlite-vec")
    for name in ("sqlite3", "pysqlite3"):
        try:
            module = __import__(name)
            connection = module.connect(str(path), check_same_thread=False)
            connection.enable_load_extension(True)
        except (ImportError, AttributeError):
            continue
        vec.load(connection)
        return connection
    raise MissingExtraError(
        f"this Python cannot load extensions of SQLite: {install('sqlite')} where pysqlite3-binary exists, "
        "or use another Python"
    )
