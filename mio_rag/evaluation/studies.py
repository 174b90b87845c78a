"""Studies of published systems: what is compared on which measures, as data, and its tables and figures.

A study is a TOML file in `mio_rag/data/studies`; `mio-rag evaluate DATA --study NAME` runs the harness and
makes tables and figures from its ledger. What a mean cannot show is a function that is known by name.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from mio_rag.errors import InputError, choose, require
from mio_rag.evaluation.ledger import TRACES
from mio_rag.evaluation.statistics import compare, mean_interval, ratio_interval
from mio_rag.measures import Measure, find_measure, right
from mio_rag.pictures import label_points, save_figure, set_title
from mio_rag.settings import Settings
from mio_rag.storage import parse_toml, read_text, write_atomically

_FOLDER = Path(__file__).parents[1] / "data" / "studies"
#: Modules with tables and figures that are functions.
_MODULES = ("study_selection", "study_agents", "study_routing")
_NONE = "\u2013"

Rows = Sequence[Mapping[str, Any]]
Column = tuple[str, Sequence[str]]  # heading, cells


# What a study says ------------------------------------------------------------------------------------------


class _Shown(Settings):
    title: str
    rows: tuple[str, ...] = ()
    """Labels of contenders; by default all."""
    given: dict[str, Any] = Field(default_factory=dict)
    """Settings of a function."""

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, data: Any) -> Any:
        own = {key: value for key, value in data.items() if key in cls.model_fields}
        return {**own, "given": {**own.get("given", {}), **{k: v for k, v in data.items() if k not in own}}}


class Table(_Shown):
    """Means of measures with paired differences, or what a function makes."""

    columns: tuple[str, ...] = ()
    """Measures, or other numbers of the ledger."""
    against: str | None = None
    """Label that the others are compared with; by default the baseline of the study. Blank: none."""
    by: str = ""
    """Name of a function."""


class Figure(_Shown):
    """A figure of two measures, or of a function."""

    kind: str = "frontier"
    """frontier, bars, or the name of a function."""
    x: str = "tokens_used"
    """Measure across."""
    y: str = ""
    """Measure upwards."""


class Variant(Settings):
    """Another reader, with which everything runs again."""

    model: str | None = None
    """As --model."""


class Study(Settings):
    """A study."""

    name: str = "study"
    """Name of its file."""
    about: str = ""
    """What is compared, in a sentence."""
    contenders: Annotated[dict[str, str], Field(min_length=1)]
    """Label -> method or policy, as in --methods."""
    baseline: str = ""
    """Label that the others are compared with; by default the first."""
    budgets: tuple[int, ...] = (256, 1024)
    """Token budgets."""
    model: str = "none"
    """The reader; none: selections alone."""
    answer: int = 32
    """Longest answer, in tokens."""
    limit: int | None = None
    """Questions that are asked."""
    learn: Annotated[int, Field(ge=0)] = 0
    """The first questions of the set: for learning, and never asked."""
    measures: tuple[str, ...] = ()
    """As --measure."""
    set: tuple[str, ...] = ()
    """As --set."""
    prepare: tuple[str, ...] = ()
    """Commands that come first: {path}, {learn}, {out}, {model} and {embedder} are filled in, and {encoder}:
    the index at PATH, else the embedder, where questions alone are embedded."""
    variants: dict[str, Variant] = Field(default_factory=lambda: {"": Variant()})
    """Name -> other reader."""
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()

    @model_validator(mode="after")
    def _is_known(self) -> Study:
        functions()
        labels, problems = set(self.labels), list[str]()
        named = [self.reference, *(one for part in (*self.tables, *self.figures) for one in part.rows)]
        named += [one.against for one in self.tables if one.against]
        problems += [f"{one!r} is no contender: {choose(one, labels)}" for one in named if one not in labels]
        problems += [
            f"{what} {by!r} is unknown: {choose(by, known)}"
            for what, by, known in (
                *(("table", one.by, [*_TABLES]) for one in self.tables if one.by),
                *(("figure", one.kind, [*_FIGURES]) for one in self.figures),
            )
            if by not in known
        ]
        if problems:
            raise InputError(list(dict.fromkeys(problems)))
        return self

    @property
    def labels(self) -> list[str]:
        """Labels of all rows."""
        return [labelled(one, variant) for variant in self.variants for one in self.contenders]

    @property
    def reference(self) -> str:
        """Label of the baseline that applies."""
        return self.baseline or self.labels[0]


def labelled(contender: str, variant: str) -> str:
    """Return the label of a contender with a variant."""
    return f"{contender}, {variant}" if variant else contender


def study_names() -> list[str]:
    """Return the names of the studies that ship."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def load_study(name: str) -> Study:
    """Return a study by its name, or of a TOML file; raises `InputError`."""
    path = Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml"
    if not path.is_file():
        raise InputError(f"study '{name}' is unknown: {choose(name, study_names(), more=', or a TOML file')}")
    return Study.from_dict({"name": path.stem, **parse_toml(read_text(path), f"study '{name}'")}, str(name))


