"""Statistics of ledger rows: means with intervals, paired comparisons, tokens at matched quality, warnings.

Intervals are 95 % percentile bootstrap over questions; a comparison resamples the *differences* of the same
questions. p-values come from sign-flip permutation tests and are corrected for the number of comparisons by
Benjamini and Hochberg's procedure (the q-values). All seeded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy  # loads scipy.stats, which takes a second, on first use
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.evaluation.rows import PARTED, RANKING_SOLVERS, reading_column
from mio_rag.formulations.numbers import plural
from mio_rag.measures import compared_measures, evidence_measure, measures, right

RESAMPLES = 2000
_RESAMPLES_MATCHED = 1000
_FEW = 500  # questions whose resamples are cached: 8 MB

FloatArray = NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]


def mean_interval(values: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Return the mean with its 95 % bootstrap interval: {mean, low, high}; of one value, that value."""
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean())
    if data.size < 2 or np.all(data == data[0]):
        return {"mean": mean, "low": mean, "high": mean}
    # The draws of `scipy.stats.bootstrap`, without its checks, which cost more, for each of many measures.
    low, high = np.percentile(data[_resamples(data.size, seed)].mean(axis=1), [2.5, 97.5])
    return {"mean": mean, "low": float(low), "high": float(high)}


def _resamples(questions: int, seed: int) -> NDArray[np.int64]:
    """Return which questions each resample holds, shape (RESAMPLES, questions)."""
    return _cached(questions, seed) if questions <= _FEW else _draw(questions, seed)


def _draw(questions: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, questions, size=(RESAMPLES, questions))


@functools.lru_cache(maxsize=4)  # every measure asks for the same
def _cached(questions: int, seed: int) -> NDArray[np.int64]:
    found = _draw(questions, seed)
    found.flags.writeable = False
    return found


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], seed: int = 0
) -> dict[str, float | None] | None:
    """Return the ratio of the sums over the same questions with its interval; None if the divisor is 0.

    Such a ratio is tokens per correct answer. A resample without a correct answer is infinite; where more
    than 2.5 % are, ``high`` is None.
    """
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if bottom.sum() <= 0:
        return None
    rows = _resamples(top.size, seed)
    sums = bottom[rows].sum(axis=1)
    ratios = np.full(RESAMPLES, np.inf)
    np.divide(top[rows].sum(axis=1), sums, out=ratios, where=sums > 0)
    # Both ends are resamples: nothing can be interpolated between a number and infinity.
    low, high = np.quantile(ratios, [0.025, 0.975], method="inverted_cdf")
    mean = float(top.sum() / bottom.sum())
    return {"mean": mean, "low": float(low), "high": float(high) if math.isfinite(high) else None}


# Means and paired comparisons -------------------------------------------------------------------------------


def _groups(rows: Rows) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], int(row["budget_tokens"])), []).append(row)
    return groups


def summarize(rows: Rows, seed: int = 0) -> list[dict[str, Any]]:
    """Return one entry per method and budget.

    {method, budget_tokens, n, failed, optimal_share, tokens_per_correct, <measure>: {mean, low, high}}

    ``n`` includes failed questions: they score 0 where the measure is defined for the question. A measure
    that no question defines is left out. ``tokens_per_correct`` is prompt and completion tokens of all
    questions with an accepted answer over the number answered exactly right (or, for multiple choice, right).
    """
    entries = []
    for (method, budget), group in _groups(rows).items():
        ranked = all(row.get("solver") in RANKING_SOLVERS for row in group)
        selected = [row for row in group if row.get("status") or row.get("error")]  # agents may read nothing
        proven = [row for row in selected if row.get("status") == "optimal"]
        unknown = ranked or not any(row.get("status") for row in group)
        entry: dict[str, Any] = {
            "method": method,
            "budget_tokens": budget,
            "n": len(group),
            "failed": sum(bool(row.get("error")) for row in group),
            "optimal_share": None if unknown else len(proven) / len(selected),
        }
        for name in (measure.name for measure in measures() if measure.of != "run"):
            values = [float(row[name]) for row in group if row.get(name) is not None]
            if values:
                entry[name] = mean_interval(values, seed)
        asked = [row for row in group if right(row) is not None]
        if any(row.get("prompt_tokens") for row in asked):
            tokens = [(row.get("prompt_tokens") or 0) + (row.get("completion_tokens") or 0) for row in asked]
            correct = [float(right(row) or 0.0) for row in asked]
            entry["tokens_per_correct"] = ratio_interval(list(map(float, tokens)), correct, seed)
        entries.append(entry)
    return entries


