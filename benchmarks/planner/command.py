"""`python -m benchmarks planner`: the study on a table of outcomes, a sample live, a picture."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.files import replaced, write_json
from benchmarks.options import numbers
from benchmarks.planner.language import written
from benchmarks.planner.live import confirmed
from benchmarks.planner.picture import draw, table
from benchmarks.planner.study import study
from mio_rag.errors import InputError, MioRagError
from mio_rag.evaluation.ledger import environment
from mio_rag.learning.planner import read_table
from mio_rag.learning.ppo import PPOSettings
from mio_rag.retrieval.embedders import make_embedder

__all__ = ["add_options", "command"]


_MIXED = Path(__file__).parent / "mixed"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("--table", type=Path, required=True, help="folder that `mio-rag plan outcomes` wrote")
    add("--folds", type=int, default=5, help="decide on one, learn from the others (default: 5)")
    add("--seed", type=int, default=0, help="of the folds (default: 0)")
    add(
        "--ppo-alphas",
        default="0,0.05,0.1,0.2,0.5",
        help="prices of the networks (default: the published five)",
    )
    add("--updates", type=int, default=25, help="most rounds of training of a network (default: 25)")
    add("--data", type=Path, help="with --generator: folder that holds one folder for each set")
    add("--indexes", type=Path, help="with --generator: folder that holds one index SET-minilm for each set")
    add("--generator", help="confirm a sample live, for instance 'gguf:MODEL.gguf?replies=FILE.sqlite'")
    add("--swap", help="another reader that the same decisions are tried with")
    add("--language", type=int, default=0, help="questions that a language model plans (default: none)")
    add("--mixed", type=Path, help="a table of workflows that ask two models, with their prices")
    add("--live", type=int, default=14, help="questions of the live sample (default: 14)")
    add("--out", type=Path, default=Path("benchmarks/results/planner.json"))


def command(given: argparse.Namespace) -> int:
    """Decide, compare, write."""
    try:
        found = read_table(given.table, make_embedder("minilm"))
        alphas = numbers("--ppo-alphas", given.ppo_alphas, float, zero=True)
        report: dict[str, Any] = study(
            found,
            folds=given.folds,
            seed=given.seed,
            ppo_alphas=alphas,
            ppo=PPOSettings(updates=given.updates),
            say=_say,
        )
        if given.language:
            report["language"] = written(found, given, _say)
        if given.mixed is not None:
            files = sorted(str(path) for path in _MIXED.glob("*.json"))
            mixed = read_table(given.mixed, make_embedder("minilm"), files)
            _say("two models")
            report["mixed"] = study(
                mixed, folds=given.folds, seed=given.seed, ppo_alphas=(), cost="dollars", say=_say
            )
        if given.generator is not None:
            if given.data is None or given.indexes is None:
                raise InputError("--generator needs --data and --indexes")
            report["live"] = confirmed(found, given)
    except MioRagError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
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