# What a study found -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StudyRun:
    """The rows of a study; "method" is the label of the contender.

    rows: of the ledgers of all variants.
    folder: of the run; that of a variant lies in it.
    """

    study: Study
    rows: list[dict[str, Any]]
    folder: Path
    seed: int = 0

    @classmethod
    def of(
        cls, study: Study, ledgers: Mapping[str, Rows], names: Mapping[str, str], folder: Path
    ) -> StudyRun:
        """Gather the rows of all variants.

        names: name in the ledgers -> label.
        """
        rows = [
            {**row, "name": row["method"], "method": labelled(names[row["method"]], variant)}
            for variant, found in ledgers.items()
            for row in found
        ]
        return cls(study, rows, folder)

    @cached_property
    def groups(self) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """(Label, budget) -> its rows, in the order of the study."""
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in self.rows:
            found.setdefault((row["method"], int(row["budget_tokens"])), []).append(row)
        place = {label: k for k, label in enumerate(self.study.labels)}
        return dict(sorted(found.items(), key=lambda one: (one[0][1], place[one[0][0]])))

    def keys(self, labels: Sequence[str] = ()) -> list[tuple[str, int]]:
        """Return labels with budgets; of these labels, else of all."""
        return [key for key in self.groups if not labels or key[0] in labels]

    def mean(self, key: tuple[str, int], name: str) -> dict[str, Any] | None:
        """Return mean, low and high of a column of the ledger; of tokens per correct answer the ratio."""
        rows = self.groups[key]
        if name in _RATIOS:
            asked = [row for row in rows if right(row) is not None]
            tops = [sum(float(row.get(part) or 0) for part in _RATIOS[name]) for row in asked]
            return ratio_interval(tops, [right(row) or 0.0 for row in asked], self.seed) if asked else None
        values = [float(row[name]) for row in rows if row.get(name) is not None]
        return mean_interval(values, self.seed) if values else None

    def differences(
        self, names: Sequence[str], against: str
    ) -> dict[tuple[str, int, str], Mapping[str, Any]]:
        """Return (label, budget, measure) -> paired difference with interval and p-values."""
        values = {
            key: {
                name: {row["question_id"]: float(row[name]) for row in rows if row.get(name) is not None}
                for name in names
            }
            for key, rows in self.groups.items()
        }
        found = compare(values, against, self.seed)
        return {(one["method"], one["budget_tokens"], one["measure"]): one for one in found}

    def traces(self) -> Iterator[dict[str, Any]]:
        """Yield the traces of controllers, as plain data."""
        for file in sorted(self.folder.rglob(TRACES)):
            with file.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)


#: Ratios of sums: tokens over right answers.
_RATIOS = {
    "tokens_per_correct": ("prompt_tokens", "completion_tokens"),
    "retrieved_per_correct": ("tokens_used",),
}


