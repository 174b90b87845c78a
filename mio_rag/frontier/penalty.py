"""The path over the passage penalty lambda_2: the best selection at every penalty.

With f(x) the value without a penalty and k(x) the number of passages, the best value

    V(lambda) = max over x of f(x) - lambda k(x)

is convex and piecewise linear, one line per selection. Its corners are found by solving where the lines known
so far cross, until no crossing yields a better one (Eisner and Severance, 1976). A proof at both ends of a
piece holds all along it, since V is convex. Numbers of passages that no price singles out do not appear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mio_rag.formulations.program import SelectionProgram
from mio_rag.frontier.chain import Chain


@dataclass(frozen=True)
class PenaltyPiece:
    """One selection, and the penalties for which it is the best.

    Parameters
    ----------
    low, high : float
        The range of lambda_2; `high` is infinite for the last piece.
    passages, tokens : int
    value : float
        Without the penalty.
    gap : float
        Largest amount by which another selection could be better anywhere on the piece; infinite where
        nothing was proven.
    certified : bool
        Whether that is within the solver's stated tolerance.
    """

    low: float
    high: float
    passages: int
    tokens: int
    value: float
    gap: float
    certified: bool
    selected: tuple[int, ...]


@dataclass(frozen=True)
class PenaltyPath:
    """Pieces by rising penalty, from 0 to infinity; none where the program is infeasible."""

    pieces: tuple[PenaltyPiece, ...]
    solves: int

    def at(self, penalty: float) -> PenaltyPiece | None:
        """The piece that holds at a penalty >= 0."""
        return next((p for p in self.pieces if p.low <= penalty <= p.high), None)


@dataclass(frozen=True)
class _Line:
    """f - lambda k of one selection."""

    k: int
    f: float
    x: tuple[int, ...]
    tokens: int

    def at(self, penalty: float) -> float:
        return self.f - penalty * self.k


def _envelope(lines: list[_Line]) -> list[tuple[float, _Line]]:
    """(penalty from which it is the highest, line) for penalties >= 0; k falls along it."""
    best: dict[int, _Line] = {}
    for line in lines:
        if line.k not in best or line.f > best[line.k].f:
            best[line.k] = line
    here = max(best.values(), key=lambda line: (line.f, -line.k))
    found, start = [(0.0, here)], 0.0
    while below := [line for line in best.values() if line.k < here.k]:
        crossings = [((here.f - line.f) / (here.k - line.k), line) for line in below]
        start, here = min(crossings, key=lambda c: (c[0], c[1].k))
        found.append((start, here))
    return found


def penalty_path(
    program: SelectionProgram, chain: Chain | None = None, *, progress: Callable[[int], None] | None = None
) -> PenaltyPath:
    """The path of a program over the passage penalty.

    Parameters
    ----------
    program : SelectionProgram
        Without a passage penalty: what is looked at is added to it.
    chain : Chain, optional
        Who solves; by default a new one.
    progress : callable, optional
        Called with 1 after each solve; how many there will be is not known beforehand.

    Raises
    ------
    SolverError
        If the solver broke.
    """
    chain = chain or Chain()
    before = chain.solves
    lines: list[_Line] = []
    bounds: dict[float, float] = {}

    def look(penalty: float) -> _Line | None:
        result = chain.solve(replace(program, linear=program.linear - penalty))
        bounds[penalty] = np.inf if result.bound is None else result.bound
        if progress is not None:
            progress(1)
        if result.x is None:
            return None
        return _Line(
            len(result.selected), program.objective(result.x), result.selected, int(program.cost(result.x))
        )

    # Above twice what all passages together can be worth, one passage fewer always pays.
    steep = 1.0 + 2.0 * float(np.abs(program.linear).sum() + 0.5 * np.abs(program.pairwise).sum())
    for penalty in (steep, 0.0):
        line = look(penalty)
        if line is None:
            return PenaltyPath((), chain.solves - before)
        lines.append(line)
    fewest = lines[0].k if chain.certifies(lines[0].at(steep), bounds[steep]) else -1
    while True:
        corners = _envelope(lines)
        waiting = [(start, line) for start, line in corners if start not in bounds]
        if not waiting:
            break
        penalty, line = waiting[0]
        better = look(penalty)
        # A line that is higher by rounding alone would be found again and again.
        if better is not None and better.at(penalty) > line.at(penalty) + 1e-9 * max(1.0, abs(line.f)):
            lines.append(better)
    return PenaltyPath(_pieces(corners, bounds, chain, fewest), chain.solves - before)


def _pieces(
    corners: list[tuple[float, _Line]], bounds: dict[float, float], chain: Chain, fewest: int
) -> tuple[PenaltyPiece, ...]:
    pieces = []
    for k, (low, line) in enumerate(corners):
        last = k + 1 == len(corners)
        high = np.inf if last else corners[k + 1][0]
        if high - low <= 1e-12 and not last:  # three lines through one point
            continue
        # Beyond the last corner V falls at least as fast as the fewest passages do.
        proven = [low] if last else [low, high]
        certified = all(chain.certifies(line.at(p), bounds[p]) for p in proven)
        pieces.append(
            PenaltyPiece(
                low=low,
                high=high,
                passages=line.k,
                tokens=line.tokens,
                value=line.f,
                gap=max(0.0, *(bounds[p] - line.at(p) for p in proven)),
                certified=certified and (not last or line.k == fewest),
                selected=line.x,
            )
        )
    return tuple(pieces)
