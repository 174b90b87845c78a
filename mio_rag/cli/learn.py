"""Commands that learn which steps a question needs: policy fit router, planner and process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, cast

from mio_rag.cli import options as o
from mio_rag.cli.chosen import Chosen
from mio_rag.cli.fit import Draws, Out, data_of, fit_app
from mio_rag.cli.output import Output, kept_rows, open_output
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.generation import Generator
    from mio_rag.learning.planner import Encoder
    from mio_rag.session.workflow import Workflow

Sources = Annotated[
    list[str],
    o.arg(
        "As in select; each with questions, its own or by --questions. Or tables of an earlier run.",
        "PATH...",
    ),
]
QuestionSets = Annotated[
    list[str] | None, o.opt("Question set of each PATH, in their order.", "--questions", metavar="DATA")
]


# -- router -----------------------------------------------------------------------------------------------


@fit_app.command("router")
def fit_router(
    paths: Sources,
    out: Out,
    questions: QuestionSets = None,
    model: Annotated[str | None, o.opt("As in ask; not needed with --by evidence.")] = None,
    tiers: Annotated[Path | None, o.opt("TOML file of tiers. [default: the three published ones]")] = None,
    by: Annotated[str, o.opt("answers: exact match, or F1 of .6; evidence: all gold is read.")] = "answers",
    unanswered: Annotated[
        str, o.opt("Label where no tier answers: published, cheapest or dearest.")
    ] = "published",
    kind: Annotated[str, o.opt("logistic, utility, or mlp (as published).")] = "logistic",
    features: Annotated[str, o.opt("What it goes by: question+search, or question.")] = "question+search",
    price: Annotated[float, o.opt("Price of a token, for figures of the kind utility.")] = 0.0005,
    confidence: Annotated[float, o.opt("How often the plausible tiers hold the right one.")] = 0.9,
    correct_rate: Annotated[
        float | None, o.opt("Share of searches to call weak, and to read 5 passages more.")
    ] = None,
    correct_below: Annotated[float | None, o.opt("The same below this cosine; .52 is published.")] = None,
    set_: o.Sets = None,
    embedder: o.EmbedderName = DEFAULTS.embedder,
    limit: o.Limit = None,
    seed: Draws = 0,
    json_output: o.Json = False,
) -> None:
    """Learn how much a question needs.

    Every tier is tried on every question, and a router is trained. Outcomes are written next to OUT
    (.parquet); give such tables as PATH to train again without asking. An OUT that ends in .parquet is the
    table alone. Use the router with --set depth.file=FILE.
    """
    from mio_rag.cli.show_control import print_labels, print_router, router_json
    from mio_rag.learning.router import FOLDS, FitSettings, fit_and_validate, read_table
    from mio_rag.learning.router_model import Utility
    from mio_rag.learning.weights import write_weights

    given = SimpleNamespace(**locals())
    output = open_output(json_output, kept_rows(out.with_suffix(".run"), "run the same command to go on"))
    tables = [Path(one) for one in paths if one.endswith(".parquet")]
    settings, *_ = collect(
        lambda: FitSettings(
            kind=cast("Any", kind), features=cast("Any", features), seed=seed, confidence=confidence,
            correct_rate=correct_rate, correct_below=correct_below,
        ),
        lambda: o.check_ending("--out", out, ".safetensors", ".parquet"),
        lambda: o.at_least(limit=(limit, 1), price=(price, 0)),
    )  # fmt: skip
    told: dict[str, Any] = {}
    if not tables:
        table, found = _labels(output, given)
        tables = [table]
        told = {
            "table": str(table),
            "questions": len(found.table),
            "unlabelled": found.unlabelled,
            "failed": found.failed,
            "unanswered": found.unanswered,
            "tiers": [tier.name for tier in found.table.tiers],
            "label_shares": found.table.outcomes.values["label"].mean(axis=0).tolist(),
        }
        if not json_output:
            print_labels(output.console, found)
        if out.suffix == ".parquet":
            if json_output:
                output.json({"out": str(out), **told})
            return
    rows = read_table(tables)
    with o.progress("folds", FOLDS) as advance:
        made, _ = fit_and_validate(rows, settings, Utility(beta=price), advance)
    write_weights(made.weights(), out)
    output.result(
        {"out": str(out), **told, **router_json(made)},
        lambda: print_router(output.console, made),
        str(out),
    )


def _labels(output: Output, given: SimpleNamespace) -> tuple[Path, Any]:
    """Try every tier on every question, and write the table of outcomes."""
    from mio_rag.evaluation.tiers import LabelSettings, label_questions
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.generation.replies import RememberingGenerator
    from mio_rag.learning.router import write_table
    from mio_rag.session.tiers import PUBLISHED, read_tiers
    from mio_rag.storage import make_parent

    paths, questions, tiers, out = given.paths, given.questions, given.tiers, given.out
    if len(paths) != 1:
        raise InputError("one PATH at a time is labelled: give tables to train on several")
    if given.model is None and given.by == "answers":
        raise InputError("labels by answers need a model: give --model, or --by evidence")
    spec = None if given.model is None else o.reader_spec(given.model)
    chosen, ladder, _ = collect(
        lambda: Chosen.of(DEFAULTS.policy, given.set_),
        lambda: PUBLISHED if tiers is None else read_tiers(tiers),
        lambda: None if spec is None else check_generator(spec),
    )
    settings = LabelSettings(
        ladder, given.by, given.unanswered, retrieval=chosen.policy.search.retrieval,
        limit=given.limit, seed=given.seed,
    )  # fmt: skip
    make_parent(out)
    dataset, index = data_of(output, paths[0], questions[0] if questions else None, given.embedder)
    reader: Generator | None = None if spec is None else make_generator(spec)
    if reader is not None and reader.identity is not None and not isinstance(reader, RememberingGenerator):
        reader = cast("Generator", RememberingGenerator(reader, out.with_suffix(".replies.sqlite")))
    try:
        with o.progress("labelling", len(dataset.questions[: given.limit])) as advance:
            found = label_questions(dataset, index, reader, settings, out.with_suffix(".run"), advance)
    finally:
        if reader is not None:
            reader.close()
    table = out.with_suffix(".parquet")
    write_table(found.table, table)
    return table, found


# -- planner ----------------------------------------------------------------------------------------------


def encoder_of(name: str) -> Encoder:
    """What embeds questions for a planner: an embedder, that of an index, or the hidden states of a model."""
    from mio_rag.generation.gguf import PREFIX, HiddenStates
    from mio_rag.retrieval.embedders import make_embedder
    from mio_rag.retrieval.index import CorpusIndex, is_index

    if name.startswith(PREFIX):
        return HiddenStates(name.removeprefix(PREFIX))
    return CorpusIndex.load(name).embedder if is_index(Path(name)) else make_embedder(name)


def named_workflows(names: str) -> list[Workflow]:
    """Workflows by names and JSON files with commas between them; all named ones for nothing."""
    from mio_rag.session.workflow import NAMED, find_workflow

    given = o.listed(names) if names else list(NAMED)
    found = collect(*((lambda name=name: find_workflow(name)) for name in given))
    if twice := {w.name for w in found if sum(other.name == w.name for other in found) > 1}:
        raise InputError(f"--workflows names {', '.join(sorted(twice))} twice")
    return found


@fit_app.command("planner")
def fit_planner(
    paths: Sources,
    out: Out,
    questions: QuestionSets = None,
    model: o.Model = None,
    workflows: Annotated[str, o.opt("Names of `mio-rag policy list`, or JSON files. [default: all]")] = "",
    method: Annotated[str, o.opt("regression or ppo.")] = "regression",
    mode: Annotated[str, o.opt("once: choose a workflow; again: look after every step.")] = "once",
    prices: Annotated[str, o.opt("With ppo: prices of a unit of cost to train for, with commas.")] = "0.1",
    cost: Annotated[str, o.opt("What is counted: tokens or dollars.")] = "tokens",
    updates: Annotated[int, o.opt("With ppo: most rounds of training.")] = 150,
    test: Annotated[float, o.opt("Share of the questions held out, in [0, 1).")] = 0.4,
    embedder: Annotated[
        str, o.opt("As in index; an index; or hidden:FILE.gguf: its last hidden state.")
    ] = DEFAULTS.embedder,
    set_: o.Sets = None,
    budget: Annotated[int, o.opt("Largest context, in tokens.", "--budget", "-b")] = 256,
    answer: Annotated[int, o.opt("Longest answer, in tokens.")] = 32,
    limit: Annotated[int, o.opt("Questions of each set, drawn by seed.")] = 50,
    skip: Annotated[int, o.opt("Of these, pass over so many first.")] = 0,
    seed: Draws = 0,
    json_output: o.Json = False,
) -> None:
    """Learn which workflow to choose for which question.

    All are tried, and a planner is trained. Outcomes are written to a folder next to OUT (.outcomes); give
    such a folder as PATH to train again without asking. An OUT without the ending .safetensors is the folder
    alone. Models and prices are models.* of --set. Use the planner with --set order.file=FILE.
    """
    from mio_rag.cli.show_control import print_table
    from mio_rag.learning.planner import write_planner
    from mio_rag.learning.planner_training import fixed_points, frontier, read_table, split_of, train_planner
    from mio_rag.learning.ppo import PPOSettings

    given = SimpleNamespace(**locals())
    output = open_output(json_output)
    o.at_least(limit=(limit, 1), skip=(skip, 0))
    if not 0 <= test < 1:
        raise InputError(f"--test must be in [0, 1), got {test:g}")
    if method != "ppo" and prices != "0.1":
        raise InputError(f"--prices: no effect with --method {method}; leave out, or choose ppo")
    chosen_prices = o.numbers("--prices", prices)
    folder = Path(paths[0])
    told: dict[str, Any] = {}
    if not (folder / "outcomes.parquet").is_file():
        only = out.suffix != ".safetensors"
        folder = out if only else out.with_suffix(".outcomes")
        table = _outcomes(output, folder, given)
        told = {"questions": len(table), "workflows": list(table.actions), "table": str(folder)}
        if not json_output:
            print_table(output.console, table)
        if only:
            if json_output:
                output.json(told)
            return
    settings = PPOSettings(alphas=chosen_prices, updates=updates, seed=seed)
    files = [name for name in o.listed(workflows) if name.endswith(".json")]
    rows = read_table(folder, encoder_of(embedder), files)
    learned, held = split_of(rows.outcomes, test, seed)
    if len(learned) < 10 <= len(learned) + len(held):
        raise InputError(
            f"{len(learned)} of {len(learned) + len(held)} questions are left to learn from, 10 are needed: "
            f"hold out fewer than --test {test:g}, or add questions to the table"
        )
    with o.progress("training", updates if method == "ppo" else 1) as advance:
        planner, curve = train_planner(
            rows, learned, method=method, mode=mode, cost=cost, ppo=settings,
            progress=lambda update, reward: advance(1),
        )  # fmt: skip
    points = []
    write_planner(planner, out)
    if len(held):
        experience = rows.experience(planner.tree, planner.features, held, planner.unit, planner.cost)
        asked = chosen_prices if method == "ppo" else (0.0, 0.05, 0.1, 0.2, 0.5)
        points = [*fixed_points(experience, asked[0]), *frontier(planner, experience, asked)]
    if json_output:
        output.json(
            {
                **told, "file": str(out), "learned_from": len(learned), "held_out": len(held),
                "unit": planner.unit, "points": [point.to_dict() for point in points], "curve": curve,
            }
        )  # fmt: skip
        return
    _print_planner(output, planner, len(learned), len(held), points)
    output.console.print(f"\nplanner: {out}", soft_wrap=True)


def _print_planner(output: Output, planner: Any, learned: int, held: int, points: Sequence[Any]) -> None:
    from mio_rag.cli.show_control import print_points

    output.console.print(
        f"learned from {learned} questions, held out {held}; a cost of 1 is {planner.unit:.4g} {planner.cost}"
    )
    if (report := planner.about.get("report", {})).get("sets", 1) > 1:
        output.console.print(
            f"{report['sets']:.0f} question sets: it names the right one for {report['sets_told']:.0%} of "
            "the questions that it has not learned from"
        )
    if points:
        print_points(output.console, points)


_NONE: list[str | None] = [None]


def _outcomes(output: Output, folder: Path, given: SimpleNamespace) -> Any:
    """Answer every question by every workflow; an interrupted run goes on in the same folder."""
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.learning.outcomes import Source, collect_outcomes, data_hash, shuffled
    from mio_rag.policies.make import workflow_session
    from mio_rag.policies.setup import ControlSettings, Setup
    from mio_rag.retrieval import Retriever
    from mio_rag.selection.selector import Selector
    from mio_rag.session.budget import Limits, Models
    from mio_rag.session.loop import Session
    from mio_rag.session.workflow import misfits, workflow_problems, workflow_settings

    paths, questions = given.paths, given.questions
    if questions and len(questions) != len(paths):
        raise InputError(f"{len(paths)} sources and {len(questions)} question sets: give one for each")
    spec = o.reader_spec(given.model)
    chosen, several, _ = collect(
        lambda: Chosen.of(DEFAULTS.policy, given.set_),
        lambda: named_workflows(given.workflows),
        lambda: check_generator(spec),
    )
    running = workflow_settings(chosen.control.kinds)
    told: dict[str, Any] = {
        "models": tuple(running.models),
        "prices": tuple(running.prices),
        "depth": running.depth,
    }
    problems = [problem for workflow in several for problem in workflow_problems(workflow, **told)]
    if running.prices and "reader" not in running.prices:
        problems.append("the reader has no price: set models.reader.input and models.reader.output, too")
    if problems:
        raise InputError(problems)
    reader, models = make_generator(spec), Models(running.models)
    try:
        sources = []
        for path, its in zip(paths, questions or _NONE * len(paths), strict=True):
            usual = given.embedder if given.embedder in ("minilm", "tfidf") else DEFAULTS.embedder
            dataset, index = data_of(output, path, its, usual)
            selector = Selector()
            if problems := misfits(several, index, selector):
                raise InputError([f"{path}: {problem}" for problem in problems])
            control = ControlSettings(
                limits=Limits(steps=40, seconds=1e6), kinds={"workflow": running.to_dict()}
            )
            setup = Setup(control, Retriever(index, counter=reader), selector, given.answer)

            def session(name: str, workflow: Workflow, setup: Setup = setup) -> Session:
                return workflow_session(name, workflow, setup, models)

            asked = shuffled(dataset.questions, given.limit, given.seed, given.skip)
            if not asked:
                raise InputError(
                    f"--skip {given.skip} leaves none of the {len(dataset.questions)} questions of {path}"
                )
            name, known = Path(its or path).name, data_hash(index, dataset.questions)
            sources.append(Source(name, asked, session, running, known))
        total = sum(len(source.questions) for source in sources)
        with o.progress("answering", total) as advance:
            return collect_outcomes(
                folder, sources, several, reader, budget_tokens=given.budget,
                progress=lambda name, done, of: advance(1, name),
            )  # fmt: skip
    finally:
        reader.close()
        models.close()


# -- process ----------------------------------------------------------------------------------------------


@fit_app.command("process")
def fit_process(
    traces: Annotated[Path, o.arg("traces.jsonl, or the folder of an evaluation that holds it.")],
    out: Annotated[Path | None, o.opt("TOML file of the process. [default: only report]")] = None,
    start: Annotated[Path | None, o.opt("TOML file of the process to begin with.")] = None,
    signal: Annotated[str | None, o.opt("Which measured U: confidence or evidence.")] = None,
    bins: Annotated[int, o.opt("Number of equal bins of U with separate parameters.")] = 4,
    min_drop: Annotated[float, o.opt("Least fall of U for a retrieval to count as a success.")] = 0.01,
    cost_by: Annotated[str, o.opt("Unit of cost: seconds or tokens.")] = "seconds",
    price: Annotated[float | None, o.opt("Quality that a unit of cost is worth. [keeps reason_cost]")] = None,
    by_bins: Annotated[bool, o.opt("Write the process with parameters by bin of U.", "--by-bins")] = False,
    json_output: o.Json = False,
) -> None:
    """Estimate the decision process from recorded runs.

    Its assumptions are tested, and it is solved again. Use the file with --set repeat.process=FILE.
    """
    from mio_rag.cli.show_control import print_calibration
    from mio_rag.learning.mdp import model_of, model_to_toml, solve_plan, structure, to_json
    from mio_rag.learning.mdp_calibration import Unit, calibrate
    from mio_rag.session.trace import read_traces
    from mio_rag.storage import write_atomically

    output = open_output(json_output)
    if by_bins and out is None:
        raise InputError("--by-bins needs --out, the file to write")
    given = model_of(start, {})
    found = calibrate(
        read_traces(traces, ("signal",), "a decision process"),
        given,
        gauge=signal,
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
