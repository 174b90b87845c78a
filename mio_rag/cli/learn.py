"""Commands that learn which steps a question needs: policy fit router, planner and process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mio_rag.cli import options as o
from mio_rag.cli.fit import fit_app
from mio_rag.cli.lab import rule_text
from mio_rag.cli.output import kept_rows
from mio_rag.cli.terminal import Table, dim, notes, styled
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, collect
from mio_rag.evaluation.tiers import Labelled, LabelSettings, label_questions
from mio_rag.generation import check_generator, reader_spec
from mio_rag.generation.gguf import PREFIX, HiddenStates
from mio_rag.generation.replies import RememberingGenerator
from mio_rag.learning.mdp import model_of, model_to_toml, solve_plan, structure, to_json
from mio_rag.learning.mdp_calibration import Calibration, Estimate, Unit, calibrate
from mio_rag.learning.outcomes import Outcomes, Source, collect_outcomes, data_hash, shuffled
from mio_rag.learning.planner import Encoder, write_planner
from mio_rag.learning.planner_training import Point, Training, fixed_points, frontier, split_of, train_planner
from mio_rag.learning.planner_training import read_table as read_outcomes
from mio_rag.learning.router import FOLDS, FitSettings, fit_and_validate, read_table
from mio_rag.learning.router_model import Router
from mio_rag.learning.weights import write_weights
from mio_rag.policies.make import workflow_session
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import Retriever
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.retrieval.index import CorpusIndex, is_index
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits, Models
from mio_rag.session.loop import Session
from mio_rag.session.tiers import PUBLISHED, Tier, read_tiers
from mio_rag.session.trace import read_traces
from mio_rag.session.workflow import (
    NAMED,
    Workflow,
    find_workflow,
    misfits,
    workflow_problems,
    workflow_settings,
)
from mio_rag.storage import make_parent, write_atomically

# -- router -----------------------------------------------------------------------------------------------


@o.command("paths questions out model policy set embedder limit seed json", app=fit_app, name="router")
def fit_router(
    call: o.Call,
    tiers: Annotated[Path | None, "TOML file of tiers. [default: the policy's, or the published]"] = None,
    by: Annotated[str, "answers: exact match, or F1 of .6; evidence: all gold is read."] = "answers",
    unanswered: Annotated[str, "Label where no tier answers: published, cheapest or dearest."] = "published",
    kind: Annotated[str | None, "logistic (default), utility, or mlp (as published)."] = None,
    features: Annotated[str | None, "What it goes by: question+search (default), or question."] = None,
    price: Annotated[float, "Price of a token, for figures of the kind utility."] = 0.0005,
    confidence: Annotated[float | None, "How often the plausible tiers hold the right one. [0.9]"] = None,
    correct_rate: Annotated[
        float | None, "Share of searches to call weak, and to read 5 passages more."
    ] = None,
    correct_below: Annotated[float | None, "The same below this cosine; .52 is published."] = None,
) -> None:
    """Learn how much a question needs.

    Every tier is tried on every question, and a router is trained. Outcomes are written next to OUT
    (.parquet); give such tables as PATH to train again without asking. An OUT that ends in .parquet is the
    table alone. Use the router with --set depth.file=FILE. Tiers and training are those of a --policy that
    has a router, where no option says otherwise.
    """
    out, output = call.out, call.output
    output.kept = kept_rows(out.with_suffix(".run"), "run the same command to go on")
    tables = [Path(one) for one in call.paths if one.endswith(".parquet")]
    of_fit: dict[str, Any] = {
        "kind": kind, "features": features, "confidence": confidence, "correct_rate": correct_rate,
        "correct_below": correct_below,
    }  # fmt: skip
    given = {name: value for name, value in of_fit.items() if value is not None}
    usual = {"kind": "logistic", "features": "question+search", "seed": call.seed}
    _, settings, *_ = call.check(
        lambda: FitSettings(**{**usual, **(call.chosen().policy.depth.training or {}), **given}),
        lambda: o.check_ending("--out", out, ".safetensors", ".parquet"),
        lambda: o.at_least(price=(price, 0)),
    )  # fmt: skip
    told: dict[str, Any] = {}
    lines: list[Any] = []
    if not tables:
        table, found = _labels(call, tiers, by, unanswered)
        tables, lines = [table], list(label_lines(found))
        told = {
            "table": str(table), "questions": len(found.table), "unlabelled": found.unlabelled,
            "failed": found.failed, "unanswered": found.unanswered,
            "tiers": [tier.name for tier in found.table.tiers],
            "label_shares": found.table.outcomes.values["label"].mean(axis=0).tolist(),
        }  # fmt: skip
        if out.suffix == ".parquet":
            output.result({"out": str(out), **told}, *lines)
            return
    rows = read_table(tables)
    with o.progress("folds", FOLDS) as advance:
        made, _ = fit_and_validate(rows, settings, price, advance)
    write_weights(made.weights(), out)
    output.result({"out": str(out), **told, **router_json(made)}, *lines, *router_lines(made), str(out))


def tiers_given(tiers: Any) -> tuple[Tier, ...]:
    """Return tiers as a policy names them: by themselves, or by their file; by default the published ones."""
    return read_tiers(Path(tiers)) if isinstance(tiers, str) else tiers or PUBLISHED


def _labels(call: o.Call, tiers: Path | None, by: Any, unanswered: Any) -> tuple[Path, Any]:
    """Try every tier on every question, and write the table of outcomes."""
    if len(call.paths) != 1:
        raise InputError("one PATH at a time is labelled: give tables to train on several")
    if call.model is None and by == "answers":
        raise InputError("labels by answers need a model: give --model, or --by evidence")
    spec = None if call.model is None else reader_spec(call.model)
    chosen, ladder, *_ = call.check(
        lambda: read_tiers(tiers) if tiers is not None else tiers_given(call.chosen().policy.depth.tiers),
        lambda: None if spec is None else check_generator(spec),
    )
    settings = LabelSettings(
        ladder, by, unanswered, retrieval=chosen.policy.search.retrieval,
        limit=call.limit, seed=call.seed,
    )  # fmt: skip
    make_parent(call.out)
    dataset, index = call.data(call.paths[0])
    with call.reader(spec) as reader:
        known = getattr(reader, "identity", None) is not None
        if known and not isinstance(reader, RememberingGenerator):
            reader = RememberingGenerator(reader, call.out.with_suffix(".replies.sqlite"))
        with o.progress("labelling", len(dataset.questions[: call.limit])) as advance:
            found = label_questions(dataset, index, reader, settings, call.out.with_suffix(".run"), advance)
    table = call.out.with_suffix(".parquet")
    found.table.outcomes.write(table)
    return table, found


# -- planner ----------------------------------------------------------------------------------------------


def encoder_of(name: str) -> Encoder:
    """What embeds questions for a planner: an embedder, that of an index, or the hidden states of a model."""
    if name.startswith(PREFIX):
        return HiddenStates(name.removeprefix(PREFIX))
    return CorpusIndex.load(name).embedder if is_index(Path(name)) else make_embedder(name)


@o.command(
    "paths questions out model policy set embedder budget answer limit seed json",
    app=fit_app, name="planner", budget=256, answer=32, limit=50,
)  # fmt: skip
def fit_planner(
    call: o.Call,
    workflows: Annotated[str | None, "Names of `mio-rag policy list`, or JSON files. [default: all]"] = None,
    method: Annotated[str | None, "regression or ppo. [default: regression]"] = None,
    mode: Annotated[
        str | None, "once: choose a workflow; again: look after every step. [default: once]"
    ] = None,
    prices: Annotated[
        str | None, "With ppo: prices of a unit of cost to train for, with commas. [default: 0.1]"
    ] = None,
    cost: Annotated[str | None, "What is counted: tokens or dollars. [default: tokens]"] = None,
    updates: Annotated[int | None, "With ppo: most rounds of training. [default: 150]"] = None,
    test: Annotated[float, "Share of the questions held out, in [0, 1)."] = 0.4,
    skip: Annotated[int, "Of the questions that are drawn, pass over so many first."] = 0,
) -> None:
    """Learn which workflow to choose for which question.

    All are tried on --limit questions of each set, drawn by --seed, and a planner is trained. Outcomes are
    written to a folder next to OUT (.outcomes); give such a folder as PATH to train again without asking. An
    OUT without the ending .safetensors is the folder alone. Models and prices are models.* of --set. Weights
    of costs and all settings of the training are [training] of --policy.
    Use the planner with --set order.file=FILE. It looks at what the index at PATH embeds by; --embedder may
    also be an index, or hidden:FILE.gguf: its last hidden state.
    """
    out, output = call.out, call.output
    o.at_least(limit=(call.limit, 1), skip=(skip, 0))
    if not 0 <= test < 1:
        raise InputError(f"--test must be in [0, 1), got {test:g}")
    how = _training(call, workflows, method, mode, cost, prices, updates)
    folder = Path(call.paths[0])
    told: dict[str, Any] = {}
    lines: list[Any] = []
    if not (folder / "outcomes.parquet").is_file():
        only = out.suffix != ".safetensors"
        if call.embedder == "tfidf" and not only:
            raise InputError("--embedder tfidf is fitted to passages: index PATH with it, and give the index")
        folder = out if only else out.with_suffix(".outcomes")
        table = _outcomes(call, folder, how.workflows, skip)
        told = {"questions": len(table), "workflows": list(table.actions), "table": str(folder)}
        lines = list(outcome_lines(table))
        if only:
            output.result(told, *lines)
            return
    files = [name for name in how.workflows if name.endswith(".json")]
    # On an index the planner looks at what the index embeds by, unless another embedder is named.
    of_index = call.embedder == DEFAULTS.embedder and is_index(Path(call.paths[0]))
    rows = read_outcomes(folder, encoder_of(call.paths[0] if of_index else call.embedder), files)
    learned, held = split_of(rows.outcomes, test, call.seed)
    if len(learned) < 10 <= len(learned) + len(held):
        raise InputError(
            f"{len(learned)} of {len(learned) + len(held)} questions are left to learn from, 10 are needed: "
            f"hold out fewer than --test {test:g}, or add questions to the table"
        )
    with o.progress("training", how.ppo.updates if how.method == "ppo" else 1) as advance:
        planner, curve = train_planner(rows, learned, how, lambda update, reward: advance(1))
    write_planner(planner, out)
    lines.append(
        f"learned from {len(learned)} questions, held out {len(held)}; a cost of 1 is {planner.unit:.4g} "
        f"{planner.cost}"
    )
    if (report := planner.about.get("report", {})).get("sets", 1) > 1:
        lines.append(
            f"{report['sets']:.0f} question sets: it names the right one for {report['sets_told']:.0%} of "
            "the questions that it has not learned from"
        )
    points = []
    if len(held):
        place = (planner.tree, planner.features, held, planner.unit, planner.cost, planner.weights)
        experience = rows.experience(*place)
        asked = how.ppo.alphas if how.method == "ppo" else (0.0, 0.05, 0.1, 0.2, 0.5)
        points = [*fixed_points(experience, asked[0]), *frontier(planner, experience, asked)]
        lines += point_lines(points)
    output.result(
        {
            **told, "file": str(out), "learned_from": len(learned), "held_out": len(held),
            "unit": planner.unit, "points": [point.to_dict() for point in points], "curve": curve,
        },
        *lines,
        f"\nplanner: {out}",
    )  # fmt: skip


def _training(
    call: o.Call,
    workflows: str | None,
    method: str | None,
    mode: str | None,
    cost: str | None,
    prices: str | None,
    updates: int | None,
) -> Training:
    """How a planner learns: the policy's table, with what the options say in its place."""
    given = dict(call.chosen().policy.training)
    options = {"workflows": None if workflows is None else o.listed(workflows), "method": method}
    options |= {"mode": mode, "cost": cost}
    given |= {name: value for name, value in options.items() if value is not None}
    if given.get("method", "regression") != "ppo" and prices is not None:
        raise InputError("--prices: no effect with --method regression; leave out, or choose ppo")
    ppo = {"seed": call.seed, **given.get("ppo", {})}
    if prices is not None:
        ppo["alphas"] = o.numbers("--prices", prices)
    if updates is not None:
        ppo["updates"] = updates
    return Training.from_dict({**given, "ppo": ppo}, "training")


