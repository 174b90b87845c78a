"""A trained router: it decides with numpy alone, in well under a millisecond.

mlp           the published network on the question's embedding: 256 and 64 hidden units, softmax over tiers
logistic      multinomial logistic regression
utility       for each tier the calibrated probability that it does; the tier of largest utility

All but the last say which tier is the cheapest that does. `utility` knows what failing costs, so that prices
may change without training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy  # loads scipy.special, an eighth of a second, where it is first used
from numpy.typing import NDArray

from mio_rag.control.router.features import FEATURES, SEARCH, Seen, look
from mio_rag.control.router.settings import Utility
from mio_rag.deciders.depth import Correction, TierChoice
from mio_rag.errors import DataError, InputError
from mio_rag.learning.weights import Weights, read_weights
from mio_rag.pool import Candidates
from mio_rag.session.tiers import Tier, tiers_of
from mio_rag.types import Question

__all__ = ["KINDS", "VERSION", "Deciding", "Router", "read_router", "row_of"]

FloatArray = NDArray[np.float64]

KINDS = ("mlp", "logistic", "utility")
REMOVED_KINDS = ("tfidf-svm", "neighbours")
VERSION = 1
_KIND = "router"


def row_of(seen: Seen, features: str, arrays: Mapping[str, NDArray[Any]]) -> FloatArray:
    """Return the numbers that a router goes by, shape (d,): the embedding at length 1, then the search.

    Parameters
    ----------
    features : str
        With "question+search", what the search showed in standard deviations, over the root of their number:
        at length 1 in the mean of squares.
    arrays : mapping
        search_mean and search_scale, as far as they are needed.
    """
    if features == "question":
        return seen.embedding
    standard = (seen.search - arrays["search_mean"]) / arrays["search_scale"]
    return np.concatenate([seen.embedding, standard / len(SEARCH) ** 0.5])


@dataclass(frozen=True, eq=False)
class Router:
    """Chooses among tiers.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    features : str
        "question" or "question+search".
    embedder : str
        Fingerprint of the embedder of the questions.
    arrays : mapping of str to array
        What was learned; which arrays, goes by the kind (see `mio_rag.learning.router`).
    costs : array, shape (m, 3)
        Mean tokens, seconds and peak megabytes of each tier in training.
    shares : tuple of float, length m
        How often each tier was chosen, out of fold.
    plausible : float
        Smallest probability at which a tier is plausible: the conformal threshold.
    confidence : float
        How often the plausible tiers were to hold the right one.
    correction : Correction or None
        Learned with the router.
    measures : mapping
        What cross-validation found. Plain data.
    """

    kind: str
    tiers: tuple[Tier, ...]
    features: str
    embedder: str
    arrays: Mapping[str, NDArray[Any]]
    costs: FloatArray
    shares: tuple[float, ...]
    plausible: float
    confidence: float
    correction: Correction | None = None
    measures: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        m, problems = len(self.tiers), []
        if self.kind in REMOVED_KINDS:
            problems.append(f"kind '{self.kind}' was removed: train one of {', '.join(KINDS)}")
        elif self.kind not in KINDS:
            problems.append(f"kind '{self.kind}' is unknown: choose {', '.join(KINDS)}")
        if self.features not in FEATURES:
            problems.append(f"features '{self.features}' are unknown: choose {', '.join(FEATURES)}")
        if not problems:
            problems += _shape_problems(self)
        if self.costs.shape != (m, 3) or not (self.costs >= 0).all():
            problems.append(f"costs of {m} tiers have shape {self.costs.shape}: three numbers >= 0 for each")
        if len(self.shares) != m or abs(sum(self.shares) - 1) > 1e-6 or min(self.shares, default=-1) < 0:
            problems.append(f"shares {self.shares} are not those of {m} tiers")
        if not 0 <= self.plausible <= 1 or not 0 < self.confidence < 1:
            problems.append(
                f"plausible={self.plausible!r} and confidence={self.confidence!r} must be probabilities"
            )
        if problems:
            raise InputError([f"router: {problem}" for problem in problems])

    def row(self, seen: Seen) -> FloatArray:
        """The numbers that the router goes by, shape (d,)."""
        row = row_of(seen, self.features, self.arrays)
        expected = len(self.arrays["weights_0" if self.kind == "mlp" else "weights"])
        if len(row) != expected:
            raise InputError(
                f"the router takes {expected} numbers of a question, and the embedder gives {len(row)}: use "
                "the embedder that it was trained with"
            )
        return row

    def success(self, seen: Seen) -> FloatArray:
        """Probability that each tier does, shape (m,); of the kind `utility` alone."""
        if self.kind != "utility":
            raise InputError(
                f"a router of the kind {self.kind} knows no success of tiers: train one of utility"
            )
        arrays = self.arrays
        logits = self.row(seen) @ arrays["weights"] + arrays["bias"]
        return np.asarray(scipy.special.expit(arrays["slope"] * logits + arrays["shift"]), dtype=np.float64)

    def probabilities(self, seen: Seen) -> FloatArray:
        """Probability of each tier to be the one that the question needs, shape (m,), adding up to 1."""
        if self.kind == "utility":
            return first_success(self.success(seen))
        return _PROBABILITIES[self.kind](self.arrays, self.row(seen))

    def choose(self, seen: Seen, utility: Utility | None = None, unsure: str = "stay") -> TierChoice:
        """The tier for a question.

        Parameters
        ----------
        utility : Utility, optional
            Of the kind `utility`; others know no utility, and leave it aside.
        unsure : str
            "up": the next dearer tier, where several are plausible.
        """
        probable = self.probabilities(seen)
        scores = probable
        if self.kind == "utility":
            prices = utility or Utility()
            charged = self.costs @ np.array([prices.beta, prices.gamma, prices.delta])
            scores = prices.alpha * self.success(seen) - charged
        place = int(np.argmax(scores))
        several = int((probable >= self.plausible).sum()) > 1
        up = unsure == "up" and several and place + 1 < len(self.tiers)
        named = {tier.name: float(score) for tier, score in zip(self.tiers, scores, strict=True)}
        return TierChoice(place + up, named, up)

    def check(self, embedder: str, tiers: int | None = None) -> None:
        """Raise `InputError` for an index with another embedder, or another number of tiers."""
        problems = []
        if embedder != self.embedder:
            problems.append(
                f"the router was trained on questions embedded by '{self.embedder}', and the index embeds by "
                f"'{embedder}': train one on an index with this embedder"
            )
        if tiers is not None and tiers != len(self.tiers):
            problems.append(
                f"the router chooses among {len(self.tiers)} tiers, and {tiers} are given: leave out "
                "--tiers, a router brings its own"
            )
        if problems:
            raise InputError(problems)

    def weights(self) -> Weights:
        """As a file holds it."""
        about = {
            "kind": self.kind,
            "tiers": [tier.to_dict() for tier in self.tiers],
            "features": self.features,
            "embedder": self.embedder,
            "search": list(SEARCH),
            "shares": list(self.shares),
            "plausible": self.plausible,
            "confidence": self.confidence,
            "correction": None if self.correction is None else dict(vars(self.correction)),
            "measures": dict(self.measures),
        }
        return Weights(_KIND, VERSION, {**self.arrays, "costs": self.costs}, about, self.provenance)


def first_success(success: FloatArray) -> FloatArray:
    """Probability of each tier to be the cheapest that does, if what a tier answers all dearer ones do."""
    reached = np.maximum.accumulate(success)
    found = np.diff(reached, prepend=0.0)
    found[-1] += 1 - reached[-1]  # none does: the dearest
    return np.asarray(found, dtype=np.float64)


def _mlp(arrays: Mapping[str, NDArray[Any]], row: FloatArray) -> FloatArray:
    hidden = np.maximum(row @ arrays["weights_0"] + arrays["bias_0"], 0.0)
    hidden = np.maximum(hidden @ arrays["weights_1"] + arrays["bias_1"], 0.0)
    return np.asarray(
        scipy.special.softmax(hidden @ arrays["weights_2"] + arrays["bias_2"]), dtype=np.float64
    )


def _linear(arrays: Mapping[str, NDArray[Any]], row: FloatArray) -> FloatArray:
    return np.asarray(scipy.special.softmax(row @ arrays["weights"] + arrays["bias"]), dtype=np.float64)


_PROBABILITIES: Mapping[str, Callable[[Mapping[str, NDArray[Any]], FloatArray], FloatArray]] = {
    "mlp": _mlp,
    "logistic": _linear,
}

#: Arrays of each kind.
_ARRAYS = {
    "mlp": ("weights_0", "bias_0", "weights_1", "bias_1", "weights_2", "bias_2"),
    "logistic": ("weights", "bias"),
    "utility": ("weights", "bias", "slope", "shift"),
}


def _shape_problems(router: Router) -> list[str]:
    """What is wrong with the arrays of a router of a known kind."""
    needed = list(_ARRAYS[router.kind])
    if router.features == "question+search":
        needed += ["search_mean", "search_scale"]
    if missing := [name for name in needed if name not in router.arrays]:
        return [f"arrays {', '.join(missing)} are missing"]
    arrays, m, problems = router.arrays, len(router.tiers), []
    if router.kind == "mlp":
        sizes = [arrays[f"{name}_{k}"].shape for k in range(3) for name in ("weights", "bias")]
        chained = all(len(w) == 2 and b == w[1:] for w, b in zip(sizes[::2], sizes[1::2], strict=True))
        chained = chained and all(a[1] == b[0] for a, b in zip(sizes[0:4:2], sizes[2::2], strict=True))
        if not chained or sizes[-1] != (m,):
            problems.append(f"layers of shapes {sizes} do not lead to {m} tiers")
    elif arrays["weights"].ndim != 2 or arrays["weights"].shape[1] != m or arrays["bias"].shape != (m,):
        problems.append(f"weights of shape {arrays['weights'].shape} do not lead to {m} tiers")
    if router.kind == "utility" and not arrays["slope"].shape == arrays["shift"].shape == (m,):
        problems.append(f"slope and shift do not have {m} numbers each")
    if router.features == "question+search":
        mean, scale = arrays["search_mean"], arrays["search_scale"]
        if not mean.shape == scale.shape == (len(SEARCH),) or not (scale > 0).all():
            problems.append(f"search_mean and search_scale do not have {len(SEARCH)} numbers, scales > 0")
    return problems


def read_router(path: str) -> Router:
    """The router of a file.

    Raises
    ------
    DataError
        If there is none, it is damaged or foreign, or of another version.
    """
    held = read_weights(path, _KIND, VERSION)
    about, arrays = held.about, dict(held.arrays)
    try:
        if list(about["search"]) != list(SEARCH):
            raise DataError(
                f"'{path}' goes by other signals of the search than this release has: train it anew"
            )
        corrected = about["correction"]
        return Router(
            about["kind"],
            tiers_of(about["tiers"], f"'{path}'"),
            about["features"],
            about["embedder"],
            arrays,
            np.asarray(arrays.pop("costs"), dtype=np.float64),
            tuple(map(float, about["shares"])),
            float(about["plausible"]),
            float(about["confidence"]),
            None if corrected is None else Correction(**corrected),
            about["measures"],
            held.provenance,
        )
    except DataError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"'{path}' is damaged: {error}") from error


@dataclass(frozen=True, eq=False)
class Deciding:
    """A router that chooses for `mio_rag.deciders.depth.Depth`.

    Parameters
    ----------
    utility : Utility or None
        None: the price of a token decides.
    """

    router: Router
    utility: Utility | None = None
    unsure: str = "stay"

    def choose(self, question: Question, pool: Candidates, price: float) -> TierChoice:
        """The tier for a question, from its text and what the search found."""
        utility = Utility(1.0, price) if self.utility is None else self.utility
        return self.router.choose(look(pool), utility, self.unsure)
