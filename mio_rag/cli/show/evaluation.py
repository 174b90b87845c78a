"""What the command line prints about an evaluation: what it ran on, what was found and read, what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from mio_rag.cli.show.tables import Field, heading, print_fields
from mio_rag.cli.terminal import Terminal, styled
from mio_rag.evaluation.rows import FITTING, reading_column
from mio_rag.evaluation.statistics import proven_yet_behind, too_few
from mio_rag.measures import Measure, added_measures, console_measures, evidence_measure, find_measure

if TYPE_CHECKING:
    from mio_rag.evaluation.harness import EvaluationResult

__all__ = ["evaluation_json", "print_failures", "print_run", "print_sets", "print_summary"]

Record = Mapping[str, Any]
_NONE = "\u2013"
_ALL = "all_gold"
_OURS = "exact"  # whose name says how it chooses, not whose choice it is


def evaluation_json(result: EvaluationResult) -> dict[str, Any]:
    """Plain data of an evaluation, for ``--json``."""
    return {
        "out": str(result.folder),
        "run": result.run,
        "summary": result.summary,
        "comparisons": result.comparisons,
        **({"by_set": result.by_set} if result.by_set else {}),
    }


def print_run(console: Terminal, run: Mapping[str, Any]) -> None:
    """What an evaluation ran on."""
    console.print(
        f"{run['dataset']}: {run['questions']} questions, {run['passages']} passages, "
        f"embedder {run['embedder']}, reader {run['generator'] or 'none'}, pool {run['pool']}, "
        f"{run['seconds']:.0f} s"
    )
    named = (run["settings"].get("instruments") or {}).items()
    if named:
        console.print("; ".join(f"{kind}: {one['name']}" for kind, one in named), soft_wrap=True)
    console.print("")


def print_sets(console: Terminal, by_set: Sequence[Record]) -> None:
    """What was found and read in each question set; nothing where there is one set."""
    if not by_set:
        return
    entries = sorted(by_set, key=lambda entry: entry["budget_tokens"])
    evidence, reading = evidence_measure(entries), reading_column(entries)
    keys = [Field("set", [entry["dataset"] for entry in entries], "left")]
    keys.append(Field("method", [entry["method"] for entry in entries], "left"))
    if len({entry["budget_tokens"] for entry in entries}) > 1:
        keys.append(Field("budget", [str(entry["budget_tokens"]) for entry in entries]))
    fields = [Field("questions", [str(entry["n"]) for entry in entries])]
    if evidence is not None:
        form = _percent if evidence.kind == "rate" else evidence.form.format
        fields.append(Field("evidence\nfound", _means(entries, evidence.name, form)))
    fields.append(Field("tokens\nread", _means(entries, reading, _count)))
    console.print("\nby question set", style="bold")
    print_fields(console, keys, fields)


def print_failures(console: Terminal, rows: Sequence[Mapping[str, Any]]) -> None:
    """What went wrong, most frequent first."""
    reasons = Counter(str(row["error"]) for row in rows if row["error"])
    for reason, count in reasons.most_common(5):
        console.print(styled((f"failed {count}x:", "red"), f" {reason}"), soft_wrap=True)
    if len(reasons) > 5:
        console.print(f"and {len(reasons) - 5} other reasons, in the ledger", style="dim")


def print_summary(
    console: Terminal,
    summary: Sequence[Record],
    comparisons: Sequence[Record] = (),
    baseline: str | None = None,
    *,
    details: bool = False,
) -> None:
    """What each method found and read beside the baseline; below it everything else.

    Parameters
    ----------
    summary, comparisons : sequences of mappings
        As `mio_rag.evaluation.statistics` makes them.
    baseline : str, optional
        Whom methods are compared with.
    details : bool
        Show every measure, with 95 % intervals, in the second table.
    """
    entries = sorted(summary, key=lambda entry: entry["budget_tokens"])
    keys = [Field("method", [entry["method"] for entry in entries], "left")]
    if len({entry["budget_tokens"] for entry in entries}) > 1:
        keys.append(Field("budget", [str(entry["budget_tokens"]) for entry in entries]))
    _print_first(console, keys, entries, comparisons, baseline)
    for warning in [*too_few(entries, comparisons), *proven_yet_behind(entries, comparisons)]:
        console.print(styled(("\nnote:", "yellow"), f" {warning}"))
    shown = _others(entries, details)
    if shown:
        console.print("\nanswers, proofs and costs", style="bold")
        print_fields(console, keys, shown)


# The first table: what was found and read ----------------------------------------------------------------


def _print_first(
    console: Terminal,
    keys: Sequence[Field],
    entries: Sequence[Record],
    comparisons: Sequence[Record],
    baseline: str | None,
) -> None:
    evidence, reading = evidence_measure(entries), reading_column(entries)
    methods = {entry["method"] for entry in entries}
    rivals = baseline is not None and len(methods) > 1
    said = _at(entries) + (f"; the baseline is {baseline}" if rivals else "")
    if rivals and _OURS in methods - {baseline}:
        said += f", and {_OURS} is the choice of mio-rag's program"
        if FITTING in methods:
            said += f" among whole passages, {FITTING} what it reads by the room there is"
    fields = []
    if evidence is not None:
        what = "gold documents" if evidence.name == "source_recall" else "gold passages"
        asked = max((c["n"] for c in comparisons if c["measure"] == evidence.name), default=0)
        few = f" ({asked} questions name them)" if 0 < asked < _count_of(entries) else ""
        said += f". Evidence: the {what} of a question{few}"
        form = _percent if evidence.kind == "rate" else evidence.form.format
        fields.append(Field("evidence\nfound", _means(entries, evidence.name, form)))
        if any(entry.get(_ALL) for entry in entries):
            fields.append(Field("all\nevidence\nfound", _means(entries, _ALL, _percent)))
    else:
        said += ". The questions name no evidence, so that none can be counted"
    read = "prompts" if reading == "prompt_tokens" else "tokens"
    title = "tokens\nread" if read == "tokens" else "prompt\ntokens"
    fields.append(Field(title, _means(entries, reading, _count)))
    if baseline is not None and rivals:
        fields.append(Field("tokens\nsaved", _saved(entries, reading, baseline)))
        if evidence is not None:
            fields.append(_difference(entries, comparisons, evidence, baseline))
    console.print(f"{said}.")
    if read == "prompts":
        console.print("Prompt tokens: of all calls, since controllers ask more than once.")
    console.print()
    print_fields(console, keys, fields)


def _at(entries: Sequence[Record]) -> str:
    budgets = list(dict.fromkeys(entry["budget_tokens"] for entry in entries))
    count = _count_of(entries)
    over = f"Means over {count} question{'s' * (count != 1)}" if count else "Means"
    return over + (f" at a budget of {budgets[0]} tokens" if len(budgets) == 1 else "")


def _count_of(entries: Sequence[Record]) -> int:
    return max((entry.get("n") or 0 for entry in entries), default=0)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _count(tokens: float) -> str:
    return f"{tokens:.0f}"


def _means(entries: Sequence[Record], name: str, form: Callable[[float], str]) -> list[str]:
    return [_NONE if (value := entry.get(name)) is None else form(value["mean"]) for entry in entries]


def _saved(entries: Sequence[Record], reading: str, baseline: str) -> list[str]:
    """Tokens that each method reads less than the baseline at the same budget."""
    spent = {(e["method"], e["budget_tokens"]): e[reading]["mean"] for e in entries if e.get(reading)}
    cells = []
    for entry in entries:
        own = spent.get((entry["method"], entry["budget_tokens"]))
        reference = spent.get((baseline, entry["budget_tokens"]))
        if entry["method"] == baseline or own is None or reference is None:
            cells.append("" if entry["method"] == baseline else _NONE)
            continue
        saved = round(reference) - round(own)  # as the column beside it is rounded
        cells.append(f"{saved} ({round(100 * saved / reference) if reference else 0} %)")
    return cells


def _difference(
    entries: Sequence[Record], comparisons: Sequence[Record], evidence: Measure, baseline: str
) -> Field:
    """The paired difference in the evidence found, with its interval; coloured where it excludes zero."""
    found = {(c["method"], c["budget_tokens"]): c for c in comparisons if c["measure"] == evidence.name}
    rate = evidence.kind == "rate"
    cells: list[str | Text] = []
    for entry in entries:
        own = found.get((entry["method"], entry["budget_tokens"]))
        if own is None:
            cells.append("baseline" if entry["method"] == baseline else _NONE)
            continue
        mean, low, high = (
            f"{100 * own[end]:+.1f}" if rate else f"{own[end]:+.3g}" for end in ("difference", "low", "high")
        )
        style = "green" if own["low"] > 0 else "red" if own["high"] < 0 else ""
        cells.append(Text(f"{mean} ({low} to {high})", style))
    return Field(f"evidence beside {baseline}\n({'points, ' * rate}95 % interval)", cells)


# The second table: everything else --------------------------------------------------------------------------


def _others(entries: Sequence[Record], details: bool) -> list[Field]:
    evidence, reading = evidence_measure(entries), reading_column(entries)
    first = () if details else ((evidence.name if evidence else ""), _ALL, reading)
    own = {measure.name for measure in added_measures()}
    fields = []
    for measure in console_measures():
        column = measure.console
        asked = details or measure.name in own or (column is not None and column.always)
        if asked and measure.name not in first and any(entry.get(measure.name) for entry in entries):
            fields.append(Field(heading(measure.title), _cells(entries, measure, details)))
    proofs = [entry.get("optimal_share") for entry in entries]
    if any(share is not None for share in proofs):
        fields.append(Field("proven", [_NONE if share is None else f"{share:.0%}" for share in proofs]))
    if any(share is not None and share < 1 for share in proofs):
        gap = find_measure("gap")
        assert gap is not None
        unproven = [entry if share is not None else {} for entry, share in zip(entries, proofs, strict=True)]
        fields.append(Field("mean\ngap", _means(unproven, gap.name, lambda value: f"{100 * value:.2f} %")))
    if any(entry["failed"] for entry in entries):
        fields.append(Field("failed", [str(entry["failed"]) for entry in entries]))
    return fields


def _cells(entries: Sequence[Record], measure: Measure, details: bool) -> list[str | Text]:
    """Means of a measure, with intervals where details are wanted."""
    cells: list[str | Text] = []
    for entry in entries:
        value = entry.get(measure.name)
        cell = Text(_NONE if value is None else measure.form.format(value["mean"]))
        if value is not None and details and value["low"] != value["high"]:
            low = measure.form.format(value["low"])
            high = "unbounded" if value["high"] is None else measure.form.format(value["high"])
            cell.append(f" ({low} to {high})", "dim")
        cells.append(cell)
    return cells
