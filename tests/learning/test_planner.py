"""Policies on tables whose optimum is known: both learners find it, and neither invents what is not there."""

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mio_rag.errors import DataError, InputError
from mio_rag.learning.experience import SEEN, Experience, _by_set, fit_regression
from mio_rag.learning.planner import Planner, RegressionScorer, read_planner, write_planner
from mio_rag.learning.planner_tree import WORDING, QuestionFeatures, Tree, wording
from mio_rag.learning.ppo import PPOSettings, train_ppo
from mio_rag.session.workflow import NAMED
from tests.learning.plans import best, table

FEATURES = QuestionFeatures.fit(["Who?", "What is it?"], np.eye(2), axes=0)


def planner(experience, scorer, method="regression", alphas=()) -> Planner:  # type: ignore[no-untyped-def]
    return Planner(experience.tree, FEATURES, scorer, method, 300.0, alphas)


def as_wide_as_features(experience):  # type: ignore[no-untyped-def]
    """What is seen padded with zeros, as a planner in a file needs it."""
    n, p, d = experience.observed.shape
    padding = np.zeros((n, p, len(FEATURES) + len(SEEN) + 2 - d))
    return dataclasses.replace(experience, observed=np.concatenate([experience.observed, padding], axis=2))


def regressed(experience) -> Planner:  # type: ignore[no-untyped-def]
    return planner(experience, RegressionScorer(fit_regression(experience)))


def test_a_tree_parts_where_workflows_differ() -> None:
    names = ("plain", "verify-or-parts", "plain-then-serial", "no-retrieval")
    tree = Tree([NAMED[name] for name in names], "again")
    root = tree.branches[0]
    assert sorted(len(tree.branches[c].leaves) for c in root.children) == [1, 3]
    # retrieve, select and answer are common; then one ends, one verifies, one goes on.
    common = [b for b in tree.branches if len(b.leaves) == 3]
    assert len(common) == 3
    assert len(common[-1].children) == 3
    assert {b.ends for b in tree.branches} == {None, 0, 1, 2, 3}
    assert len(Tree([NAMED[name] for name in names], "once").branches) == 5
    with pytest.raises(InputError, match="keep one"):
        Tree([NAMED["plain"], dataclasses.replace(NAMED["plain"], name="again")], "again")
    with pytest.raises(InputError, match="mode 'twice' is unknown"):
        Tree([NAMED["plain"]], "twice")


@pytest.mark.parametrize("mode", ["once", "again"])
def test_the_regression_finds_the_optimum(mode: str) -> None:
    train, test = table(300, mode), table(300, mode, seed=1)
    found = regressed(train)
    reward = test.reward(found.replay(test, 0.1), 0.1).mean()
    assert reward > 0.97 * best(test, 0.1)
    fixed = max((test.quality - 0.1 * test.cost).mean(axis=0))
    assert reward > fixed + 0.1


def test_cost_falls_as_the_price_rises() -> None:
    train, test = table(200, seed=2), table(200, seed=3)
    found = regressed(train)
    rows = np.arange(len(test))
    costs = [test.cost[rows, found.replay(test, alpha)].mean() for alpha in np.linspace(0, 1, 41)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(costs))
    assert costs[0] > costs[-1]


def test_without_a_signal_the_best_fixed_workflow_remains() -> None:
    train, test = table(200, told=0.0, seed=4), table(400, told=0.0, seed=5)
    found = regressed(train)
    fixed = max((test.quality - 0.1 * test.cost).mean(axis=0))
    assert test.reward(found.replay(test, 0.1), 0.1).mean() > fixed - 0.03


def of_two_sets(n: int, seed: int, named: bool = True) -> Experience:
    """One set needs evidence on a third of its questions, the other never; questions look like their set."""
    rng = np.random.default_rng(seed)
    plain = table(n, seed=seed)
    needs = rng.random(n) < 0.5
    hard = needs & (rng.random(n) < 0.35)
    quality = np.where(hard[:, None], [0.0, 1.0, 1.0], (rng.random(n) < 0.4)[:, None] * np.ones(3))
    observed = rng.normal(size=plain.observed.shape)
    observed[:, :, 0] += np.where(needs, 2.0, -2.0)[:, None]
    sets = tuple(np.where(needs, "needs", "free"))
    return dataclasses.replace(
        plain, quality=quality, observed=observed, sets=sets if named else ("all",) * n
    )


