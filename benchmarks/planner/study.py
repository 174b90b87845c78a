"""The study on a table of outcomes: every policy decides on questions that it has not learned from.

Questions are dealt into folds, of every set alike; a policy learned from all other folds decides on one. What
is reported is about these decisions together. Intervals are bootstraps over questions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.learning.experience import Experience, fit_regression
from mio_rag.learning.planner import Planner, RegressionScorer
from mio_rag.learning.planner_training import Point, Table, judged
from mio_rag.learning.planner_tree import MODES, QuestionFeatures, Tree
from mio_rag.learning.ppo import PPOSettings, train_ppo

IntArray = NDArray[np.intp]
FloatArray = NDArray[np.float64]

#: Prices of the published frontier.
ALPHAS = (0.0, 0.05, 0.1, 0.2, 0.5)
_CURVE = tuple(sorted({*ALPHAS, *(k / 50 for k in range(26)), 0.75, 1.0, 2.0}))
_RIGHT = 0.6  # token F1 from which an answer counts as right


def folds_of(table: Table, folds: int, seed: int) -> IntArray:
    """The fold of each question: within every set in turns, in an order drawn by seed."""
    order = np.random.default_rng(seed).permutation(len(table.outcomes))
    sets = np.array(table.outcomes.sets)
    fold = np.zeros(len(order), dtype=np.intp)
    seen: dict[str, int] = {}
    for k, i in enumerate(order):
        seen.setdefault(sets[i], k % folds)
        fold[i] = seen[sets[i]] % folds
        seen[sets[i]] += 1
    return fold


def study(
    table: Table,
    *,
    folds: int = 5,
    seed: int = 0,
    ppo_alphas: Sequence[float] = ALPHAS,
    ppo: PPOSettings | None = None,
    seeds: int = 5,
    cost: str = "tokens",
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Everything that the table alone can tell.

    Parameters
    ----------
    cost : {"tokens", "dollars"}
        What is counted; dollars where workflows ask several models.

    Raises
    ------
    InputError
        For fewer than 13 questions: every fold must leave 10 to learn from.
    """
    n = len(table.outcomes)
    if n < 13 or not 2 <= folds <= n:
        raise InputError(f"{n} questions in {folds} folds: at least 13 questions, and 2 folds, are needed")
    names = list(table.outcomes.actions)
    unit = float(table.outcomes.of(cost).mean(axis=0)[names.index("plain")])
    fold = folds_of(table, folds, seed)
    everyone = np.arange(n, dtype=np.intp)
    features = QuestionFeatures.fit(table.outcomes.questions, table.vectors)
    whole = table.experience(Tree(table.workflows, "once"), features, everyone, unit, cost)
    result: dict[str, Any] = {
        "questions": n,
        "unit_tokens": float(table.outcomes.of("tokens").mean(axis=0)[names.index("plain")]),
        "cost": cost,
        "unit": unit,
        "folds": folds,
        "workflows": _workflows(table, whole),
        "policies": {},
        "ppo": {},
    }
    chosen: dict[tuple[str, float], IntArray] = {}
    for mode in MODES:
        planners = _planners(table, mode, fold, unit, cost)
        for alpha in _CURVE:
            chosen[f"regression, {mode}", alpha] = decisions(planners, alpha, n)
        say(f"regression, {mode}")
        if ppo_alphas:
            rivals = {a: decisions(planners, a, n) for a in ppo_alphas}
            found = _ppo(planners, whole, rivals, ppo or PPOSettings(), seeds, say)
            result["ppo"] |= {f"{mode}, {alpha:g}": told for alpha, told in found.items()}
        result["policies"][f"regression, {mode}"] = [
            judged(f"regression, {mode}", whole, chosen[f"regression, {mode}", alpha], alpha).to_dict()
            for alpha in _CURVE
        ]
        result.setdefault("deciding_ms", {})[mode] = _deciding(planners)
    for alpha in ALPHAS:
        result.setdefault("rivals", {})[f"{alpha:g}"] = [
            point.to_dict() for point in _rivals(whole, alpha, seed, fold)
        ]
    result["sets_never_met"] = _never_met(table, whole, unit, cost)
    result["goals"] = {mode: _goals(result, f"regression, {mode}", whole, chosen) for mode in MODES}
    result["categories"] = {
        mode: categories(whole, chosen[f"regression, {mode}", 0.1], table, 50) for mode in MODES
    }
    return result


