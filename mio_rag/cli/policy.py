"""Commands about policies: new, check, show, list, replay, state and fit."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.cli.chosen import Chosen, keys
from mio_rag.cli.fit import fit_app
from mio_rag.cli.learn import encoder_of
from mio_rag.cli.options import Json, Sets, arg, check_ending, numbers, opt
from mio_rag.cli.output import Output, open_output
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import DataError, InputError

if TYPE_CHECKING:
    from mio_rag.session.trace import Trace

policy_app = typer.Typer(
    help="Policies: what decides how a question is searched, read and answered, at one price.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
policy_app.add_typer(fit_app, name="fit")
Named = Annotated[str, arg("A policy file, or a preset.", "FILE|PRESET")]


@policy_app.command("new")
def policy_new(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="What to begin with.")] = DEFAULTS.policy,
    set_: Sets = None,
    out: Annotated[Path | None, opt("File to write. [default: stdout]")] = None,
) -> None:
    """Print a policy file to begin your own with.

    \b
      mio-rag policy new balanced > mine.toml
      mio-rag policy new --set price.token=0.001 --out mine.toml
    """
    from mio_rag.policy_files import preset_text
    from mio_rag.storage import write_atomically

    output = open_output(False)
    check_ending("--out", out, ".toml")
    text = preset_text(preset)
    if set_:
        text = Chosen.of(preset, set_).check().policy.to_toml()
    if out is not None:
        write_atomically(out, text)
    else:
        output.console.print(text, end="", soft_wrap=True)


@policy_app.command("check")
def policy_check(
    policy: Named,
    set_: Sets = None,
    index: Annotated[Path | None, opt("Also compare what was learned with this index.")] = None,
    json_output: Json = False,
) -> None:
    """Find everything that is wrong with a policy and its files. No model is loaded, nothing spent."""
    from mio_rag.policy_files import resolve
    from mio_rag.retrieval.index import CorpusIndex

    output = open_output(json_output)
    found = Chosen.of(policy, set_).policy
    states = resolve(found)
    if index is not None:
        states.check(CorpusIndex.load(index).embedder.fingerprint)
    told = {"name": found.name, "sha256": states.sha256, "files": dict(states.hashes)}
    count = len(states.hashes)
    files = f", with {count} file{'s' if count > 1 else ''}" if count else ""
    lines = [f"{found.name} is valid{files}; content {states.sha256[:12]}"]
    output.result(told, *lines)


@policy_app.command("show")
def policy_show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A policy, a workflow (also as JSON file), or the file of a router or planner.",
        ),
    ] = DEFAULTS.policy,
    set_: Sets = None,
    show_keys: Annotated[
        bool, opt("List all keys of a policy file, with meaning and default.", "--keys")
    ] = False,
    json_output: Json = False,
) -> None:
    """Show what decides, at which price and within which limits."""
    from mio_rag.cli.show_control import print_planner, print_policy, print_router, router_json
    from mio_rag.policies.describe import policy_json
    from mio_rag.policy import PRESETS
    from mio_rag.policy_files import resolve
    from mio_rag.session.workflow import NAMED

    output = open_output(json_output)
    if show_keys:
        _print_keys(output)
    elif name.endswith(".safetensors"):
        from mio_rag.learning.planner import planner_about, read_planner
        from mio_rag.learning.router_model import read_router

        try:
            about = planner_about(read_planner(name))
        except DataError as error:
            if "is of the kind 'router'" not in str(error):
                raise
            router = read_router(name)
            output.result(router_json(router), lambda: print_router(output.console, router))
            return
        output.result(about, lambda: print_planner(output.console, about))
    elif name in NAMED or name.endswith(".json") or name.startswith("workflow:"):
        _show_workflow(output, name.removeprefix("workflow:"))
    elif name in PRESETS or name.endswith(".toml"):
        policy = Chosen.of(name, set_).policy
        states = resolve(policy)
        output.result(policy_json(policy, states), lambda: print_policy(output.console, policy, states))
    else:
        Chosen.of(name, set_).check()
        output.console.print(f"{name} is a policy that is known by name: see `mio-rag policy list`")


def _show_workflow(output: Output, name: str) -> None:
    from mio_rag.session.workflow import find_workflow, workflow_problems, workflow_text

    found = find_workflow(name)
    # Which models there are, and what they cost, is known where it runs.
    if problems := workflow_problems(found, models=found.models, prices=found.models):
        raise InputError(problems)
    output.result(found.to_dict(), workflow_text(found))


def _print_keys(output: Output) -> None:
    """Print every key of a policy file."""
    from mio_rag.settings import plain

    found = keys().values()
    if output.as_json:
        told = {
            one.name: {"help": one.help, "default": _plain_default(one.default), "with": one.of}
            for one in found
        }
        output.json({"keys": plain(told)})
        return
    for one in found:
        default = _plain_default(one.default)
        shown = "" if default in (None, "", [], {}) else f" [default: {default}]"
        only = f" [with by = {one.of}]" if one.of else ""
        output.console.print(f"{one.name}", style="bold", end="")
        output.console.print(f"{shown}{only}", style="dim", soft_wrap=True)
        if one.help:
            output.console.print(f"    {one.help}", soft_wrap=not output.console.is_terminal)


def _plain_default(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


@policy_app.command("list")
def policy_list(json_output: Json = False) -> None:
    """List presets, policies that are known by name, and workflows."""
    from mio_rag.cli.show_control import print_named, print_presets
    from mio_rag.policies.make import kind_names
    from mio_rag.policy import PRESETS
    from mio_rag.session.workflow import NAMED

    output = open_output(json_output)
    if json_output:
        flows = [found.to_dict() for found in NAMED.values()]
        output.json({"presets": dict(PRESETS), "policies": kind_names(), "workflows": flows})
        return
    print_presets(output.console, PRESETS)
    names = [{"tier": "tier:NAME", "strategies": "strategies:A+B", "workflow": "workflow:NAME"}.get(n, n)
             for n in kind_names() if n != "policy"]  # fmt: skip
    told = (
        f"\nby name: {', '.join(names)}; rules may end with @tracked, @confidence, @evidence or @complete\n"
    )
    output.console.print(told, soft_wrap=True)
    print_named(output.console, NAMED)


# -- replay -----------------------------------------------------------------------------------------------


@policy_app.command("replay")
def policy_replay(
    path: Annotated[
        Path, arg("Traces of ask or evaluate, outcomes of policy fit planner, or a bandit's .sqlite file.")
    ],
    planner: Annotated[Path | None, opt("File of the planner that decides.")] = None,
    embedder: Annotated[str, opt("Of the planner: as in index, or an index.")] = DEFAULTS.embedder,
    prices: Annotated[str, opt("With outcomes: prices of a unit of cost.")] = "0,0.05,0.1,0.2,0.5",
    every: Annotated[bool, opt("With outcomes: also questions that training has seen.", "--all")] = False,
    question: Annotated[str | None, opt("Show the traces of this question (id or text) in full.")] = None,
    bandit: Annotated[str, opt("Of a bandit: linucb, thompson, epsilon-greedy or uniform.")] = "linucb",
    rule: Annotated[str, opt("Of a bandit: program, or margin, the published rule.")] = "program",
    price: Annotated[float | None, opt("Of a bandit: price of a token. [that of the log]")] = None,
    width: Annotated[
        float | None, opt("Of a bandit: width of the upper confidence. [that of the log]")
    ] = None,
    json_output: Json = False,
) -> None:
    """Make recorded decisions again, or estimate what others would bring.

    No model is asked. Traces: status 1 where a decision comes out differently. Outcomes: quality and cost of
    a planner at every price. A bandit's log: what another one would have earned, with 95 % intervals.
    """
    output = open_output(json_output)
    if path.suffix == ".sqlite":
        _replay_bandit(output, path, bandit, rule, price, width)
    elif (path / "outcomes.parquet").is_file():
        _replay_outcomes(output, path, planner, embedder, prices, every)
    else:
        _replay_traces(output, path, planner, embedder, question)


def _replay_bandit(
    output: Output, path: Path, bandit: str, rule: str, price: float | None, width: float | None
) -> None:
    from mio_rag.cli.show_control import print_replay
    from mio_rag.learning.bandit_report import replay, settings_of

    given: dict[str, Any] = {"policy": bandit, "rule": rule}
    given |= {} if width is None else {"alpha": width}
    given |= {} if price is None else {"token_price": price}
    found = replay(path, settings_of(path).replace(**given))
    output.result(asdict(found), lambda: print_replay(output.console, found))


def _replay_outcomes(
    output: Output, folder: Path, planner: Path | None, embedder: str, prices: str, every: bool
) -> None:
    import numpy as np

    from mio_rag.cli.show_control import print_points
    from mio_rag.learning.planner import read_planner
    from mio_rag.learning.planner_training import fixed_points, frontier, never_seen, read_table

    if planner is None:
        raise InputError("outcomes are replayed by a planner: give --planner")
    asked, found = numbers("--prices", prices), read_planner(planner)
    for price in asked:
        found.checked_alpha(price)
    own = [name for name in map(str, folder.glob("*.json")) if name.endswith(".workflow.json")]
    table = read_table(folder, encoder_of(embedder), own)
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
    experience = table.experience(found.tree, found.features, places, found.unit, found.cost)
    points = [*fixed_points(experience, asked[0]), *frontier(found, experience, asked)]
    output.result(
        {"questions": len(places), "points": [point.to_dict() for point in points]},
        f"{len(places)} questions; a cost of 1 is {found.unit:.4g} {found.cost}",
        lambda: print_points(output.console, points),
    )


def _replay_traces(
    output: Output, path: Path, planner: Path | None, embedder: str, question: str | None
) -> None:
    from mio_rag.cli.show_control import print_run
    from mio_rag.errors import DataError
    from mio_rag.learning.planner import read_planner
    from mio_rag.learning.planner import replay as replay_workflow
    from mio_rag.learning.rules import replay as replay_rule
    from mio_rag.session.trace import read_traces

    learned = None if planner is None else read_planner(planner)
    encoder = encoder_of(embedder) if learned is not None and learned.embedder else None
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
    if output.as_json:
        shown = [t.to_dict() for t in traces] if question is not None else []
        output.json({"traces": len(checked), "differing": differing, "shown": shown})
    else:
        for trace in traces if question is not None else []:
            output.console.print(f"\n{trace.policy}: {trace.question}", style="bold")
            output.console.print(trace.answer or "(no answer)")
            print_run(output.console, trace)
        output.console.print(f"{len(checked)} traces replayed, {len(differing)} differ")
        for entry in differing[:10]:
            output.console.print(
                f"{entry['question']}, {entry['policy']}: {entry['differs'][0]}", soft_wrap=True
            )
    if differing:
        raise typer.Exit(1)


# -- state ------------------------------------------------------------------------------------------------

state_app = typer.Typer(
    help="What a bandit has learned about search strategies, in the file of search.state.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
policy_app.add_typer(state_app, name="state")
State = Annotated[Path, arg("SQLite file of search.state.")]


@state_app.command("show")
def state_show(
    state: State,
    json_output: Json = False,
) -> None:
    """Show how often each strategy ran, and what was learned of it."""
    from mio_rag.cli.show_control import print_stats
    from mio_rag.learning.bandit_report import stats_of

    output = open_output(json_output)
    found = stats_of(state)
    output.result(found, lambda: print_stats(output.console, found))


@state_app.command()
def feedback(
    state: State,
    question: Annotated[str, arg("Id that select, ask or serve showed.")],
    rating: Annotated[str, arg("helpful or unhelpful.")],
    json_output: Json = False,
) -> None:
    """Rate the answer to a question, once.

    The strategies that found what was read are credited.
    """
    from mio_rag.learning.bandit_log import EventLog
    from mio_rag.learning.strategist import rate

    output = open_output(json_output)
    values = {"helpful": 1, "unhelpful": -1}
    if rating not in values:
        raise InputError(f"rating '{rating}' is unknown: give helpful or unhelpful")
    new = rate(EventLog(state), question, values[rating], time.time())
    told = "noted" if new else "this question was rated before: nothing changes"
    output.result({"question": question, "rating": rating, "new": new}, told)


@state_app.command()
def recalibrate(
    state: State,
    window_days: Annotated[float, opt("Days to learn from.")] = 30.0,
    holdout: Annotated[float, opt("Share of them, the last ones, to compare on.")] = 0.2,
    json_output: Json = False,
) -> None:
    """Fit the models on the last days alone.

    They take over if they are not worse on later questions.
    """
    from mio_rag.learning.bandit_report import recalibrate as recalibrated
    from mio_rag.learning.bandit_report import settings_of

    output = open_output(json_output)
    found = recalibrated(state, settings_of(state).replace(window_days=window_days, holdout=holdout))
    verdict = "the new models take over" if found.deployed else "the old models stay"
    output.result(
        asdict(found),
        f"{found.window} questions to learn from, {found.holdout} later ones to compare on (strategies ran "
        f"on {found.compared} of them): squared error {found.loss:.5f} in use, {found.new_loss:.5f} new; "
        f"difference in [{found.low:+.5f}, {found.high:+.5f}]: {verdict}",
    )


@state_app.command()
def rebuild(state: State, json_output: Json = False) -> None:
    """Replay the whole log, without the snapshot."""
    from mio_rag.learning.bandit_report import rebuild as rebuilt

    output = open_output(json_output)
    events = rebuilt(state)
    output.result({"events": events}, f"{events} events replayed")


@state_app.command()
def export(
    state: State,
    out: Annotated[Path, opt("File to write, for instance prior.safetensors.")],
    json_output: Json = False,
) -> None:
    """Write what was learned, as a prior for another state."""
    from mio_rag.learning.bandit_report import export as exported

    output = open_output(json_output)
    questions = exported(state, out)
    told = f"learned from {questions} questions: {out}"
    output.result({"questions": questions, "out": str(out)}, told)


@state_app.command(name="import")
def import_(
    state: State,
    prior: Annotated[Path, arg("File that export wrote.")],
    weight: Annotated[float, opt("How hard it is to move, in units of the ridge.")] = 1.0,
    json_output: Json = False,
) -> None:
    """Start from what another state learned, as a prior mean."""
    from mio_rag.learning.bandit_report import start_from

    output = open_output(json_output)
    start_from(state, prior, weight)
    output.result({"prior": str(prior), "weight": weight}, "the prior is part of the log")


@state_app.command()
def prune(
    state: State,
    strategy: Annotated[str, arg("Strategy to put on probation.")],
    kind: Annotated[str, opt("Type of question: who, when, which, yes-no, ...", "--type")],
    lift: Annotated[bool, opt("End the probation instead.", "--lift")] = False,
    json_output: Json = False,
) -> None:
    """Let a strategy run only rarely for a type of question."""
    from mio_rag.learning.bandit_report import prune as pruned

    output = open_output(json_output)
    changed = pruned(state, strategy, kind, not lift)
    where = f"on probation for '{kind}' questions"
    if not lift:
        told = f"is {where}{'' if changed else ' already'}; --lift ends it"
    elif changed:
        told = f"is no longer put {where}; what was learned may still do so"
    else:
        told = f"was not put {where}: nothing changes"
    data = {"strategy": strategy, "type": kind, "probation": not lift, "changed": changed}
    output.result(data, f"{strategy} {told}")


@state_app.command()
def add(
    state: State,
    strategy: Annotated[str, arg("Strategy to choose among from now on.")],
    json_output: Json = False,
) -> None:
    """Choose among one more strategy; what was learned of the others stays."""
    from mio_rag.learning.bandit_report import add_strategy

    output = open_output(json_output)
    new = add_strategy(state, strategy)
    told = "added" if new else "it is chosen among already: nothing changes"
    output.result({"strategy": strategy, "new": new}, told)
