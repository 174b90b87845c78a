"""What a worker writes for each row where a total is shared: a few selections, of which it gets one.

At a single price they are the best one and its neighbours, by one passage less and one more, so that a row
takes one solve. At several prices they are the best at each. Which option a row gets is decided once those of
all rows are known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mio_rag.allocation.question import Decided, PricedQuestion, Probe
from mio_rag.batch.job import Job
from mio_rag.batch.rows import Row
from mio_rag.candidates import Candidates
from mio_rag.context import in_prompt_order
from mio_rag.errors import InputError
from mio_rag.solvers.registry import solve

__all__ = ["LISTED", "OPTION", "OPTIONS", "options", "question_of"]

#: Columns of an option that are lists themselves: most of what options have in common.
LISTED = ("selected_ids", "selected")

#: Columns of an option; in a shard they are lists, with fewest tokens first.
OPTION = {
    "selected_ids": "list<string>",
    "selected": "list<int32>",
    "tokens_used": "int64",
    "value": "double",
    "token_price": "double",
    "objective": "double",
    "bound": "double",
    "gap": "double",
    "status": "string",
    "limit": "string",
    "message": "string",
}

#: Columns of a shard. `relaxed`: the proven bound on value less price times tokens, at each price of the job;
#: `shortest`: tokens of the shortest passage; `any_selected`, `any_selected_ids`: passages that any option
#: reads, by their places in which `option_places` says what each reads.
OPTIONS = {
    "row": "int64",
    "query_id": "string",
    "budget_tokens": "int64",
    "weight": "double",
    "relaxed": "list<double>",
    "shortest": "int64",
    "status": "string",
    "any_selected": "list<int32>",
    "any_selected_ids": "list<string>",
    "option_places": "list<list<int32>>",
    **{f"option_{name}": f"list<{kind}>" for name, kind in OPTION.items() if name not in LISTED},
}


def question_of(job: Job, row: Row) -> PricedQuestion:
    """The question of a row.

    Raises
    ------
    InputError
        For a row that is none, or whose own budget is no ceiling.
    """
    if not isinstance(row.pool, Candidates):
        raise row.pool
    ceiling = job.budget_tokens if row.budget is None else row.budget
    if ceiling < max(1, job.floor):
        raise InputError(f"budget_tokens={ceiling} must be >= {max(1, job.floor)}, the least of a question")
    most = min(ceiling, int(row.pool.tokens.sum()))
    return PricedQuestion(job.selector, row.pool, row.weight, job.floor, most)


def options(job: Job, row: Row) -> dict[str, Any]:
    """The distinct selections of a row over the prices of a job, fewest tokens first.

    Raises
    ------
    MioRagError
        For a row that is none, or cannot be solved.
    """
    question = question_of(job, row)
    probes = _probes(job, question)
    decisions = [probe.decided for probe in probes]
    if len(probes) == 1:
        decisions += [one for one in question.neighbours(probes[0]) if one is not None]
    distinct: dict[int, Decided] = {}
    for decided in decisions:
        held = distinct.get(decided.tokens)
        if held is None or decided.value > held.value:
            distinct[decided.tokens] = decided
    kept = [distinct[tokens] for tokens in sorted(distinct)]
    pool, order = question.candidates, question.selector.prompt_order
    chosen = [in_prompt_order(pool, _passages(one, len(pool)), order) for one in kept]
    places: dict[int, int] = {}
    for own in chosen:
        for i in own:
            places.setdefault(i, len(places))
    told = [_columns(question, one) for one in kept]
    return {
        "budget_tokens": question.ceiling,
        "weight": question.weight,
        "shortest": int(row.pool.tokens.min()) if isinstance(row.pool, Candidates) else 0,
        "relaxed": [probe.bound for probe in probes],
        "status": told[0]["status"],
        "any_selected": list(places),
        "any_selected_ids": [pool.ids[i] for i in places],
        "option_places": [[places[i] for i in own] for own in chosen],
        **{f"option_{name}": [option[name] for option in told] for name in OPTION if name not in LISTED},
    }


def _passages(decided: Decided, count: int) -> list[int]:
    """The chosen ones: behind them stand items that buy broken rows."""
    return [] if decided.x is None else np.flatnonzero(decided.x[:count]).tolist()


def _probes(job: Job, question: PricedQuestion) -> list[Probe]:
    """What is known at each price of the job; outer prices first, since they may prove those between."""
    outer = sorted({max(job.prices), min(job.prices)})
    for price in (*outer, *job.prices):
        if question.known(price) is None:
            question.learn(price, solve(question.program(price), job.selector.solver, job.selector.options))
    return [probe for price in job.prices if (probe := question.known(price)) is not None]


def _columns(question: PricedQuestion, decided: Decided) -> dict[str, Any]:
    result = decided.result
    return {
        "tokens_used": decided.tokens,
        "value": decided.value / question.weight,
        "token_price": decided.price / question.weight,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status.value,
        "limit": result.limit,
        "message": result.message or None,
    }
