"""The compiled part of the solvers of finite Markov decision processes.

A process comes as compressed rows: row s * m + a holds the successors of action a in state s,
``after[start[row] : start[row + 1]]`` with their probabilities; ``reward[row]`` is minus infinity where
the action is not allowed, ``factor[row]`` is gamma^tau. Indices are unsigned where it counts: signed ones are
checked for counting from the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mio_rag.solvers.compiled import Floats, Matrix, Places, compiled

#: Places in the array `numbers` that kernels fill.
LOW, HIGH, SWEEPS, SCALE = range(4)
_LEAVE = 0.1  # a policy is left when its own bounds are that much closer than those of all
_ROUNDED = 0.5  # bounds this small next to what rounding can add do not get closer


class Process(NamedTuple):
    """A process of m actions as compressed rows."""

    start: Places
    after: Places
    chance: Floats
    reward: Floats
    factor: Floats
    m: int


@compiled
def sweep(
    process: Process,
    values: Floats,
    improved: Floats,
    policy: Places,
    fixed: bool,
    q: Matrix,
    numbers: Floats,
) -> None:
    """One Bellman backup of all states, from `values` into `improved`.

    With `fixed` only the actions of `policy` count; otherwise it becomes the best ones, and `q`, of shape
    (n, m), takes what every action is worth. `numbers` takes the least and the greatest change of a value,
    and the largest absolute value.
    """
    start, after, chance, reward, factor, m = process
    low, high, scale = np.inf, -np.inf, 0.0
    one, two = np.uint64(1), np.uint64(2)
    for s in range(values.size):
        first, last = (policy[s], policy[s] + 1) if fixed else (0, m)
        best = -np.inf
        chosen = first
        for a in range(first, last):
            row = s * m + a
            value = reward[row]
            if value > -np.inf:
                k, end = np.uint64(start[row]), np.uint64(start[row + 1])
                even = odd = 0.0  # two sums: in one, each addition would wait for the one before it
                while k + one < end:
                    even += chance[k] * values[np.uint64(after[k])]
                    odd += chance[k + one] * values[np.uint64(after[k + one])]
                    k += two
                if k < end:
                    even += chance[k] * values[np.uint64(after[k])]
                value += factor[row] * (even + odd)
                if value > best:
                    best = value
                    chosen = a
            if not fixed:
                q[s, a] = value
        improved[s] = best
        policy[s] = chosen
        low = min(low, best - values[s])
        high = max(high, best - values[s])
        scale = max(scale, abs(best), abs(values[s]))
    numbers[LOW] = low
    numbers[HIGH] = high
    numbers[SCALE] = scale


@compiled
def name_first(q: Matrix, values: Floats, tie: float, policy: Places) -> None:
    """Set `policy` to the first actions within `tie` of the best."""
    for s in range(values.size):
        chosen = 0
        while q[s, chosen] < values[s] - tie:
            chosen += 1
        policy[s] = chosen


@compiled
def beyond(low: float, high: float, least: float, greatest: float) -> tuple[float, float]:
    """How far the optimum can lie from TV, below and above, after changes between `low` and `high`."""
    down = greatest if low < 0 else least
    up = greatest if high > 0 else least
    return low * down / (1.0 - down), high * up / (1.0 - up)


@compiled
def iterate(
    process: Process,
    values: Floats,
    policy: Places,
    q: Matrix,
    evaluations: int,
    least: float,
    greatest: float,
    noise: float,
    epsilon: float,
    max_sweeps: int,
    numbers: Floats,
) -> Floats:
    """Value iteration, or modified policy iteration with at most `evaluations` sweeps under each policy.

    The last sweep is over all actions and gives `q` and the values returned. It ends at an error of `epsilon`
    by the bounds of MacQueen and rounding (`noise` times the largest value), and where rounding is all that
    is left. Before each sweep over all actions the values move into their bounds. `least` and `greatest` are
    the extreme factors; `values` is used up.
    """
    improved = np.empty_like(values)
    done = 0
    while True:
        sweep(process, values, improved, policy, False, q, numbers)
        done += 1
        below, above = beyond(numbers[LOW], numbers[HIGH], least, greatest)
        rounding = noise * numbers[SCALE]
        if max(-below, above) <= max(epsilon - rounding, _ROUNDED * rounding) or done >= max_sweeps:
            numbers[SWEEPS] = done
            return improved
        values, improved = improved, values
        enough = max(0.5 * epsilon, _LEAVE * 0.5 * (above - below))
        for _ in range(min(evaluations, max_sweeps - done - 1)):
            sweep(process, values, improved, policy, True, q, numbers)
            values, improved = improved, values
            done += 1
            below, above = beyond(numbers[LOW], numbers[HIGH], least, greatest)
            if 0.5 * (above - below) <= enough:
                break
        if least == greatest:
            values += 0.5 * (above + below)
        else:  # the middle can lie beyond the optimum, and the next one further
            values += min(max(below, 0.0), above)


@compiled
def one_pass(process: Process, values: Floats) -> None:
    """Exact values where no action leads to a higher state, by substitution from state 0 upwards.

    An action that may stay is worth what it is worth when repeated until it leaves:
    V = r + f (p V + rest), hence V = (r + f rest) / (1 - f p). Successors are sorted, so staying comes last.
    """
    start, after, chance, reward, factor, m = process
    for s in range(values.size):
        best = -np.inf
        for a in range(m):
            row = s * m + a
            if reward[row] == -np.inf:
                continue
            k, end = np.uint64(start[row]), np.uint64(start[row + 1])
            staying = 0.0
            if after[end - np.uint64(1)] == s:
                end -= np.uint64(1)
                staying = chance[end]
            following = 0.0
            while k < end:
                following += chance[k] * values[np.uint64(after[k])]
                k += np.uint64(1)
            value = reward[row] + factor[row] * following
            if staying > 0.0:  # a division costs more than all the rest
                value /= 1.0 - factor[row] * staying
            best = max(best, value)
        values[s] = best
