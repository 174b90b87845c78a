"""The optimizer's bench: lab solve, frontier, radius, warmup."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli import options as o
from mio_rag.cli.output import Output, kept_rows
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, SolverError, collect

if TYPE_CHECKING:
    from mio_rag.selection.selector import Penalty

lab_app = typer.Typer(
    help="The optimizer's bench: programs, other settings, errors of embeddings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


# -- solve ------------------------------------------------------------------------------------------------


@o.command("seed json", app=lab_app, name="solve")
def lab_solve(
    call: o.Call,
    program: Annotated[
        str, o.arg("A selection program (JSON; - for stdin), or a decision process: a TOML file, or mdp.")
    ],
    solver: Annotated[
        str,
        o.opt(
            "auto, branch_and_bound, exhaustive, highs, highs-glover, cpsat, pyomo[:NAME], or a heuristic."
        ),
    ] = "auto",
    time_limit: Annotated[float, o.opt("Seconds; then the certified gap is reported.")] = 10.0,
    relative_gap: Annotated[float, o.opt("Stop at this proven relative gap. 0: exact.")] = DEFAULTS.gap,
    threads: Annotated[int, o.opt("Threads of the solver.")] = 1,
    set_: Annotated[
        list[str] | None,
        o.opt("Of a process: horizon, quality, k, discount, grid.", "--set", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Solve a selection program or a decision process.

    \b
      mio-rag lab solve program.json --solver cpsat
      mio-rag lab solve mdp --set horizon=inf --set quality=log
    """
    from mio_rag.formulations.program import SelectionProgram
    from mio_rag.solvers.paths import find_conflict
    from mio_rag.solvers.registry import check_name
    from mio_rag.solvers.registry import solve as run_solver
    from mio_rag.solvers.result import SolveOptions
    from mio_rag.storage import read_text

    if program == "mdp" or program.endswith(".toml"):
        _solve_process(call.output, None if program == "mdp" else Path(program), set_)
        return

    def parse() -> SelectionProgram:
        text = read_text(program)
        try:
            return SelectionProgram.from_json(text)
        except InputError as error:
            where = "standard input" if program == "-" else f"'{program}'"
            raise InputError([f"{where}: {problem}" for problem in error.problems]) from error

    parsed, options, _ = collect(
        parse,
        lambda: SolveOptions(time_limit, relative_gap, threads=threads, seed=call.seed),
        lambda: check_name(solver),
    )
    result = run_solver(parsed, solver, options)
    if result.status == "error":
        raise SolverError(result.message)
    told: dict[str, Any] = {**result.to_dict(), "selected": None, "tokens_used": None, "conflict": None}
    lines = [result.certificate()]
    if result.x is not None:
        told |= {"selected": list(result.selected), "tokens_used": parsed.cost(result.x)}
        lines.append(f"selected {told['selected']}, cost {told['tokens_used']:g}")
    if result.status == "infeasible":
        conflict = find_conflict(parsed)
        if conflict is not None:
            told["conflict"] = {**asdict(conflict), "parts": list(conflict.parts)}
            lines.append(conflict.explain())
    call.output.result(told, *lines)


def _solve_process(output: Output, path: Path | None, sets: list[str] | None) -> None:
    from mio_rag.cli.show_policy import plan_lines
    from mio_rag.learning.mdp import model_of, sensitivity, solve_plan, structure, to_json

    given: dict[str, Any] = {}
    for name, text in o.pairs("--set", sets).items():
        try:
            given[name] = float(text) if "." in text or "e" in text else int(text)
        except ValueError:
            given[name] = text
    model = model_of(path, given)
    if "k" in given and model.quality != "exp":
        raise InputError(f"k is the steepness of exp, and the quality is {model.quality}: leave it out")
    start = time.perf_counter()
    plan = solve_plan(model)
    shape, changes = structure(plan), sensitivity(plan)
    told = to_json(plan, shape, changes, time.perf_counter() - start)
    output.result(told, *plan_lines(plan, shape, changes))


# -- frontier ---------------------------------------------------------------------------------------------


