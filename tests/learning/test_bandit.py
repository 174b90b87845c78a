"""The bandit: what it learns, what it chooses and with which probability."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import qmc
from sklearn.linear_model import Ridge as FullRidge

from mio_rag.errors import InputError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.learning.bandit import (
    PageHinkley,
    Ridge,
)
from mio_rag.learning.bandit_report import add_strategy, hindsight, recalibrate
from mio_rag.learning.strategist import Choice, Strategist, every_set, mixture, threshold_set, worths
from mio_rag.policy import Policy
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import SolveOptions
from tests.learning.bandits import TRUTH, asked, lived, outcome, rated, strategist


def chances(bandit: Strategist, number: int = 999):  # type: ignore[no-untyped-def]
    """The mixture that a question is drawn from, and the choice that was."""
    choice = asked(bandit, number)
    context, _ = bandit._waiting[choice.id]
    return mixture(bandit.learned, context.x, context.type, choice.id), choice


def probation(bandit: Strategist, kind: str = "who") -> list[str]:
    pruned = bandit.learned.pruned(kind)
    return [name for name, is_pruned in zip(bandit.learned.strategies, pruned, strict=True) if is_pruned]


def vectors(bandit: Strategist) -> dict[str, np.ndarray]:
    return {name: model.vector.copy() for name, model in bandit.learned.models.items()}


# --- models ----------------------------------------------------------------------------------------------


def observations(n: int = 60, d: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    return x, x @ rng.standard_normal(d) + 0.1 * rng.standard_normal(n)


def fitted(x: np.ndarray, y: np.ndarray, **options: float) -> Ridge:
    model = Ridge(x.shape[1], **options)  # type: ignore[arg-type]
    for row, reward in zip(x, y, strict=True):
        model.update(row, float(reward))
    return model


@given(st.integers(0, 10_000), st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_updates_agree_with_the_full_regression(seed: int, ridge: float) -> None:
    x, y = observations(seed=seed)
    model = fitted(x, y, ridge=ridge, refresh=10**9)
    full = np.linalg.inv(ridge * np.eye(6) + x.T @ x)
    np.testing.assert_allclose(model.inverse, full, rtol=1e-8, atol=1e-12)
    learned = FullRidge(alpha=ridge, fit_intercept=False).fit(x, y)
    np.testing.assert_allclose(model.theta, learned.coef_, rtol=1e-6, atol=1e-9)


def test_rounding_does_not_add_up() -> None:
    rng = np.random.default_rng(1)
    refreshed = Ridge(20, 1e-6, 50)
    for _ in range(3000):  # nearly collinear: the worst case of rank-one updates
        refreshed.update(1e3 * np.ones(20) + 1e-3 * rng.standard_normal(20), 1.0)
    assert np.abs(refreshed.inverse @ refreshed.matrix - np.eye(20)).max() < 0.1


def test_corrections_priors_and_forgetting() -> None:
    x, y = observations(2000)
    model, truth = fitted(x, y), fitted(x, y).theta
    better = y.copy()
    better[7] += 0.5
    model.correct(x[7], 0.5)
    np.testing.assert_allclose(model.theta, fitted(x, better).theta, atol=1e-12)
    wrong = Ridge(6)
    wrong.start_from(np.full(6, 5.0), 10.0)
    assert wrong.mean(np.ones(6)) == pytest.approx(30 * 10 / 11)
    for row, reward in zip(x, y, strict=True):
        wrong.update(row, float(reward))
    np.testing.assert_allclose(wrong.theta, truth, atol=0.1)
    before = model.theta.copy(), model.width(x[0])
    model.forget(1.0)
    np.testing.assert_allclose(model.theta, before[0], atol=1e-10)
    model.forget(0.1)
    assert model.width(x[0]) > before[1]
    noisy = fitted(x, x @ np.ones(6) + 0.4 * np.random.default_rng(8).standard_normal(2000))
    assert noisy.noise == pytest.approx(0.4, rel=0.06)


def test_a_change_is_found_soon_and_none_where_there_is_none() -> None:
    found = []
    for seed in range(20):
        rng, watch = np.random.default_rng(seed), PageHinkley(0.25, 20.0)
        assert not any(watch.change(v) for v in rng.standard_normal(1000))
        found.append([watch.change(v) for v in rng.standard_normal(300) + 1.0].index(True))
    assert max(found) < 80
    down = PageHinkley(0.25, 20.0)
    assert not any(down.change(0.0) for _ in range(100))
    assert any(down.change(-1.0) for _ in range(40))


# --- the chosen set --------------------------------------------------------------------------------------


@given(st.integers(0, 100_000), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_the_best_of_all_sets_is_that_of_the_program(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    value, overlap, cost = rng.standard_normal(k), rng.standard_normal((k, k)) * 0.3, rng.random(k)
    overlap += overlap.T
    np.fill_diagonal(overlap, 0.0)
    result = solve(SelectionProgram(value - cost, overlap, np.zeros(k), 0.0), "auto", SolveOptions())
    worth = worths(value[None, :], overlap, cost)[0]
    assert result.objective == pytest.approx(worth.max(), abs=1e-9)
    assert every_set(k)[worth.argmax()].tolist() == np.asarray(result.x).tolist()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5, -0.2, 0.3], [1, 0, 1]),
        ([0.5, 0.04, 0.06], [1, 0, 1]),
        ([-0.5, -0.2, -0.3], [0, 0, 0]),
        ([-np.inf, -0.2, 0.3], [0, 0, 1]),
    ],
)
def test_the_published_rule_takes_a_tenth_of_the_best(scores: list[float], expected: list[int]) -> None:
    assert threshold_set(np.array(scores), 0.1).tolist() == expected


@pytest.mark.parametrize("policy", ["linucb", "thompson", "epsilon-greedy", "uniform"])
def test_propensities_are_exact(policy: str, tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", policy=policy, explore=0.4, explore_decay=1.0)
    lived(bandit, 30, {"hyde": 0.06, "query2doc": 0.05, "grounded": 0.055})
    found, choice = chances(bandit)
    assert found.chances.sum() == pytest.approx(1, abs=1e-12)
    drawn = [found.draw(*row)[0] for row in qmc.Sobol(2, seed=1).random_base2(12)]
    shares = np.bincount(drawn, minlength=8) / len(drawn)
    assert shares.tolist() == pytest.approx(found.chances.tolist(), abs=4e-3)
    inside = np.array([n in choice.strategies for n in bandit.learned.strategies])
    place = int(np.flatnonzero((every_set(3) == inside).all(axis=1))[0])
    assert choice.about["propensity"] == found.chances[place] > 0
    each = found.chances @ every_set(3)
    assert list(choice.about["each"].values()) == pytest.approx(each.tolist())


# --- what is learned -------------------------------------------------------------------------------------


def test_it_finds_what_is_worth_its_cost_and_stops_paying_for_the_rest(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite")
    choices = []
    for number in range(200):
        before = vectors(bandit)
        (choice,) = lived(bandit, 1, TRUTH, start=number)
        for name, vector in vectors(bandit).items():  # nothing is learned of what did not run
            assert np.array_equal(vector, before[name]) == (name not in choice.strategies)
        choices.append(choice)
    share = {n: sum(n in c.strategies for c in choices[-60:]) / 60 for n in TRUTH}
    assert min(share["hyde"], share["grounded"]) > 0.85
    assert share["query2doc"] < 0.35
    assert all("raw" in choice.strategies for choice in choices)
    one, other = (asked(strategist(tmp_path / "s.sqlite"), 777) for _ in range(2))
    assert (one.strategies, one.about) == (other.strategies, other.about)


def test_a_rating_is_credited_to_those_who_found_what_was_read(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite")
    choice = asked(bandit, 0)
    context = bandit._waiting[choice.id][0].x
    bandit.record(choice, outcome(choice, TRUTH) | {"credit": {"raw": 0.5, "hyde": 0.5}})
    before = vectors(bandit)
    assert rated(bandit, choice.id, 1)
    assert not rated(bandit, choice.id, -1)  # once
    moved = {n: vector - before[n] for n, vector in vectors(bandit).items()}
    np.testing.assert_allclose(moved["hyde"], 0.3 * 0.5 * context, atol=1e-12)
    assert not moved["query2doc"].any()
    assert not moved["grounded"].any()
    for wrong, message in ((("nobody", 1), "'nobody' is not in the log"), ((choice.id, 0), "give 1")):
        with pytest.raises(InputError, match=message):
            rated(bandit, *wrong)


def test_a_late_rating_weighs_what_is_left_of_its_question(tmp_path: Path) -> None:
    """As if it had been given at once: what was forgotten, or lies before the window, is not brought back."""
    day, found = 86_400.0, {}
    for late in (False, True):
        path = tmp_path / f"{late}.sqlite"
        bandit = strategist(path, cold_start=0, policy="uniform", forget=0.25, change_threshold=1e9)
        bandit._now = lambda: 0.0
        old = lived(bandit, 20, TRUTH)
        if not late:
            rated(bandit, old[0].id, 1)
        bandit.learned._changed(bandit.learned.seq)
        if late:
            rated(bandit, old[0].id, 1)
        found[late] = vectors(bandit)
        bandit._now = lambda: 100 * day
        lived(bandit, 80, {"hyde": 0.5, "query2doc": 0.3, "grounded": -0.2}, start=20)
        assert recalibrate(path, bandit.settings.replace(holdout=0.4), now=100 * day).deployed
        bandit.refresh()
        before = vectors(bandit)
        assert rated(bandit, old[1].id, 1)
        for name, vector in vectors(bandit).items():
            np.testing.assert_array_equal(vector, before[name])
    for name, vector in found[False].items():
        np.testing.assert_allclose(found[True][name], vector, atol=1e-12)


def test_pruning_is_by_type_of_question_and_never_for_good(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", prune_after=20, explore=1.0, explore_decay=1.0, retrial=0.1)
    lived(bandit, 80, TRUTH | {"query2doc": 0.0})
    assert probation(bandit) == ["query2doc"]
    assert probation(bandit, "when") == []
    found, _ = chances(bandit)
    runs = every_set(3)[:, bandit.learned.strategies.index("query2doc")]
    assert found.explored @ runs == pytest.approx(0.1)  # tried again now and then
    assert found.greedy @ runs == 0
    lived(bandit, 400, TRUTH | {"query2doc": 0.4}, start=80)
    assert probation(bandit) == []  # it proved itself
    fresh = strategist(tmp_path / "f.sqlite", prune_after=20, forget=0.1, policy="uniform")
    lived(fresh, 100, TRUTH)
    assert probation(fresh)
    fresh.learned._changed(fresh.learned.seq)
    assert probation(fresh) == []


def test_every_thread_chooses_at_its_own_price(tmp_path: Path) -> None:
    """The price and the choice are one step: a price of another question never decides."""
    bandit = strategist(tmp_path / "s.sqlite", cold_start=0, explore=0.0, explore_least=0.0, alpha=0.0)
    lived(strategist(tmp_path / "s.sqlite", policy="uniform"), 60, TRUTH)
    vector = np.eye(8, dtype=np.float32)[0]

    def choose(number: int) -> tuple[float, Choice]:
        price = (0.0, 0.003, 1.0)[number % 3]
        return price, bandit.choose_by("Who wrote it?", vector, 1, f"t{number}", price=price)

    expected = {0.0: {"hyde", "query2doc", "grounded"}, 0.003: {"hyde"}, 1.0: set()}
    with ThreadPoolExecutor(8) as threads:
        for price, choice in threads.map(choose, range(60)):
            assert choice.about["token_price"] == price
            assert set(choice.strategies) - {"raw"} == expected[price]
    assert asked(bandit, 1).about["token_price"] == bandit.settings.token_price  # without a price: its own


# --- the published rule ----------------------------------------------------------------------------------

PUBLISHED = Policy.load("published/strategy-bandit").search.bandit


def test_the_published_reward_and_rule(tmp_path: Path) -> None:
    """A share of what was read, a rating in full for all that ran, a penalty for slowness; within [0, 1]."""
    found = {"raw": 0.9, "hyde": 0.5, "query2doc": 0.0, "grounded": 0.05}
    published = {**PUBLISHED, "dimensions": 40, "cold_start": 60, "explore": 0.0, "explore_least": 0.0}
    bandit = strategist(tmp_path / "s.sqlite", **published, token_price=0.0)
    for number in range(60):
        choice = asked(bandit, number)
        assert set(choice.strategies) == set(found)  # the cold start runs all
        said = outcome(choice, TRUTH | {"raw": 0.0}, seconds=0.5) | {"found": found, "base": 0.0}
        assert bandit.record(choice, said)
    event = {"strategies": list(found), "seconds": dict.fromkeys(found, 2.0), "found": found}
    rewards = {name: bandit.learned.reward(event, name) for name in found}
    assert rewards == pytest.approx({"raw": 0.7, "hyde": 0.3, "query2doc": 0.0, "grounded": 0.0})
    assert bandit.learned.reward(event, "hyde", 1) == pytest.approx(0.6)
    assert bandit.learned.reward(event, "hyde", -1) == pytest.approx(0.0)
    before = vectors(bandit)
    assert rated(bandit, "q0", 1)
    moved = [float(np.abs(vector - before[name]).max()) for name, vector in vectors(bandit).items()]
    assert min(moved) > 0.05  # also for query2doc, which found nothing of what was read
    assert set(probation(bandit)) == set(probation(bandit, "when")) == {"query2doc", "grounded"}
    late = asked(bandit, 100)
    assert set(late.strategies) == {"raw", "hyde"}
    assert late.weights["raw"] > late.weights["hyde"] > 0
    seen = hindsight(tmp_path / "s.sqlite", bandit.settings)
    assert seen is not None
    assert (seen.questions, seen.best) == (60, ("raw", "hyde", "query2doc", "grounded"))
    assert seen.regret == sorted(seen.regret)
    assert seen.oracle >= seen.best_worth >= seen.worth


# --- schedule and changes --------------------------------------------------------------------------------


def test_a_change_raises_exploration_and_is_survived(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", change_threshold=8.0)
    lived(bandit, 150, TRUTH)
    assert bandit.learned.changes == 0
    calm = sum(asked(bandit, 997).about["each"].values())
    turned = {"hyde": 0.0, "query2doc": 0.3, "grounded": 0.1}
    lived(bandit, 12, turned, start=150)
    assert bandit.learned.changes >= 1
    assert sum(asked(bandit, 998).about["each"].values()) > calm
    late = lived(bandit, 120, turned, start=162)[-50:]
    assert sum("query2doc" in c.strategies for c in late) > 40
    assert sum("hyde" in c.strategies for c in late) < 25


def test_questions_of_another_kind_are_noticed_where_no_strategy_runs(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", explore=0.0, explore_least=0.0, alpha=0.0)
    useless, rng = dict.fromkeys(TRUTH, 0.0), np.random.default_rng(5)

    def lives(first: int, count: int, level: float, own: dict[str, float], at_once: int) -> list[Choice]:
        choices: list[Choice] = []
        for start in range(first, first + count, at_once):
            part = [asked(bandit, number) for number in range(start, start + at_once)]
            for choice in part:
                bandit.record(choice, outcome(choice, own) | {"base": level + 0.2 * rng.standard_normal()})
            choices += part
        return choices

    lives(0, 200, 0.8, useless, 20)
    assert bandit.learned.changes == 0
    assert all(c.strategies == ("raw",) for c in lives(200, 10, 0.8, useless, 10))
    lives(210, 40, 1.3, TRUTH, 5)
    assert bandit.learned.changes == 1
    assert all("hyde" in c.strategies for c in lives(250, 10, 1.3, TRUTH, 10))


def test_a_strategy_is_added_and_the_others_keep_what_they_know(tmp_path: Path) -> None:
    path, more = tmp_path / "s.sqlite", ("raw", "hyde", "query2doc", "multi-query", "grounded")
    bandit = strategist(path)
    lived(bandit, 60, TRUTH)
    before = bandit.learned.models["hyde"].theta.copy()
    with pytest.raises(InputError, match="policy state add"):  # none is added unasked
        strategist(path, possible=more)
    assert add_strategy(path, "multi-query")
    assert not add_strategy(path, "multi-query")
    for wrong in ("raw", "all", "hyd"):
        with pytest.raises(InputError):
            add_strategy(path, wrong)
    again = strategist(path, possible=more)  # whatever the order
    assert chances(again)[0].explored @ every_set(4)[:, 3] == 0.5
    np.testing.assert_array_equal(again.learned.models["hyde"].theta, before)
    choices = lived(again, 100, TRUTH | {"multi-query": 0.3}, start=60)
    assert sum("multi-query" in c.strategies for c in choices[-20:]) > 15
    # A process that had it open goes on without the new one, with propensities that tell so.
    bandit.log.close()  # it is opened again when it is needed
    assert all("multi-query" not in c.strategies for c in lived(bandit, 5, TRUTH, start=200))
    again.refresh()
    assert bandit.learned.dump() == again.learned.dump() == strategist(path, possible=more).learned.dump()
    with pytest.raises(InputError, match="another bandit"):
        strategist(path)
