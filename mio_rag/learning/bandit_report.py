"""Reports on the log of a bandit, and changes to it: replay, recalibrate, rebuild, export, prune, plot."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import DataError, InputError, require
from mio_rag.learning.bandit import TYPES, BanditSettings, Learned, Ridge, context_in, net, rewarded
from mio_rag.learning.bandit_choice import every_set, mixture, worths
from mio_rag.learning.bandit_log import Event, EventLog, Events
from mio_rag.learning.strategist import admit, folded, known_settings
from mio_rag.learning.weights import Weights, read_weights, write_weights
from mio_rag.pictures import save_figure, set_title

FloatArray = NDArray[np.float64]

WEIGHTS_KIND, WEIGHTS_VERSION = "strategies", 1
_NORMAL = 1.959963984540054  # 97.5 % of a standard normal distribution lie below
_NOT_WORSE = 0.01  # of the loss: what recalibrated models may lose on the holdout, interval included
_LEAST = 10  # questions of a type before it is reported
_FEWEST = 20  # questions of a window
_COLOURS = ("#3b6fb6", "#e0a030", "#4c9f70", "#c05050", "#9467bd", "#8c6d46", "#17a2b8", "#888888")
_POINTS = 50  # of a curve, at most


def settings_of(path: Path) -> BanditSettings:
    """Return the settings that a log was last opened with; raises as `EventLog`."""
    return known_settings(EventLog(path))[0]


def _opened(path: Path, settings: BanditSettings | None = None) -> tuple[EventLog, Learned]:
    log = EventLog(path)
    return log, Learned(*known_settings(log, settings))


# -- off-policy estimates -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """An estimate with its 95 % interval.

    effective: (sum w)^2 / sum w^2: questions that the estimate rests on.
    """

    name: str
    value: float
    low: float
    high: float
    effective: float


def off_policy(
    rewards: ArrayLike,
    propensities: ArrayLike,
    target: ArrayLike,
    predicted: ArrayLike | None = None,
    expected: ArrayLike | None = None,
) -> list[Estimate]:
    """Estimate what a policy would have earned per question.

        ips    mean of w r                     unbiased; wide where w is large
        snips  sum of w r / sum of w           self-normalised: narrower, with a small bias
        dr     mean of v(x) + w (r - q(x, S))  doubly robust, with any model q

    with w = pi(S | x) / p(S | x) and v(x) = sum_S pi(S | x) q(x, S).

    Sources: Horvitz and Thompson (1952); Swaminathan and Joachims, "The self-normalized estimator for
    counterfactual learning" (NeurIPS 2015); Dudik, Langford and Li, "Doubly robust policy evaluation and
    learning" (ICML 2011). Intervals are those of the asymptotic normal distribution of the mean, for snips of
    the ratio.

    rewards: shape (n,); of what was done.
    propensities: shape (n,); probability, in (0, 1], with which it was done.
    target: shape (n,); probability, in [0, 1], with which the other policy does it.
    predicted, expected: shape (n,); a model's reward of what was done, and of what the other policy does in
        expectation; with both there is a doubly robust estimate. The model must not have learned from these
        rewards.

    Raises `InputError` with everything that is out of range, or if there is nothing to estimate from.
    """
    r, p, pi = (np.asarray(a, dtype=np.float64) for a in (rewards, propensities, target))
    if not (r.ndim == 1 and r.shape == p.shape == pi.shape and r.size >= 2):
        raise InputError(
            f"rewards, propensities and target have shapes {r.shape}, {p.shape}, {pi.shape}: give one value "
            "for each of at least two questions"
        )
    wrong = {
        "propensities must lie in (0, 1]: what was done had a probability": not ((p > 0) & (p <= 1)).all(),
        "target must lie in [0, 1]: it holds probabilities": not ((pi >= 0) & (pi <= 1)).all(),
        "rewards must be finite": not np.isfinite(r).all(),
        "a doubly robust estimate needs both predicted and expected": (predicted is None)
        != (expected is None),
    }
    if problems := [text for text, holds in wrong.items() if holds]:
        raise InputError(problems)
    w = pi / p
    values = {"ips": w * r}
    if w.sum() > 0:
        ratio = float((w * r).sum() / w.sum())
        values["snips"] = ratio + w * (r - ratio) / w.mean()
    if predicted is not None and expected is not None:
        q, v = (np.asarray(a, dtype=np.float64) for a in (predicted, expected))
        if q.shape != r.shape or v.shape != r.shape:
            raise InputError(f"predicted and expected have shapes {q.shape}, {v.shape}: give {r.shape}")
        values["dr"] = v + w * (r - q)
    effective, found = float(w.sum() ** 2 / max((w**2).sum(), 1e-300)), []
    for name, each in values.items():
        middle, half = float(each.mean()), _NORMAL * float(each.std(ddof=1)) / math.sqrt(each.size)
        found.append(Estimate(name, middle, middle - half, middle + half, effective))
    return found


@dataclass(frozen=True)
class Replay:
    """What another policy would have earned on the questions of a log.

    questions: those that it is estimated from: after the cold start, where several sets had a chance.
    earned: what the policy that wrote the log earned a question, net of costs, on these.
    differs: questions on which it would have chosen what ran with another probability; only these tell the
        two apart.
    """

    policy: str
    questions: int
    earned: float
    estimates: tuple[Estimate, ...]
    differs: int


def replay(path: Path, settings: BanditSettings) -> Replay:
    """Estimate what a bandit with these settings would have earned on the logged questions.

    It sees the questions in their order and learns from what was run on those before, which need not be what
    it would have run itself; of each it gives the probability with which it would have run what was run. It
    chooses among the strategies that could be chosen then. The model of the doubly robust estimate has
    learned from earlier questions alone.

    Raises `InputError` if the file is no log, or holds too few questions with propensities below 1.
    """
    log, learned = _opened(path, settings)
    rows: list[tuple[float, ...]] = []
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


def _replayed(learned: Learned, event: Event) -> tuple[float, ...]:
    """Net value, propensity, and of the target: probability, predicted and expected value."""
    x, data = context_in(event), event.data
    found = mixture(learned, x, data["type"], event.id, data["each"])
    members = tuple(int(name in data["strategies"]) for name in learned.strategies)
    means = np.array([learned.models[name].mean(x) for name in learned.strategies])
    worth = worths(means[None, :], learned.overlap(means), learned.costs())[0]
    sets = every_set(means.size)
    chances = np.array([found.probability(tuple(row)) for row in sets.tolist()])
    place = int(np.flatnonzero((sets == np.array(members)).all(axis=1))[0])
    spent = sum(learned.price(data["tokens"].get(n, 0), data["seconds"].get(n, 0.0)) for n in data["own"])
    reward = data["total"] - data["base"] - spent  # what the strategies besides the base added together
    return reward, data["propensity"], found.probability(members), worth[place], chances @ worth


# -- changes to a log ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recalibration:
    """Models fitted on a recent window, against those in use, on questions that neither learned from.

    window, holdout: questions that the new models learned from; later ones on which both are compared.
    compared: those of the later ones on which a strategy ran besides the base.
    loss, new_loss: mean squared error of the contributions of what ran, in use and recalibrated.
    low, high: 95 % interval of the paired difference, new less old.
    deployed: whether the new ones took over: only if they are certainly not worse by more than a hundredth.
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

    Raises `InputError` if the window holds fewer than 20 questions, or strategies ran on fewer than 2 of its
    last part.
    """
    log, learned = _opened(path, settings)
    moment = time.time() if now is None else now
    how = learned.settings
    with log.reading() as events:
        start = events.first_since(moment - how.window_days * 86_400)
        inside = [event.seq for event in events.after(start) if event.kind == "question"]
        cut = int(len(inside) * (1 - how.holdout))
        if len(inside) < _FEWEST or not 0 < cut < len(inside):
            raise InputError(
                f"the last {how.window_days:g} days hold {len(inside)} questions: at least {_FEWEST} are "
                "needed to recalibrate"
            )
        border = inside[cut] - 1
        for event in events.after(0, border):
            learned.fold(event, events.find)
        window = Learned(how.replace(change_threshold=1e12), learned.strategies)
        window.seq = start
        _fit(window, events, start, border)
        old, new = _losses([learned.models, window.models], events, border)
        difference = new - old
        half = _NORMAL * float(difference.std(ddof=1)) / len(difference) ** 0.5
        middle = float(difference.mean())
        good = bool(middle + half <= _NOT_WORSE * old.mean())
        if good:
            _fit(window, events, start)
    if good:
        with log.transaction() as events:
            _fit(window, events, start)  # what others have added meanwhile
            names = ("matrix", "vector", "count", "squares")
            models = {n: {k: getattr(model, k) for k in names} for n, model in window.models.items()}
            data = {"from": start, "upto": events.last(), "models": models}
            events.append("recalibrated", f"{events.last() + 1}", moment, data)
    sizes = cut, len(inside) - cut, len(difference)
    losses = float(old.mean()), float(new.mean())
    return Recalibration(*sizes, *losses, middle - half, middle + half, good)


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
        if known := [name for name in own if name in rivals[0]]:
            x = context_in(event)
            rows.append(
                [np.mean([(rewarded(own[n]) - one[n].mean(x)) ** 2 for n in known]) for one in rivals]
            )
    if len(rows) < 2:
        raise InputError(
            f"on {len(rows)} of the last questions did a strategy run besides those that always do, and at "
            "least 2 are needed to compare: give a larger --holdout, or wait"
        )
    return np.array(rows).T


def rebuild(path: Path) -> int:
    """Replay the whole log, store a new snapshot, and return the number of events."""
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

    Raises `InputError` for a strategy that the log does not choose among, or an unknown type.
    """
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
    """Let a log choose among one strategy more; as `admit`."""
    return admit(EventLog(path), strategy, time.time() if now is None else now)


