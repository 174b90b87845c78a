"""Odd values and mutated text, which all kinds of input are drawn from."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Rng = np.random.Generator

#: Numbers at which something ends: a range, an exact integer, a tolerance, a type.
NUMBERS: tuple[Any, ...] = (
    0, -0.0, 1, -1, 2, 0.5, 0.1, 1 / 3, 1e-6, -1e-6, 1.000001, 1e-9, 5e-324, 1e-308, 1e-300, 1e-150, 1e150,
    1e300, -1e300, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf"), 2**31, 2**53, 2**53 + 1,
    2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**12, 10**13, 10**30, 10**400, True, False,
)  # fmt: skip

#: Text that printing, rendering, counting or encoding may stumble over.
TEXTS: tuple[str, ...] = (
    "", " ", "a", "plain words", "\x00", "\x1b[31mred\x1b[0m", "\u2028", "\u202eright to left", "\ufeff",
    "\ud800", "\udc80 half", "e\u0301", "\U0001f469\u200d\U0001f52c", "\u4e2d\u6587", "[bold]", "[/]", "{}",
    "%s", "a\r\nb", "\t", "\u200b", "nan", "1", "None", "x" * 3000, "..", "/", "auto", "'", '"', "\\",
)  # fmt: skip

_DTYPES = (
    "float16", "float32", "float64", "longdouble", "int8", "uint8", "int64", "uint64", "bool", "complex128",
    "object", "U8", "S8", "datetime64[s]",
)  # fmt: skip
_HOSTILE = ("__len__", "__iter__", "__getitem__", "__array__", "__bool__", "__eq__", "__float__", "__str__")


class Hostile(Exception):
    """What an object of the caller's raises when it is touched."""


@dataclass(frozen=True)
class Odd:
    """A Python object that is no plain data: what it is made of, and how."""

    how: str
    of: Any = None

    def build(self) -> Any:
        """The object."""
        kind, _, name = self.how.partition(":")
        of = built(self.of)
        if kind == "hostile":
            return _hostile(name, of)
        if kind == "array":
            try:
                with warnings.catch_warnings(action="ignore"):
                    return np.array(of).astype(name)
            except (TypeError, ValueError, OverflowError):  # not of these values
                return np.array(of, dtype=object)
        return _MADE[kind](of)


_MADE: dict[str, Callable[[Any], Any]] = {
    "generator": lambda of: (item for item in _items(of)),
    "set": lambda of: {repr(item) for item in _items(of)},
    "tuple": lambda of: tuple(_items(of)),
    "deque": lambda of: collections.deque(_items(of)),
    "mapping": lambda of: dict.fromkeys(map(str, _items(of)), 1),
    "keys": lambda of: dict.fromkeys(map(str, _items(of))).keys(),
    "bytes": lambda of: repr(of).encode(),
    "scalar": lambda of: np.float32(1.5),
    "zero-d": lambda of: np.array(1.5),
    "masked": lambda of: np.ma.masked_equal([1.0, 2.0, 3.0], 2.0),
    "range": lambda of: range(len(_items(of))),
    "decimal": lambda of: decimal.Decimal("1.5"),
    "fraction": lambda of: fractions.Fraction(3, 2),
    "complex": lambda of: 1 + 2j,
    "date": lambda of: datetime.date(2000, 1, 1),
    "object": lambda of: object(),
    "type": lambda of: str,
    "function": lambda of: built,
    "ellipsis": lambda of: ...,
}


def _items(of: Any) -> list[Any]:
    return list(of) if isinstance(of, (list, tuple)) else [of]


