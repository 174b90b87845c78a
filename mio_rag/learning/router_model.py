"""A router: it chooses the tier of a question, from its text and its search, in NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
#: What happens where more than one tier is plausible.
WHEN_UNSURE = ("stay", "up")
#: The entry of `ControlSettings.kinds`.
KEY = "router"
VERSION = 1
_KIND = "router"
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
#: Kinds of routers, and the arrays of each.
KINDS: Mapping[str, tuple[str, ...]] = {
    "mlp": ("weights_0", "bias_0", "weights_1", "bias_1", "weights_2", "bias_2"),
    "logistic": ("weights", "bias"),
    "utility": ("weights", "bias", "slope", "shift"),
}
_BY_MODEL = Selector()


# -- what a router sees -------------------------------------------------------------------------------------


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
    """Return what a pool shows of its question.

    selector: whose relevance model gives the probabilities of passages; by default that of `Selector()`. A
        router must see with the one that it was trained with.

    Raises `InputError` if the pool is empty, or was not found by a `Retriever`.
    """
    if len(pool) == 0 or pool.query_embedding is None or not {"dense", "bm25"} <= set(pool.scores):
        raise InputError("a router needs a pool that a Retriever found, with at least one passage")
    query = np.asarray(pool.query_embedding, dtype=np.float64)
    likely = np.clip((selector or _BY_MODEL).valued(pool).relevance, 0.0, 1.0)
    expected = float(likely.sum())
    facts = pool_facts(pool)

    def at_ranks(values: FloatArray) -> list[float]:
        falling = np.sort(values)[::-1]
        return [float(falling[min(rank, len(falling)) - 1]) for rank in _RANKS]

    search = [
        *at_ranks(pool.scores["dense"]),
        float(np.log1p(max(0.0, float(pool.scores["bm25"].max())))),
        *(float(facts[name]) for name in _FACTS),
        *at_ranks(likely),
        expected,
        *(float(likely[:depth].sum()) / expected if expected > 0 else 0.0 for depth in _DEPTHS),
    ]
    return Seen(pool.question, query / max(float(np.linalg.norm(query)), 1e-12), np.array(search))


def row_of(seen: Seen, features: str, arrays: Mapping[str, NDArray[Any]]) -> FloatArray:
    """Return the numbers that a router goes by, shape (d,): the embedding at length 1, then the search.

    features: with "question+search", what the search showed in standard deviations, over the root of their
        number: at length 1 on average of squares.
    arrays: search_mean and search_scale, as far as they are needed.
    """
    if features == "question":
        return seen.embedding
    standard = (seen.search - arrays["search_mean"]) / arrays["search_scale"]
    return np.concatenate([seen.embedding, standard / len(SEARCH) ** 0.5])


# -- settings -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Correction:
    """More is read where the search is weak.

    below: cosine of the best passage under which a search is weak.
    more: passages that are then read besides those of the tier; the most expensive tier reads no more.
    """

    below: float
    more: int = 5


@dataclass(frozen=True)
class TierChoice:
    """A tier, and why.

    place: among the tiers.
    scores: tier -> probability or utility.
    unsure: whether several tiers were plausible, and a more expensive one than the best was taken.
    """

    place: int
    scores: Mapping[str, float] | None = None
    unsure: bool = False


@dataclass(frozen=True)
class Utility:
    """alpha Q - beta C_tok - gamma C_lat - delta C_mem; it may change with every question.

    With alpha = 1 costs are in units of quality: beta = .0005 means that 2,000 tokens are worth one more
    answered question. All are finite and >= 0.

    alpha: value of a question that a tier answers; > 0.
    beta: cost of a token into or out of the model.
    gamma: cost of a second.
    delta: cost of a megabyte of peak memory.
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

    def of(self, success: FloatArray, costs: FloatArray) -> FloatArray:
        """Return the utility of m tiers, of shape (..., m), by their success and their costs (m, 3)."""
        charged = costs @ np.array([self.beta, self.gamma, self.delta])
        return np.asarray(self.alpha * success - charged, dtype=np.float64)


