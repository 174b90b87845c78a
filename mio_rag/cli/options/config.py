"""Settings of the command line in a TOML file: what `mio-rag tune` writes and ``--config`` reads.

At its top stand options by their long names, with underscores: ``link_benefit = 0.2``. What is given on the
command line wins. A table ``[measured]`` says how the settings were found, and is not read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mio_rag.cli.options.money import MoneyOptions
from mio_rag.cli.options.relevance import RelevanceOptions
from mio_rag.cli.options.shared import ProgramOptions, SolverOptions
from mio_rag.cli.options.side import SideOptions
from mio_rag.errors import InputError, choose

__all__ = ["ConfigFile", "OwnConfigFile", "config_text", "kept_options", "read_config"]

_NAMED_RELEVANCE = ("auto", "given", "cosine", "default", "minilm", "tfidf", "ranks", "scores")

#: Of the options that are settings of a service, those that name files and folders.
_PATHS = ("prices", "pacer_state", "curve", "api_key_file", "cache", "router", "tiers", "strategy_state")


def kept_options(
    program: ProgramOptions, evidence: RelevanceOptions, pool: int, retrieval: str, model: str | None = None
) -> dict[str, Any]:
    """What a file holds of the options that a search for others leaves as they are.

    Parameters
    ----------
    model : str, optional
        File of a relevance model that was fitted meanwhile, beside the configuration.
    """
    # A file without it would start from the default, whatever the preset was.
    relevance = model or evidence.relevance or ("given" if program.preset == "raw" else None)
    if model is None and relevance is not None and relevance not in _NAMED_RELEVANCE:
        relevance = str(Path(relevance).resolve())
    return {
        "max_per_source": program.max_per_source,
        "min_passages": program.min_passages,
        "max_passages": program.max_passages,
        "merge": None if program.merge else False,
        "near_duplicates": None if program.near_duplicates == "one" else program.near_duplicates,
        # Said even so: it is what was measured, and select and ask would choose by the room there is.
        "units": program.units or "passages",
        "shared_text": program.shared_text,
        "relevance": relevance,
        "link_hops": evidence.link_hops,
        "rerank": list(evidence.rerank) if evidence.rerank else None,
        "prompt_order": evidence.prompt_order,
        "pool": pool,
        "retrieval": retrieval,
    }


def config_text(options: Mapping[str, Any], measured: Mapping[str, Any], comment: str) -> str:
    """The file for these options; None is left out.

    Parameters
    ----------
    options, measured : mapping of str to bool, int, float, str or a list of these
    comment : str
        Lines for people, put at the top.

    Raises
    ------
    InputError
        As `mio_rag.toml.toml_text`.
    """
    from mio_rag.settings import toml_text

    body = toml_text({**options, "measured": measured})
    lines = ["".join(c if c.isprintable() else " " for c in line) for line in comment.splitlines()]
    return "".join(f"# {line}\n" for line in lines) + body


def read_config(
    path: Path, known: Collection[str], paths: Collection[str] = ("prices",), *, passages: bool = False
) -> dict[str, Any]:
    """The options of a file; paths, also that of a relevance model, are taken from where the file lies.

    Parameters
    ----------
    known, paths : collection of str
        Names that options may have, and those of them that are paths.
    passages : bool
        Whether a file that was measured, and names no units, means those it was measured with.

    Raises
    ------
    InputError
        If the file cannot be read, or holds something else.
    """
    from mio_rag.reading import read_toml

    data = read_toml(path)
    measured = data.pop("measured", None) is not None
    problems = [
        f"'{path}': option '{name}' is unknown: {choose(name, sorted(known))}"
        for name in data
        if name not in known
    ]
    problems += [
        f"'{path}': {name} must be a value or a list of values, not a table"
        for name, value in data.items()
        if isinstance(value, dict)
    ]
    if problems:
        raise InputError(problems)
    if measured and passages:
        data.setdefault("units", "passages")
    relevance = data.get("relevance")
    if isinstance(relevance, str) and relevance not in _NAMED_RELEVANCE:
        data["relevance"] = str(path.parent / relevance)
    held = {name: str(path.parent / data[name]) for name in paths if isinstance(data.get(name), str)}
    return {**data, **held}


def _known() -> set[str]:
    """Options that a file may set."""
    groups = (ProgramOptions, RelevanceOptions, SideOptions, SolverOptions, MoneyOptions)
    return {f.name for group in groups for f in dataclasses.fields(group)} | {
        "budget_tokens",
        "pool",
        "retrieval",
    }


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Make the options of a file the defaults of a command, before its other options are looked at."""
    if path is not None:
        context.default_map = {**(context.default_map or {}), **read_config(path, _known(), passages=True)}
    return path


def _read_own(context: typer.Context, path: Path | None) -> Path | None:
    """Likewise for a command that takes any of its own options from a file; paths begin where that lies."""
    if path is None:
        return None
    own = {str(p.name) for p in context.command.params if p.param_type_name == "option"} - {"config"}
    data = read_config(path, own | _known(), _PATHS)
    if strangers := [name for name in data if name not in own]:
        raise InputError(
            f"'{path}': {', '.join(strangers)} is for select, ask and evaluate, and each request to a "
            "service brings its own: leave it out"
        )
    context.default_map = {**(context.default_map or {}), **data}
    return path


#: For a command whose options are settings of its own, such as those of a service.
OwnConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read_own,
        is_eager=True,
        help="Take options from this TOML file (tokens_per_day = 2000000); those given here win.",
    ),
]

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read,
        is_eager=True,
        help="Take options from this TOML file, as `mio-rag tune` writes it; those given here win.",
    ),
]
