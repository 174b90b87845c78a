"""A measure: its name, meaning, direction and function, and where it is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from mio_rag.errors import InputError
from mio_rag.types import Question

#: Place of a measure without one: after all others, in the order of registration.
LAST = 1000

#: Unit -> how the report prints it; every other unit is a "number" of two decimals.
_KINDS = {"0 to 1": "rate", "0 to 2": "rate", "tokens": "count", "seconds": "seconds"}
#: Kind -> format on the console.
_FORMS = {"rate": "{:.3f}", "count": "{:.0f}", "number": "{:.1f}", "seconds": "{:.3f}"}


class Use(IntEnum):
    """How far `mio-rag lab frontier` uses a measure; each use includes those above it."""

    NONE = 0
    ROW = 1  # a value for every setting of the grid, so it must be quick
    POINT = 2  # a mean at every point, in frontier.json and on the page
    PLOT = 3  # a panel of the picture
    CONSOLE = 4  # a column on the console
    DOMINANCE = 5  # decides, with tokens and evidence, whether a setting is dominated
    EVIDENCE = 6  # the evidence found: leads, and chooses the operating point; the first that was measured


@dataclass(frozen=True)
class Column:
    """A column of the summary on the console; by default shown with details alone.

    title, form: default: the label in lower case, and the format of the unit.
    """

    title: str = ""
    form: str = ""
    always: bool = False


@dataclass(frozen=True)
class Page:
    """Where and how the report shows a measure.

    core: show it before "all measures" is asked for.
    headline: the headlines use the defined measure with the lowest number; None: never this one.
    judged: more is better or worse, so that a failed row must count.
    card: show it on the card of a single answer.
    """

    place: int = LAST
    core: bool = False
    headline: int | None = None
    judged: bool = True
    card: bool = True


@dataclass(frozen=True)
class Frontier:
    """How the frontier of a question set uses a measure; `label` and `place` are those of its page."""

    use: Use = Use.CONSOLE
    label: str = ""
    place: int = LAST


@dataclass(frozen=True)
class Measure:
    """A number for one question, or None where it is undefined (no labels, no answer).

    name: column of the ledger and key of every JSON file: lower case, digits, underscores.
    meaning: one sentence, without capital and full stop.
    of: rows that have it: "selection" (something was selected), "answer" (answered), "choice" (an option was
        chosen), "cost" (any; recorded on the way), or "run": no row, but a method over all questions.
    unit: "0 to 1" or another range, "tokens", "seconds", or another word.
    source: where it is defined: a citation, or how it is recorded.
    compute: (question, selection), (question, text of the answer) or (question, position of the chosen
        option) -> value or None; (question, `Reading`) if `needs` is set. None: recorded where it arises.
    needs: `Instruments` ("embedder", "tokens", "judge", "writer"); computed only in runs that have them all.
    labelled: whether the labels of a question define the measure. A failed row then scores `failed`, so that
        failing never pays. None: it needs no labels, and a failed row has no value.
    failed: value of a failed row: no better than any other value.
    whole: stored as a whole number.
    place: order of columns on the console, and of comparisons.
    compared: compare methods with the baseline by it. Every comparison makes all others stricter.
    console, page: None: not shown there. The report still shows what a summary holds, at the end and
        unexplained.
    """

    name: str
    label: str
    meaning: str
    of: Literal["selection", "answer", "choice", "cost", "run"]
    better: Literal["higher", "lower", "none"]
    unit: str
    source: str
    compute: Callable[[Question, Any], float | None] | None = None
    needs: tuple[str, ...] = ()
    labelled: Callable[[Question], bool] | None = None
    failed: float = 0.0
    whole: bool = False
    place: int = LAST
    compared: bool = True
    console: Column | None = Column()
    page: Page | None = Page()
    frontier: Frontier = Frontier()

    @property
    def sign(self) -> int:
        """1 if higher is better, -1 if lower is, 0 if it only describes."""
        return {"higher": 1, "lower": -1, "none": 0}[self.better]

    @property
    def judged(self) -> int:
        """The sign, or 0 where the report does not mark the best method."""
        return self.sign if self.page is not None and self.page.judged else 0

    @property
    def kind(self) -> str:
        """How the report prints it: "rate", "count", "number" or "seconds"."""
        return _KINDS.get(self.unit, "number")

    @property
    def title(self) -> str:
        """Title of its column on the console."""
        return (self.console and self.console.title) or self.label.lower()

    @property
    def form(self) -> str:
        """Format of a value on the console."""
        return (self.console and self.console.form) or _FORMS[self.kind]

    def taken_with(self, instruments: Collection[str]) -> bool:
        """Whether it is computed where these instruments are given."""
        return self.compute is not None and set(self.needs) <= set(instruments)

    def value(self, question: Question, given: Any) -> float | None:
        """Compute it; None where undefined. `InputError` if it is not finite, or not whole as it must be."""
        if self.compute is None or (self.labelled is not None and not self.labelled(question)):
            return None
        found = self.compute(question, given)
        if found is None:
            return None
        if not math.isfinite(found) or (self.whole and found != int(found)):
            expected = "a whole number" if self.whole else "a finite number, or None where it is undefined"
            raise InputError(
                f"the measure '{self.name}' is {found} for question '{question.id}': it must be {expected}"
            )
        return float(found)


# Which questions define a measure.


def has_gold(question: Question) -> bool:
    """Return whether gold passages are known."""
    return bool(question.gold_ids)


def has_answer(question: Question) -> bool:
    """Return whether accepted answers are known."""
    return bool(question.answers)


def has_key(question: Question) -> bool:
    """Return whether accepted answers are known, or that there is none."""
    return bool(question.answers) or question.type == "unanswerable"


def always(question: Question) -> bool:
    """Return True: every question defines the measure, so that a failed row scores."""
    return True
