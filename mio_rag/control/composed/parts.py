"""The parts of a policy: who decides each of the five questions, and at which price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from mio_rag.allocation.pacer import Window
from mio_rag.control.composed.means import READER, SHA256, Bounds, Model, is_whole
from mio_rag.control.mdp.policies import POLICIES, make_policy
from mio_rag.errors import InputError, choose
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.selection.selector import PRESETS
from mio_rag.session.strategies import check_strategies
from mio_rag.session.trace import is_between

__all__ = [
    "READER",
    "SIGNALS",
    "Amount",
    "Bounds",
    "Model",
    "Order",
    "Price",
    "Reading",
    "Repetition",
    "Search",
]

#: What U may be; a draft answer would be one more call of the model for every look.
SIGNALS = ("complete", "evidence", "tracked")

_DEAREST = 1.0  # a token that is worth all of the evidence


def _names(by: str, known: Sequence[str], where: str) -> list[str]:
    return [] if by in known else [f"{where}: by = {by!r} is unknown: {choose(by, known)}"]


def _file(file: str | None, sha256: str | None, wanted: bool, where: str, what: str) -> list[str]:
    """What is wrong with the file of something learned, and with the hash that it is known by."""
    problems = []
    if wanted and file is None:
        problems.append(f"{where}: {what}: give file")
    if not wanted and file is not None:
        problems.append(f"{where}: file = {file!r} has no effect: nobody reads it")
    if sha256 is not None and not (isinstance(sha256, str) and SHA256.fullmatch(sha256)):
        problems.append(f"{where}: sha256 = {sha256!r} must be 64 hexadecimal digits")
    elif sha256 is not None and file is None:
        problems.append(f"{where}: sha256 is given without a file")
    return problems


@dataclass(frozen=True)
class Price:
    """What one more token must add to the probability that the evidence is complete: mu.

    Exactly one of `token`, `worth` and `total` is given.

    Parameters
    ----------
    token : float, optional
        mu itself, in [0, 1].
    worth : float, optional
        Dollars that complete evidence is worth, > 0; mu is then the reader's price of a token over it.
    total : int, optional
        Tokens that all questions together may spend, all models included: a pacer sets mu.
    per : {"day", "hour"}, optional
        With a total: how often it starts anew.
    questions : int, optional
        With a total: how many are expected.
    state : str, optional
        With a total: SQLite file that keeps the count over restarts and between processes.
    """

    token: float | None = None
    worth: float | None = None
    total: int | None = None
    per: Window | None = None
    questions: int | None = None
    state: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("token", "worth", "total") if getattr(self, name) is not None]
        problems = []
        if len(given) != 1:
            said = " and ".join(given) if given else "nothing"
            problems.append(f"price: give one of token, worth and total, not {said}")
        if self.token is not None and not is_between(self.token, 0, _DEAREST):
            problems.append(f"price: token = {self.token!r} must be a number from 0 to {_DEAREST:g}")
        if self.worth is not None and not (is_between(self.worth, 0, math.inf) and self.worth > 0):
            problems.append(f"price: worth = {self.worth!r} must be a number of dollars > 0")
        for name in ("total", "questions"):
            value = getattr(self, name)
            if value is not None and not is_whole(value):
                problems.append(f"price: {name} = {value!r} must be a whole number >= 1")
        if self.per is not None and self.per not in get_args(Window):
            problems.append(f"price: per = {self.per!r} is unknown: choose {', '.join(get_args(Window))}")
        if self.total is None:
            useless = [n for n in ("per", "questions", "state") if getattr(self, n) is not None]
            if useless:
                problems.append(f"price: {', '.join(useless)}: no effect without a total")
        elif self.per is None and self.questions is None:
            problems.append("price: a total needs per (day or hour), or questions: how many are expected")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True)
class Order:
    """Which steps, in what order.

    Parameters
    ----------
    by : {"workflow", "planner"}
        workflow: the one of that name or file for every question. planner: a learned one chooses.
    workflow : str
        Of no effect beside a planner, and refused there.
    file, sha256 : str, optional
        Of the planner; a file of another content is refused.
    """

    by: str = "workflow"
    workflow: str = "plain"
    file: str | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        problems = _names(self.by, ("workflow", "planner"), "order")
        if not isinstance(self.workflow, str):
            problems.append(
                f"order: workflow = {self.workflow!r} must be the name of a workflow, or of a file"
            )
        needs = self.by == "planner"
        problems += _file(
            self.file, self.sha256, needs, "order", "a planner is a file of `mio-rag plan train`"
        )
        if needs and self.workflow != Order.workflow:
            problems.append(
                f"order: workflow = {self.workflow!r} has no effect beside a planner: leave one out"
            )
        if problems:
            raise InputError(problems)


@dataclass(frozen=True)
class Search:
    """By which strategies is searched.

    Parameters
    ----------
    by : {"strategies", "bandit"}
        strategies: all of those named, for every question. bandit: one that learns chooses among them.
    strategies : tuple of str
    state : str, optional
        SQLite file of what the bandit has learned.
    pool : int
        Candidates of a search, >= 1.
    """

    by: str = "strategies"
    strategies: tuple[str, ...] = ("raw",)
    state: str | None = None
    pool: int = 50

    def __post_init__(self) -> None:
        problems = _names(self.by, ("strategies", "bandit"), "search")
        try:
            listed = [self.strategies] if isinstance(self.strategies, str) else list(self.strategies)
            object.__setattr__(self, "strategies", check_strategies([str(name) for name in listed]))
        except InputError as error:
            problems += [f"search: {problem}" for problem in error.problems]
        if self.by == "bandit" and self.state is None:
            problems.append("search: a bandit needs a file for what it learns: give state")
        if self.by == "bandit" and "raw" not in self.strategies:
            problems.append("search: a bandit adds to the search for the question itself: name raw, too")
        if self.by == "bandit" and len(self.strategies) < 2:
            problems.append("search: a bandit needs strategies to choose among, beside raw")
        if self.by != "bandit" and self.state is not None:
            problems.append("search: state has no effect: only a bandit learns")
        if not is_whole(self.pool):
            problems.append(f"search: pool = {self.pool!r} must be a whole number >= 1")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True)
class Amount:
    """How much a question may take.

    Parameters
    ----------
    by : {"price", "tier", "router"}
        price: as much as is worth mu. tier: the tier of that name. router: a learned one chooses the tier.
    tier : str, optional
        Name of a tier.
    tiers : str, optional
        TOML file of tiers; by default the published ones. A router brings its own.
    file, sha256 : str, optional
        Of the router.
    unsure : {"stay", "up"}
        What a router does where several tiers are plausible.
    """

    by: str = "price"
    tier: str | None = None
    tiers: str | None = None
    file: str | None = None
    sha256: str | None = None
    unsure: str = "stay"

    def __post_init__(self) -> None:
        problems = _names(self.by, ("price", "tier", "router"), "amount")
        needs = self.by == "router"
        made = "a router is a file of `mio-rag route train`"
        problems += _file(self.file, self.sha256, needs, "amount", made)
        if self.by == "tier" and self.tier is None:
            problems.append('amount: name the tier, for instance tier = "medium"')
        if self.by != "tier" and self.tier is not None:
            problems.append(f"amount: tier = {self.tier!r} has no effect by {self.by}")
        if self.by != "tier" and self.tiers is not None:
            problems.append(f"amount: tiers = {self.tiers!r} has no effect by {self.by}")
        if self.unsure not in ("stay", "up"):
            problems.append(f"amount: unsure = {self.unsure!r} is unknown: choose stay, up")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True)
class Reading:
    """What is read of what was found.

    Parameters
    ----------
    by : {"program", "ranking", "tier"}
        program: the exact selection program at mu. ranking: the best by reciprocal rank fusion, until the
        limit on evidence is reached. tier: by the tier's own rule.
    preset : str
        Of the program.
    settings : mapping
        Further settings of the program by name, as in `Selector.preset`; its price of a token is mu.
    """

    by: str = "program"
    preset: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = _names(self.by, ("program", "ranking", "tier"), "reading")
        if self.preset not in PRESETS:
            problems.append(f"reading: preset = {self.preset!r} is unknown: {choose(self.preset, PRESETS)}")
        if self.by != "program" and (self.settings or self.preset != "default"):
            problems.append(f"reading: preset and settings of the program have no effect by {self.by}")
        if "token_price" in self.settings:
            problems.append("reading: token_price is the policy's own price: give it as price.token")
        if problems:
            raise InputError(problems)
        object.__setattr__(self, "settings", dict(self.settings))


@dataclass(frozen=True)
class Repetition:
    """Whether to search again, to think, or to stop.

    Parameters
    ----------
    by : str
        never: one search. price: search again while what that is expected to add is worth mu times what it
        takes. process: the decision process with mu times its tokens as the costs of actions. Or a name of
        `mio_rag.control.mdp.policies`, which keeps its own constants: mdp, always-retrieve, threshold:.4, ...
    signal : {"complete", "evidence", "tracked"}
        U: one minus the probability that the evidence is complete, or as `mio_rag.control.mdp.gauges`.
    query : {"feedback", "model"}
        Who words the next search: the question with the best passage that was read, at no tokens; or the
        reader.
    finds : float
        Share of the missing probability that another search is expected to add, in [0, 1].
    most : int
        Searches beside the first, >= 1.
    calibration : str, optional
        File of `mio-rag policy calibrate`: how far the evidence is complete, by questions of one's own.
    """

    by: str = "never"
    signal: str = "complete"
    query: str = "feedback"
    finds: float = 0.15
    most: int = 2
    calibration: str | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.by not in ("never", "price", "process"):
            try:
                make_policy(self.by, RetrievalMDP())
            except InputError:
                meant = choose(self.by, ("never", "price", "process", *POLICIES))
                problems.append(f"repetition: by = {self.by!r} is unknown: {meant}")
        for name, known in (
            ("signal", SIGNALS),
            ("query", ("feedback", "model")),
        ):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                problems.append(f"repetition: {name} = {value!r} is unknown: {choose(value, known)}")
        if not is_between(self.finds, 0, 1):
            problems.append(f"repetition: finds = {self.finds!r} must be a number from 0 to 1")
        if not is_whole(self.most):
            problems.append(f"repetition: most = {self.most!r} must be a whole number >= 1")
        if problems:
            raise InputError(problems)
