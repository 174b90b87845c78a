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

from benchmarks.relevance.methods import LINKED, PLAIN, RERANKED, Compared
from mio_rag.measures import evidence_found
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.rerank import Reranker, rescored
from mio_rag.selection.selector import Selector
from mio_rag.solvers import solve
from mio_rag.storage import write_atomically
from mio_rag.types import Question

#: method -> budget -> {recall, all_gold, tokens, proven, seconds}: a list with one value a question each
Columns = dict[str, dict[str, list[float]]]


def pools_of(
    index: CorpusIndex, questions: Sequence[Question], reranker: Reranker | None = None
) -> dict[int, list[Candidates]]:
    """The pools as retrieved, expanded along links, and re-ranked."""
    texts = [q.text for q in questions]
    index.embedder.encode(texts)  # in batches, into the cache
    pools = {hops: Retriever(index, link_hops=hops).retrieve_many(texts) for hops in (PLAIN, LINKED)}
    return pools | ({RERANKED: rescored(pools[LINKED], reranker)} if reranker else {})


def ceilings(questions: Sequence[Question], pools: Mapping[int, Sequence[Candidates]]) -> dict[str, Any]:
    """What the pools hold of the gold, and how much the gold costs: the limits of any selection."""
    found: dict[str, Any] = {}
    for hops, given in pools.items():
        if hops == RERANKED:  # the passages of the one before
            continue
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
    settings = f"{selector}{compared.pool}{[q.id for q in questions]}"
    digest = hashlib.sha256(settings.encode()).hexdigest()[:16]
    safe = "".join(c if c.isalnum() else "-" for c in compared.name)
    path = folder / f"{safe}.json"
    known: dict[str, Any] = {}
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
    columns: Columns = known["columns"] if known.get("settings") == digest else {}
    missing = [budget for budget in budgets if str(budget) not in columns]
    if missing:
        scored = [compared.method.scored(pool) for pool in pools[compared.pool]]
        valued = [selector.valued(pool) for pool in scored]
    for budget in missing:
        columns[str(budget)] = _at_budget(questions, valued, selector, budget)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"settings": digest, "columns": columns}))
        progress(f"{compared.name} at {budget}")
    return {str(b): columns[str(b)] for b in budgets}


def _at_budget(
    questions: Sequence[Question], pools: Sequence[Candidates], selector: Selector, budget: int
) -> dict[str, list[float]]:
    """Program and solver of the selector on pools that it has valued.

    Without the explanations that `Selector.select` adds; its counter sums over passages, so that the block
    never has to be chosen again.
    """
    column: dict[str, list[float]] = {k: [] for k in ("recall", "all_gold", "tokens", "proven", "seconds")}
    for question, pool in zip(questions, pools, strict=True):
        result = solve(selector.program(pool, budget), selector.solver, selector.options)
        chosen = list(result.selected)
        found = evidence_found(question, pool, chosen)
        values = (
            found,
            float(found >= 1 - 1e-12),
            float(pool.tokens[chosen].sum()),
            float(result.is_optimal),
            result.wall_seconds,
        )
        for key, value in zip(column, values, strict=True):
            column[key].append(value)
    return column
