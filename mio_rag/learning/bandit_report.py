"""Reports on the log of a bandit, and changes to it: replay, recalibrate, rebuild, export, prune."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import DataError, InputError, choose
from mio_rag.learning.bandit import TYPES, BanditSettings, Learned, context_in, net
from mio_rag.learning.bandit_log import Event, EventLog, Events
from mio_rag.learning.strategist import every_set, known_settings, mixture, replayed, worths
from mio_rag.learning.weights import Weights, read_weights, write_weights
from mio_rag.session.search import STRATEGIES

FloatArray = NDArray[np.float64]

WEIGHTS_KIND, WEIGHTS_VERSION = "strategies", 1
_NORMAL = 1.959963984540054  # 97.5 % of a standard normal distribution lie below
_NOT_WORSE = 0.01  # of the loss: what recalibrated models may lose on the holdout, interval included
_LEAST = 10  # questions of a type before it is reported
_FEWEST, _COMPARED = 50, 20  # questions of a window; of those on which models are compared


def settings_of(path: Path) -> BanditSettings:
    """Return the settings that a log was last opened with; raises as `EventLog`."""
    return known_settings(EventLog(path))[0]


def _opened(path: Path, settings: BanditSettings | None = None) -> tuple[EventLog, Learned]:
    log = EventLog(path)
    return log, Learned(*known_settings(log, settings))


def _learned(path: Path) -> tuple[EventLog, Learned]:
    log, learned = _opened(path)
    with log.reading() as events:
        replayed(learned, events, snapshot=True)
    return log, learned


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
    rewards: ArrayLike, propensities: ArrayLike, target: ArrayLike, predicted: ArrayLike, expected: ArrayLike
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

    rewards: shape (n,); of what was done; n >= 2.
    propensities: shape (n,); probability, in (0, 1], with which it was done.
    target: shape (n,); probability, in [0, 1], with which the other policy does it.
    predicted, expected: shape (n,); a model's reward of what was done, and of what the other policy does in
        expectation. The model must not have learned from these rewards.

    Raises `InputError` for values out of range, or shapes that differ.
    """
    given = (rewards, propensities, target, predicted, expected)
    r, p, pi, q, v = (np.asarray(a, dtype=np.float64) for a in given)
    if r.ndim != 1 or r.size < 2 or len({a.shape for a in (r, p, pi, q, v)}) > 1:
        raise InputError(
            f"rewards and probabilities have shapes {[a.shape for a in (r, p, pi, q, v)]}: give one value "
            "for each of at least two questions"
        )
    in_range = (p > 0).all() and (p <= 1).all() and (pi >= 0).all() and (pi <= 1).all()
    if not in_range or not np.isfinite([r, q, v]).all():
        raise InputError("propensities must lie in (0, 1], target in [0, 1], and rewards must be finite")
    w = pi / p
    values = {"ips": w * r}
    if w.sum() > 0:
        ratio = float((w * r).sum() / w.sum())
        values["snips"] = ratio + w * (r - ratio) / w.mean()
    values["dr"] = v + w * (r - q)
    effective, found = float(w.sum() ** 2 / max((w**2).sum(), 1e-300)), []
    for name, each in values.items():
        middle, half = _mean(each)
        found.append(Estimate(name, middle, middle - half, middle + half, effective))
    return found


def _mean(values: FloatArray) -> tuple[float, float]:
    """A mean, and half of its 95 % interval."""
    return float(values.mean()), _NORMAL * float(values.std(ddof=1)) / math.sqrt(values.size)


@dataclass(frozen=True)
class Replay:
    """What another policy would have earned on the questions of a log where several sets had a chance.

    earned: what the policy that wrote the log earned a question, net of costs.
    differs: questions on which it would have chosen what ran with another probability.
    """

    policy: str
    questions: int
    earned: float
    estimates: tuple[Estimate, ...]
    differs: int


