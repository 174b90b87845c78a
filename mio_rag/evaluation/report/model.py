"""What every section of the report reads: the inputs with their orders, measures, verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mio_rag.evaluation.expenses import reading_column
from mio_rag.evaluation.report.text import plural
from mio_rag.measures import Measure, evidence_measure, find_measure, page_measures

__all__ = [
    "STATUSES", "Key", "Record", "Report", "failed", "measure_of", "setting", "status", "verdict",
]  # fmt: skip

Record = Mapping[str, Any]
Key = tuple[str, int | None]  # method, budget_tokens

#: The reader that quotes a sentence.
_QUOTES = "extractive"

#: Interval and corrected p must both clear zero at this level before a difference is called clear.
_LEVEL = 0.05

#: Kinds of certificate, from the best, as the page names them.
STATUSES = {
    "optimal": "Proven optimal",
    "bounded": "Feasible, with a bound",
    "feasible": "Feasible, no bound",
    "infeasible": "Infeasible",
    "no_solution": "No solution",
    "error": "Error",
    "none": "No certificate",
}


def measure_of(name: str) -> Measure:
    """The measure of that name; one that is not known is shown, but not judged."""
    unit = "seconds" if name.endswith("_seconds") else "tokens" if name.endswith("_tokens") else "number"
    label = name.replace("_", " ").capitalize()
    return find_measure(name) or Measure(name, label, "", "cost", "none", unit, "", page=None)


def setting(record: Record) -> Key:
    """Method and budget of a record."""
    return record["method"], record.get("budget_tokens")


class Report:
    """The four inputs, cleaned, with the orders and look-ups that every section shares."""

    def __init__(
        self, rows: list[Record], summary: list[Record], comparisons: list[Record], run: Record
    ) -> None:
        self.rows, self.summary, self.comparisons, self.run = rows, summary, comparisons, run
        everything = [*summary, *rows, *comparisons]
        named = dict.fromkeys([*(run.get("methods") or ()), *(record["method"] for record in everything)])
        self.place: dict[str, int] = {method: place for place, method in enumerate(named)}
        self.methods = list(self.place)
        budgets = {record.get("budget_tokens") for record in everything}
        self.budgets: list[int | None] = sorted(budgets, key=lambda b: (b is None, b or 0))
        self.baseline: str | None = run.get("baseline") or next(
            (c.get("baseline") for c in comparisons), None
        )
        self.points: dict[Key, Record] = {setting(record): record for record in summary}
        self.paired: dict[tuple[Key, str], Record] = {(setting(c), c["measure"]): c for c in comparisons}
        self.means: dict[str, dict[Key, float]] = {}  # measure -> setting -> mean, where it is defined
        for key, record in self.points.items():
            for name, value in record.items():
                if isinstance(value, dict) and value.get("mean") is not None:
                    self.means.setdefault(name, {})[key] = value["mean"]
        #: First those that the page explains, then what else the summary holds.
        self.measures = [measure for measure in page_measures() if measure.name in self.means]
        self.measures += [m for m in map(measure_of, self.means) if m.page is None]
        #: How much evidence was found, where the questions name it.
        self.evidence = evidence_measure(
            [self.means, *([k for k in row if row[k] is not None] for row in rows)]
        )
        #: Column of the tokens that were read; see `reading_column`.
        self.reading = reading_column([*summary, *rows])
        #: Whether a language model answered: what an extractive reader quotes is not judged.
        self.answered = str(run.get("generator") or _QUOTES).split(":")[0] != _QUOTES
        spoken = [(m.page.headline, m) for m in self.measures if m.page and m.page.headline is not None]
        #: What the headlines speak about.
        self.primary: Measure | None = min(spoken, key=lambda pair: pair[0])[1] if spoken else None

    def mean(self, key: Key, measure: str) -> float | None:
        """Mean of a measure, None where it is undefined."""
        return self.means.get(measure, {}).get(key)

    def question_count(self) -> int:
        """Questions of the run, counted from the rows where the run does not say."""
        stated = self.run.get("questions")
        return stated if isinstance(stated, int) else len({row["question_id"] for row in self.rows})

    def baseline_name(self) -> str:
        """What differences are taken from, in a sentence."""
        return self.baseline or "the baseline"

    def dataset(self) -> str:
        """Name of the data set, for titles."""
        return str(self.run.get("dataset") or "an unnamed data set")

    def heading(self) -> str:
        """What was compared on what, in one line."""
        methods, questions = plural(len(self.methods), "method"), plural(self.question_count(), "question")
        budgets = f" at {plural(len(self.budgets), 'token budget')}" if len(self.budgets) > 1 else ""
        return f"{methods}{budgets} on {questions} from {self.dataset()}"

    def tone(self, method: str) -> tuple[str, int]:
        """Colour variable and symbol number of a method; the baseline is always the neutral one."""
        if method == self.baseline:
            return "--base", 0
        place = [name for name in self.methods if name != self.baseline].index(method)
        return f"--m{place % 8}", 1 + place


def verdict(comparison: Record) -> str:
    """ "above", "below", "unclear" (the interval excludes zero, the corrected p does not agree) or "none"."""
    low, high, q = comparison.get("low"), comparison.get("high"), comparison.get("q_value")
    if low is None or high is None or low <= 0 <= high:
        return "none"
    if q is not None and q > _LEVEL:
        return "unclear"
    return "above" if low > 0 else "below"


def failed(row: Record) -> bool:
    """Whether a stage of the row broke, or its solver did."""
    return bool(row.get("error")) or row.get("status") == "error"


def status(row: Record) -> str:
    """Key into `STATUSES`; a feasible selection counts as bounded only with a gap."""
    found = row.get("status") or ("error" if row.get("error") else "none")
    if found == "feasible":
        return "bounded" if row.get("gap") is not None else "feasible"
    return found if found in STATUSES else "none"
