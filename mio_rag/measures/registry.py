"""All measures, by name; and in the order of each place that shows them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal

from mio_rag.errors import InputError
from mio_rag.measures.answers import ANSWERS
from mio_rag.measures.costs import COSTS
from mio_rag.measures.measure import Measure, Use
from mio_rag.measures.rankings import RANKINGS
from mio_rag.measures.readings import READINGS
from mio_rag.measures.selections import SELECTIONS

_OWN = (*SELECTIONS, *RANKINGS, *ANSWERS, *READINGS, *COSTS)
_KNOWN: dict[str, Measure] = {measure.name: measure for measure in _OWN}

#: Names of a row, a summary or a point that measure nothing: a measure of that name would overwrite them.
RESERVED = frozenset(
    {
        *("question_id", "question", "question_type", "method", "budget_tokens", "answers", "gold_ids"),
        *("selected_ids", "answer", "status", "objective", "bound", "solver", "error", "error_kind", "ended"),
        *("pool_size", "decisions", "relevance", "over_budget", "note", "peak_memory_mb"),
        *("said", "refused", "refusal_probability"),
        *("n", "failed", "optimal_share"),
    }
)


def measures(of: Literal["selection", "answer", "choice", "cost", "run"] | None = None) -> list[Measure]:
    """All measures, or those of one kind, in the order of ledger and summary."""
    return [measure for measure in _KNOWN.values() if of is None or measure.of == of]


def find_measure(name: str) -> Measure | None:
    """The measure of that name, None where there is none."""
    return _KNOWN.get(name)


def register(measure: Measure) -> Measure:
    """Add a measure: ledger, summary, comparisons, console, report and frontier show it from now on.

    A run keeps the values that were computed when its rows were made: register before `evaluate`, in the same
    way before it is resumed.

    Returns
    -------
    Measure
        As it was given.

    Raises
    ------
    InputError
        With everything that is wrong with it: its name is taken or cannot be a column, something is not said,
        or a failed row would count as a good one.
    """
    name = measure.name
    problems = []
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        problems.append(f"the name '{name}' must be lower-case letters, digits and underscores")
    if name in _KNOWN:
        problems.append(f"there is a measure '{name}' already ({_KNOWN[name].meaning}): choose another name")
    if name in RESERVED:
        problems.append(f"'{name}' is a column that measures nothing: choose another name")
    problems += [
        f"the measure '{name}' does not say its {field}"
        for field in ("label", "meaning", "unit", "source")
        if not getattr(measure, field).strip()
    ]
    if measure.compute is not None and measure.of in ("cost", "run"):
        problems.append(
            f"the measure '{name}' of a {measure.of} is recorded where it arises: leave out compute, or let "
            "it be of a selection, an answer or a choice"
        )
    if measure.compute is not None and measure.judged and measure.labelled is None:
        problems.append(
            f"failed rows would raise the mean: a row that failed has no '{name}', and would be left out. "
            "Say by `labelled` which questions define it, or that it is not judged (page=Page(judged=False))"
        )
    if measure.labelled is not None and measure.better == "lower" and measure.failed <= 0:
        problems.append(
            f"failed rows would count as good: lower is better, and a row that failed has "
            f"'{name}'={measure.failed:g}. Say by `failed` which value it gets"
        )
    if problems:
        raise InputError(problems)
    _KNOWN[name] = measure
    return measure


def unregister(name: str) -> None:
    """Take back a measure that was registered.

    Raises
    ------
    InputError
        If there is none of that name, or it came with the package.
    """
    if name not in _KNOWN or any(_KNOWN[name] is one for one in _OWN):
        raise InputError(f"'{name}' is not a measure that was registered")
    del _KNOWN[name]


def added_measures() -> list[Measure]:
    """Those that were registered, beside what came with the package."""
    own = {id(measure) for measure in _OWN}
    return [measure for measure in measures() if id(measure) not in own]


def evidence_measure(records: Iterable[Collection[str]]) -> Measure | None:
    """How much evidence was found: of the gold passages, else of the gold documents; None without labels.

    Parameters
    ----------
    records : iterable of collections of str
        Names of the measures that each record has.
    """
    found = {name for record in records for name in record}
    return next((measure for measure in frontier_measures(Use.EVIDENCE) if measure.name in found), None)


def compared_measures() -> list[Measure]:
    """Those that methods are compared with the baseline by."""
    return sorted((m for m in measures() if m.compared), key=lambda m: m.place)


def console_measures() -> list[Measure]:
    """Columns of the summary on the console."""
    return sorted((m for m in measures() if m.console is not None), key=lambda m: m.place)


def page_measures() -> list[Measure]:
    """Those that the report explains."""
    placed = [(m.page.place, m) for m in measures() if m.page is not None]
    return [m for _, m in sorted(placed, key=lambda pair: pair[0])]


def frontier_measures(use: Use) -> list[Measure]:
    """Those that a frontier uses as far as that, what they cost apart."""
    found = [m for m in measures() if m.frontier.use >= use and m.of not in ("cost", "run")]
    return sorted(found, key=lambda m: m.frontier.place)
