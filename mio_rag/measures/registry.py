"""All measures by name, in the order of each place that shows them; the measures of one question."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Literal

from mio_rag.errors import InputError
from mio_rag.measures.answers import ANSWERS, COSTS
from mio_rag.measures.instruments import READINGS, Reading
from mio_rag.measures.measure import Measure, Use
from mio_rag.measures.selections import SELECTIONS
from mio_rag.pool import Pool
from mio_rag.selection.result import Selection
from mio_rag.types import Question

_OWN = (*SELECTIONS, *ANSWERS, *READINGS, *COSTS)
_OF_POOL = ("pool_", "retrieved_")  # begins the names of measures that all methods share
_KNOWN: dict[str, Measure] = {measure.name: measure for measure in _OWN}

#: Keys of a row, a summary or a point that are no measures: a measure of that name would overwrite them.
RESERVED = frozenset((
    "question_id", "question", "question_type", "method", "budget_tokens", "answers", "gold_ids",
    "selected_ids", "answer", "status", "objective", "bound", "solver", "error", "error_kind", "ended",
    "pool_size", "decisions", "relevance", "over_budget", "note", "peak_memory_mb", "said", "refused",
    "refusal_probability", "n", "failed", "optimal_share",
))  # fmt: skip


def measures(of: Literal["selection", "answer", "choice", "cost", "run"] | None = None) -> list[Measure]:
    """Return all measures, or those of one kind, in the order of ledger and summary."""
    return [measure for measure in _KNOWN.values() if of is None or measure.of == of]


def find_measure(name: str) -> Measure | None:
    """Return the measure of that name, None where there is none."""
    return _KNOWN.get(name)


def register(measure: Measure) -> Measure:
    """Add a measure to ledger, summary, comparisons, console, report and frontier; return it.

    Register before `evaluate`, and in the same way before a run is resumed: rows keep their values.

    Raises `InputError` with every problem: the name is taken or cannot be a column, a text is missing, or a
    failed row would count as a good one.
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
        f"the measure '{name}' has no {field}: give one"
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
            f"failed rows would raise the mean: a failed row has no '{name}' and would be left out. Give "
            "`labelled`, which questions define it, or do not judge it (page=Page(judged=False))"
        )
    if measure.labelled is not None and measure.better == "lower" and measure.failed <= 0:
        problems.append(
            f"failed rows would count as good: lower is better, and a failed row has "
            f"'{name}'={measure.failed:g}. Give a worse value as `failed`"
        )
    if problems:
        raise InputError(problems)
    _KNOWN[name] = measure
    return measure


def unregister(name: str) -> None:
    """Remove a measure that was registered; `InputError` for any other name."""
    if name not in _KNOWN or any(_KNOWN[name] is one for one in _OWN):
        raise InputError(f"'{name}' is not a measure that was registered")
    del _KNOWN[name]


def added_measures() -> list[Measure]:
    """Return the measures that were registered, without those of the package."""
    return [measure for measure in measures() if not any(measure is own for own in _OWN)]


def evidence_measure(records: Iterable[Collection[str]]) -> Measure | None:
    """Return the measure of the evidence found in records: gold passages, else gold documents, else None."""
    found = {name for record in records for name in record}
    return next((measure for measure in frontier_measures(Use.EVIDENCE) if measure.name in found), None)


def compared_measures() -> list[Measure]:
    """Return the measures by which methods are compared with the baseline."""
    return sorted((m for m in measures() if m.compared), key=lambda m: m.place)


def console_measures() -> list[Measure]:
    """Return the columns of the summary on the console."""
    return sorted((m for m in measures() if m.console is not None), key=lambda m: m.place)


def page_measures() -> list[Measure]:
    """Return the measures that the report explains."""
    return sorted((m for m in measures() if m.page), key=lambda m: m.page.place if m.page else 0)


def frontier_measures(use: Use) -> list[Measure]:
    """Return the measures of at least this use, without costs."""
    found = [m for m in measures() if m.frontier.use >= use and m.of not in ("cost", "run")]
    return sorted(found, key=lambda m: m.frontier.place)


# The measures of one question


def answer_measures(question: Question, answer: str, choice: int | None = None) -> dict[str, float | None]:
    """Measure an answer, and the position of the chosen option; None where the data has no key."""
    given = {"answer": answer, "choice": choice}
    return {
        m.name: None if given[m.of] is None else m.value(question, given[m.of])
        for m in measures()
        if m.of in given and m.taken_with(())
    }


def selection_measures(question: Question, selection: Selection) -> dict[str, float | None]:
    """Measure what was selected, against the labels of the question."""
    return {m.name: m.value(question, selection) for m in measures("selection") if m.taken_with(())}


def pool_measures(question: Question, pool: Pool) -> dict[str, float | None]:
    """Measure what was retrieved, where nothing was selected."""
    named = [m for m in measures("selection") if m.name.startswith(_OF_POOL)]
    return {m.name: m.value(question, SimpleNamespace(pool=pool)) for m in named if m.taken_with(())}


def reading_measures(question: Question, reading: Reading) -> dict[str, float | None]:
    """Compute the measures that need instruments, where these are given."""
    return {
        m.name: m.value(question, reading)
        for m in measures()
        if m.needs
        and m.taken_with(reading.instruments.given)
        and (m.of == "selection" or reading.answer is not None)
    }


def quick_measures(question: Question, selection: Selection) -> dict[str, float | None]:
    """Compute the measures for every setting of a grid, except those that the labels leave undefined."""
    quick = [m for m in measures("selection") if m.taken_with(()) and m.frontier.use >= Use.ROW]
    found = {m.name: m.value(question, selection) for m in quick}
    return {m.name: found[m.name] for m in quick if m.labelled is None or found[m.name] is not None}


def failed_measures(
    question: Question, *, selection: bool, answer: bool, instruments: Collection[str] = ()
) -> dict[str, float]:
    """Return the worst value of every measure that a success would have had, so that failing never pays.

    selection, answer: which of the two is missing.
    """
    missing = {"selection": selection, "answer": answer, "choice": answer}
    computed = [m for m in measures() if m.taken_with(instruments) and missing.get(m.of, False)]
    return {m.name: m.failed for m in computed if m.labelled is not None and m.labelled(question)}
