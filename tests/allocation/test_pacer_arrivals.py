"""When questions come: hours, windows watched in part, quiet days, questions turned away."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mio_rag.allocation.pacer import Pacer
from mio_rag.allocation.pacer_forecast import PARTS, Arrivals, written
from mio_rag.errors import SpentError
from tests.allocation.pacing import Clock

DAY, COUNT = 86400.0, 400


def morning(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.sort(rng.normal(10, 2.5, count) % 24) / 24


def evenly(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.sort(rng.uniform(0, 1, count))


def value_of(days: list[np.ndarray]) -> float:
    """The last day, as a share of what one price for all of it would be worth.

    A question at a price p spends 250 (.004 / p) ** .5 tokens; each token more is worth what it costs.
    """
    clock, total = Clock(days[0][0] * DAY), 250 * COUNT
    pacer, spent = Pacer(total, window="day", clock=clock), []
    for number, day in enumerate(days):
        spent = []
        for share in day:
            clock.now = (number + share) * DAY
            reservation = pacer.ask()
            spent.append(min(reservation.allowed, round(250 * (0.004 / reservation.price) ** 0.5)))
            pacer.spent(reservation, spent[-1])
        assert sum(spent) <= total
    # d value / d tokens = .004 (250 / tokens) ** 2, which is bounded where next to nothing is read
    worth = [0.004 * 250 * (2 - 250 / t) if t > 125 else 0.0 for t in spent]
    each = total / len(days[-1])
    return sum(worth) / (len(spent) * 0.004 * 250 * (2 - 250 / each))


@pytest.mark.parametrize("hours", [morning, evenly])
def test_a_day_has_its_hours(hours: Callable[[np.random.Generator, int], np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    assert value_of([hours(rng, COUNT) for _ in range(3)]) > 0.97


@pytest.mark.parametrize("first", [0.5, 0.9, 0.999])
def test_a_first_day_that_was_watched_in_part_does_not_make_the_next_one_a_quiet_one(first: float) -> None:
    rng = np.random.default_rng(1)
    part = evenly(rng, COUNT)
    assert value_of([part[part > first], evenly(rng, COUNT)]) > 0.8


def test_a_quiet_day_does_not_spoil_the_next() -> None:
    rng = np.random.default_rng(1)
    assert value_of([evenly(rng, COUNT), np.array([0.5]), evenly(rng, COUNT)]) > 0.95


def test_where_questions_are_turned_away_their_number_says_nothing() -> None:
    """They ask again and again; or else a day that ended early would tell the next that few are to come."""
    clock = Clock(0.0)
    pacer = Pacer(20_000, window="day", when_spent="refuse", most=500, clock=clock)
    for number in range(2):
        for k in range(240):  # ten in each part, all of them wanting 500
            clock.now = (number + (k + 0.5) / 240) * DAY
            try:
                pacer.spent(pacer.ask(), 500)
            except SpentError:
                for _ in range(3):
                    with pytest.raises(SpentError):
                        pacer.ask()
    clock.now = 2 * DAY
    pacer.account()
    with pacer._store.transaction() as transaction:
        state = transaction.state()
    told = Arrivals.read(state.usually, state.came, state.opened)
    assert told.usual[:4] == (10.0,) * 4  # 40 questions had their 500 tokens
    assert told.usual[5:] == (-1.0,) * (PARTS - 5)
    assert told.known == pytest.approx(240)
    assert told.coming(0.0, None) == pytest.approx(240)


def test_how_many_are_to_come() -> None:
    usual = tuple(100.0 if 8 <= part < 18 else 0.0 for part in range(PARTS))
    quiet = Arrivals(usual)
    assert quiet.coming(0.0, None) == pytest.approx(1000)
    assert quiet.coming(8 / 24, None) == pytest.approx(985, rel=0.02)  # a night without questions is no news
    as_usual = Arrivals(usual, tuple(100.0 if part in (8, 9) else 0.0 for part in range(PARTS)))
    assert as_usual.coming(10 / 24, None) == pytest.approx(790, rel=0.03)
    busy = Arrivals(usual, tuple(1000.0 if part in (8, 9) else 0.0 for part in range(PARTS)))
    assert busy.coming(10 / 24, None) == pytest.approx(7900, rel=0.05)
    assert Arrivals().coming(0.5, 600) == pytest.approx(200)
    assert Arrivals(opened=0.5).coming(0.5, 600) == pytest.approx(300)  # nobody knows that none had come


@pytest.mark.parametrize("now", [0.0, 1e-9, 0.5, 1 - 1e-12, 1.0])
@pytest.mark.parametrize("count", [0.0, 1.0, 1e9])
def test_numbers_stay_numbers(now: float, count: float) -> None:
    for usual in ((), (0.0,) * PARTS, (-1.0,) * 23 + (0.0,), (1e12,) * PARTS):
        for horizon in (None, 1, 10**15):
            one = Arrivals(usual, (count,) * PARTS, now)
            assert math.isfinite(one.coming(now, horizon))
            assert one.coming(now, horizon) >= 0
            assert (
                Arrivals.read(written(usual), written(one.came(now, turned_away=False)), now).usual == usual
            )
            assert len(one.taught()) in (0, PARTS)
