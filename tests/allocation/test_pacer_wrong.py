"""A pacer that was told something wrong: it finds out, and what that costs is bounded."""

from __future__ import annotations

import numpy as np
import pytest

from mio_rag.allocation.pacer import Pacer
from mio_rag.allocation.pacer_forecast import Forecast, Seen

DAY = np.random.default_rng(0).exponential(300, 600).round()


def prices(pacer: Pacer, wants: np.ndarray) -> list[float]:
    """Of a day whose questions spend what they want at a price of .001, by a power law."""
    asked = []
    for want in wants:
        reservation = pacer.ask()
        asked.append(reservation.price)
        pacer.spent(reservation, min(reservation.allowed, round(want * (0.001 / reservation.price) ** 0.55)))
    return asked


@pytest.mark.parametrize("factor", [1e-3, 0.2, 5.0, 1e3])
def test_a_forecast_far_off_is_dropped_where_questions_come_in_no_order(factor: float) -> None:
    """Else it would be taken for a sorted day: little is spent, or nothing is left for its end."""
    total = int(DAY.sum())
    pacer = Pacer(total, horizon=600, price=0.001, mean_tokens=factor * total / 600)
    asked = prices(pacer, DAY)
    assert pacer.account().spent > 0.97 * total
    late = np.exp(np.mean(np.log(np.array(asked[400:560]) / 0.001)))
    assert 0.4 < late < 1.6  # what was saved until then is spent
    assert pacer.ask().allowed < 2048  # and nothing beyond it


@pytest.mark.parametrize("hard_first", [False, True])
def test_a_right_forecast_is_kept_where_the_day_is_sorted(hard_first: bool) -> None:
    """Also where it begins with questions that read nothing at all."""
    wants = np.sort(DAY)[::-1] if hard_first else np.concatenate([np.zeros(150), np.sort(DAY)])
    forecast = Forecast(0.001, float(wants.mean()))
    for n in range(1, len(wants)):
        x = wants[:n]
        seen = Seen(n, x.sum(), float((x * np.arange(n)).sum()), float((x * x).sum()))
        assert not forecast.refuted(seen, len(wants) - n)


def test_a_trend_away_from_the_forecast_does_not_excuse_it() -> None:
    """Hard questions first, and yet less than was forecast: the rest cannot make up for it."""
    wants = np.sort(DAY)[::-1]
    half = wants[:310]
    seen = Seen(310, half.sum(), float((half * np.arange(310)).sum()), float((half * half).sum()))
    assert Forecast(0.001, 5 * float(half.mean())).refuted(seen, 290)
    assert not Forecast(0.001, float(wants.mean())).refuted(seen, 290)


def test_who_reads_nothing_at_a_price_is_not_counted_as_the_mean_question() -> None:
    forecast = Forecast(0.001, 1e6)  # no question may spend as much
    assert forecast.effort(0.001, 0, 2048) == 0
    assert forecast.effort(0.001, 300, 2048) == 300
    assert forecast.effort(0.001, 2000, 2048) == 1e6  # it would have gone on
    assert forecast.effort(0.001, 0, 40) == 1e6