def test_sets_that_need_other_workflows_are_told_apart() -> None:
    test = of_two_sets(600, 99)
    rows, needs = np.arange(600), np.array(test.sets) == "needs"
    rewards: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(12):
        for named in rewards:
            found = regressed(of_two_sets(70, seed, named))
            taken = found.replay(test, 0.2)
            rewards[named].append(float(test.reward(taken, 0.2).mean()))
        assert test.cost[rows, taken].min() == 0.2
    best = test.reward(np.where(needs, 1, 0), 0.2).mean()
    assert np.mean(rewards[True]) > best - 0.01
    assert np.mean(rewards[True]) > np.mean(rewards[False]) + 0.015


def test_small_sets_count_as_one() -> None:
    train = table(60, seed=3)
    for sets, told in (
        (("a",) * 30 + ("b",) * 30, 2),
        (("a",) * 52 + ("b",) * 8, 1),  # eight questions are too few to be judged by
        (("a",) * 40 + ("b",) * 8 + ("c",) * 7 + ("d",) * 5, 2),
        ((), 1),
    ):
        fitted = fit_regression(dataclasses.replace(train, sets=sets))
        assert fitted.experts.shape[1] == fitted.report["sets"] == told
    same = fit_regression(dataclasses.replace(train, sets=("a",) * 60))
    none = fit_regression(train)
    assert np.array_equal(same.worth(train.observed[:, 0], 0, 0.1), none.worth(train.observed[:, 0], 0, 0.1))
    with pytest.raises(InputError, match="3 sets are named for 60 questions"):
        dataclasses.replace(train, sets=("a", "b", "c"))
    assert train.where(np.arange(5)).sets == ()
    halves = dataclasses.replace(train, sets=("a",) * 30 + ("b",) * 30).where(np.array([0, 45]))
    assert halves.sets == ("a", "b")


def test_little_is_paid_for_what_may_be_chance() -> None:
    paid, naive = [], []
    for seed in range(8):
        train = table(60, told=0.0, seed=seed)
        alike = 0.5 + 0.3 * np.random.default_rng(seed).normal(size=train.quality.shape)
        found = regressed(dataclasses.replace(train, quality=alike))  # no workflow is better than another
        paid.append(train.cost[np.arange(60), found.replay(train, 0.0)].mean())
        naive.append(train.cost[0, int(np.argmax(alike.mean(axis=0)))])
    assert np.mean(paid) < 0.6 * np.mean(naive)


@pytest.mark.parametrize("start", ["regression", "nothing"])
@pytest.mark.parametrize("mode", ["once", "again"])
def test_ppo_comes_close_to_the_regression_on_five_seeds(mode: str, start: str) -> None:
    train, test = table(300, mode), table(300, mode, seed=1)
    rival = test.reward(regressed(train).replay(test, 0.1), 0.1).mean()
    for seed in range(5):
        trained = train_ppo(train, PPOSettings(updates=30, episodes=256, seed=seed, hidden=32, start=start))
        reward = test.reward(planner(train, trained.network, "ppo", (0.1,)).replay(test, 0.1), 0.1).mean()
        assert reward >= 0.98 * rival, seed
        assert len(trained.curve) <= 30


def test_one_network_may_serve_several_prices() -> None:
    train, test = table(200, seed=6), table(300, seed=7)
    settings = PPOSettings(alphas=(0.0, 0.1, 0.6), updates=40, hidden=32)
    found = planner(train, train_ppo(train, settings).network, "ppo", settings.alphas)
    rows = np.arange(len(test))
    costs = [test.cost[rows, found.replay(test, alpha)].mean() for alpha in settings.alphas]
    assert costs[0] > costs[2]
    with pytest.raises(InputError, match=r"trained for 0 to 0\.6"):
        found.checked_alpha(0.7)
    assert found.checked_alpha(None) == 0.1
    with pytest.raises(InputError, match=r"trained for prices from 0\.2 to 0\.6: say --alpha"):
        dataclasses.replace(found, alphas=(0.2, 0.6)).checked_alpha(None)
    assert found.checked_alpha(0.3) == 0.3


