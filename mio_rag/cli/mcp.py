"""The command mcp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mio_rag.cli import options as o
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, collect
from mio_rag.filters import Filter


@o.command("where policy embedder")
def mcp(
    call: o.Call,
    paths: Annotated[list[str], o.arg("Folders or files of documents, indexes, or a store.", "PATH...")],
    http: Annotated[
        str | None, o.opt("Serve over HTTP at /mcp, instead of stdio.", "--http", metavar="[HOST:]PORT")
    ] = None,
    allow_ask: Annotated[
        str | None, o.opt("Add a tool that answers with this model.", "--allow-ask", metavar="MODEL")
    ] = None,
    print_config: Annotated[
        str | None,
        o.opt(
            "Print how a client starts this server: claude-desktop, cursor, vscode or claude-code.",
            "--print-config",
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
    from mio_rag.assistants import Assistants, configuration, run_http, run_stdio
    from mio_rag.sources import kind_of

    policy, embedder = call.policy, call.embedder
    spec = None if allow_ask is None else o.reader_spec(allow_ask)
    address, *_ = collect(
        lambda: _address(http),
        lambda: None if spec is None else o.check_model(spec),
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
