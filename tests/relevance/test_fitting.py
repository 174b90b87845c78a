"""Fitting: it finds what made the labels, keeps questions whole, and reports what it did not see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance import Labelled, calibration_measures, fit, reliability
from mio_rag.relevance.model import Kind
from tests.selection.pools import replace


def pools(
    questions: int = 120, n: int = 20, seed: int = 0, slope: float = 12.0, link: float = 0.0
) -> list[Labelled]:
    """Labels drawn from a known logistic model of the cosine, and of being mentioned by what is needed."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(questions):
        cosine = rng.random(n)
        chance = 1 / (1 + np.exp(-(slope * (cosine - (0.8 if slope > 0 else 0.2)))))
        needed = rng.random(n) < chance
        links = np.zeros((n, n))
        if link:
            for i in np.flatnonzero(needed):
                j = int(rng.integers(n))
                if j != i:
                    links[i, j] = 1.0
                    needed[j] = needed[j] or rng.random() < link
        ids = [f"p{k}" for k in range(n)]
        candidates = Candidates(
            ids,
            ["some text here"] * n,
            cosine,
            [5] * n,
            scores={"dense": cosine},
            links=links if link else None,
        )
        made.append(Labelled(candidates, frozenset(i for i, y in zip(ids, needed, strict=True) if y)))
    return made


def flat(model_pools: Sequence[Labelled], values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate(values), np.concatenate([p.labels for p in model_pools])


def test_it_recovers_the_model_that_made_the_labels() -> None:
    model = fit(pools(400), features=["cosine"], link_stages=0)
    (stage,) = model.stages
    assert stage.weights[0] == pytest.approx(12.0, rel=0.12)
    assert stage.intercept == pytest.approx(-9.6, rel=0.12)
    fresh = pools(100, seed=9)
    p, y = flat(fresh, [model.probabilities(f.candidates) for f in fresh])
    assert calibration_measures(p, y)["ece"] < 0.02
    assert model.measures["after"]["ece"] < model.measures["before"]["ece"]


def test_weights_on_the_cosine_are_never_negative() -> None:
    model = fit(pools(slope=-12.0))
    for stage in model.stages:
        by_name = dict(zip(stage.features, stage.weights, strict=True))
        assert by_name["cosine"] == 0.0
        assert by_name["cosine_gap"] == 0.0


def test_link_features_help_where_links_carry_evidence() -> None:
    data = pools(300, link=0.9)
    plain, linked = fit(data, link_stages=0), fit(data, link_stages=1)
    assert len(linked.stages) == 2
    assert linked.measures["after"]["log_loss"] < 0.9 * plain.measures["after"]["log_loss"]
    weights = dict(zip(linked.stages[1].features, linked.stages[1].weights, strict=True))
    assert weights["best_mentioning"] > 0
    assert len(fit(pools(60)).stages) == 1  # no links, no second stage


def test_isotonic_is_monotone_and_calibrated() -> None:
    model = fit(pools(300), kind="isotonic")
    at, values = np.array(model.knots).T
    assert np.all(np.diff(at) > 0)
    assert np.all(np.diff(values) >= 0)
    assert model.measures["after"]["ece"] < 0.02


def test_measures_are_of_unseen_questions() -> None:
    """Labels that nothing predicts: a fit that saw its own test would look better than the base rate."""
    rng = np.random.default_rng(3)
    data = []
    for pool in pools(30, n=6):
        ids = pool.candidates.ids
        data.append(Labelled(pool.candidates, frozenset(rng.choice(ids, 2, replace=False).tolist())))
    model = fit(data)
    base = -(1 / 3 * np.log(1 / 3) + 2 / 3 * np.log(2 / 3))
    assert model.measures["after"]["log_loss"] > base - 0.01


def test_the_seed_decides_and_weights_count() -> None:
    data = pools(60)
    assert fit(data, seed=1) == fit(data, seed=1)
    heavy = [Labelled(p.candidates, p.gold, 10.0 if k < 30 else 0.1) for k, p in enumerate(data)]
    alone = fit(data[:30], features=["cosine"]).stages[0].weights[0]
    both = fit(data, features=["cosine"]).stages[0].weights[0]
    weighted = fit(heavy, features=["cosine"]).stages[0].weights[0]
    assert abs(weighted - alone) < abs(both - alone)


@pytest.mark.parametrize("kind", ["logistic", "isotonic"])
def test_features_that_tell_nothing_are_refused_by_name(kind: Kind) -> None:
    """Cosines that are lower where a passage is needed leave no model, and no raw error of the solver."""
    against = pools(slope=-12.0)
    with pytest.raises(
        InputError, match=r"no feature distinguishes needed .*'cosine' \(lower where a passage is"
    ):
        fit(against, features=["cosine", "cosine_gap"], kind=kind)
    alike = [Labelled(replace(p.candidates, scores={"dense": np.ones(20)}), p.gold) for p in against]
    with pytest.raises(InputError, match=r"'cosine' \(the same for every candidate\)"):
        fit(alike, features=["cosine"], kind=kind)


def test_reliability_by_hand() -> None:
    p, y = [0.05, 0.05, 0.95, 0.95, 1.0], [0, 1, 1, 1, 0]
    rows = reliability(p, y)
    assert [(r["count"], r["observed"]) for r in rows] == [(2, 0.5), (3, pytest.approx(2 / 3))]
    expected = (2 * 0.45 + 3 * (2.9 / 3 - 2 / 3)) / 5
    assert calibration_measures(p, y)["ece"] == pytest.approx(expected)
    assert calibration_measures(p, y)["ece_likely"] == pytest.approx(2.9 / 3 - 2 / 3)
    with pytest.raises(InputError, match="5 probabilities in \\[0, 1\\] and 1 labels"):
        calibration_measures(p, [1])
