"""`python -m benchmarks strategies-memory`: what it brings to remember passages of answers that were rated.

Questions of a set come in an order drawn by seed. Each is searched for as it is and selected for; somebody
rates the answer: helpful where all gold passages were read, and the other way round for a share of the
ratings. What is remembered moves the relevance for later questions. Recall of the second half is compared
with that without a memory, question by question.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mio_rag.control.bandit.passages import PassageMemory, remembering

from benchmarks.files import write_json
from benchmarks.strategies.found import POOL, asked
from mio_rag.errors import InputError, MioRagError
from mio_rag.evaluation.ledger import environment
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector

__all__ = ["add_options", "command", "remembered"]

WEIGHTS = (0.5, 1.0, 2.0)
_WRONG = (0.0, 0.2)  # share of ratings that say the opposite
_BUDGET = 256
_ORDERS = 3
_NORMAL = 1.959963984540054


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--data", type=Path, required=True, help="folder that holds one folder for each set")
    parser.add_argument("--indexes", type=Path, required=True, help="folder with an index NAME-minilm each")
    parser.add_argument("--sets", default="squad2,musique", help="comma-separated")
    parser.add_argument("--limit", type=int, default=300, help="questions of each set (default: 300)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/strategies-memory.json"))


def command(given: argparse.Namespace) -> int:
    """Measure every set; print a line for each setting."""
    report: dict[str, Any] = {}
    try:
        for name in given.sets.split(","):
            report[name] = remembered(given.data, given.indexes, name, given.limit)
            for row in report[name]["rows"]:
                print(
                    f"{name:15} weight {row['weight']:3} wrong {row['wrong']:.0%}: "
                    f"recall {row['recall']:.3f}, "
                    f"{row['gain']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"
                )
    except MioRagError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_json(given.out, {"benchmark": "strategies-memory", "sets": report, **environment()})
    return 0


def remembered(data: Path, indexes: Path, name: str, limit: int) -> dict[str, Any]:
    """One set: recall by weight and share of wrong ratings, over several orders."""
    questions = asked(data, name)[:limit]
    if len(questions) < 4:
        raise InputError(f"'{name}' has {len(questions)} questions with gold passages: leave it out")
    retriever = Retriever(CorpusIndex.load(indexes / f"{name}-minilm"), pool=POOL)
    pools = [retriever.retrieve(question.text) for question in questions]
    gold = [set(question.gold_ids) for question in questions]
    distinct = len(set().union(*gold))
    rows = []
    for wrong in _WRONG:
        gains: dict[float, list[float]] = {weight: [] for weight in WEIGHTS}
        recalls: dict[float, list[float]] = {weight: [] for weight in (0.0, *WEIGHTS)}
        for seed in range(_ORDERS):
            rng = np.random.default_rng([24, seed])
            order, luck = rng.permutation(len(questions)), rng.random(len(questions))
            late = order[len(order) // 2 :]
            found = {weight: _recalls(pools, gold, order, luck < wrong, weight) for weight in (0.0, *WEIGHTS)}
            for weight, recall in found.items():
                recalls[weight] += recall[late].tolist()
            for weight in WEIGHTS:
                gains[weight] += (found[weight] - found[0.0])[late].tolist()
        for weight in WEIGHTS:
            values = np.array(gains[weight])
            # Orders repeat questions: the interval goes by as many as there are, not by how often they came.
            half = _NORMAL * float(values.std(ddof=1)) / (len(values) / _ORDERS) ** 0.5
            middle = float(values.mean())
            rows.append(
                {
                    "weight": weight,
                    "wrong": wrong,
                    "recall": float(np.mean(recalls[weight])),
                    "without": float(np.mean(recalls[0.0])),
                    "gain": middle,
                    "low": middle - half,
                    "high": middle + half,
                }
            )
    return {"questions": len(questions), "gold_passages": distinct, "orders": _ORDERS, "rows": rows}


def _recalls(pools: Any, gold: Any, order: Any, lies: Any, weight: float) -> Any:
    memory, selector, recall = PassageMemory(), Selector(), np.zeros(len(pools))
    for place in order.tolist():
        how, pool = remembering(selector, pools[place], memory, weight)
        read = how.select(pool, _BUDGET).ids
        recall[place] = len(gold[place] & set(read)) / len(gold[place])
        memory.learn(read, (recall[place] == 1.0) != bool(lies[place]))
    return recall
