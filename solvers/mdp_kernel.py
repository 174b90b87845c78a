"""The compiled part of the solvers of finite Markov decision processes.

A process comes as compressed rows: row s * m + a holds the successors of action a in state s,
``next_state[start[row] : start[row + 1]]`` with their probabilities; ``reward[row]`` is minus infinity where
the action is not allowed, ``factor[row]`` is gamma^tau.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.compiled import compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]

#: Places in the array `numbers` that kernels fill.
LOW, HIGH, SWEEPS = range(3)


@compiled
def worth(
    start: IntArray,
    next_state: IntArray,
    probability: FloatArray,
    reward: FloatArray,
    factor: FloatArray,
    row: int,
    values: FloatArray,
) -> float:
    """Reward of an action and the discounted mean of the values that follow."""
    following = 0.0
    for k in range(start[row], start[row + 1]):
        following += probability[k] * values[next_state[k]]
    return float(reward[row] + factor[row] * following)


@compiled
def backup(
    start: IntArray,
    next_state: IntArray,
    probability: FloatArray,
    reward: FloatArray,
    factor: FloatArray,
    values: FloatArray,
    tie: float,
    q: FloatArray,
    improved: FloatArray,
    policy: IntArray,
    numbers: FloatArray,
) -> None:
    """One Bellman backup of all states: q (n, m), its maxima, the first actions within `tie` of them.

    `numbers` takes the least and the greatest change of a value.
    """
    n, m = q.shape
    low, high = np.inf, -np.inf
    for s in range(n):
        best = -np.inf
        for a in range(m):
            row = s * m + a
            q[s, a] = reward[row]
            if reward[row] > -np.inf:
                q[s, a] = worth(start, next_state, probability, reward, factor, row, values)
                best = max(best, q[s, a])
        chosen = 0
        while q[s, chosen] < best - tie:
            chosen += 1
        improved[s] = best
        policy[s] = chosen
        low = min(low, best - values[s])
        high = max(high, best - values[s])
    numbers[LOW] = low
    numbers[HIGH] = high


@compiled
def iterate(
    start: IntArray,
    next_state: IntArray,
    probability: FloatArray,
    reward: FloatArray,
    factor: FloatArray,
    values: FloatArray,
    q: FloatArray,
    policy: IntArray,
    evaluations: int,
    least: float,
    greatest: float,
    epsilon: float,
    max_sweeps: int,
    numbers: FloatArray,
) -> FloatArray:
    """Value iteration, or modified policy iteration with `evaluations` sweeps under each policy.

    Stops once the bounds of MacQueen lie within `epsilon` of their midpoint, which is returned. `least` and
    `greatest` are the extreme factors; `values` is used up.
    """
    m = q.shape[1]
    improved = np.empty_like(values)
    done = 0
    while True:
        backup(start, next_state, probability, reward, factor, values, 0.0, q, improved, policy, numbers)
        done += 1
        low, high = numbers[LOW], numbers[HIGH]
        rate = greatest if low < 0 else least
        below = low * rate / (1 - rate)
        rate = greatest if high > 0 else least
        above = high * rate / (1 - rate)
        if 0.5 * (above - below) <= epsilon or done >= max_sweeps:
            numbers[SWEEPS] = done
            middle: FloatArray = improved + 0.5 * (above + below)
            return middle
        for _ in range(min(evaluations, max_sweeps - done - 1)):
            for s in range(values.size):
                values[s] = worth(start, next_state, probability, reward, factor, s * m + policy[s], improved)
            values, improved = improved, values
            done += 1
        values, improved = improved, values


@compiled
def one_pass(
    start: IntArray,
    next_state: IntArray,
    probability: FloatArray,
    reward: FloatArray,
    factor: FloatArray,
    m: int,
    values: FloatArray,
) -> None:
    """Exact values where no action leads to a higher state, by substitution from state 0 upwards.

    An action that may stay is worth what it is worth when repeated until it leaves:
    V = r + f (p V + rest), hence V = (r + f rest) / (1 - f p).
    """
    for s in range(values.size):
        best = -np.inf
        for a in range(m):
            row = s * m + a
            if reward[row] == -np.inf:
                continue
            staying = 0.0
            following = 0.0
            for k in range(start[row], start[row + 1]):
                if next_state[k] == s:
                    staying += probability[k]
                else:
                    following += probability[k] * values[next_state[k]]
            value = reward[row] + factor[row] * following
            if staying > 0.0:  # a division costs more than all the rest
                value /= 1.0 - factor[row] * staying
            best = max(best, value)
        values[s] = best
