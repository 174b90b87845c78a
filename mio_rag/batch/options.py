"""What a worker writes for each row where a total is shared: a few selections, of which it gets one.

At a single price they are the best one and its neighbours, by one passage less and one more, so that a row
takes one solve. At several prices they are the best at each. Which option a row gets is decided once those of
all rows are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mio_rag.allocation.question import Decided, PricedQuestion, Probe
from mio_rag.batch.answers import COUNTER, is_merged
from mio_rag.batch.job import Job
from mio_rag.batch.rows import Row
from mio_rag.candidates import Candidates
from mio_rag.context import in_prompt_order
from mio_rag.errors import InputError
from mio_rag.merging import block_tokens, merged
from mio_rag.solvers.registry import solve

__all__ = ["LISTED", "OPTION", "OPTIONS", "READ", "options", "question_of"]

T = TypeVar("T")

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
#: reads, by their places in which `option_places` says what each reads; `option_charged`: what each takes of
#: the total.
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
    "option_charged": "list<int64>",
    **{f"option_{name}": f"list<{kind}>" for name, kind in OPTION.items() if name not in LISTED},
}

#: Further columns where texts are merged: those that any option reads, and by their places what each reads.
READ = {"any_read": "list<string>", "option_read_places": "list<list<int32>>"}


class _Option(NamedTuple):
    """A decision, its passages in prompt order, and their tokens as they are read."""

    decided: Decided
    chosen: tuple[int, ...]
    used: int

    @property
    def charged(self) -> int:
        return max(self.used, self.decided.tokens)


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
    if is_merged(job):  # parts may count more than the passages that they are of
        return PricedQuestion(job.selector, row.pool, row.weight, job.floor, ceiling, COUNTER)
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
    merge = is_merged(job)
    distinct: dict[int, _Option] = {}
    for decided in decisions:
        option = _option(question, decided, merge)
        held = distinct.get(option.charged)
        if held is None or option.decided.value > held.decided.value:
            distinct[option.charged] = option
    kept = [distinct[charged] for charged in sorted(distinct)]
    pool = question.candidates
    places, of_options = _places([option.chosen for option in kept])
    told = [_columns(question, option) for option in kept]
    return {
        "budget_tokens": question.ceiling,
        "weight": question.weight,
        "shortest": int(row.pool.tokens.min()) if isinstance(row.pool, Candidates) else 0,
        "relaxed": [probe.bound for probe in probes],
        "status": told[0]["status"],
        "any_selected": places,
        "any_selected_ids": [pool.ids[i] for i in places],
        "option_places": of_options,
        "option_charged": [option.charged for option in kept],
        **{f"option_{name}": [option[name] for option in told] for name in OPTION if name not in LISTED},
        **(_read(pool, kept) if merge else {}),
    }


def _option(question: PricedQuestion, decided: Decided, merge: bool) -> _Option:
    """What a decision reads, and where its block is beyond the ceiling, the best one within."""
    pool, order = question.candidates, question.selector.prompt_order
    chosen = in_prompt_order(pool, _passages(decided, len(pool)), order)
    if not merge:
        return _Option(decided, chosen, decided.tokens)
    used = block_tokens(pool, chosen, COUNTER, merge)
    if used <= question.ceiling:
        return _Option(decided, chosen, used)
    choice = question.choice(replace(decided, tokens=question.ceiling))
    again = question.decided(decided.price, choice.allowed, choice.result)
    return _Option(again, tuple(choice.chosen), choice.used)


def _places(lists: Sequence[Sequence[T]]) -> tuple[list[T], list[list[int]]]:
    """Everything that lists hold, each once, and the lists again as places in that."""
    places: dict[T, int] = {}
    for own in lists:
        for one in own:
            places.setdefault(one, len(places))
    return list(places), [[places[one] for one in own] for own in lists]


def _read(pool: Candidates, kept: Sequence[_Option]) -> dict[str, Any]:
    texts = [[block.passage.text for block in merged(pool, option.chosen)] for option in kept]
    held, places = _places(texts)
    return {"any_read": held, "option_read_places": places}


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


def _columns(question: PricedQuestion, option: _Option) -> dict[str, Any]:
    decided, result = option.decided, option.decided.result
    return {
        "tokens_used": option.used,
        "value": decided.value / question.weight,
        "token_price": decided.price / question.weight,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status.value,
        "limit": result.limit,
        "message": result.message or None,
    }
