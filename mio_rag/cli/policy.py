"""Commands about policies and plans: policy, plan, mdp."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli.control_options import ModelOptions
from mio_rag.cli.options import Json, MaxTokens, spread
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.learning.planner import Encoder
    from mio_rag.session.workflow import Workflow


# -- policy ----------------------------------------------------------------------------------------------

policy_app = typer.Typer(
    help="Policies: who decides what on a question's way, at one price.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_Named = Annotated[str, typer.Argument(metavar="FILE|PRESET", help="TOML file of a policy, or a preset.")]
_Index = Annotated[
    Path | None, typer.Option("--index", help="Also hold what was learned against this index.")
]


@policy_app.command("check")
def check_command(policy: _Named, index: _Index = None, json_output: Json = False) -> None:
    """Find everything that is wrong with a policy. With its files, too; no model is loaded, nothing spent."""
    from mio_rag.cli.options import load_index
    from mio_rag.policy import read_policy
    from mio_rag.policy_files import resolve

    output = open_output(json_output)
    found = read_policy(policy)
    states, corpus = collect(lambda: resolve(found), lambda: None if index is None else load_index(index))
    if corpus is not None:
        states.check(corpus.embedder.fingerprint)
    if json_output:
        told = {"name": found.name, "sha256": states.sha256, "files": dict(states.hashes)}
        output.json({**told, "notes": list(found.notes)})
        return
    count = len(states.hashes)
    files = f", with {count} file{'s' if count > 1 else ''}" if count else ""
    output.console.print(f"{found.name} holds together{files}; content {states.sha256[:12]}", soft_wrap=True)
    for note in found.notes:
        output.console.print(f"note: {note}", soft_wrap=True, markup=False)


@policy_app.command("calibrate")
def calibrate_command(
    data: Annotated[str, typer.Argument(help="Question set with gold passages.")],
    index: Annotated[Path, typer.Option("--index", help="Index that the questions are asked of.")],
    out: Annotated[Path, typer.Option("--out", help="File for [repetition] calibration: .json.")],
    limit: Annotated[int, typer.Option("--limit", help="Most questions, drawn by seed.")] = 500,
    seed: Annotated[int, typer.Option("--seed", help="Of the questions that are drawn.")] = 0,
    json_output: Json = False,
) -> None:
    """Learn how likely the evidence is complete. From labelled questions."""
    from mio_rag.cli.options import load_index
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.corpora.load import check_source, load_questions
    from mio_rag.evaluation.fit import calibrate_completeness
    from mio_rag.retrieval.index import check_index
    from mio_rag.storage import make_parent, write_atomically

    output = open_output(json_output)
    if limit < 1:
        raise InputError(f"--limit={limit} must be >= 1")
    collect(lambda: check_source(data), lambda: check_index(index))
    questions, corpus = load_questions(data), load_index(index)
    asked = Dataset(Path(data).name, tuple(corpus.passages), questions)
    with progress_bar("reading", min(limit, len(questions))) as advance:
        found = calibrate_completeness(asked, corpus, limit=limit, seed=seed, progress=advance)
    make_parent(out)
    write_atomically(out, found.model.to_json())
    if json_output:
        output.json({"file": str(out), **found.to_dict()})
        return
    output.console.print(
        f"{found.questions} questions: on those not seen, probabilities are off by {found.error:.3f} (as "
        f"shipped: {found.shipped_error:.3f}; by chance alone, on so few: {found.chance:.3f}), Brier "
        f"{found.brier:.3f} ({found.shipped_brier:.3f})\n{out}",
        soft_wrap=True,
    )


@policy_app.command("show")
def show_command(
    policy: Annotated[
        str, typer.Argument(metavar="FILE|PRESET", help="TOML file or preset; nothing: list the presets.")
    ] = "",
    toml: Annotated[
        bool, typer.Option("--toml", help="Print the file of a preset, to begin one's own with.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Show who decides what, at which price, within which limits."""
    from mio_rag.cli.show_control import print_policy, print_presets
    from mio_rag.policies.describe import policy_json
    from mio_rag.policy import PRESETS, preset_text, read_policy
    from mio_rag.policy_files import resolve

    output = open_output(json_output)
    if not policy:
        if toml:
            raise InputError("--toml needs a policy: give its name")
        if json_output:
            output.json({"presets": dict(PRESETS)})
        else:
            print_presets(output.console, PRESETS)
        return
    if toml:
        output.console.print(preset_text(policy), end="", soft_wrap=True, markup=False, highlight=False)
        return
    found = read_policy(policy)
    states = resolve(found)
    if json_output:
        output.json(policy_json(found, states))
        return
    print_policy(output.console, found, states)


