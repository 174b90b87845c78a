"""Estimate the parameters of the decision process from logged runs, with intervals, and test its assumptions.

Every recorded action is a transition from U to the U measured after it. Retrieving succeeds if U falls by
more than `min_drop`; p_s is the share of successes, delta_r the mean fall in a success, delta_p the mean fall
of all reasoning steps. Intervals are 95 % (none for fewer than five questions). What several controllers did
alike on a question, after the same actions, counts once. Costs are the mean seconds, or tokens, of an action
times a price; without a price one reasoning step keeps the cost that it had.

The process assumes that U alone decides what an action does (Markov), that nothing raises U, and that
starting lower ends lower (monotone). Violations are reported, not corrected.

Mean and share are ratios of sums over questions. Their variance is that of the ratio estimator (the residuals
of whole questions), the quantile Student's t with one degree of freedom less than questions. A share has
Wilson's interval, with as many observations as independent ones would be worth. Cochran, Sampling Techniques
(1977), chapter 6; Wilson (1927).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import scipy  # loads scipy.stats, a second, where it is first used
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.learning.rules import decided
from mio_rag.session.trace import Trace

FloatArray = NDArray[np.float64]
Unit = Literal["seconds", "tokens"]

_LEVEL = 0.05
_FEWEST = 8  # observations that a test needs
_MARKOV_TESTS = 4  # which share the level
_FEWEST_QUESTIONS = 5  # below which questions do not show how much they differ
_MOST_BINS = 1000
_BIN_FEWEST = 5  # observations of a bin, below which the value of all stands in
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Transition:
    """One recorded action."""

    question_id: str
    action: str
    step: int
    before: float
    after: float
    seconds: float
    tokens: int
    last_drop: float | None

    @property
    def drop(self) -> float:
        """How far U fell; negative if it rose."""
        return self.before - self.after


Groups = dict[str, list[Transition]]


def transitions(traces: Sequence[Trace], gauge: str | None = None) -> tuple[list[Transition], str]:
    """Return the actions of traces whose U was measured, and how it was; what was done alike is listed once.

    Raises `InputError` if there are none, or U was measured in several ways and `gauge` does not choose one.
    """
    measured = {str(trace.about["signal"]) for trace in traces if "signal" in trace.about} - {"tracked"}
    if gauge is None and len(measured) > 1:
        raise InputError(f"U was measured by {' and by '.join(sorted(measured))}: choose with --signal")
    chosen = gauge or next(iter(measured), "tracked")
    if chosen not in measured:
        raise InputError(
            "no measured U here: tracked U follows the model, so nothing can be estimated from it; run "
            "controllers with @confidence or @evidence"
        )
    found: dict[tuple[Any, ...], Transition] = {}
    for trace in traces:
        if trace.about.get("signal") != chosen:
            continue
        last: float | None = None
        path: tuple[Any, ...] = (trace.question_id, trace.budget, trace.generator)
        for place, one in enumerate(decided(trace)):
            step, after = one.step, one.next_uncertainty
            path = (*path, step.action, step.query, step.note, step.new_ids, after)
            tokens = sum(call.prompt_tokens + call.completion_tokens for call in one.calls)
            seconds = sum(call.seconds for call in one.calls)
            moved = (one.uncertainty, after, seconds, tokens, last)
            found.setdefault(path, Transition(trace.question_id, step.action, place, *moved))
            last = one.uncertainty - after
    if not found:
        raise InputError(f"the traces measured by {chosen} hold no action: every one stopped at once")
    return list(found.values()), chosen


# -- assumptions --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """An assumption, what was measured of it, and whether that speaks against it (None: too few data)."""

    name: str
    value: float | None
    p_value: float | None
    n: int
    violated: bool | None


def _check_assumptions(groups: Groups, edges: FloatArray, min_drop: float) -> list[Check]:
    """Test the assumptions by action; a fall of at most `min_drop` counts as none, `edges` are bins of U."""
    checks = []
    for action, group in groups.items():
        later, n = [t for t in group if t.last_drop is not None], len(group)
        rises = sum(t.drop < -min_drop for t in group)
        never: bool | None = None
        if n >= _FEWEST:
            never = bool(scipy.stats.binomtest(rises, n, _LEVEL, alternative="greater").pvalue < _LEVEL)
        pairs, order, p_order, falls = np.array([(t.before, t.after) for t in group]), None, None, None
        if n >= _FEWEST and np.ptp(pairs, axis=0).all():
            found = scipy.stats.spearmanr(*pairs.T)
            order, p_order = float(found.statistic), float(found.pvalue)
            falls = order < 0 and p_order < _LEVEL
        name = f"Markov: {action} does the same"
        before = [t.last_drop or 0.0 for t in later]
        checks += [
            _independent(f"{name} at any step", group, [t.step for t in group], edges),
            _independent(f"{name} whatever the last action did", later, before, edges),
            Check(f"{action} never raises U", rises / n if n else None, None, n, never),
            Check(f"monotone: {action} from a lower U ends lower", order, p_order, n, falls),
        ]
    return checks


def _independent(name: str, group: Sequence[Transition], other: Sequence[float], edges: FloatArray) -> Check:
    """Whether the falls go with something else once U is known: correlation within the bins of U."""
    n, bins = len(group), len(edges) - 1
    place = np.minimum(np.searchsorted(edges, [t.before for t in group], side="right"), bins)
    columns = np.array([[t.drop for t in group], other], dtype=np.float64)
    for b in np.unique(place):
        columns[:, place == b] -= columns[:, place == b].mean(axis=1, keepdims=True)
    columns[np.abs(columns) < _ROUNDING] = 0.0
    if n < _FEWEST + bins or not columns.any(axis=1).all():
        constant = n >= _FEWEST + bins and columns[1].any()  # falls that do not vary depend on nothing
        return Check(name, None, None, n, False if constant else None)
    found = scipy.stats.pearsonr(*columns)
    p_value = float(found.pvalue)
    return Check(name, float(found.statistic), p_value, n, p_value < _LEVEL / _MARKOV_TESTS)


# -- estimates ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval (None: too few questions for one), from `n` observations."""

    value: float
    low: float | None
    high: float | None
    n: int


