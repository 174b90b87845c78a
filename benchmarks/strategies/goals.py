"""The goals of the study in both regimes, each with the numbers that it is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.strategies.simulate import OTHERS, action_of
from benchmarks.strategies.table import BASE

OURS = "linucb"
_NORMAL = 1.959963984540054


def judge(found: dict[str, Any]) -> None:
    """Add the goals of both regimes to a report."""
    found["goals"] = goals(found)
    found["told_the_gold"]["goals"] = goals(when_told(found))


def when_told(found: Mapping[str, Any]) -> dict[str, Any]:
    """The report as if it were about policies that are told the gold; fixed sets stay as they are."""
    told = found["told_the_gold"]
    fixed = {name: each for name, each in found["policies"].items() if name.startswith("fixed:")}
    here = {name: each for name, each in found.items() if name not in ("choosing_ms", "goals")}
    return {**here, **told, "policies": {**told["policies"], **fixed}}


def goals(found: Mapping[str, Any]) -> dict[str, Any]:
    """Each goal, what was measured, and whether it is reached."""
    policies, last = found["policies"], str(found["questions_of_an_order"])
    ours, uniform = policies[OURS], policies["uniform"]
    everyone = policies[f"fixed: {action_of([BASE, *OTHERS])}"]
    told: dict[str, Any] = {}
    for name in ("regret", "regret_to_best_fixed"):
        share = ours[name][last]["mean"] / uniform[name][last]["mean"]
        told[f"{name}_share_of_uniform"] = {
            "share": share,
            "reached": bool(share <= 1 / 3),
            "less_a_third_of_uniform": _beyond_a_third(found, name),
        }
    behind = {name: _paired(ours, each) for name, each in policies.items() if name != OURS}
    learners = {name: each for name, each in behind.items() if not _informed(name)}
    told["below_every_rival"] = {
        "less_regret_than": sorted(name for name, each in behind.items() if each["high"] < 0),
        "no_difference": sorted(name for name, each in behind.items() if each["low"] <= 0 <= each["high"]),
        "more_regret_than": sorted(name for name, each in behind.items() if each["low"] > 0),
        "reached": all(each["low"] <= 0 for each in learners.values()),
        "reached_for_fixed_sets_too": all(each["low"] <= 0 for each in behind.values()),
        # That nobody has less is not that all have more.
        "below_each_that_learns": all(each["high"] < 0 for each in learners.values()),
        "below_each_fixed_set": all(e["high"] < 0 for n, e in behind.items() if n.startswith("fixed:")),
    }
    told["difference_of_regret"] = behind
    equal = found["equal_cost"]
    told["evidence_at_equal_cost"] = {
        key: equal[key]
        for key in ("tokens", "recall", "fixed_mixture", "beyond_fixed", "oracle", "oracle_margin")
    }
    best = max(
        equal["question_alone"].items(),
        key=lambda item: (item[1]["recall"], -item[1]["tokens"], item[0]),
        default=None,
    )
    told["evidence_at_equal_cost"] |= {
        "best_that_sees_the_question": None if best is None else {"learner": best[0], **best[1]},
        "more": bool(equal["beyond_fixed"]["low"] > 0),
        # Of learners that are told the gold of every set on all other questions.
        "no_learner_found_more": bool(best is None or best[1]["beyond_fixed"]["mean"] <= 0),
    }
    told["share_of_all"] = {
        "cost": ours["late_tokens"] / everyone["late_tokens"],
        "recall": ours["late_recall"] / everyone["late_recall"],
    }
    told["share_of_all"]["reached"] = bool(
        told["share_of_all"]["cost"] <= 0.4 and told["share_of_all"]["recall"] >= 0.99
    )
    if "first_times" in found:
        told["on_first_times"] = _first(found["first_times"]["policies"])
    if "choosing_ms" in found:
        told["choosing_ms"] = {**found["choosing_ms"], "reached": bool(found["choosing_ms"]["median"] < 1)}
    return told


def in_words(told: Mapping[str, Any]) -> list[str]:
    """The goals of a report as sentences, each with the numbers that it is judged by."""
    found, last = told["goals"], str(told["questions_of_an_order"])
    one, each = found["regret_to_best_fixed_share_of_uniform"], found["regret_share_of_uniform"]
    rivals, equal, share = (
        found[name] for name in ("below_every_rival", "evidence_at_equal_cost", "share_of_all")
    )
    beaten = told["beaten"][told["best_fixed"]]
    lines = [
        f"at most a third of uniform's regret after {last} questions: {_met(one)} against the best set for "
        f"all in hindsight ({one['share']:.2f}), {_met(each)} against the best set of each question "
        f"({each['share']:.2f}; on {beaten['questions']} of {told['questions']} questions is any set worth "
        f"more than {told['best_fixed']})",
        f"no rival that learns has certainly less regret: {_met(rivals)}; that holds of fixed sets too: "
        f"{_yes(rivals['reached_for_fixed_sets_too'])}",
        f"certainly less regret than each that learns: {_yes(rivals['below_each_that_learns'])}; than each "
        f"fixed set, the best in hindsight too: {_yes(rivals['below_each_fixed_set'])}",
        *(
            f"  {words}: {'; '.join(rivals[key]) or 'none'}"
            for key, words in (
                ("less_regret_than", "certainly less regret than"),
                ("no_difference", "no certain difference from"),
                ("more_regret_than", "certainly more regret than"),
            )
        ),
        f"more evidence than fixed sets at equal cost: {'met' if equal['more'] else 'not met'}, "
        f"{equal['recall']:.4f} and {equal['fixed_mixture']:.4f} at {equal['tokens']:.1f} tokens, "
        f"{_said(equal['beyond_fixed'])}; who knows every outcome is {equal['oracle_margin']:+.4f} "
        "above",
    ]
    if told["actions"][told["best_fixed"]]["tokens"] == 0:
        lines.append(
            f"  {told['best_fixed']}, the best fixed set, costs no token: whoever spends none searches for "
            "the question alone, so that at equal cost with it nobody can have more evidence (the oracle's "
            "margin is 0)"
        )
    best = equal["best_that_sees_the_question"]
    if best is not None:
        beyond = best["beyond_fixed"]
        lines.append(
            f"  the best learner that is told the gold of all other questions: {beyond['mean']:+.5f} "
            f"[{beyond['low']:+.5f}, {beyond['high']:+.5f}] beyond fixed sets"
        )
    lines.append(
        f"at most 40 % of the cost of all at no less than 99 % of their recall: {_met(share)}, "
        f"{share['cost']:.1%} at {share['recall']:.1%}"
    )
    if "on_first_times" in found:
        first = found["on_first_times"]
        lines.append(
            f"worth more than the best fixed set where a question comes up first: "
            f"{'met' if first['more'] else 'not met'}, {_said(first['beyond_best_fixed'])} a question over "
            f"orders, {_said(first['by_question'])} over questions; recall at equal cost "
            f"{_said(first['evidence'])}"
        )
        lines += [
            f"  there certainly {words}: {'; '.join(first[key]) or 'none'}"
            for key, words in (("more_than", "worth more than"), ("less_than", "worth less than"))
        ]
    if "choosing_ms" in found:
        took = found["choosing_ms"]
        lines.append(
            f"choosing below 1 ms: {_met(took)}, {took['median']:.2f} ms without the file (median; 95th "
            f"percentile {took['p95']:.2f})"
        )
    return lines


def _first(policies: Mapping[str, Any]) -> dict[str, Any]:
    """What ours is worth where questions come up first, and beyond whom."""
    ours = policies[OURS]
    more = {name: each["ours_more"] for name, each in policies.items() if name != OURS}
    return {
        "beyond_best_fixed": ours["first"],
        "by_question": ours["by_question"],
        "evidence": ours["evidence"],
        "more": bool(ours["first"]["low"] > 0),
        "more_than": sorted(name for name, each in more.items() if each["low"] > 0),
        "less_than": sorted(name for name, each in more.items() if each["high"] < 0),
    }


def _said(found: Mapping[str, float]) -> str:
    return f"{found['mean']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}]"


def _yes(found: bool) -> str:
    return "yes" if found else "no"


def _met(goal: Mapping[str, Any]) -> str:
    return "met" if goal["reached"] else "not met"


def _informed(name: str) -> bool:
    """Whether a row knows what no policy can: the best set in hindsight, a fixed one, or the gold."""
    return name.startswith("fixed:") or "told the gold" in name


def _beyond_a_third(found: Mapping[str, Any], name: str) -> dict[str, float]:
    """Our regret less a third of uniform's on the same orders, with a 95 % interval."""
    policies, kept = found["policies"], "last_regret"
    best = policies[f"fixed: best fixed in hindsight ({found['best_fixed']})"]
    ground = np.array(best[kept]) if name == "regret_to_best_fixed" else 0.0
    ours, uniform = (np.array(policies[each][kept]) - ground for each in (OURS, "uniform"))
    return _interval(ours - uniform / 3)


def _paired(ours: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Our regret less the other's on the same orders, with a 95 % interval."""
    return _interval(np.array(ours["last_regret"]) - np.array(other["last_regret"]))


def _interval(gap: NDArray[np.float64]) -> dict[str, float]:
    half = _NORMAL * float(gap.std(ddof=1)) / len(gap) ** 0.5 if len(gap) > 1 else 0.0
    middle = float(gap.mean())
    return {"mean": middle, "low": middle - half, "high": middle + half}
