"""What a pacer's window learns of its questions, and teaches the next."""

from __future__ import annotations

import math

from mio_rag.allocation.pacer_arrivals import Arrivals, written
from mio_rag.allocation.pacer_forecast import Forecast
from mio_rag.allocation.pacer_state import State

__all__ = ["LARGEST_PRICE", "arrivals", "count", "expected", "following", "kept"]

#: No token is worth more than all of the evidence, and a price of 0 could never rise again.
LARGEST_PRICE, _SMALLEST_PRICE = 1.0, 1e-7


def expected(state: State) -> Forecast:
    """The forecast of a window; where there is none, questions are taken to be like those so far."""
    return Forecast(state.reference, state.usual or state.effort / max(1, state.finished - 1))


def count(state: State, price: float, tokens: int | None, allowed: int) -> None:
    """Count a question of a window that spent so many tokens at a price; None: it was given back."""
    if tokens is None:
        state.asked -= 1
        state.logs -= expected(state).counted(price)
        return
    state.finished += 1
    effort = expected(state).effort(price, tokens, allowed)
    state.effort += effort
    state.course += (state.finished - 1) * effort
    state.squares += effort * effort


def arrivals(state: State) -> Arrivals:
    """When the questions of a window come."""
    return Arrivals.read(state.usually, state.came, state.opened)


def following(last: State, number: int, began: float, over: float) -> State:
    """A window that begins with what the last one has shown.

    Parameters
    ----------
    over : float
        Share of it that is over. If it follows the last one, nobody asked in that; else nobody knows.
    """
    price = kept(math.exp(last.logs / last.asked) if last.asked else last.price)
    told = Forecast.learned(last.reference, last.effort, last.finished, price)
    if told is None:
        told = Forecast(last.reference, last.usual)
    return State(
        number,
        began,
        price,
        opened=0.0 if number == last.window + 1 else over,
        usually=written(arrivals(last).taught()),
        reference=told.price,
        usual=told.mean_tokens,
    )


def kept(price: float) -> float:
    """A price within its bounds."""
    return min(LARGEST_PRICE, max(_SMALLEST_PRICE, price))
