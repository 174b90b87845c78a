"""What a worker writes for each row: the selection under its own budget."""

from __future__ import annotations

from typing import Any

from mio_rag.batch.job import Job
from mio_rag.batch.rows import Row
from mio_rag.candidates import Candidates

__all__ = ["COLUMNS", "answer"]

#: Columns of a shard.
COLUMNS = {
    "row": "int64",
    "query_id": "string",
    "selected_ids": "list<string>",
    "selected": "list<int32>",
    "tokens_used": "int64",
    "budget_tokens": "int64",
    "objective": "double",
    "bound": "double",
    "gap": "double",
    "status": "string",
    "limit": "string",
    "message": "string",
}


def answer(job: Job, row: Row) -> dict[str, Any]:
    """What the selector chooses for a row.

    Raises
    ------
    MioRagError
        For a row that is none, or cannot be answered.
    """
    pool = row.pool
    if not isinstance(pool, Candidates):
        raise pool
    budget_tokens = job.budget_tokens if row.budget is None else row.budget
    choice = job.selector.choose(pool, budget_tokens)
    result, chosen = choice.result, list(choice.chosen)
    return {
        "selected_ids": [pool.ids[i] for i in chosen],
        "selected": chosen,
        # Of the decision itself, as `SolveResult.objective` is (`solvers.result.conclude`).
        "tokens_used": int(pool.tokens[chosen].sum()) if chosen else 0,
        "budget_tokens": budget_tokens,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status.value,
        "limit": result.limit,
        "message": result.message or None,
    }
