"""Commands about policies: new, check, show, list, replay, state and fit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mio_rag.cli import options as o
from mio_rag.cli.chosen import keys, server_settings
from mio_rag.cli.fit import fit_app
from mio_rag.cli.learn import encoder_of, point_lines, router_json, router_lines
from mio_rag.cli.show import run_lines
from mio_rag.cli.terminal import Table, dim, styled
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import DataError, InputError, collect
from mio_rag.formulations.numbers import plural
from mio_rag.learning import bandit_report
from mio_rag.learning.bandit_log import EventLog
from mio_rag.learning.planner import planner_about, read_planner
from mio_rag.learning.planner import replay as replay_workflow
from mio_rag.learning.planner_training import fixed_points, frontier, never_seen, read_table
from mio_rag.learning.router_model import read_router
from mio_rag.learning.rules import replay as replay_rule
from mio_rag.learning.strategist import rate
from mio_rag.policies.describe import constants, described, policy_json, price_in_words
from mio_rag.policies.make import kind_names
from mio_rag.policy import PRESETS, Policy, preset_text
from mio_rag.policy.files import Resolved, resolve
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.session.trace import Trace, read_traces
from mio_rag.session.workflow import NAMED, find_workflow, workflow_problems, workflow_text
from mio_rag.settings import plain
from mio_rag.storage import parse_toml, write_atomically

policy_app = o.group("Policies: how a question is searched, read and answered, at one price.")
policy_app.add_typer(fit_app, name="fit")
_SHOWN = "A policy, a workflow (also as JSON file), or the file of a router or planner."


@o.command("set", app=policy_app, name="new")
def policy_new(
    call: o.Call,
    preset: Annotated[str, o.arg("What to begin with.", "PRESET", show_default=True)] = DEFAULTS.policy,
    out: Annotated[Path | None, "File to write. [default: stdout]"] = None,
) -> None:
    """Print a policy file to begin your own with.

    \b
      mio-rag policy new balanced > mine.toml
      mio-rag policy new --set price.token=0.001 --out mine.toml
    """
    o.check_ending("--out", out, ".toml")
    text = preset_text(preset)
    if call.set:
        call.policy = preset
        text = call.chosen().check().policy.to_toml()
    if out is not None:
        write_atomically(out, text)
    else:
        call.output.console.print(text, end="", soft_wrap=True)


@o.command("set json", app=policy_app, name="check")
def policy_check(
    call: o.Call,
    policy: Annotated[str, o.arg("A policy file, or a preset.", "FILE|PRESET")],
    index: Annotated[Path | None, "Also compare what was learned with this index."] = None,
) -> None:
    """Find everything that is wrong with a policy and its files. No model is loaded, nothing spent."""
    call.policy = policy
    found = call.chosen().policy
    states, _ = collect(lambda: resolve(found), lambda: server_settings(found))
    if index is not None:
        states.check(CorpusIndex.load(index).embedder.fingerprint)
    files = f", with {plural(len(states.hashes), 'file')}" if states.hashes else ""
    call.output.result(
        {"name": found.name, "sha256": states.sha256, "files": dict(states.hashes)},
        f"{found.name} is valid{files}; content {states.sha256[:12]}",
    )


@o.command("set json", app=policy_app, name="show")
def policy_show(
    call: o.Call,
    name: Annotated[
        str,
        o.arg(
            "A policy, a workflow (also as JSON file), or the file of a router or planner.",
            "NAME",
            show_default=True,
        ),
    ] = DEFAULTS.policy,
    show_keys: Annotated[
        bool, o.opt("List all keys of a policy file, with meaning and default.", "--keys")
    ] = False,
) -> None:
    """Show what decides, at which price and within which limits."""
    output, call.policy = call.output, name
    if show_keys:
        _print_keys(call)
    elif name.endswith(".safetensors"):
        try:
            about = planner_about(read_planner(name))
        except DataError as error:
            if "is of the kind 'router'" not in str(error):
                raise
            router = read_router(name)
            output.result(router_json(router), *router_lines(router))
            return
        output.result(about, _planner_table(about))
    elif name in NAMED or name.endswith(".json") or name.startswith("workflow:"):
        found = find_workflow(name.removeprefix("workflow:"))
        # Which models there are, and what they cost, is known where it runs.
        if problems := workflow_problems(found, models=found.models, prices=found.models):
            raise InputError(problems)
        output.result(found.to_dict(), workflow_text(found))
    elif name in PRESETS or name.endswith(".toml"):
        policy = call.chosen().policy
        states = resolve(policy)
        output.result(policy_json(policy, states), *_policy_lines(policy, states))
    else:
        call.chosen().check()
        said = f"{name} is a policy that is known by name: see `mio-rag policy list`"
        output.result({"name": name}, said)


def _print_keys(call: o.Call) -> None:
    """Print every key of a policy file."""
    told: dict[str, Any] = {}
    lines: list[Any] = []
    for key in keys().values():
        default = key.default.to_dict() if hasattr(key.default, "to_dict") else plain(key.default)
        told[key.name] = {"help": key.help, "default": default, "with": key.of}
        more = "" if default in (None, "", (), {}) else f" [default: {default}]"
        more += f" [with by = {key.of}]" if key.of else ""
        lines += [styled((key.name, "bold"), (more, "dim")), *([f"    {key.help}"] if key.help else [])]
    call.output.result({"keys": told}, *lines)


@o.command("json", app=policy_app, name="list")
def policy_list(call: o.Call) -> None:
    """List presets, policies that are known by name, and workflows."""
    forms = {"tier": "tier:NAME", "strategies": "strategies:A+B", "workflow": "workflow:NAME"}
    names = [forms.get(name, name) for name in kind_names() if name != "policy"]
    flows = [found.to_dict() for found in NAMED.values()]
    presets = {
        name: said or parse_toml(preset_text(name), name).get("about", "") for name, said in PRESETS.items()
    }
    call.output.result(
        {"presets": presets, "policies": kind_names(), "workflows": flows},
        Table.rows("policy|what it is for", presets.items(), left=2),
        f"\nby name: {', '.join(names)}; rules may end with @tracked, @confidence, @evidence or @complete\n",
        _workflow_table(),
    )


# -- replay -----------------------------------------------------------------------------------------------


@o.command("embedder json", app=policy_app, name="replay")
def policy_replay(
    call: o.Call,
    path: Annotated[
        Path, o.arg("Traces of ask or evaluate, outcomes of policy fit planner, or a bandit's .sqlite file.")
    ],
    planner: Annotated[Path | None, "File of the planner that decides."] = None,
    prices: Annotated[str, "With outcomes: prices of a unit of cost."] = "0,0.05,0.1,0.2,0.5",
    every: Annotated[bool, o.opt("With outcomes: also questions that training has seen.", "--all")] = False,
    question: Annotated[str | None, "Show the traces of this question (id or text) in full."] = None,
    bandit: Annotated[str, "Of a bandit: linucb, thompson, epsilon-greedy or uniform."] = "linucb",
    rule: Annotated[str, "Of a bandit: program, or threshold, the published rule."] = "program",
    price: Annotated[float | None, "Of a bandit: price of a token. [that of the log]"] = None,
    width: Annotated[float | None, "Of a bandit: width of the upper confidence. [that of the log]"] = None,
) -> None:
    """Make recorded decisions again, or estimate what others would bring.

    No model is asked. Traces: status 1 where a decision comes out differently. Outcomes: quality and cost of
    a planner at every price. A bandit's log: what another one would have earned, with 95 % intervals.
    """
    if path.suffix == ".sqlite":
        given: dict[str, Any] = {"policy": bandit, "rule": rule, "alpha": width, "token_price": price}
        changes = {key: value for key, value in given.items() if value is not None}
        settings = bandit_report.settings_of(path).replace(**changes)
        known = bandit_report.hindsight(path, settings)
        lines = list(_hindsight_lines(known)) if known else []
        told: dict[str, Any] = {"hindsight": known and asdict(known)}
        try:
            found = bandit_report.replay(path, settings)
        except InputError as error:  # all strategies ran on every question: nothing else had a chance
            if known is None:
                raise
            call.output.result(told, *lines, *(styled((text, "yellow")) for text in error.problems))
            return
        call.output.result({**asdict(found), **told}, *_replay_lines(found), *lines)
    elif (path / "outcomes.parquet").is_file():
        _replay_outcomes(call, path, planner, prices, every)
    else:
        _replay_traces(call, path, planner, question)


def _replay_outcomes(call: o.Call, folder: Path, planner: Path | None, prices: str, every: bool) -> None:
    if planner is None:
        raise InputError("outcomes are replayed by a planner: give --planner")
    asked, found = o.numbers("--prices", prices), read_planner(planner)
    for price in asked:
        found.checked_alpha(price)
    own = [name for name in map(str, folder.glob("*.json")) if name.endswith(".workflow.json")]
    table = read_table(folder, encoder_of(call.embedder), own)
    if table.embedder != found.embedder:
        raise InputError(f"the planner was trained with embedder {found.embedder}, here is {table.embedder}")
    places = np.arange(len(table.outcomes)) if every else never_seen(table.outcomes, found)
    if not len(places):
        raise InputError(
            f"the planner has learned from all {len(table.outcomes)} questions: train it with --test above "
            "0, or give --all"
        )
    if [w.sha256 for w in table.workflows] != [w.sha256 for w in found.tree.workflows]:
        names = ", ".join(w.name for w in found.tree.workflows)
        raise InputError(f"the planner chooses among other workflows than the table holds: {names}")
    experience = table.experience(found.tree, found.features, places, found.unit, found.cost, found.weights)
    points = [*fixed_points(experience, asked[0]), *frontier(found, experience, asked)]
    call.output.result(
        {"questions": len(places), "points": [point.to_dict() for point in points]},
        f"{len(places)} questions; a cost of 1 is {found.unit:.4g} {found.cost}",
        *point_lines(points),
    )


def _replay_traces(call: o.Call, path: Path, planner: Path | None, question: str | None) -> None:
    learned = None if planner is None else read_planner(planner)
    encoder = encoder_of(call.embedder) if learned is not None and learned.embedder else None
    traces = [t for t in read_traces(path) if question in (None, t.question_id, t.question)]
    if not traces:
        raise InputError(f"'{path}' holds no trace of question '{question}'")

    def problems(trace: Trace) -> list[str] | None:
        if "workflow" in trace.settings:
            return list(replay_workflow(trace, learned, encoder))
        return list(replay_rule(trace)) if "signal" in trace.about else None

    checked = [(trace, found) for trace in traces if (found := problems(trace)) is not None]
    if not checked:
        raise DataError(f"'{path}' holds no trace of a workflow or a decision process")
    differing: list[dict[str, Any]] = [
        {"question": t.question_id, "policy": t.policy, "budget_tokens": t.budget, "differs": wrong}
        for t, wrong in checked
        if wrong
    ]
    shown = traces if question is not None else []
    lines: list[Any] = []
    for trace in shown:
        lines += [styled((f"\n{trace.policy}: {trace.question}", "bold")), trace.answer or "(no answer)"]
        lines += run_lines(trace)
    lines.append(f"{len(checked)} traces replayed, {len(differing)} differ")
    lines += [f"{one['question']}, {one['policy']}: {one['differs'][0]}" for one in differing[:10]]
    told = {"traces": len(checked), "differing": differing, "shown": [t.to_dict() for t in shown]}
    call.output.result(told, *lines)
    if differing:
        raise typer.Exit(1)


# -- state ------------------------------------------------------------------------------------------------

state_app = o.group("What a bandit has learned about search strategies, in the file of search.state.")
policy_app.add_typer(state_app, name="state")
State = Annotated[Path, o.arg("SQLite file of search.state.")]


@o.command("json", app=state_app, name="show")
def state_show(call: o.Call, state: State) -> None:
    """Show how often each strategy ran, and what was learned of it."""
    found = bandit_report.stats_of(state)
    call.output.result(found, *_state_lines(found))


@o.command("json", app=state_app, name="feedback")
def state_feedback(
    call: o.Call,
    state: State,
    question: Annotated[str, o.arg("Id that select, ask or serve showed.")],
    rating: Annotated[str, o.arg("helpful or unhelpful.")],
) -> None:
    """Rate the answer to a question, once.

    The strategies that found what was read are credited.
    """
    o.one_of("rating", rating, "helpful", "unhelpful")
    new = rate(EventLog(state), question, 1 if rating == "helpful" else -1, time.time())
    said = "noted" if new else "this question was rated before: nothing changes"
    call.output.result({"question": question, "rating": rating, "new": new}, said)


@o.command("json", app=state_app, name="recalibrate")
def state_recalibrate(
    call: o.Call,
    state: State,
    window_days: Annotated[float, "Days to learn from."] = 30.0,
    holdout: Annotated[float, "Share of them, the last ones, to compare on."] = 0.2,
    dry_run: Annotated[bool, "Only compare: change nothing."] = False,
) -> None:
    """Fit the models on the last days alone.

    They take over if they are not worse on later questions. At least 50 questions are needed, and 20 to
    compare on.
    """
    settings = bandit_report.settings_of(state).replace(window_days=window_days, holdout=holdout)
    found = bandit_report.recalibrate(state, settings, dry_run=dry_run)
    verdict = "the new models take over" if found.deployed else "the old models stay"
    if dry_run:
        verdict = f"nothing is changed; without --dry-run {verdict}"
    call.output.result(
        {**asdict(found), "dry_run": dry_run},
        f"{found.window} questions to learn from, {found.holdout} later ones to compare on (strategies ran "
        f"on {found.compared} of them): squared error {found.loss:.5f} in use, {found.new_loss:.5f} new; "
        f"difference in [{found.low:+.5f}, {found.high:+.5f}]: {verdict}",
    )


@o.command("json", app=state_app, name="rebuild")
def state_rebuild(call: o.Call, state: State) -> None:
    """Replay the whole log, without the snapshot."""
    events = bandit_report.rebuild(state)
    call.output.result({"events": events}, f"{events} events replayed")


@o.command("json", app=state_app, name="export")
def state_export(
    call: o.Call, state: State, out: Annotated[Path, "File to write, for instance prior.safetensors."]
) -> None:
    """Write what was learned, as a prior for another state."""
    count = bandit_report.export(state, out)
    call.output.result({"questions": count, "out": str(out)}, f"learned from {count} questions: {out}")


@o.command("json", app=state_app, name="import")
def state_import(
    call: o.Call,
    state: State,
    prior: Annotated[Path, o.arg("File that export wrote.")],
    weight: Annotated[float, "How hard it is to move, in units of the ridge."] = 1.0,
) -> None:
    """Start from what another state learned, as a prior mean."""
    bandit_report.start_from(state, prior, weight)
    call.output.result({"prior": str(prior), "weight": weight}, "the prior is part of the log")


@o.command("json", app=state_app, name="prune")
def state_prune(
    call: o.Call,
    state: State,
    strategy: Annotated[str, o.arg("Strategy to put on probation.")],
    kind: Annotated[str, o.opt("Type of question: who, when, which, yes-no, ...", "--type")],
    lift: Annotated[bool, "End the probation instead."] = False,
) -> None:
    """Let a strategy run only rarely for a type of question."""
    changed = bandit_report.prune(state, strategy, kind, not lift)
    said = {
        (False, True): "is on probation for {}; --lift ends it",
        (False, False): "is on probation for {} already; --lift ends it",
        (True, True): "is no longer put on probation for {}; what was learned may still do so",
        (True, False): "was not put on probation for {}: nothing changes",
    }[lift, changed].format(f"'{kind}' questions")
    told = {"strategy": strategy, "type": kind, "probation": not lift, "changed": changed}
    call.output.result(told, f"{strategy} {said}")


@o.command("json", app=state_app, name="add")
def state_add(
    call: o.Call, state: State, strategy: Annotated[str, o.arg("Strategy to choose among from now on.")]
) -> None:
    """Choose among one more strategy; what was learned of the others stays."""
    new = bandit_report.add_strategy(state, strategy)
    said = "added" if new else "it is chosen among already: nothing changes"
    call.output.result({"strategy": strategy, "new": new}, said)


# -- tables -----------------------------------------------------------------------------------------------


def _workflow_table() -> Table:
    """All workflows, one a line."""

    def step(do: str, settings: Mapping[str, object]) -> str:
        told = [
            str(value) if isinstance(value, str) else f"{name.replace('_', ' ')} {value:g}"
            for name, value in settings.items()
            if isinstance(value, (str, int, float)) and not isinstance(value, bool)
        ]
        return f"{do} ({', '.join(told)})" if told else do

    rows = ((w.name, ", ".join(step(one.do, one.settings) for one in w.nodes)) for w in NAMED.values())
    return Table.rows("workflow|steps", rows, left=2)


def _planner_table(about: Mapping[str, Any]) -> Table:
    """What a planner decides, at which prices, and what it learned from."""
    when = "before the first step" if about["mode"] == "once" else "before every step"
    asked, by = about.get("questions", "?"), about.get("generator", "?")
    rows = (
        ("chooses from", ", ".join(about["workflows"])),
        ("alphas", ", ".join(f"{alpha:g}" for alpha in about["alphas"]) or "any"),
        ("a cost of 1", f"{about['unit']:.4g} {about['cost']}"),
        ("questions are embedded by", about["embedder"] or "nothing"),
        ("learned from", f"{asked} questions, answered by {by}"),
    )
    return Table.rows(f"planner|{about['method']}, decides {when}", rows, left=2)


def _policy_lines(policy: Policy, states: Resolved) -> Iterator[Any]:
    """Who decides what, the price, the limits, models and files."""
    yield styled((policy.name, "bold"))
    if policy.about:
        yield policy.about
    most = policy.limits
    ends = f"{most.max_total_tokens:,} tokens, {most.max_steps} steps of a model, {most.timeout:g} s"
    rows = [("price", "one for all", price_in_words(policy))]
    rows += [(line.decision, line.who, line.how) for line in described(policy, states)]
    yield ""
    yield Table.rows("decision|who|how", [*rows, ("limits", "every question", ends)], left=3)
    for table, given in constants(policy).items():
        said = ", ".join(f"{key} = {value}" for key, value in given.items())
        yield f"{table}: {said}" if given else f"{table}: the defaults (policy show --keys)"
    for name, model in policy.models.items():
        dollars = f"${model.input:g} in, ${model.output:g} out per million tokens" if model.is_priced else ""
        heat = f"temperature {model.temperature:g}" if model.temperature else ""
        yield f"model {name}: {', '.join(filter(None, [model.spec, dollars, heat]))}"
    for file, digest in states.hashes.items():
        yield dim(f"{file}: {digest[:12]}")
    yield dim(f"content {states.sha256[:12]}")


def _state_lines(found: Mapping[str, Any]) -> Iterator[Any]:
    """A line for each strategy, the state of the whole, and what was learned."""

    def form(value: float | None, by: str) -> str:
        return "" if value is None else format(value, by)

    rows = (
        (name, one["ran"], form(one["selection_rate"], ".0%"), form(one["share_exploring"], ".0%"),
         "always runs" if one["always"] else form(one["contribution_rate"], ".0%"),
         "" if one["always"] else form(one["contribution"], "+.3f"), form(one["tokens"], ".0f"),
         form(one["seconds"], ".2f"), f"{one['rating']:+.1f}")
        for name, one in found["strategies"].items()
    )  # fmt: skip
    yield Table.rows("strategy|ran|share|exploring|adds in|adds|tokens|seconds|rating", rows)
    yield (
        f"{found['questions']} questions; lately the same set on {found['convergence']:.0%}, entropy of the "
        f"choices {found['entropy_bits']:.2f} bits; expected regret {found['regret']:.3f}; "
        f"{found['changes']} changes found"
    )
    for kind, names in found["probation"].items():
        yield f"on probation for {kind} questions: {', '.join(names)}"
    yield from found["insights"]


def _hindsight_lines(found: bandit_report.Hindsight) -> Iterator[str]:
    """The regret on questions on which all strategies ran, and how it grew."""
    n = found.questions
    yield (
        f"in hindsight, on {n} questions on which all ran: {found.worth:+.4f} a question; always "
        f"{'+'.join(found.best)} {found.best_worth:+.4f}; the best of each {found.oracle:+.4f}"
    )
    marks = sorted({max(1, n * part // 5) for part in range(1, 6)})
    curve = ", ".join(f"{found.regret[mark - 1]:.3f} after {mark}" for mark in marks)
    yield f"regret to the best for all: {curve}"


def _replay_lines(found: bandit_report.Replay) -> Iterator[Any]:
    """What was earned, and the estimates of what the policy would have earned."""
    yield f"{found.questions} questions; earned {found.earned:+.4f} a question, net of costs"
    for one in found.estimates:
        yield (
            f"{found.policy}, {one.name}: {one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}], rests on "
            f"{one.effective:.0f} questions"
        )
    if not found.differs:
        said = "It would have chosen alike on all of them (they may all lie in the cold start): this says "
        yield styled((f"{said}nothing of the policy.", "yellow"))