@o.command("path questions policy set embedder limit resume json", app=lab_app, name="frontier")
def lab_frontier(
    call: o.Call,
    question: Annotated[str | None, o.arg("Without one: a whole question set.", "[QUESTION]")] = None,
    budgets: Annotated[
        str | None, o.opt("Token budgets. [default: 1024; a set: 128,256,512]", "--budget", "-b")
    ] = None,
    up_to: Annotated[int | None, o.opt("Of a question: largest budget. [default: twice the budget]")] = None,
    plot: Annotated[Path | None, o.opt("Of a question: draw it into this .png, .svg or .pdf file.")] = None,
    weights: Annotated[str | None, o.opt("Redundancy weights. [default: 0,0.05,0.1,0.2,0.4; 0,0.1]")] = None,
    radii: Annotated[str | None, o.opt("Radii of embeddings. [default: 0,0.05,0.1; 0,0.05]")] = None,
    penalties: Annotated[str, o.opt("Of a set: passage penalties, adaptive or auto.")] = "adaptive,0.05",
    token_prices: Annotated[str, o.opt("Of a set: prices of a token that all questions share.")] = "",
    reference_radius: Annotated[float, o.opt("Of a set: error for measuring robustness.")] = 0.05,
    draws: Annotated[int, o.opt("Of a set: random errors per question for stability. 0: none.")] = 3,
    slack: Annotated[float, o.opt("Of a set: evidence to trade for fewer tokens.")] = 0.02,
    model: Annotated[str | None, o.opt("Of a set: also answer, and score answers.")] = None,
    out: Annotated[Path | None, o.opt("Of a set: folder of ledger, frontier.json, .png and .html.")] = None,
) -> None:
    """Show what other settings would select, each with its certificate.

    With QUESTION: where the selection changes from budget to budget, and what more tokens bring. Without one:
    evidence, tokens, diversity and robustness of every setting on a question set, and a page to browse.
    """
    from mio_rag.cli.show import frontier_lines, query_lines
    from mio_rag.evaluation.ledger import check_folder
    from mio_rag.frontier.dataset import FrontierSettings
    from mio_rag.frontier.plot import plot_query
    from mio_rag.frontier.query import query_frontier
    from mio_rag.frontier.run import data_frontier
    from mio_rag.generation import check_generator
    from mio_rag.pictures import check_figure
    from mio_rag.retrieval import Retriever
    from mio_rag.sources import kind_of

    if question is None and out is None:
        raise InputError("give a QUESTION, or --out FOLDER for a question set")
    at, chosen = collect(
        lambda: o.whole_numbers("--budget", budgets or ("1024" if question is not None else "128,256,512")),
        lambda: call.chosen().whole(),
    )
    search = chosen.policy.search.retrieval
    if question is not None:
        if len(at) > 1:
            raise InputError(f"--budget must be one number for a question, got {budgets}")
        budget = at[0]
        lambdas, radius_list, *_ = collect(
            lambda: _grid("--weights", weights or "0,0.05,0.1,0.2,0.4"),
            lambda: _grid("--radii", radii or "0,0.05,0.1"),
            lambda: o.check_question(question),
            lambda: _check_reach(up_to, budget),
            lambda: None if plot is None else check_figure(plot),
            lambda: kind_of(call.path),
        )
        index = call.open().index
        o.check_fits(chosen.selector, index)
        retriever = Retriever.of(index, search)
        with o.progress("tokens settled", up_to or max(2 * budget, budget + 200)) as advance:
            data = query_frontier(
                retriever.retrieve(question), chosen.selector, budget, up_to=up_to, weights=lambdas,
                radii=radius_list, counter=retriever.counter, progress=advance,
            ).to_dict()  # fmt: skip
        if plot is not None:
            plot_query(data, plot)
        call.output.result(data, *query_lines(data), *([] if plot is None else [f"\n{plot}"]))
        return
    assert out is not None
    call.output.kept = kept_rows(out)
    spec = None if model in (None, "none") else o.reader_spec(model)
    if "selection.radius" in chosen.given:
        raise InputError("selection.radius does not apply to a grid: --radii lists its radii")
    grid: dict[str, Any] = {
        "budgets": at, "reference_radius": reference_radius, "draws": draws, "limit": call.limit,
        "weights": o.numbers("--weights", weights or "0,0.1"),
        "radii": o.numbers("--radii", radii or "0,0.05"),
        "penalties": tuple(_penalty(part) for part in penalties.split(",") if part.strip()),
        "token_prices": o.numbers("--token-prices", token_prices),
    }  # fmt: skip
    options = replace(chosen.selector.options, relative_gap=0.001)
    settings, *_ = collect(
        lambda: FrontierSettings(
            **grid, selector=chosen.selector.replace(options=options), seed=chosen.seed, retrieval=search,
            max_tokens=chosen.policy.limits.max_tokens,
        ),
        lambda: None if spec is None else check_generator(spec),
        lambda: check_folder(out, call.resume),
        lambda: kind_of(call.path),
    )  # fmt: skip
    dataset, index = call.data()
    o.check_fits(settings.selector, index)
    count = len(dataset.questions[: call.limit])
    with call.reader(spec) as reader, o.progress("questions", count) as advance:
        made = data_frontier(
            dataset, index, settings, out, generator=reader, slack=slack, resume=call.resume,
            progress=advance,
        )  # fmt: skip
    told = {"out": str(out), "run": made.run, "points": made.points, "operating_point": made.chosen}
    call.output.result(
        told if made.price is None else {**told, "price": made.price},
        *frontier_lines(made.points, made.chosen, made.price),
        f"\npage: {out / 'frontier.html'}",
    )


