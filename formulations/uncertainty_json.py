"""Uncertainty sets from JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, get_args

from mio_rag.errors import InputError
from mio_rag.formulations.uncertainty import Norm, NormBall, UncertaintySet
from mio_rag.formulations.uncertainty_sets import DeviationBudget, Ellipsoid, SparseBox

__all__ = ["uncertainty_from_dict"]


def uncertainty_from_dict(data: Any) -> UncertaintySet:
    """The set of a JSON object that `to_dict` wrote.

    ``{"set": "l2" | "l1" | "linf", "radius": ...}``, ``{"set": "sparse_box", "radius", "k", "protected"}``,
    ``{"set": "ellipsoid", "radius", "factor"}`` or ``{"set": "deviations", "gamma", "base": {...}}``.

    Raises
    ------
    InputError
        If it is not one of these.
    """
    kinds: dict[str, tuple[Callable[..., UncertaintySet], set[str]]] = {
        **{name: (functools.partial(NormBall, norm=name), {"radius"}) for name in get_args(Norm)},
        "sparse_box": (SparseBox, {"radius", "k", "protected"}),
        "ellipsoid": (Ellipsoid, {"radius", "factor"}),
        "deviations": (
            lambda gamma, base: DeviationBudget(uncertainty_from_dict(base), gamma),
            {"gamma", "base"},
        ),
    }
    if not isinstance(data, dict) or data.get("set") not in kinds:
        raise InputError(f"an uncertainty set is an object whose 'set' is one of {', '.join(kinds)}")
    make, keys = kinds[data["set"]]
    given = {key: value for key, value in data.items() if key != "set"}
    if set(given) != keys and not (data["set"] == "sparse_box" and set(given) == keys - {"protected"}):
        raise InputError(f"set '{data['set']}' takes {', '.join(sorted(keys))}, given {', '.join(given)}")
    return make(**given)
