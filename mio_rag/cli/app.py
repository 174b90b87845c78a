"""The command ``mio-rag``.

Exit codes: 0 done; 1 a solver or generator failed, nothing could be answered, or the output could not be
written; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Annotated, Any

import typer
import typer.main

from mio_rag.cli.help import brief
from mio_rag.cli.output import ReportingGroup

__all__ = ["app", "main"]

#: What most people set when passages are chosen.
_SELECTING = ("budget_tokens", "preset", "passage_penalty", "relevance", "units")

#: Name -> file in mio_rag/cli/commands, and what of it is the command, in the order of the help.
_COMMANDS = {
    "demo": ("demo", "demo"),
    "index": ("index", "index"),
    "select": ("select", "select"),
    "ask": ("ask", "ask"),
    "evaluate": ("evaluate", "evaluate"),
    "calibrate": ("calibrate", "calibrate"),
    "select-batch": ("batch", "select_batch"),
    "allocate": ("allocate", "allocate"),
    "answer-batch": ("answer_batch", "answer_batch"),
    "serve": ("serve", "serve"),
    "tune": ("tune", "tune"),
    "radius": ("radius", "radius"),
    "unanswerable": ("unanswerable", "unanswerable"),
    "solve": ("solve", "solve"),
    "measures": ("measures", "measures"),
    "warmup": ("solve", "warmup"),
    "frontier": ("frontier", "frontier_app"),
    "mdp": ("mdp", "mdp_app"),
    "route": ("route", "route_app"),
    "strategies": ("strategies", "strategies_app"),
    "plan": ("plan", "plan_app"),
    "policy": ("policy", "policy_app"),
}

#: Name -> options that ``--help`` lists.
_BRIEF = {
    "select": (*_SELECTING, "pool", "retrieval", "solver", "explain", "config"),
    "ask": ("generator", *_SELECTING, "controller", "policy", "explain", "config"),
    "evaluate": ("out", "methods", "budget_tokens", "generator", "index", "limit", "preset",
                 "passage_penalty", "details", "resume"),
}  # fmt: skip


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
    found = getattr(importlib.import_module(f"mio_rag.cli.commands.{file}"), of_file)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
        group: Any = typer.main.get_command(alone)
        return group.commands[name]
    alone.command(name=name, cls=brief(*_BRIEF[name]) if name in _BRIEF else None)(found)
    return typer.main.get_command(alone)


class _AllCommands(ReportingGroup):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": _Commands()})

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        return list(self.commands)


app = typer.Typer(
    name="mio-rag",
    cls=_AllCommands,
    help="Chooses what a language model reads by mixed-integer optimization, and proves the choice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help formatter would double the start-up time
)


def _version(wanted: bool) -> None:
    if wanted:
        from mio_rag import __version__

        typer.echo(f"mio-rag {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line."""
    app()
