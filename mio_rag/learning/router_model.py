"""A router: it chooses the tier of a question, from its text and its search, in NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import scipy  # loads scipy.special, an eighth of a second, where it is first used
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from mio_rag.errors import DataError, InputError
from mio_rag.learning.weights import Weights, read_weights
from mio_rag.pool import Candidates
from mio_rag.relevance.features import pool_facts
from mio_rag.selection.selector import Selector
from mio_rag.session.tiers import PUBLISHED, Tier, check_tiers, tiers_of
from mio_rag.settings import Settings
from mio_rag.types import Question

FloatArray = NDArray[np.float64]

#: The entry of `ControlSettings.kinds`, and the kind of a router's file.
KEY = "router"
VERSION = 1
#: What one token into or out of the model must add to the probability of an answer: 2,000 are worth one.
TOKEN_PRICE = 0.0005
_RANKS = (1, 2, 5)
_DEPTHS = (2, 5, 10)
_FACTS = (
    "pool_agreement", "pool_correlation", "pool_dense_lead", "pool_bm25_lead", "pool_question_words",
    "pool_question_names",
)  # fmt: skip
#: Names of the numbers of `Seen.search`.
SEARCH = (
    "best_cosine", "second_cosine", "fifth_cosine", "best_bm25", *_FACTS,
    *(f"likely_{rank}" for rank in _RANKS), "expected", *(f"covered_{depth}" for depth in _DEPTHS),
)  # fmt: skip
#: mlp: the published network. logistic: a regression of the tier that is needed. utility: for each tier a
#: regression of its success, so that prices may change without training.
KINDS = ("mlp", "logistic", "utility")


# -- what a router sees -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Seen:
    """One question: its text, its embedding of length 1, shape (d,), and its search, shape (len(SEARCH),)."""

    text: str
    embedding: FloatArray
    search: FloatArray


def look(pool: Candidates, selector: Selector | None = None) -> Seen:
    """Return what a pool shows of its question.

    selector: gives the probabilities of passages; a router needs the one that it was trained with.

    Raises `InputError` if the pool is empty, or was not found by a `Retriever`.
    """
    if len(pool) == 0 or pool.query_embedding is None or not {"dense", "bm25"} <= set(pool.scores):
        raise InputError("a router needs a pool that a Retriever found, with at least one passage")
    query = np.asarray(pool.query_embedding, dtype=np.float64)
    likely = np.clip((selector or Selector()).valued(pool).relevance, 0.0, 1.0)
    expected, facts = float(likely.sum()), pool_facts(pool)

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
    """Return the numbers that a router goes by, shape (d,).

    With the features "question+search" the search follows the embedding, in standard deviations over the root
    of their number, so that both parts weigh alike; `arrays` has their search_mean and search_scale.
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
    more: further passages that are then read; the most expensive tier reads no more.
    """

    below: float
    more: int = 5


@dataclass(frozen=True)
class TierChoice:
    """The place of a tier, and why.

    scores: tier -> probability or utility.
    unsure: whether several tiers were plausible, and a more expensive one than the best was taken.
    """

    place: int
    scores: Mapping[str, float] | None = None
    unsure: bool = False


def _in_order(tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
    check_tiers(tiers)
    return tiers


class RouterSettings(Settings):
    """Tiers, and what chooses among them."""

    tiers: Annotated[tuple[Tier, ...], AfterValidator(_in_order)] = PUBLISHED
    """Ordered by cost. A router brings its own."""
    router: str | None = None
    """File that `mio-rag policy fit router` wrote."""
    sha256: str | None = None
    """Digest of that file, as runs record it."""
    token_price: Annotated[float, Field(ge=0)] = TOKEN_PRICE
    """What a token must add; of a router that predicts the success of each tier."""
    unsure: Literal["stay", "up"] = "stay"
    """up: a more expensive tier where more than one is plausible. stay: the best one."""

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return plain data with the router's digest, so that runs with another one do not mix."""
        path = None if self.router is None else Path(self.router)
        digest = sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else None
        return super().to_dict(defaults=defaults) | {"sha256": digest}

    @classmethod
    def of(cls, kinds: Mapping[str, Any]) -> RouterSettings:
        """Return the settings in `ControlSettings.kinds`, by default the published tiers."""
        return cls.from_dict(kinds.get(KEY, {}), KEY)


