"""What the table and the simulated policies say: means and intervals, regret, estimates, changes, priors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.strategies.bound import at_other_costs
from benchmarks.strategies.goals import OURS, judge
from benchmarks.strategies.limits import limits
from benchmarks.strategies.regimes import both_regimes
from benchmarks.strategies.simulate import (
    OTHERS,
    POLICIES,
    PRICE,
    action_of,
    interval,
    live,
    order_of,
    utility,
)
from benchmarks.strategies.table import BASE, MEASURES, outcomes_of
from mio_rag.learning.bandit import BanditSettings, Learned, context_of
from mio_rag.learning.bandit_choice import draw, every_set, mixture, worths
from mio_rag.learning.bandit_report import off_policy, stats
from mio_rag.session.strategies import STRATEGIES

FloatArray = NDArray[np.float64]
Cells = Sequence[Mapping[str, Any]]
_PRICES = {"tokens": PRICE}
_MADE_UP = 0.15
_SINGLE_HOP = ("squad2", "nq_open", "pubmedqa")


def report(cells: Cells, orders: int, questions: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything, as plain data.

    Parameters
    ----------
    orders : int
        Orders of the questions, each drawn by its seed.
    questions : int
        Of an order.
    """
    table = outcomes_of(cells)
    best = table.actions[table.best_fixed("gold_recall", _PRICES)]
    found = {
        "questions": len(cells),
        "sets": {name: table.sets.count(name) for name in dict.fromkeys(table.sets)},
        "price_of_a_token": PRICE,
        "orders": orders,
        "questions_of_an_order": questions,
        "actions": _actions(table),
        "by_set": {
            name: {
                k: v for k, v in _actions(table.where([s == name for s in table.sets])).items() if k in _SHOWN
            }
            for name in dict.fromkeys(table.sets)
        },
        "best_fixed": best,
        "oracle": _chosen(table, table.oracle("gold_recall", _PRICES)),
        "beyond_raw": {
            action: _difference(table, action, BASE) for action in table.actions if action != BASE
        },
    }
    found |= both_regimes(cells, table, best, orders, questions, say)
    say("what anybody could have reached")
    found["other_costs"] = at_other_costs(cells, table)
    found["beaten"] = _beaten(cells, best)
    say("off-policy estimates")
    found["off_policy"] = _estimates(cells, orders, questions)
    say("change, prior, time")
    found["change"] = _change(cells, orders, questions)
    found["prior"] = _prior(cells, orders)
    found["choosing_ms"] = _choosing(cells, questions)
    judge(found)
    found["limits"] = limits(found, PRICE)
    state = Learned(POLICIES[OURS], OTHERS)
    live(cells, order_of(range(len(cells)), questions, 0), POLICIES[OURS], learned=state)
    found["insights"] = stats(state)["insights"]
    return found


def at_pool(cells: Cells, orders: int, questions: int, say: Callable[[str], None]) -> dict[str, Any]:
    """What another size of the pools gives: sets of strategies, and the policies on fewer orders."""
    table = outcomes_of(cells)
    best = table.actions[table.best_fixed("gold_recall", _PRICES)]
    told = {
        "questions": len(cells),
        "orders": orders,
        "questions_of_an_order": questions,
        "actions": {k: v for k, v in _actions(table).items() if k in (*_SHOWN, best)},
        "best_fixed": best,
        "oracle": _chosen(table, table.oracle("gold_recall", _PRICES)),
        "beaten": _beaten(cells, best),
    }
    told |= both_regimes(cells, table, best, orders, questions, say)
    judge(told)
    told["limits"] = limits(told, PRICE)
    return told


def _beaten(cells: Cells, best: str) -> dict[str, Any]:
    """How rarely anything is worth more than the question alone, or than the best set for all."""
    told = {}
    for name in dict.fromkeys((BASE, best)):
        gains = np.array(
            [max(map(utility, line["cells"].values())) - utility(line["cells"][name]) for line in cells]
        )
        told[name] = {
            "questions": int((gains > 1e-9).sum()),
            "by_more_than_a_tenth": int((gains > 0.1).sum()),
            "mean": float(gains.mean()),
        }
    return told


