"""Rows of questions -> means and paired differences with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.stability.study import Row
from benchmarks.stability.versions import VERSIONS
from mio_rag.evaluation.statistics import mean_interval, ratio_interval

_MEANS = ("tokens", "passages", "recall")
#: What is compared with the nominal selection of the same tokens; larger is better in all.
AGAINST_MATCHED = (
    "recall",
    *(f"{measure} {version}" for version in VERSIONS for measure in ("jaccard", "recall")),
    "certified",
)


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of one set.

    Returns
    -------
    dict
        `pool`: what pools are like. `cells`: for each relevance, rule and budget the means of the robust and
        the nominal selections, at the same budget and matched; `price` (nominal value given up) and `gain`
        (certified worst case won), shares of the nominal value, at the same budget; `matched_gain`: matched;
        `against_matched`: paired differences between robust and nominal, matched.
    """
    pool = {key: float(np.mean([row["pool"][key] for row in rows])) for key in rows[0]["pool"]}
    cells = {key: _cell([row[key] for row in rows]) for key in rows[0] if key != "pool"}
    return {"pool": pool, "cells": cells}


def _cell(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    column = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    nominal = column["nominal: value"]
    won = column["robust: certified"] - column["nominal: certified"]
    differences = {
        key: column[f"robust matched: {key}"] - column[f"nominal matched: {key}"] for key in AGAINST_MATCHED
    }
    shown = [*_MEANS, *AGAINST_MATCHED]
    return {
        **{
            name: {key: float(column[f"{name}: {key}"].mean()) for key in shown if f"{name}: {key}" in column}
            for name in ("robust", "nominal", "robust matched", "nominal matched")
        },
        "price": ratio_interval((nominal - column["robust: value"]).tolist(), nominal.tolist()),
        "gain": ratio_interval(won.tolist(), nominal.tolist()),
        "matched_gain": ratio_interval(differences["certified"].tolist(), nominal.tolist()),
        "against_matched": {key: mean_interval(values.tolist()) for key, values in differences.items()},
        "gap_mean": float(column["robust: gap"].mean()),
        "stopped": float(column["robust matched: stopped"].mean()),
    }


def verdict(cell: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What a robust cell clearly gains and clearly loses against nominal selections of as many tokens."""
    found = cell["against_matched"].items()
    better = [name for name, entry in found if entry["low"] > 1e-9]
    worse = [name for name, entry in found if entry["high"] < -1e-9]
    return better, worse
