"""What a bandit learns: its settings, its models, and its state as a replay of the events of its log.

The same events give the same state to the last bit, whoever replays them and wherever a snapshot was taken.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, Field

from mio_rag.errors import DataError, InputError, choose
from mio_rag.learning.bandit_context import SLOTS, Context, ridges
from mio_rag.learning.bandit_log import Event
from mio_rag.session.search import SearchSettings
from mio_rag.session.strategies import STRATEGIES, StrategySettings, check_strategies
from mio_rag.settings import Settings

# -- settings -----------------------------------------------------------------------------------------------

#: Under this name the settings lie in `ControlSettings.kinds`, and controllers are named.
KIND = "strategies"

Count = Annotated[int, Field(ge=0, le=10**9)]
Positive = Annotated[float, Field(ge=1e-12, le=1e12)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]


def _known(values: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [name for name in values if name not in STRATEGIES]:
        raise InputError([f"strategy '{name}' is unknown: {choose(name, STRATEGIES)}" for name in unknown])
    return values


class BanditSettings(Settings):
    """How a bandit learns which strategies are worth their cost; published values in brackets.

    Defaults that differ had less regret than the published ones on questions that no result is reported on,
    where strategies pay and where none does.
    """

    policy: Literal["linucb", "thompson", "epsilon-greedy", "uniform"] = "linucb"
    """[linucb]"""
    rule: Literal["program", "margin"] = "program"
    """program: the set of largest estimated value less overlap and cost, proven. margin: every strategy whose
    score lies within `margin` of the best, as a share of the spread of the scores [score >= .1 * best, which
    keeps nearly every strategy, and fails where scores are negative]."""
    margin: Share = 0.1
    """[.1]"""
    base: Annotated[tuple[str, ...], AfterValidator(_known)] = ("raw",)
    """Strategies that always run; contributions are measured against them. [none]"""
    dimensions: Annotated[int, Field(ge=32, le=512)] = 64
    """Of the context. [64]"""
    alpha: NotNegative = 0.1
    """Width of the upper confidence, in standard deviations of the reward. [1, in units of reward]"""
    ridge: Positive = 0.3
    """Of what words show. [1]"""
    ridge_embedding: Positive = 100.0
    """Of the rest of the context: the embedding and past outcomes. [1]"""
    refresh: Annotated[int, Field(ge=1, le=10**9)] = 1000
    """Updates after which the inverse is computed anew. [never]"""
    token_price: NotNegative = 1e-4
    """What one token of the model must add, in units of the program's value (1: a passage that is certainly
    needed). [none]"""
    second_price: NotNegative = 0.0
    """The same for a second; what is learned then depends on the machine. [.2 a second, at most .2]"""
    cold_start: Count = 20
    """First questions, also after a change, which learn about all strategies alike. [100]"""
    cold_share: Annotated[float, Field(ge=1e-12, le=1)] = 0.5
    """Probability that each strategy runs on these. [1: all run]"""
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
    prune_confidence: NotNegative = 2.0
    """Standard errors below 0 at which its net contribution is so clearly negative. [none]"""
    retrial: Annotated[float, Field(ge=1e-12, le=1 - 1e-12)] = 0.05
    """Probability that a pruned strategy runs when exploring. [0, pruned for good]"""
    change_tolerance: NotNegative = 0.25
    """Of the Page-Hinkley tests on the rewards and on the value of what always runs, in standard deviations.
    [none]"""
    change_threshold: Positive = 20.0
    """Sum of deviations at which these tests report a change. [none]"""
    forget: Share = 0.1
    """What is kept of what was learned when a change is found. [1]"""
    window_days: Positive = 30.0
    """What recalibration learns from. [30]"""
    holdout: Annotated[float, Field(ge=0.01, le=0.9)] = 0.2
    """Share of the window, its end, that no compared model learned from. [none]"""
    weighted: bool = False
    """Weigh strategies in the merged ranking by their expected contribution, from a tenth for the least to 1
    for the largest and for those that always run; otherwise all alike. [weighted by the estimated reward]"""
    neighbours: Annotated[int, Field(ge=1, le=100)] = 5
    """Past questions whose outcomes are part of the context. [5]"""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of what is drawn."""

    def share_exploring(self, questions: int, confidence: float) -> float:
        """Return the probability that a question explores.

        questions: since the cold start, that of the last change where there was one.
        confidence: in [0, 1].
        """
        share = max(self.explore_least, self.explore * self.explore_decay**questions)
        return min(1.0, 2 * share if confidence < self.unsure else share)