# -- plan ------------------------------------------------------------------------------------------------

plan_app = typer.Typer(
    help="Workflows: which steps, in what order, by which model.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _workflows(names: str) -> list[Workflow]:
    from mio_rag.session.workflow import NAMED, find_workflow

    given = [name.strip() for name in names.split(",") if name.strip()] or list(NAMED)
    found = collect(*((lambda name=name: find_workflow(name)) for name in given))
    if twice := {w.name for w in found if sum(other.name == w.name for other in found) > 1}:
        raise InputError(f"--workflows names {', '.join(sorted(twice))} twice")
    return found


def _embedder(name: str, index: Path | None) -> Encoder:
    from mio_rag.cli.options import load_embedder, load_index
    from mio_rag.generation.gguf import PREFIX, HiddenStates

    if name.startswith(PREFIX) and index is None:
        return HiddenStates(name.removeprefix(PREFIX))
    return load_embedder(name) if index is None else load_index(index).embedder


@plan_app.command("show")
def plan_show_command(
    workflow: Annotated[
        str, typer.Argument(help="Name of a workflow, its JSON file, or a planner's file; nothing: list all.")
    ] = "",
    json_output: Json = False,
) -> None:
    """Show a workflow or a planner. Without a name: list all workflows."""
    from mio_rag.cli.show_control import print_named, print_planner
    from mio_rag.session.workflow import NAMED, find_workflow, workflow_problems, workflow_text

    output = open_output(json_output)
    if not workflow:
        if json_output:
            output.json({"workflows": [found.to_dict() for found in NAMED.values()]})
        else:
            print_named(output.console, NAMED)
        return
    if workflow.endswith(".safetensors"):
        from mio_rag.learning.planner import planner_about, read_planner

        planner = read_planner(workflow)
        if json_output:
            output.json(planner_about(planner))
        else:
            print_planner(output.console, planner_about(planner))
        return
    found = find_workflow(workflow)
    # Which models there are, and what they cost, is known where it runs.
    if problems := workflow_problems(found, models=found.models, prices=found.models):
        raise InputError(problems)
    if json_output:
        output.json(found.to_dict())
        return
    output.console.print(workflow_text(found), soft_wrap=True, markup=False, highlight=False)


@plan_app.command("outcomes")
@spread
def outcomes_command(
    out: Annotated[Path, typer.Argument(help="Folder of the table; an interrupted run goes on there.")],
    data: Annotated[
        list[str], typer.Option("--data", help="Question set; give it once for each, with an index for each.")
    ],
    index: Annotated[
        list[Path], typer.Option("--index", help="Index that the questions of the set are asked of.")
    ],
    generator: Annotated[str, typer.Option("--generator", help="Who answers, as in ask.")] = "extractive",
    *,
    workflows: Annotated[
        str, typer.Option("--workflows", help="Comma-separated names or files. [all named ones]")
    ] = "",
    models: ModelOptions,
    limit: Annotated[int, typer.Option("--limit", help="Questions of each set, drawn by seed.")] = 50,
    skip: Annotated[
        int, typer.Option("--skip", help="Of these, so many are passed over first: for a table of others.")
    ] = 0,
    budget_tokens: Annotated[int, typer.Option("--budget-tokens", help="Largest block of evidence.")] = 256,
    max_tokens: MaxTokens = 32,
    seed: Annotated[int, typer.Option("--seed", help="Of the questions that are drawn.")] = 0,
    json_output: Json = False,
) -> None:
    """Answer every question by every workflow. Quality and costs are kept as a table."""
    from mio_rag.cli.show_control import print_table
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.corpora.load import check_source, load_questions
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.learning.outcomes import Source, collect_outcomes, data_hash, shuffled
    from mio_rag.policies.make import workflow_session
    from mio_rag.policies.setup import ControlSettings, Setup
    from mio_rag.retrieval import CorpusIndex, Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.selector import Selector
    from mio_rag.session.budget import Limits
    from mio_rag.session.loop import Session
    from mio_rag.session.models import Models
    from mio_rag.session.workflow import misfits, workflow_problems

    output = open_output(json_output)
    if len(data) != len(index):
        raise InputError(
            f"{len(data)} question sets and {len(index)} indexes: give one --index for each --data"
        )
    if limit < 1:
        raise InputError(f"--limit={limit} must be >= 1")
    if skip < 0:
        raise InputError(f"--skip={skip} must be >= 0")
    chosen, settings, *_ = collect(
        lambda: _workflows(workflows),
        models.settings,
        lambda: check_generator(generator),
        *((lambda source=source: check_source(source)) for source in data),
        *((lambda folder=folder: check_index(folder)) for folder in index),
    )
    told = {"models": tuple(settings.models), "prices": tuple(settings.prices), "depth": settings.depth}
    problems = [p for w in chosen for p in workflow_problems(w, **told)]
    if settings.prices and "reader" not in settings.prices:
        problems.append(
            "the reader has no price, so a table could not hold dollars: give --model-price reader=IN,OUT"
        )
    if problems:
        raise InputError(problems)
    reader = make_generator(generator)
    opened = Models(settings.models)
    try:
        sources = []
        for name, folder in zip(data, index, strict=True):
            corpus, selector = CorpusIndex.load(folder), Selector()
            if problems := misfits(chosen, corpus, selector):
                raise InputError([f"{folder}: {problem}" for problem in problems])
            control = ControlSettings(limits=Limits(40, 20_000, 1e6), kinds={"workflow": settings.to_dict()})
            setup = Setup(control, Retriever(corpus, counter=reader), selector, max_tokens)

            def session(name: str, workflow: Workflow, setup: Setup = setup) -> Session:
                return workflow_session(name, workflow, setup, opened)

            known = load_questions(name)
            questions = shuffled(known, limit, seed, skip)
            if not questions:
                raise InputError(f"--skip={skip} leaves none of the {len(known)} questions of '{name}'")
            sources.append(Source(Path(name).name, questions, session, settings, data_hash(corpus, known)))
        total = sum(len(source.questions) for source in sources)
        with progress_bar("answering", total) as advance:
            table = collect_outcomes(
                out, sources, chosen, reader, budget_tokens=budget_tokens,
                progress=lambda name, done, of: advance(1, name),
            )  # fmt: skip
    finally:
        reader.close()
        opened.close()
    if json_output:
        output.json({"questions": len(table), "workflows": list(table.actions), "table": str(out)})
        return
    print_table(output.console, table)
    output.console.print(f"\ntable: {out / 'outcomes.parquet'}", soft_wrap=True)


@plan_app.command("train")
def train_command(
    folder: Annotated[Path, typer.Argument(help="Folder that `plan outcomes` wrote.")],
    out: Annotated[Path, typer.Option("--out", help="The planner's file: .safetensors.")],
    method: Annotated[str, typer.Option("--method", help="regression or ppo.")] = "regression",
    mode: Annotated[
        str, typer.Option("--mode", help="once: choose a workflow; again: look after every executor.")
    ] = "once",
    alpha: Annotated[
        str, typer.Option("--alpha", help="With ppo: comma-separated prices to train for.")
    ] = "0.1",
    cost: Annotated[str, typer.Option("--cost", help="What is counted: tokens or dollars.")] = "tokens",
    updates: Annotated[int, typer.Option("--updates", help="With ppo: most rounds of training.")] = 150,
    seed: Annotated[int, typer.Option("--seed", help="Of the split and of training.")] = 0,
    test: Annotated[float, typer.Option("--test", help="Share of the questions held out, in [0, 1).")] = 0.4,
    embedder: Annotated[
        str,
        typer.Option("--embedder", help="As for index; or hidden:FILE.gguf: its last hidden state."),
    ] = "minilm",
    index: Annotated[
        Path | None, typer.Option("--index", help="Instead of --embedder: an index, whose embedder is taken.")
    ] = None,
    workflow_file: Annotated[
        list[str] | None, typer.Option("--workflow-file", help="JSON of a workflow in the table; repeatable.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="With ppo: an interrupted training goes on there."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Learn which workflow to choose for which question. From a table of outcomes."""
    from mio_rag.cli.options import numbers
    from mio_rag.cli.show_control import print_points
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.learning.planner import write_planner
    from mio_rag.learning.planner_training import fixed_points, frontier, read_table, split_of, train_planner
    from mio_rag.learning.ppo import PPOSettings

    output = open_output(json_output)
    if not 0 <= test < 1:
        raise InputError(f"--test={test:g} must be in [0, 1)")
    if method != "ppo" and (
        given := [n for n, v in (("--alpha", alpha != "0.1"), ("--checkpoint", checkpoint)) if v]
    ):
        raise InputError(
            f"{' and '.join(given)}: without effect on --method {method}; leave out, or choose ppo"
        )
    prices = numbers("--alpha", alpha)
    settings = PPOSettings(alphas=prices, updates=updates, seed=seed)
    table = read_table(folder, _embedder(embedder, index), workflow_file or ())
    learned, held = split_of(table.outcomes, test, seed)
    if len(learned) < 10 <= len(learned) + len(held):
        raise InputError(
            f"{len(learned)} of {len(learned) + len(held)} questions are left to learn from, 10 are needed: "
            f"hold out fewer than --test {test:g}, or add questions to the table"
        )
    with progress_bar("training", updates if method == "ppo" else 1) as advance:
        made = train_planner(
            table, learned, method=method, mode=mode, cost=cost, ppo=settings, checkpoint=checkpoint,
            progress=lambda update, reward: advance(1),
        )  # fmt: skip
    write_planner(made.planner, out)
    planner = made.planner
    points = []
    if len(held):
        experience = table.experience(planner.tree, planner.features, held, planner.unit, planner.cost)
        asked = prices if method == "ppo" else (0.0, 0.05, 0.1, 0.2, 0.5)
        points = [*fixed_points(experience, asked[0]), *frontier(planner, experience, asked)]
    if json_output:
        output.json(
            {
                "file": str(out), "learned_from": len(learned), "held_out": len(held),
                "unit": planner.unit, "points": [point.to_dict() for point in points], "curve": made.curve,
            }
        )  # fmt: skip
        return
    output.console.print(f"learned from {len(learned)} questions, held out {len(held)}; a cost of 1 is "
                         f"{planner.unit:.4g} {planner.cost}")  # fmt: skip
    if (report := planner.about.get("report", {})).get("sets", 1) > 1:
        output.console.print(
            f"{report['sets']:.0f} question sets: it names the right one for {report['sets_told']:.0%} of "
            "the questions that it has not learned from"
        )
    if points:
        print_points(output.console, points)
    output.console.print(f"\nplanner: {out}", soft_wrap=True)


@plan_app.command("evaluate")
def evaluate_command(
    planner: Annotated[Path, typer.Argument(help="File that `plan train` wrote.")],
    folder: Annotated[Path, typer.Argument(help="Folder that `plan outcomes` wrote.")],
    alpha: Annotated[str, typer.Option("--alpha", help="Comma-separated prices.")] = "0,0.05,0.1,0.2,0.5",
    held_out: Annotated[
        bool, typer.Option("--held-out/--all", help="Only the questions that training has not seen.")
    ] = True,
    embedder: Annotated[
        str,
        typer.Option("--embedder", help="As for index; or hidden:FILE.gguf: its last hidden state."),
    ] = "minilm",
    index: Annotated[
        Path | None, typer.Option("--index", help="Instead of --embedder: an index, whose embedder is taken.")
    ] = None,
    workflow_file: Annotated[
        list[str] | None, typer.Option("--workflow-file", help="JSON of a workflow in the table; repeatable.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Replay a planner on a table of outcomes. Quality and cost at every price, against fixed workflows."""
    import numpy as np

    from mio_rag.cli.options import numbers
    from mio_rag.cli.show_control import print_points
    from mio_rag.learning.planner import read_planner
    from mio_rag.learning.planner_training import fixed_points, frontier, never_seen, read_table

    output = open_output(json_output)
    prices = numbers("--alpha", alpha)
    found = read_planner(planner)
    for price in prices:
        found.checked_alpha(price)
    table = read_table(folder, _embedder(embedder, index), workflow_file or ())
    if table.embedder != found.embedder:
        raise InputError(f"the planner was trained with embedder {found.embedder}, here is {table.embedder}")
    places = never_seen(table.outcomes, found) if held_out else np.arange(len(table.outcomes))
    if not len(places):
        raise InputError(
            f"the planner has learned from all {len(table.outcomes)} questions: train it with --test above "
            "0, or give --all"
        )
    if [w.sha256 for w in table.workflows] != [w.sha256 for w in found.tree.workflows]:
        names = ", ".join(w.name for w in found.tree.workflows)
        raise InputError(f"the planner chooses among other workflows than the table holds: {names}")
    experience = table.experience(found.tree, found.features, places, found.unit, found.cost)
    points = [*fixed_points(experience, prices[0]), *frontier(found, experience, prices)]
    if json_output:
        output.json({"questions": len(places), "points": [point.to_dict() for point in points]})
        return
    output.console.print(f"{len(places)} questions; a cost of 1 is {found.unit:.4g} {found.cost}")
    print_points(output.console, points)


@plan_app.command("replay")
def plan_replay_command(
    traces: Annotated[Path, typer.Argument(help="Traces that ask --trace or evaluate wrote.")],
    planner: Annotated[
        Path | None, typer.Option("--planner", help="Who decided; without it only the books are checked.")
    ] = None,
    embedder: Annotated[
        str,
        typer.Option("--embedder", help="As for index; or hidden:FILE.gguf: its last hidden state."),
    ] = "minilm",
    index: Annotated[
        Path | None, typer.Option("--index", help="Instead of --embedder: an index, whose embedder is taken.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Make the decisions of traces again. Without a model; status 1 where something comes out differently."""
    from mio_rag.learning.planner import read_planner, replay
    from mio_rag.session.trace import read_traces

    output = open_output(json_output)
    found = None if planner is None else read_planner(planner)
    given = read_traces(traces, ("workflow",), "workflows")
    encoder = _embedder(embedder, index) if found is not None and found.embedder else None
    wrong = {trace.question_id: problems for trace in given if (problems := replay(trace, found, encoder))}
    if json_output:
        output.json({"traces": len(given), "wrong": wrong})
    else:
        for name, problems in wrong.items():
            output.console.print(f"{name}: {'; '.join(problems)}", soft_wrap=True, markup=False)
        output.console.print(f"{len(given)} traces, {len(wrong)} of which come out differently")
    if wrong:
        raise typer.Exit(1)


# -- mdp -------------------------------------------------------------------------------------------------

mdp_app = typer.Typer(
    help="Retrieve, reason or stop, by a decision process. That of `--controller mdp`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file with parameters of the model; options given here override it."),
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
) -> None:
    """Solve the decision process and describe its policy."""
    from mio_rag.cli.show_control import print_plan
    from mio_rag.learning.mdp import model_of, sensitivity, solve_plan, structure, to_json

    output = open_output(json_output)
    given: dict[str, Any] = {"quality": quality, "k": k, "discount": gamma, "grid": grid}
    if horizon is not None:
        given["horizon"] = _horizon(horizon)
    model = model_of(config, {name: value for name, value in given.items() if value is not None})
    if k is not None and model.quality != "exp":
        raise InputError(f"--k={k:g} is the steepness of exp, but the quality is {model.quality}")
    start = time.perf_counter()
    plan = solve_plan(model)
    shape, changes = structure(plan), sensitivity(plan)
    seconds = time.perf_counter() - start
    if json_output:
        output.json(to_json(plan, shape, changes, seconds))
        return
    print_plan(output.console, plan, shape, changes)


Traces = Annotated[Path, typer.Argument(help="traces.jsonl, or the folder of an evaluation that holds it.")]


@mdp_app.command("replay")
def mdp_replay_command(
    traces: Traces,
    question: Annotated[
        str | None,
        typer.Option("--question", help="Show the traces of this question (id or text) in full."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Recompute every decision of recorded runs and report differences."""
    from mio_rag.cli.show_control import print_outcome
    from mio_rag.learning.rules import replay
    from mio_rag.session.trace import read_traces

    output = open_output(json_output)
    every = read_traces(traces, ("signal",), "a decision process")
    found = [t for t in every if question in (None, t.question_id, t.question)]
    if not found:
        raise InputError(f"'{traces}' holds no trace of question '{question}'")
    differing: list[dict[str, Any]] = [
        {
            "question": t.question_id,
            "controller": t.policy,
            "budget_tokens": t.budget,
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
            output.console.print(f"\n{trace.policy}: {trace.question}", style="bold")
            print_outcome(output.console, trace)
        output.console.print(f"{len(found)} traces replayed, {len(differing)} differ")
        for entry in differing[:10]:
            output.console.print(f"{entry['question']}, {entry['controller']}: {entry['differs'][0]}")
    if differing:
        raise typer.Exit(1)


@mdp_app.command("calibrate")
def mdp_calibrate_command(
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

    from mio_rag.cli.show_control import print_calibration
    from mio_rag.learning.mdp import model_of, model_to_toml, solve_plan, structure, to_json
    from mio_rag.learning.mdp_calibration import Unit, calibrate
    from mio_rag.session.trace import read_traces
    from mio_rag.storage import write_atomically

    output = open_output(json_output)
    if by_bins and out is None:
        raise InputError("--by-bins needs --out, the file to write")
    given = model_of(config, {})
    found = calibrate(
        read_traces(traces, ("signal",), "a decision process"),
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