def summarize_sets(rows: Rows, seed: int = 0) -> list[dict[str, Any]]:
    """`summarize` the rows of each question set, with its name as "dataset"; empty where there is one set."""
    sets: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("dataset") is not None:
            sets.setdefault(row["dataset"], []).append(row)
    return [{"dataset": name, **entry} for name, group in sets.items() for entry in summarize(group, seed)]


def compare_rows(rows: Rows, baseline: str, seed: int = 0) -> list[dict[str, Any]]:
    """Compare every method with the baseline; see `compare`.

    Compared are the measures that say so, the evidence found, and the tokens read (`reading_column`).
    Evidence is not compared where single sentences may have been read, since it is labelled by passages.
    """
    reading = reading_column(rows)
    evidence = evidence_measure([name for name in row if row[name] is not None] for row in rows)
    names = [reading if measure.name == "tokens_used" else measure.name for measure in compared_measures()]
    names += [evidence.name] if evidence is not None and evidence.name not in names else []
    values: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for key, group in _groups(rows).items():
        values[key] = {}
        for name in names:
            found = {row["question_id"]: float(row[name]) for row in group if row.get(name) is not None}
            parted = key[0] in PARTED and evidence is not None and name == evidence.name
            if found and not parted:
                values[key][name] = found
    return compare(values, baseline, seed)


def compare(
    values: Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]], baseline: str, seed: int = 0
) -> list[dict[str, Any]]:
    """Compare every method with the baseline at the same budget, question by question.

    Keys: method, baseline, budget_tokens, measure, n (questions with both values), difference (mean), low,
    high, p_value (two-sided), q_value (corrected over all rows of this list).
    """
    rows: list[dict[str, Any]] = []
    for (method, budget), by_measure in values.items():
        reference = values.get((baseline, budget))
        if method == baseline or reference is None:
            continue
        for measure, by_question in by_measure.items():
            other = reference.get(measure, {})
            shared = [q for q in by_question if q in other]
            if not shared:
                continue
            difference = np.array([by_question[q] - other[q] for q in shared])
            interval = mean_interval(difference.tolist(), seed)
            rows.append(
                {
                    "method": method,
                    "baseline": baseline,
                    "budget_tokens": budget,
                    "measure": measure,
                    "n": len(shared),
                    "difference": interval["mean"],
                    "low": interval["low"],
                    "high": interval["high"],
                    "p_value": _sign_flip(difference, seed),
                }
            )
    if rows:
        corrected = scipy.stats.false_discovery_control([r["p_value"] for r in rows], method="bh")
        for row, q in zip(rows, corrected, strict=True):
            row["q_value"] = float(q)
    return rows