def _estimate(group: Sequence[Transition], value: Callable[[Transition], float]) -> Estimate | None:
    """The mean over transitions, or of what is True or False the share; None without any."""
    if not group:
        return None
    names, place = np.unique([t.question_id for t in group], return_inverse=True)
    each = [value(t) for t in group]
    sums, counts, n = np.bincount(place, each), np.bincount(place), len(names)
    mean = float(sums.sum() / len(group))
    if n < _FEWEST_QUESTIONS:
        return Estimate(mean, None, None, len(group))
    residuals = sums - mean * counts
    variance = n / (n - 1) * float(residuals @ residuals) / len(group) ** 2
    z = float(scipy.stats.t.ppf(1 - _LEVEL / 2, n - 1))
    if not isinstance(each[0], bool):
        half = z * math.sqrt(variance)
        return Estimate(mean, mean - half, mean + half, len(group))
    # Where all are alike nothing shows how much questions differ: each counts once.
    alone = mean * (1 - mean)
    worth = float(n) if alone == 0 else min(len(group), alone / max(variance, 1e-300))
    centre = (mean + z * z / (2 * worth)) / (1 + z * z / worth)
    half = z * math.sqrt(alone / worth + z * z / (4 * worth * worth)) / (1 + z * z / worth)
    return Estimate(mean, max(0.0, centre - half), min(1.0, centre + half), len(group))


def _parameters(groups: Groups, min_drop: float) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    """p_s, delta_r and delta_p, each None without data."""
    won = [t for t in groups["retrieve"] if t.drop > min_drop]
    return (
        _estimate(groups["retrieve"], lambda t: t.drop > min_drop),
        _estimate(won, lambda t: t.drop),
        _estimate(groups["reason"], lambda t: t.drop),
    )


def _above_floor(group: list[Transition], min_drop: float, what: str, notes: list[str]) -> list[Transition]:
    """Transitions that begin high enough to fall in full.

    U never falls below 0: what ends there might have fallen further, and from near 0 a success looks like a
    failure. So where some end at 0, all that begin below the mean full fall are left out, whatever became of
    them: to leave out only those that ended at 0 would leave out successes.
    """
    full = [t.drop for t in group if t.after > 0 and t.drop > min_drop]
    if not full or all(t.after > 0 for t in group):
        return group
    least = float(np.mean(full))
    kept = [t for t in group if t.before >= least - _ROUNDING]
    if len(kept) < len(group):
        notes.append(
            f"{len(group) - len(kept)} of {len(group)} {what}s began below U = {least:.3g}, where 0 cuts the "
            "fall short: they are left out"
        )
    return kept


# -- calibration --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BinEstimate:
    """The parameters in one bin of U; None where it was never acted in."""

    low: float
    high: float
    success: Estimate | None
    retrieve_drop: Estimate | None
    reason_drop: Estimate | None