@dataclass(frozen=True)
class RouterSettings:
    """Tiers, and what chooses among them.

    tiers: ordered by cost. A router brings its own.
    router: file that `mio-rag policy fit router` wrote.
    utility: of a router that predicts the success of each tier.
    unsure: "up": a more expensive tier where more than one is plausible; "stay": the most probable one.
    """

    tiers: tuple[Tier, ...] = PUBLISHED
    router: str | None = None
    utility: Utility = Utility()
    unsure: str = "stay"

    def __post_init__(self) -> None:
        if self.unsure not in WHEN_UNSURE:
            raise InputError(f"unsure={self.unsure!r} is unknown: {choose(self.unsure, WHEN_UNSURE)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; a router is known by its content, so that runs with another one do not mix."""
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
        """Return the settings in `ControlSettings.kinds`, by default the published tiers.

        Raises `InputError` for data that describes none.
        """
        data = kinds.get(KEY, {})
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


# -- the router ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Router:
    """Chooses among m tiers.

    kind: one of `KINDS`.
    features: one of `FEATURES`.
    embedder: fingerprint of the embedder of the questions.
    arrays: what was learned: those of the kind.
    costs: shape (m, 3); mean tokens, seconds and peak megabytes of each tier in training.
    shares: length m; how often each tier was chosen, out of fold.
    plausible: smallest probability at which a tier is plausible: the conformal threshold.
    confidence: how often the plausible tiers were to include the right one.
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
        if self.kind not in KINDS:
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

    def _row(self, seen: Seen) -> FloatArray:
        row = row_of(seen, self.features, self.arrays)
        expected = len(self.arrays["weights_0" if self.kind == "mlp" else "weights"])
        if len(row) != expected:
            raise InputError(
                f"the router takes {expected} numbers of a question, and the embedder gives {len(row)}: use "
                "the embedder that it was trained with"
            )
        return row

    def success(self, seen: Seen) -> FloatArray:
        """Return the probability that each tier answers, shape (m,); of the kind `utility` alone."""
        if self.kind != "utility":
            raise InputError(f"a router of the kind {self.kind} predicts no success: train one of utility")
        arrays = self.arrays
        logits = self._row(seen) @ arrays["weights"] + arrays["bias"]
        return np.asarray(scipy.special.expit(arrays["slope"] * logits + arrays["shift"]), dtype=np.float64)

    def probabilities(self, seen: Seen) -> FloatArray:
        """Return the probability of each tier to be the one that the question needs, shape (m,)."""
        if self.kind == "utility":
            return first_success(self.success(seen))
        x, arrays = self._row(seen), self.arrays
        if self.kind == "mlp":
            for layer in "01":
                x = np.maximum(x @ arrays[f"weights_{layer}"] + arrays[f"bias_{layer}"], 0.0)
            logits = x @ arrays["weights_2"] + arrays["bias_2"]
        else:
            logits = x @ arrays["weights"] + arrays["bias"]
        return np.asarray(scipy.special.softmax(logits), dtype=np.float64)

    def choose(self, seen: Seen, utility: Utility | None = None, unsure: str = "stay") -> TierChoice:
        """Return the tier for a question.

        utility: of the kind `utility`; others ignore it.
        unsure: "up": the next more expensive tier, where several are plausible.
        """
        probable = self.probabilities(seen)
        scores = probable
        if self.kind == "utility":
            scores = (utility or Utility()).of(self.success(seen), self.costs)
        place = int(np.argmax(scores))
        several = int((probable >= self.plausible).sum()) > 1
        up = unsure == "up" and several and place + 1 < len(self.tiers)
        named = {tier.name: float(score) for tier, score in zip(self.tiers, scores, strict=True)}
        return TierChoice(place + up, named, up)

    def check(self, embedder: str) -> None:
        """Raise `InputError` for an index with another embedder."""
        if embedder != self.embedder:
            raise InputError(
                f"the router was trained on questions embedded by '{self.embedder}', and the index embeds by "
                f"'{embedder}': train one on an index with this embedder"
            )

    def weights(self) -> Weights:
        """Return the router as a file holds it."""
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
    """Return the probability of each tier to be the cheapest that answers, if all more expensive ones do."""
    reached = np.maximum.accumulate(success)
    found = np.diff(reached, prepend=0.0)
    found[-1] += 1 - reached[-1]  # none does: the most expensive
    return np.asarray(found, dtype=np.float64)


def _shape_problems(router: Router) -> list[str]:
    """What is wrong with the arrays of a router of a known kind."""
    with_search = router.features == "question+search"
    needed = [*KINDS[router.kind], *(("search_mean", "search_scale") if with_search else ())]
    if missing := [name for name in needed if name not in router.arrays]:
        return [f"arrays {', '.join(missing)} are missing"]
    arrays, m, problems = router.arrays, len(router.tiers), []
    shapes = {name: arrays[name].shape for name in needed}
    if router.kind == "mlp":
        sizes: Sequence[tuple[int, ...]] = list(shapes.values())[:6]
        chained = all(len(w) == 2 and b == w[1:] for w, b in zip(sizes[::2], sizes[1::2], strict=True))
        chained = chained and all(a[1] == b[0] for a, b in zip(sizes[0:4:2], sizes[2::2], strict=True))
        if not chained or sizes[-1] != (m,):
            problems.append(f"layers of shapes {sizes} do not lead to {m} tiers")
    elif len(shapes["weights"]) != 2 or shapes["weights"][1] != m or shapes["bias"] != (m,):
        problems.append(f"weights of shape {shapes['weights']} do not lead to {m} tiers")
    if router.kind == "utility" and not shapes["slope"] == shapes["shift"] == (m,):
        problems.append(f"slope and shift do not have {m} numbers each")
    if with_search and (
        not shapes["search_mean"] == shapes["search_scale"] == (len(SEARCH),)
        or not (arrays["search_scale"] > 0).all()
    ):
        problems.append(f"search_mean and search_scale do not have {len(SEARCH)} numbers, scales > 0")
    return problems


def read_router(path: str) -> Router:
    """Return the router of a file; `DataError` if it is missing, damaged, foreign or of another version."""
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

    utility: None: the price of a token decides.
    """

    router: Router
    utility: Utility | None = None
    unsure: str = "stay"

    def choose(self, question: Question, pool: Candidates, price: float) -> TierChoice:
        """Return the tier for a question, from its text and what the search found."""
        utility = Utility(1.0, price) if self.utility is None else self.utility
        return self.router.choose(look(pool), utility, self.unsure)
