"""Points of a grid with intervals, the frontier among them, and an operating point by a stated rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.evaluation.statistics import mean_interval
from mio_rag.frontier.dataset import FrontierSettings
from mio_rag.frontier.paths import dominated
from mio_rag.measures import Measure, Use, evidence_measure, frontier_measures, measures

Row = Mapping[str, Any]

_FOLDS = 5


def deciding_measures(points: Sequence[Row]) -> list[Measure]:
    """Return the measures that, with tokens, decide whether a certified setting is on the frontier."""
    evidence = evidence_measure(p["measures"] for p in points)
    return [
        measure
        for measure in frontier_measures(Use.DOMINANCE)
        if (measure is evidence or measure.frontier.use < Use.EVIDENCE)
        and any(measure.name in p["measures"] for p in points)
    ]


def summarize_grid(rows: Sequence[Row], settings: FrontierSettings) -> list[dict[str, Any]]:
    """Return one point for each setting.

    Keys: the setting; n questions, failed (no answer), proven (share of the selections that are optimal, or
    proven not to exist), certified (all of them); measures; front: measures in which no other certified point
    is as good for as few tokens; dominated: whether another certified point is as good in tokens and
    `deciding_measures`, and better in one; None where the point is not certified.
    """
    groups = _groups(rows)
    costs = [m for m in measures("cost") if m.frontier.use >= Use.POINT]
    names = [measure.name for measure in (*frontier_measures(Use.POINT), *costs)]
    points = []
    for setting in settings.grid:
        group = groups[setting.name, setting.budget_tokens]
        proven = [row["status"] in ("optimal", "infeasible") for row in group]
        found = {}
        for name in names:
            values = [float(row[name]) for row in group if row.get(name) is not None]
            if values:
                found[name] = mean_interval(values, settings.seed) | {"n": len(values)}
        points.append(
            {
                "name": setting.name,
                **dataclasses.asdict(setting),
                "n": len(group),
                "failed": sum(bool(row["error"]) for row in group),
                "over_budget": sum(bool(row.get("over_budget")) for row in group),
                "infeasible": sum(row["status"] == "infeasible" for row in group),
                "proven": float(np.mean(proven)),
                "certified": all(proven),
                "measures": found,
            }
        )
    _mark(points)
    return points


def _groups(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], int(row["budget_tokens"])), []).append(row)
    return groups


def _mark(points: list[dict[str, Any]]) -> None:
    """Write `front` and `dominated` into the points; only certified ones take part."""
    proven = [p for p in points if p["certified"]]

    def values(name: str) -> NDArray[np.float64]:
        return np.array([p["measures"].get(name, {}).get("mean", np.nan) for p in proven])

    tokens = -values("tokens_used")
    for point in points:
        point["front"], point["dominated"] = [], None
    for measure in frontier_measures(Use.POINT):
        name, column = measure.name, measure.sign * values(measure.name)
        if not measure.sign or np.isnan(column).all():
            continue
        beaten = dominated(np.column_stack([tokens, column]))
        for point, out, value in zip(proven, beaten, column, strict=True):
            if not out and not np.isnan(value):
                point["front"].append(name)
    if proven:
        columns = [measure.sign * values(measure.name) for measure in deciding_measures(points)]
        for point, out in zip(proven, dominated(np.column_stack([tokens, *columns])), strict=True):
            point["dominated"] = bool(out)


def operating_point(
    rows: Sequence[Row], points: Sequence[Row], settings: FrontierSettings, slack: float = 0.02
) -> dict[str, Any] | None:
    """Choose the certified setting with the fewest mean tokens whose evidence is within `slack` of the best.

    Five-fold cross-validation over questions measures the rule (held_out; None for fewer than five labelled
    questions); figures of the chosen point itself are optimistic. None without labels or a certified point.
    """
    evidence = evidence_measure(p["measures"] for p in points)
    allowed = [(p["name"], int(p["budget_tokens"])) for p in points if p["certified"]]
    if evidence is None or not allowed:
        return None
    name, groups = evidence.name, _groups(rows)
    # Every setting has the same questions, in the same order.
    labelled = [k for k, row in enumerate(groups[allowed[0]]) if row.get(name) is not None]
    gain, cost = (
        np.array([[float(groups[key][k][column]) for k in labelled] for key in allowed])
        for column in (name, "tokens_used")
    )

    def pick(part: NDArray[np.bool_]) -> int:
        means, tokens = gain[:, part].mean(axis=1), cost[:, part].mean(axis=1)
        return int(np.argmin(np.where(means >= means.max() - slack - 1e-12, tokens, np.inf)))

    n = len(labelled)
    best = pick(np.ones(n, dtype=bool))
    found: dict[str, Any] = {
        "rule": f"fewest mean tokens with evidence found within {slack:g} of the best certified setting",
        "name": allowed[best][0],
        "budget_tokens": allowed[best][1],
        "coverage": name,
        "held_out": None,
        "picks": [],
    }
    if n < _FOLDS:
        return found
    fold = np.random.default_rng(settings.seed).permutation(n) % _FOLDS
    chosen = np.array([pick(fold != f) for f in range(_FOLDS)])
    at = chosen[fold], np.arange(n)
    found["held_out"] = {
        name: mean_interval(gain[at].tolist(), settings.seed),
        "tokens_used": mean_interval(cost[at].tolist(), settings.seed),
        "n": n,
    }
    found["picks"] = [
        {"name": allowed[k][0], "budget_tokens": allowed[k][1], "folds": int((chosen == k).sum())}
        for k in dict.fromkeys(chosen.tolist())
    ]
    return found
