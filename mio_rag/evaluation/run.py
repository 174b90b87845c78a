"""An evaluation with a progress bar in front and a report behind it."""

from __future__ import annotations

from pathlib import Path

from mio_rag.console import progress_bar
from mio_rag.datasets import Dataset
from mio_rag.evaluation.harness import EvaluationResult, EvaluationSettings, evaluate
from mio_rag.evaluation.ledger import write_atomically
from mio_rag.evaluation.report import render_report
from mio_rag.generation import Generator
from mio_rag.retrieval.index import CorpusIndex

__all__ = ["evaluate_and_report"]


def evaluate_and_report(
    dataset: Dataset,
    index: CorpusIndex,
    generator: Generator | None,
    settings: EvaluationSettings,
    out: str | Path,
    *,
    resume: bool = False,
) -> EvaluationResult:
    """`evaluate`, shown as it runs, with ``report.html`` beside the ledger."""
    total = len(dataset.questions[: settings.limit])
    with progress_bar("evaluating", total) as advance:
        result = evaluate(dataset, index, generator, settings, out, resume=resume, progress=advance)
    page = render_report(result.rows, result.summary, result.comparisons, result.run)
    write_atomically(result.folder / "report.html", page)
    return result
