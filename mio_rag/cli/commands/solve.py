"""`mio-rag solve`: a selection program given as JSON; and `mio-rag warmup`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mio_rag.cli.options.shared import Json, SolverOptions, spread
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, SolverError, collect

__all__ = ["solve", "warmup"]


@spread
def solve(
    program: Annotated[
        str,
        typer.Argument(
            help="JSON file: linear, pairwise, costs, budget, rows, fixed, segments; - for stdin."
        ),
    ],
    *,
    solving: SolverOptions,
    json_output: Json = False,
) -> None:
    """Solve one selection program given as JSON."""
    from mio_rag.cli.show.selection import print_result
    from mio_rag.formulations.program import SelectionProgram
    from mio_rag.reading import read_text
    from mio_rag.solvers.paths import find_conflict
    from mio_rag.solvers.registry import solve as run_solver

    output = open_output(json_output)

    def parse() -> SelectionProgram:
        text = read_text(program)
        try:
            return SelectionProgram.from_json(text)
        except InputError as error:
            where = "standard input" if program == "-" else f"'{program}'"
            raise InputError([f"{where}: {problem}" for problem in error.problems]) from error

    parsed, options = collect(parse, solving.checked)
    result = run_solver(parsed, solving.solver, options)
    if result.status == "error":
        raise SolverError(result.message)
    used = None if result.x is None else parsed.cost(result.x)
    infeasible = result.status == "infeasible"
    conflict = find_conflict(parsed, [f"item {i}" for i in range(parsed.n)]) if infeasible else None
    if json_output:
        selected = None if result.x is None else list(result.selected)
        named = conflict and {**asdict(conflict), "parts": list(conflict.parts)}
        output.json({**result.to_dict(), "selected": selected, "tokens_used": used, "conflict": named})
    else:
        print_result(output.console, result, used)
        if conflict is not None:
            output.console.print(conflict.explain(), soft_wrap=True)


def warmup(json_output: Json = False) -> None:
    """Compile the kernels in advance (needed once per machine)."""
    from mio_rag.solvers.branch_and_bound import warmup as compile_kernel
    from mio_rag.solvers.mdp import warmup as compile_processes

    output = open_output(json_output)
    seconds = compile_kernel() + compile_processes()
    if json_output:
        output.json({"seconds": seconds})
    else:
        output.console.print(f"the kernels are ready ({seconds:.1f} s)")
