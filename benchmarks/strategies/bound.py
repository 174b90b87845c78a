"""What anybody could have reached at equal cost: fixed sets, the oracle, and who sees the question alone.

Three rivals of a policy that spends so many tokens a question:

- the best fixed set in hindsight, or mixture of two, of no larger mean cost;
- the oracle, which knows every question's outcome of every set: the upper end of what any policy could reach;
- learners that are told the gold of every set on other questions, far more than a bandit hears, and see of a
  question what a bandit sees, but for the number of its names that the index knows. They are cross-fitted:
  no question is decided by what was learned on it. The best of several, at the price that is best for it in
  hindsight, overstates what can be learned.

That learners find nothing is evidence only as far as they find what is there, and as the interval is narrow:
its upper end bounds what was missed of learners like these, with as many questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.learning.bandit import TYPES, context_of

FloatArray = NDArray[np.float64]
Fit = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]

_FOLDS, _DRAWS = 10, 2000
_RIDGES, _NEIGHBOURS = (1.0, 10.0, 100.0), (5, 20, 60)
_SPENT = (10.0, 50.0, 100.0, 200.0)
_PRICES = np.concatenate([[0.0], np.geomspace(1e-6, 1e-2, 25)])


def at_equal_cost(
    lines: Sequence[Mapping[str, Any]], table: Any, ours: FloatArray, spent: float
) -> dict[str, Any]:
    """Our recall of each question against all three, at our mean tokens.

    Parameters
    ----------
    table : Outcomes
        Of these questions.
    ours : array, shape (n,)
        Our mean recall of each question.
    spent : float
        Our mean tokens of a question.
    """
    recall, tokens = table.of("gold_recall"), table.of("tokens")
    weights = mixture_at(recall.mean(axis=0), tokens.mean(axis=0), spent)
    fixed = recall @ weights
    margin = oracle_at(recall, tokens, spent)
    return {
        "tokens": spent,
        "recall": float(ours.mean()),
        "fixed_mixture": float(fixed.mean()),
        "fixed_sets": {table.actions[k]: float(w) for k, w in enumerate(weights) if w > 0},
        "beyond_fixed": resampled(ours - fixed),
        "oracle": margin,
        "oracle_margin": margin - float(fixed.mean()),
        "question_alone": predictable(lines, recall, tokens, spent, fixed),
    }


def at_other_costs(lines: Sequence[Mapping[str, Any]], table: Any) -> list[dict[str, Any]]:
    """The same without us, at costs that buy one strategy for some questions, for each, or more of them."""
    recall, tokens = table.of("gold_recall"), table.of("tokens")
    rows = []
    for spent in _SPENT:
        fixed = recall @ mixture_at(recall.mean(axis=0), tokens.mean(axis=0), spent)
        learners = predictable(lines, recall, tokens, spent, fixed)
        best = max(learners, key=lambda name: learners[name]["recall"])
        margin = oracle_at(recall, tokens, spent) - float(fixed.mean())
        rows.append(
            {
                "at_most": spent,
                "fixed_mixture": float(fixed.mean()),
                "oracle_margin": margin,
                "best_learner": best,
                **learners[best],
            }
        )
    return rows


def resampled(differences: FloatArray) -> dict[str, float]:
    """The mean over questions with a 95 % bootstrap interval."""
    rng = np.random.default_rng(24)
    drawn = rng.integers(len(differences), size=(_DRAWS, len(differences)))
    means = differences[drawn].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": float(differences.mean()), "low": float(low), "high": float(high)}


def mixture_at(quality: FloatArray, cost: FloatArray, spent: float) -> FloatArray:
    """Shares of the best mixture of actions whose mean cost is at most `spent`; at most two are above 0."""
    best, found = -np.inf, np.zeros(len(cost))
    for i in np.flatnonzero(cost <= spent):
        for j in range(len(cost)):
            share = 0.0 if cost[j] <= cost[i] else min(1.0, (spent - cost[i]) / (cost[j] - cost[i]))
            value = (1 - share) * quality[i] + share * quality[j]
            if value > best + 1e-12:
                best, found = value, np.zeros(len(cost))
                found[i] += 1 - share
                found[j] += share
    return found


def oracle_at(quality: FloatArray, cost: FloatArray, spent: float) -> float:
    """Mean quality of who knows all outcomes and spends at most so much on average: a linear program.

    Parameters
    ----------
    quality, cost : array, shape (n, actions)
    """
    steps: list[tuple[float, float, float]] = []  # gain a token, gain, tokens
    start_quality = start_cost = 0.0
    for worth, price in zip(quality, cost, strict=True):
        hull: list[tuple[float, float]] = []
        for x, y in sorted(zip(price.tolist(), worth.tolist(), strict=True), key=lambda p: (p[0], -p[1])):
            if hull and y <= hull[-1][1]:
                continue
            while len(hull) > 1 and (y - hull[-1][1]) * (hull[-1][0] - hull[-2][0]) >= (
                hull[-1][1] - hull[-2][1]
            ) * (x - hull[-1][0]):
                hull.pop()
            hull.append((x, y))
        start_cost += hull[0][0]
        start_quality += hull[0][1]
        steps += [((b[1] - a[1]) / (b[0] - a[0]), b[1] - a[1], b[0] - a[0]) for a, b in zip(hull, hull[1:])]  # noqa: B905, RUF007
    left, total = spent * len(quality) - start_cost, start_quality
    for slope, gain, tokens in sorted(steps, reverse=True):
        if left <= 0:
            break
        total += gain if tokens <= left else slope * left
        left -= tokens
    return float(total / len(quality))


def predictable(
    lines: Sequence[Mapping[str, Any]],
    recall: FloatArray,
    tokens: FloatArray,
    spent: float,
    fixed: FloatArray,
) -> dict[str, Any]:
    """What learners reach that know the gold of every set on all other questions.

    Returns
    -------
    dict
        For each learner its recall, tokens and paired difference from the fixed mixture, at the price that is
        best for it in hindsight among those at which it spends no more.
    """
    x, kinds, places = _features(lines)
    folds = np.random.default_rng(24).permutation(np.arange(len(lines)) % _FOLDS)
    told = {}
    for name, fit in _learners(kinds, places).items():
        expected = np.empty_like(recall)
        for fold in range(_FOLDS):
            inside = folds != fold
            rows = np.flatnonzero(inside)
            expected[~inside] = fit(x[rows], recall[rows], x[~inside])
        best = None
        for price in _PRICES:
            choice = np.argmax(expected - price * tokens.mean(axis=0), axis=1)
            every = np.arange(len(choice))
            if tokens[every, choice].mean() <= spent:
                found = recall[every, choice]
                if best is None or found.mean() > best[0].mean():
                    best = found, float(tokens[every, choice].mean())
        if best is not None:
            told[name] = {
                "recall": float(best[0].mean()),
                "tokens": best[1],
                "beyond_fixed": resampled(best[0] - fixed),
            }
    return told


def _features(lines: Sequence[Mapping[str, Any]]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The bandit's context, its embedding in full; the columns of the types; those of the embedding."""
    made = []
    for line in lines:
        vector = np.array(line["embedding"], dtype=np.float32)
        context = context_of(line["question"], vector, 0, 64)
        made.append(np.concatenate([context.x[: 8 + len(TYPES)], vector.astype(np.float64)]))
    x = np.array(made)
    kinds = np.zeros(x.shape[1], dtype=bool)
    kinds[8 : 8 + len(TYPES)] = True
    places = np.zeros(x.shape[1], dtype=bool)
    places[8 + len(TYPES) :] = True
    return x, kinds, places


