"""The questions of a batch: lines of JSON, a Parquet file, or a question set."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mio_rag.batch.job import open_parquet
from mio_rag.corpora.load import load_questions
from mio_rag.errors import DataError, InputError
from mio_rag.reading import parse_json
from mio_rag.types import Question

__all__ = ["read_questions"]

_SHOWN = 20


def read_questions(source: str | Path) -> tuple[Question, ...]:
    """The questions of a file of lines ``{"id": ..., "question": ...}``, of Parquet, or of a question set.

    A line may have ``choices``; without an id its number is one. Columns of a Parquet file are called alike,
    or ``query_id`` for the id.

    Raises
    ------
    DataError
        With every line that is none, or if there are no questions.
    InputError
        If the source cannot be read.
    """
    path = Path(source)
    name = path.name.lower()
    if path.is_file() and name.endswith((".jsonl", ".jsonl.gz", ".parquet")):
        problems: list[str] = []
        rows = _table(path) if name.endswith(".parquet") else _lines(path, problems)
        found = []
        for number, row in rows:
            try:
                found.append(_question(row, number))
            except InputError as error:
                problems += [f"'{path.name}', line {number + 1}: {problem}" for problem in error.problems]
        if problems:
            more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            raise DataError([*problems[:_SHOWN], *more])
        if not found:
            raise DataError(f"'{path}' has no questions")
        return tuple(found)
    if (path / "manifest.json").is_file() and (path / "passages.jsonl").is_file():
        raise InputError(f"'{source}' is an index, not questions: give the questions first, then the index")
    if path.is_file():
        raise InputError(f"'{source}' is not read: questions come in .jsonl, .jsonl.gz or .parquet files")
    return load_questions(source)


def _lines(path: Path, problems: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines):
                if not line.strip():
                    continue
                try:
                    row = parse_json(line, f"'{path.name}', line {number + 1},")
                except InputError as error:
                    problems += error.problems
                    continue
                yield number, row if isinstance(row, Mapping) else {"question": None}
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error


def _table(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with open_parquet(path) as file:
        names = [n for n in ("id", "query_id", "question", "choices") if n in file.schema_arrow.names]
        if "question" not in names:
            raise InputError(
                f"'{path.name}' has no column question: it has {', '.join(file.schema_arrow.names)}"
            )
        number = 0
        for batch in file.iter_batches(1024, columns=names):
            for row in batch.to_pylist():
                yield number, row
                number += 1


def _question(row: Mapping[str, Any], number: int) -> Question:
    text, choices = row.get("question"), row.get("choices") or ()
    identity = row.get("id", row.get("query_id"))
    if not isinstance(text, str):
        raise InputError(f"question is {text!r:.60}: give text")
    if not isinstance(choices, (list, tuple)) or not all(isinstance(choice, str) for choice in choices):
        raise InputError(f"choices are {choices!r:.60}: give a list of texts")
    if identity is not None and not isinstance(identity, (str, int)):
        raise InputError(f"id is {identity!r:.60}: give text")
    return Question(str(number) if identity is None else str(identity), text, choices=tuple(choices))
