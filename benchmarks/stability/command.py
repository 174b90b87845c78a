"""`python -m benchmarks stability`: nominal, termwise and joint selection at matched token budgets."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.options import numbers
from benchmarks.relevance.models import halves
from benchmarks.runner import Measured
from benchmarks.stability.picture import draw, table
from benchmarks.stability.study import Plan, run_questions
from benchmarks.stability.summary import summarize
from benchmarks.stability.versions import Versions
from mio_rag.cli.terminal import progress_bar
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.relevance import load_model
from mio_rag.retrieval import CorpusIndex, Retriever


def command(given: argparse.Namespace) -> Measured:
    """Run what is not finished yet, then write JSON, table and picture."""
    return _study(given)


def _study(given: argparse.Namespace) -> Measured:
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
        "seed": given.seed,
        "encoder": Path(given.encoder).name,
        "random_radius": given.random_radius,
        "relative_gap": 1e-3,
        "results": results,
    }
    return Measured(report, table(report), partial(draw, report))


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
