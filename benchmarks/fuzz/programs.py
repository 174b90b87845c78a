"""JSON programs: through `SelectionProgram.from_json` and `solve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.claims import check_result
from benchmarks.fuzz.endings import Wrong, strict
from benchmarks.fuzz.odd import TEXTS, chance, mutated_text, number, pick, scaled, value
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveOptions, Status, solve
from mio_rag.solvers.paths import find_conflict
from mio_rag.solvers.registry import resolve, solvers
from mio_rag.testing.programs import random_program, random_shared_program

_SOLVERS = ("auto", "branch_and_bound", "exhaustive", "highs", "highs-glover", "cpsat", "pyomo", "topk",
            "density", "greedy", "mmr", "local_search")  # fmt: skip
_OFTEN = (0.3, 0.4, 0.03, 0.05, 0.03, 0.03, 0.01, 0.03, 0.03, 0.03, 0.03, 0.03)
_SECONDS = 1.0
_SHARED = 0.3  # of the programs: items share segments


class Programs:
    """A program as text or as data, and the solver."""

    def __init__(self, folder: Path) -> None:
        del folder
        self._exact = {info.name: info.exact for info in solvers()}

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a valid program, one at odd scales or of wrong shapes, or mutated text."""
        n_max = int(pick(rng, [4, 9, 9, 9, 30])) if chance(rng, 0.2) else 7
        drawn = random_shared_program if chance(rng, _SHARED) else random_program
        program = drawn(rng, n_max).to_dict()
        given: dict[str, Any] = {"solver": str(rng.choice(_SOLVERS, p=_OFTEN)), "gap": 0.0}
        given["gap"] = pick(rng, [0.0, 0.0, 0.0, 0.1])
        way = int(rng.choice(4, p=[0.15, 0.4, 0.2, 0.25]))
        if way == 1:
            program = _extreme(rng, program)
        elif way == 2:
            program = _misshapen(rng, program)
        given |= {"text": mutated_text(rng, json.dumps(program))} if way == 3 else {"program": program}
        return given

    def run(self, given: Any) -> str:
        """Read, solve, check every claim."""
        text = given["text"] if "text" in given else json.dumps(given["program"])
        program = SelectionProgram.from_json(text)
        again = SelectionProgram.from_dict(program.to_dict())
        strict("to_dict() of a program", program.to_dict())
        if again.to_dict() != program.to_dict():
            raise Wrong("a program is not what it was after to_dict() and from_dict()")
        options = SolveOptions(time_limit_seconds=_SECONDS, relative_gap=given["gap"])
        claim = solve(program, given["solver"], options)
        check_result(program, claim, options, self._exact[resolve(program, given["solver"])])
        if claim.status is Status.INFEASIBLE and program.n <= 6 and len(program.rows) < 10:
            conflict = find_conflict(program, [f"item {i}" for i in range(program.n)])
            if conflict is not None and not (conflict.parts and conflict.explain().strip()):
                raise Wrong("a conflict without parts", conflict)
        return claim.status.value


def _extreme(rng: np.random.Generator, program: dict[str, Any]) -> dict[str, Any]:
    """The same at other scales, or with odd numbers at some places; pairs stay symmetric."""
    changed = dict(program)
    n = len(program["linear"])
    for name in ("linear", "costs"):
        if chance(rng, 0.4):
            changed[name] = scaled(rng, program[name])
    if chance(rng, 0.4):
        upper = scaled(rng, program["pairwise"])
        changed["pairwise"] = [[upper[min(i, j)][max(i, j)] for j in range(n)] for i in range(n)]
    if chance(rng, 0.5):
        total = sum(changed["costs"])
        odd = number(rng) if chance(rng, 0.3) else _size(rng)
        changed["budget"] = total * float(rng.random()) if chance(rng, 0.7) else odd
    for name in ("linear", "costs"):
        if n and chance(rng, 0.15):
            changed[name] = list(changed[name])
            changed[name][int(rng.integers(n))] = number(rng) if chance(rng, 0.3) else _size(rng)
    shared = program.get("segments")
    if shared is not None and chance(rng, 0.5):
        prices = shared.get("prices", [0.0] * len(shared["costs"]))
        sizes = {"costs": scaled(rng, shared["costs"]), "prices": scaled(rng, prices)}
        name = pick(rng, sorted(sizes))
        changed["segments"] = {**shared, name: sizes[name]}
    rows = [_extreme_row(rng, row) if chance(rng, 0.3) else row for row in program["rows"]]
    if rows and chance(rng, 0.01):
        rows = rows * int(rng.integers(50, 500))
    return {**changed, "rows": rows}


def _size(rng: np.random.Generator) -> float:
    """A number that a program may hold, however large or small."""
    return float(10.0 ** rng.uniform(-320, 300))


def _extreme_row(rng: np.random.Generator, row: dict[str, Any]) -> dict[str, Any]:
    changed = {**row, "name": pick(rng, TEXTS)} if chance(rng, 0.3) else dict(row)
    if chance(rng, 0.5):
        changed["coefficients"] = scaled(rng, row["coefficients"])
    side = pick(rng, ["lower", "upper"])
    if chance(rng, 0.5):
        changed[side] = number(rng) if chance(rng, 0.5) else scaled(rng, row[side])
    return changed


def _misshapen(rng: np.random.Generator, program: dict[str, Any]) -> Any:
    """Wrong types, lengths, keys at one to three places."""
    if chance(rng, 0.03):
        return value(rng, True)
    whole: Any = json.loads(json.dumps(program))
    for _ in range(int(rng.integers(1, 4))):
        here, key = whole, pick(rng, list(whole))
        while isinstance(here[key], (list, dict)) and here[key] and chance(rng, 0.6):
            here = here[key]
            key = pick(rng, list(here)) if isinstance(here, dict) else int(rng.integers(len(here)))
        change = int(rng.integers(4))
        if change == 0:
            del here[key]
        elif change == 1 and isinstance(here, dict):
            here[pick(rng, TEXTS)] = value(rng, True)
        elif change == 1:
            here.append(value(rng, True))
        else:
            here[key] = value(rng, True)
        if not whole:
            break
    return whole
