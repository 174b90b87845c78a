"""Programs beyond the reach of enumeration: the kernel against general solvers, claim against claim."""

from __future__ import annotations

from collections import Counter

import numpy as np

from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveOptions, SolveResult, Status, branch_and_bound, solve
from mio_rag.testing.programs import random_program, random_shared_program

PEERS = ("highs-glover", "cpsat")
_SECONDS = 2.0
_PEER_ROUNDING = 1e-6  # general solvers meet bounds to that


def large_program(rng: np.random.Generator, shared: bool = False) -> SelectionProgram:
    """A program of 25 to 40 items that general solvers often prove in seconds."""
    while True:
        program = random_shared_program(rng, 40) if shared else random_program(rng, 40)
        if program.n >= 25:
            return program


def contradiction(ours: SolveResult, theirs: SolveResult) -> str | None:
    """What both results cannot be right about; None where they agree as far as each of them says."""
    if Status.ERROR in (ours.status, theirs.status):
        return f"error: {ours.message} {theirs.message}"
    for one, other in ((ours, theirs), (theirs, ours)):
        if one.objective is None:
            continue
        if other.status is Status.INFEASIBLE:
            return f"{other.solver} proves infeasibility, {one.solver} has a selection"
        slack = _PEER_ROUNDING * max(1.0, abs(one.objective))
        if other.bound is not None and other.bound < one.objective - slack:
            return f"{other.solver} bounds by {other.bound:.12g}, {one.solver} found {one.objective:.12g}"
    return None


def check_peers(
    rng: np.random.Generator, counts: Counter[str], shared: bool = False
) -> tuple[SelectionProgram, list[str]]:
    """One large program, solved by the kernel to the end and at a node limit, and by every peer."""
    program = large_program(rng, shared)
    ours = branch_and_bound.solve(program, SolveOptions(time_limit_seconds=60))
    stopped = branch_and_bound.solve(program, SolveOptions(), max_nodes=int(rng.integers(0, 200)))
    counts[f"{ours.status.value}: kernel"] += 1
    wrong = [contradiction(ours, stopped)]
    for peer in PEERS:
        try:
            theirs = solve(program, peer, SolveOptions(time_limit_seconds=_SECONDS))
        except InputError:  # cpsat refuses what it would round
            continue
        proven = theirs.is_optimal or theirs.status is Status.INFEASIBLE
        counts[f"{'proven' if proven else 'bound only'}: {peer}"] += 1
        wrong += [contradiction(ours, theirs), contradiction(stopped, theirs)]
    return program, [found for found in wrong if found is not None]
