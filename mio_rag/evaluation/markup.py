"""Values as text of pages: cleaned, escaped for HTML or for a script element, numbers with their units."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mio_rag.types import clean


def plain(value: Any) -> Any:
    """Return plain JSON data: no NaN, no infinity, no numpy type, no half of a surrogate pair."""
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return plain(str(value))


def shortened(text: str) -> str:
    """Return the first 400 characters of a text."""
    return text if len(text) <= 400 else text[:399] + "\u2026"


def script_json(value: Any) -> str:
    """Return JSON on one line that is safe inside a script element, whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def escape(value: Any) -> str:
    """Return any value as HTML text, also for a quoted attribute."""
    return html.escape(str(value), quote=True)


def flat(value: Any) -> str:
    """Return JSON data for readers: strings without quotes, lists separated by commas."""
    if isinstance(value, list):
        return ", ".join(map(flat, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def number(value: float | None, kind: str = "rate", signed: bool = False) -> str:
    """Format a number of a kind (rate, count, number, seconds): a dash for None, a true minus sign."""
    if value is None:
        return "–"
    sign = "+" if signed else ""
    if kind == "seconds" and abs(value) < 1:
        shown = f"{value * 1e3:{sign}.3g} ms"
    else:
        digits = {"rate": ".3f", "count": ",.0f", "number": ".2f", "seconds": ".2f"}[kind]
        shown = f"{value:{sign}{digits}}" + (" s" if kind == "seconds" else "")
    if not any(digit in shown for digit in "123456789"):
        shown = shown.lstrip("+-")
    return shown.replace("-", "−").replace(",", "\u202f")


def between(record: Mapping[str, Any], kind: str = "rate", signed: bool = False) -> str:
    """Format the interval of a record with "low" and "high" (None: unbounded); "" where it has none."""
    low, high = record.get("low"), record.get("high")
    if low is None:
        return ""
    if high is None:
        return f"{number(low, kind, signed)} up, unbounded"
    return f"{number(low, kind, signed)} to {number(high, kind, signed)}"


def p_value(value: float | None) -> str:
    """Format a p-value with three decimals; a small one never reads as zero."""
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def percent(value: float | None) -> str:
    """Format a gap in percent; a small one never reads as zero."""
    if value is None:
        return "–"
    return "< 0.01 %" if 0 < value < 1e-4 else f"{value:.2%}".replace("%", " %")


def plural(count: int, noun: str) -> str:
    """Return a count and its noun."""
    return f"{number(count, 'count')} {noun}{'' if count == 1 else 's'}"