def _outcomes(call: o.Call, folder: Path, workflows: Sequence[str], skip: int) -> Any:
    """Answer every question by every workflow; an interrupted run goes on in the same folder."""

    def chosen_workflows() -> list[Workflow]:
        given = workflows or list(NAMED)
        found = collect(*((lambda name=name: find_workflow(name)) for name in given))
        if twice := {w.name for w in found if sum(other.name == w.name for other in found) > 1}:
            raise InputError(f"--workflows names {', '.join(sorted(twice))} twice")
        return found

    pairs, spec = o.several(call.paths, call.questions), reader_spec(call.model)
    chosen, several, *_ = call.check(chosen_workflows, lambda: check_generator(spec))
    running = workflow_settings(chosen.control.kinds)
    known: dict[str, Any] = {
        "models": tuple(running.models), "prices": tuple(running.prices), "depth": running.depth,
    }  # fmt: skip
    problems = [problem for workflow in several for problem in workflow_problems(workflow, **known)]
    if running.prices and "reader" not in running.prices:
        problems.append("the reader has no price: set models.reader.input and models.reader.output, too")
    o.refuse(problems)
    apart = call.embedder.startswith(PREFIX) or is_index(Path(call.embedder))
    control = ControlSettings(limits=Limits(steps=40, seconds=1e6), kinds={"workflow": running.to_dict()})
    models, selector, sources = Models(running.models), Selector(), []
    try:
        with call.reader(spec) as reader:
            for path, its in pairs:
                by = DEFAULTS.embedder if apart or is_index(Path(path)) else call.embedder
                dataset, index = o.Call({**vars(call), "embedder": by}).data(path, its)
                o.refuse([f"{path}: {problem}" for problem in misfits(several, index, selector)])
                setup = Setup(control, Retriever(index, counter=reader), selector, call.answer or 32)

                def session(name: str, workflow: Workflow, setup: Setup = setup) -> Session:
                    return workflow_session(name, workflow, setup, models)

                asked = shuffled(dataset.questions, call.limit or 1, call.seed, skip)
                if not asked:
                    raise InputError(
                        f"--skip {skip} leaves none of the {len(dataset.questions)} questions of {path}"
                    )
                name, found = Path(its or path).name, data_hash(index, dataset.questions)
                sources.append(Source(name, asked, session, running, found))
            with o.progress("answering", sum(len(source.questions) for source in sources)) as advance:
                return collect_outcomes(
                    folder, sources, several, reader, budget_tokens=call.budget or 256,
                    progress=lambda name, done, of: advance(1, name),
                )  # fmt: skip
    finally:
        models.close()


