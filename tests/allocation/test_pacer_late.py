"""What a window knows of questions that tell late, or never."""

from __future__ import annotations

import pytest

from mio_rag import InputError
from mio_rag.allocation.pacer import Pacer
from tests.allocation.pacing import Clock


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


def test_what_expires_while_a_question_of_an_older_window_tells_is_counted() -> None:
    clock = Clock(0.0)
    pacer = Pacer(1000, 10, 3600, clock=clock, expires_seconds=10)
    old = pacer.ask(100)
    clock.now = 3600.0
    lost = pacer.ask(300)
    clock.now = 3620.0  # now both have expired, and the first to notice is the older one
    pacer.spent(old, 50)
    account = pacer.account()
    assert (account.spent, account.lost, account.reserved, account.left) == (300, 300, 0, 700)
    pacer.spent(lost, 120)
    account = pacer.account()
    assert (account.spent, account.lost, account.reserved, account.left) == (120, 0, 0, 880)
