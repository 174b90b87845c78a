"""Policies from TOML files, and those that ship."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mio_rag.control.composed.policy import Policy, policy_of
from mio_rag.errors import InputError, choose
from mio_rag.reading import parse_toml, read_text

__all__ = ["PRESETS", "preset_text", "read_policy"]

_FOLDER = Path(__file__).parent / "presets"

#: Policies that ship, from the cheapest; all run without anything learned, and without a paid model.
PRESETS: Mapping[str, str] = {
    "frugal": "few tokens: what is surely worth them is read",
    "balanced": "the default: one price for everything",
    "thorough": "most evidence: nearly free tokens",
}


def preset_text(name: str) -> str:
    """The file of a preset, to begin one's own with.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in PRESETS:
        raise InputError(f"policy '{name}' is unknown: {choose(name, PRESETS)}")
    return read_text(_FOLDER / f"{name}.toml")


def read_policy(name: str | Path) -> Policy:
    """The policy of a TOML file, or a preset.

    Raises
    ------
    InputError
        If there is none of that name; with every problem of the file.
    """
    text = str(name)
    if text in PRESETS:
        return policy_of(parse_toml(preset_text(text), f"policy '{text}'"), text)
    path = Path(text).expanduser()
    if not path.is_file():
        more = ", or give a TOML file"
        raise InputError(
            f"policy '{text}' is neither a file nor a preset: {choose(text, PRESETS, more=more)}"
        )
    data = parse_toml(read_text(path), f"'{text}'")
    try:
        return policy_of(data, path.stem, path.absolute().parent)
    except InputError as error:
        raise InputError([f"'{text}': {problem}" for problem in error.problems]) from error
