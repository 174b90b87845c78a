"""Planners on tables whose optimum is known: both learners find it, and neither invents what is not there."""

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.errors import DataError, InputError
from mio_rag.learning.planner import (
    WORDING,
    CostWeights,
    Planner,
    QuestionFeatures,
    Tree,
    read_planner,
    wording,
    write_planner,
)
from mio_rag.learning.planner_regression import Experience, experience_of
from mio_rag.learning.ppo import PPOSettings, train_ppo
from mio_rag.session.workflow import NAMED
from tests.learning.files import FEATURES, as_wide_as_features, outcomes, planner_file, regressed, rewritten


def trained(experience: Experience, **settings: Any) -> Planner:
    """A planner by proximal policy optimisation."""
    how = PPOSettings(**settings)
    network = train_ppo(experience, how).network
    return Planner(experience.tree, FEATURES, network, "ppo", 300.0, how.alphas)


def earned(planner: Planner, test: Experience, alpha: float = 0.1) -> float:
    return float(test.reward(planner.choices(test.observed, alpha), alpha).mean())


def best_fixed(experience: Experience, alpha: float = 0.1) -> float:
    return float(max((experience.quality - alpha * experience.cost).mean(axis=0)))


# --- the tree and what is seen ---------------------------------------------------------------------------


def test_a_tree_parts_where_workflows_differ() -> None:
    names = ("plain", "verify-or-parts", "plain-then-serial", "no-retrieval")
    tree = Tree([NAMED[name] for name in names], "again")
    assert sorted(len(tree.branches[c].leaves) for c in tree.branches[0].children) == [1, 3]
    # retrieve, select and answer are common; then one ends, one verifies, one goes on.
    common = [b for b in tree.branches if len(b.leaves) == 3]
    assert len(common) == 3
    assert len(common[-1].children) == 3
    assert {b.ends for b in tree.branches} == {None, 0, 1, 2, 3}
    assert len(Tree([NAMED[name] for name in names], "once").branches) == 5
    twice = [NAMED["plain"], dataclasses.replace(NAMED["plain"], name="again")]
    for workflows, mode, message in (
        (twice, "again", "keep one"),
        (twice[:1], "twice", "mode 'twice' is unknown"),
        ([], "once", "there are no workflows"),
    ):
        with pytest.raises(InputError, match=message):
            Tree(workflows, mode)


def test_features() -> None:
    question = "How many of Verdi's operas, in 1850, are longer than Aida?"
    found = dict(zip(WORDING, wording(question), strict=True))
    shown = {name: found[name] for name in ("asks how many", "asks how", "compared", "digits", "commas")}
    assert shown == {"asks how many": 1, "asks how": 0, "compared": 1, "digits": 0.5, "commas": 1}
    texts = [f"Who was number {k}?" for k in range(40)]
    vectors = np.random.default_rng(0).normal(size=(40, 12))
    features = QuestionFeatures.fit(texts, vectors).of(texts, vectors)
    assert features.shape == (40, len(WORDING) + 10)
    assert np.abs(features.mean(axis=0)).max() < 0.2


# --- regression ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["once", "again"])
def test_the_regression_finds_the_optimum(mode: str) -> None:
    test = outcomes(300, mode, seed=1)
    found = regressed(outcomes(300, mode))
    hard = test.quality[:, 2] - test.quality[:, 0] > 0.3
    assert earned(found, test) > 0.97 * test.reward(np.where(hard, 2, 0), 0.1).mean()
    assert earned(found, test) > best_fixed(test) + 0.1
    rows = np.arange(len(test))
    costs = [test.cost[rows, found.choices(test.observed, alpha)].mean() for alpha in np.linspace(0, 1, 21)]
    assert all(
        later <= earlier + 1e-12 for earlier, later in pairwise(costs)
    )  # cost falls as its price rises
    assert costs[0] > costs[-1]


def test_without_a_signal_the_best_fixed_workflow_remains() -> None:
    test = outcomes(400, told=0.0, seed=5)
    assert earned(regressed(outcomes(200, told=0.0, seed=4)), test) > best_fixed(test) - 0.03
    paid, naive = [], []
    for seed in range(8):  # no workflow is better than another: little is paid for what may be chance
        train = outcomes(60, told=0.0, seed=seed)
        alike = 0.5 + 0.3 * np.random.default_rng(seed).normal(size=train.quality.shape)
        found = regressed(dataclasses.replace(train, quality=alike))
        paid.append(train.cost[np.arange(60), found.choices(train.observed, 0.0)].mean())
        naive.append(train.cost[0, int(np.argmax(alike.mean(axis=0)))])
    assert np.mean(paid) < 0.6 * np.mean(naive)


def of_two_sets(n: int, seed: int, named: bool = True) -> Experience:
    """One set needs evidence on a third of its questions, the other never; questions look like their set."""
    rng = np.random.default_rng(seed)
    plain = outcomes(n, seed=seed)
    needs = rng.random(n) < 0.5
    hard = needs & (rng.random(n) < 0.35)
    quality = np.where(hard[:, None], [0.0, 1.0, 1.0], (rng.random(n) < 0.4)[:, None] * np.ones(3))
    observed = rng.normal(size=plain.observed.shape)
    observed[:, :, 0] += np.where(needs, 2.0, -2.0)[:, None]
    sets = tuple(np.where(needs, "needs", "free")) if named else ("all",) * n
    return dataclasses.replace(plain, quality=quality, observed=observed, sets=sets)


