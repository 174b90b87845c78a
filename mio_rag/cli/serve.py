"""The command serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mio_rag.cli.control_options import (
    CacheOptions,
    PlannerOptions,
    PolicyOption,
    RefusalFile,
    RouterOptions,
    StrategyChoice,
    read_refusal,
)
from mio_rag.cli.options import GeneratorSpec, Mapped, MoneyOptions, OwnConfigFile, spread
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect


@dataclass(frozen=True)
class LimitOptions:
    """Limits on requests and waiting requests."""

    max_body_bytes: int = 16_384
    """Largest body of a request."""
    max_pool: int = 200
    """Maximum candidates of a request."""
    max_budget_tokens: int = 8_192
    """Largest budget of a request."""
    max_answer_tokens: int = 512
    """Longest answer of a request."""
    max_deadline_seconds: Annotated[
        float, typer.Option("--max-deadline", help="Longest deadline of a request, in seconds.")
    ] = 30.0
    concurrency: int = 2
    """Requests that a worker process handles at once."""
    queue: int = 64
    """Requests that may wait; further ones get 503."""
    max_wait_seconds: Annotated[
        float, typer.Option("--max-wait", help="Maximum wait in seconds; then 503.")
    ] = 10.0


@dataclass(frozen=True)
class ConnectionOptions:
    """Limits on connections and their timeouts."""

    max_connections: int = 512
    """Connections of a worker process; a new one replaces the longest idle one."""
    max_connections_per_client: int = 128
    """Connections of one address."""
    trusted_proxies: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy",
            metavar="ADDRESS",
            help="Address or network of a proxy that serves many clients. Repeatable.",
            show_default="this machine",
        ),
    ] = None
    header_seconds: Annotated[
        float, typer.Option("--header-timeout", help="Seconds to receive the headers of a request.")
    ] = 10.0
    body_seconds: Annotated[
        float, typer.Option("--body-timeout", help="Seconds to receive the body after the headers.")
    ] = 10.0
    unread_seconds: Annotated[
        float, typer.Option("--unread-timeout", help="Seconds that a response may be left unread.")
    ] = 30.0
    idle_seconds: Annotated[
        float, typer.Option("--idle-timeout", help="Seconds between two requests of a connection.")
    ] = 30.0


@dataclass(frozen=True)
class PacingOptions:
    """Tokens that all requests together may spend."""

    tokens_per_day: int | None = None
    """Tokens of a day (UTC), spent where they bring most."""
    tokens_per_hour: int | None = None
    """The same for every hour."""
    pacer_state: Annotated[
        Path | None,
        typer.Option(
            "--pacer-state",
            metavar="FOLDER",
            help="Where the count of tokens is kept.",
            show_default="beside the index",
        ),
    ] = None
    start_price: Annotated[
        float | None,
        typer.Option(
            "--start-price",
            help="Price of a token to begin with, as a probability that what is needed is there.",
            show_default="0.001; later yesterday's",
        ),
    ] = None
    mean_tokens: float | None = None
    """Forecast: tokens that requests take in the mean at --start-price, as `tune --mean-tokens` finds it."""


def _policy_file(policy: str | None) -> str | None:
    """A policy as worker processes find it, wherever they start."""
    from mio_rag.policy import PRESETS

    return policy if policy is None or policy in PRESETS else str(Path(policy).absolute())


@spread
def serve(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option("--workers", help="Processes.")] = 1,
    generator: GeneratorSpec = "extractive",
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="File with the key; or set MIO_RAG_API_KEY.")
    ] = None,
    without_key: Annotated[
        bool, typer.Option("--without-key", help="Allow access from other machines without a key.")
    ] = False,
    example: Annotated[
        list[str] | None,
        typer.Option(
            "--example",
            metavar="QUESTION",
            help="Question that the page proposes. Repeatable.",
            show_default="from the index",
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(
            "--curve",
            metavar="FILE",
            help="Curve over prices for the page: frontier.json of frontier data --token-prices, or the file "
            "of tune --mean-tokens.",
            show_default="the newest of this index beside it",
        ),
    ] = None,
    config: OwnConfigFile = None,
    refusal: RefusalFile = None,
    mapped: Mapped = False,
    *,
    limits: LimitOptions,
    clients: ConnectionOptions,
    tokens: PacingOptions,
    money: MoneyOptions,
    caching: CacheOptions,
    routing: RouterOptions,
    search: StrategyChoice,
    planner: PlannerOptions,
    policy: PolicyOption = None,
) -> None:
    """Serve selections and answers over HTTP, with a web page at /."""
    from mio_rag.generation import check_generator
    from mio_rag.policies.make import check_controllers
    from mio_rag.policies.setup import ControlSettings
    from mio_rag.retrieval.index import check_index
    from mio_rag.service.page import HOW, curve_beside, read_curve
    from mio_rag.service.run import check
    from mio_rag.service.run import serve as run
    from mio_rag.service.settings import (
        ConnectionLimits,
        Kept,
        Planning,
        ServiceLimits,
        ServiceSettings,
        Strategies,
        excluded,
        make_pacing,
        read_key,
    )

    output, examples = open_output(False), tuple(example or ())
    named = search.controller
    strategies = None if named is None else Strategies(named, search.kinds())

    def checked() -> str | None:
        key = read_key(api_key_file)
        where = ServiceSettings(
            str(index), generator, host, port, workers, examples=examples, policy=_policy_file(policy)
        )
        check(where, key, without_key)
        return key

    def alone() -> None:
        """Before anything is made of them: a total writes its file."""
        options = {
            "--policy": policy,
            "--planner": planner.planner,
            "--router": routing.router,
            "--strategies": strategies,
            "--tokens-per-day": tokens.tokens_per_day,
            "--tokens-per-hour": tokens.tokens_per_hour,
            "--prices": money.prices,
            "--cache": caching.cache,
            "--refusal": refusal,
        }
        if problems := excluded([name for name, value in options.items() if value is not None]):
            raise InputError(problems)

    def routed() -> dict[str, Any] | None:
        if routing.router is None:
            routing.unused()
            return None
        return routing.settings().to_dict()

    def planned() -> Planning | None:
        """The planner; its options say what is wrong with them also where there is none."""
        kinds = planner.kinds(["planner"] if planner.planner is not None else [])
        if planner.planner is None:
            return None
        check_controllers(["planner"], ControlSettings(kinds=kinds), closed_book=False)
        return Planning(kinds)

    bounds, connections, key, _, pacing, prices, keeping, chooser, planning, *_ = collect(
        lambda: ServiceLimits(**vars(limits)),
        lambda: ConnectionLimits(**{k: v for k, v in vars(clients).items() if v is not None}),
        checked,
        alone,
        lambda: make_pacing(
            tokens.tokens_per_day,
            tokens.tokens_per_hour,
            tokens.pacer_state,
            index,
            workers,
            tokens.start_price,
            tokens.mean_tokens,
        ),
        lambda: money.money(),
        caching.checked,
        routed,
        planned,
        lambda: check_index(index),
        lambda: check_generator(generator),
        lambda: None if curve is None else read_curve(curve),
        search.check,
        lambda: None if refusal is None else read_refusal(refusal, ()),
    )
    shown_curve = curve or curve_beside(index)
    kept = None if keeping is None else Kept(str(caching.cache), **vars(keeping))
    settings = ServiceSettings(
        str(index),
        generator,
        host,
        port,
        workers,
        bounds,
        connections,
        examples,
        pacing,
        prices,
        None if shown_curve is None else str(shown_curve.resolve()),
        kept,
        chooser,
        strategies,
        _policy_file(policy),
        mapped,
        None if refusal is None else str(refusal.resolve()),
        planning,
    )
    shown = f"[{host}]" if ":" in host else host

    answered = False

    def ready() -> None:
        nonlocal answered
        answered = True
        output.console.print(f"mio-rag on http://{shown}:{port}  (page: /, reference: /docs, Ctrl-C ends it)")

    def loading() -> None:
        if pacing is not None:
            output.console.print(pacing.explain(), soft_wrap=True)
        if shown_curve is not None:
            output.console.print(f"curve over prices for the page: '{shown_curve}'", soft_wrap=True)
        elif pacing is not None or prices is not None:
            output.console.print(HOW, soft_wrap=True)
        output.console.print("loading index and models ...")

    try:
        run(settings, key, without_key, ready, loading)
    except KeyboardInterrupt:
        if not answered:
            raise
        return  # requests under way were finished
