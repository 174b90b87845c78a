"""Presets: settings by name, from which one's own are a few changes.

default     relevance as a probability, benefits for related passages, no redundancy, a price by the pool
frugal      the same at a higher price: fewer tokens, some evidence less
thorough    the same at no price: whatever fits into the budget and may be needed
raw         the bare program: relevance as the candidates have it, redundancy and price of fixed size
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from mio_rag.errors import InputError, choose

__all__ = ["PRESETS", "preset_settings"]

#: Name -> what it changes of the defaults of `Settings`.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default": {},
        "frugal": {"passage_penalty": 0.1},
        "thorough": {"passage_penalty": 0.0},
        "raw": {
            "redundancy_weight": 0.1,
            "passage_penalty": 0.02,
            "relevance_model": None,
            "link_benefit": 0.0,
        },
    }
)

#: What would undo a preset: (preset, setting) -> why not, and what to do.
_EXCLUDED = {
    ("raw", "relevance_model"): "it takes relevance as it is given: leave one of them out",
}


def preset_settings(name: str, given: Iterable[str] = ()) -> dict[str, Any]:
    """What a preset sets.

    Parameters
    ----------
    name : str
        One of `PRESETS`.
    given : iterable of str
        Names of the settings that are given beside it.

    Raises
    ------
    InputError
        If there is no such preset, or it excludes a setting that is given.
    """
    if name not in PRESETS:
        raise InputError(f"preset '{name}' is unknown: {choose(name, PRESETS)}")
    problems = [
        f"preset '{name}' excludes {setting}: {_EXCLUDED[name, setting]}"
        for setting in given
        if (name, setting) in _EXCLUDED
    ]
    if problems:
        raise InputError(problems)
    return dict(PRESETS[name])
