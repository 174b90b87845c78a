"""Search strategies alone and together, and bandits against fixed sets of them and the oracle.

All strategies search for every question once. Rankings of each of the 31 sets are then merged and selected
from by the package itself, which gives a table of outcomes. Policies live through orders of its questions; a
bandit learns from contributions without labels, and earns recall of the gold less the price of the tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.questions import QuestionSet, load_sets
from benchmarks.runner import Measured, at_least, figure, interval_text, note, text_table
from mio_rag.errors import MioRagError
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.generation import Generator, ScriptedGenerator, make_generator
from mio_rag.learning.bandit import BanditSettings, Context, Learned, context_of
from mio_rag.learning.bandit_log import Event
from mio_rag.learning.bandit_report import off_policy
from mio_rag.learning.strategist import contributions, every_set, mixture, sets_to_compare, uniform
from mio_rag.policy import Policy
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.search import STRATEGIES, Found, SearchSettings, Strategy, search
from mio_rag.storage import append_lines
from mio_rag.types import Question

FloatArray = NDArray[np.float64]
Line = Mapping[str, Any]  # a question of the table: set, id, question, embedding, cells by action

BASE, OURS = "raw", "linucb"
OTHERS = tuple(name for name in STRATEGIES if name != BASE)
PRICE = 1e-4  # recall of the gold that a token of the model must add
_BUDGET, _POOL, _KEPT = 256, 50, 200
#: Mean number of gold passages: a unit of the program's value is a passage, recall a share of them.
_GOLD = 2.03
_BLOCK = 50
_SETTINGS = BanditSettings(token_price=PRICE * _GOLD)
_TEXTBOOK = _SETTINGS.replace(ridge=1.0, ridge_embedding=1.0, cold_start=0, prune_after=10**9, unsure=0.0)
#: What is published of the rule itself; what a strategy earns and when several run is as in ours.
_RULE = (
    "alpha", "ridge", "ridge_embedding", "cold_start", "cold_share", "explore", "explore_least", "all_every",
)  # fmt: skip
_PUBLISHED = {name: (Policy.load("published/strategy-bandit").search.bandit or {})[name] for name in _RULE}
_GREEDY = {"policy": "epsilon-greedy", "explore": 0.1, "explore_decay": 1.0, "explore_least": 0.1}
_NO_EXPLORING = {"alpha": 1.0, "explore": 0.0, "explore_least": 0.0}
POLICIES: Mapping[str, BanditSettings] = {
    OURS: _SETTINGS,
    "linucb, published constants": _SETTINGS.replace(**_PUBLISHED),
    "linucb, textbook": _TEXTBOOK.replace(**_NO_EXPLORING),
    "thompson, textbook": _TEXTBOOK.replace(policy="thompson", **_NO_EXPLORING),
    "epsilon-greedy, textbook": _TEXTBOOK.replace(**_GREEDY),
    "uniform": _SETTINGS.replace(policy="uniform", cold_start=0, all_every=0),
}


def measure(given: argparse.Namespace) -> Measured:
    """Search, tabulate, and let policies live through the orders."""
    at_least(given, limit=1, orders=1, questions=4)
    sets = load_sets(given)
    if given.generator is not None or given.quick:
        scripted = ScriptedGenerator(lambda prompt: prompt.question.text)
        _find(sets, given, make_generator(given.generator) if given.generator else scripted)
    lines = [line for one in sets for line in _tabulated(one, given)]
    orders = [
        np.random.default_rng([24, seed]).choice(len(lines), given.questions) for seed in range(given.orders)
    ]
    worth = {
        action: np.array([utility(line["cells"][action]) for line in lines]) for action in every_action()
    }
    best = max(worth, key=lambda action: float(worth[action].mean()))
    oracle = np.max(list(worth.values()), axis=0)
    policies = {}
    for name, settings in POLICIES.items():
        lived = [live(lines, order, settings, seed) for seed, order in enumerate(orders)]
        policies[name] = _summed(
            [one.rows for one in lived], [one.actions for one in lived], orders, oracle, worth[best]
        )
        note(f"policy {name}")
    whole = action_of(STRATEGIES)
    for action in dict.fromkeys((best, BASE, *STRATEGIES, whole)):
        rows = [[outcome(lines[k]["cells"][action]) for k in order] for order in orders]
        actions = [[action] * len(order) for order in orders]
        policies[f"fixed: {action}"] = _summed(rows, actions, orders, oracle, worth[best])
    actions_report = {
        action: {
            **{m: float(np.mean([line["cells"][action][m] for line in lines])) for m in ("recall", "tokens")},
            "worth": float(values.mean()),
        }
        for action, values in worth.items()
    }
    report = {
        "questions": len(lines), "orders": given.orders, "questions_of_an_order": given.questions,
        "price_of_a_token": PRICE, "actions": actions_report, "best_fixed": best,
        "oracle": float(oracle.mean()), "questions_that_gain": int((oracle > worth[best] + 1e-9).sum()),
        "policies": policies, "off_policy": _estimates(lines, orders, worth),
        "choosing_ms": _choosing(lines, orders[0]),
    }  # fmt: skip
    return Measured(report, _table(report), partial(_draw, policies))


def every_action() -> list[str]:
    """Return all sets of strategies by size: "raw", ..., "raw+hyde", ..."""
    sizes = range(1, len(STRATEGIES) + 1)
    return ["+".join(names) for size in sizes for names in combinations(STRATEGIES, size)]


def action_of(names: Sequence[str]) -> str:
    """Return the action that runs these strategies."""
    return "+".join(name for name in STRATEGIES if name in names)


def outcome(cell: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return worth, recall and tokens."""
    return utility(cell), float(cell["recall"]), float(cell["tokens"])


