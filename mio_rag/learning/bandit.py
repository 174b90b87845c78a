"""A bandit over search strategies: its settings, what it sees of a question, and its state.

The state is a replay of the events of its log: the same events give the same state to the last bit.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, Field

from mio_rag.errors import DataError
from mio_rag.learning.bandit_log import Event
from mio_rag.session.search import STRATEGIES, SearchSettings, check_strategies
from mio_rag.settings import Settings

FloatArray = NDArray[np.float64]

# -- settings -----------------------------------------------------------------------------------------------

#: Key of `StrategyOptions` in `ControlSettings.kinds`.
KIND = "strategies"

Count = Annotated[int, Field(ge=0, le=10**9)]
Positive = Annotated[float, Field(ge=1e-12, le=1e12)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
Base = Annotated[tuple[str, ...], AfterValidator(lambda names: check_strategies(names) if names else names)]


class BanditSettings(Settings):
    """How a bandit learns which strategies are worth their cost; published values in brackets.

    Defaults that differ had less regret on questions that no result is reported on.
    """

    policy: Literal["linucb", "thompson", "epsilon-greedy", "uniform"] = "linucb"
    """[linucb]"""
    rule: Literal["program", "threshold"] = "program"
    """program: the set of largest estimated value less overlap and cost. threshold: every strategy whose
    score is at least `threshold` times the best. [threshold]"""
    threshold: Share = 0.1
    """[.1]"""
    reward: Literal["program", "found"] = "program"
    """program: what the best selection gains by what a strategy found. found: the share of what was read that
    it found; a rating counts in full for all that ran, and slowness is a penalty. [found]"""
    slow_seconds: Positive = 5.0
    """With found: seconds of a strategy that take 1 off its reward. [5]"""
    slow_most: Share = 0.2
    """With found: the most that slowness takes off. [.2]"""
    weighted: bool = False
    """Merge the rankings with what each strategy is expected to bring as its weight. [yes]"""
    base: Base = ("raw",)
    """Strategies that always run; contributions are measured against them. [none]"""
    dimensions: Annotated[int, Field(ge=32, le=512)] = 64
    """Length of the context. [64]"""
    alpha: NotNegative = 0.1
    """Width of the upper confidence. [1]"""
    alpha_unit: Literal["deviation", "reward"] = "deviation"
    """Of the width: the standard deviation of the reward, or the reward itself. [reward]"""
    ridge: Positive = 0.3
    """Penalty of what words show. [1]"""
    ridge_embedding: Positive = 100.0
    """Penalty of the rest of the context: the embedding and past outcomes. [1]"""
    token_price: NotNegative = 1e-4
    """What one token of the model must add (1: a passage that is certainly needed). [none]"""
    cold_start: Count = 20
    """First questions, also after a change, which learn about all strategies alike. [100]"""
    cold_share: Annotated[float, Field(ge=1e-12, le=1)] = 0.5
    """Probability that each strategy runs on these. [1]"""
    explore: Share = 0.05
    """A share max(explore_least, explore * explore_decay**n) of the questions explores: each strategy then
    runs with probability 1/2. [.3]"""
    explore_decay: Share = 0.99
    """[.99]"""
    explore_least: Share = 0.005
    """[.05]"""
    unsure: Share = 0.5
    """Below this confidence that share is doubled. [.5]"""
    all_every: Count = 0
    """All strategies run on every N-th question after the cold start; 0: never. [100]"""
    feedback: Share = 0.3
    """What a rating adds to the rewards of those who found what was read, or takes from them. [.3, of all]"""
    prune_after: Annotated[int, Field(ge=2, le=10**9)] = 50
    """Questions of a type after which a strategy may be pruned there. [50, everywhere]"""
    prune_by: Literal["type", "all"] = "type"
    """Whether a strategy is judged on each type of question or on all together. [all]"""
    prune_below: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """Net reward below which a strategy is not worth its cost. [.05, which the design leaves open]"""
    prune_confidence: NotNegative = 2.0
    """Standard errors by which it must lie below. [0]"""
    retrial: Annotated[float, Field(ge=0, le=1 - 1e-12)] = 0.05
    """Probability that a pruned strategy runs when exploring. [0]"""
    change_tolerance: NotNegative = 0.25
    """Of the Page-Hinkley tests on the rewards and on the value of what always runs, in deviations. [none]"""
    change_threshold: Positive = 20.0
    """Sum of deviations at which these tests report a change. [1e12: none]"""
    forget: Share = 0.1
    """Share of what was learned that is kept when a change is found. [1]"""
    window_days: Positive = 30.0
    """What recalibration learns from. [30]"""
    holdout: Annotated[float, Field(ge=0.01, le=0.9)] = 0.2
    """Share of the window, its end, that no compared model learned from. [none]"""
    neighbours: Annotated[int, Field(ge=1, le=100)] = 5
    """Past questions whose outcomes are part of the context. [5]"""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of everything drawn."""

    def share_exploring(self, questions: int, confidence: float) -> float:
        """Return the probability that a question explores, by the questions since the last cold start."""
        share = max(self.explore_least, self.explore * self.explore_decay**questions)
        return min(1.0, 2 * share if confidence < self.unsure else share)


