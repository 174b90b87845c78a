"""What a question cost, as columns of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mio_rag.control.costs import Costs, Prices
from mio_rag.errors import InputError

__all__ = ["PARTS", "cost_columns", "parts_of", "reading_column", "seconds_column"]

#: Parts that every controller's row names; others come after them.
PARTS = ("decompose", "retrieve", "select", "reason", "measure", "answer")

_COLUMN = {"answer": "generate"}  # as it was named while nothing else was generated
_PART = {column: part for part, column in _COLUMN.items()}
_NO_PART = ("total", "solve")
_END = "_seconds"


def seconds_column(part: str) -> str:
    """The column with the seconds of a part.

    Raises
    ------
    InputError
        If a column of that name holds other seconds.
    """
    if part in _NO_PART or part in _PART:
        raise InputError(f"a part of a controller cannot be named '{part}': call it otherwise")
    return f"{_COLUMN.get(part, part)}{_END}"


def parts_of(columns: Iterable[str]) -> dict[str, str]:
    """Part -> column, for the columns of rows that hold seconds of one: the well-known ones first."""
    names = [name.removesuffix(_END) for name in columns if name.endswith(_END)]
    found = {_PART.get(name, name): f"{name}{_END}" for name in names if name not in _NO_PART}
    return {part: found[part] for part in sorted(found, key=lambda p: (*PARTS, p).index(p))}


def cost_columns(costs: Costs, prices: Prices | None, *, answered: bool) -> dict[str, Any]:
    """Calls, tokens, seconds by part, memory and money.

    Parameters
    ----------
    prices : Prices or None
        None: there is no column of dollars.
    answered : bool
        Whether there is a model that answers: without one tokens are not 0, they are nothing to speak of.
    """
    total = costs.total()
    columns: dict[str, Any] = {"retrieval_calls": total.retrieval_calls, "lm_calls": total.lm_calls}
    if answered:
        columns |= {"prompt_tokens": total.prompt_tokens, "completion_tokens": total.completion_tokens}
    columns |= {seconds_column(part): amount.seconds for part, amount in costs.by_part().items()}
    columns |= {"total_seconds": total.seconds, "peak_memory_mb": total.peak_memory_mb}
    if prices is not None:
        columns["dollars"] = total.dollars(prices)
    return columns


def reading_column(records: Iterable[Mapping[str, Any]]) -> str:
    """The column that says what was read: "tokens_used", or "prompt_tokens" where controllers take part.

    A method is answered once, so that its context tells methods apart. A controller asks the model several
    times: beside one, everybody is counted by the prompts of all calls.

    Parameters
    ----------
    records : iterable of mappings
        Rows, or entries of a summary.
    """
    return "prompt_tokens" if any(record.get("steps") is not None for record in records) else "tokens_used"