def replay(path: Path, settings: BanditSettings) -> Replay:
    """Estimate what a bandit with these settings would have earned on the logged questions.

    It learns from what was run on earlier questions; of each it gives the probability with which it would
    have run what was run, among the strategies that could be chosen then.

    Raises `InputError` if the file is no log, or holds too few questions with propensities below 1.
    """
    log, learned = _opened(path, settings)
    rows: list[tuple[float, ...]] = []
    with log.reading() as events:
        for event in events.after(0):
            data = event.data
            if event.kind == "question" and data["propensity"] < 1:
                found = mixture(learned, context_in(event), data["type"], event.id, data["each"])
                members = [name in data["strategies"] for name in learned.strategies]
                place = int(np.flatnonzero((every_set(len(members)) == members).all(axis=1))[0])
                spent = learned.token_price * sum(data["tokens"].get(name, 0) for name in data["own"])
                reward = data["total"] - data["base"] - spent  # what those besides the base added together
                p, worth = found.chances, found.expected
                rows.append((reward, data["propensity"], p[place], worth[place], float(p @ worth)))
            learned.fold(event, events.find)
    if len(rows) < 2:
        raise InputError(
            f"'{path}' holds {len(rows)} questions on which something else could have been run: replay needs "
            "questions after the cold start"
        )
    reward, propensity, target, predicted, expected = np.array(rows).T
    estimates = off_policy(reward, propensity, target, predicted, expected)
    differs = int((np.abs(target - propensity) > 1e-9).sum())
    return Replay(settings.policy, len(rows), float(reward.mean()), tuple(estimates), differs)


@dataclass(frozen=True)
class Hindsight:
    """What a bandit would have lost on the questions on which all strategies ran, in the log's order.

    What each set is worth is known there: the value of the best selection with it, net of tokens.

    worth: what it would have earned a question, in expectation.
    best, best_worth: the one set that was best for all of these questions, and what it earned.
    oracle: what the best set of each question earned.
    regret, lost: shape (questions,); lost so far against `best`, and against the best set of each.
    """

    questions: int
    worth: float
    best: tuple[str, ...]
    best_worth: float
    oracle: float
    regret: list[float]
    lost: list[float]


def hindsight(path: Path, settings: BanditSettings) -> Hindsight | None:
    """Return the regret of a bandit with these settings in hindsight; None: all strategies never ran.

    It learns from the whole log, question by question. What a set of three or more adds is what its members
    do, less what every two of them find twice, but no less than the best two of them, nor more than all.
    """
    log, learned = _opened(path, settings)
    rows: list[tuple[float, FloatArray]] = []
    with log.reading() as events:
        for event in events.after(0):
            data, names = event.data, learned.strategies
            if event.kind == "question" and names and set(names) <= set(data["strategies"]):
                own = np.array([data["own"][name] for name in names])
                twice, place = np.zeros((len(names),) * 2), {name: k for k, name in enumerate(names)}
                for a, b, value in data["overlap"]:
                    twice[place[a], place[b]] = twice[place[b], place[a]] = value
                cost = learned.token_price * np.array([data["tokens"].get(name, 0) for name in names])
                worth = _known_worths(own, twice, float(data["total"] - data["base"]))
                worth += data["base"] - every_set(len(names)) @ cost
                if not learned.settings.base:
                    worth[0] = -np.inf  # something must run
                found = mixture(learned, context_in(event), data["type"], event.id, scheduled=False)
                kept = found.chances > 0
                rows.append((float(found.chances[kept] @ worth[kept]), worth))
            learned.fold(event, events.find)
    if not rows:
        return None
    earned, table = np.array([one for one, _ in rows]), np.array([worth for _, worth in rows])
    best = int(np.argmax(table.mean(axis=0)))
    members = zip(learned.strategies, every_set(len(learned.strategies))[best], strict=True)
    against, each = table[:, best], table.max(axis=1)
    return Hindsight(
        len(rows), float(earned.mean()), (*learned.settings.base, *(n for n, inside in members if inside)),
        float(against.mean()), float(each.mean()),
        np.cumsum(against - earned).tolist(), np.cumsum(each - earned).tolist(),
    )  # fmt: skip


