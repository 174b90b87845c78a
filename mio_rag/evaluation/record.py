"""What a run rests on, in its run.json, and the folder that it has to itself."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.ledger import Key, Ledger
from mio_rag.files import is_vacant, locked, replaced, write_atomically
from mio_rag.generation.protocol import Generator, content_of
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.solvers.capabilities import versions_of

__all__ = ["TRACES", "check_folder", "contents", "environment", "free_folder", "now", "opened_run"]

#: File of a run's folder that holds the traces of its controllers.
TRACES = "traces.jsonl"

_RECORD = "run.json"

#: Packages whose versions the run record names.
_RECORDED = (
    "mio-rag",
    "numpy",
    "scipy",
    "highspy",
    "ortools",
    "faiss-cpu",
    "bm25s",
    "sentence-transformers",
    "transformers",
    "torch",
    "xllamacpp",
    "ir-measures",
)


def now() -> str:
    """The time, for a record."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    """Versions and hardware, as every record of a run names them."""
    return {
        "versions": {"python": platform.python_version(), **versions_of(_RECORDED)},
        "hardware": {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.system()},
    }


def contents(indexes: Iterable[CorpusIndex | None], generator: Generator | None) -> dict[str, Any]:
    """Digests of the indexes and of the model: files of one name may hold something else the next time."""
    told = None if generator is None else content_of(generator)
    return {
        "index_sha256": [index.digest() for index in indexes if index is not None],
        "generator_sha256": None if told is None else hashlib.sha256(told.encode()).hexdigest(),
    }


#: What must be equal for rows of two runs to stand in one ledger.
_IDENTITY = (
    "data_sha256",
    "generator",
    "embedder_fingerprint",
    "generator_sha256",
    "index_sha256",
    "pool",
    "mode",
    "link_hops",
    "seed",
    "settings",
)


def check_folder(folder: Path, resume: bool = False) -> None:
    """Raise `InputError` if a run must not be written there: it holds something else."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"'{folder}' is a file: choose a folder")
    if not is_vacant(folder):
        if not (folder / _RECORD).is_file():
            raise InputError(f"'{folder}' is not empty and holds no run: choose a new folder")
        if not resume:
            raise InputError(
                f"'{folder}' already holds a run: continue with --resume, or choose a new folder"
            )


def free_folder(named: Path, resume: bool = False) -> Path:
    """The first vacant folder of ``named``, ``named-2`` and so on; to resume, the last that is not vacant."""
    folder, last, count = named, named, 1
    while not is_vacant(folder):
        last, count = folder, count + 1
        folder = named.with_name(f"{named.name}-{count}")
    return last if resume else folder


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of what differs between the records of two runs and must not; settings by their own names."""
    changed = [key for key in _IDENTITY if key != "settings" and before.get(key) != now[key]]
    old, new = before.get("settings") or {}, now["settings"]
    changed += [key for key in new if old.get(key) != new[key]]
    old, new = before.get("controller_files") or {}, now.get("controller_files", {})
    return changed + [f"content of {name}" for name in new if name in old and old[name] != new[name]]


@contextmanager
def opened_run(folder: Path, run: dict[str, Any], asked: Collection[Key], resume: bool) -> Iterator[Ledger]:
    """The ledger of a new run, or of the interrupted one that it goes on with; no other may join in.

    A run that fails before its first row leaves the folder as it was: it is nothing to go on with.

    Parameters
    ----------
    asked : collection of Key
        The rows that the run is to have in the end.

    Raises
    ------
    InputError
        If the folder holds something else, or rows that are not asked for, another run is at work there, or
        the record there differs in what rows depend on.
    """
    check_folder(folder, resume)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with locked(folder):
            check_folder(folder, resume)  # another one may have been faster
            ledger = Ledger(folder)
            before = {path: _held(path) for path in (folder / _RECORD, ledger.path)}
            traced = _size(folder / TRACES)
            try:
                _begin(ledger, run, asked)
                yield ledger
            except BaseException:
                if not ledger.appended:
                    _restore(before)
                    _cut(folder / TRACES, traced)
                raise
    finally:
        with suppress(OSError):  # the first that holds something: all around it do, too
            for place in made:
                place.rmdir()


def _held(path: Path) -> bytes | None:
    """What is in a file; None: there is none."""
    return path.read_bytes() if path.is_file() else None


def _restore(before: Mapping[Path, bytes | None]) -> None:
    """Put back what files held; on a full disk what stopped the run must be told, and not that this fails."""
    with suppress(OSError, InputError):
        for path, content in before.items():
            if content is None:
                path.unlink(missing_ok=True)
            elif content != _held(path):
                with replaced(path) as partial:
                    partial.write_bytes(content)


def _size(path: Path) -> int | None:
    """Bytes of a file; None: there is none."""
    return path.stat().st_size if path.is_file() else None


def _cut(path: Path, size: int | None) -> None:
    """Take off what a file of lines has grown by; None: all of it."""
    with suppress(OSError):
        if size is None:
            path.unlink(missing_ok=True)
        elif _size(path) != size:
            os.truncate(path, size)


def _begin(ledger: Ledger, run: dict[str, Any], asked: Collection[Key]) -> None:
    """Write the record of a run, and take up the rows that are there."""
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
    if more := _not_asked(ledger.read(), asked):
        raise InputError(
            f"the run in '{folder}' also has {more}, which ledger and report would lose: ask for all of it "
            "(--limit, --methods, --controllers, --budget-tokens), or choose a new folder"
        )
    write_atomically(record, json.dumps(run, indent=1))
    ledger.recover()


def _not_asked(held: Iterable[Key], asked: Collection[Key]) -> str:
    """What rows there are beside those that are asked for; empty where there are none."""
    rest = set(held) - set(asked)
    questions, methods, budgets = ({key[k] for key in rest} - {key[k] for key in asked} for k in range(3))
    told = [f"{len(questions)} more question{'s' * (len(questions) > 1)}"] if questions else []
    told += [f"the method {name}" for name in sorted(methods, key=str)]
    return ", ".join(told + [f"the budget {budget}" for budget in sorted(budgets, key=int)])
