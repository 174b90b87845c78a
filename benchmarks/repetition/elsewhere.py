"""Price and budget chosen on other questions than those that are reported.

A table of prices lets the reader pick the best one afterwards. Here the questions are halved at random; on
one half the price and the budget are chosen that reach the answers of fused top-k with the fewest tokens, and
the other half tells what they bring; then the other way round. The mean of all halvings is reported, with the
answers that are gained or lost, since a point that is chosen elsewhere does not meet the rate exactly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.repetition.study import Columns

FloatArray = NDArray[np.float64]

_HALVINGS = 10
_DRAWS = 100
_LEAST = 20  # questions, so that no half of a resample is empty
_PRICED = re.compile(r"price ([\d.e-]+)(, sentences)?(, no penalty)?(, own weights)?, merged")


def mixture(tokens: FloatArray, rates: FloatArray, aim: float) -> tuple[FloatArray, bool]:
    """How often to use each point of a curve so that the rate `aim` is reached, the cheapest points first.

    Parameters
    ----------
    tokens, rates : ndarray, shape (k,)

    Returns
    -------
    (weights, reached) : ndarray of shape (k,), bool
        At most two weights are not 0; what they lack to 1 reads nothing. Where the rate is never reached, the
        highest one is used.
    """
    weights = np.zeros(tokens.size)
    best, best_rate = -1, 0.0  # reading nothing
    for k in np.lexsort((rates, tokens)).tolist():
        if rates[k] >= aim:
            share = (aim - best_rate) / (rates[k] - best_rate) if rates[k] > best_rate else 0.0
            weights[k] = share
            if best >= 0:
                weights[best] = 1 - share
            return weights, True
        if rates[k] > best_rate:
            best, best_rate = k, float(rates[k])
    if best >= 0:
        weights[best] = 1.0
    return weights, False


def chosen_elsewhere(
    rows: Mapping[str, Columns], reference: str, budgets: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """For passages and sentences, where rows of two prices or more exist: tokens and answers, by budget.

    Parameters
    ----------
    rows : mapping
        Name of a row -> its columns.
    reference : str
        The row whose answer rate is to be reached.
    budgets : tuple of int
        Of the reference.

    Returns
    -------
    dict
        units -> budget -> ``tokens`` (a share of the reference's) and ``answers`` (the difference in the
        answer rate), with 95 % bootstrap intervals over questions, and how often each price was chosen.
    """
    families: dict[str, dict[str, Columns]] = {}
    for name, columns in rows.items():
        if told := _PRICED.fullmatch(name):
            price = told[1] + (told[3] or "")
            units = ("sentences" if told[2] else "passages") + (told[4] or "")
            families.setdefault(units, {})[price] = columns
    asked = len(rows[reference][str(budgets[0])]["answer"])
    rng = np.random.default_rng(seed)
    halves = np.array([rng.permutation(asked) < asked // 2 for _ in range(_HALVINGS)])
    draws = [np.arange(asked), *rng.integers(0, asked, (_DRAWS, asked))]
    found: dict[str, Any] = {}
    for units, priced in families.items():
        if len(priced) < 2 or asked < _LEAST:
            continue
        found[units] = {}
        for budget in budgets:
            fused = _arrays([rows[reference][str(budget)]])
            curves = {price: _arrays(list(columns.values())) for price, columns in priced.items()}
            prices: Counter[str] = Counter()
            means = [_over_halves(fused, curves, halves, draws[0], prices)]
            means += [_over_halves(fused, curves, halves, draw, Counter()) for draw in draws[1:]]
            low, high = np.quantile(means[1:], (0.025, 0.975), axis=0)
            found[units][str(budget)] = {
                key: {
                    "mean": round(float(means[0][k]), 4),
                    "low": round(float(low[k]), 4),
                    "high": round(float(high[k]), 4),
                }
                for k, key in enumerate(("tokens", "answers"))
            } | {"prices": dict(sorted(prices.items()))}
    return found


def _arrays(columns: list[dict[str, list[float]]]) -> tuple[FloatArray, FloatArray]:
    """Tokens and answers, shape (budgets, questions)."""
    return np.array([c["tokens"] for c in columns]), np.array([c["answer"] for c in columns])


def _over_halves(
    fused: tuple[FloatArray, FloatArray],
    curves: Mapping[str, tuple[FloatArray, FloatArray]],
    halves: NDArray[np.bool_],
    draw: NDArray[np.int64],
    prices: Counter[str],
) -> tuple[float, float]:
    """Share of the tokens and difference in answers, mean over halvings and both ways."""
    sides = [side for half in halves for side in (half[draw], ~half[draw])]
    # How much each question counts in each half: all means at once.
    counts = np.array([np.bincount(draw[side], minlength=draw.size) / side.sum() for side in sides]).T
    usual = fused[0][0] @ counts, fused[1][0] @ counts
    means = {price: (tokens @ counts, answers @ counts) for price, (tokens, answers) in curves.items()}
    shares, gains = [], []
    for one in range(len(sides)):
        other = one ^ 1  # the other half
        aim = float(usual[1][one])
        options = []
        for price, (tokens, answers) in means.items():
            spent, rates = tokens[:, one], answers[:, one]
            weights, reached = mixture(spent, rates, aim)
            # Where no price reaches the rate, the one that comes closest.
            lacking = 0.0 if reached else aim - float(weights @ rates)
            options.append((lacking, float(weights @ spent), price, weights))
        _, _, price, weights = min(options, key=lambda option: option[:2])
        prices[price] += 1
        tokens, answers = means[price]
        shares.append(float(weights @ tokens[:, other]) / float(usual[0][other]))
        gains.append(float(weights @ answers[:, other]) - float(usual[1][other]))
    return float(np.mean(shares)), float(np.mean(gains))