# Tables -----------------------------------------------------------------------------------------------------

TableMaker = Callable[[StudyRun, Mapping[str, Any]], list[Column]]
FigureMaker = Callable[[StudyRun, Mapping[str, Any], Any], None]
_TABLES: dict[str, TableMaker] = {}
_FIGURES: dict[str, FigureMaker] = {}


def table(name: str) -> Callable[[TableMaker], TableMaker]:
    """Make a function known that returns the columns of a table: (run, settings of the table)."""
    return lambda function: _TABLES.setdefault(name, function)


def figure(name: str) -> Callable[[FigureMaker], FigureMaker]:
    """Make a function known that draws: (run, settings of the figure, axes)."""
    return lambda function: _FIGURES.setdefault(name, function)


def functions() -> None:
    """Import the modules that make tables and figures known."""
    for name in _MODULES:
        importlib.import_module(f"mio_rag.evaluation.{name}")


class Made(NamedTuple):
    """A table that was made."""

    title: str
    columns: list[Column]

    def markdown(self) -> str:
        """Return it as Markdown."""
        cells = zip(*(cells for _, cells in self.columns), strict=True)
        lines = [[head for head, _ in self.columns], ["---"] * len(self.columns), *cells]
        return f"### {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def made_tables(run: StudyRun, notes: Sequence[str] = ()) -> list[Made]:
    """Make the tables of a study; write them to its folder, below the notes, as tables.md and tables.json."""
    found = [
        Made(one.title, _TABLES[one.by](run, {"rows": one.rows, **one.given}) if one.by else _means(run, one))
        for one in run.study.tables
    ]
    write_atomically(
        run.folder / "tables.md",
        "\n".join([*(f"{one}\n" for one in notes), *(one.markdown() for one in found)]),
    )
    told = [{"title": one.title, "columns": [[head, list(c)] for head, c in one.columns]} for one in found]
    write_atomically(run.folder / "tables.json", json.dumps(told, indent=1))
    return found


def _means(run: StudyRun, one: Table) -> list[Column]:
    """Columns of means, each with the difference from another contender where there is one."""
    keys, against = run.keys(one.rows), run.study.reference if one.against is None else one.against
    columns: list[Column] = [("system", [label for label, _ in keys])]
    if len({budget for _, budget in keys}) > 1:
        columns.append(("budget", [str(budget) for _, budget in keys]))
    differences = run.differences(one.columns, against) if against else {}
    for name in one.columns:
        label, form, scale = look(name)
        means = [run.mean(key, name) for key in keys]
        if not any(means):
            continue
        columns.append((label, [_NONE if m is None else form.format(scale * m["mean"]) for m in means]))
        if any((*key, name) in differences for key in keys):
            columns.append(
                (f"against {against}", [_difference(differences, key, name, against) for key in keys])
            )
    return columns


def look(name: str) -> tuple[str, str, float]:
    """Return heading, format and scale of a measure."""
    if name == "retrieved_per_correct":
        return "retrieved tokens per right answer", "{:.0f}", 1.0
    measure = find_measure(name)
    if measure is None:
        return name.replace("_", " "), "{:.3g}", 1.0
    return measure.label, *(("{:.1f} %", 100.0) if measure.kind == "rate" else (_plain(measure), 1.0))


def _plain(measure: Measure) -> str:
    return "{:.0f}" if measure.kind == "count" else "{:.3g}"


def _difference(found: Mapping[Any, Any], key: tuple[str, int], name: str, against: str) -> str:
    one = found.get((*key, name))
    if one is None:
        return "" if key[0] == against else _NONE
    _, form, scale = look(name)
    signed = "{:+.1f}" if scale > 1 else form.replace("{:", "{:+")
    value, low, high = (signed.format(scale * one[end]) for end in ("difference", "low", "high"))
    return f"{value} ({low} to {high})"