class StrategyOptions(Settings):
    """Search by strategies: which, how, and how a bandit chooses among them."""

    state: str | None = None
    """File of what a bandit has learned."""
    possible: Annotated[tuple[str, ...], AfterValidator(check_strategies)] = STRATEGIES
    """Strategies that a bandit may choose."""
    search: SearchSettings = SearchSettings()
    bandit: BanditSettings = BanditSettings()


# -- context ------------------------------------------------------------------------------------------------

TYPES = ("who", "when", "where", "which", "what", "how", "why", "yes-no", "other")
#: Strategies whose past contributions are part of the context; further ones do without.
SLOTS = 8

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_VAGUE = re.compile(r"it|its|he|she|they|them|his|her|their|this|that|these|those|one|former|latter")
_COMPARED = re.compile(
    "both|between|older|younger|longer|larger|more|less|first|earlier|later|same|than|or|either"
)
_ASKED = {"whom": "who", "whose": "who", **{word: word for word in TYPES[:7]}}
_POLAR = re.compile("is|are|was|were|do|does|did|can|could|has|have|had|will|would|should")
_FIRST = 8 + len(TYPES)  # where past outcomes begin, after what the words show and the type
_PLACE = _FIRST + SLOTS  # where the embedding begins


@dataclass(frozen=True, eq=False)
class Context:
    """A question as the bandit sees it.

    x: shape (d,): what the words show, the type, what strategies added to similar questions, the embedding in
        fewer dimensions; float32 numbers in float64, so that the log holds exactly what was learned from.
    type: one of `TYPES`.
    """

    x: FloatArray
    type: str

    def with_past(self, past: FloatArray) -> Context:
        """Return the context with what strategies added to similar questions, shape (SLOTS,)."""
        x = self.x.copy()
        x[_FIRST:_PLACE] = past.astype(np.float32)
        return Context(x, self.type)

    @property
    def place(self) -> FloatArray:
        """The part by which similar questions are found: what comes of the embedding."""
        return self.x[_PLACE:]


def question_type(text: str) -> str:
    """Return the type of a question: the first question word, else yes-no, else other."""
    words = [word.lower() for word in _WORD.findall(text)]
    asked = next((_ASKED[word] for word in words if word in _ASKED), None)
    return asked or ("yes-no" if words and _POLAR.fullmatch(words[0]) else "other")


def context_of(text: str, embedding: NDArray[np.float32], known_names: int, dimensions: int) -> Context:
    """Return the context of a question, without what is known of similar ones.

    known_names: how many names of the index are in the question.
    """
    found = _WORD.findall(text)
    words, kind = [word.lower() for word in found], question_type(text)
    capitals = sum(word[0].isupper() for word in found[1:])
    shown = [
        1.0, min(len(words), 40) / 40, min(len(text), 240) / 240, min(capitals, 6) / 6,
        min(known_names, 4) / 4, any(character.isdigit() for character in text),
        any(map(_VAGUE.fullmatch, words)), any(map(_COMPARED.fullmatch, words)),
        *(kind == known for known in TYPES),
    ]  # fmt: skip
    reduced = _projection(embedding.size, dimensions - _PLACE) @ embedding.astype(np.float64)
    x = np.concatenate([shown, np.zeros(SLOTS), reduced])
    return Context(x.astype(np.float32).astype(np.float64), kind)


@lru_cache(maxsize=8)
def _projection(size: int, kept: int) -> FloatArray:
    """A random projection that keeps lengths in expectation, the same everywhere (Johnson, Lindenstrauss)."""
    rng = np.random.Generator(np.random.PCG64(24))
    return np.asarray(rng.standard_normal((kept, size)) / np.sqrt(kept), dtype=np.float64)


# -- models -------------------------------------------------------------------------------------------------


