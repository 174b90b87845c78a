"""An evaluation with a report behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.harness import EvaluationResult, EvaluationSettings, Progress, evaluate
from mio_rag.evaluation.report.page import render_report
from mio_rag.files import write_atomically
from mio_rag.generation import Generator
from mio_rag.measures import Instruments
from mio_rag.retrieval.index import CorpusIndex

__all__ = ["evaluate_and_report"]


def evaluate_and_report(
    dataset: Dataset | Sequence[Dataset],
    index: CorpusIndex | Sequence[CorpusIndex] | None,
    generator: Generator | None,
    settings: EvaluationSettings,
    out: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    instruments: Instruments | None = None,
) -> EvaluationResult:
    """`evaluate`, with ``report.html`` beside the ledger."""
    result = evaluate(
        dataset, index, generator, settings, out, resume=resume, progress=progress, instruments=instruments
    )
    page = render_report(result.rows, result.summary, result.comparisons, result.run)
    write_atomically(result.folder / "report.html", page)
    return result