@dataclass(frozen=True)
class Calibration:
    """Parameters, by U and for all U; what they rest on; the models that follow."""

    gauge: str
    questions: int
    retrievals: int
    reasonings: int
    success: Estimate | None
    retrieve_drop: Estimate | None
    reason_drop: Estimate | None
    retrieve_cost: Estimate | None
    reason_cost: Estimate | None
    bins: tuple[BinEstimate, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    model: RetrievalMDP
    by_bins: RetrievalMDP


def calibrate(
    traces: Sequence[Trace],
    given: RetrievalMDP,
    *,
    gauge: str | None = None,
    bins: int = 4,
    min_drop: float = 0.01,
    cost_by: Unit = "seconds",
    price: float | None = None,
) -> Calibration:
    """Estimate the parameters of the process from traces.

    given: what is kept: discount, horizon, quality, grid; and parameters of actions that were never taken.
    bins: equal bins of U, 1 to 1000.
    min_drop: in [0, 1): what U must fall by for a retrieval to count as a success.
    price: quality that one second, or token, is worth; > 0.

    Raises `InputError` for parameters out of range, or traces without measured actions.
    """
    problems = [] if 1 <= bins <= _MOST_BINS else [f"bins={bins} must be in 1..{_MOST_BINS}"]
    if not 0 <= min_drop < 1:
        problems.append(f"min_drop={min_drop!r} must be in [0, 1)")
    if cost_by not in ("seconds", "tokens"):
        problems.append(f"cost_by='{cost_by}' is unknown: choose seconds or tokens")
    if price is not None and not 0 < price < np.inf:
        problems.append(f"price={price!r} must be a finite number > 0")
    if problems:
        raise InputError(problems)
    data, used = transitions(traces, gauge)
    groups = {action: [t for t in data if t.action == action] for action in ("retrieve", "reason")}
    retrievals, reasonings = map(len, groups.values())
    notes: list[str] = []
    costs = _costs(groups, given, cost_by, price, notes)
    groups["retrieve"] = _above_floor(groups["retrieve"], min_drop, "retrieval", notes)
    groups["reason"] = _above_floor(groups["reason"], 0.0, "reasoning step", notes)
    whole, parts = _parameters(groups, min_drop), list[BinEstimate]()
    edges = np.linspace(0, 1, bins + 1)
    for low, high in pairwise(edges.tolist()):
        within = {
            action: [t for t in group if low <= t.before < high or t.before == high == 1]
            for action, group in groups.items()
        }
        parts.append(BinEstimate(low, high, *_parameters(within, min_drop)))
    names = ("success", "retrieve_drop", "reason_drop", "retrieve_cost", "reason_cost")
    changes: dict[str, Any] = {}
    for name, estimate in zip(names, (*whole, *costs), strict=True):
        if estimate is not None:
            if estimate.value < 0:
                notes.append(f"{name} is set to 0: it measured {estimate.value:.3g}, U rose on average")
            changes[name] = max(0.0, estimate.value)
        elif not name.endswith("cost"):
            notes.append(f"{name} is kept: it was never observed")
    model, by_bins = replace(given, **changes), dict[str, Any]()
    for name in names[:3]:
        if isinstance(common := getattr(model, name), tuple):  # kept as given, since nothing was observed
            continue
        own: list[Estimate | None] = [getattr(part, name) for part in parts]
        by_bins[name] = tuple(
            float(common) if e is None or e.n < _BIN_FEWEST else min(1.0, max(0.0, e.value)) for e in own
        )
    checks, questions = _check_assumptions(groups, edges, min_drop), len({t.question_id for t in data})
    return Calibration(
        used, questions, retrievals, reasonings, *whole, *costs, bins=tuple(parts), checks=tuple(checks),
        notes=tuple(notes), model=model, by_bins=replace(model, **by_bins),
    )  # fmt: skip


def _costs(
    groups: Groups, given: RetrievalMDP, cost_by: Unit, price: float | None, notes: list[str]
) -> tuple[Estimate | None, Estimate | None]:
    """c_r and c_p in units of quality."""
    spent = [_estimate(group, lambda t: float(getattr(t, cost_by))) for group in groups.values()]
    rate, reason, kept = price, spent[1], float(given.at("reason_cost", 1.0))
    if rate is None:
        if reason is None or reason.value <= 0 or kept <= 0:
            steps = len(groups["reason"])
            notes.append(f"costs are kept: {steps} reasoning steps determine no price; give --price")
            return None, None
        rate = kept / reason.value
    notes.append(
        f"one {cost_by.removesuffix('s')} costs as much as {rate:.3g} of quality is worth"
        + ("" if price is not None else ", so that a reasoning step keeps its cost")
    )
    return _scaled(spent[0], rate), _scaled(reason, rate)


def _scaled(one: Estimate | None, rate: float) -> Estimate | None:
    if one is None:
        return None
    low, high = (None if end is None else end * rate for end in (one.low, one.high))
    return Estimate(one.value * rate, low, high, one.n)
