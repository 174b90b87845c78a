"""Help on one screen: ``--help`` lists the options that most people use, ``--help-all`` all, in groups."""

from __future__ import annotations

import copy
from typing import Any

from typer.core import TyperCommand

__all__ = ["GROUPS", "BriefHelp", "brief"]

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
    "Kept answers": ("cache", "cache_by_meaning", "cache_entries", "cache_days"),
    "Unanswerable questions": ("refusal",),
    "Measures that take a model": ("judge", "cosine", "bert_score"),
    "Tiers and routers": ("router", "tiers", "utility", "unsure"),
    "Search strategies": ("strategies", "strategy_state", "strategy_price", "strategy_memory",
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
