"""Every certificate of the exact kernel against enumeration.

Each small program is solved to the end, to three node limits, to a tiny time limit, with a relative gap, with
both, and some along a path of warm starts. In most of them the later stages of the kernel are forced from the
first nodes on; half of them start from random selections, since an optimal one would hide a wrong bound. One
program in two hundred is large, and compared with general solvers. Each is drawn from the seed and its number
alone, so that a run resumes, and a disagreement can be repeated.

With `brief` programs are smaller, half of them share segments, and each is solved to the end alone. They
come in families: one as it was drawn, and variants that its own selections suggest, such as a budget of
exactly what the best of them costs, or a second best that is worth as much. HiGHS solves the first one of
every sixth family, too. What is wrong is written to a file with its program.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from benchmarks.runner import Measured, at_least, write_json
from benchmarks.speed.contest import kernel_version
from benchmarks.trust.checks import EXACT, check_all, check_path, complaint, forced_stages, weak_starts
from benchmarks.trust.draw import draw, family
from mio_rag.cli.terminal import progress_bar
from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveOptions, SolveResult, Status, branch_and_bound, solve
from mio_rag.solvers.presolve import presolve
from mio_rag.solvers.result import upper_bound
from mio_rag.testing.programs import random_program, random_shared_program

N_MAX, SHARED_N_MAX, BRIEF_N_MAX = 16, 14, 11
PEERS = ("highs-glover", "cpsat")
_LARGE_EVERY, _SAVE_EVERY = 200, 200
_VARIANTS, _HIGHS_EVERY, _LARGER_EVERY = 9, 12, 600  # of a family; families
_FORCED, _WEAK, _PATHS = 0.7, 0.5, 0.3  # shares of the small programs
_SECONDS = 2.0  # of a general solver
_PEER_ROUNDING = 1e-6  # general solvers meet bounds to that


def measure(given: argparse.Namespace) -> Measured:
    """Check programs; a certificate that does not hold is wrong. `segments`: items share segments."""
    at_least(given, programs=1, seed=0)
    shared, brief, version = bool(given.segments), bool(given.brief), kernel_version()
    path = given.work / f"{'brief' if brief else 'segments' if shared else 'programs'}-{given.seed}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if known.get("kernel") != version or known["counts"]["programs"] > given.programs:
        known = {"next": 0, "counts": {"programs": 0}, "wrong": []}
    counts, wrong, k = Counter(known["counts"]), known["wrong"], known["next"]
    check = check_family if brief else partial(check_program, shared=shared)
    branch_and_bound.warmup()
    with progress_bar("programs", given.programs - counts["programs"]) as advance:
        while counts["programs"] < given.programs:
            before = counts["programs"]
            found = check(given.seed, k, counts)
            for number, one in enumerate(found):
                write_json(path.with_name(f"{path.stem}-wrong-{k}-{number}.json"), one)
            wrong, k = wrong + found, k + 1
            advance(counts["programs"] - before)
            if k % _SAVE_EVERY == 0:
                write_json(path, {"kernel": version, "next": k, "counts": counts, "wrong": wrong})
    certificates = sum(n for name, n in counts.items() if name.startswith("solves: "))
    lines = [f"{certificates} certificates of {counts['programs']} programs, {len(wrong)} wrong"]
    lines += [f"number {one['number']}, {one['way']}: {one['wrong']}" for one in wrong[:10]]
    report = {
        "programs": counts["programs"], "segments": shared, "certificates": certificates, "wrong": wrong,
        "counts": dict(counts), "kernel": version,
    }  # fmt: skip
    return Measured(report, "\n".join(lines), wrong=len(wrong))


def check_program(seed: int, k: int, counts: Counter[str], shared: bool = False) -> list[dict[str, Any]]:
    """Draw program k of a seed and check it in every way; adds to `counts`, returns what is wrong."""
    rng = np.random.default_rng([seed, k])
    counts["programs"] += 1
    if k % _LARGE_EVERY == _LARGE_EVERY - 1:
        counts["programs: large"] += 1
        program, found = check_peers(rng, counts, shared)
        return [_entry(k, "general solvers", text, program) for text in found]
    most = int(rng.integers(9, (SHARED_N_MAX if shared else N_MAX) + 1))
    program, twists = draw(rng, most, shared)
    counts.update(f"twist: {name}" for name in twists)
    counts[f"items: {program.n}"] += 1
    if shared:
        counts["programs: with segments"] += program.segments is not None
        problem = presolve(program)
        counts["programs: segments left after presolve"] += (
            problem is not None and problem.sharing is not None
        )
    try:
        with _handicapped(rng, counts, _FORCED, _WEAK):
            wrong = check_all(program, rng, counts)
            if rng.random() < _PATHS:
                wrong += check_path(program, rng, counts)
    except Exception:
        wrong = [("crash", traceback.format_exc())]
    return [_entry(k, way, text, program) for way, text in wrong]


def check_family(seed: int, k: int, counts: Counter[str]) -> list[dict[str, Any]]:
    """Draw family k of a seed and solve its programs to the end; adds to `counts`, returns what is wrong."""
    rng, shared, by_highs = np.random.default_rng([seed, k]), k % 2 == 1, k % _HIGHS_EVERY < 2
    wrong: list[dict[str, Any]] = []
    if k % _LARGER_EVERY < 2:
        program = large_program(rng, shared, 12, 22)
        texts = contradictions(program, ("highs",), [branch_and_bound.solve(program, EXACT)], counts)
        counts.update({"programs": 1, "programs: larger": 1})
        wrong += [_entry(k, "HiGHS, larger", text, program) for text in texts]
    if by_highs:  # which works with fixed tolerances
        base = (random_shared_program if shared else random_program)(rng, BRIEF_N_MAX)
        twists: tuple[str, ...] = ("plain",)
    else:
        base, twists = draw(rng, int(rng.integers(5, BRIEF_N_MAX + 1)), shared)
    for name, program, truth in family(rng, base, _VARIANTS):
        counts.update(f"twist: {twist}" for twist in twists)
        counts.update(["programs", f"variant: {name}", f"items: {program.n}"])
        counts["truth: feasible" if truth.feasible else "truth: infeasible"] += 1
        counts["truth: decided by rounding"] += truth.doubtful
        left, before, found = branch_and_bound.WarmStart(), Counter(counts), list[str | None]()
        try:
            with _handicapped(rng, counts, 0.25, 0.1):
                claim = branch_and_bound.solve(program, EXACT, warm=left)
            found.append(complaint(program, truth, claim, EXACT, True))
            if name == "as drawn" and upper_bound(program) < truth.least - 1e-13 * truth.size:
                found.append("the simple bound lies below the optimum")
            if by_highs and name == "as drawn":
                found += contradictions(program, ("highs",), [claim], counts)
            counts.update([f"solves: {name}", f"{claim.status.value}: to the end"])
            counts["reached a better matrix"] += left.items.size > 0
            short = claim.objective is not None and claim.objective < truth.least - 1e-13 * truth.size
            counts["optimal, but for the tolerance"] += claim.is_optimal and short
        except Exception:
            found.append(traceback.format_exc())
        way = ", ".join([name, *(one for one in _HANDICAPS if counts[one] > before[one])])
        wrong += [_entry(k, way, text, program) for text in found if text is not None]
    return wrong


_HANDICAPS = ("programs: later stages forced", "programs: weak starts")


def _handicapped(rng: np.random.Generator, counts: Counter[str], forced: float, weak: float) -> ExitStack:
    """With these probabilities: later stages forced, random starts."""
    settings = ExitStack()
    if rng.random() < forced:
        counts[_HANDICAPS[0]] += 1
        efforts = (20, 60, 200) if rng.random() < 0.02 else (2, 4, 12)
        after_nodes, narrow_gap = int(rng.choice([0, 0, 1, 3])), float(rng.choice([0.0, 0.06, 1e9]))
        settings.enter_context(forced_stages(after_nodes, narrow_gap, efforts))
    if rng.random() < weak:
        counts[_HANDICAPS[1]] += 1
        settings.enter_context(weak_starts())
    return settings


def _entry(k: int, way: str, text: str, program: SelectionProgram) -> dict[str, Any]:
    return {"number": k, "way": way, "wrong": text, "data": program.to_dict()}


# Programs beyond enumeration: the kernel against general solvers ------------------------------------------


def large_program(
    rng: np.random.Generator, shared: bool = False, least: int = 25, most: int = 40
) -> SelectionProgram:
    """Draw a program of 25 to 40 items that general solvers often prove in seconds."""
    while True:
        program = random_shared_program(rng, most) if shared else random_program(rng, most)
        if program.n >= least:
            return program


def contradiction(ours: SolveResult, theirs: SolveResult) -> str | None:
    """Return what both results cannot be right about; None where they agree as far as each claims."""
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
    """Draw one large program, solved by the kernel to the end and at a node limit, and by every peer."""
    program = large_program(rng, shared)
    ours = branch_and_bound.solve(program, SolveOptions(time_limit_seconds=60))
    stopped = branch_and_bound.solve(program, SolveOptions(), max_nodes=int(rng.integers(0, 200)))
    counts[f"{ours.status.value}: kernel"] += 1
    wrong = [text] if (text := contradiction(ours, stopped)) else []
    return program, wrong + contradictions(program, PEERS, [ours, stopped], counts)


def contradictions(
    program: SelectionProgram, peers: tuple[str, ...], ours: list[SolveResult], counts: Counter[str]
) -> list[str]:
    """Solve by general solvers; returns what contradicts any of our results."""
    wrong: list[str | None] = []
    for peer in peers:
        try:
            theirs = solve(program, peer, SolveOptions(time_limit_seconds=_SECONDS))
        except InputError:  # cpsat refuses what it would round
            continue
        proven = theirs.is_optimal or theirs.status is Status.INFEASIBLE
        counts[f"{'proven' if proven else 'bound only'}: {peer}"] += 1
        wrong += [contradiction(one, theirs) for one in ours]
    return [found for found in wrong if found is not None]
