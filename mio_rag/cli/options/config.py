"""Settings of the command line in a TOML file: what `mio-rag tune` writes and ``--config`` reads.

At its top stand options by their long names, with underscores: ``link_benefit = 0.2``. What is given on the
command line wins. A table ``[measured]`` says how the settings were found, and is not read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from mio_rag.corpora.dataset import is_text
from mio_rag.errors import InputError
from mio_rag.reading import read_toml

__all__ = ["config_text", "read_config", "toml_text"]

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
        As `toml_text`.
    """
    body = toml_text({**options, "measured": measured})
    lines = ["".join(c if c.isprintable() else " " for c in line) for line in comment.splitlines()]
    return "".join(f"# {line}\n" for line in lines) + body


def toml_text(data: Mapping[str, Any]) -> str:
    """Plain data as TOML; numpy scalars and arrays are written as what they hold, None is left out.

    Raises
    ------
    InputError
        For a text that holds half of a surrogate pair: no TOML file can.
    """
    text = tomli_w.dumps(_plain(data))
    if not is_text(text):
        raise InputError(f"{text[:200]!r} holds characters that are no text, and cannot be written as TOML")
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


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
