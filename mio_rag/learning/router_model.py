"""A router: it chooses the tier of a question, from its text and its search, in NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # loads scipy.special, an eighth of a second, where it is first used
from numpy.typing import NDArray

from mio_rag.errors import DataError, InputError, choose
from mio_rag.learning.weights import Weights, read_weights
from mio_rag.pool import Candidates
from mio_rag.relevance.features import pool_facts
from mio_rag.selection.selector import Selector
from mio_rag.session.tiers import PUBLISHED, Tier, tiers_of
from mio_rag.types import Question

FloatArray = NDArray[np.float64]

#: What a router may go by.
FEATURES = ("question", "question+search")

_RANKS = (1, 2, 5)
_DEPTHS = (2, 5, 10)
_FACTS = (
    "pool_agreement",
    "pool_correlation",
    "pool_dense_lead",
    "pool_bm25_lead",
    "pool_question_words",
    "pool_question_names",
)

#: Names of the numbers of `Seen.search`.
SEARCH = (
    "best_cosine",
    "second_cosine",
    "fifth_cosine",
    "best_bm25",
    *_FACTS,
    *(f"likely_{rank}" for rank in _RANKS),
    "expected",
    *(f"covered_{depth}" for depth in _DEPTHS),
)

_BY_MODEL = Selector()


@dataclass(frozen=True)
class Correction:
    """More is read where the search is weak.

    below: cosine of the best passage under which a search is weak.
    more: passages that are then read next to those of the tier; the most expensive tier reads no more.
    """

    below: float
    more: int = 5


@dataclass(frozen=True)
class TierChoice:
    """A tier, and what spoke for it.

    place: among the tiers.
    scores: tier -> probability or utility.
    unsure: whether several tiers were plausible, and a more expensive one than the best was taken.
    """

    place: int
    scores: Mapping[str, float] | None = None
    unsure: bool = False


@dataclass(frozen=True, eq=False)
class Seen:
    """One question, as a router sees it.

    embedding: shape (d,); of length 1.
    search: shape (len(SEARCH),).
    """

    text: str
    embedding: FloatArray
    search: FloatArray


def look(pool: Candidates, selector: Selector | None = None) -> Seen:
    """What a pool shows of its question.

    selector: whose relevance model says how probable passages are; by default that of `Selector()`. A router
        must see with the one that it was trained with.

    Raises `InputError` if the pool is empty, or was not found by a `Retriever`.
    """
    if len(pool) == 0 or pool.query_embedding is None or not {"dense", "bm25"} <= set(pool.scores):
        raise InputError("a router needs a pool that a Retriever found, with at least one passage")
    query = np.asarray(pool.query_embedding, dtype=np.float64)
    cosines = np.sort(pool.scores["dense"])[::-1]
    likely = np.clip((selector or _BY_MODEL).valued(pool).relevance, 0.0, 1.0)
    expected = float(likely.sum())
    facts = pool_facts(pool)
    search = [
        *_at(cosines, _RANKS),
        float(np.log1p(max(0.0, float(pool.scores["bm25"].max())))),
        *(float(facts[name]) for name in _FACTS),
        *_at(np.sort(likely)[::-1], _RANKS),
        expected,
        *(float(likely[:depth].sum()) / expected if expected > 0 else 0.0 for depth in _DEPTHS),
    ]
    return Seen(pool.question, query / max(float(np.linalg.norm(query)), 1e-12), np.array(search))


def _at(values: FloatArray, ranks: Sequence[int]) -> list[float]:
    """The values at ranks from 1; the last one where there are fewer."""
    return [float(values[min(rank, len(values)) - 1]) for rank in ranks]


#: The entry of `ControlSettings.kinds`.
KEY = "router"

#: What happens where more than one tier is plausible.
WHEN_UNSURE = ("stay", "up")


@dataclass(frozen=True)
class Utility:
    """alpha Q - beta C_tok - gamma C_lat - delta C_mem, changed whenever one likes: nothing is trained anew.

    alpha: worth of a question that a tier answers.
    beta: what a token into or out of the model costs.
    gamma: what a second costs.
    delta: what a megabyte of peak memory costs.

    All >= 0 and finite. With alpha = 1 costs are in units of quality: beta = .0005 says that 2,000 tokens are
    worth one more answered question.
    """

    alpha: float = 1.0
    beta: float = 0.0005
    gamma: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value!r} must be a finite number >= 0"
            for name, value in vars(self).items()
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf
        ]
        if not problems and self.alpha == 0:
            problems.append("alpha=0 makes every answer worthless: give a number above 0")
        if problems:
            raise InputError([f"utility: {problem}" for problem in problems])


@dataclass(frozen=True)
class RouterSettings:
    """Tiers, and who chooses among them.

    tiers: ordered by cost. A router brings its own.
    router: file that `mio-rag route train` wrote.
    utility: of a router that knows the utility of each tier.
    unsure: "up": a dearer tier where more than one is plausible; "stay": the most probable one.
    """

    tiers: tuple[Tier, ...] = PUBLISHED
    router: str | None = None
    utility: Utility = Utility()
    unsure: str = "stay"

    def __post_init__(self) -> None:
        if self.unsure not in WHEN_UNSURE:
            raise InputError(f"unsure={self.unsure!r} is unknown: {choose(self.unsure, WHEN_UNSURE)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a router is known by its content, so that runs with another one do not mix."""
        data: dict[str, Any] = {
            "tiers": [tier.to_dict() for tier in self.tiers],
            "utility": dict(vars(self.utility)),
            "unsure": self.unsure,
        }
        if self.router is not None:
            path = Path(self.router)
            data["router"] = self.router
            data["sha256"] = sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        return data

    @classmethod
    def of(cls, kinds: Mapping[str, Any]) -> RouterSettings:
        """The settings below `ControlSettings.kinds`; where there are none, the published tiers.

        Raises `InputError` for data that describes none.
        """
        data = kinds.get(KEY)
        if data is None:
            return cls()
        if not isinstance(data, Mapping):
            raise InputError(f"settings of routers are {data!r}: give a mapping, as `to_dict` makes it")
        known = ("tiers", "utility", "unsure", "router", "sha256")
        if strange := sorted(set(data) - set(known)):
            raise InputError(
                f"settings of routers: {', '.join(strange)} is unknown: choose {', '.join(known)}"
            )
        try:
            utility = Utility(**data.get("utility", {}))
        except TypeError as error:
            raise InputError(f"settings of routers: utility: {error}") from error
        tiers = PUBLISHED if "tiers" not in data else tiers_of(data["tiers"], "settings of routers")
        return cls(tiers, data.get("router"), utility, data.get("unsure", "stay"))


