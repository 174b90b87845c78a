"""`python -m benchmarks planner`: the study on a table of outcomes, a sample live, a picture."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.files import replaced, write_json
from benchmarks.options import numbers
from benchmarks.planner.language import written
from benchmarks.planner.live import confirmed
from benchmarks.planner.picture import draw, table
from benchmarks.planner.study import study
from benchmarks.runner import note
from mio_rag.errors import InputError
from mio_rag.evaluation.ledger import environment
from mio_rag.learning.planner_training import read_table
from mio_rag.learning.ppo import PPOSettings
from mio_rag.retrieval.embedders import make_embedder

_MIXED = Path(__file__).parent / "mixed"


def command(given: argparse.Namespace) -> int:
    """Decide, compare, write."""
    found = read_table(given.table, make_embedder("minilm"))
    alphas = numbers("--ppo-alphas", given.ppo_alphas, float, zero=True)
    report: dict[str, Any] = study(
        found,
        folds=given.folds,
        seed=given.seed,
        ppo_alphas=alphas,
        ppo=PPOSettings(updates=given.updates),
        say=note,
    )
    if given.language:
        report["language"] = written(found, given, note)
    if given.mixed is not None:
        files = sorted(str(path) for path in _MIXED.glob("*.json"))
        mixed = read_table(given.mixed, make_embedder("minilm"), files)
        note("two models")
        report["mixed"] = study(
            mixed, folds=given.folds, seed=given.seed, ppo_alphas=(), cost="dollars", say=note
        )
    if given.generator is not None:
        if given.data is None or given.indexes is None:
            raise InputError("--generator needs --data and --indexes")
        report["live"] = confirmed(found, given)
    provenance = {
        key: found.outcomes.provenance.get(key)
        for key in ("generator", "budget_tokens", "rows_sha256", "sources")
    }
    report |= {"benchmark": "planner", "seed": given.seed, "table": provenance, **environment()}
    report["sets"] = dict(Counter(found.outcomes.sets))
    write_json(given.out, report)
    text = table(report)
    with replaced(given.out.with_suffix(".txt")) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    draw(report, given.out.with_suffix(".png"))
    print(text)
    return 0
