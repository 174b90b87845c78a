"""Settings of the command line in a TOML file: what `mio-rag tune` writes and ``--config`` reads.

At its top stand options by their long names, with underscores: ``link_benefit = 0.2``. What is given on the
command line wins. A table ``[measured]`` says how the settings were found, and is not read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError
from mio_rag.reading import read_toml
from mio_rag.toml import toml_text

__all__ = ["config_text", "read_config"]

_NAMED_RELEVANCE = ("cosine", "default")


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
    body = toml_text({**options, "measured": measured})
    lines = ["".join(c if c.isprintable() else " " for c in line) for line in comment.splitlines()]
    return "".join(f"# {line}\n" for line in lines) + body


def read_config(path: Path, known: Collection[str]) -> dict[str, Any]:
    """The options of a file; the path of a relevance model is taken from where the file lies.

    Parameters
    ----------
    known : collection of str
        Names that options may have.

    Raises
    ------
    InputError
        If the file cannot be read, or holds something else.
    """
    data = read_toml(path)
    data.pop("measured", None)
    problems = [
        f"'{path}': option '{name}' is unknown: choose from {', '.join(sorted(known))}"
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
    relevance = data.get("relevance")
    if isinstance(relevance, str) and relevance not in _NAMED_RELEVANCE:
        data["relevance"] = str(path.parent / relevance)
    return data