@dataclass
class PageHinkley:
    """A test for a change of the mean of a sequence.

    Source: Page, "Continuous inspection schemes", Biometrika 1954; Hinkley, "Inference about the change-point
    from cumulative sum tests", Biometrika 1971.

    tolerance: changes of the mean that are no change, >= 0.
    threshold: sum of deviations at which a change is reported, > 0.
    """

    tolerance: float
    threshold: float
    count: int = 0
    mean: float = 0.0
    up: float = 0.0
    down: float = 0.0

    def change(self, value: float) -> bool:
        """Add a number, and return whether the mean has changed."""
        self.count += 1
        self.mean += (value - self.mean) / self.count
        deviation = value - self.mean
        self.up = max(0.0, self.up + deviation - self.tolerance)
        self.down = max(0.0, self.down - deviation - self.tolerance)
        return max(self.up, self.down) > self.threshold


_NOISE_COUNT = 2.0  # observations that the first guess of the noise weighs
_NOISE_GUESS = 0.1  # standard deviation of a contribution, before any was seen


class Ridge:
    """Ridge regression of one strategy's rewards, one observation at a time, with its uncertainty.

        A = R + sum x x',   b = R prior + sum r x,   theta = A^-1 b,   width(x) = sqrt(x' A^-1 x)

    with R = diag(ridge). The inverse is updated by the formula of Sherman and Morrison, and computed anew
    every `refresh` updates.

    Sources: Li, Chu, Langford and Schapire, "A contextual-bandit approach to personalized news article
    recommendation" (WWW 2010), disjoint models; Agrawal and Goyal, "Thompson sampling for contextual bandits
    with linear payoffs" (ICML 2013).

    ridge: a number, or shape (dimensions,); > 0.
    """

    def __init__(self, dimensions: int, ridge: ArrayLike = 1.0, refresh: int = 1000) -> None:
        self.refresh = refresh
        self.penalty: FloatArray = np.broadcast_to(np.asarray(ridge, dtype=np.float64), (dimensions,)).copy()
        self.matrix: FloatArray = np.diag(self.penalty)
        self.inverse: FloatArray = np.diag(1.0 / self.penalty)
        self.vector: FloatArray = np.zeros(dimensions)
        self.theta: FloatArray = np.zeros(dimensions)
        self.count, self.squares = 0, 0.0

    def update(self, x: FloatArray, reward: float) -> None:
        """Add an observation."""
        error = reward - self.mean(x)
        self.squares += error * error / (1.0 + float(x @ self.inverse @ x))  # predicted before it was seen
        self.matrix += np.outer(x, x)
        self.vector += reward * x
        self.count += 1
        if self.count % self.refresh == 0:
            self.solve()
            return
        half = self.inverse @ x
        self.inverse -= np.outer(half, half) / (1.0 + float(x @ half))
        self.theta = self.inverse @ self.vector

    def correct(self, x: FloatArray, difference: float) -> None:
        """Change the reward of an earlier observation."""
        self.vector += difference * x
        self.theta = self.inverse @ self.vector

    def solve(self) -> None:
        """Compute inverse and theta anew, without the rounding that updates added up."""
        found = np.asarray(np.linalg.inv(self.matrix), dtype=np.float64)
        self.inverse = (found + found.T) / 2
        self.theta = self.inverse @ self.vector

    def forget(self, kept: float) -> None:
        """Keep a share of what was learned, as if so many of the observations had been made."""
        self.matrix = kept * self.matrix + (1 - kept) * np.diag(self.penalty)
        self.vector *= kept
        self.squares *= kept
        self.count = int(self.count * kept)
        self.solve()

    def start_from(self, theta: FloatArray, weight: float) -> None:
        """Add a prior mean that weighs `weight` > 0 times the ridge; what was seen stays."""
        self.matrix += weight * np.diag(self.penalty)
        self.vector += weight * self.penalty * theta
        self.solve()

    @property
    def noise(self) -> float:
        """Standard deviation of a reward around its mean, as far as seen."""
        return math.sqrt((self.squares + _NOISE_COUNT * _NOISE_GUESS**2) / (self.count + _NOISE_COUNT))

    def mean(self, x: FloatArray) -> float:
        """Return the expected reward."""
        return float(self.theta @ x)

    def width(self, x: FloatArray) -> float:
        """Return the uncertainty of the mean, sqrt(x' A^-1 x), in standard deviations of the noise."""
        return math.sqrt(max(0.0, float(x @ self.inverse @ x)))