def _known_worths(own: FloatArray, twice: FloatArray, total: float) -> FloatArray:
    """What every set adds, shape (2^k,), where singles, pairs and all together are known."""
    sets, k = every_set(len(own)), len(own)
    found: FloatArray = worths(own[None], twice, np.zeros(k))[0]
    small = sets.sum(axis=1) <= 2
    for place in np.flatnonzero(~small):
        inside = small & ~(sets & ~sets[place]).any(axis=1)
        found[place] = min(total, max(found[place], found[inside].max()))
    if k > 2:
        found[-1] = total
    return found


# -- changes to a log ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recalibration:
    """Models fitted on a recent window, against those in use, on questions that neither learned from.

    window, holdout: questions that the new models learned from; later ones on which both are compared.
    compared: those of the later ones on which a strategy ran besides the base.
    loss, new_loss: mean squared error of the contributions; `low` and `high` are of the paired difference.
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
    path: Path, settings: BanditSettings | None = None, now: float | None = None, *, dry_run: bool = False
) -> Recalibration:
    """Fit the models on the last days alone, and use them if they are not worse.

    dry_run: only compare; `deployed` then says whether they would take over.

    The window's last part is the holdout. The models in use are those that the log gave *before* the holdout,
    the new ones learned from the window before it. What is deployed then learns from the whole window.

    Raises `InputError` if the window holds fewer than 50 questions, or strategies ran on fewer than 20 of
    its last part.
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
        old, new = _losses([learned, window], events, border)
        middle, half = _mean(new - old)
        good = bool(middle + half <= _NOT_WORSE * old.mean())
        if good and not dry_run:
            _fit(window, events, start)
    if good and not dry_run:
        with log.transaction() as events:
            _fit(window, events, start)  # what others have added meanwhile
            names = ("matrix", "vector", "count", "squares")
            models = {n: {k: getattr(model, k) for k in names} for n, model in window.models.items()}
            data = {"from": start, "upto": events.last(), "models": models}
            events.append("recalibrated", f"{events.last() + 1}", moment, data)
    sizes = cut, len(inside) - cut, len(old)
    return Recalibration(*sizes, float(old.mean()), float(new.mean()), middle - half, middle + half, good)


def _fit(window: Learned, events: Events, start: int, upto: int = 2**62) -> None:
    """Go on with models of the questions of a window alone, with their ratings."""

    def within(kind: str, identity: str) -> Event | None:
        found = events.find(kind, identity)
        return found if found is not None and found.seq > start else None

    for event in events.after(window.seq, upto):
        if event.kind in ("question", "feedback"):
            window.fold(event, within)


def _losses(rivals: Sequence[Learned], events: Events, border: int) -> Any:
    """Mean squared error of each rival on each question behind a border, shape (rivals, n)."""
    rows = []
    for event in events.after(border):
        own = event.data["own"] if event.kind == "question" else {}
        if known := [name for name in own if name in rivals[0].models]:
            x, reward = context_in(event), {name: rivals[0].reward(event.data, name) for name in known}
            rows.append(
                [np.mean([(reward[n] - one.models[n].mean(x)) ** 2 for n in known]) for one in rivals]
            )
    if len(rows) < _COMPARED:
        raise InputError(
            f"on {len(rows)} of the last questions did a strategy run besides those that always do, and at "
            f"least {_COMPARED} are needed to compare: give a larger --holdout, or wait"
        )
    return np.array(rows).T


def rebuild(path: Path) -> int:
    """Replay the whole log, store a new snapshot, and return the number of events."""
    log, learned = _opened(path)
    with log.reading() as events:  # this may take long, and others go on meanwhile
        replayed(learned, events)
        count = events.count()
    with log.transaction() as events:
        events.keep_snapshot(learned.seq, learned.dump())
    return count


def prune(path: Path, strategy: str, kind: str, on: bool = True) -> bool:
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
        replayed(learned, events, snapshot=True)
    with log.transaction() as events:
        replayed(learned, events)  # what others have added meanwhile
        if (f"{kind}/{strategy}" in learned.forced) == on:
            return False
        data = {"type": kind, "strategy": strategy, "on": on}
        return events.append("pruned", str(events.last() + 1), time.time(), data)


