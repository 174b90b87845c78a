"""Planners over workflows: every policy decides on questions that it has not learned from.

Every workflow answers every question once, which gives a table of outcomes. Questions are dealt into folds,
of every set alike; a policy learned from all other folds decides on one. Intervals are bootstraps over
questions.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.questions import load_sets
from benchmarks.runner import Measured, figure, interval_text, note, numbers, text_table
from mio_rag.errors import InputError
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.generation import make_generator
from mio_rag.learning.outcomes import Source, collect_outcomes, data_hash
from mio_rag.learning.planner import MODES, Planner, QuestionFeatures, Tree
from mio_rag.learning.planner_regression import Experience, fit_regression
from mio_rag.learning.planner_training import Table, judged, read_table
from mio_rag.learning.ppo import PPOSettings, train_ppo
from mio_rag.pictures import label_points
from mio_rag.policies.make import workflow_session
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import Retriever
from mio_rag.session.budget import Limits, Models
from mio_rag.session.loop import Session
from mio_rag.session.workflow import Workflow, WorkflowSettings, find_workflow

IntArray = NDArray[np.intp]
ALPHAS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_RIVALS_AT = (0.0, 0.1, 0.5)
Fold = tuple[Planner, Experience, IntArray, Experience]  # with what it learned from, then what it decides on


def measure(given: argparse.Namespace) -> Measured:
    """Collect outcomes, train by folds, compare with fixed workflows, networks and the oracle."""
    table = _collected(given)
    n, names = len(table.outcomes), list(table.outcomes.actions)
    if n < 13 or not 2 <= given.folds <= n:
        raise InputError(
            f"{n} questions in {given.folds} folds: at least 13 questions and 2 folds are needed"
        )
    unit = float(table.outcomes.of("tokens").mean(axis=0)[names.index("plain")])
    everyone = np.arange(n, dtype=np.intp)
    features = QuestionFeatures.fit(table.outcomes.questions, table.vectors)
    whole = table.experience(Tree(table.workflows, "once"), features, everyone, unit, "tokens")
    fold, sets = folds_of(table, given.folds, given.seed), np.array(table.outcomes.sets)
    points: dict[str, list[dict[str, Any]]] = {}
    report: dict[str, Any] = {"ppo": {}, "deciding_ms": {}}
    prices = numbers("--ppo-alphas", given.ppo_alphas, float) if given.ppo_seeds else []
    for mode in MODES:
        planners = _planners(table, mode, fold, unit)
        chosen = {alpha: _decisions(planners, alpha, n) for alpha in sorted({*ALPHAS, *prices})}
        points[f"regression, {mode}"] = [
            judged(mode, whole, c, alpha).to_dict() for alpha, c in chosen.items()
        ]
        place = np.unique(sets, return_inverse=True)[1].astype(np.intp)
        if len(set(place)) > 1 and n - np.bincount(place).max() >= 10:
            apart = _planners(table, mode, place, unit)
            points[f"regression, {mode}, sets never met"] = [
                judged(mode, whole, _decisions(apart, alpha, n), alpha).to_dict() for alpha in ALPHAS
            ]
        report["deciding_ms"][mode] = _deciding(planners)
        if prices:
            settings = PPOSettings(updates=given.updates, alphas=tuple(prices))
            report["ppo"][mode] = _networks(planners, whole, chosen, settings, given.ppo_seeds)
    report |= {
        "questions": n, "sets": dict(Counter(table.outcomes.sets)), "unit_tokens": unit,
        "workflows": _workflows(table, whole), "policies": points, "rivals": _rivals(whole, given.seed),
        "table": {k: table.outcomes.provenance.get(k) for k in ("generator", "budget_tokens", "sources")},
    }  # fmt: skip
    return Measured(report, _table(report), partial(_draw, report))


def _collected(given: argparse.Namespace) -> Table:
    """Answer every question by every workflow; a run resumes in the work folder."""
    if not given.generator:
        raise InputError("the table of outcomes needs a model: give --generator")
    workflows = tuple(map(find_workflow, given.workflows.split(",")))
    sets, settings = load_sets(given), WorkflowSettings()
    with closing(make_generator(given.generator)) as reader, closing(Models(settings.models)) as models:
        sources = []
        for one in sets:
            control = ControlSettings(
                limits=Limits(steps=40, seconds=1e6), kinds={"workflow": settings.to_dict()}
            )
            setup = Setup(control, Retriever(one.index, counter=reader), max_tokens=given.max_tokens)

            def session(name: str, workflow: Workflow, setup: Setup = setup) -> Session:
                return workflow_session(name, workflow, setup, models)

            questions = one.first(given.limit, given.skip).questions
            digest = data_hash(one.index, one.dataset.questions)
            sources.append(Source(one.name, questions, session, settings, digest))
        folder = given.work / "table"
        collect_outcomes(
            folder, sources, workflows, reader, budget_tokens=given.budget_tokens,
            progress=lambda name, done, of: note(f"{done} of {of}: {name}"),
        )  # fmt: skip
    return read_table(folder, sets[0].index.embedder)


def folds_of(table: Table, folds: int, seed: int) -> IntArray:
    """Return the fold of each question: within every set in turns, in an order drawn by seed."""
    order = np.random.default_rng(seed).permutation(len(table.outcomes))
    fold, seen = np.zeros(len(order), dtype=np.intp), dict[str, int]()
    for k, i in enumerate(order):
        name = table.outcomes.sets[i]
        fold[i] = seen.setdefault(name, k % folds) % folds
        seen[name] += 1
    return fold


def _planners(table: Table, mode: str, fold: IntArray, unit: float) -> list[Fold]:
    """Fit, for each fold, a regression on all others."""
    found = []
    for k in np.unique(fold):
        learned, held = (np.flatnonzero(fold != k).astype(np.intp), np.flatnonzero(fold == k).astype(np.intp))
        features = QuestionFeatures.fit(
            [table.outcomes.questions[i] for i in learned], table.vectors[learned]
        )
        tree = Tree(table.workflows, mode)
        train, test = (table.experience(tree, features, of, unit, "tokens") for of in (learned, held))
        scorer = fit_regression(train)
        found.append((Planner(tree, features, scorer, "regression", unit, cost="tokens"), train, held, test))
    return found


def _decisions(planners: Sequence[Fold], alpha: float, n: int) -> IntArray:
    chosen = np.full(n, -1, dtype=np.intp)
    for planner, _, held, test in planners:
        chosen[held] = planner.choices(test.observed, alpha)
    return chosen


def _networks(
    planners: Sequence[Fold],
    whole: Experience,
    chosen: Mapping[float, IntArray],
    settings: PPOSettings,
    seeds: int,
) -> dict[str, Any]:
    """Train networks of several seeds on the folds of the regression and compare rewards at every price."""
    rewards: dict[float, list[float]] = {alpha: [] for alpha in settings.alphas}
    for seed in range(seeds):
        made = []
        for planner, train, held, test in planners:
            trained = train_ppo(train, settings.replace(seed=seed))
            network = dataclasses.replace(
                planner, scorer=trained.network, method="ppo", alphas=settings.alphas
            )
            made.append((network, train, held, test))
        for alpha in settings.alphas:
            rewards[alpha].append(float(whole.reward(_decisions(made, alpha, len(whole)), alpha).mean()))
        note(f"ppo, seed {seed}")
    found = {}
    for alpha, of in rewards.items():
        regression = float(whole.reward(chosen[alpha], alpha).mean())
        within = sum(reward >= regression - 0.02 * abs(regression) for reward in of)
        found[f"{alpha:g}"] = {"rewards": of, "regression": regression, "within_2_percent": within}
    return found


def _rivals(whole: Experience, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return a random workflow for each question, and the best for each question in hindsight."""
    rng, m = np.random.default_rng(seed), len(whole.tree.workflows)
    drawn = rng.integers(m, size=len(whole)).astype(np.intp)
    found: dict[str, list[dict[str, Any]]] = {}
    for alpha in _RIVALS_AT:
        oracle = np.argmax(whole.quality - alpha * whole.cost, axis=1).astype(np.intp)
        for name, chosen in (("random", drawn), ("oracle", oracle)):
            found.setdefault(name, []).append(judged(name, whole, chosen, alpha, draws=500).to_dict())
    return found