def utility(cell: Mapping[str, Any]) -> float:
    """Return recall less the price of the tokens."""
    return float(cell["recall"] - PRICE * cell["tokens"])


# The table -------------------------------------------------------------------------------------------------


def _read(path: Path) -> list[Line]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # cut short by a kill
            continue
    return rows


def _find(sets: Sequence[QuestionSet], given: argparse.Namespace, generator: Generator) -> None:
    """Search by all strategies, in turn over the sets, so that sets stay alike wherever it is stopped."""
    path = given.work / "found.jsonl"
    done = {(row["set"], row["id"]) for row in _read(path)}
    retrievers = [Retriever(one.index, pool=_POOL, counter=generator) for one in sets]
    # Seconds bind nothing: on a busy machine they would leave strategies out by accident.
    how = SearchSettings(deadline_seconds=3600.0)
    for place in range(given.skip, given.skip + given.limit):
        for one, retriever in zip(sets, retrievers, strict=True):
            question = next(iter(one.dataset.questions[place : place + 1]), None)
            if question is None or (one.name, question.id) in done:
                continue
            try:
                found = search(question, retriever, generator, STRATEGIES, how)
            except MioRagError as error:  # the model's server, for instance: the next run tries again
                note(f"{one.name} {question.id}: {error}")
                continue
            strategies = {
                each.strategy: {
                    "rows": list(each.found.rows[:_KEPT]),
                    "tokens": each.amount.prompt_tokens + each.amount.completion_tokens,
                }
                for each in found.tried
            }
            append_lines(path, [json.dumps({"set": one.name, "id": question.id, "strategies": strategies})])
            note(f"searched {one.name} {question.id}")
    generator.close()


def _known(name: str, rows: Sequence[int]) -> Strategy:
    """A strategy that found its ranking before."""
    found = Found(tuple(rows), note="" if rows else "nothing was found")
    return Strategy(name, lambda task: found, needs_model=False)


def _tabulated(given: QuestionSet, settings: argparse.Namespace) -> list[Line]:
    path = settings.work / f"cells-{given.name}.jsonl"
    done = {row["id"] for row in _read(path)}
    questions, retriever = {q.id: q for q in given.dataset.questions}, Retriever(given.index, pool=_POOL)
    for row in _read(settings.work / "found.jsonl"):
        if row["set"] != given.name or row["id"] in done or row["id"] not in questions:
            continue
        question = questions[row["id"]]
        line = {
            "id": question.id,
            "question": question.text,
            "embedding": np.round(given.index.embedder.encode([question.text])[0].astype(float), 6).tolist(),
            "cells": {a: _cell(question, retriever, row["strategies"], a) for a in every_action()},
        }
        append_lines(path, [json.dumps(line)])
        note(f"tabulated {given.name} {question.id}")
    return _read(path)


