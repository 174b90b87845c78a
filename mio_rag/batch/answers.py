"""What a worker writes for each row: the selection under its own budget."""

from __future__ import annotations

from typing import Any

from mio_rag.batch.job import Job
from mio_rag.batch.rows import Row
from mio_rag.candidates import Candidates
from mio_rag.context import RegexCounter
from mio_rag.merging import merged

__all__ = ["COLUMNS", "COUNTER", "READ", "answer", "is_merged"]

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
    "relevance_source": "string",
}

#: The column of a shard where texts are merged: as they are to be read, in prompt order.
READ = {"read": "list<string>"}

#: Of texts that are merged.
COUNTER = RegexCounter()


def is_merged(job: Job) -> bool:
    """Whether texts of one source that overlap or touch are read as one: the file says where they lie."""
    return "starts" in job.kinds


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
    merge = is_merged(job)
    choice = job.selector.choose(pool, budget_tokens, COUNTER if merge else None)
    result, chosen = choice.result, list(choice.chosen)
    read = {"read": [block.passage.text for block in merged(pool, chosen)]} if merge else {}
    return {
        "selected_ids": [pool.ids[i] for i in chosen],
        "selected": chosen,
        # Of the decision itself, as `SolveResult.objective` is (`solvers.result.conclude`).
        "tokens_used": choice.used if merge else int(pool.tokens[chosen].sum()) if chosen else 0,
        "budget_tokens": budget_tokens,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status.value,
        "limit": result.limit,
        "message": result.message or None,
        "relevance_source": None if (source := choice.formulation.source) is None else source.kind,
        **read,
    }
