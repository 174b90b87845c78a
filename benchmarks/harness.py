"""Methods of `mio-rag evaluate` on question sets: a study that is nothing but settings."""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from benchmarks.compare import Row, draw, rows_table, summarized
from benchmarks.questions import load_sets
from benchmarks.runner import Measured, numbers
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.generation import make_generator
from mio_rag.selection.selector import Selector

_QUALITIES = ("gold_recall", "token_f1")


def measure(given: argparse.Namespace) -> Measured:
    """Run the harness; its own files stay in the work folder."""
    sets = load_sets(given)
    settings = EvaluationSettings(
        methods=tuple(given.methods.split(",")),
        budgets=tuple(numbers("--budgets", given.budgets, int)),
        baseline=given.baseline,
        selector=Selector.preset(given.preset, passage_penalty=given.penalty)
        if given.penalty
        else Selector.preset(given.preset),
        limit=given.limit,
        seed=given.seed,
    )
    generator = make_generator(given.generator) if given.generator else None
    try:
        datasets, folder = [one.dataset for one in sets], given.work / "run"
        shared = len({id(one.index) for one in sets}) == 1
        indexes = sets[0].index if shared else [one.index for one in sets]
        found = evaluate(datasets, indexes, generator, settings, folder, resume=folder.is_dir())
    finally:
        if generator is not None:
            generator.close()
    rows: dict[tuple[str, int], list[dict[str, float]]] = {}
    for row in found.rows:
        values = {m: row[m] for m in ("tokens_used", *_QUALITIES) if row.get(m) is not None}
        rows.setdefault((row["method"], int(row["budget_tokens"])), []).append(values)
    made = [
        Row(f"{method} {budget}", method, {m: np.array([float(one[m]) for one in of]) for m in of[0]})
        for (method, budget), of in rows.items()
    ]
    summary = summarized(made)
    qualities = [m for m in _QUALITIES if m in made[0].columns]
    report = {"rows": summary, "comparisons": found.comparisons, "run": found.run["settings"]}
    table = rows_table(summary, {"tokens_used": 0, **dict.fromkeys(qualities, 3)})
    return Measured(report, table, partial(draw, summary, cost="tokens_used", qualities=qualities))
