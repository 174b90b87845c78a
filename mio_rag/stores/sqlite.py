"""SQLite with sqlite-vec: a vec0 table in a file."""

from __future__ import annotations

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

_MOST = 4096  # hits that sqlite-vec returns


class SqliteStore:
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
            f"select {self._listed}, {quoted(self._vector)}, distance from {self._table} "
            f"where {quoted(self._vector)} match ? and k = ?{inside} order by distance"
        )
        rows = self._all(text, [np.asarray(vector, np.float32).tobytes(), min(k, _MOST), *values])
        return kept(self._passage(row[:-1], self._score(row[-1])) for row in rows)

    def by_title(self, names: Sequence[str]) -> Sequence[Passage]:
        """Return the rows with one of these titles."""
        if self._fields.of("title", self._columns) is None:
            return []
        condition, values = self._filter({"title": {"in": list(names)}})
        text = f"select {self._listed}, {quoted(self._vector)} from {self._table} {condition} limit ?"
        return kept(self._passage(row, None) for row in self._all(text, [*values, 4 * len(names)]))

    def keys(self) -> set[str]:
        """Return the columns."""
        return set(self._columns) - {"rowid"}

    def count(self, where: Mapping[str, Any] | None) -> int:
        """Return how many rows there are."""
        condition, values = self._filter(where)
        return int(self._all(f"select count(*) from {self._table} {condition}", values)[0][0])

    @property
    def _listed(self) -> str:
        return ", ".join(map(quoted, self._columns))

    def _all(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            found: list[Any] = self._connection.execute(text, list(values)).fetchall()
            return found

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