_SHOWN = (*STRATEGIES, *(action_of([BASE, n]) for n in OTHERS), action_of(STRATEGIES))


def _actions(table: Any) -> dict[str, dict[str, float]]:
    return {
        action: {
            **{measure: float(table.of(measure)[:, place].mean()) for measure in MEASURES},
            "utility": float(table.utility("gold_recall", _PRICES)[:, place].mean()),
        }
        for place, action in enumerate(table.actions)
    }


def _chosen(table: Any, choice: Any) -> dict[str, float]:
    spent = table.mean("tokens", choice)
    recall = table.mean("gold_recall", choice)
    return {
        "gold_recall": recall,
        "tokens": spent,
        "utility": recall - PRICE * spent,
        "best_fixed_mixture_at_these_tokens": table.fixed_at("gold_recall", "tokens", spent),
    }


def _difference(table: Any, action: str, other: str) -> dict[str, float]:
    """Paired, of the recall of the selection, with a 95 % interval."""
    recall = table.of("gold_recall")
    return interval(recall[:, table.actions.index(action)] - recall[:, table.actions.index(other)])


def _estimates(cells: Cells, orders: int, questions: int) -> dict[str, Any]:
    """Logs of the uniform policy estimate a policy that learned elsewhere, and the table knows the truth."""
    target = Learned(POLICIES[OURS], OTHERS)
    live(cells, order_of(range(len(cells)), questions, 10_000), POLICIES[OURS], learned=target)
    members = [tuple(int(v) for v in row) for row in every_set(len(OTHERS))]
    actions = [action_of([BASE, *(n for n, v in zip(OTHERS, m, strict=True) if v)]) for m in members]

    def seen(line: Mapping[str, Any]) -> tuple[FloatArray, FloatArray]:
        vector = np.array(line["embedding"], dtype=np.float32)
        context = context_of(line["question"], vector, 0, target.settings.dimensions)
        mixed = mixture(target, context.x, context.type, line["id"])
        means = np.array([target.models[n].mean(context.x) for n in OTHERS])
        worth = worths(means[None, :], target.overlap(means), target.costs())[0]
        return np.array([mixed.probability(m) for m in members]), worth

    known = [seen(line) for line in cells]
    worth = np.array([[utility(line["cells"][a]) for a in actions] for line in cells])
    truth = float(np.mean([chances @ row for (chances, _), row in zip(known, worth, strict=True)]))
    told: dict[str, Any] = {"truth": truth, "estimators": {}}
    rows: dict[str, list[Any]] = {}
    for seed in range(orders):
        lived = live(cells, order_of(range(len(cells)), questions, seed), POLICIES["uniform"], seed=seed)
        place = [actions.index(action) for action in lived.actions]
        at = [i for i, _, _ in lived.logged]
        # The base is no part of what the model knows: it is the mean of the log's own recall with raw alone.
        start = float(np.mean([utility(line["cells"][BASE]) for line in cells]))
        for one in off_policy(
            lived.earned,
            [drawn.propensity for _, drawn, _ in lived.logged],
            [known[i][0][p] for i, p in zip(at, place, strict=True)],
            [start + known[i][1][p] for i, p in zip(at, place, strict=True)],
            [start + float(known[i][0] @ known[i][1]) for i in at],
        ):
            rows.setdefault(one.name, []).append(one)
    for name, found in rows.items():
        told["estimators"][name] = {
            "mean": float(np.mean([one.value for one in found])),
            "width": float(np.mean([one.high - one.low for one in found])),
            "covered": float(np.mean([one.low <= truth <= one.high for one in found])),
            "effective": float(np.mean([one.effective for one in found])),
        }
    return told


