"""What a measure is: everything that ledger, summary, report, console and frontier have to know of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from mio_rag.errors import InputError
from mio_rag.types import Question

#: Place of what nobody has placed: after everything that has a place, in the order of registration.
LAST = 1000

#: Unit -> how the report prints it; every other unit is a "number" of two decimals.
_KINDS = {"0 to 1": "rate", "0 to 2": "rate", "tokens": "count", "seconds": "seconds"}
#: Kind -> format on the console.
_FORMS = {"rate": "{:.3f}", "count": "{:.0f}", "number": "{:.1f}", "seconds": "{:.3f}"}


class Use(IntEnum):
    """How far `mio-rag frontier data` uses a measure; each use includes those below it."""

    NONE = 0
    #: A value in every row: of a selection it is computed for every setting of the grid, and must be quick.
    ROW = 1
    #: A mean at every point, in frontier.json and on the page.
    POINT = 2
    #: A panel of the picture.
    PLOT = 3
    #: A column on the console.
    CONSOLE = 4
    #: Decides, beside tokens and the evidence found, whether a setting is dominated.
    DOMINANCE = 5
    #: Says how much evidence was found: console and report begin with it, and the operating point is chosen
    #: by it. Of several the first that is measured.
    EVIDENCE = 6


@dataclass(frozen=True)
class Column:
    """A column of the summary on the console.

    Parameters
    ----------
    title : str
        By default the label in lower case.
    form : str
        Format of a value; by default that of the measure's unit.
    interval : bool
        Whether a wide terminal shows the 95 % interval too.
    always : bool
        Whether a narrow terminal shows the column too.
    """

    title: str = ""
    form: str = ""
    interval: bool = False
    always: bool = False


@dataclass(frozen=True)
class Page:
    """Where and how the report shows a measure.

    Parameters
    ----------
    place : int
        Order on the page.
    core : bool
        Whether it is shown before "all measures" is asked for.
    headline : int or None
        The headlines speak of the defined measure with the lowest number; None: never of this one.
    judged : bool
        Whether the page says which method is best by it.
    card : bool
        Whether the card of a single answer shows it.
    """

    place: int = LAST
    core: bool = False
    headline: int | None = None
    judged: bool = True
    card: bool = True


@dataclass(frozen=True)
class Frontier:
    """How the frontier of a question set uses a measure.

    Parameters
    ----------
    label : str
        On its page; by default that of the measure.
    place : int
        Order among the measures of a point.
    """

    use: Use = Use.CONSOLE
    label: str = ""
    place: int = LAST


@dataclass(frozen=True)
class Measure:
    """A number for one question, or None where it is undefined (no labels, no answer, ...).

    Parameters
    ----------
    name : str
        Column of the ledger and key of every JSON file: lower case, digits, underscores.
    label : str
        For people.
    meaning : str
        One sentence, without capital and full stop.
    of : str
        Rows that have it: "selection" (those that selected), "answer" (those that were answered), "choice"
        (those that chose an option), "cost" (any; recorded on the way), or "run": no row, but a method over
        all questions.
    better : str
        "higher", "lower" or "none".
    unit : str
        "0 to 1" or another range, "tokens", "seconds", or another word.
    source : str
        Where it is defined: a citation, or how it is recorded.
    compute : callable, optional
        (question, selection), (question, text of the answer) or (question, position of the chosen option) ->
        value or None; (question, `Reading`) where it has needs. None: recorded where it arises.
    needs : tuple of str
        Instruments that it is taken with ("embedder", "tokens", "judge", "writer"): it is computed only in
        runs that have them all; see `mio_rag.measures.instruments`.
    labelled : callable, optional
        Whether the labels of a question define the measure. A row that failed then scores `failed`, so that
        failing never pays. None: it needs no labels, and a failed row has none.
    failed : float
        Value of a row that failed: no better than any other value.
    whole : bool
        Whether the ledger keeps it as a whole number.
    place : int
        Order among the columns of the console, and among the comparisons.
    compared : bool
        Whether methods are compared with the baseline by it. Each comparison more makes all of them stricter.
    console, page : Column, Page or None
        None: not shown there. The report still shows what a summary holds, at the end and unexplained.
    frontier : Frontier
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
        """The sign, or 0 where the report does not say which method is best."""
        return self.sign if self.page is not None and self.page.judged else 0

    @property
    def kind(self) -> str:
        """How the report prints it: "rate", "count", "number" or "seconds"."""
        return _KINDS.get(self.unit, "number")

    @property
    def title(self) -> str:
        """Head of its column on the console."""
        return (self.console and self.console.title) or self.label.lower()

    @property
    def form(self) -> str:
        """Format of a value on the console."""
        return (self.console and self.console.form) or _FORMS[self.kind]

    def taken_with(self, instruments: Collection[str]) -> bool:
        """Whether it is computed where these instruments are given."""
        return self.compute is not None and set(self.needs) <= set(instruments)

    def applies(self, question: Question) -> bool:
        """Whether the labels of a question define it."""
        return self.labelled is None or self.labelled(question)

    def value(self, question: Question, given: Any) -> float | None:
        """The measure of a selection, an answer or a choice; None where it is undefined.

        Raises
        ------
        InputError
            If the value is no finite number, or no whole one where the ledger expects it.
        """
        if self.compute is None or not self.applies(question):
            return None
        found = self.compute(question, given)
        if found is not None and not math.isfinite(found):
            raise InputError(
                f"the measure '{self.name}' is {found} for question '{question.id}': it must be a finite "
                "number, or None where it is undefined"
            )
        if found is not None and self.whole and found != int(found):
            raise InputError(
                f"the measure '{self.name}' is {found} for question '{question.id}': it must be a "
                "whole number"
            )
        return None if found is None else float(found)