# -- process ----------------------------------------------------------------------------------------------


@o.command("json", app=fit_app, name="process")
def fit_process(
    call: o.Call,
    traces: Annotated[Path, o.arg("traces.jsonl, or the folder of an evaluation that holds it.")],
    out: Annotated[Path | None, "TOML file of the process. [default: only report]"] = None,
    start: Annotated[Path | None, "TOML file of the process to begin with."] = None,
    signal: Annotated[str | None, "Which measured U: confidence or evidence."] = None,
    bins: Annotated[int, "Number of equal bins of U with separate parameters."] = 4,
    min_drop: Annotated[float, "Least fall of U for a retrieval to count as a success."] = 0.01,
    cost_by: Annotated[Unit, "Unit of cost: seconds or tokens."] = "seconds",
    price: Annotated[float | None, "Quality that a unit of cost is worth. [keeps reason_cost]"] = None,
    by_bins: Annotated[bool, "Write the process with parameters by bin of U."] = False,
) -> None:
    """Estimate the decision process from recorded runs.

    Its assumptions are tested, and it is solved again. Use the file with --set repeat.process=FILE.
    """
    if by_bins and out is None:
        raise InputError("--by-bins needs --out, the file to write")
    given = model_of(start, {})
    found = calibrate(
        read_traces(traces, ("signal",), "a decision process"), given, gauge=signal, bins=bins,
        min_drop=min_drop, cost_by=cost_by, price=price,
    )  # fmt: skip
    if out is not None:
        write_atomically(out, model_to_toml(found.by_bins if by_bins else found.model))
    models = {"given": given, "calibrated": found.model, "by bins": found.by_bins}
    plans = {name: solve_plan(model) for name, model in models.items()}
    shapes = {name: structure(plan) for name, plan in plans.items()}
    told = {
        **dataclasses.asdict(found), "model": found.model.to_dict(), "by_bins": found.by_bins.to_dict(),
        "solved": {name: to_json(plan, shapes[name]) for name, plan in plans.items()},
        "out": out and str(out),
    }  # fmt: skip
    call.output.result(told, *calibration_lines(found, shapes), *([f"\nprocess: {out}"] if out else []))


