"""The main job on the bundled set: choose, answer, compare with top-k, and say where to look."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

from rich.console import Console

from mio_rag.console import print_selection, print_summary, progress_bar
from mio_rag.datasets import load_dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.harness import EvaluationResult, EvaluationSettings
from mio_rag.evaluation.run import evaluate_and_report
from mio_rag.generation import make_generator
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selector import Selector
from mio_rag.solvers.result import SolveOptions

__all__ = ["run_demo"]

_SHOWN_QUESTION = "q-10"
_BUDGETS = (128, 256)
_FILES = {"run.json", "rows.jsonl", "summary.json", "comparisons.json", "ledger.parquet", "report.html"}


def run_demo(console: Console, out: Path, embedder: str, generator_spec: str) -> EvaluationResult:
    """Run the demo and write its report to `out`.

    Parameters
    ----------
    out : Path
        A new folder, or one of an earlier demo, which is replaced.
    """
    if out.exists() and not _is_earlier_demo(out):
        raise InputError(f"'{out}' exists and holds no earlier demo: choose another folder with --out")
    dataset = load_dataset("demo")
    selector = Selector(options=SolveOptions(time_limit_seconds=5.0))
    settings = EvaluationSettings(
        methods=("topk", "mmr", "exact"), budgets=_BUDGETS, pool=30, selector=selector, max_tokens=32
    )
    with closing(make_generator(generator_spec)) as generator:
        with progress_bar(f"embedding with {embedder}", len(dataset.passages)) as advance:
            index = CorpusIndex.build(dataset.passages, embedder, dataset.name, advance)
        shown = next(q for q in dataset.questions if q.id == _SHOWN_QUESTION)
        candidates = Retriever(index, pool=settings.pool, counter=generator).retrieve(shown.text)
        selection = selector.select(candidates, _BUDGETS[0], generator)
        console.print(
            f"\n[bold]{shown.text}[/]   [dim]budget {_BUDGETS[0]} tokens, pool of {len(candidates)}[/]\n"
        )
        print_selection(console, selection, show_rest=5)
        shutil.rmtree(out, ignore_errors=True)
        with progress_bar("evaluating", len(dataset.questions)) as advance:
            result = evaluate_and_report(dataset, index, generator, settings, out, progress=advance)
    console.print(
        f"\n[bold]{len(dataset.questions)} questions over {len(dataset.passages)} passages[/]   "
        f"[dim]embedder {index.embedder.name}, reader {generator.name}, pool {settings.pool}; means, "
        "intervals are in the report[/]\n"
    )
    print_summary(console, result.summary)
    console.print(f"\nreport: {result.folder / 'report.html'}", markup=False, soft_wrap=True)
    return result


def _is_earlier_demo(folder: Path) -> bool:
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return bool(run["dataset"] == "demo") and {p.name for p in folder.iterdir()} <= _FILES
    except (OSError, ValueError, KeyError, TypeError):
        return folder.is_dir() and not any(folder.iterdir())