def _workflows(table: Table, whole: Experience) -> dict[str, Any]:
    """Means of every workflow, over all questions and by set."""
    sets = np.array(table.outcomes.sets)
    measures = [m for m in ("token_f1", "exact_match", "evidence", "tokens", "prompt_tokens",
                "completion_tokens", "lm_calls", "retrieval_calls", "dropped", "failed", "dollars")
                if m in table.outcomes.values]  # fmt: skip
    found: dict[str, Any] = {}
    for k, name in enumerate(table.outcomes.actions):
        means = {m: _mean(table.outcomes.values[m][:, k]) for m in measures}
        by_set = {s: _mean(whole.quality[sets == s, k]) for s in sorted(set(sets))}
        low, high = _interval(whole.quality[:, k])
        found[name] = {
            **means,
            "low": low,
            "high": high,
            "cost": _mean(whole.cost[:, k]),
            "f1_by_set": by_set,
        }
    return found


def _mean(values: FloatArray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _interval(values: FloatArray, draws: int = 2000) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    means = values[rng.integers(len(values), size=(draws, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


Fold = tuple[Planner, Experience, IntArray, Experience]  # with what it learned from, then what it decides on


def _planners(table: Table, mode: str, fold: IntArray, unit: float, cost: str) -> list[Fold]:
    """For each fold a regression learned from all others."""
    found = []
    for k in np.unique(fold):
        learned, held = (np.flatnonzero(fold != k).astype(np.intp), np.flatnonzero(fold == k).astype(np.intp))
        texts = [table.outcomes.questions[i] for i in learned]
        features = QuestionFeatures.fit(texts, table.vectors[learned])
        tree = Tree(table.workflows, mode)
        train = table.experience(tree, features, learned, unit, cost)
        test = table.experience(tree, features, held, unit, cost)
        scorer = RegressionScorer(fit_regression(train))
        planner = Planner(tree, features, scorer, "regression", unit, cost=cost)
        found.append((planner, train, held, test))
    return found


def decisions(planners: Sequence[Fold], alpha: float, n: int) -> IntArray:
    """The workflow of each question, by the planner that has not learned from it."""
    chosen = np.full(n, -1, dtype=np.intp)
    for planner, _, held, test in planners:
        chosen[held] = planner.replay(test, alpha)
    return chosen


def _ppo(
    planners: Sequence[Fold],
    whole: Experience,
    rivals: Mapping[float, IntArray],
    given: PPOSettings,
    seeds: int,
    say: Callable[[str], None],
) -> dict[float, dict[str, Any]]:
    """What networks of several seeds, each for all prices, do at every price; on the regression's folds."""
    alphas = tuple(rivals)
    points: dict[float, list[dict[str, Any]]] = {alpha: [] for alpha in alphas}
    rewards: dict[float, list[float]] = {alpha: [] for alpha in alphas}
    curves, departed = [], 0
    for seed in range(seeds):
        chosen = {alpha: np.full(len(whole), -1, dtype=np.intp) for alpha in alphas}
        for planner, train, held, test in planners:
            trained = train_ppo(train, replace(given, alphas=alphas, seed=seed))
            network = replace(planner, scorer=trained.network, method="ppo", alphas=alphas)
            for alpha in alphas:
                chosen[alpha][held] = network.replay(test, alpha)
            curves.append([[update, held_] for update, _, held_, _ in trained.curve])
            departed += any(weights.any() for weights, _ in trained.network.layers)
        for alpha in alphas:
            rewards[alpha].append(float(whole.reward(chosen[alpha], alpha).mean()))
            points[alpha].append(judged("ppo", whole, chosen[alpha], alpha, draws=200).to_dict())
        say(f"ppo, seed {seed}: rewards {', '.join(f'{rewards[alpha][-1]:.4f}' for alpha in alphas)}")
    told = {}
    for alpha, rival in rivals.items():
        compared = float(whole.reward(rival, alpha).mean())
        told[alpha] = {
            "rewards": rewards[alpha],
            "mean": float(np.mean(rewards[alpha])),
            "deviation": float(np.std(rewards[alpha], ddof=1)),
            "regression": compared,
            "within_2_percent": sum(r >= compared - 0.02 * abs(compared) for r in rewards[alpha]),
            "networks": len(curves),
            "networks_that_departed": departed,
            "points": points[alpha],
            "curves": curves[: len(planners)],
        }
    return told


def _rivals(whole: Experience, alpha: float, seed: int, fold: IntArray) -> list[Point]:
    """Fixed workflows, a random one for each question, and who knows more than a planner.

    "best of its set" is told the set of each question, and takes what was best on the set's questions in the
    other folds; "oracle" knows each question's best.
    """
    rng = np.random.default_rng(seed)
    m = len(whole.tree.workflows)
    choices = {w.name: np.full(len(whole), k, dtype=np.intp) for k, w in enumerate(whole.tree.workflows)}
    choices["random"] = rng.integers(m, size=len(whole)).astype(np.intp)
    worth, sets = whole.quality - alpha * whole.cost, np.array(whole.sets or ("",) * len(whole))
    choices["best of its set"] = np.zeros(len(whole), dtype=np.intp)
    for k in np.unique(fold):
        for name in np.unique(sets[fold == k]):
            known = (fold != k) & (sets == name)
            best = worth[known if known.any() else fold != k].mean(axis=0)
            choices["best of its set"][(fold == k) & (sets == name)] = np.argmax(best)
    choices["oracle"] = np.argmax(worth, axis=1).astype(np.intp)
    return [judged(name, whole, chosen, alpha, draws=500) for name, chosen in choices.items()]


def _never_met(table: Table, whole: Experience, unit: float, cost: str) -> dict[str, list[dict[str, Any]]]:
    """Regressions that learned from all other sets decide on each; empty for a table of one set."""
    sets = np.array(table.outcomes.sets or ("",) * len(whole))
    named, place = np.unique(sets, return_inverse=True)
    if len(named) < 2 or len(whole) - np.bincount(place).max() < 10:
        return {}
    found = {}
    for mode in MODES:
        planners = _planners(table, mode, place.astype(np.intp), unit, cost)
        name = f"regression, {mode}, never met"
        found[name] = [
            judged(name, whole, decisions(planners, alpha, len(whole)), alpha).to_dict() for alpha in ALPHAS
        ]
    return found


def _deciding(planners: Sequence[Fold]) -> float:
    """CPU milliseconds of one decision at the root, the question's embedding apart."""
    planner, train, *_ = planners[0]
    repeats = 200
    start = time.process_time()
    for k in range(repeats):
        planner.choose(train.observed[k % len(train), 0], 0, 0.1)
    return 1000 * (time.process_time() - start) / repeats


def _goals(
    result: Mapping[str, Any], name: str, whole: Experience, chosen: Mapping[tuple[str, float], IntArray]
) -> dict[str, Any]:
    """The goals, each with the number that it was judged by."""
    points = result["policies"][name]
    names = [workflow.name for workflow in whole.tree.workflows]
    plain = names.index("plain")
    below = [p for p in points if p["cost"] <= whole.cost[:, plain].mean() + 1e-9]
    against: dict[str, Any] = {"reached": None}
    if below:
        best = max(below, key=lambda p: p["quality"])
        rows = np.arange(len(whole))
        gain = whole.quality[rows, chosen[name, best["alpha"]]] - whole.quality[:, plain]
        low, high = _interval(gain)
        against = {"alpha": best["alpha"], "cost": best["cost"], "gain": float(gain.mean()), "low": low,
                   "high": high, "reached": bool(low > 0), "not_worse": bool(high >= 0)}  # fmt: skip
    fixed = int(np.argmax(whole.quality.mean(axis=0)))
    reach = [p["cost"] for p in points if p["quality"] >= whole.quality[:, fixed].mean() - 1e-12]
    share = float(min(reach) / whole.cost[:, fixed].mean()) if reach else None
    costs, qualities = [p["cost"] for p in points], [p["quality"] for p in points]
    rises = [max(0.0, b - a) for a, b in pairwise(qualities)]
    return {
        "against_plain_at_no_more_cost": against,
        "best_fixed": {
            "name": names[fixed],
            "quality": float(whole.quality[:, fixed].mean()),
            "cost": float(whole.cost[:, fixed].mean()),
            "share_of_cost": share,
            "reached": bool(share is not None and share <= 0.6),
        },
        "cost_falls_in_alpha": all(b <= a + 1e-9 for a, b in pairwise(costs)),
        "largest_rise_of_f1_in_alpha": max(rises, default=0.0),
    }


def categories(whole: Experience, chosen: IntArray, table: Table, most: int) -> dict[str, Any]:
    """What the policy did on the first so many questions, by rule.

    right, cheapest: no cheaper workflow is right; right, dearer: one is; missed: wrong, and another would be
    right; hopeless: none is right, and it spent no more than `plain`; wasted: none is, and it spent more.
    """
    names = [workflow.name for workflow in whole.tree.workflows]
    plain = names.index("plain")
    told: list[dict[str, Any]] = []
    for i in range(min(most, len(whole))):
        right = whole.quality[i] >= _RIGHT
        k = int(chosen[i])
        cheapest = int(np.argmin(np.where(right, whole.cost[i], np.inf))) if right.any() else None
        if right[k]:
            kind = "right, cheapest" if whole.cost[i, k] <= whole.cost[i, cheapest] else "right, dearer"
        elif cheapest is not None:
            kind = "missed"
        else:
            kind = "hopeless" if whole.cost[i, k] <= whole.cost[i, plain] + 1e-9 else "wasted"
        told.append({"question": table.outcomes.ids[i], "chose": names[k], "kind": kind,
                     "would_do": None if cheapest is None else names[cheapest]})  # fmt: skip
    kinds = [entry["kind"] for entry in told]
    return {"counts": {kind: kinds.count(kind) for kind in sorted(set(kinds))}, "questions": told}