def _hostile(method: str, of: Any) -> Any:
    """A list that raises when one of its methods is called."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Hostile(method)

    return type("HostileList", (list,), {method: refuse, "__hash__": object.__hash__})(_items(of))


def built(given: Any) -> Any:
    """Plain data with the objects in it made."""
    if isinstance(given, Odd):
        return given.build()
    if isinstance(given, dict):
        return {key: built(part) for key, part in given.items()}
    return [built(part) for part in given] if isinstance(given, list) else given


def chance(rng: Rng, share: float) -> bool:
    """True so often."""
    return bool(rng.random() < share)


def pick(rng: Rng, among: Any) -> Any:
    """One of a sequence, as it is: `Generator.choice` would make an array of it."""
    return among[int(rng.integers(len(among)))]


def number(rng: Rng) -> Any:
    """A number of any size, or an odd one."""
    if chance(rng, 0.4):
        return pick(rng, NUMBERS)
    size = float(10.0 ** rng.uniform(-300, 300)) if chance(rng, 0.5) else float(rng.normal(0, 3))
    return -size if chance(rng, 0.3) else size


def value(rng: Rng, plain: bool = False, depth: int = 2) -> Any:
    """Anything; `plain` leaves out what JSON cannot write."""
    kind = int(rng.integers(6 if plain else 9))
    if kind == 0:
        return None
    if kind == 1:
        return number(rng)
    if kind == 2:
        return pick(rng, TEXTS)
    if kind in (3, 4):
        return [value(rng, plain, depth - 1) for _ in range(int(rng.integers(4)))] if depth else []
    if kind == 5:
        return {pick(rng, TEXTS): value(rng, plain, depth - 1)} if depth else {}
    return placed(rng, value(rng, True, depth - 1)) if depth else Odd("object")


def placed(rng: Rng, of: Any) -> Odd:
    """These values in a container or array of another sort."""
    kind = int(rng.integers(3))
    if kind == 0:
        return Odd(f"array:{pick(rng, _DTYPES)}", of)
    return Odd(f"hostile:{pick(rng, _HOSTILE)}" if kind == 1 else pick(rng, list(_MADE)), of)


def scaled(rng: Rng, given: Any) -> Any:
    """Numbers in nested lists, each or all at another scale."""
    own, factor = chance(rng, 0.5), float(10.0 ** rng.integers(-300, 301))
    widest = int(pick(rng, [3, 9, 30, 300]))

    def changed(part: Any) -> Any:
        if isinstance(part, list):
            return [changed(p) for p in part]
        if not isinstance(part, (int, float)) or isinstance(part, bool):
            return part
        return part * float(10.0 ** rng.uniform(-widest, widest)) if own else part * factor

    return changed(given)


_TOKENS = (
    "NaN", "Infinity", "-Infinity", "null", "true", "1e999", "-1e999", "1e-999", "1" * 400, "9" * 5000,
    "0x10", "01", "+1", "1_000", '"\\ud800"', "[", "]", "{", "}", ",", ":", '"', "\\", "\n", "\x00",
    "\ufeff", "\x1b", "inf", "nan", "= ", "#", "[[x]]", "1979-05-27", "''", '"""', "\ud800", "\u2028",
)  # fmt: skip


def mutated_text(rng: Rng, text: str) -> str:
    """Text with one to three changes."""
    for _ in range(int(rng.integers(1, 4))):
        i, j = sorted(int(k) for k in rng.integers(0, len(text) + 1, 2))
        kind = int(rng.integers(9))
        if kind == 0:
            text = text[:i]
        elif kind == 1:
            text = text[:i] + text[min(j, i + 20) :]
        elif kind == 2:
            text = text[:j] + text[i:]
        elif kind in (3, 4):
            text = text[:i] + pick(rng, _TOKENS) + text[i:]
        elif kind in (5, 6):
            text = _with_another_number(rng, text)
        elif kind == 7 and chance(rng, 0.2):
            depth = int(pick(rng, [10, 200, 5000, 100_000]))
            text = text[:i] + "[" * depth + text[i:] + "]" * depth
        elif text:
            text = text[:i] + chr(int(rng.integers(1, 0x250))) + text[i + 1 :]
    return "\ufeff" + text if chance(rng, 0.03) else text


def _with_another_number(rng: Rng, text: str) -> str:
    found = list(re.finditer(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", text))
    if not found:
        return text
    where = pick(rng, found)
    return text[: where.start()] + json.dumps(number(rng)) + text[where.end() :]


def mutated_bytes(rng: Rng, data: bytes) -> bytes:
    """Bytes with one to three changes."""
    for _ in range(int(rng.integers(1, 4))):
        i = int(rng.integers(len(data) + 1))
        kind = int(rng.integers(4))
        if kind == 0:
            data = data[:i]
        elif kind == 1:
            data = data[:i] + bytes(rng.integers(0, 256, 4, dtype=np.uint8)) + data[i:]
        elif kind == 2:
            data = data[:i] + data[i + int(rng.integers(1, 9)) :]
        elif data:
            data = data[:i] + bytes([int(rng.integers(256))]) + data[i + 1 :]
    return data
