"""The optimizer's bench: lab solve, frontier, radius, warmup."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli import options as o
from mio_rag.cli.chosen import Chosen
from mio_rag.cli.output import Output, kept_rows, open_output
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, SolverError, collect

if TYPE_CHECKING:
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.selection.selector import Penalty

lab_app = typer.Typer(
    help="The optimizer's bench: programs, other settings, errors of embeddings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


# -- solve ------------------------------------------------------------------------------------------------


@lab_app.command("solve")
def lab_solve(
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
    seed: Annotated[int, o.opt("Seed of the solver.")] = 0,
    set_: Annotated[
        list[str] | None,
        o.opt("Of a process: horizon, quality, k, discount, grid.", "--set", metavar="KEY=VALUE"),
    ] = None,
    json_output: o.Json = False,
) -> None:
    """Solve a selection program or a decision process.

    \b
      mio-rag lab solve program.json --solver cpsat
      mio-rag lab solve mdp --set horizon=inf --set quality=log
    """
    from mio_rag.cli.show import print_result
    from mio_rag.formulations.program import SelectionProgram
    from mio_rag.solvers.paths import find_conflict
    from mio_rag.solvers.registry import check_name
    from mio_rag.solvers.registry import solve as run_solver
    from mio_rag.solvers.result import SolveOptions
    from mio_rag.storage import read_text

    output = open_output(json_output)
    if program == "mdp" or program.endswith(".toml"):
        _solve_process(output, None if program == "mdp" else Path(program), set_)
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
        lambda: SolveOptions(time_limit, relative_gap, threads=threads, seed=seed),
        lambda: check_name(solver),
    )
    result = run_solver(parsed, solver, options)
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


def _solve_process(output: Output, path: Path | None, sets: list[str] | None) -> None:
    from mio_rag.cli.show_control import print_plan
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
    seconds = time.perf_counter() - start
    told = to_json(plan, shape, changes, seconds)
    output.result(told, lambda: print_plan(output.console, plan, shape, changes))


# -- frontier ---------------------------------------------------------------------------------------------


@lab_app.command("frontier")
def lab_frontier(
    path: o.SourcePath,
    question: Annotated[str | None, o.arg("Without one: a whole question set.", "[QUESTION]")] = None,
    questions: o.Questions = None,
    budget: Annotated[
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
    policy: o.PolicyName = DEFAULTS.policy,
    set_: o.Sets = None,
    embedder: o.EmbedderName = DEFAULTS.embedder,
    limit: o.Limit = None,
    out: Annotated[Path | None, o.opt("Of a set: folder of ledger, frontier.json, .png and .html.")] = None,
    resume: o.Resume = False,
    json_output: o.Json = False,
) -> None:
    """Show what other settings would select, each with its certificate.

    With QUESTION: where the selection changes from budget to budget, and what more tokens bring. Without one:
    evidence, tokens, diversity and robustness of every setting on a question set, and a page to browse.
    """
    given = SimpleNamespace(**locals())
    output = open_output(json_output, None if out is None else kept_rows(out))
    if question is None and out is None:
        raise InputError("give a QUESTION, or --out FOLDER for a question set")
    budgets, chosen = collect(
        lambda: o.whole_numbers(
            "--budget", budget or ("128,256,512" if question is None else f"{DEFAULTS.budget}")
        ),
        lambda: Chosen.of(policy, set_).whole(),
    )
    if question is not None:
        if len(budgets) > 1:
            raise InputError(f"--budget must be one number for a question, got {budget}")
        _frontier_of_question(output, chosen, budgets[0], given)
        return
    grid = {
        "budgets": budgets, "reference_radius": reference_radius, "draws": draws, "limit": limit,
        "weights": o.numbers("--weights", weights or "0,0.1"),
        "radii": o.numbers("--radii", radii or "0,0.05"),
        "penalties": tuple(_penalty(part) for part in penalties.split(",") if part.strip()),
        "token_prices": o.numbers("--token-prices", token_prices),
    }  # fmt: skip
    _frontier_of_set(output, chosen, grid, given)


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


def _frontier_of_question(output: Output, chosen: Chosen, budget: int, given: SimpleNamespace) -> None:
    from mio_rag.cli.show import print_query
    from mio_rag.frontier.plot import plot_query
    from mio_rag.frontier.query import query_frontier
    from mio_rag.pictures import check_figure
    from mio_rag.retrieval import Retriever
    from mio_rag.sources import kind_of

    up_to, plot = given.up_to, given.plot

    def reach() -> None:
        if up_to is not None and up_to < budget:
            raise InputError(f"--up-to {up_to} is below --budget {budget}: the path ends there")

    lambdas, radius_list, *_ = collect(
        lambda: _grid("--weights", given.weights or "0,0.05,0.1,0.2,0.4"),
        lambda: _grid("--radii", given.radii or "0,0.05,0.1"),
        lambda: o.check_question(given.question),
        reach,
        lambda: None if plot is None else check_figure(plot),
        lambda: kind_of(given.path),
    )
    found = o.opened(output, given.path, given.embedder)
    o.check_fits(chosen.selector, found.index)
    retriever = Retriever.of(found.index, chosen.policy.search.retrieval)
    candidates = retriever.retrieve(given.question)
    with o.progress("tokens settled", up_to or max(2 * budget, budget + 200)) as advance:
        data = query_frontier(
            candidates, chosen.selector, budget, up_to=up_to, weights=lambdas, radii=radius_list,
            counter=retriever.counter, progress=advance,
        ).to_dict()  # fmt: skip
    if plot is not None:
        plot_query(data, plot)
    drawn = [] if plot is None else [f"\n{plot}"]
    output.result(data, lambda: print_query(output.console, data), *drawn)


def _frontier_of_set(output: Output, chosen: Chosen, grid: dict[str, Any], given: SimpleNamespace) -> None:
    from mio_rag.cli.show import print_points, print_prices
    from mio_rag.evaluation.ledger import check_folder
    from mio_rag.frontier.dataset import FrontierSettings
    from mio_rag.frontier.run import data_frontier
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.sources import kind_of

    out = given.out
    spec = None if given.model in (None, "none") else o.reader_spec(given.model)
    if "selection.radius" in chosen.given:
        raise InputError("selection.radius does not apply to a grid: --radii lists its radii")
    options = replace(chosen.selector.options, relative_gap=0.001)
    settings, *_ = collect(
        lambda: FrontierSettings(
            **grid, selector=chosen.selector.replace(options=options),
            max_tokens=chosen.policy.limits.max_tokens, seed=chosen.seed,
            retrieval=chosen.policy.search.retrieval,
        ),
        lambda: None if spec is None else check_generator(spec),
        lambda: check_folder(out, given.resume),
        lambda: kind_of(given.path),
    )  # fmt: skip
    found = o.opened(output, given.path, given.embedder)
    dataset, index = o.questions_of(found, given.questions), found.index
    o.check_fits(settings.selector, index)
    reader = None if spec is None else make_generator(spec)
    try:
        with o.progress("questions", len(dataset.questions[: settings.limit])) as advance:
            made = data_frontier(
                dataset,
                index,
                settings,
                out,
                generator=reader,
                slack=given.slack,
                resume=given.resume,
                progress=advance,
            )
    finally:
        if reader is not None:
            reader.close()
    price, console = made.price, output.console
    told = {"out": str(out), "run": made.run, "points": made.points, "operating_point": made.chosen}
    output.result(
        told if price is None else {**told, "price": price},
        lambda: print_points(console, made.points, made.chosen),
        *([] if price is None else [lambda: print_prices(console, price)]),
        f"\npage: {out / 'frontier.html'}",
    )


# -- radius -----------------------------------------------------------------------------------------------


@lab_app.command("radius")
def lab_radius(
    path: o.SourcePath,
    method: Annotated[
        str, o.opt("sq8, pq:M or pq:MxBITS (compression), chunks, encoder (--other) or paraphrases (--file).")
    ] = "sq8",
    other: Annotated[str | None, o.opt("Second embedder of --method encoder.")] = None,
    file: Annotated[
        Path | None, o.opt('JSON lines {"texts": ["...", "..."]}: texts that mean the same.', "--file")
    ] = None,
    quantile: Annotated[float, o.opt("Share of the errors that the radius must cover.")] = 0.9,
    embedder: o.EmbedderName = DEFAULTS.embedder,
    limit: Annotated[int, o.opt("Passages to embed for chunks and encoder.")] = 1000,
    seed: Annotated[int, o.opt("Seed of the sample.")] = 0,
    out: Annotated[Path | None, o.opt("File (.npz) of radii, for selection.passage_radii.")] = None,
    json_output: o.Json = False,
) -> None:
    """Measure the error of embeddings, for selection.radius."""
    from mio_rag.retrieval.radius import check_method, measure_radius, write_radii
    from mio_rag.sources import kind_of

    output = open_output(json_output)
    collect(
        lambda: kind_of(path),
        lambda: check_method(method, other, file, quantile, limit, out),
        lambda: o.at_least(limit=(limit, 1)),
    )
    index: CorpusIndex = o.opened(output, path, embedder).index
    with o.progress(f"measuring by {method}", limit) as advance:
        found = measure_radius(
            index, method, other=other, file=file, limit=limit, seed=seed, progress=advance
        )
    summary = {"index": path, **found.to_dict(quantile)}
    rest = 0
    if out is not None:
        summary["not_measured"] = rest = write_radii(out, found, index.ids, summary["radius"])
    lines = [
        f"{found.errors.size} errors by {found.method}: median {summary['median']:.4f}, "
        f"{quantile:.0%} within {summary['radius']:.4f}, largest {summary['largest']:.4f}\n"
        f"use --set selection.radius={summary['radius']:.4f}  ({found.meaning})"
    ]
    if rest:
        of = len(index)
        lines.append(f"not measured: {rest} of {of} passages; {out} gives them {summary['radius']:.4f}")
    output.result(summary, *lines)


# -- warmup -----------------------------------------------------------------------------------------------


@lab_app.command("warmup")
def lab_warmup(json_output: o.Json = False) -> None:
    """Compile the kernels in advance (needed once per machine)."""
    from mio_rag.solvers.branch_and_bound import warmup as compile_kernel
    from mio_rag.solvers.mdp import warmup as compile_processes

    output = open_output(json_output)
    seconds = compile_kernel() + compile_processes()
    output.result({"seconds": seconds}, f"the kernels are ready ({seconds:.1f} s)")
