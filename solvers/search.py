"""The depth-first search of the exact kernel, from outside: its arrays, a slice of nodes at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers import kernel, kernel_shared
from mio_rag.solvers.presolve import fixed_in
from mio_rag.solvers.relaxation import Incumbent, Root

__all__ = ["Search"]

_SLICE_SECONDS = 0.004  # between looks at the clock
_STEPS = 60  # pair exchanges a node

_Arrays = tuple[Any, ...]  # arguments of a compiled function


class Search:
    """The depth-first search as arrays that `kernel.search` works on, a slice of nodes at a time."""

    def __init__(
        self,
        program: SelectionProgram,
        root: Root,
        best: Incumbent,
        tolerance: float,
        relative_gap: float,
        ceiling: float = math.inf,
    ) -> None:
        problem = root.problem
        m, rows = problem.m, problem.w.size
        depth = m + 2
        self.program, self.problem, self.best_known = program, problem, best
        #: Whether a selection met the rows only by the rounding of their sums; `bound` covers its value.
        self.doubtful = False
        # The root's bound is over the items that it left; what it dropped may be worth more.
        self._ceiling = min(ceiling, max(root.bound, root.dropped))
        shift = problem.W.T @ root.lam if rows else np.zeros(m)
        ids, P = np.zeros((depth, m), dtype=np.int64), np.zeros((depth, m))
        X, GX = np.zeros((depth, m)), np.zeros((depth, m))
        size, count = np.zeros(depth, dtype=np.int64), np.zeros(depth, dtype=np.int64)
        room, base, lag = np.zeros(depth), np.zeros(depth), np.zeros(depth)
        activity, chosen = np.zeros((depth, max(rows, 1))), np.zeros((depth, m), dtype=np.int64)
        self._bound = np.full(depth, np.inf)
        G = root.G
        ids[0], P[0], X[0], GX[0] = np.arange(m), problem.p - shift, root.x, G @ root.x
        size[0], room[0], lag[0], self._bound[0] = m, problem.room, float(root.lam @ problem.w), root.bound
        self._best = np.zeros(m, dtype=np.int8)
        self._numbers = np.zeros(10)
        self._numbers[kernel.INCUMBENT] = best.value
        self._numbers[kernel.TOLERANCE] = tolerance
        self._numbers[kernel.PRUNED] = root.dropped
        self._numbers[kernel.STEPS] = _STEPS
        self._numbers[kernel.RELATIVE_GAP] = relative_gap
        self._numbers[kernel.OFFSET] = problem.base / problem.scale
        rows_of: _Arrays = (problem.W, problem.w, shift, problem.harmless)
        state: _Arrays = (ids, P, X, GX, size, room, base, lag, activity, chosen, count, self._bound)
        state += (np.zeros(depth), np.full(depth, 2 * m, dtype=np.int64), np.ones(depth))
        last: _Arrays = (self._best, self._numbers)
        sharing = problem.sharing
        self._kernel: Callable[..., None] = kernel.search
        if sharing is None:
            costs: _Arrays = (problem.c, problem.cr, problem.extra)
            self._arrays: _Arrays = (problem.A, G, *costs, *rows_of, *state, *last)
            return
        P[0] = sharing.p - shift
        paid = np.zeros((depth, sharing.cost.size), dtype=np.bool_)
        share = np.zeros((depth, sharing.users[0].size))
        share[0] = sharing.share[sharing.users]
        needs: _Arrays = (sharing.c, sharing.start, sharing.users[1], sharing.cost, sharing.price)
        self._kernel = kernel_shared.search_shared
        self._arrays = (problem.A, G, *needs, *rows_of, *state, paid, share, *last)

    @property
    def nodes(self) -> int:
        """Nodes so far."""
        return int(self._numbers[kernel.NODES])

    @property
    def work(self) -> float:
        """What the nodes have cost so far, as `kernel.search` counts it."""
        return float(self._numbers[kernel.WORK])

    @property
    def done(self) -> float:
        """The share of the tree that is over, if every branching halves it."""
        return float(self._numbers[kernel.DONE])

    @property
    def bound(self) -> float:
        """Proven upper bound: over what was pruned and what is open, and never above the root's."""
        depth = int(self._numbers[kernel.DEPTH])
        reach = float(max(self._numbers[kernel.PRUNED], self._numbers[kernel.INCUMBENT]))
        if depth >= 0:
            reach = max(reach, float(self._bound[: depth + 1].max()))
        return max(min(reach, self._ceiling), float(self._numbers[kernel.INCUMBENT]))

    def run(self, deadline: float, allowed: float, work: float = math.inf) -> str | None:
        """Search until it is over (None) or a limit is hit ("time", "nodes", "work").

        Improves the incumbent in place.
        """
        before = float(self._numbers[kernel.INCUMBENT])
        step = 32
        stopped: str | None = None
        while self._numbers[kernel.DEPTH] >= 0:
            now = time.perf_counter()
            if now >= deadline or self.nodes >= allowed or self._numbers[kernel.WORK] >= work:
                stopped = "time" if now >= deadline else "nodes" if self.nodes >= allowed else "work"
                break
            self._kernel(*self._arrays, int(min(step, allowed - self.nodes)), work)
            took = time.perf_counter() - now
            step = int(min(1e6, max(8, step * min(4.0, _SLICE_SECONDS / max(took, 1e-6)))))
        if self._numbers[kernel.INCUMBENT] > before:
            x = fixed_in(self.program)
            x[self.problem.items[self._best > 0]] = 1
            if self.program.violations(x):
                self.doubtful = True
            else:
                self.best_known.value, self.best_known.x = float(self._numbers[kernel.INCUMBENT]), x
        return stopped