# -- tables -----------------------------------------------------------------------------------------------


def calibration_lines(found: Calibration, shapes: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    """Estimates with intervals, for all U and by bins; the assumptions; the first decision before, after."""
    yield (
        f"{found.retrievals} retrievals and {found.reasonings} reasoning steps on {found.questions} "
        f"questions, U by {found.gauge}\n"
    )
    parts: list[tuple[str, Any]] = [("all", found)]
    parts += [(f"{part.low:.2f}\u2013{part.high:.2f}", part) for part in found.bins]
    cells = (
        (name, *map(_estimate, (one.success, one.retrieve_drop, one.reason_drop))) for name, one in parts
    )
    yield Table.rows("U|p_s|delta_r|delta_p", cells, left=4)
    yield f"costs: retrieve {_estimate(found.retrieve_cost)}, reason {_estimate(found.reason_cost)}\n"
    for check in found.checks:
        said = {None: ("too few data", "dim"), True: ("violated", "red"), False: ("not violated", "")}
        value = "" if check.value is None else f" ({check.value:.2f}, n = {check.n})"
        yield styled(f"{check.name}: ", said[check.violated], value)
    yield from notes(found.notes)
    yield ""
    first = ((name, rule_text(shape["segments"][0])) for name, shape in shapes.items())
    yield Table.rows("process|first decision over U", first, left=2)
    yield from notes(shapes["calibrated"]["warnings"])


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "\u2013"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f} (too few questions for an interval, n = {estimate.n})"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f}, n = {estimate.n})"


