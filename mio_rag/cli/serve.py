"""The commands serve and mcp."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.cli import options as o
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.cli.chosen import Chosen
    from mio_rag.service.settings import Split

#: Parts of a policy that change nothing about how a question is decided.
_ASIDE = ("server.", "answers.", "models.", "price.worth")


@o.command("where model policy set embedder mapped")
def serve(
    call: o.Call,
    path: Annotated[str, o.arg("As for select; not needed with --new-key.", "PATH")] = "",
    host: Annotated[str, "Address to listen on."] = "127.0.0.1",
    port: Annotated[int, "Port to listen on."] = 8000,
    workers: Annotated[int, "Processes."] = 1,
    keys: Annotated[
        Path | None, "File of API keys with their filters and budgets; or set MIO_RAG_API_KEY."
    ] = None,
    new_key: Annotated[
        str | None, o.opt("Print a new key and its table for the file of keys, and end.", metavar="NAME")
    ] = None,
    without_key: Annotated[bool, "Allow access from other machines without a key."] = False,
    max_budget: Annotated[int | None, "Largest budget of a request. [default: 8192]"] = None,
    max_answer: Annotated[int | None, "Longest answer of a request. [default: 512]"] = None,
    concurrency: Annotated[int | None, "Requests that a process handles at once. [default: 2]"] = None,
    queue: Annotated[int | None, "Requests that may wait; others get 503. [default: 64]"] = None,
    timeout: Annotated[float | None, "Longest time of a request, in seconds. [default: 30]"] = None,
    trusted_proxy: Annotated[
        list[str] | None, "Address or network of a proxy that serves many clients. Repeatable."
    ] = None,
    against: Annotated[
        str | None, o.opt("Let another policy answer a share of the questions.", metavar="POLICY=SHARE")
    ] = None,
    ratings: Annotated[Path | None, "With --against: SQLite file of who answered, and of ratings."] = None,
    example: Annotated[
        list[str] | None, o.opt("Question that the page proposes. Repeatable.", metavar="QUESTION")
    ] = None,
) -> None:
    """Serve selections and answers over HTTP, with a page at /.

    OpenAI's clients use http://HOST:PORT/v1 as base URL. Changed documents are taken over while it runs.
    Limits of connections are keys of the policy: see server.* in `mio-rag policy show --keys`.

    \b
      mio-rag serve handbook --model gguf:model.gguf
      mio-rag serve --new-key support
      mio-rag serve handbook --model openai:gpt-5-mini --keys keys.toml
    """
    from mio_rag.cli.chosen import server_settings
    from mio_rag.filters import Filter
    from mio_rag.generation import check_generator, reader_spec
    from mio_rag.service.keys import new_key as made_key
    from mio_rag.service.keys import read_keys
    from mio_rag.service.run import check
    from mio_rag.service.run import serve as run
    from mio_rag.service.settings import ServiceSettings, single_key
    from mio_rag.sources import Building, kind_of

    if new_key is not None:
        typer.echo("\n\n".join(made_key(new_key)), nl=False)
        return
    if not path:
        raise InputError("PATH is missing: give a folder of documents, or an index")
    given = {
        "max_budget_tokens": max_budget, "max_answer_tokens": max_answer, "concurrency": concurrency,
        "queue": queue, "max_deadline_seconds": timeout, "trusted_proxies": trusted_proxy,
    }  # fmt: skip
    sets = [f"server.{name}={value}" for name, value in given.items() if value is not None]
    call.set = [*(call.set or ()), *sets]
    split = _split(against, ratings)
    output, spec, key = call.output, reader_spec(call.model), single_key()
    place: dict[str, Any] = {
        "host": host, "port": port, "workers": workers, "examples": tuple(example or ()),
    }  # fmt: skip
    chosen, *_ = call.check(
        lambda: check_generator(spec),
        lambda: kind_of(path),
        lambda: Filter(call.where),
        lambda: None if keys is None else read_keys(keys),
        lambda: check(
            ServiceSettings(path, **place, keys=None if keys is None else str(keys)), key, without_key,
            rates=False,
        ),
    )  # fmt: skip
    bounds, connections = server_settings(chosen.policy)
    with tempfile.TemporaryDirectory() as work:
        stored = kind_of(path) == "index" and call.embedder == DEFAULTS.embedder
        settings = ServiceSettings(
            source=path if kind_of(path) in ("set", "store") else str(Path(path).absolute()),
            building=None if stored else Building(call.embedder), limits=bounds, connections=connections,
            keys=None if keys is None else str(keys.absolute()), where=tuple(call.where or ()),
            mapped=call.mapped, split=split, **place,
            **_readers(chosen, spec), **_deciding(chosen, Path(work)),
        )  # fmt: skip
        check(settings, key, without_key)
        call.open(path)
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        answered = False

        def ready() -> None:
            nonlocal answered
            answered = True
            output.console.show(f"mio-rag on {address}  (page: /, reference: /docs, Ctrl-C ends it)")

        try:
            loading = "loading index and models ..."
            run(settings, key, without_key, ready, lambda: output.console.show(loading))
        except KeyboardInterrupt:
            if not answered:
                raise
            return  # requests in progress were finished


def _split(against: str | None, ratings: Path | None) -> Split | None:
    from mio_rag.service.settings import Split

    if (against is None) != (ratings is None):
        raise InputError("--against POLICY=SHARE and --ratings FILE belong together: give both")
    if against is None:
        return None
    policy, equals, share = against.rpartition("=")
    try:
        return Split(policy=policy, share=float(share), ratings=str(Path(ratings or "").absolute()))
    except (ValueError, InputError) as error:
        problem = error.problems if isinstance(error, InputError) and equals else ["write POLICY=SHARE"]
        raise InputError([f"--against {against}: {one}" for one in problem]) from None


def _readers(chosen: Chosen, spec: str) -> dict[str, Any]:
    """Return the reader of --model and the models of the policy, with their prices."""
    from mio_rag.allocation.money import Rate
    from mio_rag.generation import model_name
    from mio_rag.policy.tables import READER

    name, models, worth = model_name(spec), chosen.policy.models, chosen.policy.price.worth
    readers = {name: spec, **{key: str(one.spec) for key, one in models.items() if key != READER}}
    rates = {
        name if key == READER else key: Rate(key, one.input, one.output, worth)
        for key, one in models.items()
        if one.input is not None and one.output is not None
    }
    return {"readers": readers, "rates": rates}


def _deciding(chosen: Chosen, work: Path) -> dict[str, Any]:
    """What decides how requests are answered, as `ServiceSettings` takes it."""
    from mio_rag.policy import PRESETS
    from mio_rag.service.settings import Kept

    if chosen.controller is not None:
        raise InputError(
            f"--policy {chosen.controller} is no policy of a service: give a preset or a file, or the keys "
            "of the policy that decide, such as --set search.strategies=raw,hyde"
        )
    answers, found = chosen.policy.answers, dict[str, Any]()
    if any(not key.startswith(_ASIDE) for key in chosen.given):
        path = work / f"{chosen.policy.name}.toml"
        path.write_text(chosen.policy.to_toml(), encoding="utf-8")
        found["policy"] = str(path)
    elif chosen.name != DEFAULTS.policy:
        found["policy"] = chosen.name if chosen.name in PRESETS else str(Path(chosen.name).absolute())
    kept = chosen.cache()
    if kept is not None and answers.cache is not None:
        found["cache"] = Kept(str(Path(answers.cache).resolve()), kept.entries, kept.days)
    if answers.refusal is not None:
        found["refusal"] = str(Path(answers.refusal).resolve())
    return found


# -- mcp ------------------------------------------------------------------------------------------------


@o.command("where policy embedder")
def mcp(
    call: o.Call,
    paths: Annotated[list[str], o.arg("Folders or files of documents, indexes, or a store.", "PATH...")],
    http: Annotated[
        str | None, o.opt("Serve over HTTP at /mcp, instead of stdio.", metavar="[HOST:]PORT")
    ] = None,
    allow_ask: Annotated[
        str | None, o.opt("Add a tool that answers with this model.", metavar="MODEL")
    ] = None,
    print_config: Annotated[
        str | None,
        o.opt(
            "Print how a client starts this server: claude-desktop, cursor, vscode or claude-code.",
            metavar="CLIENT",
        ),
    ] = None,
) -> None:
    """Let assistants search documents: tools of the Model Context Protocol.

    The tools read only, and only what PATH names and --where leaves.

    \b
      mio-rag mcp handbook --print-config claude-desktop
      mio-rag mcp handbook --http 8765
    """
    from mio_rag.assistants import Assistants, configuration, missing, run_http, run_stdio
    from mio_rag.filters import Filter
    from mio_rag.generation import check_generator, reader_spec
    from mio_rag.sources import kind_of

    policy, embedder = call.policy, call.embedder
    spec = None if allow_ask is None else reader_spec(allow_ask)
    address, *_ = collect(
        lambda: _address(http),
        lambda: None if spec is None else check_generator(spec),
        lambda: Filter(call.where),
        *(lambda path=path: kind_of(path) for path in paths),
    )
    if print_config is not None:
        given = [str(Path(one).absolute()) if kind_of(one) not in ("set", "store") else one for one in paths]
        options = {"--allow-ask": allow_ask, "--policy": policy, "--embedder": embedder}
        usual = {"--policy": DEFAULTS.policy, "--embedder": DEFAULTS.embedder}
        for name, value in options.items():
            given += [name, value] if value is not None and value != usual.get(name) else []
        given += [word for one in call.where or () for word in ("--where", one)]
        typer.echo(configuration(print_config, given, Path(paths[0]).name or "documents"))
        if (problem := missing()) is not None:
            typer.echo(f"warning: {problem}", err=True)
        return
    tools = Assistants(paths, allow_ask=spec, where=call.where, policy=policy, embedder=embedder)
    if address is None:
        run_stdio(tools)
    else:
        typer.echo(f"http://{address[0]}:{address[1]}/mcp", err=True)
        run_http(tools, *address)


def _address(given: str | None) -> tuple[str, int] | None:
    if given is None:
        return None
    host, _, port = given.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise InputError(f"--http {given}: write PORT or HOST:PORT")
    if host not in ("", "127.0.0.1", "localhost", "[::1]"):
        raise InputError(
            f"--http {given}: mcp asks for no key, so it listens on this machine alone; put a proxy with "
            "authentication before it"
        )
    return host or "127.0.0.1", int(port)