def _sign_flip(difference: FloatArray, seed: int) -> float:
    """Return the two-sided p-value of a mean difference of zero, by flipping signs; zeros are left out."""
    moved = difference[difference != 0]
    if moved.size < 2:  # both signs are equally extreme
        return 1.0
    outcome = scipy.stats.permutation_test(
        (moved,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=4999,
        batch=max(1, 10**7 // moved.size),  # bounds the memory
        alternative="two-sided",
        rng=np.random.default_rng(seed),
    )
    return float(outcome.pvalue)


# Tokens at matched quality ----------------------------------------------------------------------------------


def tokens_to_reach(tokens: FloatArray, quality: FloatArray, target: FloatArray) -> FloatArray:
    """Return the tokens at which curves reach their targets, by linear interpolation.

    Curves are made non-decreasing first: a budget that costs more tokens for less quality is never needed.
    Below the smallest budget, the tokens used there are an upper bound.

    tokens, quality: shape (r, b); r curves of b points each, in order of the budget.
    target: shape (r,)

    NaN where a curve stays below its target.
    """
    reached = np.maximum.accumulate(quality, axis=1)
    spent = np.maximum.accumulate(tokens, axis=1)
    enough = reached >= target[:, None] - 1e-12
    at = enough.argmax(axis=1)
    rows, before = np.arange(len(target)), np.maximum(at - 1, 0)
    high, low = reached[rows, at], reached[rows, before]
    rise = np.where(high > low, high - low, 1.0)
    share = np.where(at > 0, np.clip((target - low) / rise, 0.0, 1.0), 1.0)
    found = spent[rows, before] + share * (spent[rows, at] - spent[rows, before])
    return np.where(enough.any(axis=1), found, np.nan)


def matched_tokens(
    curves: Mapping[str, tuple[FloatArray, FloatArray]], baseline: str, at: int, seed: int = 0
) -> list[dict[str, Any]]:
    """Return the tokens that each method needs for the quality of the baseline at one of its budgets.

    Intervals resample questions, the same for all methods, with the target recomputed in each resample.

    curves: each of shape (questions, budgets), the same questions for every method; budgets ascending.
    at: which budget of the baseline, counted from 0.

    Keys: method, target (quality), tokens {mean, low, high} and share {mean, low, high} of the baseline's
    tokens, or None where the target is not reached; `reached`, the share of resamples that reach it;
    `at_most`, whether the smallest budget reaches it already. An end of an interval is None where it is
    beyond the curve, and a share where the baseline reads nothing and the method reads something.

    Raises `InputError` for an unknown baseline or curves over different questions.
    """
    if baseline not in curves:
        raise InputError(f"baseline '{baseline}' is not among {', '.join(curves)}")
    sizes = {quality.shape[0] for pair in curves.values() for quality in pair}
    if len(sizes) != 1 or 0 in sizes:
        raise InputError("every method needs the same questions, at least one")
    count = sizes.pop()
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES_MATCHED)
    weights = np.vstack([np.full(count, 1.0), draws]) / count  # the first row is the data itself
    reference, target = ((weights @ values[:, [at]])[:, 0] for values in curves[baseline])
    entries = []
    for method, (tokens, quality) in curves.items():
        mean_quality = weights @ quality
        needed = reference  # the baseline's own budget, whatever a smaller one reaches
        if method != baseline:
            needed = tokens_to_reach(weights @ tokens, mean_quality, target)
        shares = np.where(needed > 0, np.inf, 1.0)
        shares[np.isnan(needed)] = np.nan
        np.divide(needed, reference, out=shares, where=reference > 0)
        entries.append(
            {
                "method": method,
                "baseline": baseline,
                "target": float(target[0]),
                "tokens": _interval(needed),
                "share": _interval(shares),
                "reached": float(np.mean(~np.isnan(needed[1:]))),
                "at_most": bool(method != baseline and mean_quality[0, 0] >= target[0] - 1e-12),
            }
        )
    return entries


def _interval(values: FloatArray) -> dict[str, float | None] | None:
    """Interval of the data (the first value) and its resamples."""
    if not np.isfinite(values[0]):
        return None
    resampled = np.where(np.isnan(values[1:]), np.inf, values[1:])
    low, high = map(float, np.quantile(resampled, [0.025, 0.975], method="inverted_cdf"))
    ends = {"low": low if math.isfinite(low) else None, "high": high if math.isfinite(high) else None}
    return {"mean": float(values[0]), **ends}


def matched_rows(
    rows: Rows, baseline: str, measure: str = "gold_recall", seed: int = 0
) -> list[dict[str, Any]]:
    """Return `matched_tokens` of ledger rows at every budget of the baseline; empty if nothing matches.

    Tokens are those of `reading_column`, which each entry names as `tokens_measure`. A question without the
    measure or without tokens in some row is left out of all.
    """
    reading = reading_column(rows)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    budgets = sorted({int(row["budget_tokens"]) for row in rows})
    table = {
        (row["method"], int(row["budget_tokens"]), row["question_id"]): row
        for row in rows
        if row.get(measure) is not None and row.get(reading) is not None
    }
    questions = dict.fromkeys(row["question_id"] for row in rows)
    known = [q for q in questions if all((m, b, q) in table for m in methods for b in budgets)]
    if not known or len(budgets) < 2 or len(methods) < 2:
        return []

    def column(method: str, name: str) -> FloatArray:
        return np.array([[float(table[method, b, q][name]) for b in budgets] for q in known])

    curves = {m: (column(m, reading), column(m, measure)) for m in methods}
    return [
        {**entry, "measure": measure, "tokens_measure": reading, "budget_tokens": budget, "n": len(known)}
        for k, budget in enumerate(budgets)
        for entry in matched_tokens(curves, baseline, k, seed)
    ]


# Warnings ---------------------------------------------------------------------------------------------------

#: With fewer questions, one moves a mean by more than most methods differ, and intervals are rough.
FEW_QUESTIONS = 30
_COUNTED = 300  # passages of an index whose tokens are counted for a mean


def part_read(run: Mapping[str, Any]) -> str:
    """Return a note where evidence may be read in part, since sentences were chosen; else ""."""
    parted = [name for name in run.get("methods") or () if name in PARTED]
    if run.get("settings", {}).get("units", "passages") == "passages" and not parted:
        return ""
    named = f" (by {' and '.join(parted)})" if parted else ""
    return (
        f"Where sentences are read{named}, a gold passage counts as found if any of it is read: compare with "
        "whole passages by whether the answer is in the context, and by answers."
    )


def by_twins(rows: Rows) -> str:
    """Return a note with the questions whose evidence was found in twins of gold passages; else ""."""
    named = {row["question_id"] for row in rows if row.get("gold_ids")}
    found = set()
    for row in rows:
        gold, recall = set(row.get("gold_ids") or ()), row.get("gold_recall")
        itself = len(gold & set(row.get("selected_ids") or ()))
        if recall is not None and itself < round(recall * len(gold)):
            found.add(row["question_id"])
    if not found:
        return ""
    return (
        "A near-duplicate, or a newer version, of a gold passage was read in its place, and counts as "
        f"found: by some method at {len(found)} of {plural(len(named), 'question')}."
    )


def proven_yet_behind(summary: Rows, comparisons: Rows) -> list[str]:
    """Return a sentence for every method that is proven optimal and finds clearly less evidence.

    Clearly: the paired 95 % interval of the difference from the baseline lies below 0.
    """
    measure = evidence_measure(summary)
    if measure is None:
        return []
    scale, unit = (100, " points") if measure.kind == "rate" else (1, "")
    differences = {
        (c["method"], c.get("budget_tokens")): c for c in comparisons if c["measure"] == measure.name
    }
    behind: dict[tuple[str, str], list[str]] = {}
    for entry in summary:
        budget, share = entry.get("budget_tokens"), entry.get("optimal_share")
        found = differences.get((entry["method"], budget))
        if share and found is not None and found.get("high") is not None and found["high"] < 0:
            less, low, high = (abs(scale * found[end]) for end in ("difference", "high", "low"))
            behind.setdefault((entry["method"], found["baseline"]), []).append(
                f"{less:.1f}{unit} less ({low:.1f} to {high:.1f}) at {budget} tokens, with {share:.0%} of "
                "its selections proven optimal"
            )
    return [
        f"{method} finds clearly less evidence than {baseline}: {'; '.join(parts)}. The proof is about the "
        "program, not about the evidence: nothing scores higher by these settings, yet they ask for other "
        "passages than the questions need. Try another preset or policy, relevance fitted on your "
        "questions (mio-rag policy fit relevance), or a larger budget."
        for (method, baseline), parts in behind.items()
    ]


def too_few(summary: Rows, comparisons: Rows) -> list[str]:
    """Return a warning where too few questions name their evidence to compare methods."""
    measure = evidence_measure(summary)
    counts = [int(c["n"]) for c in comparisons if measure is not None and c["measure"] == measure.name]
    asked = max(counts, default=0)
    if not 0 < asked < FEW_QUESTIONS:
        return []
    return [
        f"with {plural(asked, 'question')} methods cannot be told apart: one more that is found moves a mean "
        f"by {100 / asked:.0f} points. Run {FEW_QUESTIONS} or more before relying on a difference."
    ]