def _deciding(planners: Sequence[Fold], repeats: int = 200) -> float:
    """Return CPU milliseconds of one decision, without the embedding of the question."""
    planner, train, *_ = planners[0]
    start = time.process_time()
    for k in range(repeats):
        planner.choices(train.observed[[k % len(train)]], 0.1)
    return 1000 * (time.process_time() - start) / repeats


def _workflows(table: Table, whole: Experience) -> dict[str, Any]:
    measures = ("exact_match", "evidence", "tokens", "lm_calls")
    return {
        name: {
            "f1": mean_interval(whole.quality[:, k].tolist()),
            "cost": float(whole.cost[:, k].mean()),
            **{
                m: float(np.nanmean(values[:, k]))
                for m in measures
                if (values := table.outcomes.values.get(m)) is not None and not np.isnan(values[:, k]).all()
            },
        }
        for k, name in enumerate(table.outcomes.actions)
    }


def _table(report: Mapping[str, Any]) -> str:
    fixed = [
        (
            name,
            interval_text(one["f1"]),
            f"{one['cost']:.2f}",
            f"{one['tokens']:.0f}",
            f"{one.get('evidence', np.nan):.3f}",
        )
        for name, one in sorted(report["workflows"].items(), key=lambda item: -item[1]["f1"]["mean"])
    ]
    rows = [
        (
            name,
            f"{p['alpha']:g}",
            f"{p['quality']:.3f}",
            f"{p['cost']:.2f}",
            interval_text({"mean": p["gain"], "low": p["low"], "high": p["high"]}, 3, "+"),
        )
        for name, points in (report["policies"] | report["rivals"]).items()
        for p in points
    ]
    networks = [
        f"ppo, {mode}, {alpha}: {one['within_2_percent']} of {len(one['rewards'])} within 2 %"
        for mode, found in report["ppo"].items()
        for alpha, one in found.items()
    ]
    return "\n\n".join(
        [
            f"{report['questions']} questions; a cost of 1 is {report['unit_tokens']:.0f} tokens",
            text_table(("workflow", "F1", "cost", "tokens", "evidence"), fixed),
            text_table(("policy", "alpha", "F1", "cost", "above the best mixture of workflows"), rows),
            "\n".join([*networks, f"deciding, ms of CPU: {report['deciding_ms']}"]),
        ]
    )


def _draw(report: Mapping[str, Any], path: Path) -> None:
    made, (panel,) = figure(1, 8, 5)
    spots = {name: (one["cost"], one["f1"]["mean"]) for name, one in report["workflows"].items()}
    panel.scatter(*zip(*spots.values(), strict=True), color="#888888", zorder=3, label="fixed workflows")
    for name, points in (report["policies"] | {"oracle": report["rivals"]["oracle"]}).items():
        style = ":" if name == "oracle" else "o-"
        panel.plot([p["cost"] for p in points], [p["quality"] for p in points], style, ms=3, label=name)
    panel.set(xlabel="cost (1: a plain answer)", ylabel="token F1")
    panel.legend(frameon=False, fontsize=8)
    label_points(panel, [(spot, name) for name, spot in spots.items()])
    made.savefig(path, format="png", dpi=130)
