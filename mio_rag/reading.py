"""Strict reading of JSON and TOML from outside, so that no value is lost and nothing fails later.

Besides invalid JSON and TOML, these are refused: duplicate keys of an object (the first value would be lost),
NaN and Infinity, numbers beyond float64, halves of surrogate pairs, and very deep nesting. A byte order mark
is accepted.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from mio_rag.errors import InputError

__all__ = ["parse_json", "parse_toml", "read_json", "read_text", "read_toml"]

_DEEPEST = 64  # levels; what reads the values calls itself for each
_LONG_NUMBER = re.compile(r"\d{300}|[eE]\+?\d{3}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # as it may be written; or half of a whole one
_SHOWN = 40  # characters of what is wrong


def read_text(source: str | Path, kind: type[InputError] = InputError) -> str:
    """The UTF-8 text of a file, or of stdin for "-", without a byte order mark.

    Parameters
    ----------
    kind : type
        Of the error.

    Raises
    ------
    InputError
        If it cannot be read, or is not UTF-8.
    """
    if source == "-" and sys.stdin is None:
        raise kind("stdin cannot be read: it is closed; give a file, or pipe something in")
    try:
        # The bytes of stdin: JSON and TOML are UTF-8 whatever the terminal speaks.
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise kind(f"'{source}' cannot be read: {reason}") from error


def read_json(path: str | Path, kind: type[InputError] = InputError) -> Any:
    """What the JSON file (or stdin, for "-") holds; see `read_text` and `parse_json`."""
    return parse_json(read_text(path, kind), f"'{path}'", kind)


def read_toml(path: str | Path, kind: type[InputError] = InputError) -> dict[str, Any]:
    """What the TOML file holds; see `read_text` and `parse_toml`."""
    return parse_toml(read_text(path, kind), f"'{path}'", kind)


def parse_json(
    text: str | bytes, name: str, kind: type[InputError] = InputError, *, own: bool = False
) -> Any:
    """What a JSON text holds.

    Parameters
    ----------
    name : str
        What is read, to begin the message.
    kind : type
        Of the error.
    own : bool
        mio-rag wrote it, with what was said to it: NaN, Infinity and halves of surrogate pairs are taken.

    Raises
    ------
    InputError
        If it is not JSON, or not what this module takes. Where it is no JSON the `json.JSONDecodeError` is
        the cause.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        text = text.removeprefix("\ufeff")
        # A call for every number would take as long as reading them: only where one could be too large.
        checks: dict[str, Any] = {}
        if _LONG_NUMBER.search(text):
            checks = {"parse_int": _whole, "parse_float": _real}
        constant = None if own else _constant
        data = json.loads(text, object_pairs_hook=_object, parse_constant=constant, **checks)
        _check(data, not own and bool(_HALF.search(text)))
    except RecursionError as error:
        raise kind(f"{name} is nested more than {_DEEPEST} levels deep") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if isinstance(text, str) and "\n" in text else ""
        raise kind(f"{name} is not valid JSON: {line}column {error.colno}: {error.msg}") from error
    except ValueError as error:
        raise kind(f"{name} is not valid JSON: {error}") from error
    return data


def parse_toml(text: str, name: str, kind: type[InputError] = InputError) -> dict[str, Any]:
    """What a TOML text holds; Infinity is among its values, NaN is refused.

    Parameters and what is raised are those of `parse_json`.
    """
    try:
        data = tomllib.loads(text.removeprefix("\ufeff"), parse_float=_toml_real)
        _check(data, halves=False)  # which TOML does not take
        _check_whole(data)
    except RecursionError as error:
        raise kind(f"{name} is nested more than {_DEEPEST} levels deep") from error
    except ValueError as error:
        long = not isinstance(error, tomllib.TOMLDecodeError) and "conversion" in str(error)
        reason = "a whole number in it has thousands of digits" if long else error
        raise kind(f"{name} is not a readable TOML file ({reason})") from error
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {_short(twice)} is given twice in one object: keep one")
    return data


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number: write a finite one, or null where that is allowed")


def _whole(text: str) -> int:
    _real(text)
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(_too_large(text))
    return value


def _toml_real(text: str) -> float:
    value = float(text)
    if math.isnan(value):
        raise ValueError("nan is not allowed: write a finite number")
    return value if "inf" in text else _real(text)


def _too_large(text: str) -> str:
    shown = text if len(text) <= _SHOWN else f"{text[:12]}... ({len(text)} characters)"
    return f"the number {shown} is larger than any that can be computed with (about 1.8e308)"


def _short(text: str) -> str:
    """For a message: with escapes for what a terminal would act on."""
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _check(data: Any, halves: bool) -> None:
    """Go down level by level; where `halves` are possible, look at every string too.

    Raises
    ------
    RecursionError
        If there are too many levels.
    ValueError
        For half of a surrogate pair.
    """
    level: list[Any] = [data]
    for _ in range(_DEEPEST + 1):
        if halves:
            _check_strings(level)
        containers = [value for value in level if type(value) in (dict, list)]
        if not containers:
            return
        level = [
            part
            for value in containers
            for part in (value.values() if type(value) is dict else value)
            if halves or type(part) in (dict, list)
        ]
    raise RecursionError


def _check_strings(level: list[Any]) -> None:
    for value in level:
        for text in value if type(value) is dict else (value,):
            if type(text) is str and _SURROGATE.search(text):
                raise ValueError(
                    f"{_short(text)} contains half of a surrogate pair, which is not a character"
                )


def _check_whole(value: Any) -> None:
    """Raise `ValueError` for a whole number beyond float64; TOML's reader takes any."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_whole(part)
    elif isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError(_too_large(f"of {value.bit_length()} bits"))
