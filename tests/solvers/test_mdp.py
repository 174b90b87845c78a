"""Every method against enumeration, closed forms, other packages, and its own stated error."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from mio_rag.errors import InputError, SolverError
from mio_rag.formulations.mdp import FiniteMDP
from mio_rag.solvers.mdp import MDPMethod, solve_mdp

METHODS: tuple[MDPMethod, ...] = ("policy_iteration", "value_iteration")


def random_mdp(seed: int, n: int = 5, m: int = 3, falling: bool = False, semi: bool = False) -> FiniteMDP:
    """A process with masked actions, sparse rows, rewards of both signs."""
    rng = np.random.default_rng(seed)
    transitions = rng.random((n, m, n)) * (rng.random((n, m, n)) < 0.5)
    if falling:
        transitions *= np.tril(np.ones((n, n)))[:, None, :]
    transitions += 0.1 * np.eye(n)[:, None, :]
    transitions /= transitions.sum(axis=2, keepdims=True)
    allowed = rng.random((n, m)) < 0.7
    allowed[np.arange(n), rng.integers(0, m, n)] = True
    durations = rng.uniform(0.5, 3, (n, m)) if semi else None
    return FiniteMDP(transitions, rng.normal(size=(n, m)), 0.93, allowed=allowed, durations=durations)


def value_of(mdp: FiniteMDP, policy: tuple[int, ...] | NDArray[np.int32]) -> NDArray[np.float64]:
    """Value of a policy, by a linear system."""
    n, m = mdp.rewards.shape
    rows = np.arange(n) * m + np.asarray(policy)
    matrix = mdp.transitions.toarray()[rows] * mdp.factors.ravel()[rows, None]
    return np.linalg.solve(np.eye(n) - matrix, mdp.rewards.ravel()[rows])


def optimum(mdp: FiniteMDP) -> NDArray[np.float64]:
    """The best value of every state over all deterministic policies."""
    choices = [np.flatnonzero(row).tolist() for row in mdp.allowed]
    return np.max([value_of(mdp, policy) for policy in itertools.product(*choices)], axis=0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_what_enumeration_finds(seed: int, method: MDPMethod) -> None:
    mdp = random_mdp(seed, semi=seed % 3 == 0)
    truth = optimum(mdp)
    found = solve_mdp(mdp, method, epsilon=1e-9)
    assert found.converged
    assert found.method == method
    assert np.abs(found.values - truth).max() <= found.error <= 1e-9
    assert np.max(truth - value_of(mdp, found.policy)) <= found.policy_loss + 1e-12


@pytest.mark.parametrize("seed", range(12))
def test_one_pass_is_exact_where_states_never_rise(seed: int) -> None:
    mdp = random_mdp(seed, falling=True, semi=seed % 2 == 0)
    found = solve_mdp(mdp)
    assert found.method == "one_pass"
    assert found.sweeps == 2  # the pass and its check
    assert np.abs(found.values - optimum(mdp)).max() <= found.error < 1e-11


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sweeps", [1, 2, 5, 20, 60])
def test_the_stated_error_holds_wherever_it_stops(method: MDPMethod, sweeps: int) -> None:
    for seed in range(8):
        mdp = random_mdp(seed, semi=seed % 2 == 0)
        truth = optimum(mdp)
        start = np.random.default_rng(seed).normal(scale=30, size=mdp.n_states)
        found = solve_mdp(mdp, method, epsilon=1e-13, max_sweeps=sweeps, initial=start)
        assert np.abs(found.values - truth).max() <= found.error
        assert np.max(truth - value_of(mdp, found.policy)) <= found.policy_loss
        assert found.converged == (found.error <= 1e-13)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_it_ends_where_rounding_is_all_that_is_left(method: MDPMethod, n: int) -> None:
    for seed in range(4):
        mdp = random_mdp(seed, n=n, semi=seed % 2 == 0)
        found = solve_mdp(mdp, method, epsilon=1e-300)
        assert not found.converged
        assert found.sweeps < 1500
        assert np.abs(found.values - value_of(mdp, found.policy)).max() <= found.error + 1e-12 < 1e-10


def test_a_textbook_process_in_closed_form() -> None:
    # Puterman (1994), example 3.1.1: state 1 stays half the time for 5, or leaves for 10; state 2 pays -1 for
    # ever. At .95: V(2) = -1 / .05; V(1) = (5 - .475 * 20) / (1 - .475).
    transitions = [[[0.5, 0.5], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]]
    mdp = FiniteMDP(transitions, [[5, 10], [-1, -9]], 0.95, allowed=[[True, True], [True, False]])
    for method in METHODS:
        found = solve_mdp(mdp, method, epsilon=1e-10)
        assert found.values == pytest.approx([-4.5 / 0.525, -20.0], abs=1e-9)
        assert found.policy.tolist() == [0, 0]
    # At .5 leaving at once is better: V(2) = -1 / .5; 10 + .5 * V(2) = 9 against (5 + .25 * V(2)) / .75 = 6.
    patient = FiniteMDP(transitions, [[5, 10], [-1, -9]], 0.5, allowed=[[True, True], [True, False]])
    assert solve_mdp(patient).values == pytest.approx([9.0, -2.0], abs=1e-6)


def recursion(mdp: FiniteMDP, s: int, left: int) -> float:
    """The value of a state with so many decisions left, by the definition."""
    if left == 0:
        return float(mdp.terminal[s])
    worths = []
    for a in np.flatnonzero(mdp.allowed[s]):
        row = mdp.transitions[[s * mdp.n_actions + int(a)]].toarray()[0]
        after = sum(p * recursion(mdp, j, left - 1) for j, p in enumerate(row) if p > 0)
        worths.append(mdp.rewards[s, a] + mdp.factors[s, a] * after)
    return float(max(worths))


@pytest.mark.parametrize("seed", range(4))
def test_backward_induction_against_the_recursion(seed: int) -> None:
    base = random_mdp(seed, n=3, m=2, semi=True)
    mdp = FiniteMDP(
        base.transitions,
        base.rewards,
        1.0 if seed == 0 else 0.9,
        horizon=4,
        terminal=[1.0, -2.0, 0.5],
        allowed=base.allowed,
        durations=base.durations,
    )
    found = solve_mdp(mdp)
    for t in range(5):
        expected = [recursion(mdp, s, 4 - t) for s in range(3)]
        assert found.values[t] == pytest.approx(expected, abs=1e-12)
    assert found.error < 1e-12
    assert np.array_equal(found.policy, found.q.argmax(axis=2))


def test_of_equal_actions_the_first_is_taken() -> None:
    mdp = FiniteMDP(np.ones((1, 3, 1)), [[1.0, 1.0 + 5e-10, 1.0]], 0.5)
    assert solve_mdp(mdp).policy.tolist() == [0]
    assert solve_mdp(mdp, tie=0.0).policy.tolist() == [1]


@pytest.mark.parametrize(
    ("horizon", "method"), [(3, "policy_iteration"), (None, "backward_induction"), (None, "one_pass")]
)
def test_methods_refuse_what_they_cannot_take(horizon: int | None, method: MDPMethod) -> None:
    rising = FiniteMDP(np.eye(2)[::-1][:, None, :], [[0.0], [1.0]], 0.9, horizon)
    with pytest.raises(SolverError, match="use "):
        solve_mdp(rising, method)


def test_bad_settings_are_refused() -> None:
    mdp = random_mdp(0)
    with pytest.raises(InputError) as found:
        solve_mdp(mdp, "magic", epsilon=0, max_sweeps=0, initial=[1.0], tie=-1)
    assert len(found.value.problems) == 5