# -- the router ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Router:
    """Chooses among m tiers.

    kind: one of `KINDS`.
    features: "question" or "question+search".
    embedder: fingerprint of the embedder of the questions.
    arrays: of mlp weights_0, bias_0 to weights_2, bias_2; of the others weights (d, m) and bias (m,); of
        utility slope and shift, too; search_mean and search_scale where the search is a feature.
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

    def _logits(self, seen: Seen) -> FloatArray:
        x, arrays = row_of(seen, self.features, self.arrays), self.arrays
        last = "_2" if self.kind == "mlp" else ""
        expected = len(arrays["weights_0" if last else "weights"])
        if len(x) != expected:
            raise InputError(
                f"the router takes {expected} numbers of a question, and the embedder gives {len(x)}: use "
                "the embedder that it was trained with"
            )
        for layer in "01" if last else "":
            x = np.maximum(x @ arrays[f"weights_{layer}"] + arrays[f"bias_{layer}"], 0.0)
        return np.asarray(x @ arrays[f"weights{last}"] + arrays[f"bias{last}"])

    def success(self, seen: Seen) -> FloatArray:
        """Return the probability that each tier answers, shape (m,); of the kind `utility` alone."""
        if self.kind != "utility":
            raise InputError(f"a router of the kind {self.kind} predicts no success: train one of utility")
        logits = self.arrays["slope"] * self._logits(seen) + self.arrays["shift"]
        return np.asarray(scipy.special.expit(logits), dtype=np.float64)

    def probabilities(self, seen: Seen) -> FloatArray:
        """Return the probability of each tier to be the one that the question needs, shape (m,)."""
        if self.kind == "utility":
            return first_success(self.success(seen))
        return np.asarray(scipy.special.softmax(self._logits(seen)), dtype=np.float64)

    def choose(self, seen: Seen, price: float = TOKEN_PRICE, unsure: str = "stay") -> TierChoice:
        """Return the tier for a question.

        price: what a token must add; kinds other than `utility` ignore it.
        unsure: "up": the next more expensive tier, where several are plausible.
        """
        probable = scores = self.probabilities(seen)
        if self.kind == "utility":
            scores = self.success(seen) - price * self.costs[:, 0]
        place, several = int(np.argmax(scores)), int((probable >= self.plausible).sum()) > 1
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
        names = ("kind", "features", "embedder", "shares", "plausible", "confidence", "measures")
        about = {
            **{name: getattr(self, name) for name in names},
            "tiers": [tier.to_dict() for tier in self.tiers],
            "search": SEARCH,
            "correction": None if self.correction is None else vars(self.correction),
        }
        return Weights(KEY, VERSION, {**self.arrays, "costs": self.costs}, about, self.provenance)


def first_success(success: FloatArray) -> FloatArray:
    """Return the probability of each tier to be the cheapest that answers, if all more expensive ones do."""
    reached = np.maximum.accumulate(success)
    found = np.diff(reached, prepend=0.0)
    found[-1] += 1 - reached[-1]  # none does: the most expensive
    return np.asarray(found, dtype=np.float64)


def read_router(path: str) -> Router:
    """Return the router of a file; `DataError` if it is missing, damaged, foreign or of another version."""
    stored = read_weights(path, KEY, VERSION)
    about, arrays = dict(stored.about), dict(stored.arrays)
    try:
        if about.pop("search") != list(SEARCH):
            raise DataError(f"'{path}' was trained with other signals of the search: train it anew")
        if about["kind"] not in KINDS:
            raise DataError(f"'{path}' has the kind '{about['kind']}': train one of {', '.join(KINDS)}")
        about["tiers"] = tiers_of(about["tiers"], f"'{path}'")
        about["shares"] = tuple(about["shares"])
        if about["correction"] is not None:
            about["correction"] = Correction(**about["correction"])
        return Router(**about, costs=arrays.pop("costs"), arrays=arrays, provenance=stored.provenance)
    except DataError:
        raise
    except (KeyError, TypeError, InputError) as error:
        raise DataError(f"'{path}' is damaged: {error}") from error


@dataclass(frozen=True, eq=False)
class Deciding:
    """A router that chooses for `mio_rag.deciders.steps.Depth`.

    price: of a token; None: that of the question.
    """

    router: Router
    price: float | None = None
    unsure: str = "stay"

    def choose(self, question: Question, pool: Candidates, price: float) -> TierChoice:
        """Return the tier for a question, from its text and what the search found."""
        return self.router.choose(look(pool), price if self.price is None else self.price, self.unsure)
