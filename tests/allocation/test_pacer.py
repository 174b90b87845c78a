"""The pacer: its total holds whatever happens, its price follows what is spent, its state outlives it."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag import Candidates, InputError, Selector
from mio_rag.allocation.pacer import FIRST_PRICE, Pacer
from mio_rag.errors import SpentError
from tests.allocation.pacing import Clock, pool


def test_a_reservation_holds_its_tokens_until_it_is_settled() -> None:
    pacer = Pacer(1000, horizon=4, most=600)
    first = pacer.ask()
    price, allowed = first
    assert (price, allowed) == (FIRST_PRICE, 600)
    assert pacer.ask().allowed == 400
    assert pacer.ask().allowed == 0
    pacer.spent(first, 100)
    account = pacer.account()
    assert (account.spent, account.reserved, account.left) == (100, 400, 500)
    assert pacer.ask(200).allowed == 200


def test_the_price_rises_with_what_is_spent_beyond_the_share_and_falls_below_it() -> None:
    def after(used: int) -> float:
        pacer = Pacer(100_000, horizon=100, price=0.002)
        pacer.spent(pacer.ask(), used)
        return pacer.account().price

    assert after(1000) == pytest.approx(0.002)
    # exp(1.5 / sqrt(100) * (1500 - 1000) / 1000)
    assert after(1500) == pytest.approx(0.002 * math.exp(0.075))
    assert after(0) == pytest.approx(0.002 * math.exp(-0.15))


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


def test_a_forecast_is_learned_anew_from_every_window(tmp_path: Path) -> None:
    clock = Clock(0.0)
    pacer = Pacer(
        60_000, 200, "day", 0.001, tmp_path / "p.sqlite", mean_tokens=900, clock=clock
    )  # three times what they take
    days = [sorted_day(pacer, [300] * 200, clock) for _ in range(4)]
    assert days[0][0] == pytest.approx(0.002)  # further from its own price, a forecast knows nothing
    assert days[2][:180] == pytest.approx([0.001] * 180, rel=0.15)
    assert days[3][:180] == pytest.approx([0.001] * 180, rel=0.05)
    with pytest.raises(InputError, match=r"mean tokens 900 at 0.001 there, none here"):
        Pacer(60_000, 200, "day", 0.001, tmp_path / "p.sqlite", clock=clock)


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


def test_a_window_of_few_questions_tells_the_next_one_nothing() -> None:
    clock = Clock(0.0)
    pacer = Pacer(15_000, 40, "day", 0.001, mean_tokens=300, clock=clock)
    sorted_day(pacer, [3000] * 40, clock)
    clock.now = 86400.0
    assert pacer.ask().price == pytest.approx(0.001 * (300 * 40 / 15_000) ** (1 / 1.5), rel=0.05)


def test_a_first_price_that_is_far_off_is_forgotten() -> None:
    clock = Clock(0.0)
    pacer = Pacer(60_000, 200, "day", price=0, clock=clock)
    days = [sorted_day(pacer, [300] * 200, clock) for _ in range(3)]
    assert days[0][0] < 1e-6
    assert days[2][:180] == pytest.approx([0.001] * 180, rel=0.1)


def test_what_was_cut_short_does_not_teach_that_questions_are_cheap() -> None:
    clock = Clock(0.0)
    pacer = Pacer(6_000, 40, "day", 0.001, mean_tokens=300, most=400, clock=clock)
    for _ in range(40):  # they spend all that they are allowed: soon nothing
        reservation = pacer.ask()
        pacer.spent(reservation, reservation.allowed)
    clock.now = 86400.0
    assert pacer.ask().price > 0.001


def test_refusing_says_how_much_is_left_and_when_there_is_more() -> None:
    clock = Clock(7200.0 + 600)
    pacer = Pacer(500, window="hour", when_spent="refuse", clock=clock)
    held = pacer.ask(400)
    with pytest.raises(SpentError, match=r"100 tokens of 500 left, 400 tokens held .* 200 wanted") as found:
        pacer.ask(200)
    assert found.value.retry_after == 3000
    assert pacer.account().refused == 1
    pacer.spent(held, 0)
    assert pacer.ask(200).allowed == 200
    rest = Pacer(500, horizon=3, most=500)
    held = rest.ask()
    with pytest.raises(SpentError, match="there are more in 1 s"):  # what is under way may leave some
        rest.ask(least=1)
    rest.spent(held, 500)
    with pytest.raises(SpentError, match="there will be no more") as found:
        rest.ask(10, least=1)
    assert found.value.retry_after is None


def test_a_new_window_has_the_whole_total_and_yesterdays_mean_price() -> None:
    clock = Clock(0.0)
    pacer = Pacer(10_000, horizon=10, window="day", price=0.01, clock=clock)
    prices = []
    for used in (1500, 2000, 500):
        reservation = pacer.ask()
        prices.append(reservation.price)
        pacer.spent(reservation, used)
    held = pacer.ask(100)
    prices.append(held.price)
    clock.now = 86400.0
    account = pacer.account()
    assert (account.spent, account.reserved, account.left, account.asked) == (0, 0, 10_000, 0)
    assert account.price == pytest.approx(float(np.exp(np.mean(np.log(prices)))))
    assert account.ends_in == 86400
    # What was under way counts in its own window, in full until it tells.
    [before] = pacer.windows()
    assert (before["spent"], before["lost"], before["asked"]) == (4100, 100, 4)
    pacer.spent(held, 30)
    [before] = pacer.windows()
    assert (before["spent"], before["lost"]) == (4030, 0)
    assert pacer.account().spent == 0
    clock.now = 10.0  # a clock that is put back gives nothing twice
    pacer.ask(500)
    assert pacer.account().left == 10_000 - 4030 - 500


def test_what_expires_counts_as_spent_until_it_tells() -> None:
    clock = Clock()
    pacer = Pacer(1000, horizon=5, clock=clock, expires_seconds=60)
    lost = pacer.ask(300)
    clock.now += 61
    account = pacer.account()
    assert (account.spent, account.lost, account.reserved, account.left) == (300, 300, 0, 700)
    pacer.spent(lost, 120)
    account = pacer.account()
    assert (account.spent, account.lost, account.left) == (120, 0, 880)


def test_a_reservation_is_settled_once() -> None:
    pacer = Pacer(1000, horizon=5)
    reservation = pacer.ask()
    pacer.spent(reservation, 5)
    with pytest.raises(InputError, match="settled already"):
        pacer.spent(reservation, 5)
    assert pacer.account().spent == 5


def test_without_a_horizon_the_clock_tells_how_many_questions_come() -> None:
    """Ten questions in the first tenth of a day: a hundred a day, as guessed; then ten times as many."""

    def price_after(count: int) -> float:
        clock = Clock(0.0)
        pacer = Pacer(100_000, window="day", price=0.01, clock=clock)
        for k in range(count):
            clock.now = 8640 * (k + 1) / count
            pacer.spent(pacer.ask(), 1000)
        return pacer.account().price

    assert price_after(10) == pytest.approx(0.01, rel=0.15)
    assert price_after(100) > 0.1


def test_a_file_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "pacer.sqlite"
    first = Pacer(10_000, horizon=10, path=path, price=0.003)
    first.spent(first.ask(), 2000)
    price = first.account().price
    first.close()
    second = Pacer(10_000, horizon=10, path=path, price=0.5)
    assert second.account().price == price > 0.003
    assert second.account().spent == 2000
    assert Pacer(10_000, horizon=10, path=path).ask(9000).allowed == 8000


def test_files_of_something_else_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "pacer.sqlite"
    Pacer(10_000, horizon=10, path=path).close()
    with pytest.raises(InputError, match=r"total tokens 10000 there, 20000 here.*price=0\.001"):
        Pacer(20_000, horizon=10, path=path)
    with pytest.raises(InputError, match=r"window none there, 86400 s here"):
        Pacer(10_000, horizon=10, window="day", path=path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(InputError, match="of version 7, and this is version 6"):
        Pacer(10_000, horizon=10, path=path)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE notes (text)")
    with pytest.raises(InputError, match="a database of something else"):
        Pacer(10_000, horizon=10, path=other)
    text = tmp_path / "notes.txt"
    text.write_text("not a database " * 100, encoding="utf-8")
    with pytest.raises(InputError, match="cannot be used"):
        Pacer(10_000, horizon=10, path=text)
    with pytest.raises(InputError, match="cannot be used"):
        Pacer(10_000, horizon=10, path=tmp_path)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"total_tokens": 0}, "total_tokens=0 must be a whole number from 1"),
        ({"total_tokens": 1.5}, "total_tokens=1.5"),
        ({"total_tokens": True}, "total_tokens=True"),
        ({"horizon": -1}, "horizon=-1"),
        ({"horizon": None}, "horizon is missing"),
        ({"mean_tokens": 100}, "give price > 0 as well"),
        ({"mean_tokens": 0, "price": 0.1}, "mean_tokens=0 must be a number above 0"),
        ({"mean_tokens": float("nan"), "price": 0.1}, "mean_tokens=nan"),
        ({"window": "week"}, "window='week' must be day, hour"),
        ({"window": 0}, "window=0"),
        ({"price": -1.0}, "price=-1.0"),
        ({"price": 2.0}, "from 0 to 1"),
        ({"price": math.nan}, "price=nan"),
        ({"when_spent": "stop"}, "must be rest or refuse"),
        ({"most": 0}, "most=0"),
        ({"expires_seconds": 0}, "expires_seconds=0"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        Pacer(**{"total_tokens": 1000, "horizon": 10, **settings})


def test_requests_out_of_range() -> None:
    pacer = Pacer(1000, horizon=10)
    for tokens in (0, -1, 1.5, True, "5"):
        with pytest.raises(InputError, match="tokens="):
            pacer.ask(tokens)  # type: ignore[arg-type]
    reservation = pacer.ask()
    for tokens in (-1, 0.5, None):
        with pytest.raises(InputError, match="tokens="):
            pacer.spent(reservation, tokens)  # type: ignore[arg-type]
    assert pacer.account().reserved == 1000


def test_selecting_pays_the_price_and_stops_at_the_total() -> None:
    pacer = Pacer(1000, horizon=8)
    selector = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0)
    used = []
    for k in range(12):
        made = pacer.select(pool(k), selector)
        used.append(made.tokens_used)
    assert sum(used) == pacer.account().spent <= 1000
    assert used[-1] == 0
    last = pacer.select(pool(), selector)
    assert last.chosen == () or last.tokens_used <= pacer.account().total
    exhausted = Pacer(50, horizon=1)
    exhausted.ask()
    empty = exhausted.select(pool(), selector)
    assert empty.chosen == ()
    assert "no tokens are left: nothing is read" in empty.notes


def test_a_failed_selection_spends_nothing() -> None:
    pacer = Pacer(1000, horizon=8)
    nothing = Candidates(ids=[], texts=[], relevance=np.zeros(0), tokens=np.zeros(0, dtype=int))
    with pytest.raises(InputError):
        pacer.select(nothing, Selector.raw())
    account = pacer.account()
    assert (account.spent, account.reserved, account.left, account.asked) == (0, 0, 1000, 0)
    assert account.price == FIRST_PRICE  # a failure says nothing about what tokens are worth
    again = pacer.ask(100)
    pacer.release(again)
    with pytest.raises(InputError, match="settled already"):
        pacer.release(again)
