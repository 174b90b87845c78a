"""Decision processes: checked where they are made; the published figures and bounds of the retrieval one."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import FiniteMDP, RetrievalMDP
from mio_rag.solvers.mdp import solve_mdp

STAY = np.eye(2)[:, None, :]  # two states, one action: stay


def test_dense_and_sparse_are_the_same_process_and_masks_exclude() -> None:
    allowed = [[True, False], [True, True]]
    dense = np.zeros((2, 2, 2))
    dense[0, 0, 1] = dense[1, 0, 1] = dense[1, 1, 0] = 1.0  # the masked row stays empty
    given = {"allowed": allowed, "durations": [[1, 1], [2, 3]], "horizon": 1, "terminal": [16.0, 8.0]}
    for transitions in (dense, sparse.coo_matrix(dense.reshape(4, 2))):
        mdp = FiniteMDP(transitions, [[1.0, np.nan], [2.0, 3.0]], 0.5, **given)
        assert solve_mdp(mdp).q.tolist() == [[[5.0, -np.inf], [4.0, 5.0]]]
        assert mdp.factor_range == (0.125, 0.5)
        assert not mdp.never_rises
    assert FiniteMDP(STAY, [[0.0], [1.0]], 0.5).never_rises


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transitions": STAY * 0.9}, "from state 0 by action 0 sum to 0.9, not to 1"),
        ({"transitions": np.array([[[2.0, -1.0]], [[0.0, 1.0]]])}, "hold -1.0: not a probability"),
        ({"transitions": np.eye(2)}, r"expected \(2, 1, 2\)"),
        ({"transitions": sparse.eye(3)}, r"expected \(2, 2\): row s \* 1 \+ a"),
        ({"rewards": [[np.inf], [0.0]]}, r"rewards\[0, 0\] is inf"),
        ({"discount": 1.0}, "without a horizon has no finite value"),
        ({"discount": 1.1, "horizon": 3}, r"must be a number in \(0, 1\]"),
        ({"terminal": [1.0, 2.0]}, "terminal rewards need a horizon"),
        ({"terminal": [1.0], "horizon": 2}, r"terminal has shape \(1,\), expected \(2,\)"),
        ({"allowed": [[True], [False]]}, "no action is allowed in state 1"),
        ({"durations": [[1.0], [1e-17]]}, r"durations\[1, 0\] is 1e-17: with discount 0.9 so short"),
        ({"rewards": [[1e308], [0.0]], "horizon": 5}, "at most 1e.250 in size"),
        ({"rewards": [["much"], [0.0]]}, "rewards is not an array of numbers"),
        ({"horizon": float("nan")}, "whole number of decisions >= 1"),
        ({"actions": ("a", "b")}, "must be 1 different names"),
    ],
)
def test_malformed_processes_are_refused(changes: dict[str, object], message: str) -> None:
    given = {"transitions": STAY, "rewards": [[0.0], [1.0]], "discount": 0.9} | changes
    with pytest.raises(InputError, match=message):
        FiniteMDP(**given)


@pytest.mark.parametrize(
    ("quality", "k", "threshold"),
    [("linear", 1, 0.158), ("log", 1, 0.141), ("exp", 1, 0.196), ("exp", 3, 0.257), ("exp", 8, 0.665)],
)
def test_published_thresholds(quality: Any, k: float, threshold: float) -> None:
    model = RetrievalMDP(horizon=None, quality=quality, k=k)
    policy = solve_mdp(model.to_finite()).policy
    (changes,) = np.nonzero(np.diff(policy))
    assert model.actions == ("reason", "retrieve")
    assert policy[0] == 0
    assert len(changes) == 1  # one threshold: reason below, retrieve from it on
    assert model.levels[changes[0] + 1] == pytest.approx(threshold, abs=1.0001e-3)


@pytest.mark.parametrize(("discount", "last"), [(1.0, 0.020), (0.98, 0.040)])
def test_with_a_stop_it_stops_when_nothing_is_worth_its_cost(discount: float, last: float) -> None:
    model = RetrievalMDP(discount=discount)
    solution = solve_mdp(model.to_finite())
    for policy in solution.policy[:, : model.grid]:
        stopping = model.levels[policy == model.actions.index("stop")]
        # From .02 on, reasoning down to 0 costs what it gains: stop at equality.
        assert stopping.max() == pytest.approx(last, abs=1e-9)
        assert stopping.size == round(last * 1000) + 1
    assert solution.values[:, model.grid] == pytest.approx(0)  # answered: nothing more is paid


def test_values_by_hand() -> None:
    # Two decisions, no discount, grid of .1: retrieving lowers U by .2 half of the time for .03, reasoning by
    # .1 for .01. At U = .1: reason and stop, 1 - .01 = .99. At U = .3: reason twice, .9 - .02 = .88, against
    # retrieving once and then reasoning: .5 * (.9 + .1 - .01) + .5 * (.8 - .01) - .03 = .86.
    model = RetrievalMDP(0.2, 0.1, 0.5, 0.03, 0.01, 1.0, horizon=2, grid=11)
    solution = solve_mdp(model.to_finite())
    assert solution.values[0, 1] == pytest.approx(0.99)
    assert solution.values[0, 3] == pytest.approx(0.88)
    assert solution.q[0, 3, 2] == pytest.approx(0.86)
    assert solution.values[1, 3] == pytest.approx(0.79)


@pytest.mark.parametrize("horizon", [8, None])
@pytest.mark.parametrize("quality", ["linear", "log", "exp"])
def test_rounding_brackets_the_continuous_process(horizon: int | None, quality: Any) -> None:
    # Drops between the points of the coarse grid, on those of the fine one, which is therefore exact there.
    settings: dict[str, Any] = {
        "retrieve_drop": 0.237,
        "reason_drop": 0.071,
        "horizon": horizon,
        "quality": quality,
    }
    exact = solve_mdp(RetrievalMDP(grid=1001, **settings).to_finite()).values
    model = RetrievalMDP(grid=101, **settings)
    low, middle, high = (solve_mdp(model.to_finite(r)).values for r in ("up", "interpolate", "down"))
    cut = (slice(None), slice(0, 101)) if horizon else (slice(0, 101),)
    points = (slice(None), slice(0, 1001, 10)) if horizon else (slice(0, 1001, 10),)
    slack = 1e-9
    assert np.all(low[cut] <= exact[points] + slack)
    assert np.all(exact[points] <= high[cut] + slack)
    assert np.all((low[cut] <= middle[cut] + slack) & (middle[cut] <= high[cut] + slack))
    assert np.abs(middle[cut] - exact[points]).max() < 0.2 * (high[cut] - low[cut]).max()


def test_parameters_by_bins() -> None:
    model = RetrievalMDP(success=(0.2, 0.9), retrieve_drop=[0.1, 0.3], grid=101)
    assert model.at("success", [0.0, 0.49, 0.5, 1.0]).tolist() == [0.2, 0.2, 0.9, 0.9]
    assert model.lowered("retrieve", [0.4, 0.6]) == pytest.approx([0.3, 0.3])
    assert not model.constant
    row = 60 * 3 + model.actions.index("retrieve")
    assert model.to_finite().transitions[[row]].toarray()[0, [30, 60]] == pytest.approx([0.9, 0.1])
    same = RetrievalMDP(success=(0.8, 0.8, 0.8))
    assert same.constant
    assert np.array_equal(solve_mdp(same.to_finite()).values, solve_mdp(RetrievalMDP().to_finite()).values)


def test_bad_parameters_are_reported_together() -> None:
    with pytest.raises(InputError) as found:
        RetrievalMDP(1.5, -0.1, (0.5, 2.0), float("nan"), (), 1.0, None, "best", 0, 1)
    names = "retrieve_drop reason_drop success retrieve_cost reason_cost discount=1 quality='best' k=0 grid=1"
    assert all(name in str(found.value) for name in names.split())
    with pytest.raises(InputError, match="horizon=2"):
        RetrievalMDP(horizon=2.5)
    with pytest.raises(InputError, match="more than 50,000,000 decisions"):
        RetrievalMDP(horizon=10**20)
    with pytest.raises(InputError, match=r"retrieve_cost=1e.308"):
        RetrievalMDP(retrieve_cost=1e308)
