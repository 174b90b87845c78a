"""What responses say of a selection: its data, its price, and what more tokens would bring."""

from __future__ import annotations

from typing import Any

from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.service.asked import Asked

__all__ = ["described", "with_more"]


def described(asked: Asked, made: Selection) -> dict[str, Any]:
    """A selection as plain data, with the price that a passage had."""
    return {
        "question": asked.question,
        "redundancy_weight": asked.selector.redundancy_weight,
        "passage_penalty": _decided(asked.selector, made).penalty(made.pool, made.budget_tokens),
        **made.to_dict(),
    }


def with_more(
    asked: Asked, pool: Candidates, now: Selection, more_tokens: int, counter: TokenCounter
) -> dict[str, Any]:
    """What a larger budget would select of what is chosen now, sentences or passages; bounds on its gain."""
    # A price of a passage that adapts to the budget would make two programs of it.
    decided = _decided(asked.selector, now)
    penalty = decided.penalty(now.pool, now.budget_tokens)
    priced = asked.timed().replace(passage_penalty=penalty, units=decided.units)
    then = priced.choose(pool, asked.budget_tokens + more_tokens, counter)
    before, after = now.result, then.result
    gain = low = high = None
    if before.objective is not None and after.objective is not None:
        gain = after.objective - before.objective
        low = None if before.bound is None else max(0.0, after.objective - before.bound)
        high = None if after.bound is None else after.bound - before.objective
    ids = [then.formulation.candidates.ids[i] for i in then.chosen]
    held = [now.candidates.ids[i] for i in now.chosen]
    units = decided.units
    if asked.selector.units == "auto":  # passages and their sentences are worth different things
        units = asked.timed().choose(pool, then.budget_tokens, counter).formulation.settings.units
    return {
        "more_tokens": more_tokens,
        "unit_then": "sentence" if units == "sentences" else "passage",
        "tokens_used": then.used,
        "gain": gain,
        "low": low,
        "high": high,
        "added": [name for name in ids if name not in held],
        "removed": [name for name in held if name not in ids],
        "certified": before.is_optimal and after.is_optimal,
    }


def _decided(selector: Selector, made: Selection) -> Selector:
    """The settings with what was chosen, passages or sentences, where they leave it open."""
    return selector.replace(units="sentences" if made.unit == "sentence" else "passages")