def test_an_interrupted_training_comes_to_the_same_network(tmp_path: Path) -> None:
    train = table(60)
    settings = PPOSettings(updates=25, patience=25, hidden=8, episodes=64, minibatch=32)
    whole = train_ppo(train, settings)
    path = tmp_path / "checkpoint.safetensors"

    class Kill(Exception):
        pass

    def kill(update: int, held: float) -> None:
        if update == 14:
            raise Kill

    with pytest.raises(Kill):
        train_ppo(train, settings, checkpoint=path, progress=kill)
    resumed = train_ppo(train, settings, checkpoint=path)
    assert resumed.curve == whole.curve
    for (a, b), (c, d) in zip(whole.network.layers, resumed.network.layers, strict=True):
        assert np.array_equal(a, c)
        assert np.array_equal(b, d)
    with pytest.raises(InputError, match="other settings or another table"):
        train_ppo(train, settings.replace(seed=1), checkpoint=path)


@pytest.mark.parametrize("method", ["regression", "ppo", "ppo from nothing"])
def test_files(method: str, tmp_path: Path) -> None:
    train = as_wide_as_features(table(40, "again"))
    if method == "regression":
        given = regressed(train)
    else:
        start = "nothing" if method.endswith("nothing") else "regression"
        settings = PPOSettings(updates=2, hidden=8, episodes=32, start=start)
        given = planner(train, train_ppo(train, settings).network, "ppo", (0.1,))
    path = tmp_path / "planner.safetensors"
    write_planner(given, path)
    again = read_planner(path)
    assert (again.method, again.alphas, again.unit) == (given.method, given.alphas, given.unit)
    assert np.array_equal(again.replay(train, 0.1), given.replay(train, 0.1))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError):
        read_planner(path)
    other = dataclasses.replace(train, tree=Tree([NAMED["plain"], *train.tree.workflows[1:]][::-1], "once"),
                                observed=train.observed[:, :4], step_cost=train.step_cost[:, :4])  # fmt: skip
    with pytest.raises(InputError, match="trained for other workflows"):
        given.replay(other, 0.1)


def test_a_planner_for_workflows_that_have_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "planner.safetensors"
    write_planner(regressed(as_wide_as_features(table(40))), path)
    read_planner(path)
    # decompose-serial answers its parts by plain: what that is now is not what was learned.
    monkeypatch.setitem(NAMED, "plain", dataclasses.replace(NAMED["brief"], name="plain"))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="trained for other workflows or signals \\(plain changed since\\)"):
        read_planner(path)


def test_few_questions_without_a_signal_leave_the_best_fixed_workflow() -> None:
    train, test = table(60, told=0.0, seed=4), table(300, told=0.0, seed=5)
    best_fixed = int(np.argmax((train.quality - 0.1 * train.cost).mean(axis=0)))
    for seed in range(3):
        settings = PPOSettings(updates=5, episodes=64, hidden=16, seed=seed)
        found = planner(train, train_ppo(train, settings).network, "ppo", (0.1,)).replay(test, 0.1)
        reward = test.reward(found, 0.1).mean()
        fixed = test.reward(np.full(len(test), best_fixed, dtype=np.intp), 0.1).mean()
        assert reward >= fixed - 0.03


def test_a_network_that_is_not_clearly_better_leaves_the_regression() -> None:
    train, test = table(70, told=0.0, seed=4, noise=0.4), table(300, told=0.0, seed=5)
    prices = (0.0, 0.1, 0.5)
    rival = regressed(train)
    for seed in range(3):
        settings = PPOSettings(alphas=prices, updates=5, episodes=64, hidden=16, seed=seed)
        found = planner(train, train_ppo(train, settings).network, "ppo", prices)
        for alpha in prices:
            assert np.array_equal(found.replay(test, alpha), rival.replay(test, alpha))


def test_a_network_finds_what_the_regression_cannot_see() -> None:
    # A hard question shows by its first two features having the same sign: no linear model can tell.
    def crossed(n: int, seed: int):  # type: ignore[no-untyped-def]
        given = table(n, told=0.0, seed=seed)
        hard = given.quality[:, 2] - given.quality[:, 0] > 0.3
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=n)
        given.observed[:, :, 2:] *= 0.3
        given.observed[:, :, 0] = signs[:, None]
        given.observed[:, :, 1] = np.where(hard, signs, -signs)[:, None]
        return given

    train, test = crossed(300, 1), crossed(300, 2)
    rival = test.reward(regressed(train).replay(test, 0.1), 0.1).mean()
    for seed in range(3):
        settings = PPOSettings(updates=20, held_out=0.3, seed=seed)
        found = planner(train, train_ppo(train, settings).network, "ppo", (0.1,))
        assert test.reward(found.replay(test, 0.1), 0.1).mean() > rival + 0.05


