"""Processes are checked where they are made."""

import numpy as np
import pytest
from scipy import sparse

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import FiniteMDP

STAY = np.eye(2)[:, None, :]  # two states, one action: stay


def test_dense_and_sparse_are_the_same_process() -> None:
    rng = np.random.default_rng(0)
    dense = rng.random((4, 3, 4)) * (rng.random((4, 3, 4)) < 0.6) + np.eye(4)[:, None, :]
    dense /= dense.sum(axis=2, keepdims=True)
    rewards = rng.random((4, 3))
    one = FiniteMDP(dense, rewards, 0.9)
    other = FiniteMDP(sparse.coo_matrix(dense.reshape(12, 4)), rewards, 0.9)
    values = rng.random(4)
    by_hand = np.array([[rewards[s, a] + 0.9 * dense[s, a] @ values for a in range(3)] for s in range(4)])
    assert np.allclose(one.q_values(values), by_hand, atol=1e-15)
    assert np.array_equal(one.q_values(values), other.q_values(values))


def test_durations_discount_and_masks_exclude() -> None:
    allowed = [[True, False], [True, True]]
    transitions = np.zeros((2, 2, 2))
    transitions[0, 0, 1] = transitions[1, 0, 1] = transitions[1, 1, 0] = 1.0  # the masked row stays empty
    mdp = FiniteMDP(
        transitions, [[1.0, np.nan], [2.0, 3.0]], 0.5, allowed=allowed, durations=[[1, 1], [2, 3]]
    )
    assert mdp.q_values(np.array([16.0, 8.0])).tolist() == [[5.0, -np.inf], [4.0, 5.0]]
    assert mdp.factor_range == (0.125, 0.5)
    assert not mdp.never_rises
    assert FiniteMDP(STAY, [[0.0], [1.0]], 0.5).never_rises


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transitions": STAY * 0.9}, "from state 0 by action 0 sum to 0.9, not to 1"),
        ({"transitions": np.array([[[2.0, -1.0]], [[0.0, 1.0]]])}, "hold -1.0: not a probability"),
        ({"transitions": STAY * np.nan}, "not a probability"),
        ({"transitions": np.eye(2)}, r"expected \(2, 1, 2\)"),
        ({"transitions": sparse.eye(3)}, r"expected \(2, 2\): row s \* 1 \+ a"),
        ({"rewards": [[np.inf], [0.0]]}, r"rewards\[0, 0\] is inf"),
        ({"rewards": [1.0, 2.0]}, "expected .states, actions."),
        ({"discount": 1.0}, "without a horizon has no finite value"),
        ({"discount": 0.0}, r"must be a number in \(0, 1\]"),
        ({"discount": 1.1, "horizon": 3}, r"must be a number in \(0, 1\]"),
        ({"horizon": 0}, "whole number of decisions >= 1"),
        ({"terminal": [1.0, 2.0]}, "terminal rewards need a horizon"),
        ({"terminal": [1.0], "horizon": 2}, r"terminal has shape \(1,\), expected \(2,\)"),
        ({"allowed": [[True], [False]]}, "no action is allowed in state 1"),
        ({"durations": [[1.0], [0.0]]}, "must take some time"),
        ({"durations": [[1.0], [1e-17]]}, r"durations\[1, 0\] is 1e-17: with discount 0.9 so short"),
        ({"rewards": [[1e308], [0.0]], "horizon": 5}, "at most 1e.250 in size"),
        ({"rewards": [["much"], [0.0]]}, "rewards is not an array of numbers"),
        ({"transitions": [[[1.0]], [[0.5, 0.5]]]}, "transitions is not an array of numbers"),
        ({"horizon": float("nan")}, "whole number of decisions >= 1"),
        ({"horizon": float("inf")}, "whole number of decisions >= 1"),
        ({"horizon": "ten"}, "whole number of decisions >= 1"),
        ({"actions": ("a", "b")}, "must be 1 different names"),
    ],
)
def test_malformed_processes_are_refused(changes: dict[str, object], message: str) -> None:
    given = {"transitions": STAY, "rewards": [[0.0], [1.0]], "discount": 0.9} | changes
    with pytest.raises(InputError, match=message):
        FiniteMDP(**given)
