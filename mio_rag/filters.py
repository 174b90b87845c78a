"""Filters: which passages a question may be answered from, by their source, date, section and metadata.

    {"tenant": "a", "date": {">=": "2026-01-01"}, "source": "travel*"}      Python, JSON
    tenant=a   date>=2026-01-01   source=travel*   tag=in=x,y               command line

All conditions must hold. Texts match as glob patterns; a folder's name as a source stands for all below it. A
passage without the key meets no condition on it but "!="; a note says how many documents, of those that meet
the other conditions, are left out for that. A day, month or year is all of it: date<=2026 and date=2026 keep
what is from 2026.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from fnmatch import translate
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.documents.dates import period_of
from mio_rag.errors import InputError, choose
from mio_rag.types import Passage, check_date, moment

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in")
#: Keys that every passage has.
KEYS = ("source", "title", "date", "page", "section", "type")
_EXPRESSION = re.compile(r"\s*([^=<>!]+?)\s*(=in=|!=|<=|>=|=|<|>)(.*)", re.DOTALL)
_SHOWN = 12  # known keys in a message
_NAMED = 8  # documents in a note


class Condition(NamedTuple):
    """One condition: a key, an operator of `OPERATORS`, and a value, or several for "in"."""

    key: str
    operator: str
    value: Any

    def holds(self, found: Any) -> bool:
        """Whether a value of a passage meets the condition; of a list one entry must, under "!=" all."""
        if isinstance(found, (list, tuple, set, frozenset)):
            return (all if self.operator == "!=" else any)(self.holds(one) for one in found)
        if self.operator == "in":
            return any(self._same(found, one) for one in self.value)
        if self.operator in ("=", "!="):
            return self._same(found, self.value) is (self.operator == "=")
        one, other = _comparable(found, self.value, self.key)
        if one is None:
            return False
        dated = isinstance(one, str) and not check_date(one) and not check_date(other)
        below, same = bool(one < other), bool(one.startswith(other) if dated else one == other)
        return {"<": below, "<=": below or same, ">": not (below or same), ">=": not below}[self.operator]

    def _same(self, found: Any, wanted: Any) -> bool:
        in_folder = self.key == "source" and isinstance(found, str) and isinstance(wanted, str)
        if self.key == "date" and (day := _moment(wanted)):
            return found is not None and _moment(found).startswith(day)
        return _equal(found, wanted) or (in_folder and _like(found, f"{wanted.rstrip('/')}/*"))


class Filter:
    """Conditions on passages; without any, every passage meets them.

    where: key -> value, or key -> {operator: value}; or expressions as on the command line.

    Raises `InputError` with every condition that is none.
    """

    def __init__(self, where: Mapping[str, Any] | Sequence[str] | str | None = None) -> None:
        if isinstance(where, str):
            where = [where]
        given = () if where is None else where
        problems: list[str] = []
        found: list[Condition] = []
        if isinstance(given, Mapping):
            for key, value in given.items():
                found += _from_mapping(str(key), value, problems)
        elif isinstance(given, Iterable):
            for text in given:
                found += _from_text(text, problems)
        else:
            problems.append(f"{given!r} is no filter: give a mapping, or conditions such as KEY=VALUE")
        if problems:
            raise InputError(problems)
        self.conditions = tuple(found)

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def __and__(self, other: Filter) -> Filter:
        """Both filters together: what is locked to a key of a service stays so."""
        both = Filter()
        both.conditions = (*self.conditions, *other.conditions)
        return both

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the conditions as plain data for JSON."""
        return [one._asdict() for one in self.conditions]

    def to_mapping(self) -> dict[str, Any]:
        """Return the conditions for stores: key -> value, or key -> {operator: value}; of two conditions with
        the same key and operator one is left out.
        """
        found: dict[str, Any] = {}
        for one in self.conditions:
            found.setdefault(one.key, {})[one.operator] = one.value
        return {key: each["="] if list(each) == ["="] else each for key, each in found.items()}

    def holds(self, passage: Passage) -> bool:
        """Return whether a passage meets all conditions."""
        return all(one.holds(value_of(passage, one.key)) for one in self.conditions)

    def rows(self, passages: Iterable[Passage]) -> NDArray[np.int64]:
        """Return the places of the passages that meet all conditions.

        Raises `InputError` if a condition names a key that no passage has: a misspelt one would find nothing.
        """
        return self.applied(passages)[0]

    def applied(self, passages: Iterable[Passage]) -> tuple[NDArray[np.int64], tuple[Lacking, ...]]:
        """Return the same places, and the keys that some documents lack; errors as `rows`."""
        keys = dict.fromkeys(one.key for one in self.conditions)
        known: set[str] = set(KEYS)
        # Documents that meet the conditions on other keys, in order, and whether they have this one.
        having: dict[str, dict[str, bool]] = {key: {} for key in keys}
        kept = []
        for i, passage in enumerate(passages):
            known.update(passage.metadata)
            document = passage.source or passage.id
            values = {key: value_of(passage, key) for key in keys}
            failed = {one.key for one in self.conditions if not one.holds(values[one.key])}
            for key, value in values.items():
                if failed <= {key}:
                    having[key][document] = having[key].get(document, False) or value is not None
            if not failed:
                kept.append(i)
        if strange := sorted(keys.keys() - known):
            hint = choose(strange[0], sorted(known)[:_SHOWN])
            raise InputError([f"no passage has '{key}' to filter by: {hint}" for key in strange])
        leave_out = {one.key: None for one in self.conditions if not one.holds(None)}
        without = {key: [name for name, has in having[key].items() if not has] for key in leave_out}
        lacking = tuple(
            Lacking(key, len(names), len(having[key]), names=tuple(names))
            for key, names in without.items()
            if names
        )
        return np.array(kept, dtype=np.int64), lacking

    def advice(self, sources: Iterable[str]) -> str:
        """Return what to do where no passage of these sources meets the filter, for the end of a message."""
        known = dict.fromkeys(sources)
        folders = {name[:k] for name in known for k, letter in enumerate(name) if letter == "/"}
        for key, operator, value in self.conditions:
            if key != "source" or operator != "=" or not isinstance(value, str):
                continue
            if any(Condition(key, operator, value).holds(name) for name in known):
                continue
            name = value.removesuffix("*").strip("/")
            if any(one.endswith(f"/{name}") for one in known):
                return f"did you mean source=*/{name}?"
            if near := difflib.get_close_matches(name, [*folders, *known], 1):
                return f"did you mean source={near[0]}{'/*' if near[0] in folders else ''}?"
        return "loosen it"


