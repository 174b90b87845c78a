"""The folder of a run: its record, its rows, and a lock for one run at a time.

Rows are appended to ``rows.jsonl`` during a run and written to ``ledger.parquet`` at its end. On resume, a
row that a crash cut short is dropped, and failed rows are tried again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError, require
from mio_rag.formulations.numbers import plural
from mio_rag.generation.protocol import Generator, content_of
from mio_rag.measures import find_measure, measures
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.settings import RetrievalSettings
from mio_rag.solvers.capabilities import versions_of
from mio_rag.storage import is_vacant, locked, replaced, write_atomically
from mio_rag.types import GenerationError, clean

#: File of a run's folder with the traces of its controllers.
TRACES = "traces.jsonl"
_RECORD = "run.json"
_ABORT_AFTER = 5

Key = tuple[str, str, int]  # question_id, method, budget_tokens

#: Packages whose versions the run record names.
_RECORDED = (
    "mio-rag", "numpy", "scipy", "highspy", "ortools", "faiss-cpu", "sentence-transformers",
    "transformers", "torch", "xllamacpp", "ir-measures",
)  # fmt: skip

#: What must be equal for rows of two runs to stand in one ledger.
_IDENTITY = (
    "data_sha256", "generator", "embedder_fingerprint", "generator_sha256", "index_sha256", "pool", "mode",
    "link_hops", "seed",
)  # fmt: skip

_FIRST = (
    "question_id", "method", "budget_tokens", "selected_ids", "tokens_used", "prompt_tokens",
    "completion_tokens", "answer", "status", "objective", "bound", "gap", "solver", "solve_seconds", "error",
)  # fmt: skip
_TEXTS = (
    "question_id", "dataset", "question", "question_type", "method", "answer", "status", "solver", "error",
    "error_kind", "ended",
)  # fmt: skip
_LISTS = ("selected_ids", "gold_ids", "answers")
#: Column -> its type in ledger.parquet; of other columns measure or values decide.
_TYPES: dict[str, str] = {
    **dict.fromkeys(_TEXTS, "string"), **dict.fromkeys(_LISTS, "list"),
    "budget_tokens": "int64", "pool_size": "int64", "decisions": "json",
}  # fmt: skip


def columns() -> tuple[str, ...]:
    """Return the columns of every ledger; null where a run has no such value. A row may have more."""
    return (*_FIRST, *(measure.name for measure in measures() if measure.taken_with(())))


class Ledger:
    """The rows of a run, one for each question, method and budget.

    folder: an existing folder.
    record: written to run.json before the first row is added; a run that fails earlier changes no file.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any] | None = None) -> None:
        self.folder, self.record, self.path = folder, record, folder / "rows.jsonl"
        self.rows: list[dict[str, Any]] = []
        self.appended = 0  # since it was opened

    @staticmethod
    def key(row: Mapping[str, Any]) -> Key:
        """Return what makes a row unique."""
        return (row["question_id"], row["method"], int(row["budget_tokens"]))

    def read(self) -> dict[Key, dict[str, Any]]:
        """Return the rows on disk, failed ones too; of equal keys the last that did not fail.

        Raises `DataError` if a line is no row, except for a last one that was cut short.
        """
        found: dict[Key, dict[str, Any]] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                key = self.key(row)
            except (ValueError, TypeError, KeyError) as error:
                if number == len(lines):
                    continue
                raise DataError(
                    f"{self.path}, line {number} is not a row ({error}): start a new run"
                ) from error
            if not row.get("error") or key not in found:
                found[key] = row
        return found

    def recover(self) -> None:
        """Load the rows of an interrupted run, except failed ones."""
        self.rows = [row for row in self.read().values() if not row.get("error")]

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows; they are on disk when this returns."""
        if not self.appended and self.record is not None:
            write_atomically(self.folder / _RECORD, json.dumps(self.record, indent=1))
            write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self.appended += len(rows)  # first: an interrupt may come as soon as they are written
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.appended -= len(rows)
            raise InputError(f"the ledger '{self.path}' could not be written: {error}") from error
        self.rows += rows

    def fill(self, found: Iterable[Sequence[dict[str, Any]]], is_stuck: Callable[[Any], bool]) -> None:
        """Append the rows of question after question.

        Raises `GenerationError` when five in a row failed altogether: the cause is not the question.
        """
        failing = 0
        for rows in found:
            self.append(rows)
            failing = failing + 1 if is_stuck(rows) else 0
            if failing >= _ABORT_AFTER:
                raise GenerationError(
                    f"{failing} questions in a row failed, the last with: {rows[-1]['error']}. What is "
                    f"finished is kept in '{self.folder}': fix the cause and continue with resume (--resume)"
                )

    def sort(self, asked: Sequence[Key]) -> list[dict[str, Any]]:
        """Order the rows as in an uninterrupted run, on which the resampling of intervals depends."""
        by_key = {self.key(row): row for row in self.rows}
        self.rows = [by_key[key] for key in asked]
        return self.rows

    def write_parquet(self) -> Path:
        """Write ``ledger.parquet`` with typed columns; undefined measures are null."""
        arrow: Any = require("pyarrow", "evaluation", "the ledger")
        parquet: Any = require("pyarrow.parquet", "evaluation", "the ledger")
        names = list(dict.fromkeys([*columns(), *(name for row in self.rows for name in row)]))
        table = [_column(arrow, name, [row.get(name) for row in self.rows]) for name in names]
        path = self.folder / "ledger.parquet"
        with replaced(path) as partial:
            parquet.write_table(arrow.table(table, names=names), partial)
        return path


def _column(arrow: Any, name: str, values: list[Any]) -> Any:
    """Return an Arrow array: typed by its name where the name is known, else by its values."""
    present, measure = [value for value in values if value is not None], find_measure(name)
    kind = "int64" if measure is not None and measure.whole else _TYPES.get(name, "")
    if kind == "list":
        return arrow.array(values, arrow.list_(arrow.string()))
    if kind == "int64":
        return arrow.array(values, arrow.int64())
    if kind == "string" or (not kind and present and all(isinstance(value, str) for value in present)):
        return arrow.array([None if value is None else clean(value) for value in values], arrow.string())
    if not kind and all(isinstance(value, (int, float)) for value in present):
        return arrow.array(values, arrow.float64())
    return arrow.array([None if value is None else json.dumps(value) for value in values], arrow.string())


# The record and the folder ---------------------------------------------------------------------------------


def now() -> str:
    """Return the time in UTC, for a record."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _loaded() -> list[str]:
    """Return the packages that mio-rag can use, with all extras, of which a module is loaded."""
    loaded = {name.lower().replace("sklearn", "scikit_learn") for name in sys.modules}
    with suppress(PackageNotFoundError):
        named = {re.split(r"[^\w.-]", one)[0].lower() for one in requires("mio-rag") or ()}
        return sorted(name for name in named if name.replace("-", "_") in loaded)
    return []


