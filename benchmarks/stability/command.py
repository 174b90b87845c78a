"""`python -m benchmarks stability`: nominal, termwise and joint selection at matched token budgets."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.files import write_json
from benchmarks.options import numbers
from benchmarks.relevance.models import halves
from benchmarks.stability.picture import draw, table
from benchmarks.stability.study import Plan, run_questions
from benchmarks.stability.summary import summarize
from benchmarks.stability.versions import Versions
from mio_rag import __version__
from mio_rag.cli.terminal import progress_bar
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError, SolverError
from mio_rag.files import write_atomically
from mio_rag.relevance import load_model
from mio_rag.retrieval import CorpusIndex, Retriever

__all__ = ["add_options", "command"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder that holds one folder for each set")
    add("--indexes", type=Path, required=True, help="folder that holds an index (with links) for each set")
    add("--sets", required=True, help="comma-separated; the order of the report")
    add("--work", type=Path, required=True, help="folder of finished questions; a run goes on there")
    add("--budgets", default="256,512", help="tokens (default: %(default)s)")
    add("--radii", default="0.02,0.05,0.1", help="l2 radii of the counterparts (default: %(default)s)")
    add("--encoder", default="tfidf", help="second embedder: tfidf, minilm, ID_OR_PATH (default: tfidf)")
    add("--parts", type=int, default=96, help="bytes of the product code (default: %(default)s)")
    add("--random-radius", type=float, default=0.1, help="size of the random error (default: %(default)s)")
    add("--limit", type=int, default=150, help="questions a set (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the choice of questions and of errors (default: 0)")
    add("--finished", action="store_true", help="report what the work folder holds, compute nothing")
    add("--out", type=Path, default=Path("benchmarks/results/stability.json"))


def command(given: argparse.Namespace) -> int:
    """Run what is not finished yet, then write JSON, table and picture.

    Returns
    -------
    int
        0; 1 where solvers and certificates contradict each other, 2 for bad input, 130 when interrupted.
    """
    try:
        return _study(given)
    except InputError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except SolverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: finished questions are kept, the same command goes on", file=sys.stderr)
        return 130


def _study(given: argparse.Namespace) -> int:
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    budgets = numbers("--budgets", given.budgets, int)
    radii = numbers("--radii", given.radii, float)
    if given.limit < 2:
        raise InputError(f"--limit={given.limit} must be >= 2: differences are over questions")
    model = load_model("ranks")  # of any embedder
    assert model is not None
    plan = Plan(budgets, radii, model)
    results = {name: _set(given, name, plan) for name in names}
    report = {
        "benchmark": "stability",
        "command": f"python -m benchmarks stability --sets {given.sets} --limit {given.limit} "
        f"--budgets {given.budgets} --radii {given.radii} --encoder {Path(given.encoder).name} "
        f"--parts {given.parts} --random-radius {given.random_radius:g} --seed {given.seed}",
        "seed": given.seed,
        "encoder": Path(given.encoder).name,
        "random_radius": given.random_radius,
        "relative_gap": 1e-3,
        "results": results,
        "versions": {
            "mio-rag": __version__,
            **{p: metadata.version(p) for p in ("numpy", "scikit-learn", "faiss-cpu", "bm25s")},
        },
        "machine": {"system": platform.system(), "processor": platform.machine()},
    }
    write_json(given.out, report)
    text = table(report)
    write_atomically(given.out.with_suffix(".txt"), text + "\n")
    draw(report, given.out.with_suffix(".png"))
    print(text)
    return 0


def _set(given: argparse.Namespace, name: str, plan: Plan) -> dict[str, Any]:
    dataset = load_dataset(given.data / name)
    # The half that the shipped relevance model was not fitted on.
    questions = halves(dataset, given.seed, given.limit).report
    if not questions:
        raise InputError(f"'{name}' has no questions with gold passages or sources")
    index = CorpusIndex.load(given.indexes / name)
    label = json.dumps([dataset.content_hash(), index.embedder.fingerprint, given.encoder, given.parts])
    with progress_bar(f"{name}: {len(questions)} questions", len(questions)) as advance:
        rows = run_questions(
            given.work,
            name,
            questions,
            Retriever(index, link_hops=1),
            lambda: Versions(index, given.encoder, given.parts, given.random_radius, given.seed),
            plan,
            f"{label}{given.random_radius}{given.seed}",
            advance,
            finished_only=given.finished,
        )
    if len(rows) < 2:
        raise InputError(f"'{name}' has {len(rows)} finished questions: leave out --finished")
    return {
        "questions": len(rows),
        "gold": "passage" if questions[0].gold_ids else "document",
        "data_sha256": dataset.content_hash(),
        **summarize(rows),
    }
