"""The joint counterpart: no attack beats its lower end, no selection its bound; against plain enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from mio_rag.errors import InputError, SolverError
from mio_rag.formulations import (
    DeviationBudget,
    Ellipsoid,
    NormBall,
    OwnSet,
    SelectionProgram,
    SparseBox,
    UncertaintySet,
    termwise_program,
)
from mio_rag.formulations.robust import CurveValue, InnerProductValue, JointProblem
from mio_rag.selection.explain import attack
from mio_rag.solvers import SolveOptions, solve
from mio_rag.solvers.paths import JointResult, joint_steps

D = 5


def drive(steps, solver: str = "highs") -> JointResult:
    program = next(steps)
    while True:
        try:
            program = steps.send(solve(program, solver))
        except StopIteration as done:
            return done.value


def sets(n: int, rho: float) -> dict[str, UncertaintySet]:
    radii = rho * np.linspace(0, 2, n)
    factor = np.random.default_rng(n).normal(size=(D, 3)) / 2
    return {
        "l2": NormBall(rho),
        "l1": NormBall(rho, "l1"),
        "linf": NormBall(rho / 2, "linf"),
        "per passage": NormBall(radii),
        "sparse": SparseBox(rho, 2, (0,)),
        "ellipsoid": Ellipsoid(rho, factor),
        "own": OwnSet(rho, lambda a: np.abs(a).sum(axis=-1), float(D), np.sign),
        "deviations": DeviationBudget(NormBall(radii), 2),
    }


def curve(mu: np.ndarray, q: np.ndarray, neighbours: np.ndarray) -> CurveValue:
    """A two-stage probability: the second stage sees the first ones of neighbours."""

    def first(loss: np.ndarray) -> np.ndarray:
        return expit(8 * (mu @ q - loss) - 4)

    worst: dict[str, np.ndarray] = {}

    def function(loss: np.ndarray) -> np.ndarray:
        return expit(5 * (mu @ q - loss) - 3 + 2 * (neighbours * first(loss)).max(axis=1))

    def alone(own: np.ndarray) -> np.ndarray:
        company = 2 * (neighbours * first(worst["loss"])).max(axis=1)
        return expit(5 * (mu @ q - own) - 3 + company)

    value = CurveValue(function, alone)
    object.__setattr__(value, "worst", worst)
    return value


def problem(seed: int, kind: str, rho: float, n: int = 8, curved: bool = False, linked: bool = False):
    rng = np.random.default_rng([17, seed])
    mu = rng.normal(size=(n, D)) + 0.6
    mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    q = rng.normal(size=D) + 0.6
    q /= np.linalg.norm(q)
    given = sets(n, rho)[kind]
    costs, budget = rng.integers(5, 30, n).astype(float), 60.0
    links = np.triu(rng.random((n, n)) < 0.2, 1).astype(float)
    links += links.T
    value = InnerProductValue(mu @ q)
    if curved:
        value = curve(mu, q, links)
        value.worst["loss"] = given.support(q, n)
    made = JointProblem(
        value=value,
        rest=np.full(n, -0.05),
        embeddings=mu,
        query=q,
        uncertainty=given,
        redundancy_weight=float(rng.choice([0.0, 0.1, 0.5])),
        benefit=0.2 * links if linked else None,
        assemble=lambda linear, pairwise: SelectionProgram(linear, pairwise, costs, budget),
    )
    return made, rng


def termwise(given: JointProblem) -> SelectionProgram:
    nominal = given.scenario()
    return termwise_program(
        given.value.nominal - 0.05,
        given.embeddings,
        given.query,
        nominal.costs,
        nominal.budget,
        given.uncertainty,
        redundancy_weight=given.redundancy_weight,
    )


KINDS = list(sets(8, 0.1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("curved", [False, True])
def test_no_attack_beats_the_certificate(kind: str, curved: bool) -> None:
    """Optimized, random and scenario attacks, on random selections."""
    for seed in range(6):
        given, rng = problem(seed, kind, [0.02, 0.1, 0.4][seed % 3], curved=curved, linked=seed % 2 == 0)
        x = (rng.random(given.n) < 0.5).astype(np.int8)
        if not curved and given.benefit is None:
            assert termwise(given).objective(x) <= given.worst(np.flatnonzero(x))[1] + 1e-9
        found = attack(given, x, restarts=4, random=40, seed=seed)
        assert found.certified <= found.worst + 1e-9
        assert found.worst <= found.nominal + 1e-9
        assert found.worst <= found.random.min() + 1e-12
        assert given.uncertainty.contains(found.delta)
        if given.uncertainty.deviations is not None:
            moved = np.any(found.delta[np.flatnonzero(x)] != 0, axis=1)
            assert moved.sum() <= given.uncertainty.deviations
        # what was reached is what the program says under these perturbations
        assert given.scenario(found.delta).objective(x) == pytest.approx(found.worst)
        lower, upper = given.interval(x)
        assert lower - 1e-9 <= found.worst <= upper + 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("curved", [False, True])
def test_cuts_bound_every_selection(kind: str, curved: bool) -> None:
    """Against enumeration: nobody's certified worst case is above the bound."""
    for seed in range(3):
        given, _ = problem(seed, kind, 0.1, n=7, curved=curved, linked=seed % 2 == 0)
        nominal = given.scenario()
        outcome = drive(joint_steps(given, SolveOptions(), (nominal,)))
        result = outcome.result
        assert result.x is not None
        assert nominal.violations(result.x) == []
        assert (result.objective, outcome.upper) == pytest.approx(given.interval(result.x), abs=1e-6) or (
            result.objective <= outcome.upper + 1e-9
        )
        worst = [
            given.lower(np.flatnonzero(x))
            for code in range(1 << given.n)
            for x in [np.array([(code >> k) & 1 for k in range(given.n)], dtype=np.int8)]
            if not nominal.violations(x)
        ]
        assert max(worst) <= result.bound + 1e-6
        assert result.objective <= max(worst) + 1e-9
        assert result.is_optimal == (result.bound - result.objective <= 1e-6)
        assert result.gap == pytest.approx(
            (result.bound - result.objective) / abs(result.objective), abs=1e-9
        )


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "deviations"])
def test_joint_is_at_least_termwise(kind: str) -> None:
    for seed in range(3):
        given, _ = problem(seed, kind, 0.1)
        nominal, safe = given.scenario(), termwise(given)
        best = solve(safe, "exhaustive")
        assert given.lower(np.flatnonzero(best.x)) >= best.objective - 1e-9
        joint = drive(joint_steps(given, SolveOptions(), (safe, nominal)))
        assert joint.result.objective >= best.objective - 1e-9
        assert joint.result.objective <= solve(nominal, "exhaustive").objective + 1e-9


