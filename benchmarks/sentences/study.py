"""Passages against sentences at the same prices and budgets; finished rows lie in the work folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.repetition.study import Columns, answered
from benchmarks.repetition.summary import interval
from mio_rag.context import RegexCounter, block_tokens, merged
from mio_rag.evaluation.contenders import make_methods
from mio_rag.pool import Candidates
from mio_rag.relevance.sentences import shipped_sentences
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.storage import write_atomically
from mio_rag.types import Question

_BUDGETS = (128, 256, 512, 1024)
_PRICES = (0.0, 0.0002, 0.0005, 0.001)
_COUNTER = RegexCounter()
#: Rows of sentences that nobody has embedded.
BY_WORDS = "by words"


def _selectors() -> dict[str, tuple[Selector, str | None]]:
    own = Selector(options=SolveOptions(time_limit_seconds=2.0, relative_gap=1e-3))
    fused = make_methods(["fused"], own)[0]
    rows: dict[str, tuple[Selector, str | None]] = {"fused": (fused.selector, fused.score)}
    for price in _PRICES:
        for units in ("passages", "sentences"):
            rows[f"{units}, price {price:g}"] = own.replace(token_price=price, units=units), None
        rows[f"{BY_WORDS}, price {price:g}"] = own.replace(token_price=price, units="sentences"), None
    rows[f"{BY_WORDS} where passages do not fit"] = own.replace(units="auto"), None
    return rows


def rows_of(
    folder: Path,
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    tell: Callable[[str], None],
) -> dict[str, Columns]:
    """Answer, gold passages, tokens and time of every row at every budget, one value a question."""
    found: dict[str, Columns] = {}
    for name, (selector, score) in _selectors().items():
        told, given = f"{selector.to_dict()}{score}{[q.id for q in questions]}{_BUDGETS}", pools
        if name.startswith(BY_WORDS):
            told += str(shipped_sentences(None))
            given = [replace(pool, sentences=None) for pool in pools]
        elif selector.units == "sentences":
            told += str(shipped_sentences(pools[0].embedder))
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        path = folder / f"{name}.json".replace(" ", "-").replace(",", "")
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if known.get("settings") != digest:
            known = {"settings": digest, "columns": _columns(selector, score, questions, given)}
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(known))
            tell(f"{folder.name}: {name}")
        found[name] = known["columns"]
    return found


def _columns(
    selector: Selector, score: str | None, questions: Sequence[Question], pools: Sequence[Candidates]
) -> Columns:
    kept = ("answer", "gold", "tokens", "proven", "milliseconds")
    columns: Columns = {str(budget): {name: [] for name in kept} for budget in _BUDGETS}
    for question, pool in zip(questions, pools, strict=True):
        scored = pool if score is None else replace(pool, relevance=pool.scores[score])
        known = None
        for budget in _BUDGETS:
            made = selector.choose(scored, budget, _COUNTER, known=known)
            known = made.formulation
            units, column = known.candidates, columns[str(budget)]
            read = [block.passage for block in merged(units, made.chosen)]
            names = {units.passage_ids[i] for i in made.chosen}
            column["answer"].append(float(answered(question, [f"{p.title} {p.text}" for p in read])))
            column["gold"].append(len(names & set(question.gold_ids)) / max(1, len(question.gold_ids)))
            column["tokens"].append(float(block_tokens(units, made.chosen, _COUNTER, True)))
            column["proven"].append(float(made.result.is_optimal))
            column["milliseconds"].append(1000 * made.result.wall_seconds)
    return columns


def summary(rows: Mapping[str, Columns], seed: int) -> dict[str, Any]:
    """Means with 95 % bootstrap intervals over questions."""
    asked = len(rows["fused"][str(_BUDGETS[0])]["answer"])
    draws = np.random.default_rng(seed).integers(0, asked, (2000, asked))
    return {
        name: {
            budget: {key: interval(np.array(column[key]), draws) for key in ("answer", "gold", "tokens")}
            | {
                "proven": round(float(np.mean(column["proven"])), 4),
                "median_milliseconds": round(float(np.median(column["milliseconds"])), 2),
                "p95_milliseconds": round(float(np.percentile(column["milliseconds"], 95)), 2),
            }
            for budget, column in columns.items()
        }
        for name, columns in rows.items()
    }


def table(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """For people: answer rate, gold passages and tokens by budget; milliseconds at the largest."""
    lines = []
    for name, rows in sets.items():
        head = "".join(f"{f'at {b}':>23}" for b in _BUDGETS)
        lines += [f"{name:26}{head}   median and p95 ms", ""]
        for row, columns in rows.items():
            cells = "".join(
                f"{c['answer']['mean']:>9.3f} {c['gold']['mean']:.3f} /{c['tokens']['mean']:>6.0f}"
                for c in columns.values()
            )
            last = columns[str(_BUDGETS[-1])]
            lines.append(f"{row:26}{cells}   {last['median_milliseconds']:g} {last['p95_milliseconds']:g}")
        lines.append("")
    return "\n".join(lines) + "answer in what is read, gold passages of which something is read / tokens"