class Lacking(NamedTuple):
    """Documents that a filter leaves out since they lack its key.

    documents, of: how many, among how many.
    names: of them; a note has the first.
    """

    key: str
    documents: int
    of: int
    code: str = "filter_key_missing"
    names: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, str]:
        """Return it as notes of selections are, for JSON."""
        return {"code": self.code, "text": str(self)}

    def __str__(self) -> str:
        have, them = ("has", "it") if self.documents == 1 else ("have", "them")
        rest = self.documents - _NAMED
        named = ", ".join(self.names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
        return (
            f"{self.documents} of {self.of} documents {have} no '{self.key}', so the filter leaves {them} "
            f"out{f': {named}' if self.names else ''} ({self.code})"
        )


class Unread(NamedTuple):
    """A file that could not be read, or a part of it.

    source: as passages have it; path: with the part, for instance "reports/may.pdf, page 3".
    """

    source: str
    path: str
    reason: str


def value_of(passage: Passage, key: str) -> Any:
    """Return what a passage has under a key; None where it has nothing."""
    if key == "type" and key not in passage.metadata:
        name = passage.source.rpartition("/")[2]
        return name.rpartition(".")[2].lower() if "." in name else None
    if key == "section" and passage.units:  # small sections may stand in one passage
        joined = (name for unit in passage.units for name in unit.section)
        return tuple(dict.fromkeys([*passage.section, *joined])) or passage.metadata.get(key)
    if key in KEYS and key != "type":
        return getattr(passage, key) or passage.metadata.get(key)
    return passage.metadata.get(key)


def _from_mapping(key: str, value: Any, problems: list[str]) -> list[Condition]:
    if not isinstance(value, Mapping):
        several = isinstance(value, (list, tuple, set))
        return [
            _checked(Condition(key, "in", tuple(value)) if several else Condition(key, "=", value), problems)
        ]
    if not value:
        problems.append(f"filter on '{key}' has no condition: give a value, or {{operator: value}}")
    found = []
    for operator, bound in value.items():
        if operator not in OPERATORS:
            problems.append(
                f"filter on '{key}': '{operator}' is no operator: {choose(str(operator), OPERATORS)}"
            )
        elif operator == "in" and not isinstance(bound, (list, tuple, set)):
            problems.append(f"filter on '{key}': 'in' takes a list of values, got {bound!r}")
        else:
            found.append(
                _checked(Condition(key, operator, tuple(bound) if operator == "in" else bound), problems)
            )
    return found


def _from_text(text: str, problems: list[str]) -> list[Condition]:
    match = _EXPRESSION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        problems.append(f"'{text}' is no condition: write KEY=VALUE, KEY>=VALUE or KEY=in=A,B")
        return []
    key, operator, value = match[1], match[2], match[3].strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    if operator == "=in=":
        return [_checked(Condition(key, "in", tuple(part.strip() for part in value.split(","))), problems)]
    return [_checked(Condition(key, operator, value), problems)]


def _checked(one: Condition, problems: list[str]) -> Condition:
    if one.key != "date" or (isinstance(one.value, str) and "*" in one.value):
        return one
    days = [value if _moment(value) else period_of(str(value), year=True) for value in _values(one)]
    problems += [
        f"filter on 'date': {value!r} is no date: write YYYY, YYYY-MM or YYYY-MM-DD"
        for value, day in zip(_values(one), days, strict=True)
        if not day
    ]
    return one._replace(value=tuple(days) if one.operator == "in" else days[0])


def _values(one: Condition) -> Sequence[Any]:
    return one.value if one.operator == "in" else (one.value,)


@lru_cache(maxsize=256)  # fnmatch's own holds 32,768 of them: clients of a service choose how large
def _pattern(wanted: str) -> re.Pattern[str]:
    return re.compile(translate(wanted))


def _like(found: str, wanted: str) -> bool:
    return _pattern(wanted).match(found) is not None


def _equal(found: Any, wanted: Any) -> bool:
    if found is None:
        return wanted is None
    if isinstance(found, str) and isinstance(wanted, str):
        return found == wanted or _like(found, wanted)
    if isinstance(found, bool) or isinstance(wanted, bool):
        return str(found).lower() == str(wanted).lower()
    one, other = _number(found), _number(wanted)
    return one == other if one is not None and other is not None else str(found) == str(wanted)


def _comparable(found: Any, wanted: Any, key: str) -> tuple[Any, Any]:
    """Both as numbers, as moments, or as texts; (None, None) where they cannot be compared."""
    if found is None:
        return None, None
    numbers = _number(found), _number(wanted)
    if None not in numbers and key != "date":
        return numbers
    dates = _moment(found), _moment(wanted)
    if all(dates):
        return dates
    return (found, wanted) if isinstance(found, str) and isinstance(wanted, str) else (None, None)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if number != number else number  # NaN is no number


def _moment(value: Any) -> str:
    text = value.isoformat() if isinstance(value, (date, datetime)) else str(value)
    return "" if check_date(text) else moment(text)
