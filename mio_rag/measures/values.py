"""The measures of one question: of its selection, of its answer, and of a failure."""

from __future__ import annotations

from collections.abc import Collection

from mio_rag.measures.instruments import Reading
from mio_rag.measures.measure import Use
from mio_rag.measures.registry import measures
from mio_rag.selection.result import Selection
from mio_rag.types import Question


def answer_measures(question: Question, answer: str, choice: int | None = None) -> dict[str, float | None]:
    """Measures of an answer.

    Parameters
    ----------
    choice : int, optional
        Index of the chosen option, for multiple-choice questions.

    Returns
    -------
    dict
        None where the data has no accepted answer (unless the question is marked "unanswerable").
    """
    return {
        measure.name: None
        if (given := answer if measure.of == "answer" else choice) is None
        else measure.value(question, given)
        for measure in measures()
        if measure.taken_with(()) and measure.of in ("answer", "choice")
    }


def selection_measures(question: Question, selection: Selection) -> dict[str, float | None]:
    """Measures of what was selected, against the labels of the question."""
    return {m.name: m.value(question, selection) for m in measures("selection") if m.taken_with(())}


def reading_measures(question: Question, reading: Reading) -> dict[str, float | None]:
    """Measures that need the instruments of a reading: those of its answer only where there is one."""
    return {
        m.name: m.value(question, reading)
        for m in measures()
        if m.needs
        and m.taken_with(reading.instruments.given)
        and (m.of == "selection" or reading.answer is not None)
    }


def quick_measures(question: Question, selection: Selection) -> dict[str, float | None]:
    """Those measures of a selection that every setting of a grid gets.

    What the labels leave undefined is left out.
    """
    found = {
        m.name: (m, m.value(question, selection))
        for m in measures("selection")
        if m.taken_with(()) and m.frontier.use >= Use.ROW
    }
    return {
        name: value
        for name, (measure, value) in found.items()
        if value is not None or measure.labelled is None
    }


def gold_measures(question: Question, selection: Selection) -> dict[str, float]:
    """Those quick measures that compare the selected passages with the labels."""
    labelled = {measure.name for measure in measures("selection") if measure.labelled is not None}
    found = quick_measures(question, selection)
    return {name: value for name, value in found.items() if name in labelled and value is not None}


def failed_measures(
    question: Question, *, selection: bool, answer: bool, instruments: Collection[str] = ()
) -> dict[str, float]:
    """The worst value of every measure that a success would have had, so that failing never pays.

    Parameters
    ----------
    selection, answer : bool
        Which of the two is missing: a selection that was made keeps its own measures, and without a reader
        there are none of an answer.
    instruments : collection of str
        What the run has beside: see `Measure.needs`.
    """
    missing = {"selection": selection, "answer": answer, "choice": answer}
    computed = [m for m in measures() if m.taken_with(instruments) and missing.get(m.of, False)]
    return {m.name: m.failed for m in computed if m.labelled is not None and m.labelled(question)}
