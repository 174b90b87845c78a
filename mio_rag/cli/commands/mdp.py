"""The commands ``mio-rag mdp``: solve the retrieve/reason/stop process, calibrate it, replay what was
done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from mio_rag.cli.options.shared import Json
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError

__all__ = ["mdp_app"]

mdp_app = typer.Typer(
    help="Retrieve, reason or stop, by a decision process. That of `--controller mdp`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file with parameters of the model; options given here override it."),
]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", help="Draw quality, value and policy over U: .png, .svg or .pdf.")
]


@mdp_app.command("solve")
def solve_command(
    config: Config = None,
    horizon: Annotated[
        str | None,
        typer.Option("--horizon", help="Decisions until the answer is due; inf: as published. [10]"),
    ] = None,
    quality: Annotated[
        str | None, typer.Option("--quality", help="Quality over U: linear, log or exp. [linear]")
    ] = None,
    k: Annotated[float | None, typer.Option("--k", help="Steepness of exp. [1]")] = None,
    gamma: Annotated[float | None, typer.Option("--gamma", help="Discount, in (0, 1]. [0.98]")] = None,
    grid: Annotated[int | None, typer.Option("--grid", help="Points of the grid over U. [1001]")] = None,
    json_output: Json = False,
    plot: PlotFile = None,
) -> None:
    """Solve the decision process and describe its policy."""
    from mio_rag.cli.show.control import print_plan
    from mio_rag.learning.mdp import model_of, sensitivity, solve_plan, structure, to_json

    output = open_output(json_output)
    given: dict[str, Any] = {"quality": quality, "k": k, "discount": gamma, "grid": grid}
    if horizon is not None:
        given["horizon"] = _horizon(horizon)
    if plot is not None:
        from mio_rag.control.mdp.plot import plot_plan
        from mio_rag.pictures import check_figure

        check_figure(plot)
    model = model_of(config, {name: value for name, value in given.items() if value is not None})
    if k is not None and model.quality != "exp":
        raise InputError(f"--k={k:g} is the steepness of exp, but the quality is {model.quality}")
    start = time.perf_counter()
    plan = solve_plan(model)
    shape, changes = structure(plan), sensitivity(plan)
    seconds = time.perf_counter() - start
    if plot is not None:
        plot_plan(plan, plot)
    if json_output:
        output.json(to_json(plan, shape, changes, seconds))
        return
    print_plan(output.console, plan, shape, changes)
    if plot is not None:
        output.console.print(f"\nplot: {plot}", soft_wrap=True)


Traces = Annotated[Path, typer.Argument(help="traces.jsonl, or the folder of an evaluation that holds it.")]


@mdp_app.command("replay")
def replay_command(
    traces: Traces,
    question: Annotated[
        str | None,
        typer.Option("--question", help="Show the traces of this question (id or text) in full."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Recompute every decision of recorded runs and report differences."""
    from mio_rag.cli.show.control import print_outcome
    from mio_rag.control.mdp.replay import replay
    from mio_rag.control.mdp.trace import ProcessTrace
    from mio_rag.control.trace import read_traces

    output = open_output(json_output)
    found = [t for t in read_traces(traces, ProcessTrace) if question in (None, t.question_id, t.question)]
    if not found:
        raise InputError(f"'{traces}' holds no trace of question '{question}'")
    differing: list[dict[str, Any]] = [
        {
            "question": t.question_id,
            "controller": t.controller,
            "budget_tokens": t.budget_tokens,
            "differs": wrong,
        }
        for t in found
        if (wrong := replay(t))
    ]
    if json_output:
        shown = [t.to_dict() for t in found] if question is not None else []
        output.json({"traces": len(found), "differing": differing, "shown": shown})
    else:
        for trace in found if question is not None else []:
            output.console.print(f"\n{trace.controller}: {trace.question}", style="bold")
            print_outcome(output.console, trace)
        output.console.print(f"{len(found)} traces replayed, {len(differing)} differ")
        for entry in differing[:10]:
            output.console.print(f"{entry['question']}, {entry['controller']}: {entry['differs'][0]}")
    if differing:
        raise typer.Exit(1)


@mdp_app.command("calibrate")
def calibrate_command(
    traces: Traces,
    config: Config = None,
    uncertainty: Annotated[
        str | None, typer.Option("--uncertainty", help="Which measured U: confidence or evidence.")
    ] = None,
    bins: Annotated[
        int, typer.Option("--bins", help="Number of equal bins of U with separate parameters.")
    ] = 4,
    min_drop: Annotated[
        float, typer.Option("--min-drop", help="Minimum fall of U for a retrieval to count as a success.")
    ] = 0.01,
    cost_by: Annotated[str, typer.Option("--cost-by", help="Unit of cost: seconds or tokens.")] = "seconds",
    price: Annotated[
        float | None,
        typer.Option("--price", help="Quality equivalent of one second or token. [keeps reason_cost]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write the calibrated process as TOML, for --config here and --mdp-config elsewhere.",
        ),
    ] = None,
    by_bins: Annotated[
        bool, typer.Option("--by-bins", help="Write the process with parameters by bin of U to --out.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Estimate the process from recorded runs. Tests its assumptions, and solves it again."""
    import dataclasses

    from mio_rag.cli.show.control import print_calibration
    from mio_rag.control.mdp.trace import ProcessTrace
    from mio_rag.control.trace import read_traces
    from mio_rag.files import write_atomically
    from mio_rag.learning.mdp import model_of, model_to_toml, solve_plan, structure, to_json
    from mio_rag.learning.mdp_calibration import Unit, calibrate

    output = open_output(json_output)
    if by_bins and out is None:
        raise InputError("--by-bins needs --out, the file to write")
    given = model_of(config, {})
    found = calibrate(
        read_traces(traces, ProcessTrace),
        given,
        gauge=uncertainty,
        bins=bins,
        min_drop=min_drop,
        cost_by=cast("Unit", cost_by),
        price=price,
    )
    if out is not None:
        write_atomically(out, model_to_toml(found.by_bins if by_bins else found.model))
    plans = {
        name: solve_plan(model)
        for name, model in (("given", given), ("calibrated", found.model), ("by bins", found.by_bins))
    }
    shapes = {name: structure(plan) for name, plan in plans.items()}
    if json_output:
        data = dataclasses.asdict(found)
        data |= {"model": found.model.to_dict(), "by_bins": found.by_bins.to_dict()}
        solved = {name: to_json(plan, shapes[name]) for name, plan in plans.items()}
        output.json({**data, "solved": solved, "out": None if out is None else str(out)})
        return
    print_calibration(output.console, found, shapes)
    if out is not None:
        output.console.print(f"\nprocess: {out}", soft_wrap=True)


def _horizon(text: str) -> int | str:
    if text.strip() == "inf":
        return "inf"
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"--horizon={text!r} must be a whole number of decisions, or inf") from error