def add_strategy(path: Path, strategy: str) -> bool:
    """Let a log choose among one strategy more; False where it is so already.

    What was learned of the others stays. Processes that have the file open go on with what they have.

    Raises `InputError` for an unknown strategy, or one that always runs there.
    """
    log = EventLog(path)
    if strategy not in STRATEGIES:
        raise InputError(f"strategy '{strategy}' is unknown: {choose(strategy, STRATEGIES)}")
    if strategy in log.about["base"].split("+"):
        raise InputError(f"'{strategy}' always runs there: it is not chosen")
    with log.transaction() as events:
        return events.declare_strategy(strategy) and events.append("strategy", strategy, time.time(), {})


def export(path: Path, out: Path) -> int:
    """Write what was learned as a file that another log can start from; return the number of questions.

    Raises `InputError` if there is nothing yet, or it cannot be written.
    """
    log, learned = _learned(path)
    if not learned.questions:
        raise InputError(f"'{path}' holds no questions: there is nothing to export")
    arrays = {f"theta/{name}": model.theta for name, model in learned.models.items()}
    about = {name: log.about[name] for name in ("strategies", "embedder", "dimensions")}
    origin = {"questions": learned.questions, "events": learned.seq, "date": time.strftime("%Y-%m-%d")}
    write_weights(Weights(WEIGHTS_KIND, WEIGHTS_VERSION, arrays, about, origin), out)
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
        if str(read.about.get(name)) != log.about[name]:
            raise InputError(
                f"'{weights}' was learned with {name} {read.about.get(name)}, and '{path}' has "
                f"{log.about[name]}: contexts of the two mean different things"
            )
    theta = {n: read.arrays[f"theta/{n}"] for n in learned.strategies if f"theta/{n}" in read.arrays}
    if not theta:
        raise InputError(
            f"'{weights}' knows nothing of the strategies of '{path}' ({', '.join(learned.strategies)}): "
            "give a file of a log that chose among some of them"
        )
    if any(values.shape != (learned.settings.dimensions,) for values in theta.values()):
        raise DataError(f"'{weights}' is damaged: export it again")
    with log.transaction() as events:
        data = {"theta": theta, "weight": weight, "sha256": read.sha256, **dict(read.provenance)}
        if not events.append("prior", "prior", time.time(), data):
            raise InputError(f"'{path}' started from a prior already")


# -- statistics ---------------------------------------------------------------------------------------------


def stats_of(path: Path) -> dict[str, Any]:
    """Return `stats` of a file."""
    log, learned = _learned(path)
    return {"about": log.about, **stats(learned)}


def stats(learned: Learned) -> dict[str, Any]:
    """Return how often each strategy ran and what it brought, and the state of the whole, as plain data."""
    n, each = learned.questions, {}
    for name in (*learned.settings.base, *learned.strategies):
        kept, always = learned.tallies[name], name not in learned.models
        mean = {what: total / kept["ran"] if kept["ran"] else None for what, total in kept.items()}
        each[name] = {
            "always": always,
            "ran": int(kept["ran"]),
            "selection_rate": kept["ran"] / n if n else None,
            "share_exploring": mean["explored"],
            # Others are measured against those that always run: what these add is unknown.
            "contribution_rate": None if always else mean["added"],
            "contribution": None if always else mean["own"],
            "reward": None if always else mean["reward"],
            "tokens": mean["tokens"],
            "seconds": mean["seconds"],
            "rating": kept["rated"],
        }
    probation = {kind: np.array(learned.strategies)[learned.pruned(kind)].tolist() for kind in TYPES}
    weights = learned.sets.values()  # of the sets chosen lately
    shares = [weight / sum(weights) for weight in weights if weight > 0]
    return {
        "questions": n,
        "events": learned.seq,
        "strategies": each,
        # Rebuilt from its events, the same log adds up the same shares in another order: rounded.
        "entropy_bits": round(-math.fsum(share * math.log2(share) for share in shares), 12) + 0.0,
        "convergence": max(shares, default=0.0),
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