def export(path: Path, out: Path) -> int:
    """Write what was learned as a file that another log can start from; return the number of questions.

    Raises `InputError` if there is nothing yet, or it cannot be written.
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

    weight: > 0, in units of the ridge: how many questions it takes to move it.

    Raises `InputError` for a file that does not fit, a wrong weight, or a log that has a prior already.
    """
    if not 0 < weight < 1e9:
        raise InputError(f"weight={weight!r} must be finite and > 0")
    read = read_weights(weights, WEIGHTS_KIND, WEIGHTS_VERSION)
    log, learned = _opened(path)
    for name in ("embedder", "dimensions"):
        if name not in read.about:
            raise DataError(f"'{weights}' is damaged: {name} is missing; export it again")
        if str(read.about[name]) != log.about[name]:
            raise InputError(
                f"'{weights}' was learned with {name} {read.about[name]}, and '{path}' has "
                f"{log.about[name]}: contexts of the two mean different things"
            )
    theta = {n: read.arrays[f"theta/{n}"] for n in learned.strategies if f"theta/{n}" in read.arrays}
    if not theta:
        raise InputError(
            f"'{weights}' knows nothing of the strategies of '{path}' ({', '.join(learned.strategies)}): "
            "give a file of a log that chose among some of them"
        )
    if any(values.shape != (learned.settings.dimensions,) for values in theta.values()):
        raise InputError(f"'{weights}' is damaged: export it again")
    with log.transaction() as events:
        data = {"theta": theta, "weight": weight, "sha256": read.sha256, **dict(read.provenance)}
        if not events.append("prior", "prior", time.time(), data):
            raise InputError(f"'{path}' started from a prior already")


