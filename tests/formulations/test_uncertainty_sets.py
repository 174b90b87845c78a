"""Every set against sampling, and against maximisation over its corners or by a general optimizer."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from mio_rag.errors import InputError
from mio_rag.formulations import (
    DeviationBudget,
    Ellipsoid,
    NormBall,
    OwnSet,
    SparseBox,
    UncertaintySet,
    uncertainty_from_dict,
)
from mio_rag.formulations.robust import worst_similarity

D = 6
FACTOR = np.random.default_rng(5).normal(size=(D, 4))


def support_each(given: UncertaintySet, a: np.ndarray) -> np.ndarray:
    """h_i(a_i) for the row a_i of each passage."""
    return given.unit_support(a) * given.radii(len(a))


def l2_function(a: np.ndarray) -> np.ndarray:
    return np.linalg.norm(a, axis=-1)


SETS: dict[str, UncertaintySet] = {
    "l2": NormBall(1.0),
    "l1": NormBall(1.0, "l1"),
    "linf": NormBall(1.0, "linf"),
    "sparse": SparseBox(1.0, 2, (1, 4)),
    "sparse, all": SparseBox(1.0, 40),
    "ellipsoid": Ellipsoid(1.0, FACTOR),
    "own": OwnSet(1.0, l2_function, 1.0, lambda a: a / np.linalg.norm(a, axis=1, keepdims=True)),
    "deviations": DeviationBudget(NormBall(1.0, "linf"), 2),
}


def optimum(name: str, a: np.ndarray) -> float:
    """max a . u over the unit set: over its corners, or by an optimizer."""
    if name.startswith("sparse"):
        free = [j for j in range(D) if j not in SETS[name].protected]
        chosen = itertools.combinations(free, min(SETS[name].k, len(free)))
        return max(sum(abs(a[j]) for j in some) for some in chosen)
    if name == "l1":
        return max(float(sign * v) for v in a for sign in (-1, 1))
    if name in ("linf", "deviations"):
        return max(float(a @ corner) for corner in itertools.product((-1, 1), repeat=D))
    factor = FACTOR if name == "ellipsoid" else np.eye(D)
    found = minimize(
        lambda u: -a @ factor @ u,
        np.full(factor.shape[1], 0.1),
        jac=lambda u: -a @ factor,
        constraints={"type": "ineq", "fun": lambda u: 1 - u @ u, "jac": lambda u: -2 * u},
        options={"ftol": 1e-12},
    )
    return -float(found.fun)


@pytest.mark.parametrize("name", SETS)
def test_support_is_what_an_optimizer_finds(name: str) -> None:
    for seed in range(5):
        a = np.random.default_rng([3, seed]).normal(size=D)
        h = SETS[name].support(a, 2)
        assert h == pytest.approx([optimum(name, a)] * 2, rel=1e-5)
        assert support_each(SETS[name], np.stack([a, -2 * a])) == pytest.approx([h[0], 2 * h[0]])


@pytest.mark.parametrize("name", SETS)
def test_points_lie_in_the_set_and_attain_the_support(name: str) -> None:
    given = SETS[name]
    a = np.random.default_rng(1).normal(size=(50, D))
    points = given.points(a)
    assert given.contains(points)
    assert not given.contains(1.01 * points)
    assert np.einsum("ij,ij->i", a, points) == pytest.approx(support_each(given, a))
    assert given.contains(np.zeros((3, D)))


@pytest.mark.parametrize("name", SETS)
def test_no_sample_of_the_set_beats_support_or_bilinear_bound(name: str) -> None:
    given, rng = SETS[name], np.random.default_rng(2)
    corners = given.points(rng.normal(size=(600, D)))
    mixed = corners if name.startswith("sparse") else (corners + corners[::-1]) / 2  # not convex itself
    for u in (corners, mixed, 0.3 * corners):
        assert given.contains(u)
        a = rng.normal(size=(600, D))
        assert np.all(np.einsum("ij,ij->i", a, u) <= support_each(given, a) + 1e-9)
    bound = given.bilinear(2, D)[0, 1]
    assert float((corners @ corners.T).max()) <= bound + 1e-9
    # alternating maximisation climbs to it
    u = corners
    for _ in range(60):
        u = given.points(u)
    assert float((u @ u.T).max()) == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("name", SETS)
def test_radii_scale_everything(name: str) -> None:
    radii = np.array([0.0, 0.5, 3.0])
    if name == "deviations":
        given: UncertaintySet = DeviationBudget(NormBall(radii, "linf"), 1)
    else:
        given = replace(SETS[name], radius=radii)
    unit, a = SETS[name], np.random.default_rng(4).normal(size=(3, D))
    assert given.support(a, 3) == pytest.approx(np.outer(unit.unit_support(a), radii))
    assert support_each(given, a) == pytest.approx(radii * support_each(unit, a))
    assert given.bilinear(3, D) == pytest.approx(np.outer(radii, radii) * unit.bilinear(1, D)[0, 0])
    assert given.contains(given.points(a))
    assert not given.contains(np.full((3, D), 1e-6))  # the first must not move at all
    assert not given.is_exact
    assert not DeviationBudget(NormBall(radii), 0).support(a, 3).any()  # none may deviate
    with pytest.raises(InputError, match="radius has 3 values"):
        given.radii(4)


@pytest.mark.parametrize("name", [name for name in SETS if name != "own"])
def test_sets_survive_json(name: str) -> None:
    back = uncertainty_from_dict(json.loads(json.dumps(SETS[name].to_dict())))
    assert type(back) is type(SETS[name])
    assert back.to_dict() == SETS[name].to_dict()
    assert back.deviations == SETS[name].deviations
    a = np.random.default_rng(6).normal(size=(4, D))
    assert support_each(back, a) == pytest.approx(support_each(SETS[name], a))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparseBox(1.0, 0), "k=0 must be a whole number >= 1"),
        (lambda: SparseBox(1.0, 2, (-1,)), "protected coordinate=-1"),
        (lambda: SparseBox(1.0, 2, (9,)).support(np.ones(3), 1), "protected coordinate 9.*only 3"),
        (lambda: Ellipsoid(1.0, [1.0, 2.0]), r"factor has shape \(2,\)"),
        (lambda: Ellipsoid(1.0, np.eye(2)).support(np.ones(3), 1), "2 dimensions, the embeddings 3"),
        (lambda: OwnSet(1.0, None, 1.0), "function must be callable"),
        (lambda: OwnSet(1.0, l2_function, -1.0), "bilinear_bound=-1.0"),
        (lambda: OwnSet(1.0, lambda a: -l2_function(a), 1.0).support(np.ones(3), 1), "negative values"),
        (lambda: OwnSet(1.0, l2_function, 1.0).points(np.ones((1, 3))), "has no maximiser"),
        (lambda: OwnSet(1.0, l2_function, 1.0, np.sign).points(np.ones((1, 3))), "does not attain"),
        (lambda: OwnSet(1.0, l2_function, 1.0).to_dict(), "cannot be written as JSON"),
        (lambda: DeviationBudget(SETS["l2"], -1), "gamma=-1"),
        (lambda: DeviationBudget(SETS["deviations"], 1), "over one of the other sets"),
        (lambda: uncertainty_from_dict({"set": "l7"}), "'set' is one of l2, l1"),
        (lambda: uncertainty_from_dict({"set": "l2", "rho": 1}), "set 'l2' takes radius, given rho"),
        (lambda: uncertainty_from_dict({"set": "l2", "radius": -1}), "radius=-1"),
        (lambda: NormBall("x"), "radius='x'"),
    ],
)
def test_malformed_sets_say_what_is_wrong(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(("gamma", "worst"), [(0, 0.6), (1, 0.7), (2, 0.81), (9, 0.81)])
def test_as_many_of_a_pair_deviate_as_may(gamma: int, worst: float) -> None:
    found = worst_similarity([[1, 0], [0.6, 0.8]], DeviationBudget(NormBall(0.1), gamma))
    assert found[0, 1] == pytest.approx(worst)
