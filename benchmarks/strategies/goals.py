"""The goals of the study, each with the numbers that it is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.strategies.simulate import OTHERS, action_of
from benchmarks.strategies.table import BASE

__all__ = ["OURS", "goals"]

OURS = "linucb"
_NORMAL = 1.959963984540054


def goals(found: Mapping[str, Any]) -> dict[str, Any]:
    """Each goal, what was measured, and whether it is reached."""
    policies, last = found["policies"], str(found["questions_of_an_order"])
    ours, uniform = policies[OURS], policies["uniform"]
    everyone = policies[f"fixed: {action_of([BASE, *OTHERS])}"]
    told: dict[str, Any] = {}
    for name in ("regret", "regret_to_best_fixed"):
        share = ours[name][last]["mean"] / uniform[name][last]["mean"]
        told[f"{name}_share_of_uniform"] = {"share": share, "reached": bool(share <= 1 / 3)}
    behind = {name: _paired(ours, each) for name, each in policies.items() if name != OURS}
    learners = {name: each for name, each in behind.items() if not _informed(name)}
    told["below_every_rival"] = {
        "less_regret_than": sorted(name for name, each in behind.items() if each["high"] < 0),
        "no_difference": sorted(name for name, each in behind.items() if each["low"] <= 0 <= each["high"]),
        "more_regret_than": sorted(name for name, each in behind.items() if each["low"] > 0),
        "reached": all(each["low"] <= 0 for each in learners.values()),
        "reached_for_fixed_sets_too": all(each["low"] <= 0 for each in behind.values()),
    }
    told["difference_of_regret"] = behind
    equal = found["equal_cost"]
    told["evidence_at_equal_cost"] = {
        key: equal[key]
        for key in ("tokens", "recall", "fixed_mixture", "beyond_fixed", "oracle", "oracle_margin")
    }
    best = max(equal["question_alone"].items(), key=lambda item: item[1]["recall"], default=None)
    told["evidence_at_equal_cost"] |= {
        "best_that_sees_the_question": None if best is None else {"learner": best[0], **best[1]},
        "more": bool(equal["beyond_fixed"]["low"] > 0),
        # Who is told the gold of every set on all other questions finds no more than the best fixed set.
        "nobody_could": bool(best is None or best[1]["beyond_fixed"]["low"] <= 0),
    }
    told["share_of_all"] = {
        "cost": ours["late_tokens"] / everyone["late_tokens"],
        "recall": ours["late_recall"] / everyone["late_recall"],
    }
    told["share_of_all"]["reached"] = bool(
        told["share_of_all"]["cost"] <= 0.4 and told["share_of_all"]["recall"] >= 0.99
    )
    if "choosing_ms" in found:
        told["choosing_ms"] = {**found["choosing_ms"], "reached": bool(found["choosing_ms"]["median"] < 1)}
    return told


def _informed(name: str) -> bool:
    """Whether a row knows what no policy can: the best set in hindsight, a fixed one, or the gold."""
    return name.startswith("fixed:") or "told the gold" in name


def _paired(ours: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Our regret less the other's on the same orders, with a 95 % interval."""
    gap = np.array(ours["last_regret"]) - np.array(other["last_regret"])
    half = _NORMAL * float(gap.std(ddof=1)) / len(gap) ** 0.5 if len(gap) > 1 else 0.0
    middle = float(gap.mean())
    return {"mean": middle, "low": middle - half, "high": middle + half}