def test_bad_settings_and_too_few_questions_are_refused() -> None:
    with pytest.raises(InputError) as error:
        PPOSettings(alphas=(), hidden=0, rate=0, gamma=0, held_out=1, start="anywhere")
    assert len(error.value.problems) == 6
    with pytest.raises(InputError, match="too few"):
        fit_regression(table(9))
    with pytest.raises(InputError, match="too few"):
        train_ppo(table(9))
    bad = table(20)
    with pytest.raises(InputError, match="not finite"):
        dataclasses.replace(bad, quality=np.full_like(bad.quality, np.nan))


def test_features() -> None:
    question = "How many of Verdi's operas, in 1850, are longer than Aida?"
    told = dict(zip(WORDING, wording(question), strict=True))
    assert told["asks how many"] == 1
    assert told["asks how"] == 0
    assert told["compared"] == 1
    assert told["digits"] == 0.5
    assert told["commas"] == 1
    texts = [f"Who was number {k}?" for k in range(40)]
    vectors = np.random.default_rng(0).normal(size=(40, 12))
    fitted = QuestionFeatures.fit(texts, vectors)
    found = fitted.of(texts, vectors)
    assert found.shape == (40, len(WORDING) + 10)
    assert np.abs(found.mean(axis=0)).max() < 0.2
    with pytest.raises(InputError, match="give one row each"):
        QuestionFeatures.fit(texts, vectors[:3])


@pytest.mark.parametrize(("workflows", "sets", "each"), [(2, 1, 60), (10, 3, 60), (30, 3, 60), (7, 7, 36)])
def test_workflows_of_chance_alone_count_as_alike(workflows: int, sets: int, each: int) -> None:
    """In most tables, whatever outcomes have in common; one that is clearly worse is seen in all."""
    rng, member, alike = np.random.default_rng(0), np.repeat(np.arange(sets), each), 0
    for _ in range(200):
        quality = rng.normal(size=(len(member), 1)) + 0.3 * rng.normal(size=(len(member), workflows))
        quality[:, 1:] += 0.3 * rng.normal(size=(len(member), 1))
        measured, likely = _by_set(quality, member)
        assert np.abs(likely).max() <= np.abs(measured).max() + 1e-9
        alike += not likely.any()
        quality[:, 0] -= 0.5
        assert _by_set(quality, member)[1].any()
    assert 0.5 <= alike / 200 <= 0.8  # by two tests that are passed by three of four


def of_seven_sets(
    rng: np.random.Generator, n: int, truth: NDArray[np.float64], places: NDArray[np.float64]
) -> Experience:
    """Questions of sets of equal size, whose features tell the set; noisy outcomes around a truth by set."""
    given = table(n, seed=int(rng.integers(2**31)))
    member = np.arange(n) % len(truth)
    observed = places[member][:, None] + 0.1 * rng.normal(size=given.observed.shape)
    quality = truth[member] + 0.38 * rng.normal(size=(n, 1)) + 0.25 * rng.normal(size=(n, 3))
    sets = tuple(f"set {k}" for k in member)
    return dataclasses.replace(given, observed=observed, quality=quality, sets=sets)


@pytest.mark.parametrize("apart", [0.0, 0.15])
def test_sets_are_judged_together_as_far_as_they_hardly_differ(apart: float) -> None:
    """Close to who judges all sets together where they are alike, to who judges each by itself where not."""
    alpha = 0.02
    earned: dict[str, list[float]] = {"found": [], "each": [], "all": []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth = np.array([0.28, 0.36, 0.36]) + 0.02 * rng.normal(size=3) + apart * rng.normal(size=(7, 3))
        places = 2 * rng.normal(size=(7, 6))
        train, test = (of_seven_sets(rng, n, truth, places) for n in (252, 70))
        cost = test.cost[0]
        each = np.stack([train.quality[k::7].mean(axis=0) for k in range(7)])
        member = np.arange(70) % 7
        choices = {
            "found": regressed(train).replay(test, alpha),
            "each": np.argmax(each - alpha * cost, axis=1)[member],
            "all": np.full(70, np.argmax(each.mean(axis=0) - alpha * cost)),
        }
        for name, chosen in choices.items():
            earned[name].append(float((truth[member, chosen] - alpha * cost[chosen]).mean()))
    found, each_, all_ = (np.array(earned[name]) for name in ("found", "each", "all"))
    right, wrong = (all_, each_) if apart == 0 else (each_, all_)
    assert right.mean() > wrong.mean() + 0.005
    assert found.mean() > right.mean() - 0.25 * (right.mean() - wrong.mean())
