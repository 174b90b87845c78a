"""``mio-rag strategies``: what a bandit has learned about search strategies, and what can be done with it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mio_rag.cli.options.shared import Json
from mio_rag.cli.output import ReportingGroup, open_output
from mio_rag.errors import InputError

__all__ = ["strategies_app"]

strategies_app = typer.Typer(
    name="strategies",
    cls=ReportingGroup,
    help="What a bandit has learned about search. Statistics of strategies, feedback, replay, recalibration.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

State = Annotated[Path, typer.Argument(help="SQLite file that --strategy-state wrote.")]


@strategies_app.command()
def stats(
    state: State,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Also draw the log into this .png, .svg or .pdf file.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Show what each strategy brought. How often it ran, and what was learned."""
    from mio_rag.cli.show.strategies import print_stats
    from mio_rag.learning.bandit_report import plot_log, stats_of

    output = open_output(json_output)
    found = stats_of(state)
    if plot is not None:
        plot_log(state, plot)
    if json_output:
        output.json(found)
    else:
        print_stats(output.console, found)


@strategies_app.command()
def feedback(
    state: State,
    question: Annotated[str, typer.Argument(help="Id that select, ask or serve showed.")],
    rating: Annotated[str, typer.Argument(help="helpful or unhelpful.")],
    json_output: Json = False,
) -> None:
    """Rate the answer to a question. The strategies that found what was read are credited; counts once."""
    import time

    from mio_rag.control.bandit.strategist import rate
    from mio_rag.learning.bandit_log import EventLog

    output = open_output(json_output)
    values = {"helpful": 1, "unhelpful": -1}
    if rating not in values:
        raise InputError(f"rating '{rating}' is unknown: give helpful or unhelpful")
    new = rate(EventLog(state), question, values[rating], time.time())
    if json_output:
        output.json({"question": question, "rating": rating, "new": new})
    else:
        output.console.print("noted" if new else "this question was rated before: nothing changes")


@strategies_app.command()
def replay(
    state: State,
    policy: Annotated[
        str, typer.Option("--policy", help="linucb, thompson, epsilon-greedy or uniform.")
    ] = "linucb",
    rule: Annotated[str, typer.Option("--rule", help="program, or margin: the published rule.")] = "program",
    price: Annotated[
        float | None,
        typer.Option("--strategy-price", help="What a token of the model must add. [that of the log]"),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Width of the upper confidence. [that of the log]")
    ] = None,
    json_output: Json = False,
) -> None:
    """Estimate what another policy would have earned. On the logged questions, with 95 % intervals."""
    from mio_rag.cli.show.strategies import print_replay
    from mio_rag.learning.bandit_report import replay as replayed
    from mio_rag.learning.bandit_report import settings_of

    output = open_output(json_output)
    given: dict[str, Any] = {"policy": policy, "rule": rule}
    given |= {} if alpha is None else {"alpha": alpha}
    given |= {} if price is None else {"token_price": price}
    found = replayed(state, replace(settings_of(state), **given))
    if json_output:
        output.json(asdict(found))
    else:
        print_replay(output.console, found)


@strategies_app.command()
def recalibrate(
    state: State,
    window_days: Annotated[float, typer.Option("--window-days", help="Days to learn from.")] = 30.0,
    holdout: Annotated[
        float, typer.Option("--holdout", help="Share of them, the last ones, to compare on.")
    ] = 0.2,
    json_output: Json = False,
) -> None:
    """Fit the models on the last days alone. They take over only if they are not worse on later questions."""
    from mio_rag.learning.bandit_report import recalibrate as recalibrated
    from mio_rag.learning.bandit_report import settings_of

    output = open_output(json_output)
    found = recalibrated(state, replace(settings_of(state), window_days=window_days, holdout=holdout))
    if json_output:
        output.json(asdict(found))
        return
    verdict = "the new models take over" if found.deployed else "the old models stay"
    output.console.print(
        f"{found.window} questions to learn from, {found.holdout} later ones to compare on (strategies ran "
        f"on {found.compared} of them): squared error "
        f"{found.loss:.5f} in use, {found.new_loss:.5f} new; difference in [{found.low:+.5f}, "
        f"{found.high:+.5f}]: {verdict}",
        soft_wrap=True,
    )


@strategies_app.command()
def rebuild(state: State, json_output: Json = False) -> None:
    """Fold the whole log afresh, without the snapshot."""
    from mio_rag.learning.bandit_report import rebuild as rebuilt

    output = open_output(json_output)
    events = rebuilt(state)
    if json_output:
        output.json({"events": events})
    else:
        output.console.print(f"{events} events folded")


@strategies_app.command()
def export(
    state: State,
    out: Annotated[Path, typer.Option("--out", help="File to write, for instance prior.safetensors.")],
    json_output: Json = False,
) -> None:
    """Write what was learned, as a prior. Another state can start from it."""
    from mio_rag.learning.bandit_report import export as exported

    output = open_output(json_output)
    questions = exported(state, out)
    if json_output:
        output.json({"questions": questions, "out": str(out)})
    else:
        output.console.print(f"what {questions} questions taught: {out}", soft_wrap=True)


@strategies_app.command(name="import")
def import_(
    state: State,
    prior: Annotated[Path, typer.Argument(help="File that export wrote.")],
    weight: Annotated[
        float, typer.Option("--weight", help="How hard it is to move, in units of the ridge.")
    ] = 1.0,
    json_output: Json = False,
) -> None:
    """Start from what another state learned, as a prior mean."""
    from mio_rag.learning.bandit_report import start_from

    output = open_output(json_output)
    start_from(state, prior, weight)
    if json_output:
        output.json({"prior": str(prior), "weight": weight})
    else:
        output.console.print("the prior is part of the log")


@strategies_app.command()
def prune(
    state: State,
    strategy: Annotated[str, typer.Argument(help="Strategy to put on probation.")],
    kind: Annotated[str, typer.Option("--type", help="Type of question: who, when, which, yes-no, ...")],
    lift: Annotated[bool, typer.Option("--lift", help="End the probation instead.")] = False,
    json_output: Json = False,
) -> None:
    """Put a strategy on probation. For a type of question it then runs only rarely, to be tried again."""
    from mio_rag.learning.bandit_report import prune as pruned

    output = open_output(json_output)
    changed = pruned(state, strategy, kind, not lift)
    if json_output:
        output.json({"strategy": strategy, "type": kind, "probation": not lift, "changed": changed})
    else:
        where = f"on probation for '{kind}' questions"
        if lift:
            told = f"was not put {where}: nothing changes"
            if changed:
                told = f"is no longer put {where}; what was learned may still do so"
        else:
            told = f"is {where}{'' if changed else ' already'}; --lift ends it"
        output.console.print(f"{strategy} {told}", soft_wrap=True)


@strategies_app.command()
def add(
    state: State,
    strategy: Annotated[str, typer.Argument(help="Strategy to choose among from now on.")],
    json_output: Json = False,
) -> None:
    """Choose among one strategy more. What was learned of the others stays."""
    from mio_rag.learning.bandit_report import add_strategy

    output = open_output(json_output)
    new = add_strategy(state, strategy)
    if json_output:
        output.json({"strategy": strategy, "new": new})
    else:
        output.console.print("added" if new else "it is chosen among already: nothing changes")