def label_lines(found: Labelled) -> Iterator[Any]:
    """Each tier: how many questions need it, how often it does, and what it costs."""
    table = found.table
    yield (
        f"{len(table)} questions labelled; left out: {found.unlabelled} without gold, "
        f"{found.failed} on which a tier failed"
    )
    needed = np.bincount(table.labels, minlength=len(table.tiers))
    each = zip(table.tiers, needed, table.worked.mean(axis=0), table.costs(), strict=True)
    rows = (
        (tier.name, f"{count} ({count / len(table):.0%})", f"{share:.3f}", f"{cost[0]:.0f}", f"{cost[1]:.2f}")
        for tier, count, share, cost in each
    )
    yield Table.rows("tier|needed by|does for|tokens|seconds", rows)
    if none := found.unanswered:
        does = "reads the evidence of" if table.by == ("evidence",) else "answers"
        rule = table.outcomes.provenance.get("unanswered")
        yield (
            f"no tier {does} {none} ({none / len(table):.0%}) of the questions; which tier these are counted "
            f"under follows the rule '{rule}' (--unanswered)"
        )


def router_lines(router: Router) -> Iterator[Any]:
    """Tiers and their use, then everything that was measured out of fold."""
    said, measures, weak = router.provenance, router.measures, router.correction
    yield f"{router.kind} router of {said.get('questions', '?')} questions, by {router.features}"
    sets = ", ".join(f"{count} {name}" for name, count in said.get("sets", {}).items())
    yield dim(f"labels by {', '.join(said.get('by', []))}; sets: {sets}")
    if weak is not None:
        yield (
            f"searches with no cosine of {weak.below:.3f} are weak: {weak.more} passages more are read; what "
            "follows was measured without them"
        )
    each = zip(router.tiers, router.shares, router.costs, strict=True)
    tiers = (
        (tier.name, tier.depth, f"{tier.context} {tier.unit}", tier.new_tokens, f"{share:.0%}",
         f"{cost[0]:.0f}")
        for tier, share, cost in each
    )  # fmt: skip
    yield Table.rows("tier|depth|context|answer|chosen|tokens", tiers)
    if not measures:
        return
    yield (
        f"\nout of fold: the right tier for {measures['accuracy']:.3f} of the questions (always the most "
        f"frequent: {measures['most_frequent_label']:.3f}); calibration error "
        f"{measures['calibration_error']:.3f}; several tiers plausible for {measures['unsure_share']:.0%}"
    )
    if "confusion" in measures:
        names = [tier.name for tier in router.tiers]
        counts = ((name, *row) for name, row in zip(names, measures["confusion"], strict=True))
        yield Table.rows("|".join(["needed", *(f"chosen:\n{name}" for name in names)]), counts)
        yield ""
    places = {f"tier:{tier.name}": place for place, tier in enumerate(router.tiers)}
    # A file keeps names in alphabetical order: it shows what training showed.
    order = sorted(measures["rows"], key=lambda name: (not name.startswith("router"), places.get(name, 99)))
    rows = {name: measures["rows"][name] for name in order}
    first = ["worked", "prompt_tokens", "tokens_used", "gold_recall"]
    columns = sorted(rows["router"], key=lambda name: first.index(name) if name in first else len(first))
    cells = ((name, *(_number(row.get(column)) for column in columns)) for name, row in rows.items())
    yield Table.rows("|".join(["", *(name.replace("_", " ") for name in columns)]), cells)
    if (found := measures.get("against_mixture")) is None:  # of an earlier release
        return
    verdict = "more" if found["low"] > 0 else "less" if found["high"] < 0 else "not clearly more"
    routed = rows["router"]["worked"]
    yield (
        f"the router does for {routed:.3f}, {verdict} than the best mixture of fixed tiers at its tokens "
        f"({routed - found['mean']:.3f}): {found['mean']:+.3f}, 95 % interval {found['low']:+.3f} to "
        f"{found['high']:+.3f}"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 2 else f"{value:.3f}"


def router_json(router: Router) -> dict[str, Any]:
    """Plain data: all but the arrays."""
    names = ("kind", "features", "embedder", "plausible", "confidence")
    return {
        **{name: getattr(router, name) for name in names},
        "tiers": [tier.to_dict() for tier in router.tiers],
        "shares": list(router.shares),
        "costs": router.costs.tolist(),
        "correction": None if router.correction is None else dict(vars(router.correction)),
        "measures": dict(router.measures),
        "provenance": dict(router.provenance),
    }


def point_lines(points: Sequence[Point]) -> Iterator[Any]:
    """Planner and fixed workflows: quality, cost, and what a mixture of fixed ones has at that cost."""
    rows = (
        (one.name, *(f"{v:.3f}" for v in (one.alpha, one.quality, one.cost, one.reward, one.fixed)),
         f"{one.gain:+.3f}", f"{one.low:+.3f} to {one.high:+.3f}")
        for one in points
    )  # fmt: skip
    yield Table.rows("who|alpha|quality|cost|reward|fixed at cost|gain|95 %", rows)
    for point in points:
        if len(point.shares) > 1:
            told = sorted(point.shares.items(), key=lambda item: -item[1])
            said = ", ".join(f"{name} {share:.0%}" for name, share in told)
            yield dim(f"{point.name} at {point.alpha:g}: {said}")
    planned = [point for point in points if point.name == "planner"]
    better = ", ".join(f"{point.alpha:g}" for point in planned if point.low > 0)
    worse = ", ".join(f"{point.alpha:g}" for point in planned if point.high < 0)
    said = (
        "at no price the planner clearly has more than a mixture of fixed workflows at its cost: use one of "
        "these, or learn from more questions"
    )
    if better:
        said = f"the planner has more than any mixture of fixed workflows at its cost for alpha {better}"
    yield said + (f"; clearly less for alpha {worse}" if worse else "")


def outcome_lines(table: Outcomes) -> Iterator[Any]:
    """Means of every workflow, over the questions of the table."""

    def figure(mean: float) -> str:
        if mean >= 10:
            return f"{mean:.0f}"
        return f"{mean:.3g}" if 0 < mean < 1e-3 else f"{mean:.3f}"  # dollars of little are not none

    known = [
        "token_f1",
        "exact_match",
        "evidence",
        "tokens",
        "lm_calls",
        "retrieval_calls",
        "dollars",
        "seconds",
    ]
    shown = [measure for measure in known if measure in table.values]
    rows = (
        (name, *(figure(float(np.nanmean(table.values[measure][:, place]))) for measure in shown))
        for place, name in enumerate(table.actions)
    )
    yield Table.rows("|".join(["workflow", *shown]), rows)
    yield dim(f"{len(table)} questions")
