"""Answer rates and tokens of every row with intervals, and the tokens at the answer rates of fused top-k."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.repetition.elsewhere import chosen_elsewhere, mixture
from benchmarks.repetition.study import Columns

#: What everybody reads: fused top-k, windows apart.
REFERENCE = "fused, apart"
_AT = (256, 512, 1024)  # budgets of the reference at which tokens are compared
_DRAWS = 2000


def summarize(rows: Mapping[str, Columns], seed: int) -> dict[str, Any]:
    """Means with 95 % bootstrap intervals over questions, and ratios of tokens at equal answer rates."""
    rng = np.random.default_rng(seed)
    asked = len(next(iter(rows[REFERENCE].values()))["answer"])
    draws = rng.integers(0, asked, (_DRAWS, asked))
    figures = {
        name: {
            budget: {key: interval(np.array(column[key]), draws) for key in ("answer", "tokens")}
            | {
                "proven": round(float(np.mean(column["proven"])), 4),
                "median_milliseconds": round(float(np.median(column["milliseconds"])), 2),
            }
            for budget, column in columns.items()
        }
        for name, columns in rows.items()
    }
    return {
        "rows": figures,
        "tokens_at_equal_answers": _ratios(rows, draws),
        "chosen_on_other_questions": chosen_elsewhere(rows, REFERENCE, _AT, seed),
    }


def interval(values: np.ndarray[Any, Any], draws: np.ndarray[Any, Any]) -> dict[str, float]:
    """The mean of values with the 95 % interval over resamples."""
    low, high = np.quantile(values[draws].mean(axis=1), (0.025, 0.975))
    return {
        "mean": round(float(values.mean()), 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
    }


def _ratios(rows: Mapping[str, Columns], draws: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Tokens that each row needs for the answer rate of the reference at its budgets, as a share of its.

    Between two budgets of a row the straight line counts: any point of it is reached by reading some
    questions at the one budget and the rest at the other. None where the row never answers as many.
    """
    found: dict[str, Any] = {}
    every = np.arange(draws.shape[1])
    for name, columns in rows.items():
        found[name] = {}
        for budget in _AT:
            reference = rows[REFERENCE][str(budget)]
            value = _ratio(columns, reference, every)
            sampled = [_ratio(columns, reference, draw) for draw in draws[:500]]
            known = [np.inf if one is None else one for one in sampled]
            low, high = np.quantile(known, (0.025, 0.975), method="nearest")
            found[name][str(budget)] = {
                "ratio": None if value is None else round(value, 4),
                "low": None if np.isinf(low) else round(float(low), 4),
                "high": None if np.isinf(high) else round(float(high), 4),
            }
    return found


def _ratio(columns: Columns, reference: dict[str, list[float]], draw: np.ndarray[Any, Any]) -> float | None:
    aim = float(np.array(reference["answer"])[draw].mean())
    paid = float(np.array(reference["tokens"])[draw].mean())
    tokens = np.array([np.array(c["tokens"])[draw].mean() for c in columns.values()])
    rates = np.array([np.array(c["answer"])[draw].mean() for c in columns.values()])
    weights, reached = mixture(tokens, rates, aim)
    return float(weights @ tokens) / paid if reached else None


def in_order(results: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Corpora by set, size of a window and overlap, numbers as numbers."""

    def parts(name: str) -> list[int | str]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]

    return {name: results[name] for name in sorted(results, key=parts)}


def table(results: Mapping[str, dict[str, Any]]) -> str:
    """For people: answer rate and tokens by budget, then the ratios."""
    shown = ("256", "512", "1024")
    lines = []
    for corpus, given in results.items():
        lines += [corpus, ""]
        head = "".join(f"{f'answers/tokens at {b}':>24}" for b in shown)
        lines.append(f"{'':38}{head}   tokens at the answers of {REFERENCE} at {', '.join(shown)}")
        for name, row in given["rows"].items():
            cells = "".join(
                f"{row[b]['answer']['mean']:>15.3f} /{row[b]['tokens']['mean']:>7.0f}" for b in shown
            )
            ratios = given["tokens_at_equal_answers"][name]
            said = "  ".join(_told(ratios[b]) for b in shown)
            lines.append(f"{name:38}{cells}   {said}")
        for units, chosen in given.get("chosen_on_other_questions", {}).items():
            lines.append(f"{units}, price and budget chosen on other questions: tokens (and answers gained)")
            said = "; ".join(
                f"{b}: {_spread(at['tokens'])} ({_spread(at['answers'], '+')})" for b, at in chosen.items()
            )
            lines.append(f"    {said}")
        if "model_answers" in given:
            lines += _answers(given["model_answers"])
        lines.append("")
    return "\n".join(lines)


def _answers(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{found['generator']}, {found['questions']} questions, {found['budget_tokens']} tokens"]
    for name, means in found["means"].items():
        f1, held, tokens = means["f1"], means["answer"]["mean"], means["prompt_tokens"]["mean"]
        said = f"token F1 {_spread(f1)}, answer read {held:.2f}, prompt tokens {tokens:.0f}"
        lines.append(f"    {name:34}{said}")
    return [*lines, *(f"    {pair}: {_spread(f1, '+')}" for pair, f1 in found["f1"].items())]


def _told(ratio: Mapping[str, float | None]) -> str:
    ends = [("never" if v is None else f"{v:.2f}") for v in (ratio["ratio"], ratio["low"], ratio["high"])]
    return f"{ends[0]} ({ends[1]}-{ends[2]})"


def _spread(value: Mapping[str, float], sign: str = "") -> str:
    return f"{value['mean']:{sign}.2f} [{value['low']:{sign}.2f} to {value['high']:{sign}.2f}]"