def test_two_opposed_passages_by_hand() -> None:
    """The product of perturbations helps here: the first-order loss alone is no lower end of the loss."""
    given = JointProblem(
        InnerProductValue(np.array([1.0, 1.0])),
        np.zeros(2),
        np.array([[1.0], [-1.0]]),
        np.array([0.0]),
        NormBall(0.5),
        1.0,
        None,
        lambda linear, pairwise: SelectionProgram(linear, pairwise, [1, 1], 2),
    )
    # f = 2 - (1 + a)(-1 + b) with |a|, |b| <= .5: 3 as it is, 2.25 at a = -.5, b = .5; -.5, -.5 gives 2.75
    assert given.objective(np.array([0, 1])) == pytest.approx(3.0)
    assert given.lower(np.array([0, 1])) == pytest.approx(1.75)
    assert given.worst(np.array([0, 1]))[1] == pytest.approx(2.25)


def test_a_wrong_own_set_is_caught_by_an_attack() -> None:
    given, _ = problem(0, "l2", 0.3)
    wrong = OwnSet(0.3, lambda a: np.linalg.norm(a, axis=-1), 0.0, lambda a: 1.0 * a)
    with pytest.raises(InputError, match="does not attain"):
        wrong.points(given.embeddings * 3)
    hollow = OwnSet(0.3, lambda a: np.abs(a).sum(axis=-1), 0.0, np.sign)  # bilinear bound 0 is too small
    made = JointProblem(
        InnerProductValue(np.zeros(given.n)), given.rest, np.zeros((given.n, D)), np.zeros(D) + 1e-6, hollow,
        5.0, None, given.assemble,
    )  # fmt: skip
    with pytest.raises(SolverError, match="below the certified"):
        attack(made, np.ones(given.n, dtype=np.int8), restarts=20, random=200)