def _penalty(text: str) -> Penalty:
    if text.strip() in ("adaptive", "auto"):
        return cast("Penalty", text.strip())
    return o.numbers("--penalties", text)[0]


def _grid(option: str, text: str) -> tuple[float, ...]:
    from mio_rag.frontier.query import check_values

    found = o.numbers(option, text)
    if problems := check_values(option, found):
        raise InputError(problems)
    return found


def _check_reach(up_to: int | None, budget: int) -> None:
    if up_to is not None and up_to < budget:
        raise InputError(f"--up-to {up_to} is below --budget {budget}: the path ends there")


# -- radius -----------------------------------------------------------------------------------------------


@o.command("path embedder limit seed json", app=lab_app, name="radius", limit=1000)
def lab_radius(
    call: o.Call,
    method: Annotated[
        str, o.opt("sq8, pq:M or pq:MxBITS (compression), chunks, encoder (--other) or paraphrases (--file).")
    ] = "sq8",
    other: Annotated[str | None, o.opt("Second embedder of --method encoder.")] = None,
    file: Annotated[
        Path | None, o.opt('JSON lines {"texts": ["...", "..."]}: texts that mean the same.', "--file")
    ] = None,
    quantile: Annotated[float, o.opt("Share of the errors that the radius must cover.")] = 0.9,
    out: Annotated[Path | None, o.opt("File (.npz) of radii, for selection.passage_radii.")] = None,
) -> None:
    """Measure the error of embeddings, for selection.radius.

    --limit is the number of passages to embed for chunks and encoder.
    """
    from mio_rag.retrieval.radius import check_method, measure_radius, write_radii
    from mio_rag.sources import kind_of

    limit = call.limit or 0
    collect(
        lambda: kind_of(call.path),
        lambda: check_method(method, other, file, quantile, limit, out),
        lambda: o.at_least(limit=(limit, 1)),
    )
    index = call.open().index
    with o.progress(f"measuring by {method}", limit) as advance:
        found = measure_radius(
            index, method, other=other, file=file, limit=limit, seed=call.seed, progress=advance
        )
    told = {"index": call.path, **found.to_dict(quantile)}
    radius = told["radius"]
    lines = [
        f"{found.errors.size} errors by {found.method}: median {told['median']:.4f}, "
        f"{quantile:.0%} within {radius:.4f}, largest {told['largest']:.4f}",
        f"use --set selection.radius={radius:.4f}  ({found.meaning})",
    ]
    if out is not None:
        told["not_measured"] = rest = write_radii(out, found, index.ids, radius)
        if rest:
            lines.append(f"not measured: {rest} of {len(index)} passages; {out} gives them {radius:.4f}")
    call.output.result(told, *lines)


# -- warmup -----------------------------------------------------------------------------------------------


@o.command("json", app=lab_app, name="warmup")
def lab_warmup(call: o.Call) -> None:
    """Compile the kernels in advance (needed once per machine)."""
    from mio_rag.solvers.branch_and_bound import warmup as compile_kernel
    from mio_rag.solvers.mdp import warmup as compile_processes

    seconds = compile_kernel() + compile_processes()
    call.output.result({"seconds": seconds}, f"the kernels are ready ({seconds:.1f} s)")
