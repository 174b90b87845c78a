"""One set: pools of its report half, every method at its budgets, one number a question.

Finished methods lie in the work folder as one JSON file each, so that an interrupted run goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.relevance.methods import Compared
from mio_rag.context import RegexCounter
from mio_rag.errors import InputError
from mio_rag.evaluation.ledger import write_atomically
from mio_rag.evaluation.measures import gold_measures
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.types import Candidates, Question

__all__ = ["Columns", "ceilings", "pools_of", "run_method"]

#: method -> budget -> {recall, all_gold, tokens, proven, seconds}: a list with one value a question each
Columns = dict[str, dict[str, list[float]]]


def pools_of(index: CorpusIndex, questions: Sequence[Question]) -> dict[int, list[Candidates]]:
    """The pools as retrieved (0) and expanded along links (1)."""
    index.embedder.encode([q.text for q in questions])  # in batches, into the cache
    retrievers = {hops: Retriever(index, link_hops=hops) for hops in (0, 1)}
    return {hops: [r.retrieve(q.text) for q in questions] for hops, r in retrievers.items()}


def ceilings(questions: Sequence[Question], pools: Mapping[int, Sequence[Candidates]]) -> dict[str, Any]:
    """What the pools hold of the gold, and how much the gold costs: the limits of any selection."""
    found: dict[str, Any] = {}
    for hops, given in pools.items():
        recall, everything, costs = [], [], []
        for q, pool in zip(questions, given, strict=True):
            gold = set(q.gold_ids)
            held = gold & set(pool.ids)
            recall.append(len(held) / len(gold) if gold else np.nan)
            everything.append(float(held == gold) if gold else np.nan)
            costs.append(sum(int(pool.tokens[k]) for k, i in enumerate(pool.ids) if i in gold))
        entry: dict[str, Any] = {"pool": float(np.mean([len(p) for p in given]))}
        if questions[0].gold_ids:
            fits = {str(b): float(np.mean(np.array(everything) * (np.array(costs) <= b))) for b in _SHOWN}
            entry |= {
                "recall": float(np.mean(recall)),
                "all_gold": float(np.mean(everything)),
                "gold_tokens": float(np.mean(costs)),
                "all_gold_within": fits,
            }
        found[str(hops)] = entry
    return found


_SHOWN = (128, 256, 512, 1024)


def run_method(
    folder: Path,
    questions: Sequence[Question],
    pools: Mapping[int, Sequence[Candidates]],
    compared: Compared,
    budgets: Sequence[int],
    progress: Callable[[str], None],
) -> Columns:
    """A method on every question, from the work folder where it has been run with the same settings."""
    selector = compared.method.selector
    settings = f"{selector}{compared.hops}{[q.id for q in questions]}"
    digest = hashlib.sha256(settings.encode()).hexdigest()[:16]
    safe = "".join(c if c.isalnum() else "-" for c in compared.name)
    path = folder / f"{safe}.json"
    known: dict[str, Any] = {}
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
    columns: Columns = known["columns"] if known.get("settings") == digest else {}
    for budget in budgets:
        if str(budget) in columns:
            continue
        columns[str(budget)] = _at_budget(questions, pools[compared.hops], compared, budget)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"settings": digest, "columns": columns}))
        progress(f"{compared.name} at {budget}")
    return {str(b): columns[str(b)] for b in budgets}


def _at_budget(
    questions: Sequence[Question], pools: Sequence[Candidates], compared: Compared, budget: int
) -> dict[str, list[float]]:
    counter = RegexCounter()
    column: dict[str, list[float]] = {k: [] for k in ("recall", "all_gold", "tokens", "proven", "seconds")}
    for question, pool in zip(questions, pools, strict=True):
        recall = everything = tokens = seconds = 0.0
        proven = 1.0
        try:
            selection = compared.method.select(pool, budget, counter)
        except InputError as error:
            if "below the shortest passage" not in str(error):
                raise
        else:
            measures = gold_measures(question, selection)
            recall = measures["gold_recall"] if question.gold_ids else measures["source_recall"]
            everything = float(recall >= 1 - 1e-12)
            tokens = float(selection.tokens_used)
            proven = float(selection.result.is_optimal)
            seconds = selection.result.wall_seconds
        for key, value in zip(column, (recall, everything, tokens, proven, seconds), strict=True):
            column[key].append(value)
    return column
