"""``mio-rag demo``: choose, answer and compare with fused top-k on the bundled set."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.cli.options.shared import EmbedderName, GeneratorSpec, Json
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.cli.terminal import Terminal
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.evaluation.harness import EvaluationResult, EvaluationSettings
    from mio_rag.generation import Generator
    from mio_rag.retrieval import CorpusIndex

__all__ = ["demo", "run_demo"]

_SHOWN_QUESTION = "q-04"  # one on which the methods differ; the table of means follows it
_BUDGETS = (256, 512)
# All that a demo writes: a folder with anything else is not removed.
_FILES = {
    "run.json",
    "rows.jsonl",
    "summary.json",
    "comparisons.json",
    "matched.json",
    "ledger.parquet",
    "report.html",
}


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder of the report.")] = Path("mio-rag-demo"),
    embedder: EmbedderName = "minilm",
    generator: GeneratorSpec = "extractive",
    json_output: Json = False,
) -> None:
    """Choose, answer, and compare with fused top-k. On the bundled questions; under a minute."""
    from mio_rag.cli.show.evaluation import evaluation_json

    output = open_output(json_output)
    result = run_demo(output.console, out, embedder, generator)
    if json_output:
        output.json(evaluation_json(result))


def run_demo(console: Terminal, out: Path, embedder: str, generator_spec: str) -> EvaluationResult:
    """Run the demo and write its report to `out`.

    Parameters
    ----------
    out : Path
        A new folder, or one of an earlier demo, which is replaced.
    """
    from mio_rag.cli.progress import progress_bar
    from mio_rag.cli.show.evaluation import print_summary
    from mio_rag.cli.terminal import styled
    from mio_rag.corpora.load import load_dataset
    from mio_rag.evaluation.harness import EvaluationSettings, evaluate_and_report
    from mio_rag.evaluation.statistics import part_read
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.embedders import check_embedder
    from mio_rag.selection.selector import Selector
    from mio_rag.solvers.result import SolveOptions

    if out.exists() and not _is_earlier_demo(out):
        raise InputError(f"'{out}' exists and holds no earlier demo: choose another folder with --out")
    collect(lambda: check_embedder(embedder), lambda: check_generator(generator_spec))
    dataset = load_dataset("demo")
    selector = Selector(options=SolveOptions(time_limit_seconds=5.0))
    settings = EvaluationSettings(
        methods=("fused", "mmr", "exact", "exact:auto"),
        budgets=_BUDGETS,
        selector=selector,
        max_tokens=32,
    )
    with closing(make_generator(generator_spec)) as generator:
        with progress_bar(f"embedding with {embedder}", len(dataset.passages)) as advance:
            index = CorpusIndex.build(dataset.passages, embedder, dataset.name, advance)
        _show_one(console, dataset, index, generator, settings)
        _clear(out)
        with progress_bar("evaluating", len(dataset.questions)) as advance:
            result = evaluate_and_report(dataset, index, generator, settings, out, progress=advance)
    console.print(
        styled(
            (f"\n{len(dataset.questions)} questions over {len(dataset.passages)} passages", "bold"),
            (
                f"   embedder {index.embedder.name}, reader {generator.name}, "
                f"pool {settings.retrieval.pool}; means, intervals are in the report\n",
                "dim",
            ),
        )
    )
    print_summary(console, result.summary, result.comparisons, result.run["baseline"])
    console.print(f"\nnote: {part_read(result.run)}", style="yellow", soft_wrap=True)
    console.print(f"\nreport: {result.folder / 'report.html'}", soft_wrap=True)
    console.print(
        "to ask your own questions on a page: mio-rag index demo --out INDEX, then mio-rag serve INDEX"
    )
    return result


def _show_one(
    console: Terminal,
    dataset: Dataset,
    index: CorpusIndex,
    generator: Generator,
    settings: EvaluationSettings,
) -> None:
    """One question in full: what the program chooses and why, and what fused top-k would have read."""
    from mio_rag.cli.show.selection import print_selection
    from mio_rag.cli.terminal import styled
    from mio_rag.evaluation.contenders import make_methods
    from mio_rag.retrieval import Retriever

    question = next(q for q in dataset.questions if q.id == _SHOWN_QUESTION)
    candidates = Retriever.of(index, settings.retrieval, generator).retrieve(question.text)
    fused, exact = (
        method.select(candidates, _BUDGETS[0], generator)
        for method in make_methods(["fused", "exact"], settings.selector)
    )
    console.print(
        styled(
            (f"\n{question.text}", "bold"),
            (f"   budget {_BUDGETS[0]} tokens, pool of {len(candidates)}\n", "dim"),
        )
    )
    print_selection(console, exact, explain=True, show_rest=3)
    for name, selection in (("chosen above", exact), ("fused top-k", fused)):
        held = sum(i in question.gold_ids for i in selection.ids)
        console.print(
            styled(
                f"{name}: {held} of {len(question.gold_ids)} evidence passages in "
                f"{selection.tokens_used} tokens ",
                (f"({', '.join(selection.ids)})", "dim"),
            )
        )


def _is_earlier_demo(folder: Path) -> bool:
    """Whether a folder holds a demo, which may have been killed at any moment, and nothing else."""
    from mio_rag.files import is_leftover, is_vacant
    from mio_rag.reading import read_json

    try:
        if is_vacant(folder):
            return True
        run = read_json(folder / "run.json")
        others = {p.name for p in folder.iterdir() if not is_leftover(p.name)} - _FILES
        return bool(run["dataset"] == "demo") and not others
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _clear(folder: Path) -> None:
    """Remove an earlier demo, unless it is still at work."""
    from mio_rag.files import locked

    if not folder.exists():
        return
    with locked(folder):
        try:
            for name in [*sorted(_FILES - {"run.json"}), "run.json"]:  # by the last one a demo is known
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"'{folder}' cannot be written: {error}") from error
