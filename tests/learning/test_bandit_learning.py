"""Rewards are learned as the textbooks say; another package and the full inverse agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as FullRidge

from mio_rag.learning.bandit import PageHinkley, Ridge, forget, net, observe, pooled, region
from mio_rag.learning.bandit_choice import Program, chosen_set, every_set, margin_set, worths
from mio_rag.learning.bandit_context import TYPES, context_of, question_type


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
@settings(max_examples=30, deadline=None)
def test_one_by_one_is_the_full_regression(seed: int, ridge: float) -> None:
    x, y = observations(seed=seed)
    model = fitted(x, y, ridge=ridge, refresh=10**9)
    full = np.linalg.inv(ridge * np.eye(6) + x.T @ x)
    np.testing.assert_allclose(model.inverse, full, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(model.theta, full @ x.T @ y, rtol=1e-8, atol=1e-10)
    learned = FullRidge(alpha=ridge, fit_intercept=False).fit(x, y)
    np.testing.assert_allclose(model.theta, learned.coef_, rtol=1e-6, atol=1e-9)


def test_rounding_does_not_add_up() -> None:
    rng = np.random.default_rng(1)
    drifting, refreshed = Ridge(20, 1e-6, 10**9), Ridge(20, 1e-6, 50)
    for _ in range(3000):  # nearly collinear: the worst case of rank-one updates
        x = 1e3 * np.ones(20) + 1e-3 * rng.standard_normal(20)
        drifting.update(x, 1.0)
        refreshed.update(x, 1.0)

    def off(model: Ridge) -> float:
        return float(np.abs(model.inverse @ model.matrix - np.eye(20)).max())

    assert off(refreshed) < 0.1 < off(drifting)


def test_upper_confidence_and_sampling_are_those_of_another_package() -> None:
    mab = pytest.importorskip("mabwiser.mab")
    x, y = observations(80, 5, seed=3)
    arms = np.array(["a", "b"])[np.random.default_rng(4).integers(0, 2, 80)]
    fresh = np.random.default_rng(5).standard_normal((10, 5))
    theirs = mab.MAB(["a", "b"], mab.LearningPolicy.LinUCB(alpha=1.3, l2_lambda=0.7))
    theirs.fit(arms, y, x)
    ours = {arm: fitted(x[arms == arm], y[arms == arm], ridge=0.7) for arm in ("a", "b")}
    for row, expected in zip(fresh, theirs.predict_expectations(fresh), strict=True):
        for arm, model in ours.items():
            assert model.mean(row) + 1.3 * model.width(row) == pytest.approx(expected[arm], rel=1e-8)
    draws = mab.MAB(["a", "b"], mab.LearningPolicy.LinTS(alpha=0.8, l2_lambda=0.7), seed=6)
    draws.fit(arms, y, x)
    many = draws.predict_expectations(np.tile(fresh[0], (4000, 1)))
    sampled = np.array([said["a"] for said in many])
    mine = ours["a"].samples(fresh[0], np.random.default_rng(7).standard_normal(4000), 0.8)
    assert sampled.mean() == pytest.approx(mine.mean(), abs=4 * sampled.std() / 4000**0.5 * 2**0.5)
    assert sampled.std() == pytest.approx(mine.std(), rel=0.1)


def test_a_corrected_reward_is_as_if_it_had_been_so_from_the_start() -> None:
    x, y = observations()
    model = fitted(x, y)
    model.correct(x[7], 0.5)
    better = y.copy()
    better[7] += 0.5
    np.testing.assert_allclose(model.theta, fitted(x, better).theta, atol=1e-12)


def test_a_prior_is_a_mean_that_data_moves() -> None:
    x, y = observations(2000)
    truth = fitted(x, y).theta
    wrong = Ridge(6)
    wrong.start_from(np.full(6, 5.0), 10.0)
    assert wrong.mean(np.ones(6)) == pytest.approx(30 * 10 / 11)
    for row, reward in zip(x, y, strict=True):
        wrong.update(row, float(reward))
    np.testing.assert_allclose(wrong.theta, truth, atol=0.1)


def test_noise_is_that_of_the_rewards() -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((3000, 5))
    model = fitted(x, x @ np.ones(5) + 0.4 * rng.standard_normal(3000))
    assert model.noise == pytest.approx(0.4, rel=0.05)


def test_forgetting_widens_and_keeping_all_changes_nothing() -> None:
    x, y = observations()
    kept, forgot = fitted(x, y), fitted(x, y)
    before = kept.theta.copy(), kept.width(x[0])
    kept.forget(1.0)
    forgot.forget(0.1)
    np.testing.assert_allclose(kept.theta, before[0], atol=1e-10)
    assert forgot.width(x[0]) > before[1]


@given(st.integers(0, 100_000), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_the_chosen_set_is_the_best_of_all(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    overlap = rng.standard_normal((k, k)) * 0.3
    poor = seed % 2  # little is worth its cost, and nothing needs another
    overlap = np.abs(overlap) if poor else overlap
    program = Program(rng.standard_normal(k) - poor, overlap + overlap.T, rng.random(k))
    allowed = rng.random(k) < 0.8
    chosen, why = chosen_set(program, allowed.tolist())
    sets = every_set(k)
    worth = worths(program.value[None, :], program.overlap, program.cost)[0]
    may = ~(sets.astype(bool) & ~allowed).any(axis=1)
    assert not (chosen.astype(bool) & ~allowed).any()
    place = int(np.flatnonzero((sets == chosen).all(axis=1))[0])
    assert worth[place] == pytest.approx(worth[may].max(), abs=1e-9)
    assert "optimal" in why


def test_the_published_rule_hardly_ever_skips_and_breaks_below_zero() -> None:
    def published(scores: np.ndarray) -> list[bool]:
        return (scores >= 0.1 * scores.max()).tolist()

    typical, below = np.array([0.5, 0.06, 0.4]), np.array([-0.2, -0.05, -0.9])
    assert published(typical) == [True, True, True]  # a tenth of the best is enough
    assert published(below) == [False, False, False]  # nor is the best one within a tenth of itself
    free = np.zeros(3)
    program = Program(typical, np.zeros((3, 3)), free)
    assert margin_set(program, [True] * 3, 0.3).tolist() == [1, 0, 1]
    assert margin_set(program, [True] * 3, 1.0).tolist() == [1, 1, 1]
    assert margin_set(Program(below, np.zeros((3, 3)), free), [True] * 3, 0.1).tolist() == [0, 0, 0]
    assert margin_set(program, [False, True, True], 0.3).tolist() == [0, 0, 1]


def test_a_change_is_found_soon_and_none_is_found_where_there_is_none() -> None:
    found = []
    for seed in range(20):
        rng, watch = np.random.default_rng(seed), PageHinkley(0.25, 20.0)
        assert not any(watch.change(v) for v in rng.standard_normal(1000))
        later = [watch.change(v) for v in rng.standard_normal(300) + 1.0]
        found.append(later.index(True))
    assert max(found) < 80
    down = PageHinkley(0.25, 20.0)
    assert not any(down.change(0.0) for _ in range(100))
    assert any(down.change(-1.0) for _ in range(40))


def test_what_a_region_nets_at_any_price_is_that_of_all_its_questions() -> None:
    rng = np.random.default_rng(3)
    value, tokens = rng.normal(0.1, 0.3, 40), rng.integers(0, 200, 40)
    parts = []
    for rows in (slice(0, 1), slice(1, 15), slice(15, 40), slice(0, 0)):
        kept = region()
        for v, t in zip(value[rows], tokens[rows], strict=True):
            observe(kept, float(v), float(t))
        parts.append(kept)
    for price in (0.0, 1e-4, 0.02):
        worth = value - price * tokens
        count, mean, squares = net(pooled(parts), price)
        assert count == 40
        assert mean == pytest.approx(worth.mean())
        assert squares == pytest.approx(((worth - worth.mean()) ** 2).sum())
        forget(whole := pooled(parts), 0.25)
        assert net(whole, price) == pytest.approx((10, worth.mean(), squares / 4))


def test_types_of_questions() -> None:
    said = ["Who is it?", "In which year?", "Is it so?", "Name it.", "To whom?", "what's that"]
    assert [question_type(text) for text in said] == ["who", "which", "yes-no", "other", "who", "other"]
    assert set(TYPES) >= {question_type(text) for text in said}


def test_a_context_is_of_one_length_and_survives_the_log() -> None:
    vector = np.full(16, 0.25, dtype=np.float32)
    one = context_of("Who of them, Ann or Bob, is older?", vector, 2, 64)
    other = context_of("when", vector, 0, 64).with_past(np.full(8, 0.1))
    assert one.x.shape == other.x.shape == (64,)
    assert one.x.astype(np.float32).astype(np.float64).tobytes() == one.x.tobytes()
    np.testing.assert_array_equal(one.place, other.place)
    assert np.linalg.norm(one.x) < 3