def _halves(cells: Cells) -> tuple[list[int], list[int]]:
    first = [i for i, line in enumerate(cells) if line["set"] in _SINGLE_HOP]
    return first, [i for i in range(len(cells)) if i not in set(first)]


def _change(cells: Cells, orders: int, questions: int) -> dict[str, Any]:
    """Questions that change their kind half way: whether and when that is found, and what it earns after.

    Once as they are; once where HyDE, in the second half alone, adds so much to every question (made up: the
    table holds no strategy that pays for one kind and not for the other), with and without the test.
    """
    first, second = _halves(cells)
    paying = [_paying(line) if i in set(second) else line for i, line in enumerate(cells)]
    how = POLICIES[OURS]
    deaf = how.replace(change_threshold=1e12)
    return {
        "as_they_are": _changed(cells, first, second, orders, questions, how),
        "hyde_pays_after": _changed(paying, first, second, orders, questions, how),
        "hyde_pays_after, without the test": _changed(paying, first, second, orders, questions, deaf),
    }


def _paying(line: Mapping[str, Any]) -> dict[str, Any]:
    """The line where HyDE adds to recall, and the bandit hears of it."""
    told = {}
    for action, cell in line["cells"].items():
        told[action] = dict(cell)
        if "hyde" in action.split("+"):
            told[action]["gold_recall"] += _MADE_UP
            if "own" in cell:
                told[action] |= {"own": {**cell["own"], "hyde": cell["own"]["hyde"] + _MADE_UP}}
                told[action]["total"] += _MADE_UP
    return {**line, "cells": told}


def _changed(
    cells: Cells,
    first: Sequence[int],
    second: Sequence[int],
    orders: int,
    questions: int,
    how: BanditSettings,
) -> dict[str, Any]:
    half = questions // 2
    found, false, after = [], 0, []
    for seed in range(orders):
        order = order_of(first, half, seed) + order_of(second, half, seed + 1000)
        lived = live(cells, order, how, seed=seed)
        later = [c - half for c in lived.changes if c >= half]
        false += sum(c < half for c in lived.changes)
        found += later[:1]
        after.append(float(lived.earned[half:].mean()))
    return {
        "orders": orders,
        "found": len(found),
        "questions_until_found": float(np.median(found)) if found else None,
        "found_before_there_was_one": int(false),
        "utility_after": interval(np.array(after)),
    }


def _prior(cells: Cells, orders: int) -> dict[str, Any]:
    """The first questions of other sets, with and without what single-hop sets taught; no cold start."""
    first, second = _halves(cells)
    how = replace(POLICIES[OURS], cold_start=0)
    taught = Learned(how, OTHERS)
    live(cells, order_of(first, 300, 5000), how, learned=taught)
    told = {}
    for name, weight in (("without", 0.0), ("with", 5.0)):
        earned = []
        for seed in range(orders):
            state = Learned(how.replace(seed=seed), OTHERS)
            for strategy in OTHERS if weight else ():
                state.models[strategy].start_from(taught.models[strategy].theta, weight)
            earned.append(
                float(live(cells, order_of(second, 100, seed), how, seed=seed, learned=state).earned.mean())
            )
        told[name] = interval(np.array(earned))
    return told


def _choosing(cells: Cells, questions: int) -> dict[str, float]:
    """Processor time of a choice, context included, of a bandit that has seen some questions."""
    state = Learned(POLICIES[OURS], OTHERS)
    live(cells, order_of(range(len(cells)), min(questions, 200), 1), POLICIES[OURS], learned=state)
    took = []
    for number in range(300):
        line = cells[number % len(cells)]
        vector = np.array(line["embedding"], dtype=np.float32)
        start = time.process_time()
        bare = context_of(line["question"], vector, 0, state.settings.dimensions)
        context = bare.with_past(state.similar(bare.place))
        draw(mixture(state, context.x, context.type, str(number)), 0, str(number))
        took.append(1e3 * (time.process_time() - start))
    return {"median": float(np.median(took)), "p95": float(np.quantile(took, 0.95))}