def _cell(question: Question, retriever: Retriever, found: Mapping[str, Any], action: str) -> dict[str, Any]:
    """Return what a set of strategies reads and costs, and what the bandit would learn of it."""
    names = action.split("+")
    alone = sets_to_compare(names, (BASE,)) if BASE in names else []
    searched = search(question, retriever, None, [_known(n, found[n]["rows"]) for n in names], alone=alone)
    selector, gold = Selector(), set(question.gold_ids)
    read = selector.select(searched.pool, _BUDGET, retriever.counter)
    cell = {"recall": len(gold & set(read.ids)) / len(gold), "tokens": sum(found[n]["tokens"] for n in names)}
    if BASE in names:
        pool = searched.pool if searched.every is None else searched.every
        counter = retriever.counter
        cell |= contributions(selector, pool, searched.alone, names, (BASE,), _BUDGET, counter) or {}
    return cell


# Policies --------------------------------------------------------------------------------------------------


class Lived:
    """Outcomes, actions and draws of a policy, by question of its order."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []
        self.actions: list[str] = []
        self.propensities: list[float] = []


def live(
    lines: Sequence[Line],
    order: Sequence[int] | NDArray[np.int64],
    settings: BanditSettings,
    seed: int = 0,
    state: Learned | None = None,
) -> Lived:
    """Let a bandit take the questions of an order; `state` is what it has learned before."""
    state, lived = state or Learned(settings.replace(seed=seed), OTHERS), Lived()
    for number, place in enumerate(order):
        line = lines[place]
        context, identity = _context(line, state), f"{seed}/{number}"
        mixed = mixture(state, context.x, context.type, identity)
        drawn, mode = mixed.draw(*uniform(seed, identity, "draw").random(2))
        members = every_set(len(state.strategies))[drawn]
        names = [BASE, *(n for n, inside in zip(state.strategies, members, strict=True) if inside)]
        propensity = float(mixed.chances[drawn])
        cell = line["cells"][action_of(names)]
        event = {
            "strategies": names,
            "tokens": {n: int(line["cells"][n]["tokens"]) for n in names},
            "seconds": {}, "credit": {}, "regret": 0.0,
            **{key: cell[key] for key in ("own", "overlap", "base", "total")},
            "type": context.type, "mode": mode, "propensity": propensity,
        }  # fmt: skip
        x = context.x.astype(np.float32).tobytes()
        state.fold(Event(state.seq + 1, "question", identity, 0.0, x, event), lambda *_: None)
        lived.rows.append(outcome(cell))
        lived.actions.append(action_of(names))
        lived.propensities.append(propensity)
    return lived


def _context(line: Line, state: Learned) -> Context:
    vector = np.array(line["embedding"], dtype=np.float32)
    bare = context_of(line["question"], vector, 0, state.settings.dimensions)
    return bare.with_past(state.similar(bare.place))


def _summed(
    rows: Sequence[Sequence[tuple[float, float, float]]],
    actions: Sequence[Sequence[str]],
    orders: Sequence[NDArray[np.int64]],
    oracle: FloatArray,
    rival: FloatArray,
) -> dict[str, Any]:
    """Return regret with intervals over orders, means of the second half, and how often HyDE runs."""
    data = np.array(rows)  # order, question, (worth, recall, tokens)
    at = np.array(orders)
    late, n = data[:, data.shape[1] // 2 :], data.shape[1]
    regret = {
        name: (of[at] - data[:, :, 0]).sum(axis=1) for name, of in (("of_each", oracle), ("for_all", rival))
    }
    curve = (rival[at] - data[:, :, 0]).cumsum(axis=1).mean(axis=0)
    hyde = np.array([["hyde" in a.split("+") for a in one] for one in actions]).mean(axis=0)
    step = max(1, n // 40)
    return {
        **{f"regret_{name}": mean_interval(values.tolist()) for name, values in regret.items()},
        "late": dict(zip(("worth", "recall", "tokens"), late.mean(axis=(0, 1)).tolist(), strict=True)),
        "curve": [list(range(step, n + 1, step)), curve[step - 1 :: step].tolist()],
        "hyde_share": [float(hyde[k : k + _BLOCK].mean()) for k in range(0, n, _BLOCK)],
    }


def _estimates(
    lines: Sequence[Line], orders: Sequence[NDArray[np.int64]], worth: Mapping[str, FloatArray]
) -> dict[str, Any]:
    """Estimate a policy from logs of the uniform one; the table knows the truth."""
    target = Learned(POLICIES[OURS], OTHERS)
    live(lines, orders[0], POLICIES[OURS], 10_000, target)
    members = [tuple(int(v) for v in row) for row in every_set(len(OTHERS))]
    actions = [action_of([BASE, *(n for n, v in zip(OTHERS, m, strict=True) if v)]) for m in members]
    chances, values = [], []
    for line in lines:
        context = _context(line, target)
        mixed = mixture(target, context.x, context.type, line["id"])
        chances.append(mixed.chances)
        values.append(mixed.expected)
    true = np.column_stack([worth[action] for action in actions])
    truth = float(np.mean([p @ row for p, row in zip(chances, true, strict=True)]))
    start, found = float(worth[BASE].mean()), dict[str, list[Any]]()
    for seed, order in enumerate(orders):
        lived = live(lines, order, POLICIES["uniform"], seed)
        place = [actions.index(action) for action in lived.actions]
        for one in off_policy(
            np.array(lived.rows)[:, 0],
            lived.propensities,
            [chances[i][p] for i, p in zip(order, place, strict=True)],
            [start + values[i][p] for i, p in zip(order, place, strict=True)],
            [start + float(chances[i] @ values[i]) for i in order],
        ):
            found.setdefault(one.name, []).append(one)
    return {
        "truth": truth,
        "estimators": {
            name: {
                "mean": float(np.mean([one.value for one in of])),
                "covers": float(np.mean([one.low <= truth <= one.high for one in of])),
            }
            for name, of in found.items()
        },
    }


def _choosing(lines: Sequence[Line], order: NDArray[np.int64]) -> dict[str, float]:
    """Return processor milliseconds of a choice, context included, after some questions."""
    state, took = Learned(POLICIES[OURS], OTHERS), []
    live(lines, order[:200], POLICIES[OURS], 0, state)
    for number in range(300):
        start = time.process_time()
        context = _context(lines[number % len(lines)], state)
        mixture(state, context.x, context.type, str(number)).draw(*uniform(0, str(number), "draw").random(2))
        took.append(1e3 * (time.process_time() - start))
    return {"median": float(np.median(took)), "p95": float(np.quantile(took, 0.95))}


def _table(report: Mapping[str, Any]) -> str:
    heads = ("policy", "recall", "tokens", "worth", "lost to the best of each", "lost to the best for all")
    ordered = sorted(report["policies"].items(), key=lambda item: item[1]["regret_for_all"]["mean"])
    rows = [
        (
            name,
            f"{one['late']['recall']:.3f}",
            f"{one['late']['tokens']:.1f}",
            f"{one['late']['worth']:.4f}",
            interval_text(one["regret_of_each"], 1),
            interval_text(one["regret_for_all"], 2),
        )
        for name, one in ordered
    ]
    off = report["off_policy"]
    estimates = [f"{n} {e['mean']:.4f}, covers {e['covers']:.0%}" for n, e in off["estimators"].items()]
    return "\n\n".join(
        [
            f"{report['questions']} questions, {report['orders']} orders of {report['questions_of_an_order']}"
            f"; any set beats {report['best_fixed']} on {report['questions_that_gain']} of them",
            text_table(heads, rows),
            f"off-policy: truth {off['truth']:.4f}; {'; '.join(estimates)}",
            f"choosing, ms: {report['choosing_ms']}",
        ]
    )


def _draw(policies: Mapping[str, Any], path: Path) -> None:
    made, (left, right) = figure(2)
    for name in POLICIES:
        one, width = policies[name], 2.2 if name == OURS else 1.2
        left.plot(*one["curve"], label=name, linewidth=width)
        middles = [(k + 0.5) * _BLOCK for k in range(len(one["hyde_share"]))]
        right.plot(middles, one["hyde_share"], label=name, linewidth=width)
    left.set(title="regret to the best set for all", xlabel="questions", ylabel="recall less price of tokens")
    right.set(title="share of questions that HyDE runs on", xlabel="questions", ylim=(0, 1))
    left.legend(frameon=False, fontsize=7)
    made.savefig(path, format="png", dpi=120)
