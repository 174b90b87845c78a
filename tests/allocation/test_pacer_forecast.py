"""What a pacer believes of the questions to come: forecasts, sorted days, hours, windows watched in part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mio_rag import InputError
from mio_rag.allocation.pacer import Pacer
from mio_rag.allocation.pacer_forecast import PARTS, Arrivals, Forecast, Seen
from mio_rag.errors import SpentError
from tests.allocation.test_pacer import Clock

DAY, COUNT = 86400.0, 400
WANTS = np.random.default_rng(0).exponential(300, 600).round()


def sorted_day(pacer: Pacer, wants: list[int], clock: Clock | None = None) -> list[float]:
    """Prices of a day in which each question spends what it wants at a price of .001, by a power law."""
    prices = []
    for want in wants:
        if clock is not None:
            clock.now += 86400 / len(wants) * (1 - 1e-9)
        reservation = pacer.ask()
        prices.append(reservation.price)
        pacer.spent(reservation, min(reservation.allowed, round(want * (0.001 / reservation.price) ** 0.55)))
    return prices


@pytest.mark.parametrize("hard_first", [False, True])
def test_a_forecast_holds_the_price_where_a_day_is_sorted(hard_first: bool) -> None:
    """Each takes what was said in the mean, but for the order: the price of the forecast is right all day.

    At first the order is not to be seen: easy questions could be the beginning of an easy day.
    """
    wants = sorted(np.random.default_rng(0).exponential(300, 200).round().tolist(), reverse=hard_first)
    total = int(sum(wants))
    told = Pacer(total, horizon=200, price=0.001, mean_tokens=total / 200)
    prices = sorted_day(told, wants)
    assert prices[20:70] == pytest.approx([0.001] * 50, rel=0.15)
    assert min(prices[:150]) > 0.00075
    assert max(prices[:150]) < 0.0019
    assert total >= told.account().spent > 0.94 * total
    alone = sorted_day(Pacer(total, horizon=200, price=0.001), wants)
    assert max(alone[:150]) / min(alone[:150]) > 3 * max(prices[:150]) / min(prices[:150])


def test_a_forecast_that_is_wrong_costs_value_and_never_the_total() -> None:
    for mean_tokens in (1.0, 50.0, 5000.0):
        pacer = Pacer(60_000, horizon=200, price=0.001, mean_tokens=mean_tokens)
        sorted_day(pacer, [300] * 260)
        assert pacer.account().spent <= 60_000


@pytest.mark.parametrize("factor", [0.7, 1.36])
def test_in_random_order_the_day_corrects_its_forecast(factor: float) -> None:
    wants = np.random.default_rng(0).exponential(300, 400).round().tolist()
    total = int(sum(wants))
    pacer = Pacer(total, horizon=400, price=0.001, mean_tokens=factor * total / 400)
    prices = sorted_day(pacer, wants)
    assert abs(prices[0] / 0.001 - 1) > 0.2
    assert np.mean(np.abs(np.array(prices[200:350]) / 0.001 - 1)) < 0.12
    assert total >= pacer.account().spent > 0.97 * total


def test_a_price_that_nobody_pays_falls_whatever_was_forecast() -> None:
    """Here nothing is worth more than .02 a token, where the power law says that much would be read."""
    pacer = Pacer(6_000, horizon=900, price=0.001, mean_tokens=420)
    for _ in range(900):
        reservation = pacer.ask()
        pacer.spent(reservation, min(reservation.allowed, 80) if reservation.price < 0.02 else 0)
    assert pacer.account().spent > 5_500


@pytest.mark.parametrize("hard_first", [False, True])
def test_each_window_tells_the_next_what_to_expect_where_nobody_else_does(hard_first: bool) -> None:
    """Days that all begin with their easy or with their hard questions: soon the price holds nevertheless."""
    wants = sorted(np.random.default_rng(0).exponential(300, 200).round().tolist(), reverse=hard_first)
    clock, total = Clock(0.0), int(sum(wants))
    pacer = Pacer(total, 200, "day", clock=clock)
    days, spent = [], []
    for _ in range(4):
        days.append(sorted_day(pacer, wants, clock)[:150])
        spent.append(pacer.account().spent / total)
    moved = [max(day) / min(day) for day in days]
    assert moved[0] > 4
    assert max(moved[1:]) < 2
    assert max(moved[2:]) < 1.4
    assert 1 >= min(spent[1:]) > 0.9


@pytest.mark.parametrize("factor", [1e-3, 5.0])
def test_a_forecast_far_off_is_dropped_where_questions_come_in_no_order(factor: float) -> None:
    """Else it would be taken for a sorted day: little is spent, or nothing is left for its end."""
    total = int(WANTS.sum())
    pacer = Pacer(total, horizon=600, price=0.001, mean_tokens=factor * total / 600)
    asked = sorted_day(pacer, WANTS.tolist())
    assert pacer.account().spent > 0.97 * total
    late = np.exp(np.mean(np.log(np.array(asked[400:560]) / 0.001)))
    assert 0.4 < late < 1.6  # what was saved until then is spent
    assert pacer.ask().allowed < 2048  # and nothing beyond it


@pytest.mark.parametrize("hard_first", [False, True])
def test_a_right_forecast_is_kept_where_the_day_is_sorted(hard_first: bool) -> None:
    """Also where it begins with questions that read nothing at all."""
    wants = np.sort(WANTS)[::-1] if hard_first else np.concatenate([np.zeros(150), np.sort(WANTS)])
    forecast = Forecast(0.001, float(wants.mean()))
    for n in range(1, len(wants), 7):
        x = wants[:n]
        seen = Seen(n, x.sum(), float((x * np.arange(n)).sum()), float((x * x).sum()))
        assert not forecast.refuted(seen, len(wants) - n)


def test_who_reads_nothing_at_a_price_is_not_counted_as_the_mean_question() -> None:
    forecast = Forecast(0.001, 1e6)  # no question may spend as much
    assert forecast.effort(0.001, 0, 2048) == 0
    assert forecast.effort(0.001, 300, 2048) == 300
    assert forecast.effort(0.001, 2000, 2048) == 1e6  # it would have gone on
    assert forecast.effort(0.001, 0, 40) == 1e6


@pytest.mark.parametrize("forecast", [1000.0, None])
def test_questions_that_tell_after_their_window_count_as_if_they_had_told_within(
    forecast: float | None,
) -> None:
    prices = []
    for late in (False, True):
        clock = Clock(0.0)
        pacer = Pacer(10**6, 100, 3600, 1e-3, mean_tokens=forecast, clock=clock, expires_seconds=1e9)
        held = [pacer.ask() for _ in range(60)]
        if late:
            clock.now = 3600.0
            pacer.account()
        for number, reservation in enumerate(held[:55]):
            pacer.spent(reservation, 900 + 10 * number)
        for reservation in held[55:]:
            pacer.release(reservation)
        clock.now = 10.0  # the clock was wrong
        account = pacer.account()
        assert (account.asked, account.finished, account.reserved, account.lost) == (55, 55, 0, 0)
        clock.now = 7200.0  # its successor learns from all of them
        prices.append([pacer.ask(), pacer.account().spent])
        with pacer._store.transaction() as transaction:
            state, past = transaction.state(), transaction.past_state(0)
        assert past is not None
        prices[-1] = [past.effort, past.course, past.logs, state.usual, state.reference]
    assert prices[0][0] > 0
    assert prices[1] == pytest.approx(prices[0])


def test_who_never_tells_is_spent_and_not_still_to_come() -> None:
    prices = []
    for told in (True, False):
        clock = Clock(0.0)
        pacer = Pacer(100_000, 100, 3600, 1e-3, mean_tokens=1000, clock=clock, expires_seconds=10)
        for number in range(50):
            clock.now = 36.0 * number
            reservation = pacer.ask(1000)
            if told:
                pacer.spent(reservation, 1000)
        clock.now = 1800.0
        prices.append(pacer.ask().price)
    assert prices[1] == pytest.approx(prices[0])


def test_a_forecast_of_next_to_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="mean_tokens=1e-200 must be a number above 0: at least 1e-06"):
        Pacer(1000, 10, price=1e-3, mean_tokens=1e-200)
    pacer = Pacer(10**15, 10, price=1e-3, mean_tokens=1e-6)
    for _ in range(5):
        pacer.spent(pacer.ask(10**13), 10**13)
    assert 0 < pacer.ask().price < 1e-3  # next to nothing of the total is gone: tokens are cheap


# --- when questions come ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("first", [0.5, 0.999])
def test_a_first_day_that_was_watched_in_part_does_not_make_the_next_one_a_quiet_one(first: float) -> None:
    rng = np.random.default_rng(1)
    part = evenly(rng, COUNT)
    assert value_of([part[part > first], evenly(rng, COUNT)]) > 0.8


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
