"""A selector's settings: as keywords with types, and as plain data that YAML and JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypedDict

import numpy as np

from mio_rag.context import PromptOrder
from mio_rag.errors import InputError, choose
from mio_rag.formulations.uncertainty import Norm, UncertaintySet
from mio_rag.relevance.model import Relevance, RelevanceModel
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Counterpart, NearDuplicates, Penalty, Selector, Units
from mio_rag.settings import Settings
from mio_rag.solvers.result import SolveOptions

__all__ = ["SelectorSettings", "check_names", "from_plain", "make_selector", "to_plain"]


class SelectorSettings(TypedDict, total=False):
    """The settings of a `Selector`, as keywords of whatever makes one. None: as in the selector given.

    `preset` names what to start from instead of a selector; see `mio_rag.selection.selector`.
    """

    preset: str | None
    redundancy_weight: float | None
    passage_penalty: Penalty | None
    token_price: float | None
    radius: float | None
    norm: Norm | None
    min_passages: int | None
    max_passages: int | None
    max_per_source: int | Mapping[str, int] | None
    must_include: Sequence[str] | None
    must_exclude: Sequence[str] | None
    solver: str | None
    options: SolveOptions | None
    relevance_model: Relevance
    link_benefit: float | Literal["auto"] | None
    redundancy_by_relevance: bool | None
    prompt_order: PromptOrder | None
    uncertainty: UncertaintySet | None
    counterpart: Counterpart | None
    side: SideConstraints | None
    passage_radii: Mapping[str, float] | None
    merge: bool | None
    shared_text_weight: float | None
    near_duplicates: NearDuplicates | None
    units: Units | None


_NAMES = tuple(Selector.model_fields)
_DEFAULT = Selector()  # checking one takes longer than many a call


def make_selector(base: Selector | None, settings: Mapping[str, Any]) -> Selector:
    """The selector given (the default one where there is none), with the settings that are not None.

    Raises
    ------
    InputError
        For a setting that does not exist, or that `Selector` refuses.
    """
    if base is not None and not isinstance(base, Selector):
        raise InputError(f"selector is {base!r}, expected a Selector")
    check_names("setting", settings, ("preset", *_NAMES))
    changes = {name: value for name, value in settings.items() if value is not None}
    preset = changes.pop("preset", None)
    if preset is not None:
        if base is not None:
            raise InputError("selector and preset exclude each other: both are what settings start from")
        return Selector.preset(preset, **changes)
    if not changes:
        return base or _DEFAULT
    return (base or _DEFAULT).replace(**changes)


def to_plain(selector: Selector) -> dict[str, Any]:
    """What differs from the default selector, as numbers, strings, lists and dicts; see `from_plain`.

    Raises
    ------
    InputError
        If an uncertainty set is a function of its own.
    """
    return {name: _plain(value) for name, value in _changed(selector).items()}


def from_plain(data: Mapping[str, Any]) -> Selector:
    """The selector of what `to_plain` wrote.

    Raises
    ------
    InputError
        For a setting that does not exist or cannot be read.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"a selector's settings are a mapping of names to values, given {data!r}")
    settings = dict(data)
    if isinstance(model := settings.get("relevance_model"), Mapping):
        settings["relevance_model"] = RelevanceModel.from_dict(model)
    return make_selector(None, settings)


def check_names(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse names that are not known, with the one that was probably meant.

    Raises
    ------
    InputError
        With every problem found.
    """
    problems = []
    for name in given:
        if name not in known:
            problems.append(f"{what} '{name}' is unknown: {choose(name, known)}")
    if problems:
        raise InputError(problems)


def _changed(value: Any) -> dict[str, Any]:
    """Return the settings that are not at their defaults."""
    if isinstance(value, Settings):
        fields_of = type(value).model_fields.items()
        defaults = {name: info.get_default(call_default_factory=True) for name, info in fields_of}
    else:
        defaults = {f.name: f.default for f in fields(value)}
    return {
        name: now for name, default in defaults.items() if not _same(now := getattr(value, name), default)
    }


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and bool(value == default)


def _plain(value: Any) -> Any:
    if isinstance(value, (RelevanceModel, UncertaintySet)):
        return value.to_dict()
    if isinstance(value, Settings) or is_dataclass(value):
        return {name: _plain(part) for name, part in _changed(value).items()}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isinf(value):  # a time limit; JSON has no infinity
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    return value