def net(region: Sequence[float], price: float) -> tuple[float, float, float]:
    """Return count, mean and squared deviations of the net value at a price of a token.

    region: of the questions of one type on which a strategy ran: their number, and the sums of the value v
        that it added, of its tokens t, and of v * v, t * t and v * t.
    """
    count, value, tokens, squares, spent, both = region
    mean = (value - price * tokens) / count if count else 0.0
    return count, mean, max(0.0, squares + price**2 * spent - 2 * price * both - count * mean**2)


# -- state --------------------------------------------------------------------------------------------------

_REMEMBERED = 500  # past questions among which similar ones are looked for
_ADDED = 1e-3  # what counts as having contributed
_SETTLED = 20  # questions after which the deviation of what always runs is known
_FADED = 50  # changes whose effect on earlier questions is known: before these next to nothing is left
_HALF = 0.99  # weight of earlier questions after one more, in the entropy of choices
_TALLIED = ("ran", "explored", "added", "own", "reward", "tokens", "seconds", "rated")
_FORM = 8  # of snapshots: those of another form are replayed from the events
#: Settings that the replay depends on; with others only the choices change.
_SHAPING = (
    "dimensions", "ridge", "ridge_embedding", "feedback", "change_tolerance", "change_threshold", "forget",
    "reward", "slow_seconds", "slow_most",
)  # fmt: skip


def context_in(event: Event) -> FloatArray:
    """Return the context that a question's event holds."""
    return np.frombuffer(event.x, dtype=np.float32).astype(np.float64)


