"""What adapters of stores share: rows as passages, and the parts of a filter that a store can express."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from mio_rag.documents.dates import day_in
from mio_rag.errors import InputError, Notice, choose
from mio_rag.filters import Condition, Filter
from mio_rag.types import Passage, check_date

#: Names under which stores keep what a passage has, the likeliest first.
NAMES = {
    "text": ("text", "page_content", "content", "document", "chunk", "body"),
    "title": ("title", "heading"),
    "source": ("source", "file_name", "file_path", "filename", "url", "uri", "path"),
    "date": ("date", "published", "updated", "modified"),
    "id": ("passage_id", "id"),  # doc_id is a whole document's
    "vector": ("vector", "embedding", "embeddings"),
}
#: Names under which splitters and `Passage.to_dict` keep where a text begins, and what it is made of.
_STARTS = ("start", "start_index", "start_char_idx", "split_idx_start")
_UNITS = ("lines", "units")
#: Names under which loaders keep a page, counted from 1; those of "page" count from 0, too.
_PAGES = ("page_label", "page_number")
_NESTED = ("metadata", "meta", "payload")


@dataclass(frozen=True)
class Fields:
    """Names of a store's fields that hold what passages have; None: the first of `NAMES` that is there."""

    text: str | None = None
    title: str | None = None
    source: str | None = None
    date: str | None = None
    id: str | None = None
    vector: str | None = None

    def of(self, what: str, known: Iterable[str]) -> str | None:
        """Return the field for something, among those of a store; `InputError` for one that it lacks."""
        names, given = list(known), getattr(self, what)
        if given is not None:
            if given not in names:
                raise InputError(f"the store has no field '{given}' for {what}: {choose(given, names)}")
            return str(given)
        return next((name for name in NAMES[what] if name in names), None)

    def key(self, key: str, known: Iterable[str]) -> str:
        """Return the field that a key of a filter names."""
        return (self.of(key, known) or key) if key in ("title", "source", "date") else key

    def passage(
        self, row: Mapping[str, Any], number: Any, vector: Any = None, score: float | None = None
    ) -> Passage | None:
        """Return a row of a store as a passage, None without a text; the rest of its fields is metadata."""
        row = flat(row)
        text = self.of("text", row)
        if text is not None and not str(row[text] or "").strip():
            return None
        if text is None or not isinstance(row[text], str):
            known = [name for name in row if isinstance(row[name], str)]
            raise InputError(f"no field of the store holds the text: name one (text=) of {', '.join(known)}")
        named = {what: self.of(what, row) for what in ("title", "source", "date")}
        used = {what: name for what, name in named.items() if name is not None}
        identity = self.of("id", row)
        own: dict[str, Any] = {what: str(row[name]) for what, name in used.items() if row[name] is not None}
        if (given := own.get("date")) is not None and check_date(given):
            own["date"] = _day(given)
            if given and not own["date"]:
                warnings.warn(
                    f"dates of the store as '{given[:40]}' are not read, so that nobody knows which of two "
                    "versions is newer: write them as YYYY-MM-DD",
                    Notice,
                    stacklevel=2,
                )
        one = Passage(
            str(row[identity] if identity is not None and row[identity] else number),
            row[text],
            **own,
            metadata={
                name: value for name, value in row.items() if name not in (text, *used.values(), *_UNITS)
            },
            vector=None if vector is None else np.asarray(vector, dtype=np.float32),
            score=score,
            page=next((int(p) for name in _PAGES if (p := str(row.get(name))).isdecimal() and int(p)), None),
        )
        return _placed(one, row)


