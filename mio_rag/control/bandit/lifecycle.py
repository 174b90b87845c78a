"""What is done to a log from outside: replay, recalibrate, rebuild, export, import, prune by hand."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.control.bandit.learned import Learned, context_in, rewarded
from mio_rag.control.bandit.off_policy import Estimate, off_policy
from mio_rag.control.bandit.policy import mixture
from mio_rag.control.bandit.programme import every_set, worths
from mio_rag.control.bandit.ridge import Ridge
from mio_rag.control.bandit.settings import BanditSettings
from mio_rag.control.bandit.store import Event, EventLog, Events
from mio_rag.control.bandit.strategist import admit, folded, known_settings
from mio_rag.control.weights import Weights, read_weights, write_weights
from mio_rag.errors import InputError

__all__ = [
    "Recalibration",
    "Replay",
    "add_strategy",
    "export",
    "prune",
    "rebuild",
    "recalibrate",
    "replay",
    "settings_of",
    "start_from",
]

WEIGHTS_KIND, WEIGHTS_VERSION = "strategies", 1
_NORMAL = 1.959963984540054
_NOT_WORSE = 0.01  # of the loss: what recalibrated models may lose on the holdout, interval included


def settings_of(path: Path) -> BanditSettings:
    """The settings that a log was last opened with; errors as `EventLog`."""
    return known_settings(EventLog(path))[0]


def _opened(path: Path, settings: BanditSettings | None = None) -> tuple[EventLog, Learned]:
    log = EventLog(path)
    how, strategies = known_settings(log, settings)
    return log, Learned(how, strategies)


@dataclass(frozen=True)
class Replay:
    """What another policy would have earned on the questions of a log.

    Parameters
    ----------
    questions : int
        Those that it is estimated from: after the cold start, where several sets had a chance.
    earned : float
        What the policy that wrote the log earned a question, net of costs, on these.
    estimates : tuple of Estimate
    differs : int
        Questions on which it would have chosen what ran with another probability; on the others nothing tells
        the two apart.
    """

    policy: str
    questions: int
    earned: float
    estimates: tuple[Estimate, ...]
    differs: int


def replay(path: Path, settings: BanditSettings) -> Replay:
    """Estimate what a bandit with these settings would have earned on the logged questions.

    It sees the questions in their order and learns from what was run on those before, which need not be what
    it would have run itself; of each it says with which probability it would have run what was run. It
    chooses among the strategies that could be chosen then. The model of the doubly robust estimate has
    learned from earlier questions alone.

    Raises
    ------
    InputError
        If the file is no log, or holds too few questions with propensities below 1.
    """
    log, learned = _opened(path, settings)
    rows: list[tuple[float, float, float, float, float]] = []
    with log.reading() as events:
        for event in events.after(0):
            if event.kind == "question" and event.data["propensity"] < 1:
                rows.append(_replayed(learned, event))
            learned.fold(event, events.find)
    if len(rows) < 2:
        raise InputError(
            f"'{path}' holds {len(rows)} questions on which something else could have been run: replay needs "
            "questions after the cold start"
        )
    reward, propensity, target, predicted, expected = np.array(rows).T
    found = off_policy(reward, propensity, target, predicted, expected)
    differs = int((np.abs(target - propensity) > 1e-9).sum())
    return Replay(settings.policy, len(rows), float(reward.mean()), tuple(found), differs)


def _replayed(learned: Learned, event: Event) -> tuple[float, float, float, float, float]:
    x, data = context_in(event), event.data
    found = mixture(learned, x, data["type"], event.id, data["each"])
    members = tuple(int(name in data["strategies"]) for name in learned.strategies)
    means = np.array([learned.models[name].mean(x) for name in learned.strategies])
    worth = worths(means[None, :], learned.overlap(means), learned.costs())[0]
    chances = np.array([found.probability(tuple(int(v) for v in row)) for row in every_set(means.size)])
    place = int(np.flatnonzero((every_set(means.size) == np.array(members)).all(axis=1))[0])
    return net(learned, data), data["propensity"], found.probability(members), worth[place], chances @ worth


def net(learned: Learned, data: Mapping[str, Any]) -> float:
    """What the strategies beside the base added together, less what they cost."""
    spent = sum(learned.price(data["tokens"].get(n, 0), data["seconds"].get(n, 0.0)) for n in data["own"])
    return float(data["total"] - data["base"] - spent)


@dataclass(frozen=True)
class Recalibration:
    """Models fitted on a recent window, against those in use, on questions that neither learned from.

    Parameters
    ----------
    window, holdout : int
        Questions that the new models learned from; later ones on which both are compared.
    compared : int
        Those of the later ones on which a strategy ran beside the base.
    loss, new_loss : float
        Mean squared error of the contributions of what ran, in use and recalibrated.
    low, high : float
        95 % interval of the paired difference, new less old.
    deployed : bool
        Whether the new ones took over: only if they are certainly not worse by more than a hundredth.
    """

    window: int
    holdout: int
    compared: int
    loss: float
    new_loss: float
    low: float
    high: float
    deployed: bool


def recalibrate(
    path: Path, settings: BanditSettings | None = None, now: float | None = None
) -> Recalibration:
    """Fit the models on the last days alone, and use them if they are not worse.

    The window's last part is the holdout. The models in use are those that the log gave *before* the holdout,
    the new ones learned from the window before it: both are tried on the same questions, which neither saw.
    What is deployed then learns from the whole window. Others may go on writing meanwhile.

    Raises
    ------
    InputError
        If the window holds fewer than 20 questions, or strategies ran on fewer than 2 of its last part.
    """
    log, learned = _opened(path, settings)
    moment = time.time() if now is None else now
    with log.reading() as events:
        start = events.first_since(moment - learned.settings.window_days * 86_400)
        inside = [event.seq for event in events.after(start) if event.kind == "question"]
        cut = int(len(inside) * (1 - learned.settings.holdout))
        if len(inside) < 20 or not 0 < cut < len(inside):
            raise InputError(
                f"the last {learned.settings.window_days:g} days hold {len(inside)} questions: at least 20 "
                "are needed to recalibrate"
            )
        border = inside[cut] - 1
        for event in events.after(0, border):
            learned.fold(event, events.find)
        window = Learned(replace(learned.settings, change_threshold=1e12), learned.strategies)
        window.seq = start
        _fit(window, events, start, border)
        losses = _losses([learned.models, window.models], events, border)
        difference = losses[1] - losses[0]
        half = _NORMAL * float(difference.std(ddof=1)) / len(difference) ** 0.5
        middle, old = float(difference.mean()), float(losses[0].mean())
        good = middle + half <= _NOT_WORSE * old
        if good:
            _fit(window, events, start)
    if good:
        with log.transaction() as events:
            _fit(window, events, start)  # what others have added meanwhile
            data = {
                "from": start,
                "upto": events.last(),
                "models": {
                    name: {
                        "matrix": model.matrix.tolist(),
                        "vector": model.vector.tolist(),
                        "count": model.count,
                        "squares": model.squares,
                    }
                    for name, model in window.models.items()
                },
            }
            events.append("recalibrated", f"{events.last() + 1}", moment, data)
    return Recalibration(
        cut,
        len(inside) - cut,
        len(difference),
        old,
        float(losses[1].mean()),
        middle - half,
        middle + half,
        good,
    )


def _fit(window: Learned, events: Events, start: int, upto: int | None = None) -> None:
    """Go on with models of the questions of a window alone, with their ratings."""

    def within(kind: str, identity: str) -> Event | None:
        found = events.find(kind, identity)
        return found if found is not None and found.seq > start else None

    for event in events.after(window.seq, upto):
        if event.kind in ("question", "feedback"):
            window.fold(event, within)


def _losses(rivals: Sequence[Mapping[str, Ridge]], events: Events, border: int) -> Any:
    """Mean squared error of each rival on each question behind a border, shape (rivals, n)."""
    rows = []
    for event in events.after(border):
        own = event.data["own"] if event.kind == "question" else {}
        known = [name for name in own if name in rivals[0]]
        if known:
            x = context_in(event)
            rows.append(
                [np.mean([(rewarded(own[n]) - models[n].mean(x)) ** 2 for n in known]) for models in rivals]
            )
    if len(rows) < 2:
        raise InputError(
            f"on {len(rows)} of the last questions did a strategy run beside those that always do, and at "
            "least 2 are needed to compare: give a larger --holdout, or wait"
        )
    return np.array(rows).T


def rebuild(path: Path) -> int:
    """Throw the snapshot away and fold the log afresh; the number of events."""
    log, learned = _opened(path)
    with log.reading() as events:  # this may take long, and others go on meanwhile
        folded(learned, events, afresh=True)
        count = events.count()
    with log.transaction() as events:
        events.drop_snapshot()
        if learned.seq:
            events.keep_snapshot(learned.seq, learned.dump())
    return count


def prune(path: Path, strategy: str, kind: str, on: bool = True, now: float | None = None) -> bool:
    """Put a strategy on probation for a type of question, or lift that; False where it is so already.

    Raises
    ------
    InputError
        For a strategy that the log does not choose among, or a type that there is none of.
    """
    from mio_rag.control.bandit.context import TYPES

    log, learned = _opened(path)
    problems = []
    if strategy not in learned.strategies:
        problems.append(f"'{strategy}' is not chosen there: choose from {', '.join(learned.strategies)}")
    if kind not in TYPES:
        problems.append(f"'{kind}' is no type of question: choose from {', '.join(TYPES)}")
    if problems:
        raise InputError(problems)
    with log.reading() as events:
        folded(learned, events)
    with log.transaction() as events:
        folded(learned, events, afresh=True)  # what others have added meanwhile
        if (f"{kind}/{strategy}" in learned.forced) == on:
            return False
        data = {"type": kind, "strategy": strategy, "on": on}
        return events.append("pruned", str(events.last() + 1), time.time() if now is None else now, data)


def add_strategy(path: Path, strategy: str, now: float | None = None) -> bool:
    """Let a log choose among one strategy more; parameters and errors as `Strategist.add_strategy`."""
    return admit(EventLog(path), strategy, time.time() if now is None else now)


def export(path: Path, out: Path) -> int:
    """Write what was learned as a file that another log can start from; the number of questions behind it.

    Raises
    ------
    InputError
        If there is nothing yet, or it cannot be written.
    """
    log, learned = _opened(path)
    with log.reading() as events:
        folded(learned, events)
    if not learned.questions:
        raise InputError(f"'{path}' holds no questions: there is nothing to export")
    arrays = {f"theta/{name}": model.theta for name, model in learned.models.items()}
    about = {
        "strategies": learned.strategies,
        "embedder": log.about["embedder"],
        "dimensions": learned.settings.dimensions,
    }
    where = {"questions": learned.questions, "events": learned.seq, "date": time.strftime("%Y-%m-%d")}
    write_weights(Weights(WEIGHTS_KIND, WEIGHTS_VERSION, arrays, about, where), out)
    return learned.questions


def start_from(path: Path, weights: Path, weight: float) -> None:
    """Let a log start from what another one learned, as a prior mean.

    Parameters
    ----------
    weight : float
        > 0, in units of the ridge: how many questions it takes to move it.

    Raises
    ------
    InputError
        For a file that does not fit, a weight that is none, or a log that has a prior already.
    """
    if not 0 < weight < 1e9:
        raise InputError(f"weight={weight!r} must be finite and > 0")
    read = read_weights(weights, WEIGHTS_KIND, WEIGHTS_VERSION)
    log, learned = _opened(path)
    for name in ("embedder", "dimensions"):
        if str(read.about[name]) != log.about[name]:
            raise InputError(
                f"'{weights}' was learned with {name} {read.about[name]}, and '{path}' has "
                f"{log.about[name]}: contexts of the two mean different things"
            )
    theta = {
        name: read.arrays[f"theta/{name}"] for name in learned.strategies if f"theta/{name}" in read.arrays
    }
    if not theta:
        raise InputError(
            f"'{weights}' knows nothing of the strategies of '{path}' ({', '.join(learned.strategies)}): "
            "give a file of a log that chose among some of them"
        )
    if any(values.shape != (learned.settings.dimensions,) for values in theta.values()):
        raise InputError(f"'{weights}' is damaged: export it again")
    with log.transaction() as events:
        plain = {name: values.tolist() for name, values in theta.items()}
        data = {"theta": plain, "weight": weight, "sha256": read.sha256, **dict(read.provenance)}
        if not events.append("prior", "prior", time.time(), data):
            raise InputError(f"'{path}' started from a prior already")
