"""Reading files that others published: rows with their places, and every row that does not fit named."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mio_rag.corpora.dataset import LeftOut
from mio_rag.errors import DataError, InputError
from mio_rag.reading import parse_json
from mio_rag.types import Passage, Question

__all__ = [
    "Found",
    "Paragraphs",
    "converted",
    "json_lines",
    "json_rows",
    "table_rows",
    "take",
    "text_of",
    "texts",
    "words",
]

_SHOWN = 10  # problems listed before "and N more"
_KINDS = {str: "text", list: "a list", dict: "an object", bool: "true or false"}

_T = TypeVar("_T")
_Made = TypeVar("_Made")

#: A row, and where it stands: "dev.json, row 3".
Row = tuple[str, Any]


@dataclass(frozen=True)
class Found:
    """What a published file holds.

    Parameters
    ----------
    passages : tuple of Passage
        Empty where the set comes without any.
    left_out : tuple of LeftOut
        Rows and files that the set itself has damaged, and why each is missing.
    """

    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
    left_out: tuple[LeftOut, ...] = ()


class Paragraphs:
    """Paragraphs that questions bring with them, each once.

    Parameters
    ----------
    name : str
        Of the set: ids begin with it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._by_text: dict[tuple[str, str], Passage] = {}

    def enter(self, title: str, text: str) -> str:
        """The id of a paragraph."""
        key = (title, text)
        if key not in self._by_text:
            number = f"{self._name}-{len(self._by_text):06d}"
            self._by_text[key] = Passage(number, text, title=title, source=title)
        return self._by_text[key].id

    @property
    def all(self) -> tuple[Passage, ...]:
        """In the order in which they were met."""
        return tuple(self._by_text.values())


def text_of(path: Path) -> str:
    """The text of a file, which may be packed with gzip.

    Raises
    ------
    DataError
        If it cannot be read as UTF-8.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from error


def json_rows(path: Path, key: str = "") -> list[Row]:
    """The rows of a file that is one JSON list, or has one under a key."""
    content = parse_json(text_of(path), f"'{path}'", DataError)
    rows = content.get(key) if key and isinstance(content, dict) else None if key else content
    if not isinstance(rows, list):
        expected = f'an object with a list "{key}"' if key else "a list of questions"
        raise DataError(f"'{path}' holds no such set: expected {expected}")
    return [(f"{path.name}, row {number}", row) for number, row in enumerate(rows, start=1)]


def json_lines(path: Path) -> Iterator[Row]:
    """The rows of a file with one JSON value a line; what is no JSON comes as the `InputError`."""
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if line.strip():
            place = f"{path.name}, line {number}"
            try:
                yield place, parse_json(line, "the line")
            except InputError as error:
                yield place, error


def table_rows(path: Path, delimiter: str, needed: Collection[str]) -> Iterator[Row]:
    """The rows of a table with a head, by the names of its columns.

    Raises
    ------
    DataError
        If columns are missing that the set has, or it is no table.
    """
    reader = csv.DictReader(io.StringIO(text_of(path), newline=""), delimiter=delimiter, strict=True)
    try:
        if missing := [name for name in needed if name not in (reader.fieldnames or ())]:
            raise DataError(
                f"'{path}' has no column {', '.join(missing)}: expected a table with the columns "
                f"{', '.join(needed)}, found {', '.join((reader.fieldnames or ())[:8]) or 'nothing'}"
            )
        for row in reader:
            yield f"{path.name}, line {reader.line_num}", row
    except csv.Error as error:
        raise DataError(f"'{path}', line {reader.line_num} is no line of a table: {error}") from error


def converted(rows: Iterable[Row], convert: Callable[[Mapping[str, Any]], _Made], layout: str) -> list[_Made]:
    """What the rows become.

    Parameters
    ----------
    layout : str
        What a row looks like, for the message about rows that look otherwise.

    Raises
    ------
    DataError
        With every row that does not fit; or if there are none.
    """
    made: list[_Made] = []
    problems: list[str] = []
    count = 0
    for place, row in rows:
        count += 1
        try:
            if isinstance(row, InputError):
                raise row
            if not isinstance(row, dict):
                raise InputError(f"expected a JSON object, found {type(row).__name__}")
            made.append(convert(row))
        except InputError as error:
            problems += [f"{place}: {problem}" for problem in error.problems]
    if not count:
        raise DataError(f"the file holds no questions: expected {layout}")
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise DataError([*problems[:_SHOWN], *more, f"expected {layout}"])
    return made


def take(row: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    """The value under a key.

    Raises
    ------
    InputError
        If there is none, or it is of another kind.
    """
    value = row.get(key)
    if not isinstance(value, kind):
        said = "missing" if value is None else f"not {_KINDS.get(kind, kind.__name__)}"
        raise InputError(f"'{key}' is {said}")
    return value


def texts(row: Mapping[str, Any], key: str) -> list[str]:
    """The list of texts under a key; empty where there is no key."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InputError(f"'{key}' is not a list of texts")
    return value


def words(text: str) -> str:
    """The words of a text in lower case, a blank around each: what one text has in common with another."""
    return " ".join(("", *re.findall(r"[^\W_]+", text.casefold()), ""))
