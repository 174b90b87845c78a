"""Where relevance comes from: a model that is given, one that ships and fits the candidates, or neither.

"auto" goes by what the candidates bring:

    fitted weights   scores of a `Retriever` by an embedder that shipped weights were fitted on, within the
                     range that was seen in fitting
    ranks            such scores by any other embedder: ranks, gaps and shares, which have no scale
    scores           nothing but one score for each passage, or a relevance that somebody put in place of the
                     Retriever's: its order and gaps

Each gives probabilities that a passage is needed, so that prices mean the same whatever the scores were.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.relevance.answerable import Answerable
from mio_rag.relevance.features import LINK_FEATURES, missing
from mio_rag.relevance.model import RelevanceModel, load_model
from mio_rag.relevance.pool import GIVEN, MADE, given

__all__ = ["Relevance", "RelevanceSource", "SourceKind", "answerable_for", "relevance_of"]

#: A model, or who chooses one: "auto" by what candidates bring, "given" and None nobody.
Relevance = RelevanceModel | Literal["auto", "given"] | None
SourceKind = Literal["given", "model", "fitted weights", "ranks", "scores"]

#: Weights for one embedder each, which they name by the beginning of its fingerprint.
_FITTED = ("minilm", "tfidf")
_SAME = 1e-5  # of two cosines, one of which may have been kept in single precision


@dataclass(frozen=True)
class RelevanceSource:
    """Where relevance comes from.

    Parameters
    ----------
    kind : {"given", "model", "fitted weights", "ranks", "scores"}
        given: as the candidates have it. model: a model that was given. Otherwise what "auto" found.
    why : str
        One sentence for a person.
    unused : tuple of str
        Scores of the candidates that change nothing: those of re-rankers that the model was not fitted with.
    """

    kind: SourceKind
    why: str
    unused: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return {"kind": self.kind, "why": self.why}


_REPLACED = RelevanceSource(
    "scores",
    "probabilities by the order and the gaps of the relevance given, which is not what the Retriever gave",
)
_GIVEN = RelevanceSource("given", "as the candidates have it")
_RANKS = "probabilities by ranks and gaps: no weights that ship were fitted on this embedder"
_SCORES = RelevanceSource("scores", "probabilities by the order and the gaps of the scores given")
_ONE = RelevanceSource(
    "scores", "that of the best passage of a pool in the mean: one score alone has no order and no gaps"
)
_EQUAL = RelevanceSource(
    "scores", "one probability for all: the scores given are equal, and tell no passage from another"
)


@functools.cache
def _shipped(name: str, links: bool) -> RelevanceModel:
    """Weights that ship; without links, the stages that need none."""
    model = load_model(name)
    assert model is not None
    return model if links else model.without_links()


def answerable_for(fingerprint: str) -> Answerable | None:
    """What ships to tell whether a collection holds an answer, for cosines of an embedder; blank: of any."""
    for name in _FITTED:
        fitted = _shipped(name, True)
        if fingerprint and fingerprint.startswith(fitted.embedder):
            return fitted.answerable
    return _shipped("ranks", True).answerable


@functools.cache
def _beyond(name: str, links: bool) -> RelevanceModel:
    """For scores beyond what weights were fitted on: ranks, which have no scale. A cosine that is lower than
    any in fitting says all the more that there is no answer."""
    return replace(_shipped("ranks", links), answerable=_shipped(name, links).answerable)


def relevance_of(wanted: Relevance, candidates: Candidates) -> tuple[RelevanceModel | None, RelevanceSource]:
    """The model that gives these candidates their relevance, and why that one.

    Parameters
    ----------
    wanted : RelevanceModel, "auto", "given" or None
        See `mio_rag.selection.selector.Selector`.

    Raises
    ------
    InputError
        If a model is given that was fitted on another embedder than the candidates'.
    """
    unused = tuple(sorted(set(candidates.scores) - {"dense", "bm25", "fused", GIVEN, MADE}))
    if isinstance(wanted, RelevanceModel):
        if misfit := wanted.misfit(candidates.embedder):
            raise InputError(misfit)
        known = {part.partition(":")[2] for name in wanted.features for part in name.split("*")}
        ignored = tuple(name for name in unused if name not in known)
        return wanted, RelevanceSource("model", f"probabilities by the model '{wanted.name}'", ignored)
    if wanted != "auto":
        return None, replace(_GIVEN, unused=unused)
    links = candidates.links is not None
    by_ranks = _shipped("ranks", links)
    if any(missing(candidates, name) for name in by_ranks.features if name not in LINK_FEATURES):
        scores = given(candidates)
        alike = len(candidates) > 1 and bool((scores == scores[0]).all())
        source = _ONE if len(candidates) == 1 else _EQUAL if alike else _SCORES
        return _shipped("scores", links), replace(source, unused=unused)
    if not np.allclose(given(candidates), candidates.scores["dense"], rtol=0, atol=_SAME):
        return _shipped("scores", links), replace(_REPLACED, unused=unused)
    besides = f" (without {', '.join(unused)}: fit a model to use it)" if unused else ""
    for name in _FITTED:
        fitted = _shipped(name, links)
        if not candidates.embedder.startswith(fitted.embedder):
            continue
        if (outside := fitted.outside(candidates)) is not None:
            beyond = _beyond(name, links)
            why = f"probabilities by ranks and gaps: {outside}{besides}"
            return beyond, RelevanceSource("ranks", why, unused)
        why = f"probabilities by weights fitted on '{name}'{besides}"
        return fitted, RelevanceSource("fitted weights", why, unused)
    return by_ranks, RelevanceSource("ranks", _RANKS + besides, unused)