def _placed(one: Passage, row: Mapping[str, Any]) -> Passage:
    """A passage with its place, and the units and headings of an index, where the row has them."""
    starts = (row.get(name) for name in _STARTS)
    start = next((k for k in starts if isinstance(k, int) and not isinstance(k, bool) and k >= 0), None)
    if start is None or not one.source:
        return one
    given = {name: row[name] for name in (*_UNITS, "section", "page") if row.get(name)}
    try:
        plain = {k: json.loads(v) if isinstance(v, str) and v[:1] == "[" else v for k, v in given.items()}
        if "units" not in plain:  # others number pages from 0, or mean other sections
            return replace(one, start=start)
        read = Passage.from_dict(
            {"id": one.id, "text": one.text, "source": one.source, "start": start, **plain}
        )
        named = {name: getattr(read, name) for name in ("lines", "units", "section", "page")}
        return replace(one, start=start, **named)
    except (InputError, TypeError, ValueError):
        return one


def kept(found: Iterable[Passage | None]) -> list[Passage]:
    """Return the passages among rows of a store; a `Notice` tells of rows without a text."""
    rows = list(found)
    passages = [one for one in rows if one is not None]
    if len(passages) < len(rows):
        warnings.warn(
            "the store holds rows whose text is blank: they are left out", Notice, stacklevel=2
        )  # as often as Python shows one warning
    return passages


def _day(given: str) -> str:
    """A day in another form than ISO 8601, or in seconds or milliseconds since 1970; blank for none."""
    if re.fullmatch(r"\d{9,10}(?:\d{3})?(?:\.\d+)?", given):
        seconds = float(given) / (1 if len(given.split(".")[0]) <= 10 else 1000)
        return datetime.fromtimestamp(seconds, UTC).date().isoformat()
    return day_in(given, whole=True)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its nested metadata, and nodes of LlamaIndex, laid open."""
    found = {name: value for name, value in row.items() if name not in (*_NESTED, "_node_content")}
    for name in _NESTED:
        inner = row.get(name)
        if isinstance(inner, str) and inner[:1] == "{":
            inner = json.loads(inner)
        if isinstance(inner, Mapping):
            found = {**inner, **found}
        elif inner is not None:
            found[name] = inner
    if isinstance(node := row.get("_node_content"), str):
        inner = json.loads(node)
        found = {"text": inner.get("text", ""), **inner.get("metadata", {}), **found}
    return found


def values_of(condition: Condition) -> list[Any] | None:
    """Return the values that a condition allows, in every type that a store may keep them in; None: many.

    A store that keeps only rows with one of them leaves out none that meets the condition.
    """
    if condition.operator not in ("=", "in"):
        return None
    found: list[Any] = []
    for value in condition.value if condition.operator == "in" else (condition.value,):
        if value is None or isinstance(value, bool) or str(value).lower() in ("true", "false"):
            return None
        if isinstance(value, str) and any(mark in value for mark in "*?["):
            return None
        if condition.key == "date" and len(str(value)) < len("2026-05-01"):
            return None
        found.append(str(value))
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        found += [number, *([int(number)] if number.is_integer() else [])]
    return found


def bounds_of(condition: Condition) -> tuple[str, Any] | None:
    """Return "<=" or ">=", and a number or day that whatever meets the condition keeps to; else None."""
    if condition.operator not in ("<", "<=", ">", ">="):
        return None
    operator = condition.operator[0] + "="
    value = condition.value
    if not isinstance(value, (date, str)):
        return operator, int(value) if float(value).is_integer() else value  # whole columns take no others
    text = value.isoformat() if isinstance(value, date) else value
    if condition.key != "date":  # whose years are no numbers
        try:
            return operator, int(number) if (number := float(text)).is_integer() else number
        except ValueError:
            pass
    if check_date(text) or len(text) < 10:
        return None
    day = datetime.fromisoformat(text[:10]) + timedelta(days=2 if operator == "<=" else -2)  # time zones
    return operator, day.date().isoformat()


def text_keys(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the keys that hold texts in some row, which an engine does not compare with numbers."""
    return {name for row in rows for name, value in row.items() if isinstance(value, str)}


def conditions(where: Mapping[str, Any] | None) -> Sequence[Condition]:
    """Return the conditions of a filter as a store gets it."""
    return Filter(where).conditions


def quoted(name: str) -> str:
    """Return a name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any) -> str:
    """Return a value as SQL takes it."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