# -- statistics ---------------------------------------------------------------------------------------------


def stats_of(path: Path) -> dict[str, Any]:
    """Return `stats` of a file; raises as `EventLog`."""
    log, learned = _opened(path)
    with log.reading() as events:
        folded(learned, events)
    return {"about": log.about, **stats(learned)}


def stats(learned: Learned) -> dict[str, Any]:
    """Return how often each strategy ran and what it brought, and the state of the whole, as plain data."""
    n, each = learned.questions, {}
    for name in (*learned.settings.base, *learned.strategies):
        kept = learned.tallies[name]
        ran, always = kept["ran"], name not in learned.models

        def mean(what: str, known: bool = True, kept: dict[str, float] = kept) -> float | None:
            return kept[what] / kept["ran"] if kept["ran"] and known else None

        each[name] = {
            "always": always,
            "ran": int(ran),
            "selection_rate": ran / n if n else None,
            "share_exploring": mean("explored"),
            # Others are measured against those that always run: what these add is unknown.
            "contribution_rate": mean("added", not always),
            "contribution": mean("own", not always),
            "reward": mean("reward", not always),
            "tokens": mean("tokens"),
            "seconds": mean("seconds"),
            "rating": kept["rated"],
        }
    probation = {
        kind: [s for s, p in zip(learned.strategies, learned.pruned(kind), strict=True) if p]
        for kind in TYPES
    }
    return {
        "questions": n,
        "events": learned.seq,
        "strategies": each,
        "entropy_bits": learned.entropy(),
        "convergence": learned.convergence(),
        "regret": learned.regret,
        "regret_a_question": learned.regret / n if n else None,
        "changes": learned.changes,
        "probation": {kind: names for kind, names in probation.items() if names},
        "insights": insights(learned),
    }