def test_sets_that_need_other_workflows_are_told_apart() -> None:
    test = of_two_sets(600, 99)
    needs = np.array(test.sets) == "needs"
    rewards: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(12):
        for named, each in rewards.items():
            each.append(earned(regressed(of_two_sets(70, seed, named)), test, 0.2))
    best = test.reward(np.where(needs, 1, 0), 0.2).mean()
    assert np.mean(rewards[True]) > max(best - 0.01, np.mean(rewards[False]) + 0.015)


# --- proximal policy optimisation ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["once", "again"])
def test_ppo_comes_close_to_the_regression(mode: str) -> None:
    train, test = outcomes(300, mode), outcomes(300, mode, seed=1)
    rival = earned(regressed(train), test)
    found = trained(train, updates=30, episodes=256, hidden=32)
    assert earned(found, test) >= 0.98 * rival


@pytest.mark.parametrize("mode", ["once", "again"])
def test_a_network_may_begin_at_nothing_and_pay_for_what_is_no_workflow(mode: str) -> None:
    train, test = outcomes(200, mode, seed=8), outcomes(300, mode, seed=9)
    how = PPOSettings(
        start="nothing", format_penalty=1.0, kl=0.001, value_clip=0.5, annealed=False, discount=1.0,
        smoothing=1.0, updates=40, episodes=256, hidden=32, patience=40,
    )  # fmt: skip
    found = train_ppo(train, how)
    assert not found.network.prior.bias.any()
    invalid = [row[4] for row in found.curve]
    assert invalid[0] > 0.1 > invalid[-1]
    planner = Planner(train.tree, FEATURES, found.network, "ppo", 300.0, how.alphas)
    assert earned(planner, test) > best_fixed(test) - 0.02
    assert train_ppo(train, PPOSettings(updates=1)).curve[0][4] == 0.0  # nothing else can be chosen


def test_turns_and_searches_cost_what_their_weights_say() -> None:
    weights = CostWeights(tokens=2.0, turns=0.5, retrieval_calls=0.25)
    tree, features = Tree([NAMED[n] for n in ("plain", "decompose-serial")], "again"), np.zeros((1, 2))
    rows = []
    for workflow in tree.workflows:
        steps = [
            {"signature": s, "do": n.do, "signals": {"turns": 3.0} if n.do == "each" else {}, "dropped": None,
             "tokens": 10, "retrieval_calls": int(n.do in ("each", "retrieve"))}
            for n, s in zip(workflow.nodes, workflow.signatures(), strict=True)
        ]  # fmt: skip
        whole = {"question_id": "q", "set": "", "action": workflow.name, "token_f1": 1.0, "steps": steps}
        rows.append({**whole, "tokens": 10 * len(steps), "retrieval_calls": 1})
    found = experience_of(tree, rows, ["q"], features, unit=100.0, weights=weights)
    assert found.cost.tolist() == [[pytest.approx(2 * 0.3 + 0.25), pytest.approx(2 * 0.3 + 0.25 + 1.5)]]
    assert sum(found.step_cost[0, b.place] for b in tree.branches if 1 in b.leaves) == pytest.approx(2.35)


def test_a_network_finds_what_the_regression_cannot_see() -> None:
    """A hard question shows by its first two features having the same sign: no linear model can tell."""

    def crossed(n: int, seed: int) -> Experience:
        given = outcomes(n, told=0.0, seed=seed)
        hard = given.quality[:, 2] - given.quality[:, 0] > 0.3
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=n)
        given.observed[:, :, 2:] *= 0.3
        given.observed[:, :, 0] = signs[:, None]
        given.observed[:, :, 1] = np.where(hard, signs, -signs)[:, None]
        return given

    train, test = crossed(300, 1), crossed(300, 2)
    rival = earned(regressed(train), test)
    assert earned(trained(train, updates=20, held_out=0.3), test) > rival + 0.05


# --- comparison with fixed workflows ---------------------------------------------------------------------


# --- files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["regression", "ppo"])
def test_a_planner_comes_back_from_its_file(method: str, tmp_path: Path) -> None:
    train = as_wide_as_features(outcomes(40, "again"))
    given = regressed(train)
    if method == "ppo":
        given = trained(train, updates=2, hidden=8, episodes=32)
    path = tmp_path / "planner.safetensors"
    write_planner(given, path)
    again = read_planner(path)
    assert (again.method, again.alphas, again.unit) == (given.method, given.alphas, given.unit)
    assert np.array_equal(again.choices(train.observed, 0.1), given.choices(train.observed, 0.1))


def test_a_planner_for_workflows_that_have_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = planner_file(tmp_path / "planner.safetensors")
    read_planner(path)
    # decompose-serial answers its parts by plain: what that is now is not what was learned.
    monkeypatch.setitem(NAMED, "plain", dataclasses.replace(NAMED["brief"], name="plain"))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="trained for other workflows or signals \\(plain changed since\\)"):
        read_planner(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda about, arrays: arrays.pop("regression.gates"),
        lambda about, arrays: about.update(workflows=[{"nodes": 3}]),
    ],
)
def test_planners_of_other_releases_are_refused(tmp_path: Path, change: Callable[..., object]) -> None:
    path = planner_file(tmp_path / "p.safetensors")
    rewritten(path, "planner", 2, change)
    with pytest.raises(DataError) as error:
        read_planner(path)
    assert str(path) in str(error.value)
