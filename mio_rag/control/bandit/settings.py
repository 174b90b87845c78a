"""The settings of search by strategies, and every constant of the bandit with its published value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from mio_rag.control.steps.search import SearchSettings
from mio_rag.control.steps.strategies import STRATEGIES, StrategySettings, check_strategies
from mio_rag.errors import InputError, choose

__all__ = ["KIND", "BanditSettings", "StrategyOptions", "options_of"]

#: Under this name the settings lie in `ControlSettings.kinds`, and controllers are named.
KIND = "strategies"

Rule = Literal["program", "margin"]
PolicyName = Literal["linucb", "thompson", "epsilon-greedy", "uniform"]


@dataclass(frozen=True)
class BanditSettings:
    """How a bandit learns which strategies are worth their cost; published values in brackets.

    Defaults that differ had less regret than the published ones on questions that no result is reported on,
    where strategies pay and where none does.

    Parameters
    ----------
    policy : {"linucb", "thompson", "epsilon-greedy", "uniform"}
        [linucb]
    rule : {"program", "margin"}
        program: the set of largest estimated value less overlap and cost, proven. margin: every strategy
        whose score lies within `margin` of the best, as a share of the spread of the scores [score >=
        .1 * best, which keeps nearly every strategy, and fails where scores are negative].
    margin : float
        In [0, 1]. [.1]
    base : tuple of str
        Strategies that always run; contributions are measured against them. [none]
    dimensions : int
        Of the context, 32 to 512. [64]
    alpha : float
        Width of the upper confidence, >= 0, in standard deviations of the reward. [1, in units of reward]
    ridge, ridge_embedding : float
        > 0: of what words show, and of the rest of the context, the embedding and past outcomes. [1 and 1]
    refresh : int
        Updates after which the inverse is computed anew. [never]
    token_price : float
        mu: what one token of the model must add, in units of the program's value (1: a passage that is
        certainly needed), >= 0. [none]
    second_price : float
        Likewise, of a second, >= 0: then what is learned depends on the machine. [.2 a second, at most .2]
    cold_start : int
        First questions, also after a change, which learn about all strategies alike. [100]
    cold_share : float
        Probability with which each strategy runs on these, in (0, 1]. [1: all run]
    explore, explore_decay, explore_least : float
        A share max(explore_least, explore * explore_decay**n) of the questions explores: each strategy then
        runs with probability 1/2. [.3, .99, .05]
    unsure : float
        Below this confidence that share is doubled. [.5]
    all_every : int
        All strategies run on every so-manieth question after the cold start; 0: never. [100]
    feedback : float
        What a rating adds to the rewards of those who found what was read, or takes from them. [.3, of all]
    prune_after : int
        Questions of a region after which a strategy may be pruned there. [50, everywhere]
    prune_confidence : float
        Standard errors below 0 at which its net contribution is so clearly negative. [none]
    retrial : float
        Probability with which a pruned strategy runs when exploring, in (0, 1). [0, pruned for good]
    change_tolerance, change_threshold : float
        Of the Page-Hinkley tests on the rewards and on the value of what always runs, in standard
        deviations. [none]
    forget : float
        What is kept of what was learned when a change is found, in [0, 1]. [1]
    window_days : float
        What recalibration learns from. [30]
    holdout : float
        Share of the window, its end, that no compared model learned from. [none]
    weighted : bool
        Weigh strategies in the merged ranking by their expected contribution, from a tenth for the least to 1
        for the largest and for those that always run; otherwise all alike. [weighted by the estimated reward]
    passage_memory : float
        Weight of ratings in the relevance of passages that were read for rated answers, >= 0; 0: ratings do
        not touch it. [0]
    neighbours : int
        Past questions whose outcomes are part of the context. [5]
    seed : int

    Raises
    ------
    InputError
        With every problem found.
    """

    policy: PolicyName = "linucb"
    rule: Rule = "program"
    margin: float = 0.1
    base: tuple[str, ...] = ("raw",)
    dimensions: int = 64
    alpha: float = 0.1
    ridge: float = 0.3
    ridge_embedding: float = 100.0
    refresh: int = 1000
    token_price: float = 1e-4
    second_price: float = 0.0
    cold_start: int = 20
    cold_share: float = 0.5
    explore: float = 0.05
    explore_decay: float = 0.99
    explore_least: float = 0.005
    unsure: float = 0.5
    all_every: int = 0
    feedback: float = 0.3
    prune_after: int = 50
    prune_confidence: float = 2.0
    retrial: float = 0.05
    change_tolerance: float = 0.25
    change_threshold: float = 20.0
    forget: float = 0.1
    window_days: float = 30.0
    holdout: float = 0.2
    weighted: bool = False
    passage_memory: float = 0.0
    neighbours: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", tuple(self.base))
        problems = [
            f"{name}={value!r} must be a whole number from {low} to {high}"
            for name, (low, high) in _WHOLE.items()
            if isinstance(value := getattr(self, name), bool)
            or not isinstance(value, int)
            or not low <= value <= high
        ]
        problems += [
            f"{name}={value!r} must be a number {said}"
            for name, (low, high, said) in _REAL.items()
            if isinstance(value := getattr(self, name), bool)
            or not isinstance(value, (int, float))
            or not low <= value <= high
        ]
        if not isinstance(self.weighted, bool):
            problems.append(f"weighted={self.weighted!r} must be true or false")
        for name, kinds in (("policy", PolicyName), ("rule", Rule)):
            if getattr(self, name) not in get_args(kinds):
                problems.append(f"{name}={getattr(self, name)!r}: choose {', '.join(get_args(kinds))}")
        problems += [
            f"base strategy '{name}' is unknown: {choose(name, STRATEGIES)}"
            for name in self.base
            if name not in STRATEGIES
        ]
        if problems:
            raise InputError([f"bandit: {problem}" for problem in problems])

    def share_exploring(self, questions: int, confidence: float) -> float:
        """The probability that a question explores.

        Parameters
        ----------
        questions : int
            Since the cold start, that of the last change where there was one.
        confidence : float
            In [0, 1].
        """
        share = max(self.explore_least, self.explore * self.explore_decay**questions)
        return min(1.0, 2 * share if confidence < self.unsure else share)


_TINY = 1e-12
_WHOLE = {
    "dimensions": (32, 512),
    "refresh": (1, 10**9),
    "cold_start": (0, 10**9),
    "all_every": (0, 10**9),
    "prune_after": (2, 10**9),
    "neighbours": (1, 100),
    "seed": (0, 2**31 - 1),
}
_POSITIVE = (_TINY, 1e12, "above 0")
_NOT_NEGATIVE = (0.0, 1e12, ">= 0")
_SHARE = (0.0, 1.0, "in [0, 1]")
_REAL = {
    "margin": _SHARE,
    "alpha": _NOT_NEGATIVE,
    "ridge": _POSITIVE,
    "ridge_embedding": _POSITIVE,
    "token_price": _NOT_NEGATIVE,
    "second_price": _NOT_NEGATIVE,
    "explore": _SHARE,
    "explore_decay": _SHARE,
    "explore_least": _SHARE,
    "unsure": _SHARE,
    "feedback": _SHARE,
    "prune_confidence": _NOT_NEGATIVE,
    "cold_share": (_TINY, 1.0, "in (0, 1]"),
    "retrial": (_TINY, 1 - _TINY, "in (0, 1)"),
    "change_tolerance": _NOT_NEGATIVE,
    "change_threshold": _POSITIVE,
    "forget": _SHARE,
    "window_days": _POSITIVE,
    "holdout": (0.01, 0.9, "in [.01, .9]"),
    "passage_memory": (0.0, 100.0, "in [0, 100]"),
}


@dataclass(frozen=True)
class StrategyOptions:
    """What search by strategies is made of.

    Parameters
    ----------
    state : str or None
        File of what a bandit has learned.
    possible : tuple of str
        Strategies that a bandit may choose.
    """

    state: str | None = None
    possible: tuple[str, ...] = STRATEGIES
    search: SearchSettings = field(default_factory=SearchSettings)
    bandit: BanditSettings = field(default_factory=BanditSettings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "possible", check_strategies(self.possible))

    def search_settings(self, tokens: float) -> SearchSettings:
        """Those of the search, with no more tokens than these for all strategies together."""
        each = max(1, int(min(self.search.tokens, tokens / max(1, len(self.possible)), math.inf)))
        return replace(self.search, tokens=each)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for `ControlSettings.kinds` and traces."""
        return {**asdict(self), "possible": list(self.possible), "bandit": _plain(self.bandit)}


def _plain(bandit: BanditSettings) -> dict[str, Any]:
    return {**asdict(bandit), "base": list(bandit.base)}


def options_of(kinds: Mapping[str, Any]) -> StrategyOptions:
    """The options in `ControlSettings.kinds`.

    Raises
    ------
    InputError
        For settings that are not known, or out of range.
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
    bandit = made(BanditSettings, given.pop("bandit", {}), "strategies.bandit")
    found = made(SearchSettings, search | {"writing": writing}, "strategies.search")
    options = made(StrategyOptions, given | {"search": found, "bandit": bandit}, "strategies")
    if problems:
        raise InputError(problems)
    return options  # type: ignore[no-any-return]
