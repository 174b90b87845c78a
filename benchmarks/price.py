"""One price for every token, and one total for all questions, against one budget for all.

    fused            reciprocal rank fusion, best first, one budget for all questions
    probabilities    ranking by the same probabilities as the program, one budget for all
    program          the exact program without prices, one budget for all
    default          the same with the default price of a passage
    price            the exact program at one price of a token, at most `CEILING` tokens a question
    allocation       one total for all questions, with a certificate

Relevance of each set is weighed by a model that was fitted on the other sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.compare import Row, differences, draw, rows_table, summarized
from benchmarks.questions import left_out, load_sets, pools_of
from benchmarks.runner import Measured, interval_text, note, text_table
from mio_rag.allocation import allocate
from mio_rag.measures import evidence_found
from mio_rag.methods import make_methods
from mio_rag.pool import Candidates
from mio_rag.selection.program import LINK_BENEFIT
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.types import Question

BUDGETS = (128, 256, 512, 1024)
PRICES = (0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
MEANS = (150, 250, 400, 600, 1000)
CEILING = 2048
_POOL = 50  # passages that retrieval ranked; links added the others
_PAIRS = (
    ("allocation 250", "fused 512"), ("allocation 250", "fused 256"), ("allocation 250", "program 256"),
    ("allocation 400", "fused 1024"), ("allocation 400", "program 512"), ("allocation 1000", "fused 1024"),
    ("allocation 1000", "program 1024"), ("program 256", "probabilities 256"),
    ("program 1024", "probabilities 1024"),
)  # fmt: skip
_MEASURES = {"tokens": 0, "recall": 3, "complete": 3}


def measure(given: argparse.Namespace) -> Measured:
    """Run every rule at every setting on the questions of all sets."""
    pools = {one.name: pools_of(one, given.limit) for one in load_sets(given)}
    models = left_out(pools) if given.weights == "left-out" else {}
    asked = [
        (q, pool, name) for name, of in pools.items() for q, pool in zip(of.questions, of.pools, strict=True)
    ]
    valued = []
    for _, pool, name in asked:
        selector = Selector(relevance_model=models[name]) if models else Selector()
        valued.append(selector.valued(pool))
    rows = _rows([(q, pool) for q, pool, _ in asked], valued, given.time_limit)
    summary = summarized(rows, [name for *_, name in asked])
    by_name = {row.name: row.columns for row in rows}
    pairs = {
        f"{one} - {other}": differences(by_name[one], by_name[other], list(_MEASURES))
        for one, other in _PAIRS
    }
    counts = {name: len(of.questions) for name, of in pools.items()}
    text = "\n\n".join(
        [
            f"{sum(counts.values())} questions ({counts}), {given.weights} weights; mean and 95 % interval",
            rows_table(summary, _MEASURES),
            text_table(
                ("question by question", *_MEASURES),
                [(n, *(interval_text(d[m], k, "+") for m, k in _MEASURES.items())) for n, d in pairs.items()],
            ),
        ]
    )
    report = {
        "questions": counts,
        "weights": given.weights,
        "ceiling": CEILING,
        "rows": summary,
        "pairs": pairs,
    }
    return Measured(report, text, partial(draw, summary, cost="tokens", qualities=("recall", "complete")))


def _rows(
    asked: Sequence[tuple[Question, Candidates]], valued: Sequence[Candidates], limit: float
) -> list[Row]:
    options = SolveOptions(time_limit_seconds=limit, relative_gap=1e-4)
    program = Selector(options=options, relevance_model=None, link_benefit=LINK_BENEFIT, passage_penalty=0.0)
    fused = make_methods(["fused"], program)[0]
    taken = [pool.take(range(min(_POOL, len(pool)))) for _, pool in asked]
    heads = [pool.with_relevance(pool.scores["fused"], pool.scores) for pool in taken]

    def row(kind: str, setting: float, budget: int, selector: Selector, of: Sequence[Candidates]) -> Row:
        found = [selector.choose(pool, budget) for pool in of]
        note(f"{kind} {setting:g}")
        return _row(kind, setting, asked, [(c.chosen, c.used, c.result.is_optimal) for c in found])

    rows = []
    for budget in BUDGETS:
        rows.append(row("fused", budget, budget, fused.selector, heads))
        ranked = fused.selector.replace(relevance_model="given")
        rows.append(row("probabilities", budget, budget, ranked, valued))
        rows.append(row("program", budget, budget, program, valued))
        rows.append(
            row(
                "default", budget, budget, program.replace(passage_penalty=Selector().passage_penalty), valued
            )
        )
    rows += [row("price", price, CEILING, program.replace(token_price=price), valued) for price in PRICES]
    for mean in MEANS:
        found = allocate(list(valued), mean * len(asked), selector=program, ceilings=CEILING)
        chosen = zip(found.choices, found.tokens, strict=True)
        made = _row("allocation", mean, asked, [(c.chosen, used, c.result.is_optimal) for c, used in chosen])
        kept = ("token_price", "tokens_used", "total_tokens", "value", "bound", "gap", "programs")
        made.about["certificate"] = {name: getattr(found, name) for name in kept}
        rows.append(made)
        note(f"allocation of {mean} tokens a question")
    return rows


def _row(
    kind: str,
    setting: float,
    asked: Sequence[tuple[Question, Candidates]],
    read: Sequence[tuple[Sequence[int], int, bool]],
) -> Row:
    found = [evidence_found(q, pool, chosen) for (q, pool), (chosen, *_) in zip(asked, read, strict=True)]
    columns = {
        "tokens": [used for _, used, _ in read],
        "recall": found,
        "complete": [one >= 1 for one in found],
        "proven": [proven for *_, proven in read],
    }
    return Row(f"{kind} {setting:g}", kind, {m: np.array(v, dtype=np.float64) for m, v in columns.items()})