def environment() -> dict[str, Any]:
    """Return versions and hardware, for the record of a run."""
    return {
        "versions": {"python": platform.python_version(), **versions_of((*_RECORDED, *_loaded()))},
        "hardware": {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.system()},
    }


def record_of(
    datasets: Sequence[Dataset],
    indexes: Iterable[CorpusIndex | None],
    generator: Generator | None,
    retrieval: RetrievalSettings,
) -> dict[str, Any]:
    """Describe data, indexes, model and retrieval of a run, by content: a file may change between runs."""
    found = [index for index in indexes if index is not None]
    hashes = [dataset.content_hash() for dataset in datasets]
    named = "\n".join(f"{one.name} {digest}" for one, digest in zip(datasets, hashes, strict=True))
    return {
        "dataset": ", ".join(dataset.name for dataset in datasets),
        "data_sha256": hashes[0] if len(hashes) == 1 else _sha256(named),
        "passages": len({p for dataset in datasets for p in dataset.passages}),
        "generator": None if generator is None else generator.name,
        "generator_sha256": None if generator is None else _sha256(content_of(generator)),
        "embedder": ", ".join(dict.fromkeys(i.embedder.name for i in found)) or None,
        "embedder_fingerprint": ", ".join(dict.fromkeys(i.embedder.fingerprint for i in found)) or None,
        "index_sha256": [index.digest() for index in found],
        "pool": retrieval.pool,
        "mode": retrieval.mode,
        "link_hops": retrieval.link_hops,
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def check_folder(folder: Path, resume: bool = False) -> None:
    """Raise `InputError` unless a run may be written to the folder."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"'{folder}' is a file: choose a folder")
    if is_vacant(folder):
        return
    if not (folder / _RECORD).is_file():
        raise InputError(f"'{folder}' is not empty and holds no run: choose a new folder")
    if not resume:
        raise InputError(f"'{folder}' already holds a run: continue with --resume, or choose a new folder")


def free_folder(named: Path, resume: bool = False) -> Path:
    """Return the first vacant of ``named``, ``named-2`` and so on; to resume, the last that is not vacant."""
    folder, last, count = named, named, 1
    while not is_vacant(folder):
        last, count = folder, count + 1
        folder = named.with_name(f"{named.name}-{count}")
    return last if resume else folder


@contextmanager
def opened_run(folder: Path, run: dict[str, Any], asked: Collection[Key], resume: bool) -> Iterator[Ledger]:
    """Open the ledger of a new run, or of an interrupted one; the folder is locked meanwhile.

    A run that fails before its first row leaves the folder as it was.

    run: the record, written to run.json.
    asked: the rows that the run will have in the end.

    Raises `InputError` if the folder holds something else or more rows, another run works there, or the
    earlier run had other settings.
    """
    check_folder(folder, resume)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    ledger, traces = Ledger(folder, dict(run)), folder / TRACES
    try:
        with locked(folder):
            check_folder(folder, resume)  # another run may have started meanwhile
            traced = traces.stat().st_size if traces.is_file() else 0
            try:
                _begin(ledger, run, asked)
                yield ledger
            except BaseException:
                with suppress(OSError):  # the error that stopped the run is reported
                    if not ledger.appended and not traced:
                        traces.unlink(missing_ok=True)
                    elif not ledger.appended:
                        os.truncate(traces, traced)
                raise
    finally:
        with suppress(OSError):  # stops at the first folder that is not empty
            for place in made:
                place.rmdir()


def _begin(ledger: Ledger, run: dict[str, Any], asked: Collection[Key]) -> None:
    """Load the rows of an interrupted run, if these may join it."""
    folder, record = ledger.folder, ledger.folder / _RECORD
    if record.is_file():
        try:
            before = json.loads(record.read_text(encoding="utf-8"))
            changed = _differences(before, json.loads(json.dumps(run)))
        except (OSError, ValueError, AttributeError) as error:
            raise DataError(f"'{record}' cannot be read ({error}): choose a new folder") from error
        if changed:
            raise InputError(
                f"the run in '{folder}' had another {', '.join(changed)}: its rows cannot be mixed with "
                "these; use the same settings, or a new folder"
            )
    rest = set(ledger.read()) - set(asked)
    if rest:
        questions, methods, budgets = ({k[i] for k in rest} - {k[i] for k in asked} for i in range(3))
        more = [plural(len(questions), "more question")] if questions else []
        more += [f"the method {name}" for name in sorted(methods, key=str)]
        more += [f"the budget {budget}" for budget in sorted(budgets, key=int)]
        raise InputError(
            f"the run in '{folder}' also has {', '.join(more)}, which ledger and report would lose: ask for "
            "all of it (--limit, --methods, --budget), or choose a new folder"
        )
    ledger.recover()


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name what differs between the records of two runs and must not; settings by their own names."""
    old, files = before.get("settings") or {}, before.get("controller_files") or {}
    changed = [key for key in _IDENTITY if before.get(key) != now[key]]
    changed += [key for key, value in now["settings"].items() if old.get(key) != value]
    for name, value in now.get("controller_files", {}).items():
        changed += [f"content of {name}"] * (name in files and files[name] != value)
    return changed
