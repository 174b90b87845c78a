"""The command mio-rag.

Exit codes: 0 done; 1 a model, solver or store failed, or the output could not be written; 2 wrong usage or
input; 3 nothing was selected, or there is no answer; 4 a budget is spent; 130 interrupted.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Annotated, Any

import typer
import typer.main

from mio_rag.cli.options import OLD_COMMANDS, opt
from mio_rag.cli.output import ReportingGroup, usage_error

#: Name -> file in mio_rag/cli, and what of it is the command, in the order of the help.
_COMMANDS = {
    "select": ("ask", "select"),
    "ask": ("ask", "ask"),
    "index": ("index", "index"),
    "evaluate": ("evaluate", "evaluate"),
    "serve": ("serve", "serve"),
    "mcp": ("mcp", "mcp"),
    "batch": ("batch", "batch_app"),
    "policy": ("policy", "policy_app"),
    "lab": ("lab", "lab_app"),
    "demo": ("evaluate", "demo"),
}


class _Commands(MutableMapping[str, Any]):
    """Commands by name, each loaded when it is asked for: loading all takes longer than most commands do."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = dict.fromkeys(_COMMANDS)

    def __getitem__(self, name: str) -> Any:
        if self._loaded[name] is None:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


def _load(name: str) -> Any:
    """What Typer makes of a command's function, or of a group of commands."""
    file, of_file = _COMMANDS[name]
    found = getattr(importlib.import_module(f"mio_rag.cli.{file}"), of_file)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_HELP)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
        group: Any = typer.main.get_command(alone)
        return group.commands[name]
    alone.command(name=name)(found)
    return typer.main.get_command(alone)


class _AllCommands(ReportingGroup):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": _Commands()})

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; of an old one, say what replaces it."""
        if args and args[0] in OLD_COMMANDS:
            raise usage_error(f"{args[0]} is now {OLD_COMMANDS[args[0]]}", ctx)
        return super().resolve_command(ctx, args)


_HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="mio-rag",
    cls=_AllCommands,
    help="Picks the passages that a language model reads, within a token budget, and proves the choice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help formatter would double the start-up time
    context_settings=_HELP,
)


def _version(wanted: bool) -> None:
    if wanted:
        from mio_rag import __version__

        typer.echo(f"mio-rag {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, opt("Show the traceback of an error.", "--debug")] = False,
    version: Annotated[
        bool, opt("Print the version.", "--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line."""
    app()
