"""The optimizer's bench: lab solve, frontier, radius, warmup."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli.chosen import Chosen
from mio_rag.cli.options import (
    EmbedderName,
    Json,
    Limit,
    PolicyName,
    Questions,
    Resume,
    Sets,
    SourcePath,
    at_least,
    check_fits,
    check_question,
    numbers,
    opened,
    opt,
    pairs,
    progress,
    questions_of,
    reader_spec,
    whole_numbers,
)
from mio_rag.cli.output import Output, kept_rows, open_output
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, SolverError, collect

if TYPE_CHECKING:
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.selection.selector import Penalty
    from mio_rag.sources import Opened

lab_app = typer.Typer(
    help="The optimizer's bench: programs, other settings, errors of embeddings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


# -- solve ------------------------------------------------------------------------------------------------


@lab_app.command("solve")
def lab_solve(
    program: Annotated[
        str,
        typer.Argument(
            help="A selection program (JSON; - for stdin), or a decision process: a TOML file, or mdp.",
            show_default=False,
        ),
    ],
    solver: Annotated[
        str,
        opt("auto, branch_and_bound, exhaustive, highs, highs-glover, cpsat, pyomo[:NAME], or a heuristic."),
    ] = "auto",
    time_limit: Annotated[float, opt("Seconds; then the certified gap is reported.")] = 10.0,
    relative_gap: Annotated[float, opt("Stop at this proven relative gap. 0: exact.")] = DEFAULTS.gap,
    threads: Annotated[int, opt("Threads of the solver.")] = 1,
    seed: Annotated[int, opt("Seed of the solver.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of a process: horizon, quality, k, discount, grid."),
    ] = None,
    json_output: Json = False,
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
    for name, text in pairs("--set", sets).items():
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
    if output.as_json:
        output.json(to_json(plan, shape, changes, seconds))
    else:
        print_plan(output.console, plan, shape, changes)


# -- frontier ---------------------------------------------------------------------------------------------


@lab_app.command("frontier")
def lab_frontier(
    path: SourcePath,
    question: Annotated[
        str | None,
        typer.Argument(metavar="[QUESTION]", help="Without one: a whole question set.", show_default=False),
    ] = None,
    questions: Questions = None,
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", help="Token budgets. [default: 1024; a set: 128,256,512]")
    ] = None,
    up_to: Annotated[int | None, opt("Of a question: largest budget. [default: twice the budget]")] = None,
    plot: Annotated[Path | None, opt("Of a question: draw it into this .png, .svg or .pdf file.")] = None,
    weights: Annotated[str | None, opt("Redundancy weights. [default: 0,0.05,0.1,0.2,0.4; 0,0.1]")] = None,
    radii: Annotated[str | None, opt("Radii of embeddings. [default: 0,0.05,0.1; 0,0.05]")] = None,
    penalties: Annotated[str, opt("Of a set: passage penalties, adaptive or auto.")] = "adaptive,0.05",
    token_prices: Annotated[str, opt("Of a set: prices of a token that all questions share.")] = "",
    reference_radius: Annotated[float, opt("Of a set: error for measuring robustness.")] = 0.05,
    draws: Annotated[int, opt("Of a set: random errors per question for stability. 0: none.")] = 3,
    slack: Annotated[float, opt("Of a set: evidence to trade for fewer tokens.")] = 0.02,
    model: Annotated[str | None, opt("Of a set: also answer, and score answers.")] = None,
    policy: PolicyName = DEFAULTS.policy,
    set_: Sets = None,
    embedder: EmbedderName = DEFAULTS.embedder,
    limit: Limit = None,
    out: Annotated[Path | None, opt("Of a set: folder of ledger, frontier.json, .png and .html.")] = None,
    resume: Resume = False,
    json_output: Json = False,
) -> None:
    """Show what other settings would select, each with its certificate.

    With QUESTION: where the selection changes from budget to budget, and what more tokens bring. Without one:
    evidence, tokens, diversity and robustness of every setting on a question set, and a page to browse.
    """
    output = open_output(json_output, None if out is None else kept_rows(out))
    if question is None and out is None:
        raise InputError("give a QUESTION, or --out FOLDER for a question set")
    budgets, chosen = collect(
        lambda: whole_numbers(
            "--budget", budget or ("128,256,512" if question is None else f"{DEFAULTS.budget}")
        ),
        lambda: Chosen.of(policy, set_).whole(),
    )
    if question is not None:
        if len(budgets) > 1:
            raise InputError(f"--budget must be one number for a question, got {budget}")
        _frontier_of_question(
            output, path, question, chosen, budgets[0], up_to, weights or "0,0.05,0.1,0.2,0.4",
            radii or "0,0.05,0.1", plot, embedder,
        )  # fmt: skip
        return
    assert out is not None
    grid = {
        "budgets": budgets, "reference_radius": reference_radius, "draws": draws, "limit": limit,
        "weights": numbers("--weights", weights or "0,0.1"), "radii": numbers("--radii", radii or "0,0.05"),
        "penalties": tuple(_penalty(part) for part in penalties.split(",") if part.strip()),
        "token_prices": numbers("--token-prices", token_prices),
    }  # fmt: skip
    _frontier_of_set(output, path, questions, chosen, grid, slack, model, out, resume, embedder)


def _penalty(text: str) -> Penalty:
    if text.strip() in ("adaptive", "auto"):
        return cast("Penalty", text.strip())
    return numbers("--penalties", text)[0]


def _grid(option: str, text: str) -> tuple[float, ...]:
    from mio_rag.frontier.query import check_values

    found = numbers(option, text)
    if problems := check_values(option, found):
        raise InputError(problems)
    return found


def _frontier_of_question(
    output: Output,
    path: str,
    question: str,
    chosen: Chosen,
    budget: int,
    up_to: int | None,
    weights: str,
    radii: str,
    plot: Path | None,
    embedder: str,
) -> None:
    from mio_rag.cli.show import print_query
    from mio_rag.frontier.plot import plot_query
    from mio_rag.frontier.query import query_frontier
    from mio_rag.pictures import check_figure
    from mio_rag.retrieval import Retriever
    from mio_rag.sources import kind_of

    def reach() -> None:
        if up_to is not None and up_to < budget:
            raise InputError(f"--up-to {up_to} is below --budget {budget}: the path ends there")

    lambdas, radius_list, *_ = collect(
        lambda: _grid("--weights", weights),
        lambda: _grid("--radii", radii),
        lambda: check_question(question),
        reach,
        lambda: None if plot is None else check_figure(plot),
        lambda: kind_of(path),
    )
    found = opened(output, path, embedder)
    check_fits(chosen.selector, found.index)
    retriever = Retriever.of(found.index, chosen.policy.search.retrieval)
    candidates = retriever.retrieve(question)
    with progress("tokens settled", up_to or max(2 * budget, budget + 200)) as advance:
        data = query_frontier(
            candidates, chosen.selector, budget, up_to=up_to, weights=lambdas, radii=radius_list,
            counter=retriever.counter, progress=advance,
        ).to_dict()  # fmt: skip
    if plot is not None:
        plot_query(data, plot)
    if output.as_json:
        output.json(data)
        return
    print_query(output.console, data)
    if plot is not None:
        output.console.print(f"\n{plot}", soft_wrap=True)


def _frontier_of_set(
    output: Output,
    path: str,
    questions: str | None,
    chosen: Chosen,
    grid: dict[str, Any],
    slack: float,
    model: str | None,
    out: Path,
    resume: bool,
    embedder: str,
) -> None:
    from mio_rag.cli.show import print_points, print_prices
    from mio_rag.evaluation.ledger import check_folder
    from mio_rag.frontier.dataset import FrontierSettings
    from mio_rag.frontier.run import data_frontier
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.sources import kind_of

    spec = None if model in (None, "none") else reader_spec(model)
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
        lambda: check_folder(out, resume),
        lambda: kind_of(path),
    )  # fmt: skip
    found: Opened = opened(output, path, embedder)
    dataset, index = questions_of(found, questions), found.index
    check_fits(settings.selector, index)
    reader = None if spec is None else make_generator(spec)
    try:
        with progress("questions", len(dataset.questions[: settings.limit])) as advance:
            made = data_frontier(
                dataset, index, settings, out, generator=reader, slack=slack, resume=resume, progress=advance
            )
    finally:
        if reader is not None:
            reader.close()
    if output.as_json:
        price = {} if made.price is None else {"price": made.price}
        told = {"out": str(out), "run": made.run, "points": made.points, "operating_point": made.chosen}
        output.json({**told, **price})
        return
    print_points(output.console, made.points, made.chosen)
    if made.price is not None:
        print_prices(output.console, made.price)
    output.console.print(f"\npage: {out / 'frontier.html'}", soft_wrap=True)


# -- radius -----------------------------------------------------------------------------------------------


@lab_app.command("radius")
def lab_radius(
    path: SourcePath,
    method: Annotated[
        str,
        opt("sq8, pq:M or pq:MxBITS (compression), chunks, encoder (--other) or paraphrases (--file)."),
    ] = "sq8",
    other: Annotated[str | None, opt("Second embedder of --method encoder.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help='JSON lines {"texts": ["...", "..."]}: texts that mean the same.'),
    ] = None,
    quantile: Annotated[float, opt("Share of the errors that the radius must cover.")] = 0.9,
    embedder: EmbedderName = DEFAULTS.embedder,
    limit: Annotated[int, opt("Passages to embed for chunks and encoder.")] = 1000,
    seed: Annotated[int, opt("Seed of the sample.")] = 0,
    out: Annotated[Path | None, opt("File (.npz) of radii, for selection.passage_radii.")] = None,
    json_output: Json = False,
) -> None:
    """Measure the error of embeddings, for selection.radius."""
    from mio_rag.retrieval.radius import check_method, measure_radius, write_radii
    from mio_rag.sources import kind_of

    output = open_output(json_output)
    collect(
        lambda: kind_of(path),
        lambda: check_method(method, other, file, quantile, limit, out),
        lambda: at_least(limit=(limit, 1)),
    )
    index: CorpusIndex = opened(output, path, embedder).index
    with progress(f"measuring by {method}", limit) as advance:
        found = measure_radius(
            index, method, other=other, file=file, limit=limit, seed=seed, progress=advance
        )
    summary = {"index": path, **found.to_dict(quantile)}
    rest = 0
    if out is not None:
        summary["not_measured"] = rest = write_radii(out, found, index.ids, summary["radius"])
    if json_output:
        output.json(summary)
        return
    output.console.print(
        f"{found.errors.size} errors by {found.method}: median {summary['median']:.4f}, "
        f"{quantile:.0%} within {summary['radius']:.4f}, largest {summary['largest']:.4f}\n"
        f"use --set selection.radius={summary['radius']:.4f}  ({found.meaning})",
        soft_wrap=True,
    )
    if rest:
        output.console.print(
            f"not measured: {rest} of {len(index)} passages; {out} gives them {summary['radius']:.4f}",
            soft_wrap=True,
        )


# -- warmup -----------------------------------------------------------------------------------------------


@lab_app.command("warmup")
def lab_warmup(json_output: Json = False) -> None:
    """Compile the kernels in advance (needed once per machine)."""
    from mio_rag.solvers.branch_and_bound import warmup as compile_kernel
    from mio_rag.solvers.mdp import warmup as compile_processes

    output = open_output(json_output)
    seconds = compile_kernel() + compile_processes()
    if json_output:
        output.json({"seconds": seconds})
    else:
        output.console.print(f"the kernels are ready ({seconds:.1f} s)")
