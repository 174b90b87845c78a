"""Policies from TOML files, and those that ship."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mio_rag.control.composed.policy import Policy, policy_of, rough_policy
from mio_rag.control.composed.states import read_states
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
        If there is none of that name; with every problem of the file, and of those that it names.
    """
    text = str(name)
    if text in PRESETS:
        return policy_of(parse_toml(preset_text(text), f"policy '{text}'"), text)
    path = Path(text).expanduser()
    if not path.is_file():
        more = ", or give a TOML file"
        looks = path.suffix.lower() == ".toml" or "/" in text or "\\" in text
        what = "no such file, nor a preset" if looks else "is neither a file nor a preset"
        raise InputError(f"policy '{text}'{':' if looks else ''} {what}: {choose(text, PRESETS, more=more)}")
    data, folder = parse_toml(read_text(path), f"'{text}'"), path.absolute().parent
    try:
        return policy_of(data, path.stem, folder)
    except InputError as error:
        told = [*error.problems, *_further(data, path.stem, folder)]
        raise InputError([f"'{text}': {problem}" for problem in dict.fromkeys(told)]) from error


def _further(data: Mapping[str, Any], name: str, folder: Path) -> list[str]:
    """What is wrong with the files of a policy that is wrong itself, so that all is told at once."""
    try:
        read_states(rough_policy(data, name, folder))
    except InputError as error:
        return list(error.problems)
    return []
