"""Passages that belong together: what choosing two of them gains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.selection.settings import Settings

__all__ = ["related_weights"]

FloatArray = NDArray[np.float64]


def related_weights(settings: Settings, candidates: Candidates) -> FloatArray | None:
    """w * how far two passages belong together: one mentions the other, or both are of one short document.

    Parameters
    ----------
    settings : Settings
        Resolved: `link_benefit` is a number.

    Returns
    -------
    ndarray of shape (n, n), or None
        None where nothing is related, or the benefit is 0.

    Raises
    ------
    InputError
        If the candidates know neither links nor sources.
    """
    benefit = float(settings.link_benefit)  # a number, once the settings are resolved
    if benefit == 0:
        return None
    if candidates.links is None and candidates.sources is None:
        raise InputError(
            f"link_benefit={benefit:g} needs candidates with evidence links or sources: retrieve them "
            "from an index that holds links, pass links or sources, or set link_benefit=0"
        )
    weights = _siblings(candidates)
    if candidates.links is not None:
        weights = np.maximum(weights, np.maximum(candidates.links, candidates.links.T))
    return np.asarray(benefit * weights) if weights.any() else None


def _siblings(candidates: Candidates) -> FloatArray:
    """1 / (m - 1) for two of the m passages that a source has in the pool, 0 for all other pairs; (n, n).

    A short document often says one thing in a few passages; of a long one, the other passages are mostly
    about something else. A blank source is no source.
    """
    weights = np.zeros((len(candidates), len(candidates)))
    passages: dict[str, list[int]] = {}
    for i, source in enumerate(candidates.sources or ()):
        passages.setdefault(str(source).strip(), []).append(i)
    passages.pop("", None)
    for same in passages.values():
        if len(same) > 1:
            weights[np.ix_(same, same)] = 1.0 / (len(same) - 1)
    np.fill_diagonal(weights, 0.0)
    return weights
