"""The probability that the evidence is complete: what it sees, what moves it, and how it is fitted."""

import json
from pathlib import Path

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.fit import calibrate_completeness, calibration_error
from mio_rag.relevance.complete import SIGNALS, Completeness, adapt, complete, fit, read, shipped, signals
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from tests.cli.running import here

R = np.array([0.9, 0.5, 0.2, 0.1])


def test_signals_by_hand() -> None:
    seen = dict(zip(SIGNALS, signals(R, [0, 2], "Is the Arno longer than the Po of Italy?"), strict=True))
    assert seen["missing"] == pytest.approx(np.log(0.5) + np.log(0.9))
    assert seen["best"] == pytest.approx(np.log(9))
    assert seen["covered"] == pytest.approx(np.log(1.1 / 1.7))
    assert seen["expected"] == pytest.approx(np.log(2.7))
    assert seen["left"] == pytest.approx(0.0)
    assert seen["second"] == pytest.approx(0.0)
    shares = R / R.sum()
    assert seen["spread"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert seen["read"] == pytest.approx(np.log(2))
    assert (seen["words"], seen["names"]) == (0.9, 1.0)
    assert (seen["compared"], seen["nested"], seen["yes_no"]) == (1.0, 0.5, 1.0)


def test_edges() -> None:
    assert complete(R, []) == 0.0
    assert np.isfinite(signals([1.0], [0])).all()
    assert np.isfinite(signals([0.0, 0.0], [1])).all()
    assert np.isfinite(signals(np.zeros(5) - 1, [0, 1, 2, 3, 4])).all()
    with pytest.raises(InputError, match="finite weights"):
        Completeness((1.0,), 0.0)


def test_what_ships_says_more_where_more_is_read_and_tells_how_far_off_it_is(
    river_index: CorpusIndex,
) -> None:
    pool = Retriever(river_index).retrieve("How long is the Tiber?")
    levels = [Selector(token_price=price).select(pool, 500).complete for price in (1.0, 0.02, 0.0)]
    assert levels == sorted(levels, key=lambda level: level or 0.0)
    assert levels[0] == 0.0  # nothing is worth that
    assert Selector.raw().select(pool, 500).complete is None  # a cosine is no probability
    assert shipped().about["calibration_error"]["known sets"] <= 0.02


def test_a_fit_finds_the_truth_and_refuses_too_little(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(4000, len(SIGNALS)))
    truth = Completeness((2.0, -1.0, *[0.0] * (len(SIGNALS) - 2)), 0.5)
    done = (rng.random(4000) < truth.of(seen)).astype(float)
    made = fit(seen, done, {"of": "nothing"})
    assert calibration_error(made.of(seen), truth.of(seen)) < 0.02
    assert made.weights[0] == pytest.approx(2.0, abs=0.25)
    path = tmp_path / "own.json"
    path.write_text(made.to_json())
    assert read(path) == made
    with pytest.raises(InputError, match="are too few"):
        fit(seen[:20], done[:20])
    with pytest.raises(InputError, match="some of each kind"):
        fit(seen, np.ones(4000))
    path.write_text(json.dumps({**json.loads(made.to_json()), "signals": ["colour"]}))
    with pytest.raises(DataError, match="other signals"):
        read(path)
    path.write_text('{"signals": 3}')
    with pytest.raises(DataError, match="damaged"):
        read(path)


def test_a_few_questions_move_what_ships_and_many_settle_it() -> None:
    rng = np.random.default_rng(1)
    seen = rng.normal(size=(6000, len(SIGNALS)))
    before = Completeness((1.5, -1.0, *[0.0] * (len(SIGNALS) - 2)), -2.0)
    truth = Completeness((1.5, 0.5, *[0.0] * (len(SIGNALS) - 2)), 1.0)  # another base rate, another weight
    done = (rng.random(6000) < truth.of(seen)).astype(float)
    off = [
        float(np.mean(np.abs(model.of(seen) - truth.of(seen))))
        for model in (before, *(adapt(before, seen[:n], done[:n]) for n in (60, 600, 6000)))
    ]
    assert off == sorted(off, reverse=True)
    assert off[1] < off[0] / 3
    assert off[3] < 0.02
    assert adapt(before, seen[:60], done[:60], firm=1e9, loose=1e9).weights == pytest.approx(
        before.weights, abs=1e-6
    )
    sure = adapt(before, seen[:60], np.ones(60))  # all came out alike
    assert sure.of(seen).mean() > before.of(seen).mean()
    with pytest.raises(InputError, match="too few to move"):
        adapt(before, seen[:20], done[:20])


def test_calibration_error_by_hand() -> None:
    assert calibration_error(np.full(100, 0.3), np.r_[np.ones(30), np.zeros(70)]) == pytest.approx(0.42)
    assert calibration_error(np.repeat([0.0, 1.0], 50), np.repeat([0.0, 1.0], 50)) == 0.0


def test_own_questions_calibrate_it(demo: Dataset, demo_index: CorpusIndex) -> None:
    found = calibrate_completeness(demo, demo_index, limit=16)
    assert found.questions == 16
    assert 0 < found.rate < 1
    assert 0 <= found.error <= 1
    assert found.model.about["adapted"].startswith("to 16 questions")
    assert 0 < found.chance < 1
    with pytest.raises(InputError, match="has gold passages"):
        calibrate_completeness(Dataset("none", demo.passages, ()), demo_index)


def test_a_policy_goes_by_it(demo_index: CorpusIndex, tmp_path: Path) -> None:
    demo_index.save(tmp_path / "INDEX")
    own = Completeness(tuple(0.0 for _ in SIGNALS), 2.0)
    (tmp_path / "own.json").write_text(own.to_json())
    policy = tmp_path / "mine.toml"
    policy.write_text('[repeat]\nby = "price"\ncalibration = "own.json"\n')
    done = here("ask", tmp_path / "INDEX", "How tall is Skerryvore?", "--policy", policy, "--why", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trace"]["complete"] == pytest.approx(1 / (1 + np.exp(-2.0)))
    policy.write_text('[repeat]\nby = "price"\ncalibration = "nowhere.json"\n')
    assert "nowhere.json' cannot be read" in here("policy", "check", policy).stderr
