"""What the study of robust selection shows besides means: the frontier of three measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mio_rag.evaluation.studies import Column, StudyRun, figure, look, table

Point = tuple[tuple[str, int], list[float], bool]


def _points(run: StudyRun, given: Mapping[str, Any]) -> list[Point]:
    """(Label and budget, means of the measures x, y and z, whether no other is as good in all three)."""
    names = [given[axis] for axis in "xyz"]
    found = [(key, [run.mean(key, name) for name in names]) for key in run.keys(given["rows"])]
    means = [(key, [float(one["mean"]) for one in point if one]) for key, point in found if all(point)]

    def beaten(mine: list[float]) -> bool:
        return any(
            other != mine and all(a >= b for a, b in zip(other, mine, strict=True)) for _, other in means
        )

    return [(key, point, not beaten(point)) for key, point in means]


@table("pareto")
def _pareto_table(run: StudyRun, given: Mapping[str, Any]) -> list[Column]:
    """Three measures, of which more is better, and which systems no other one beats in all of them."""
    points = _points(run, given)
    columns: list[Column] = [
        ("system", [label for (label, _), _, _ in points]),
        ("budget", [str(budget) for (_, budget), _, _ in points]),
    ]
    for place, name in enumerate(given[axis] for axis in "xyz"):
        label, form, scale = look(name)
        columns.append((label, [form.format(scale * means[place]) for _, means, _ in points]))
    return [*columns, ("on the frontier", ["yes" if best else "" for *_, best in points])]


@figure("pareto")
def _pareto_figure(run: StudyRun, given: Mapping[str, Any], axes: Any) -> None:
    """The same points in space; those on the frontier are full, and have names."""
    points = _points(run, given)
    rest = [means for _, means, best in points if not best]
    if rest:
        axes.scatter(*zip(*rest, strict=True), facecolors="none", edgecolors="#999999", label="other systems")
    for number, ((label, budget), means, _) in enumerate((one for one in points if one[2]), start=1):
        axes.scatter(*[[one] for one in means], color="C0", label=f"{number} {label}, {budget}")
        axes.text(*means, f" {number}", fontsize=8)
    for axis in "xyz":
        getattr(axes, f"set_{axis}label")(look(given[axis])[0], fontsize=8)
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.1, 0.5), handlelength=0)
