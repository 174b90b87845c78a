"""The command serve."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

from mio_rag.cli import options as o
from mio_rag.cli.chosen import Chosen, settings_table
from mio_rag.cli.output import open_output
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, collect
from mio_rag.policy import PRESETS, READER

#: Parts of a policy that change nothing about how a question is decided.
_ASIDE = ("server.", "answers.", "models.reader", "price.worth")


def serve(
    path: o.SourcePath,
    host: Annotated[str, o.opt("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, o.opt("Port to listen on.")] = 8000,
    workers: Annotated[int, o.opt("Processes.")] = 1,
    model: o.Model = None,
    policy: o.PolicyName = DEFAULTS.policy,
    set_: o.Sets = None,
    embedder: o.EmbedderName = DEFAULTS.embedder,
    api_key_file: Annotated[Path | None, o.opt("File with the key; or set MIO_RAG_API_KEY.")] = None,
    without_key: Annotated[
        bool, o.opt("Allow access from other machines without a key.", "--without-key")
    ] = False,
    max_budget: Annotated[int | None, o.opt("Largest budget of a request. [default: 8192]")] = None,
    max_answer: Annotated[int | None, o.opt("Longest answer of a request. [default: 512]")] = None,
    concurrency: Annotated[int | None, o.opt("Requests that a process handles at once. [default: 2]")] = None,
    queue: Annotated[int | None, o.opt("Requests that may wait; others get 503. [default: 64]")] = None,
    timeout: Annotated[float | None, o.opt("Longest time of a request, in seconds. [default: 30]")] = None,
    trusted_proxy: Annotated[
        list[str] | None, o.opt("Address or network of a proxy that serves many clients. Repeatable.")
    ] = None,
    example: Annotated[
        list[str] | None,
        o.opt("Question that the page proposes. Repeatable.", "--example", metavar="QUESTION"),
    ] = None,
    curve: Annotated[
        Path | None,
        o.opt("Curve over prices: frontier.json, or from policy fit price. [default: next to the index]"),
    ] = None,
    mapped: o.Mapped = False,
) -> None:
    """Serve selections and answers over HTTP, with a page at /.

    Limits of connections are keys of the policy: see server.* in `mio-rag policy show --keys`.

    \b
      mio-rag serve handbook --model gguf:model.gguf
      mio-rag serve handbook --set price.total=2000000 --set price.per=day
    """
    from mio_rag.generation import check_generator
    from mio_rag.service.page import HOW, curve_beside, read_curve
    from mio_rag.service.run import check
    from mio_rag.service.run import serve as run
    from mio_rag.service.settings import ConnectionLimits, ServiceLimits, ServiceSettings, read_key
    from mio_rag.sources import kind_of

    output = open_output(False)
    given = {
        "max_budget_tokens": max_budget, "max_answer_tokens": max_answer, "concurrency": concurrency,
        "queue": queue, "max_deadline_seconds": timeout, "trusted_proxies": trusted_proxy,
    }  # fmt: skip
    sets = [*(set_ or ())]
    sets += [
        f"server.{name}={list(v) if isinstance(v, list) else v}" for name, v in given.items() if v is not None
    ]
    spec = o.reader_spec(model)
    chosen, *_ = collect(
        lambda: Chosen.of(policy, sets),
        lambda: check_generator(spec),
        lambda: kind_of(path),
        lambda: None if curve is None else read_curve(curve),
        lambda: read_key(api_key_file),
        lambda: check(
            ServiceSettings(path, spec, host, port, workers, examples=tuple(example or ())),
            read_key(api_key_file),
            without_key,
        ),
    )
    bounds, connections, extra = settings_table(chosen.policy, (ServiceLimits, ConnectionLimits))
    with tempfile.TemporaryDirectory() as work:
        deciding = _deciding(chosen, Path(path), workers, extra, Path(work))
        found = o.opened(output, path, embedder, mapped=mapped)
        index = found.folder.resolve()
        shown_curve = curve or curve_beside(index)
        settings = ServiceSettings(
            index=str(index),
            generator=spec,
            host=host,
            port=port,
            workers=workers,
            limits=bounds,
            connections=connections,
            examples=tuple(example or ()),
            curve=None if shown_curve is None else str(shown_curve.resolve()),
            mapped=mapped,
            **deciding,
        )
        key = read_key(api_key_file)
        check(settings, key, without_key)
        shown = f"[{host}]" if ":" in host else host
        answered = False

        def ready() -> None:
            nonlocal answered
            answered = True
            output.console.print(
                f"mio-rag on http://{shown}:{port}  (page: /, reference: /docs, Ctrl-C ends it)"
            )

        def loading() -> None:
            if settings.pacing is not None:
                output.console.print(settings.pacing.explain(), soft_wrap=True)
            if shown_curve is not None:
                output.console.print(f"curve over prices for the page: '{shown_curve}'", soft_wrap=True)
            elif settings.pacing is not None or settings.rate is not None:
                output.console.print(HOW, soft_wrap=True)
            output.console.print("loading index and models ...")

        try:
            run(settings, key, without_key, ready, loading)
        except KeyboardInterrupt:
            if not answered:
                raise
            return  # requests in progress were finished


def _deciding(
    chosen: Chosen, source: Path, workers: int, extra: dict[str, Any], work: Path
) -> dict[str, Any]:
    """What decides how requests are answered, as `ServiceSettings` takes it."""
    from mio_rag.allocation.money import Rate
    from mio_rag.learning.router_model import KEY
    from mio_rag.policies.make import check_controllers
    from mio_rag.service.settings import Kept, Planning, Strategies, excluded, make_pacing

    policy, name, control = chosen.policy, chosen.controller or "", chosen.control
    decided = [key for key in chosen.given if not key.startswith(_ASIDE)]
    found: dict[str, Any] = {}
    keys: dict[str, str] = {}

    def add(field: str, key: str, value: Any) -> None:
        found[field], keys[key] = value, field

    if chosen.name != DEFAULTS.policy and not name:
        add("policy", "--policy", _policy_file(chosen, bool(chosen.given), work))
        decided = []
    elif name and name != "routed" and name != "planner" and not name.startswith("strategies:"):
        raise InputError(
            f"--policy {name} answers one question at a time: give a preset, a file, routed, planner or "
            "strategies:NAMES"
        )
    else:
        searched = policy.search.by == "bandit" or policy.search.strategies != ("raw",)
        if policy.depth.by == "router" or name == "routed":
            check_controllers(["routed"], control, closed_book=False)
            add("routing", "depth.file", control.kinds.get(KEY))
        if policy.order.by == "planner" or name == "planner":
            check_controllers(["planner"], control, closed_book=False)
            add(
                "planning",
                "order.file",
                Planning({k: control.kinds[k] for k in ("workflow", "planner") if k in control.kinds}),
            )
        if searched or name.startswith("strategies:"):
            listed = "bandit" if policy.search.by == "bandit" else "+".join(policy.search.strategies)
            named = name or f"strategies:{listed}"
            check_controllers([named], control, closed_book=False)
            add(
                "strategies",
                "search.strategies",
                Strategies(
                    named,
                    {"strategies": control.kinds["strategies"]} if "strategies" in control.kinds else {},
                ),
            )
        if policy.price.by == "total":
            add("pacing", "price.total", None)
        used = ("depth.", "order.", "search.strategies", "search.by", "search.state", "price.", "models.")
        if left := [key for key in decided if not key.startswith(used)]:
            raise InputError(
                f"{', '.join(sorted(left))}: each request to a service brings its own; to set it for all, "
                "write a policy file and give it with --policy"
            )
    reader = policy.models.get(READER)
    if (
        "policy" not in found
        and reader is not None
        and reader.input is not None
        and reader.output is not None
    ):
        add(
            "rate",
            "models.reader",
            Rate("reader", reader.input, reader.output, policy.price.worth),
        )
    if policy.answers.cache is not None:
        kept = chosen.cache()
        assert kept is not None
        add(
            "cache", "answers.cache", Kept(str(Path(policy.answers.cache).resolve()), kept.entries, kept.days)
        )
    if policy.answers.refusal is not None:
        from mio_rag.refusal.model import Refusal

        Refusal.load(Path(policy.answers.refusal))
        add("refusal", "answers.refusal", str(Path(policy.answers.refusal).resolve()))
    if problems := excluded(list(keys)):
        raise InputError(problems)
    total = policy.price if "pacing" in found else None
    if total is None and (given := [key for key, value in extra.items() if value is not None]):
        raise InputError(f"{', '.join(f'server.{key}' for key in given)} needs price.total and price.per")
    if total is not None:
        if total.per is None:
            raise InputError("price.per is missing: a service has a total for every hour or day")
        per = {"day": (total.total, None), "hour": (None, total.total)}[total.per]
        folder = None if total.state is None else Path(total.state)
        found["pacing"] = make_pacing(
            *per, folder, source, workers, extra["start_price"], extra["mean_tokens"]
        )
    return found


def _policy_file(chosen: Chosen, changed: bool, work: Path) -> str:
    """A policy as worker processes find it, wherever they start."""
    if not changed:
        return chosen.name if chosen.name in PRESETS else str(Path(chosen.name).absolute())
    path = work / f"{chosen.policy.name}.toml"
    path.write_text(chosen.policy.to_toml(), encoding="utf-8")
    return str(path)
