"""The command mio-rag.

Exit codes: 0 done; 1 a model, solver or store failed, or the output could not be written; 2 wrong usage or
input; 3 nothing was selected, or there is no answer; 4 a budget is spent; 130 interrupted.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

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
#: Group -> its commands and their help; under "" its own. A test compares it with what the files say.
_GROUPS = {
    "batch": {
        "": "Many questions: select, answer, or share a total. Run the same command again to resume.",
        "select": "Select passages for every row of a Parquet file.",
        "answer": "Answer many questions under a policy.",
        "allocate": "Share a total of tokens among the rows of a Parquet file.",
    },
    "policy": {
        "": "Policies: how a question is searched, read and answered, at one price.",
        "new": "Print a policy file to begin your own with.",
        "check": "Find everything that is wrong with a policy and its files.",
        "show": "Show what decides, at which price and within which limits.",
        "list": "List presets, policies that are known by name, and workflows.",
        "replay": "Make recorded decisions again, or estimate what others would bring.",
        "fit": "Learn from your questions: one kind, one report, one file.",
        "state": "What a bandit has learned about search strategies, in the file of search.state.",
    },
    "lab": {
        "": "The optimizer's bench: programs, other settings, errors of embeddings.",
        "solve": "Solve a selection program or a decision process.",
        "frontier": "Show what other settings would select, each with its certificate.",
        "radius": "Measure the error of embeddings, for selection.radius.",
        "warmup": "Compile the kernels in advance (needed once per machine).",
    },
}
_HELP = {"help_option_names": ["-h", "--help"]}


class _Commands(dict[str, Any]):
    """Commands by name, each loaded when it is asked for: loading all takes longer than most commands do."""

    def __init__(self, texts: Mapping[str, str], load: Callable[[str], Any]) -> None:
        super().__init__(dict.fromkeys(name for name in texts if name))
        self.texts, self._load = texts, load

    def __getitem__(self, name: str) -> Any:
        if super().__getitem__(name) is None:
            self[name] = self._load(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The command, or the default."""
        return default if name not in self else self[name]  # noqa: SIM401  (it would call itself)


def load_command(name: str) -> Any:
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


class _Listed(TyperGroup):
    """A group that lists its commands without loading one."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        texts: Any = self.commands
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, text in texts.texts.items() if name])


def _command(name: str) -> Any:
    if (texts := _GROUPS.get(name)) is None:
        return load_command(name)
    commands = _Commands(texts, lambda one: load_command(name).commands[one])
    return _Listed(name=name, help=texts[""], commands=commands, no_args_is_help=True, rich_markup_mode=None)


class _AllCommands(_Listed, ReportingGroup):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:
        texts = {name: text for name, (*_, text) in _COMMANDS.items()}
        super().__init__(**{**attributes, "commands": _Commands(texts, _command)})


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
        from mio_rag.defaults import __version__

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