def insights(learned: Learned) -> list[str]:
    """Return what strategies add by type of question, net of cost, in sentences; the largest first."""
    regions = dict(learned.regions)
    for name in learned.strategies:
        parts = [region for key, region in learned.regions.items() if key.endswith(f"/{name}")]
        if len(parts) > 1:
            regions[f"all/{name}"] = [sum(sums) for sums in zip(*parts, strict=True)]
    found: list[tuple[float, str]] = []
    for key, region in regions.items():
        count, mean, squares = net(region, learned.token_price)
        half = _NORMAL * math.sqrt(squares / (count - 1) / count) if count >= _LEAST else math.inf
        if abs(mean) > half:
            kind, _, name = key.partition("/")
            worth = "worth its cost" if mean > 0 else "not worth its cost"
            shown = f"{mean:+.3f} \u00b1 {half:.3f} a question net, n = {count:.0f}"
            found.append((-abs(mean), f"{kind} questions: {name} is {worth}, {shown}"))
    for pair, (twice, smaller) in learned.overlaps.items():
        if smaller > 0.05:
            share = min(1.0, twice / smaller)
            found.append((0.0, f"{pair.replace('+', ' and ')} find {share:.0%} of the smaller part twice"))
    return [text for _, text in sorted(found)]


def plot_log(path: Path, out: Path) -> None:
    """Draw a log into a .png, .svg or .pdf file.

    Raises `InputError` if the file is no log or holds no questions, for another format, or if it cannot be
    written; `MissingExtraError` without matplotlib.
    """
    require("matplotlib", "evaluation", "drawing a log")
    from matplotlib.figure import Figure

    log = EventLog(path)
    _, strategies = known_settings(log)
    with log.reading() as events:
        rows = [event.data for event in events.after(0) if event.kind == "question"]
    log.close()
    if not rows:
        raise InputError(f"'{path}' holds no questions: there is nothing to draw")
    n = len(rows)
    ran = np.array([[name in row["strategies"] for name in strategies] for row in rows], dtype=np.float64)
    added = np.array([[row["own"].get(name, np.nan) for name in strategies] for row in rows])
    regret = np.cumsum([row.get("regret", 0.0) for row in rows])
    size = -(-n // _POINTS)
    starts = np.arange(0, n, size)
    counts = np.diff([*starts, n])
    shares = np.add.reduceat(ran, starts) / counts[:, None]
    figure = Figure(figsize=(8, 8), layout="constrained")
    above, middle, below = figure.subplots(3, 1, sharex=True)
    for place, name in enumerate(strategies):
        colour = _COLOURS[place % len(_COLOURS)]
        above.plot(starts + counts / 2, shares[:, place], color=colour, label=name, marker=".", markersize=3)
        seen = np.flatnonzero(np.isfinite(added[:, place]))
        mean = np.cumsum(added[seen, place]) / np.arange(1, len(seen) + 1)
        middle.plot(seen + 1, mean, color=colour)
    above.set_ylim(-0.02, 1.02)
    above.set_ylabel("share of questions it ran on")
    above.legend(frameon=False, fontsize=8)
    middle.axhline(0.0, color="#bbbbbb", linewidth=0.8)
    middle.set_ylabel("what a run added, mean so far")
    below.plot(np.arange(1, n + 1), regret, color="black")
    below.set_ylabel("expected regret, cumulative")
    below.set_xlabel("questions")
    set_title(figure, f"{path.name}: {n} questions")
    save_figure(figure, out)
