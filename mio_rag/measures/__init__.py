"""Measures of a selection, an answer and their cost: one registry for everything that shows them.

A measure owns its name, meaning, direction, unit, source and function. A new one is an entry in `selections`,
`answers`, `readings` or `costs`, or a call of `register`; ledger, summary, comparisons, console, report and
frontier then show it.
"""

from mio_rag.measures.answers import exact_match, normalize_answer, right, token_f1
from mio_rag.measures.instruments import Instruments, Reading
from mio_rag.measures.measure import LAST, Column, Frontier, Measure, Page, Use
from mio_rag.measures.registry import (
    RESERVED,
    added_measures,
    answer_measures,
    compared_measures,
    console_measures,
    evidence_measure,
    failed_measures,
    find_measure,
    frontier_measures,
    measures,
    page_measures,
    pool_measures,
    quick_measures,
    reading_measures,
    register,
    selection_measures,
    unregister,
)
from mio_rag.measures.selections import coverage, diversity, evidence_found

__all__ = [
    "LAST", "RESERVED", "Column", "Frontier", "Instruments", "Measure", "Page", "Reading", "Use",
    "added_measures", "answer_measures", "compared_measures", "console_measures", "coverage", "diversity",
    "evidence_found", "evidence_measure", "exact_match", "failed_measures", "find_measure",
    "frontier_measures", "measures", "normalize_answer", "page_measures", "pool_measures",
    "quick_measures", "reading_measures", "register", "right", "selection_measures", "token_f1", "unregister",
]  # fmt: skip
