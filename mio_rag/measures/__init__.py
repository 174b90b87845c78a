"""Measures of a selection, an answer and their cost: one registry, which everything that shows them reads.

A measure owns its name, label, meaning, direction, unit, format, source and function; `mio-rag measures`
lists them. It is a number for one question, or None where it is undefined (no gold labels, no answer, ...). A
new one is one entry in `selections`, `rankings`, `answers`, `readings` or `costs`, or one call of `register`:
it is then a column of the ledger, a mean with its interval in the summary, a comparison with the baseline, a
column on the console, a column of the report with its explanation, and a measure of the frontier's points.
"""

from mio_rag.measures.answers import exact_match, normalize_answer, right, token_f1
from mio_rag.measures.instruments import Instruments, Reading
from mio_rag.measures.measure import LAST, Column, Frontier, Measure, Page, Use
from mio_rag.measures.registry import (
    RESERVED,
    added_measures,
    compared_measures,
    console_measures,
    evidence_measure,
    find_measure,
    frontier_measures,
    measures,
    page_measures,
    register,
    unregister,
)
from mio_rag.measures.selections import diversity, evidence_found
from mio_rag.measures.values import (
    answer_measures,
    failed_measures,
    gold_measures,
    quick_measures,
    reading_measures,
    selection_measures,
)

__all__ = [
    "LAST",
    "RESERVED",
    "Column",
    "Frontier",
    "Instruments",
    "Measure",
    "Page",
    "Reading",
    "Use",
    "added_measures",
    "answer_measures",
    "compared_measures",
    "console_measures",
    "diversity",
    "evidence_found",
    "evidence_measure",
    "exact_match",
    "failed_measures",
    "find_measure",
    "frontier_measures",
    "gold_measures",
    "measures",
    "normalize_answer",
    "page_measures",
    "quick_measures",
    "reading_measures",
    "register",
    "right",
    "selection_measures",
    "token_f1",
    "unregister",
]
