"""The table of outcomes: what every set of strategies would have found, selected and cost on every question.

Rankings are those that were kept; merging and selection are done again for every set by the package itself.
Beside the gold measures a cell holds what the bandit would have been told: contributions and overlaps on the
pool of that very set. Cells are kept line by line, so that more questions add to what is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.strategies.found import POOL, asked, read_found
from mio_rag.generation import Generator
from mio_rag.learning.bandit_choice import Values, contributions, sets_to_compare
from mio_rag.learning.outcomes import Outcomes
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.search import Searched, search
from mio_rag.session.strategies import STRATEGIES, Found, SearchTask
from mio_rag.storage import append_lines
from mio_rag.types import Question

BASE = "raw"
BUDGET = 256
MEASURES = (
    "gold_recall", "all_gold", "pool_recall", "pool_all_gold", "tokens", "lm_calls", "retrieval_calls",
)  # fmt: skip
_KEPT = ("prompt_tokens", "completion_tokens", "lm_calls", "retrieval_calls")


class _Known:
    """A strategy that found its ranking before."""

    needs_model = needs_links = False

    def __init__(self, name: str, rows: Sequence[int]) -> None:
        self.name, self._rows = name, tuple(rows)

    def find(self, task: SearchTask) -> Found:
        """What it found then."""
        return Found(self._rows, note="" if self._rows else "nothing was found")


def every_action() -> list[str]:
    """All sets of strategies, by size: "raw", ..., "raw+hyde", ..."""
    sizes = range(1, len(STRATEGIES) + 1)
    return ["+".join(names) for size in sizes for names in combinations(STRATEGIES, size)]


def tabulate(
    data: Path,
    indexes: Path,
    counter: Generator | None,
    found: Path,
    out: Path,
    say: Callable[[str], None],
    pool: int = POOL,
) -> list[dict[str, Any]]:
    """Cells of all questions that have been searched for; those in the file stay.

    Parameters
    ----------
    counter : Generator or None
        Whose tokens the budget counts.
    pool : int
        Passages of a pool.
    """
    done = {(row["set"], row["id"]) for row in read_found(out)} if out.exists() else set()
    rows = [row for row in read_found(found) if (row["set"], row["id"]) not in done]
    for name in dict.fromkeys(row["set"] for row in rows):
        index = CorpusIndex.load(indexes / f"{name}-minilm")
        retriever = Retriever(index, pool=pool, counter=counter)
        order = asked(data, name)
        questions = {q.id: q for q in order}
        places = {q.id: place for place, q in enumerate(order)}
        for row in (r for r in rows if r["set"] == name):
            question = questions[row["id"]]
            embedding = index.embedder.encode([question.text])[0]
            line = {
                "set": name,
                "id": question.id,
                "place": places[question.id],
                "question": question.text,
                "embedding": [round(float(v), 6) for v in embedding],
                "cells": {a: _cell(question, retriever, row["strategies"], a) for a in every_action()},
            }
            append_lines(out, [json.dumps(line)])
            say(f"tabulated {name} {question.id}")
    return read_found(out)


def _cell(question: Question, retriever: Retriever, kept: Mapping[str, Any], action: str) -> dict[str, Any]:
    names = action.split("+")
    alone = sets_to_compare(names, (BASE,)) if BASE in names else []
    searched = search(question, retriever, None, [_Known(n, kept[n]["rows"]) for n in names], alone=alone)
    selector = Selector()
    selection = selector.select(searched.pool, BUDGET, retriever.counter)
    gold = set(question.gold_ids)
    read, pool = gold & set(selection.ids), gold & set(searched.pool.ids)
    spent = {key: sum(kept[n][key] for n in names) for key in _KEPT}
    return {
        "gold_recall": len(read) / len(gold),
        "all_gold": float(read == gold),
        "pool_recall": len(pool) / len(gold),
        "pool_all_gold": float(pool == gold),
        "tokens": spent["prompt_tokens"] + spent["completion_tokens"],
        **spent,
        **(_told(selector, searched, names, retriever) if BASE in names else {}),
    }


def _told(
    selector: Selector, searched: Searched, names: Sequence[str], retriever: Retriever
) -> dict[str, Any]:
    pool = searched.pool if searched.every is None else searched.every
    added = contributions(Values(selector, pool, searched.alone, BUDGET, retriever.counter), names, (BASE,))
    if added is None:
        return {}
    overlap = [[a, b, value] for (a, b), value in added.overlap.items()]
    return {"own": dict(added.own), "overlap": overlap, "base": added.base, "total": added.total}


def outcomes_of(cells: Sequence[Mapping[str, Any]]) -> Outcomes:
    """The cells as a table of outcomes, for whoever chooses among sets."""
    rows = [
        {
            "question_id": f"{line['set']}/{line['id']}",
            "question": line["question"],
            "set": line["set"],
            "action": action,
            **{measure: cell[measure] for measure in MEASURES},
        }
        for line in cells
        for action, cell in line["cells"].items()
    ]
    return Outcomes.from_rows(rows, MEASURES, actions=every_action(), provenance={"budget_tokens": BUDGET})
