"""What every section of the report reads: the inputs with their orders, measures, verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mio_rag.evaluation.report.text import plural

__all__ = [
    "MEASURES", "STATUSES", "Key", "Measure", "Record", "Report", "failed", "measure_of", "setting", "status",
    "verdict",
]  # fmt: skip

Record = Mapping[str, Any]
Key = tuple[str, int | None]  # method, budget_tokens

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


@dataclass(frozen=True)
class Measure:
    """How a measure is named, printed and read.

    Parameters
    ----------
    kind : str
        "rate" (0 to 1, three decimals), "count", "number" or "seconds".
    better : int
        1 if higher is better, -1 if lower is, 0 if it only describes.
    """

    key: str
    label: str
    kind: str
    better: int
    note: str


#: In the order of the page.
MEASURES = (
    Measure("token_f1", "Token F1", "rate", 1, "word overlap of the answer with the best gold answer"),
    Measure("exact_match", "Exact match", "rate", 1, "the answer equals a gold answer after normalisation"),
    Measure("accuracy", "Accuracy", "rate", 1, "the right option was chosen"),
    Measure("gold_recall", "Gold recall", "rate", 1, "share of the gold passages that were selected"),
    Measure("all_gold", "All gold", "rate", 1, "every gold passage was selected"),
    Measure("answer_in_context", "Answer in context", "rate", 1, "a gold answer occurs in the selected text"),
    Measure("tokens_used", "Tokens used", "count", 0, "tokens of the selected context"),
    Measure("tokens_per_correct", "Tokens per correct", "count", -1, "tokens in and out per right answer"),
    Measure("rouge_l", "ROUGE-L", "rate", 1, "longest common subsequence with the best gold answer"),
    Measure("source_recall", "Source recall", "rate", 1, "share of the gold documents selected from"),
    Measure("gold_precision", "Gold precision", "rate", 1, "share of the selected passages that are gold"),
    Measure("reciprocal_rank", "Reciprocal rank", "rate", 1, "one over the place of the first gold passage"),
    Measure("ndcg", "nDCG", "rate", 1, "ranking quality of the selected passages in prompt order"),
    Measure("pool_recall", "Pool recall", "rate", 0, "share of the gold passages in the pool: the ceiling"),
    Measure("diversity", "Diversity", "rate", 0, "1 minus the mean pairwise cosine of the selected passages"),
    Measure("source_entropy", "Source entropy", "number", 0, "entropy of the selected sources, in bits"),
    Measure("passages_selected", "Passages", "number", 0, "passages selected"),
    Measure("prompt_tokens", "Prompt tokens", "count", 0, "tokens of the whole prompt"),
    Measure("completion_tokens", "Completion tokens", "count", 0, "tokens of the answer"),
    Measure("gap", "Certified gap", "rate", 0, "distance from the proven bound, relative to the objective"),
    Measure("steps", "Steps", "number", 0, "actions that a controller took before the answer"),
    Measure("lm_calls", "Model calls", "number", 0, "calls of the language model"),
    Measure("retrieval_calls", "Retrievals", "number", 0, "calls of the retriever"),
    Measure("uncertainty", "Uncertainty", "rate", 0, "of a controller when it stopped: 0 is certain"),
    Measure("total_seconds", "Total time", "seconds", 0, "wall time of the question, all stages"),
)
_KNOWN = {measure.key: measure for measure in MEASURES}
#: What the headlines speak about: the first of these that was measured.
_PRIMARY = ("token_f1", "accuracy", "exact_match", "gold_recall", "all_gold")


def measure_of(key: str) -> Measure:
    """The measure of that name; one that is not known is shown, but not judged."""
    kind = "seconds" if key.endswith("_seconds") else "count" if key.endswith("_tokens") else "number"
    return _KNOWN.get(key) or Measure(key, key.replace("_", " ").capitalize(), kind, 0, "")


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
        self.measures = [_KNOWN[name] for name in _KNOWN if name in self.means]
        self.measures += [measure_of(name) for name in self.means if name not in _KNOWN]
        self.primary = next((_KNOWN[name] for name in _PRIMARY if name in self.means), None)

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
