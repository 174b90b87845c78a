"""Certified selections over redundancy weight (lambda_1) and embedding uncertainty (rho) at one budget.

Objectives of programs with different weights do not compare. So every selection is measured by what does not
depend on its own weights: tokens, the sum of the relevance, the sum of the pairwise similarities, and the
guaranteed value, which is its value in one reference program, the termwise counterpart at the largest radius.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mio_rag.context import TokenCounter, block_tokens
from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting
from mio_rag.frontier.chain import Chain, dominated
from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector
from mio_rag.solvers.result import Status


@dataclass(frozen=True)
class GridPoint:
    """What is chosen at one (lambda_1, rho).

    Parameters
    ----------
    status : str
        Of the solve. Only "optimal" points can be on the frontier.
    value, bound : float or None
        In the point's own program.
    relevance : float
        Sum of the nominal relevance.
    redundancy : float
        Sum of the cosines over the pairs chosen.
    guaranteed : float
        Value in the reference program.
    dominated : bool or None
        Whether another certified point is at least as good in tokens, relevance, redundancy and guaranteed
        value, and better in one. None where the point is not certified.
    """

    redundancy_weight: float
    radius: float
    status: str
    value: float | None
    bound: float | None
    selected: tuple[int, ...]
    tokens: int
    relevance: float
    redundancy: float
    guaranteed: float
    dominated: bool | None = None

    @property
    def certified(self) -> bool:
        """Whether the selection is optimal within the stated gap."""
        return self.status == Status.OPTIMAL.value


def check_values(name: str, values: Sequence[float]) -> list[str]:
    """What is wrong with a list of weights or radii."""
    problems = [] if values else [f"{name} is empty: give at least one value"]
    problems += [
        f"{name} holds {v!r}: each must be a number from 0 to {LARGEST_SETTING:g}"
        for v in values
        if not is_setting(v)
    ]
    if len(set(values)) < len(values):
        problems.append(f"{name} lists a value twice")
    return problems


def check_selector(selector: Selector) -> list[str]:
    """What of a selector's settings a frontier cannot go along with."""
    problems = []
    if selector.uncertainty is not None or selector.passage_radii:
        problems.append("a frontier sets the radius itself: leave uncertainty and passage_radii out")
    if selector.counterpart != "termwise":
        problems.append("a frontier supports only the termwise counterpart: leave counterpart out")
    if selector.units != "passages":
        problems.append(f"a frontier is one of passages: leave units={selector.units!r} out")
    if selector.side.prices or selector.side.change_price > 0:
        problems.append("a frontier supports only hard side constraints: leave prices and change_price out")
    return problems


def redundancy(candidates: Candidates, chosen: Sequence[int]) -> float:
    """Sum of the cosines over the chosen pairs; 0 without embeddings."""
    if candidates.embeddings is None or len(chosen) < 2:
        return 0.0
    vectors = candidates.embeddings[list(chosen)].astype(np.float64)
    return float((np.square(vectors.sum(axis=0)).sum() - np.square(vectors).sum()) / 2)


def weight_grid(
    candidates: Candidates,
    selector: Selector,
    budget_tokens: int,
    weights: Sequence[float],
    radii: Sequence[float],
    *,
    counter: TokenCounter | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[GridPoint, ...]:
    """Solve at every pair of a weight and a radius.

    Parameters
    ----------
    candidates : Candidates
        As `Selector.valued` returns them.
    selector : Selector
        All other settings; the reference program has its redundancy weight.
    weights, radii : sequences of float
        lambda_1 and rho, each >= 0.
    counter : TokenCounter, optional
        The reader's tokenizer: what passages share is then paid once, and tokens are those of what is read.
    progress : callable, optional
        Called with 1 after each solve.

    Returns
    -------
    tuple of GridPoint
        Weight by weight. Infeasible points choose nothing.

    Raises
    ------
    InputError
        For weights or radii out of range, candidates that bring their own radii, or settings of the selector
        that a grid would not heed.
    """
    problems = check_values("redundancy weights", weights) + check_values("radii", radii)
    problems += check_selector(selector)
    if candidates.radius is not None and tuple(radii) != (0.0,):
        problems.append("the candidates bring their own radii, which would override those of the grid")
    if problems:
        raise InputError(problems)
    reference = selector.replace(radius=max(radii)).program(candidates, budget_tokens, counter)
    chain = Chain(selector.solver, selector.options)
    points: list[GridPoint] = []
    for weight in weights:
        # There and back, so that neighbours on the path are neighbours on the grid.
        for radius in radii if len(points) % (2 * len(radii)) == 0 else list(radii)[::-1]:
            at = selector.replace(redundancy_weight=weight, radius=radius)
            program = at.program(candidates, budget_tokens, counter)
            result = chain.solve(program)
            chosen = list(result.selected)
            x = np.zeros(len(candidates)) if result.x is None else result.x
            points.append(
                GridPoint(
                    redundancy_weight=float(weight),
                    radius=float(radius),
                    status=result.status.value,
                    value=result.objective,
                    bound=result.bound,
                    selected=result.selected,
                    tokens=tokens_read(candidates, chosen, selector, counter),
                    relevance=float(candidates.relevance[chosen].sum()),
                    redundancy=redundancy(candidates, chosen),
                    guaranteed=reference.objective(x),
                )
            )
            if progress is not None:
                progress(1)
    return _marked(points)


def tokens_read(
    candidates: Candidates, chosen: Sequence[int], selector: Selector, counter: TokenCounter | None
) -> int:
    """Tokens of chosen passages: of what is read, where somebody counts it, otherwise their sum."""
    if counter is None or candidates.spans is None or not selector.merge:
        return int(candidates.tokens[list(chosen)].sum())
    return block_tokens(candidates, chosen, counter, True)


def _marked(points: list[GridPoint]) -> tuple[GridPoint, ...]:
    """The points in order, each certified one with whether another certified one beats it."""
    points = sorted(points, key=lambda p: (p.redundancy_weight, p.radius))
    proven = [p for p in points if p.certified]
    criteria = [(-p.tokens, p.relevance, -p.redundancy, p.guaranteed) for p in proven]
    beaten = dict(zip(map(id, proven), dominated(np.array(criteria).reshape(-1, 4)).tolist(), strict=True))
    return tuple(replace(p, dominated=beaten.get(id(p))) for p in points)