@dataclass(frozen=True)
class StrategyOptions:
    """What search by strategies is made of.

    state: file of what a bandit has learned.
    possible: strategies that a bandit may choose.
    """

    state: str | None = None
    possible: tuple[str, ...] = STRATEGIES
    search: SearchSettings = field(default_factory=SearchSettings)
    bandit: BanditSettings = field(default_factory=BanditSettings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "possible", check_strategies(self.possible))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for `ControlSettings.kinds` and traces."""
        return {**asdict(self), "possible": list(self.possible), "bandit": self.bandit.to_dict()}


def options_of(kinds: Mapping[str, Any]) -> StrategyOptions:
    """The options in `ControlSettings.kinds`.

    Raises `InputError` for settings that are not known, or out of range.
    """
    given = dict(kinds.get(KIND, {}))
    problems: list[str] = []

    def made(form: Any, data: Any, where: str) -> Any:
        known = {f.name for f in fields(form)}
        if not isinstance(data, Mapping):
            problems.append(f"{where} is {data!r}: give settings by their names")
            return form()
        if unknown := sorted(set(data) - known):
            problems.append(
                f"{where}: {', '.join(unknown)} are not known; known are {', '.join(sorted(known))}"
            )
        try:
            return form(**{k: v for k, v in data.items() if k in known})
        except InputError as error:
            problems.extend(error.problems)
        except TypeError as error:
            problems.append(f"{where}: {error}")
        return form()

    search = dict(given.pop("search", {}))
    writing = made(StrategySettings, search.pop("writing", {}), "strategies.search.writing")
    bandit = BanditSettings()
    try:
        bandit = BanditSettings.from_dict(given.pop("bandit", {}), "strategies.bandit")
    except InputError as error:
        problems += error.problems
    found = made(SearchSettings, search | {"writing": writing}, "strategies.search")
    options = made(StrategyOptions, given | {"search": found, "bandit": bandit}, "strategies")
    if problems:
        raise InputError(problems)
    return options  # type: ignore[no-any-return]


# -- detection of changes -----------------------------------------------------------------------------------


class PageHinkley:
    """Watches a sequence of numbers for a change of their mean.

    Source: Page, "Continuous inspection schemes", Biometrika 1954; Hinkley, "Inference about the change-point
    from cumulative sum tests", Biometrika 1971.

    tolerance: changes of the mean that are no change, >= 0.
    threshold: sum of deviations at which a change is reported, > 0.
    """

    def __init__(self, tolerance: float, threshold: float) -> None:
        self.tolerance, self.threshold = tolerance, threshold
        self.restart()

    def restart(self) -> None:
        """Forget what was seen."""
        self.count, self.mean = 0, 0.0
        self.up = self.down = 0.0

    def change(self, value: float) -> bool:
        """Take in a number; whether the mean has changed. It goes on reporting until `restart`."""
        self.count += 1
        self.mean += (value - self.mean) / self.count
        deviation = value - self.mean
        self.up = max(0.0, self.up + deviation - self.tolerance)
        self.down = max(0.0, self.down - deviation - self.tolerance)
        return max(self.up, self.down) > self.threshold

    def to_list(self) -> list[float]:
        """All of it, as numbers."""
        return [self.count, self.mean, self.up, self.down]

    def set_list(self, kept: list[float]) -> None:
        """Become what `to_list` gave."""
        self.count, self.mean, self.up, self.down = int(kept[0]), *kept[1:]


# -- models of rewards --------------------------------------------------------------------------------------

FloatArray = NDArray[np.float64]

_NOISE_COUNT = 2.0  # observations that the first guess of the noise weighs
_NOISE_GUESS = 0.1  # standard deviation of a contribution, before any was seen


class Ridge:
    """Ridge regression of one arm's rewards: one observation at a time, with its uncertainty.

        A = R + sum x x',   b = R prior + sum r x,   theta = A^-1 b,   width(x) = sqrt(x' A^-1 x)

    with R = diag(ridge): the larger its entry, the more must be seen before a dimension of the context
    counts. The inverse is updated by the formula of Sherman and Morrison, and computed anew every `refresh`
    updates.

    Sources: Li, Chu, Langford and Schapire, "A contextual-bandit approach to personalized news article
    recommendation" (WWW 2010), disjoint models; Agrawal and Goyal, "Thompson sampling for contextual bandits
    with linear payoffs" (ICML 2013).

    ridge: shape (dimensions,); > 0.
    refresh: updates after which the inverse is computed anew.
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
        """Take in a reward."""
        error = reward - self.mean(x)
        self.squares += error * error / (1.0 + float(x @ self.inverse @ x))  # predicted before it was seen
        self.matrix += np.outer(x, x)
        self.vector += reward * x
        self.count += 1
        if self.count % self.refresh == 0:
            self.invert()
        else:
            half = self.inverse @ x
            self.inverse -= np.outer(half, half) / (1.0 + float(x @ half))
        self.theta = self.inverse @ self.vector

    def correct(self, x: FloatArray, difference: float) -> None:
        """Change the reward of an observation that was taken in before."""
        self.vector += difference * x
        self.theta = self.inverse @ self.vector

    def invert(self) -> None:
        """The inverse from the matrix, with what rounding added up gone."""
        found = np.asarray(np.linalg.inv(self.matrix), dtype=np.float64)
        self.inverse = (found + found.T) / 2

    def forget(self, kept: float) -> None:
        """Keep a share of what was learned, as if so many of the observations had been made."""
        self.matrix = kept * self.matrix + (1 - kept) * np.diag(self.penalty)
        self.vector *= kept
        self.squares *= kept
        self.count = int(self.count * kept)
        self.invert()
        self.theta = self.inverse @ self.vector

    def start_from(self, theta: FloatArray, weight: float) -> None:
        """Begin with a prior mean, worth `weight` times the ridge; what was seen stays.

        weight: > 0: how hard the prior is to move.
        """
        self.matrix += weight * np.diag(self.penalty)
        self.vector += weight * self.penalty * theta
        self.invert()
        self.theta = self.inverse @ self.vector

    @property
    def noise(self) -> float:
        """Standard deviation of a reward around its mean, as far as seen."""
        total = self.squares + _NOISE_COUNT * _NOISE_GUESS**2
        return float(np.sqrt(total / (self.count + _NOISE_COUNT)))

    def mean(self, x: FloatArray) -> float:
        """The expected reward."""
        return float(self.theta @ x)

    def width(self, x: FloatArray) -> float:
        """sqrt(x' A^-1 x): the uncertainty of the mean, in standard deviations of the noise."""
        return float(np.sqrt(max(0.0, float(x @ self.inverse @ x))))

    def widest(self, x: FloatArray) -> float:
        """The width before anything was seen."""
        return float(np.sqrt(float((x * x / self.penalty).sum())))

    def samples(self, x: FloatArray, draws: FloatArray, scale: float) -> FloatArray:
        """Expected rewards under draws of the posterior, given standard normal numbers."""
        return self.mean(x) + scale * self.width(x) * draws

    def arrays(self) -> dict[str, Any]:
        """All of it, as arrays and numbers."""
        return {
            "matrix": self.matrix,
            "inverse": self.inverse,
            "vector": self.vector,
            "penalty": self.penalty,
            "numbers": np.array([self.count, self.squares, self.refresh], dtype=np.float64),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Self:
        """What `arrays` wrote, to the last bit."""
        count, squares, refresh = arrays["numbers"].tolist()
        made = cls(arrays["vector"].size, arrays["penalty"], int(refresh))
        made.matrix, made.inverse = arrays["matrix"].copy(), arrays["inverse"].copy()
        made.vector = arrays["vector"].copy()
        made.count, made.squares = int(count), squares
        made.theta = made.inverse @ made.vector
        return made


# -- rewards by type of question ----------------------------------------------------------------------------


def region() -> list[float]:
    """One of which nothing is known."""
    return [0.0] * 6


def observe(kept: list[float], value: float, tokens: float) -> None:
    """Take in what a strategy added to one question, and the tokens that it took."""
    kept[0] += 1
    count = kept[0]
    step, more = value - kept[1], tokens - kept[2]
    kept[1] += step / count
    kept[2] += more / count
    kept[3] += step * (value - kept[1])
    kept[4] += more * (tokens - kept[2])
    kept[5] += step * (tokens - kept[2])


def net(kept: Sequence[float], price: float) -> tuple[float, float, float]:
    """Count, mean and squared deviations of the net value at a price of a token."""
    count, value, tokens, squares, spent, both = kept
    return count, value - price * tokens, max(0.0, squares + price**2 * spent - 2 * price * both)


def pooled(parts: Sequence[Sequence[float]]) -> list[float]:
    """Several regions as one."""
    found = region()
    for count, value, tokens, squares, spent, both in parts:
        if not count:
            continue
        total = found[0] + count
        share = found[0] * count / total
        step, more = value - found[1], tokens - found[2]
        found[0] = total
        found[1] += step * count / total
        found[2] += more * count / total
        found[3] += squares + share * step**2
        found[4] += spent + share * more**2
        found[5] += both + share * step * more
    return found


def forget(kept: list[float], share: float) -> None:
    """Keep a share of the weight of what was seen; means stay."""
    for place in (0, 3, 4, 5):
        kept[place] *= share


# -- the state ----------------------------------------------------------------------------------------------

_REMEMBERED = 500  # past questions among which similar ones are looked for
_ADDED = 1e-3  # what counts as having contributed
_SETTLED = 20  # questions before anything is said of how what is found deviates from the usual
_FADED = 50  # changes of which is known what they left: before these nothing to speak of is left
_HALF = 0.99  # what a question leaves of the weight of those before it, in the entropy of choices
_NUMBERS = ("ran", "explored", "added", "own", "reward", "tokens", "seconds", "rated", "credit")


def context_in(event: Event) -> FloatArray:
    """Return the context that a question's event holds."""
    return np.frombuffer(event.x, dtype=np.float32).astype(np.float64)


def _numbers(given: Any, shape: tuple[int, ...], what: str) -> FloatArray:
    """Return numbers of an event, finite and of the right shape."""
    found = np.array(given, dtype=np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise ValueError(f"{what} must be {shape} finite numbers")
    return found


def tally() -> dict[str, float]:
    """What is counted of a strategy, at its start."""
    return dict.fromkeys(_NUMBERS, 0.0)


def rewarded(own: float) -> float:
    """A contribution as a reward, in [-1, 1]: below 0 where a strategy pushed out what was worth more."""
    return min(1.0, max(-1.0, own))


class Learned:
    """The state of a bandit.

    strategies: those that are chosen among, beside the ones that always run.

    token_price: at which is chosen, that of the settings at first. It may change with every question: nothing
        that is kept depends on it.
    """

    def __init__(self, settings: BanditSettings, strategies: Sequence[str]) -> None:
        self.settings, self.strategies = settings, list(strategies)
        self.token_price = settings.token_price
        self.seq = self.questions = self.since = self.changes = 0
        self.models = {name: self._model() for name in self.strategies}
        self.overlaps: dict[str, list[float]] = {}
        self.regions: dict[str, list[float]] = {}
        self.forced: list[str] = []
        self.tallies = {name: tally() for name in (*settings.base, *self.strategies)}
        self.sets: dict[str, float] = {}
        self.regret = 0.0
        self.watch = PageHinkley(settings.change_tolerance, settings.change_threshold)
        self.watch_base = PageHinkley(settings.change_tolerance, settings.change_threshold)
        self.level = [0.0, 0.0, 0.0]
        self.places: FloatArray = np.zeros((_REMEMBERED, 0))
        self.past: FloatArray = np.full((_REMEMBERED, SLOTS), np.nan)
        self.remembered = 0
        self.faded: list[list[float]] = []  # (seq, share): what is left of questions up to there

    def _model(self) -> Ridge:
        how = self.settings
        return Ridge(how.dimensions, ridges(how.dimensions, how.ridge, how.ridge_embedding), how.refresh)

    def add_strategy(self, name: str) -> None:
        """Begin to choose among one more, of which nothing is known."""
        if name not in self.strategies:
            self.strategies.append(name)
        self.models[name] = self._model()  # whoever knew the name beforehand has forgotten part of nothing
        self.tallies.setdefault(name, tally())

    # --- the fold ----------------------------------------------------------------------------------------

    def fold(self, event: Event, find: Callable[[str, str], Event | None]) -> None:
        """Take in the next event.

        find: (kind, id) -> an earlier event: what feedback is about.

        Raises `DataError` for an event that is damaged, or of an unknown kind: it was written by a later
        release.
        """
        try:
            self._fold(event, find)
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(f"event {event.seq}, a {event.kind}, is damaged: {error!r}") from error
        self.seq = event.seq

    def _fold(self, event: Event, find: Callable[[str, str], Event | None]) -> None:
        if event.kind == "question":
            self._question(event)
        elif event.kind == "feedback":
            about = find("question", event.id)
            if about is not None:
                self._feedback(event, about)
        elif event.kind == "prior":
            for name, theta in event.data["theta"].items():
                if name in self.models:
                    self.models[name].start_from(
                        _numbers(theta, (self.settings.dimensions,), "theta"), float(event.data["weight"])
                    )
        elif event.kind == "pruned":
            region = _key(event.data["type"], event.data["strategy"])
            self.forced = [r for r in self.forced if r != region] + ([region] if event.data["on"] else [])
        elif event.kind == "recalibrated":
            self._recalibrated(event)
        elif event.kind == "strategy":
            self.add_strategy(event.id)
        elif event.kind == "settings":
            pass  # with which others have opened it; this fold has its own
        else:
            raise DataError(
                f"event {event.seq} is of the kind '{event.kind}', which this release does not know"
            )

    def _question(self, event: Event) -> None:
        data = event.data
        x = _numbers(context_in(event), (self.settings.dimensions,), "the context")
        own = {name: float(value) for name, value in data["own"].items()}
        _numbers(list(own.values()), (len(own),), "contributions")
        errors = []
        for name, value in own.items():
            if name not in self.models:
                continue
            reward, model = rewarded(value), self.models[name]
            errors.append((reward - model.mean(x)) / max(model.noise, 1e-6))
            model.update(x, reward)
            timed = reward - self.settings.second_price * data["seconds"].get(name, 0.0)
            kept = self.regions.setdefault(_key(data["type"], name), region())
            observe(kept, timed, data["tokens"].get(name, 0))
        for a, b, value in data["overlap"]:
            sums = self.overlaps.setdefault(_pair(a, b), [0.0, 0.0])
            sums[0] += value
            sums[1] += max(0.0, min(own[a], own[b]))
        self._count(data)
        self._remember(x, own)
        self.questions += 1
        changed = bool(errors) and self.watch.change(float(np.mean(errors)))
        if self._base_changed(float(data["base"])) or changed:
            self._changed(event.seq)

    def _base_changed(self, value: float) -> bool:
        """Whether questions are of another kind, by what those that always run find: this is seen of each."""
        count, mean, squares = self.level
        deviation = float(np.sqrt(squares / (count - 1))) if count >= _SETTLED else 0.0
        _welford(self.level, value)
        return deviation > 0 and self.watch_base.change((value - mean) / deviation)

    def _count(self, data: dict[str, Any]) -> None:
        for name in data["strategies"]:
            kept = self.tallies.setdefault(name, tally())
            own = data["own"].get(name, 0.0)
            kept["ran"] += 1
            kept["explored"] += data["mode"] != "exploit"
            kept["added"] += own > _ADDED
            kept["own"] += own
            kept["reward"] += rewarded(own)
            kept["tokens"] += data["tokens"].get(name, 0)
            kept["seconds"] += data["seconds"].get(name, 0.0)
            kept["credit"] += data["credit"].get(name, 0.0)
        self.sets = {known: weight * _HALF for known, weight in self.sets.items() if weight > 1e-9}
        ran = "+".join(sorted(data["strategies"]))
        self.sets[ran] = self.sets.get(ran, 0.0) + 1.0
        self.regret += data.get("regret", 0.0)

    def _remember(self, x: FloatArray, own: dict[str, float]) -> None:
        place = Context(x, "").place
        if self.places.shape[1] != place.size:
            self.places = np.zeros((_REMEMBERED, place.size))
        row = self.remembered % _REMEMBERED
        self.places[row] = place
        self.past[row] = [own.get(name, np.nan) for name in (*self.strategies, *[""] * SLOTS)[:SLOTS]]
        self.remembered += 1

    def _changed(self, seq: int) -> None:
        """What is learned held for other questions: keep some of it, and start again."""
        self.changes += 1
        self.faded = [*self.faded, [seq, self.settings.forget]][-_FADED:]
        self.since = self.questions
        for model in self.models.values():
            model.forget(self.settings.forget)
        for kept in self.regions.values():  # who was on probation may be of use now
            forget(kept, self.settings.forget)
        self.watch.restart()
        self.watch_base.restart()
        self.level = [0.0, 0.0, 0.0]

    def _feedback(self, event: Event, about: Event) -> None:
        """Credit goes to who found what was read, in shares; not to all alike."""
        x = context_in(about)
        left = float(np.prod([share for seq, share in self.faded if about.seq <= seq]))
        for name, share in about.data["credit"].items():
            kept = self.tallies.setdefault(name, tally())
            kept["rated"] += event.data["value"] * share
            if name in self.models and name in about.data["own"]:
                own = about.data["own"][name]
                better = rewarded(own + self.settings.feedback * event.data["value"] * share)
                self.models[name].correct(x, left * (better - rewarded(own)))
                kept["reward"] += better - rewarded(own)

    def _recalibrated(self, event: Event) -> None:
        """Models that were fitted on a window take the place of those here."""
        self.faded = [[int(event.data["from"]), 0.0]]  # they know nothing from before it
        for name, arrays in event.data["models"].items():
            if name in self.models:
                model = self._model()
                d = self.settings.dimensions
                model.matrix = _numbers(arrays["matrix"], (d, d), "the matrix")
                model.vector = _numbers(arrays["vector"], (d,), "the vector")
                model.count, model.squares = int(arrays["count"]), float(arrays["squares"])
                model.invert()
                model.theta = model.inverse @ model.vector
                self.models[name] = model

    # --- what is asked of it -----------------------------------------------------------------------------

    def price(self, tokens: float, seconds: float) -> float:
        """A cost in units of contribution."""
        return self.token_price * tokens + self.settings.second_price * seconds

    def costs(self) -> FloatArray:
        """Expected cost of each strategy; of one that never ran, the mean of the others."""
        means = [
            self.price(kept["tokens"] / kept["ran"], kept["seconds"] / kept["ran"]) if kept["ran"] else np.nan
            for kept in (self.tallies[name] for name in self.strategies)
        ]
        known = [cost for cost in means if np.isfinite(cost)]
        return np.array(
            [cost if np.isfinite(cost) else (sum(known) / len(known) if known else 0.0) for cost in means]
        )

    def overlap(self, means: FloatArray) -> FloatArray:
        """What every two strategies add twice: their learned share of the smaller contribution, (k, k)."""
        k = len(self.strategies)
        found = np.zeros((k, k))
        for i in range(k):
            for j in range(i):
                twice, smaller = self.overlaps.get(_pair(self.strategies[i], self.strategies[j]), (0.0, 0.0))
                # With nothing seen they are taken to find the same: a second one must show that it adds.
                share = (twice + _ADDED) / (smaller + _ADDED)
                found[i, j] = found[j, i] = min(1.0, max(-1.0, share)) * max(0.0, min(means[i], means[j]))
        return found

    def pruned(self, kind: str) -> NDArray[np.bool_]:
        """Strategies on probation for questions of a type: clearly not worth their cost there, so far."""
        return np.array([self._is_pruned(_key(kind, name)) for name in self.strategies], dtype=bool)

    def _is_pruned(self, key: str) -> bool:
        if key in self.forced:
            return True
        count, mean, squares = net(self.regions.get(key, region()), self.token_price)
        if count < self.settings.prune_after:
            return False
        error = np.sqrt(squares / (count - 1) / count)
        return bool(mean + self.settings.prune_confidence * error < 0)

    def similar(self, place: FloatArray) -> FloatArray:
        """What strategies added to the most similar past questions, shape (SLOTS,); 0 where unknown."""
        known = min(self.remembered, _REMEMBERED)
        if not known or self.places.shape[1] != place.size:
            return np.zeros(SLOTS)
        near = self.places[:known] @ place
        rows = np.argsort(-near, kind="stable")[: self.settings.neighbours]
        seen = self.past[rows]
        count = np.isfinite(seen).sum(axis=0)
        return np.where(count > 0, np.nansum(seen, axis=0) / np.maximum(count, 1), 0.0)

    def entropy(self) -> float:
        """Of the sets chosen lately, in bits; 0: always the same."""
        total = sum(self.sets.values())
        shares = [weight / total for weight in self.sets.values() if weight > 0] if total else []
        # Rebuilt from its events, the same log adds up the same shares in another order.
        return round(-math.fsum(share * math.log2(share) for share in shares), 12) + 0.0

    def convergence(self) -> float:
        """Share of the questions lately on which the most frequent set ran; 1: always the same."""
        return max(self.sets.values()) / sum(self.sets.values()) if self.sets else 0.0

    # --- snapshots ---------------------------------------------------------------------------------------

    def _shaping(self) -> dict[str, Any]:
        """Settings that the fold depends on; with others only the choices change."""
        return {name: getattr(self.settings, name) for name in _SHAPING}

    def dump(self) -> bytes:
        """All of it, without pickle; equal states give equal bytes."""
        arrays = {"places": self.places, "past": self.past}
        for name, model in self.models.items():
            arrays |= {f"model/{name}/{key}": value for key, value in model.arrays().items()}
        plain = {name: getattr(self, name) for name in _PLAIN}
        plain |= {"watch": self.watch.to_list(), "watch_base": self.watch_base.to_list()}
        plain |= {"form": _FORM, "settings": self._shaping()}
        arrays["plain"] = np.frombuffer(json.dumps(plain, sort_keys=True).encode(), dtype=np.uint8)
        file = io.BytesIO()
        for name in sorted(arrays):
            label = name.encode()
            file.write(len(label).to_bytes(4, "little") + label)
            np.save(file, np.ascontiguousarray(arrays[name]), allow_pickle=False)
        content = file.getvalue()
        return _MAGIC + sha256(content).digest() + content

    def load(self, kept: bytes) -> bool:
        """Become what `dump` wrote; False, and nothing is done, where other settings or releases wrote it.

        Raises `DataError` if it is damaged, which a digest shows to the bit.
        """
        if not kept.startswith(_MAGIC):
            return False  # of an earlier release, without a digest
        digest, content = kept[len(_MAGIC) : len(_MAGIC) + 32], kept[len(_MAGIC) + 32 :]
        if sha256(content).digest() != digest:
            raise DataError("the snapshot is damaged: run `mio-rag strategies rebuild`")
        file, arrays = io.BytesIO(content), {}
        try:
            while size := file.read(4):
                name = file.read(int.from_bytes(size, "little")).decode()
                arrays[name] = np.load(file, allow_pickle=False)
            plain = json.loads(arrays["plain"].tobytes())
            if plain.get("form") != _FORM or plain["settings"] != self._shaping():
                return False
            for name in _PLAIN:
                setattr(self, name, plain[name])
            self.watch.set_list(plain["watch"])
            self.watch_base.set_list(plain["watch_base"])
            self.places, self.past = arrays["places"], arrays["past"]
            self.models = {
                name: Ridge.of(
                    {
                        part: arrays[f"model/{name}/{part}"]
                        for part in ("matrix", "inverse", "vector", "penalty", "numbers")
                    }
                )
                for name in self.strategies
            }
        except (KeyError, ValueError, OSError, EOFError) as error:
            raise DataError(f"the snapshot is damaged ({error}): run `mio-rag strategies rebuild`") from error
        return True


_FORM = 4  # of snapshots: those of another form are replayed from the events
_MAGIC = b"mio-rag bandit\n"
_SHAPING = (
    "dimensions", "ridge", "ridge_embedding", "refresh", "second_price", "feedback", "change_tolerance",
    "change_threshold", "forget",
)  # fmt: skip
_PLAIN = (
    "strategies", "seq", "questions", "since", "changes", "overlaps", "regions", "forced", "tallies", "sets",
    "regret", "remembered", "level", "faded",
)  # fmt: skip


def _key(kind: str, strategy: str) -> str:
    return f"{kind}/{strategy}"


def _pair(a: str, b: str) -> str:
    return "+".join(sorted((a, b)))


def _welford(kept: list[float], value: float) -> None:
    kept[0] += 1
    step = value - kept[1]
    kept[1] += step / kept[0]
    kept[2] += step * (value - kept[1])
