"""The command mio-rag.

Exit codes: 0 done; 1 a model, solver or store failed, or the output could not be written; 2 wrong usage or
input; 3 nothing was selected, or there is no answer; 4 a budget is spent; 130 interrupted.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
import typer.main

from mio_rag.cli.options import opt
from mio_rag.cli.output import ReportingGroup

#: Name -> file in mio_rag/cli, what of it is the command, and its help, so that `--help` loads none of them.
_COMMANDS = {
    "select": ("ask", "select", "Print the passages that answer QUESTION, within a token budget."),
    "ask": ("ask", "ask", "Answer QUESTION from the selected passages."),
    "index": ("index", "index", "Index documents, or refresh an index."),
    "evaluate": ("evaluate", "evaluate", "Compare selection methods and policies on your questions."),
    "serve": ("serve", "serve", "Serve selections and answers over HTTP, with a page at /."),
    "mcp": ("serve", "mcp", "Let assistants search documents: tools of the Model Context Protocol."),
    "batch": ("batch", "batch_app", "Many questions: select, answer, or share a total."),
    "policy": ("policy", "policy_app", "Policies: how a question is searched, read and answered."),
    "lab": ("lab", "lab_app", "The optimizer's bench: programs, other settings, errors of embeddings."),
    "demo": ("evaluate", "demo", "Compare methods on the bundled questions. Takes under a minute."),
}
_HELP = {"help_option_names": ["-h", "--help"]}


class _Commands(dict[str, Any]):
    """Commands by name, each loaded when it is asked for: loading all takes longer than most commands do."""

    def __getitem__(self, name: str) -> Any:
        if super().__getitem__(name) is None:
            self[name] = _load(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The command, or the default."""
        return default if name not in self else self[name]  # noqa: SIM401  (it would call itself)


def _load(name: str) -> Any:
    """Return the command that Typer makes of a function, or of a group of them."""
    file, of_file, _ = _COMMANDS[name]
    found = getattr(importlib.import_module(f"mio_rag.cli.{file}"), of_file)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_HELP)
    if not isinstance(found, typer.Typer):
        alone.command(name=name)(found)
        return typer.main.get_command(alone)
    alone.add_typer(found, name=name)
    group: Any = typer.main.get_command(alone)
    return group.commands[name]


class _AllCommands(ReportingGroup):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": _Commands.fromkeys(_COMMANDS)})

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without loading one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (*_, text) in _COMMANDS.items()])


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