def _numbers(given: Any, shape: tuple[int, ...], what: str) -> FloatArray:
    found = np.array(given, dtype=np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise ValueError(f"{what} must be {shape} finite numbers")
    return found


class Learned:
    """The state of a bandit.

    strategies: those that are chosen among, besides the ones that always run.
    token_price: at which is chosen, that of the settings at first. Nothing that is stored depends on it.
    """

    def __init__(self, settings: BanditSettings, strategies: Sequence[str]) -> None:
        self.settings, self.strategies = settings, list(strategies)
        self.token_price = settings.token_price
        self.seq = self.questions = self.since = self.changes = self.remembered = 0
        self.regret = 0.0
        self.models = {name: self._model() for name in self.strategies}
        self.overlaps: dict[str, list[float]] = {}
        self.regions: dict[str, list[float]] = {}
        self.forced: list[str] = []
        self.tallies = {name: dict.fromkeys(_TALLIED, 0.0) for name in (*settings.base, *self.strategies)}
        self.sets: dict[str, float] = {}
        self.places: FloatArray = np.zeros((_REMEMBERED, settings.dimensions - _PLACE))
        self.past: FloatArray = np.full((_REMEMBERED, SLOTS), np.nan)
        self.faded: list[list[float]] = []  # (seq, share): what is left of questions up to there
        self._watch_anew()

    def _watch_anew(self) -> None:
        how = self.settings
        self.watch, self.watch_base = (
            PageHinkley(how.change_tolerance, how.change_threshold) for _ in range(2)
        )
        self.level = [0.0, 0.0, 0.0]

    def _model(self) -> Ridge:
        how = self.settings
        ridge = np.full(how.dimensions, how.ridge_embedding)
        ridge[:_FIRST] = how.ridge
        return Ridge(how.dimensions, ridge)

    # --- replay ------------------------------------------------------------------------------------------

    def fold(self, event: Event, find: Callable[[str, str], Event | None]) -> None:
        """Update the state by the next event; find: (kind, id) -> an earlier event.

        Raises `DataError` for an event that is damaged, or of a kind of a later release.
        """
        try:
            self._fold(event, find)
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(f"event {event.seq}, a {event.kind}, is damaged: {error!r}") from error
        self.seq = event.seq

    def _fold(self, event: Event, find: Callable[[str, str], Event | None]) -> None:
        data, d = event.data, self.settings.dimensions
        match event.kind:
            case "question":
                self._question(event)
            case "feedback":
                if (about := find("question", event.id)) is not None:
                    self._feedback(data["value"], about)
            case "prior":
                for name, theta in data["theta"].items():
                    if name in self.models:
                        self.models[name].start_from(_numbers(theta, (d,), "theta"), float(data["weight"]))
            case "pruned":
                region = f"{data['type']}/{data['strategy']}"
                self.forced = [r for r in self.forced if r != region] + ([region] if data["on"] else [])
            case "recalibrated":  # models of a window take the place of those here, without what lay before
                self.faded = [[int(data["from"]), 0.0]]
                for name, arrays in data["models"].items():
                    if name in self.models:
                        model = self.models[name] = self._model()
                        model.matrix = _numbers(arrays["matrix"], (d, d), "the matrix")
                        model.vector = _numbers(arrays["vector"], (d,), "the vector")
                        model.count, model.squares = int(arrays["count"]), float(arrays["squares"])
                        model.solve()
            case "strategy":
                if event.id not in self.strategies:
                    self.strategies.append(event.id)
                self.models[event.id] = self._model()  # also where it was known: it has forgotten nothing
                self.tallies.setdefault(event.id, dict.fromkeys(_TALLIED, 0.0))
            case "settings":
                pass  # those of another process
            case _:
                raise DataError(
                    f"event {event.seq} is of the kind '{event.kind}', which this release does not know"
                )

    def _question(self, event: Event) -> None:
        data = event.data
        x = _numbers(context_in(event), (self.settings.dimensions,), "the context")
        own = {name: float(value) for name, value in data["own"].items()}
        _numbers(list(own.values()), (len(own),), "contributions")
        errors = []
        for name in own:
            if name not in self.models:
                continue
            reward, model = self.reward(data, name), self.models[name]
            errors.append((reward - model.mean(x)) / max(model.noise, 1e-6))
            model.update(x, reward)
            region, t = (
                self.regions.setdefault(f"{data['type']}/{name}", [0.0] * 6),
                data["tokens"].get(name, 0),
            )
            for place, add in enumerate((1.0, reward, t, reward * reward, t * t, reward * t)):
                region[place] += add
        for a, b, value in data["overlap"]:
            sums = self.overlaps.setdefault("+".join(sorted((a, b))), [0.0, 0.0])
            sums[0] += value
            sums[1] += max(0.0, min(own[a], own[b]))
        for name in data["strategies"]:
            kept = self.tallies.setdefault(name, dict.fromkeys(_TALLIED, 0.0))
            value = own.get(name, 0.0)
            kept["ran"] += 1
            kept["explored"] += data["mode"] != "exploit"
            kept["added"] += value > _ADDED
            kept["own"] += value
            kept["reward"] += self.reward(data, name)
            for what in ("tokens", "seconds"):
                kept[what] += data[what].get(name, 0)
        self.sets = {known: weight * _HALF for known, weight in self.sets.items() if weight > 1e-9}
        ran = "+".join(sorted(data["strategies"]))
        self.sets[ran] = self.sets.get(ran, 0.0) + 1.0
        self.regret += data.get("regret", 0.0)
        row = self.remembered % _REMEMBERED
        self.places[row] = x[_PLACE:]
        self.past[row] = [own.get(name, np.nan) for name in (*self.strategies, *[""] * SLOTS)[:SLOTS]]
        self.remembered += 1
        self.questions += 1
        changed = bool(errors) and self.watch.change(float(np.mean(errors)))
        if self._base_changed(float(data["base"])) or changed:
            self._changed(event.seq)

    def _base_changed(self, value: float) -> bool:
        """Whether what always runs finds more or less than before: the only sign where nothing else runs."""
        count, mean, squares = self.level
        deviation = math.sqrt(squares / (count - 1)) if count >= _SETTLED else 0.0
        after = mean + (value - mean) / (count + 1)
        self.level = [count + 1, after, squares + (value - mean) * (value - after)]
        return deviation > 0 and self.watch_base.change((value - mean) / deviation)

    def _changed(self, seq: int) -> None:
        """Keep some of what was learned of other questions, and begin again."""
        share = self.settings.forget
        self.changes += 1
        self.faded = [*self.faded, [seq, share]][-_FADED:]
        self.since = self.questions
        for model in self.models.values():
            model.forget(share)
        # Means stay and weigh less, so that strategies on probation are tried again.
        self.regions = {key: [share * total for total in region] for key, region in self.regions.items()}
        self._watch_anew()

    def _feedback(self, value: int, about: Event) -> None:
        """Credit a rating to the strategies that found what was read."""
        left = float(np.prod([share for seq, share in self.faded if about.seq <= seq]))
        data = about.data
        for name in data["strategies"]:
            kept = self.tallies.setdefault(name, dict.fromkeys(_TALLIED, 0.0))
            kept["rated"] += value * self._share(data, name)
            if name in self.models and name in data["own"]:
                change = self.reward(data, name, value) - self.reward(data, name)
                self.models[name].correct(context_in(about), left * change)
                kept["reward"] += change

    def reward(self, data: Mapping[str, Any], name: str, rating: int = 0) -> float:
        """Return the reward of a strategy that ran, in [-1, 1], by the data of its question and a rating."""
        how = self.settings
        rated = how.feedback * rating * self._share(data, name)
        if how.reward == "program":
            return min(1.0, max(-1.0, float(data["own"].get(name, 0.0)) + rated))
        slow = min(data["seconds"].get(name, 0.0) / how.slow_seconds, how.slow_most)
        return float(min(1.0, max(0.0, data["found"].get(name, 0.0) + rated - slow)))

    def _share(self, data: Mapping[str, Any], name: str) -> float:
        """How much of a rating a strategy gets."""
        return 1.0 if self.settings.reward == "found" else float(data["credit"].get(name, 0.0))

    # --- what decisions rest on --------------------------------------------------------------------------

    def costs(self) -> FloatArray:
        """Return the expected cost of each strategy; of one that never ran, the mean of the others."""
        tallies = [self.tallies[name] for name in self.strategies]
        found = np.array([t["tokens"] / t["ran"] if t["ran"] else np.nan for t in tallies])
        known = np.isfinite(found)
        return self.token_price * np.where(known, found, found[known].mean() if known.any() else 0.0)

    def overlap(self, means: FloatArray) -> FloatArray:
        """Return what every two strategies add twice, (k, k): a learned share of the smaller contribution."""
        found = np.zeros((len(self.strategies),) * 2)
        for i, a in enumerate(self.strategies):
            for j, b in enumerate(self.strategies[:i]):
                twice, smaller = self.overlaps.get("+".join(sorted((a, b))), (0.0, 0.0))
                # With nothing seen they are taken to find the same: a second one must show that it adds.
                share = (twice + _ADDED) / (smaller + _ADDED)
                found[i, j] = found[j, i] = min(1.0, max(-1.0, share)) * max(0.0, min(means[i], means[j]))
        return found

    def pruned(self, kind: str) -> NDArray[np.bool_]:
        """Return which strategies are on probation for a type of question: clearly not worth their cost."""
        return np.array([self._is_pruned(f"{kind}/{name}") for name in self.strategies], dtype=bool)

    def _is_pruned(self, key: str) -> bool:
        if key in self.forced:
            return True
        how, name = self.settings, key.partition("/")[2]
        keys = [key] if how.prune_by == "type" else [f"{kind}/{name}" for kind in TYPES]
        sums = [sum(each) for each in zip(*(self.regions.get(one, [0.0] * 6) for one in keys), strict=True)]
        count, mean, squares = net(sums, self.token_price)
        if count < how.prune_after:
            return False
        return mean + how.prune_confidence * math.sqrt(squares / (count - 1) / count) < how.prune_below

    def similar(self, place: FloatArray) -> FloatArray:
        """Return what strategies added to the most similar past questions, shape (SLOTS,); 0: unknown."""
        near = self.places[: min(self.remembered, _REMEMBERED)] @ place
        seen = self.past[np.argsort(-near, kind="stable")[: self.settings.neighbours]]
        count = np.isfinite(seen).sum(axis=0)
        return np.where(count > 0, np.nansum(seen, axis=0) / np.maximum(count, 1), 0.0)

    # --- snapshots ---------------------------------------------------------------------------------------

    def _shaping(self) -> dict[str, Any]:
        return {name: getattr(self.settings, name) for name in _SHAPING}

    def dump(self) -> bytes:
        """Return the state as bytes; equal states give equal bytes."""
        state = {**vars(self), "form": _FORM, "settings": self._shaping()}
        del state["token_price"]

        def plain(value: Any) -> Any:
            return value.tolist() if isinstance(value, np.ndarray) else vars(value)

        return zlib.compress(json.dumps(state, sort_keys=True, default=plain).encode(), 1)

    def load(self, kept: bytes) -> bool:
        """Become what `dump` wrote; False, and nothing is done, if it is damaged or fits other settings."""
        try:
            state = json.loads(zlib.decompress(kept))
        except (zlib.error, ValueError):
            return False
        if state.pop("form") != _FORM or state.pop("settings") != self._shaping():
            return False
        for name in ("watch", "watch_base"):
            state[name] = PageHinkley(**state[name])
        for name in ("places", "past"):
            state[name] = np.array(state[name])
        for name, stored in state["models"].items():
            state["models"][name] = model = self._model()
            vars(model).update({k: np.array(v) if isinstance(v, list) else v for k, v in stored.items()})
        vars(self).update(state)
        return True