KINDS = ("mlp", "logistic", "utility")
REMOVED_KINDS = ("tfidf-svm", "neighbours")
VERSION = 1
_KIND = "router"


def row_of(seen: Seen, features: str, arrays: Mapping[str, NDArray[Any]]) -> FloatArray:
    """Return the numbers that a router goes by, shape (d,): the embedding at length 1, then the search.

    features: with "question+search", what the search showed in standard deviations, over the root of their
        number: at length 1 in the mean of squares.
    arrays: search_mean and search_scale, as far as they are needed.
    """
    if features == "question":
        return seen.embedding
    standard = (seen.search - arrays["search_mean"]) / arrays["search_scale"]
    return np.concatenate([seen.embedding, standard / len(SEARCH) ** 0.5])


@dataclass(frozen=True, eq=False)
class Router:
    """Chooses among tiers.

    kind: one of `KINDS`.
    features: "question" or "question+search".
    embedder: fingerprint of the embedder of the questions.
    arrays: what was learned; which arrays, goes by the kind (see `mio_rag.learning.router`).
    costs: shape (m, 3); mean tokens, seconds and peak megabytes of each tier in training.
    shares: length m; how often each tier was chosen, out of fold.
    plausible: smallest probability at which a tier is plausible: the conformal threshold.
    confidence: how often the plausible tiers were to hold the right one.
    correction: learned with the router.
    measures: what cross-validation found. Plain data.
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

        utility: of the kind `utility`; others know no utility, and leave it aside.
        unsure: "up": the next dearer tier, where several are plausible.
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

    Raises `DataError` if there is none, it is damaged or foreign, or of another version.
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

    utility: none: the price of a token decides.
    """

    router: Router
    utility: Utility | None = None
    unsure: str = "stay"

    def choose(self, question: Question, pool: Candidates, price: float) -> TierChoice:
        """The tier for a question, from its text and what the search found."""
        utility = Utility(1.0, price) if self.utility is None else self.utility
        return self.router.choose(look(pool), utility, self.unsure)
