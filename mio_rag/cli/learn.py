"""Commands about routers and strategies: route, strategies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli.control_options import read_utility
from mio_rag.cli.options import Json, ModeName, Pool, load_index
from mio_rag.cli.output import ReportingGroup, kept_rows, open_output
from mio_rag.errors import DataError, InputError, collect

if TYPE_CHECKING:
    from mio_rag.generation import Generator
    from mio_rag.learning.router import By, Unanswered
    from mio_rag.session.tiers import Tier


# -- route -----------------------------------------------------------------------------------------------

route_app = typer.Typer(
    help="How much a question needs, by tiers. Of depth, context and answer, and who chooses among them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _check_parquet(out: Path) -> None:
    if out.suffix != ".parquet" or out.is_dir():
        raise InputError(f"--out={out} must be a file that ends in .parquet")


def _tiers(path: Path | None) -> tuple[Tier, ...]:
    from mio_rag.session.tiers import PUBLISHED, read_tiers

    return PUBLISHED if path is None else read_tiers(path)


def _reader(generator: str | None, replies: Path) -> Generator | None:
    """The model that answers; what it says is kept in a file, where that can be kept."""
    from mio_rag.generation import make_generator
    from mio_rag.generation.replies import RememberingGenerator

    if generator is None:
        return None
    made = make_generator(generator)
    if made.identity is None or isinstance(made, RememberingGenerator):
        return made
    return cast("Generator", RememberingGenerator(made, replies))


@route_app.command("label")
def label_command(
    data: Annotated[str, typer.Argument(help="Folder with corpus and questions, 'demo' or hf:NAME.")],
    index: Annotated[Path, typer.Option("--index", help="Index of this corpus.")],
    out: Annotated[
        Path, typer.Option("--out", help="Table of outcomes (.parquet); its run and replies lie beside it.")
    ],
    generator: Annotated[
        str | None, typer.Option("--generator", help="As in ask; not needed by evidence.")
    ] = None,
    tiers: Annotated[
        Path | None, typer.Option("--tiers", help="TOML file of tiers. [the three published ones]")
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="answers: exact match, or F1 of .6; evidence: all gold is read.")
    ] = "answers",
    unanswered: Annotated[
        str,
        typer.Option(
            "--unanswered",
            help="Label of a question that no tier answers: published (several hops the dearest tier, others "
            "the middle one), cheapest or dearest.",
        ),
    ] = "published",
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Recorded with the run.")] = 0,
    json_output: Json = False,
) -> None:
    """Run every tier on every question. Each is labelled with the cheapest tier that does.

    An interrupted run is continued by the same command; replies of the model are kept.
    """
    from mio_rag.cli.show_control import print_labels
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.tiers import LabelSettings, label_questions
    from mio_rag.generation import check_generator
    from mio_rag.learning.router import write_table
    from mio_rag.retrieval.index import check_index
    from mio_rag.retrieval.settings import Mode, RetrievalSettings
    from mio_rag.storage import make_parent

    work = out.with_suffix(".run")
    output = open_output(json_output, kept_rows(work, "run the same command to go on"))

    def settings() -> LabelSettings:
        given, found = collect(
            lambda: _tiers(tiers), lambda: RetrievalSettings(pool, cast("Mode", retrieval), None, ())
        )
        return LabelSettings(
            given, cast("By", by), cast("Unanswered", unanswered), retrieval=found, limit=limit, seed=seed
        )

    def reader() -> None:
        if generator is not None:
            check_generator(generator)
        elif by == "answers":
            raise InputError("labels by answers need a model: give --generator, or --by evidence")

    given, *_ = collect(
        settings,
        reader,
        lambda: _check_parquet(out),
        lambda: check_source(data),
        lambda: check_index(index),
    )
    make_parent(out)
    dataset, corpus, model = collect(
        lambda: load_dataset(data),
        lambda: load_index(index),
        lambda: _reader(generator, out.with_suffix(".replies.sqlite")),
    )
    try:
        with progress_bar("labelling", len(dataset.questions[:limit])) as advance:
            found = label_questions(dataset, corpus, model, given, work, advance)
    finally:
        if model is not None:
            model.close()
    write_table(found.table, out)
    if json_output:
        shares = (found.table.outcomes.values["label"].mean(axis=0)).tolist()
        output.json(
            {
                "out": str(out),
                "questions": len(found.table),
                "unlabelled": found.unlabelled,
                "failed": found.failed,
                "unanswered": found.unanswered,
                "tiers": [tier.name for tier in given.tiers],
                "label_shares": shares,
            }
        )
        return
    print_labels(output.console, found)
    output.console.print(str(out), soft_wrap=True)


@route_app.command("train")
def train_command(
    tables: Annotated[list[Path], typer.Argument(help="Tables of outcomes of `mio-rag route label`.")],
    out: Annotated[Path, typer.Option("--out", help="File for the router (.safetensors).")],
    kind: Annotated[
        str, typer.Option("--kind", help="logistic, utility, or mlp (as published).")
    ] = "logistic",
    features: Annotated[
        str, typer.Option("--features", help="What it goes by: question+search, or question.")
    ] = "question+search",
    utility: Annotated[
        str | None,
        typer.Option("--utility", help="What the figures of the kind utility are at. [1,0.0005,0,0]"),
    ] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", help="How often the plausible tiers hold the right one.")
    ] = 0.9,
    correct_rate: Annotated[
        float | None,
        typer.Option("--correct-rate", help="Share of searches to call weak, and to read 5 passages more."),
    ] = None,
    correct_below: Annotated[
        float | None,
        typer.Option("--correct-below", help="The same below this cosine; .52 is published."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of folds and network.")] = 0,
    json_output: Json = False,
) -> None:
    """Train a router, and measure it on questions that it has not seen."""
    from mio_rag.cli.show_control import print_router, router_json
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.learning.router import FOLDS, FitSettings, fit_and_validate, read_table
    from mio_rag.learning.weights import write_weights

    output = open_output(json_output)

    def where() -> None:
        if out.suffix != ".safetensors" or out.is_dir():
            raise InputError(f"--out={out} must be a file that ends in .safetensors")

    settings, prices, table, _ = collect(
        lambda: FitSettings(
            kind=cast("Any", kind),
            features=cast("Any", features),
            seed=seed,
            confidence=confidence,
            correct_rate=correct_rate,
            correct_below=correct_below,
        ),
        lambda: read_utility(utility),
        lambda: read_table(tables),
        where,
    )
    with progress_bar("folds", FOLDS) as advance:
        made, _ = fit_and_validate(table, settings, prices, advance)
    write_weights(made.router.weights(), out)
    if json_output:
        output.json({"out": str(out), **router_json(made.router)})
        return
    print_router(output.console, made.router)
    output.console.print(str(out), soft_wrap=True)


@route_app.command("show")
def show_command(
    router: Annotated[Path, typer.Argument(help="File of a router.")],
    json_output: Json = False,
) -> None:
    """Show a router. Its tiers, what it goes by, where it comes from, and what its folds said."""
    from mio_rag.cli.show_control import print_router, router_json
    from mio_rag.learning.router_model import read_router

    output = open_output(json_output)
    if not router.is_file():
        raise DataError(f"'{router}' does not exist: give the file of a router")
    found = read_router(str(router))
    if json_output:
        output.json(router_json(found))
        return
    print_router(output.console, found)


# -- strategies ------------------------------------------------------------------------------------------

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
    from mio_rag.cli.show_control import print_stats
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

    from mio_rag.learning.bandit_log import EventLog
    from mio_rag.learning.strategist import rate

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
    from mio_rag.cli.show_control import print_replay
    from mio_rag.learning.bandit_report import replay as replayed
    from mio_rag.learning.bandit_report import settings_of

    output = open_output(json_output)
    given: dict[str, Any] = {"policy": policy, "rule": rule}
    given |= {} if alpha is None else {"alpha": alpha}
    given |= {} if price is None else {"token_price": price}
    found = replayed(state, settings_of(state).replace(**given))
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
    found = recalibrated(state, settings_of(state).replace(window_days=window_days, holdout=holdout))
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
