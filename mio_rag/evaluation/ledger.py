"""The ledger: one row for every question, method and budget, on disk as soon as it is known.

While a run goes on, rows are appended to ``rows.jsonl``; at the end they are written to ``ledger.parquet``.
A row cut short by a crash is dropped on resume, and so are failed rows, which are then tried again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mio_rag.errors import DataError, InputError, require
from mio_rag.files import replaced, write_atomically
from mio_rag.measures import find_measure, measures

__all__ = ["Key", "Ledger", "columns"]

Key = tuple[str, str, int]  # question_id, method, budget_tokens

_TEXT = (
    "question_id",
    "dataset",
    "question",
    "question_type",
    "method",
    "answer",
    "status",
    "solver",
    "error",
    "error_kind",
    "ended",
)
_INTEGER = ("budget_tokens", "pool_size")  # and every measure that is a whole number
_LISTS = ("selected_ids", "gold_ids", "answers")

_FIRST = (
    "question_id",
    "method",
    "budget_tokens",
    "selected_ids",
    "tokens_used",
    "prompt_tokens",
    "completion_tokens",
    "answer",
    "status",
    "objective",
    "bound",
    "gap",
    "solver",
    "solve_seconds",
    "error",
)


def columns() -> tuple[str, ...]:
    """Columns of every ledger, null where a run has no such value; a row may have more."""
    return (*_FIRST, *(measure.name for measure in measures() if measure.taken_with(())))


def _writable(text: str | None) -> str | None:
    """Replace halves of surrogate pairs by "?": a generator may return them, and UTF-8 cannot store them."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode()


def _form(name: str, values: Sequence[Any]) -> str:
    """How a column is kept: one that is known in one way, another one by what it holds."""
    for form, names in (("text", _TEXT), ("integer", _INTEGER), ("list", _LISTS), ("json", ("decisions",))):
        if name in names:
            return form
    if (measure := find_measure(name)) is not None:
        return "integer" if measure.whole else "number"
    held = [value for value in values if value is not None]
    if all(isinstance(value, (int, float)) for value in held):
        return "number"
    return "text" if all(isinstance(value, str) for value in held) else "json"


class Ledger:
    """Rows of a run in a folder.

    Parameters
    ----------
    folder : Path
        Exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "rows.jsonl"
        self.rows: list[dict[str, Any]] = []
        self.appended = 0  # since it was opened

    @staticmethod
    def key(row: Mapping[str, Any]) -> Key:
        """What makes a row unique."""
        return (row["question_id"], row["method"], int(row["budget_tokens"]))

    def read(self) -> dict[Key, dict[str, Any]]:
        """The rows on disk, failed ones among them; of those with the same key the last that did not fail.

        Raises
        ------
        DataError
            If there is a line that is no row, and was not just cut short.
        """
        found: dict[Key, dict[str, Any]] = {}
        if self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, start=1):
                try:
                    row = json.loads(line)
                    key = self.key(row)
                except (ValueError, TypeError, KeyError) as error:
                    if number == len(lines):  # the write that was cut short
                        continue
                    raise DataError(
                        f"{self.path}, line {number} is not a row ({error}): start a new run"
                    ) from error
                if not row.get("error") or key not in found:
                    found[key] = row
        return found

    def recover(self) -> None:
        """Take up the rows of an interrupted run, but for failed ones."""
        self.rows = [row for row in self.read().values() if not row.get("error")]
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows; they are on disk when this returns."""
        self.appended += len(rows)  # before they are: an interrupt may come once they are written
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.appended -= len(rows)
            raise InputError(f"the ledger '{self.path}' could not be written: {error}") from error
        self.rows += rows

    def write_parquet(self) -> Path:
        """Write ``ledger.parquet`` with typed columns; undefined measures are null."""
        arrow: Any = require("pyarrow", "evaluation", "the ledger")
        parquet: Any = require("pyarrow.parquet", "evaluation", "the ledger")
        names = list(dict.fromkeys([*columns(), *(name for row in self.rows for name in row)]))
        kinds = {
            "text": arrow.string(),
            "json": arrow.string(),
            "integer": arrow.int64(),
            "list": arrow.list_(arrow.string()),
            "number": arrow.float64(),
        }
        table = []
        for name in names:
            values = [row.get(name) for row in self.rows]
            form = _form(name, values)
            if form == "json":
                values = [None if v is None else json.dumps(v) for v in values]
            elif form == "text":
                values = [_writable(v) for v in values]
            table.append(arrow.array(values, kinds[form]))
        path = self.folder / "ledger.parquet"
        with replaced(path) as partial:
            parquet.write_table(arrow.table(table, names=names), partial)
        return path
