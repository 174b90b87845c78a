"""The command mio-rag.

Exit codes: 0 done; 1 a solver or generator failed, nothing could be answered, or the output could not be
written; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, MutableMapping
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand

from mio_rag.cli.output import ReportingGroup

# -- help ------------------------------------------------------------------------------------------------

#: Title -> names of options, in the order in which --help-all shows them.
GROUPS: dict[str, tuple[str, ...]] = {
    "Value of a passage": (
        "preset", "relevance", "rerank", "passage_penalty", "token_price", "link_hops", "link_benefit",
        "redundancy", "redundancy_by_relevance", "shared_text",
    ),
    "Which passages": (
        "budget_tokens", "min_passages", "max_passages", "max_per_source", "max_source_share", "must_include",
        "must_exclude", "cover", "max_similarity", "near_duplicates", "units", "conflict", "needs", "soft",
    ),
    "Earlier selections": ("previous", "max_changes", "change_price"),
    "Embedding uncertainty": ("radius", "norm", "uncertainty_set", "radii", "deviations", "counterpart"),
    "Retrieval and prompt": (
        "index", "corpus", "embedder", "pool", "retrieval", "prompt_order", "merge", "mapped",
    ),
    "Solver": ("solver", "time_limit", "relative_gap", "threads", "seed"),
    "Answers": ("generator", "max_tokens", "closed_book", "keep_choices"),
    "Workflows": ("workflow", "planner", "alpha", "planner_model", "model", "model_price"),
    "Controllers": (
        "controller", "controllers", "trace", "uncertainty", "mdp_config", "max_steps", "max_total_tokens",
        "max_seconds", "stop_at",
    ),
    "Policies": ("policy", "policies"),
    "Kept answers": ("cache", "cache_entries", "cache_days"),
    "Unanswerable questions": ("refusal",),
    "Measures that take a model": ("judge", "cosine", "bert_score"),
    "Tiers and routers": ("router", "tiers", "utility", "unsure"),
    "Search strategies": ("strategies", "strategy_state", "strategy_price",
                          "strategy_deadline"),
    "Money": ("prices", "worth", "price_model"),
    "Comparison": ("methods", "baseline", "mmr_lambda", "limit", "resume", "details"),
    "Output": ("out", "config", "explain", "json_output", "help_all", "help"),
}  # fmt: skip
_EVERYTHING = "mio_rag.help.everything"  # a key of the context


class BriefHelp(TyperCommand):
    """A command whose ``--help`` fits on one screen."""

    #: Names of the options that ``--help`` lists.
    listed: tuple[str, ...] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, and ``--help-all`` before ``--help``."""
        *params, brief_help = super().get_params(ctx)
        everything: Any = copy.copy(brief_help)  # eager, a flag, and no argument of the command, as --help is
        everything.name, everything.opts = "help_all", ["--help-all"]
        everything.help = "Show all options, in groups, and exit."
        everything.callback = _show_everything
        return [*params, everything, brief_help]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options; all of them, in groups, after ``--help-all``."""
        records: dict[str, tuple[str, str]] = {}
        arguments = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                arguments.append(record)
            else:
                records[str(param.name)] = record
        sections = [("Arguments", arguments)]
        if ctx.meta.get(_EVERYTHING):
            grouped = {name for names in GROUPS.values() for name in names}
            sections += [(t, [records[n] for n in names if n in records]) for t, names in GROUPS.items()]
            sections.append(("Other", [record for name, record in records.items() if name not in grouped]))
        else:
            names = (*self.listed, "json_output", "help_all", "help")
            sections.append(("Options", [records[name] for name in names if name in records]))
        for title, rows in sections:
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _show_everything(ctx: Any, _: Any, wanted: bool) -> None:
    if wanted:
        import typer

        ctx.meta[_EVERYTHING] = True
        typer.echo(ctx.get_help())
        ctx.exit()


def brief(*listed: str) -> type[BriefHelp]:
    """The command class whose ``--help`` lists the options of these names."""
    return type("BriefHelp", (BriefHelp,), {"listed": listed})


# -- app -------------------------------------------------------------------------------------------------

#: What most people set when passages are chosen.
_SELECTING = ("budget_tokens", "preset", "passage_penalty", "relevance", "units")
#: Name -> file in mio_rag/cli, and what of it is the command, in the order of the help.
_COMMANDS = {
    "demo": ("ask", "demo"),
    "index": ("index", "index"),
    "select": ("ask", "select"),
    "ask": ("ask", "ask"),
    "evaluate": ("evaluate", "evaluate"),
    "calibrate": ("fit", "calibrate"),
    "select-batch": ("batch", "select_batch"),
    "allocate": ("batch", "allocate"),
    "answer-batch": ("batch", "answer_batch"),
    "serve": ("serve", "serve"),
    "tune": ("fit", "tune"),
    "radius": ("index", "radius"),
    "unanswerable": ("fit", "unanswerable"),
    "solve": ("ask", "solve"),
    "measures": ("evaluate", "measures"),
    "warmup": ("ask", "warmup"),
    "frontier": ("evaluate", "frontier_app"),
    "mdp": ("policy", "mdp_app"),
    "route": ("learn", "route_app"),
    "strategies": ("learn", "strategies_app"),
    "plan": ("policy", "plan_app"),
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
    found = getattr(importlib.import_module(f"mio_rag.cli.{file}"), of_file)
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