def spread(one: Mapping[str, Any] | tuple[float, float, float], digits: int = 3, sign: str = "") -> str:
    """Return a mean with its interval, whose upper end may be open."""
    ends = one if isinstance(one, tuple) else (one["mean"], one["low"], one["high"])
    shown = (
        "\u221e" if end is None else f"{round(float(end), digits) + 0.0:{sign}.{digits}f}" for end in ends
    )
    mean, low, high = shown
    return f"{mean} ({low} to {high})"


# Figures ----------------------------------------------------------------------------------------------------


def drawn(run: StudyRun) -> list[Path]:
    """Draw the figures of a study, each to a PNG file in its folder."""
    files = []
    for one in run.study.figures:
        plots: Any = require("matplotlib.figure", "plot", "a figure")
        sheet = plots.Figure(figsize=(7, 4.5), layout="constrained")
        solid = {"projection": "3d"} if one.given.get("z") else {}
        axes = sheet.add_subplot(**solid)
        _FIGURES[one.kind](run, {"x": one.x, "y": one.y, "rows": one.rows, **one.given}, axes)
        set_title(sheet, one.title)
        name = re.sub(r"\W+", "-", one.title.lower()).strip("-")
        files.append(run.folder / f"{name}.png")
        save_figure(sheet, files[-1])
    return files


#: More than the ten that matplotlib has.
_COLORS = [
    *(
        f"tab:{c}"
        for c in ("blue", "orange", "green", "red", "purple", "brown", "pink", "gray", "olive", "cyan")
    ),
    *("black", "navy", "darkgreen", "goldenrod"),
]


@figure("frontier")
def _frontier(run: StudyRun, given: Mapping[str, Any], axes: Any) -> None:
    """Two measures, a line over the budgets of each contender."""
    names, labels = [given["x"], given["y"]], []
    axes.set_prop_cycle(color=_COLORS)
    for label in dict.fromkeys(label for label, _ in run.keys(given["rows"])):
        points = [[run.mean(key, name) for name in names] for key in run.keys([label])]
        known = [(x["mean"], y["mean"], y) for x, y in points if x and y]
        if not known:
            continue
        x, y, ends = zip(*known, strict=True)
        axes.errorbar(x, y, yerr=_ends(ends), marker="o", elinewidth=0.5, label=label)
        labels.append(((x[-1], y[-1]), label))
    axes.set(xlabel=look(names[0])[0], ylabel=look(names[1])[0])
    label_points(axes, labels)


def _ends(found: Sequence[Mapping[str, Any] | None]) -> list[list[float]]:
    """Return how far intervals reach below and above their means."""
    known = [one or {"mean": 0.0, "low": 0.0, "high": 0.0} for one in found]
    below = [max(0.0, one["mean"] - one["low"]) for one in known]
    return [below, [max(0.0, (one["high"] or one["mean"]) - one["mean"]) for one in known]]


@figure("bars")
def _bars(run: StudyRun, given: Mapping[str, Any], axes: Any) -> None:
    """A measure of each contender, with 95 % intervals; a group of bars for each budget."""
    keys = run.keys(given["rows"])
    labels, budgets = list(dict.fromkeys(k[0] for k in keys)), sorted({k[1] for k in keys})
    for place, budget in enumerate(budgets):
        found = [run.mean((label, budget), given["y"]) for label in labels]
        heights = [one["mean"] if one else 0.0 for one in found]
        wide = 0.8 / len(budgets)
        at = np.arange(len(labels)) + place * wide
        axes.bar(at, heights, wide, yerr=_ends(found), label=f"{budget} tokens", capsize=2)
    axes.set_xticks(np.arange(len(labels)) + 0.4 - 0.4 / len(budgets), labels, rotation=30, ha="right")
    axes.set_ylabel(look(given["y"])[0])
    if len(budgets) > 1:
        axes.legend(fontsize=7)
