"""The command serve."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.cli import options as o
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.cli.chosen import Chosen

#: Parts of a policy that change nothing about how a question is decided.
_ASIDE = ("server.", "answers.", "models.", "price.worth")


@o.command("where model policy set embedder mapped")
def serve(
    call: o.Call,
    path: Annotated[str, o.arg("As for select; not needed with --new-key.", "PATH")] = "",
    host: Annotated[str, o.opt("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, o.opt("Port to listen on.")] = 8000,
    workers: Annotated[int, o.opt("Processes.")] = 1,
    keys: Annotated[
        Path | None, o.opt("File of API keys with their filters and budgets; or set MIO_RAG_API_KEY.")
    ] = None,
    new_key: Annotated[
        str | None, o.opt("Print a new key and its table for the file of keys, and end.", metavar="NAME")
    ] = None,
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
    call.set = [*(call.set or ())]
    call.set += [f"server.{name}={value}" for name, value in given.items() if value is not None]
    output, spec, key = call.output, o.reader_spec(call.model), single_key()
    place: dict[str, Any] = {
        "host": host, "port": port, "workers": workers, "examples": tuple(example or ()),
    }  # fmt: skip
    chosen, *_ = call.check(
        lambda: o.check_model(spec),
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
            mapped=call.mapped, **place, **_readers(chosen, spec), **_deciding(chosen, Path(work)),
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


def _readers(chosen: Chosen, spec: str) -> dict[str, Any]:
    """The reader of --model and the models of the policy, with their prices."""
    from mio_rag.allocation.money import Rate
    from mio_rag.generation import model_name
    from mio_rag.policy import READER

    name = model_name(spec)
    models = chosen.policy.models
    readers = {name: spec, **{key: str(one.spec) for key, one in models.items() if key != READER}}
    rates = {
        name if key == READER else key: Rate(key, one.input, one.output, chosen.policy.price.worth)
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
