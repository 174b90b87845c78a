"""Contenders with language models at equal totals, of tokens or of money: means, and paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.composed.language import Asked, Reader
from benchmarks.composed.summary import at_total
from mio_rag.evaluation.statistics import mean_interval

FloatArray = NDArray[np.float64]
Rows = Mapping[Asked, Sequence[Mapping[str, Any]]]

PLAIN = "none (fused)"
EITHER = "either reader"
_MEASURES = ("f1", "complete", "searches", "calls")


def told_of(rows: Rows, readers: Sequence[Reader]) -> dict[str, Any]:
    """Every contender at three totals of tokens, reader by reader; and of dollars, over all readers.

    Totals are what the plain contender spends at each of its limits, in the mean. Where there are several
    readers, money buys whichever had the better F1 on the other sets, set by set: never by the questions that
    are told of.
    """
    told: dict[str, Any] = {}
    for reader in readers:
        mine = {asked: found for asked, found in rows.items() if asked.reader == reader.name}
        totals = _totals(mine, "tokens")
        told[reader.name] = {
            f"{total:.6g}": _beside({
                name: at_total(mine, knobs, total, "tokens", _MEASURES)
                for name, knobs in _by_name(mine).items()
            })
            for total in totals
        }  # fmt: skip
    if len(readers) > 1:
        both = min(map(len, rows.values()))  # questions that all readers were asked: the first
        shared = {asked: found[:both] for asked, found in rows.items()}
        told[EITHER] = {
            f"{total:.4g}": _beside({
                name: _either(knobs, shared, total) for name, knobs in _by_name(shared).items()
            })
            for total in _totals(shared, "dollars")[1::2]
        }  # fmt: skip
    return told


def _by_name(rows: Rows) -> dict[str, list[Asked]]:
    found: dict[str, list[Asked]] = {}
    for asked in rows:
        found.setdefault(asked.contender, []).append(asked)
    return found


def _totals(rows: Rows, cost: str) -> list[float]:
    return sorted(
        float(np.mean([row[cost] for row in found]))
        for asked, found in rows.items()
        if asked.contender == PLAIN
    )


def _either(knobs: Sequence[Asked], rows: Rows, total: float) -> dict[str, FloatArray] | None:
    """At a total of dollars, the reader that did better on the other sets."""
    names = dict.fromkeys(asked.reader for asked in knobs)
    found = {
        name: at_total(rows, [asked for asked in knobs if asked.reader == name], total, "dollars", _MEASURES)
        for name in names
    }
    able = {name: columns for name, columns in found.items() if columns is not None}
    if not able:
        return None
    sets = np.array([row["set"] for row in rows[knobs[0]]])
    picked = {measure: np.zeros(len(sets)) for measure in (*_MEASURES, "dollars")}
    for one in dict.fromkeys(sets):
        here = sets == one
        others = ~here if (~here).any() else here
        best = max(able, key=lambda name: float(able[name]["f1"][others].mean()))
        for measure, column in picked.items():
            column[here] = able[best][measure][here]
    return picked


def _beside(at: Mapping[str, Mapping[str, FloatArray] | None]) -> dict[str, Any]:
    """Means of every contender, with paired differences to the plain one and to all parts together."""
    here: dict[str, Any] = {}
    for name, columns in at.items():
        here[name] = None
        if columns is None:
            continue
        here[name] = {measure: float(column.mean()) for measure, column in columns.items()}
        here[name]["questions"] = len(columns["f1"])
        for measure in ("f1", "complete"):
            for other in (PLAIN, "all"):
                against = at[other]
                if name != other and against is not None:
                    off = (columns[measure] - against[measure]).tolist()
                    here[name][f"{measure} beside {other}"] = mean_interval(off)
    return here


def table_of(told: Mapping[str, Any]) -> str:
    """The summary as text."""
    lines = []
    for who, totals in told.items():
        unit = "dollars" if who == EITHER else "tokens"
        for total, here in totals.items():
            lines.append(f"{who}: {total} {unit} a question, {here[PLAIN]['questions']} questions")
            lines.append(
                f"{'':24}{'F1':>7}{'all evidence':>14}{unit:>11}  beside fused, points: F1, and all evidence"
            )
            for name, one in here.items():
                if one is None:
                    lines.append(f"{name:24}  spends more than that at every setting")
                    continue
                beside = [one.get(f"{measure} beside {PLAIN}") for measure in ("f1", "complete")]
                said = "; ".join(_points(interval) for interval in beside if interval is not None)
                lines.append(f"{name:24}{one['f1']:7.3f}{one['complete']:14.3f}{one[unit]:11.4g}  {said}")
            lines.append("")
    return "\n".join(lines)


def _points(interval: Mapping[str, float]) -> str:
    mean, low, high = (100 * interval[key] for key in ("mean", "low", "high"))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