def _learners(kinds: FloatArray, places: FloatArray) -> dict[str, Fit]:
    def ridge(weight: float) -> Fit:
        def fit(x: FloatArray, y: FloatArray, new: FloatArray) -> FloatArray:
            mean, middle = y.mean(axis=0), x.mean(axis=0)
            centred = x - middle
            matrix = centred.T @ centred + weight * np.eye(x.shape[1])
            return np.asarray(mean + (new - middle) @ np.linalg.solve(matrix, centred.T @ (y - mean)))

        return fit

    def nearest(k: int) -> Fit:
        def fit(x: FloatArray, y: FloatArray, new: FloatArray) -> FloatArray:
            near = np.argsort(-(new[:, places] @ x[:, places].T), axis=1, kind="stable")[:, :k]
            return np.asarray(y[near].mean(axis=1))

        return fit

    def typed(x: FloatArray, y: FloatArray, new: FloatArray) -> FloatArray:
        known = x[:, kinds] @ new[:, kinds].T  # 1 where the types are the same
        sums = known.T @ y + y.mean(axis=0)  # one more question, the mean of all
        return np.asarray(sums / (known.sum(axis=0)[:, None] + 1))

    def constant(x: FloatArray, y: FloatArray, new: FloatArray) -> FloatArray:
        return np.tile(y.mean(axis=0), (len(new), 1))

    return {
        "the same for all": constant,
        "by type of question": typed,
        **{f"ridge {weight:g}": ridge(weight) for weight in _RIDGES},
        **{f"{k} nearest questions": nearest(k) for k in _NEIGHBOURS},
    }
