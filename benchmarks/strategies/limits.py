"""What follows from the table for any policy: how far a third of uniform's loss is from what can be had.

With L the worth that the best fixed set loses to the best set of each question, and U what uniform loses:

- who chooses without regard to the question loses at least L in expectation, since no fixed set, and so no
  mixture of them, is worth more on these questions; that is L / U of what uniform loses;
- who is to lose U / 3 must earn L - U / 3 of the oracle's margin by choosing after the question;
- learners that are told the gold of all *other* questions are held against that, by the upper ends of their
  95 % intervals: this is about new questions, and about learners like these;
- who is told the gold of every set after each question, and remembers it, loses only where a question comes
  first. Questions come again in these orders, so that this is far below a third: nothing is proven about
  policies that hear so much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import binomtest

from benchmarks.strategies.table import BASE

_NORMAL = 1.959963984540054


def limits(found: Mapping[str, Any], price: float) -> dict[str, Any]:
    """The limits of a report, from what it holds.

    Parameters
    ----------
    price : float
        Of a token.
    """
    best, questions, n = found["best_fixed"], found["questions"], found["questions_of_an_order"]
    policies = found["policies"]
    lost = np.array(policies[f"fixed: best fixed in hindsight ({best})"]["last_regret"])
    uniform = np.array(policies["uniform"]["last_regret"])
    share = float(lost.mean() / uniform.mean())
    # Of a ratio of means over the same orders: its first-order variance.
    half = _NORMAL * float((lost - share * uniform).std(ddof=1)) / len(lost) ** 0.5 / float(uniform.mean())
    needed = max(0.0, float((lost - uniform / 3).mean())) / n
    beaten = found["beaten"][best]
    known = binomtest(beaten["questions"], questions).proportion_ci(0.95, method="exact")
    of_each = beaten["mean"] * questions / beaten["questions"] if beaten["questions"] else 0.0
    first = beaten["mean"] * questions * (1 - (1 - 1 / questions) ** n)
    return {
        "alike_share_of_uniform": {"share": share, "low": share - half, "high": share + half},
        "needed_a_question": needed,
        "needed_share_of_oracle": needed * n / float(lost.mean()) if lost.mean() > 0 else 0.0,
        "questions_that_gain": {
            "count": beaten["questions"],
            "share": beaten["questions"] / questions,
            "low": float(known.low),
            "high": float(known.high),
        },
        # For so much a question that gains; the interval is that of how many do.
        "oracle_margin": {
            "mean": beaten["mean"],
            "low": float(known.low) * of_each,
            "high": float(known.high) * of_each,
        },
        "told_of_others": _told(found, price),
        "told_and_remembers": {"regret": first, "share_of_uniform": first / float(uniform.mean())},
    }


def _told(found: Mapping[str, Any], price: float) -> list[dict[str, float]]:
    """What the best learner at each cost is worth beyond the best fixed set, with its interval."""
    worth = found["actions"][found["best_fixed"]]["utility"]
    alone = found["actions"][BASE]["utility"] - worth
    equal = found["equal_cost"]
    learners = equal["question_alone"].values()
    best = min(learners, key=lambda one: (-one["recall"], one["tokens"]), default=None)
    kept = {"at_most": equal["tokens"], "fixed_mixture": equal["fixed_mixture"]}
    rows = [] if best is None else [{**kept, **best}]
    told = []
    for row in [*rows, *found.get("other_costs", [])]:
        ground = row["fixed_mixture"] - price * row["tokens"] - worth
        beyond = {name: float(ground + row["beyond_fixed"][name]) for name in ("mean", "low", "high")}
        if row["tokens"] == 0:  # no model was asked: it searched for the question alone
            beyond = dict.fromkeys(beyond, float(alone))
        told.append({"at_most": float(row["at_most"]), "tokens": float(row["tokens"]), **beyond})
    return told


def limits_in_words(told: Mapping[str, Any]) -> list[str]:
    """The limits of a report as sentences, each with the numbers that it is judged by."""
    found, best, last = told["limits"], told["best_fixed"], told["questions_of_an_order"]
    alike, gain, margin = (
        found[name] for name in ("alike_share_of_uniform", "questions_that_gain", "oracle_margin")
    )
    memory, needed = found["told_and_remembers"], found["needed_a_question"]
    lines = [
        f"who treats all questions alike loses at least {alike['share']:.3f} [{alike['low']:.3f}, "
        f"{alike['high']:.3f}] of what uniform loses to the best of each question, in expectation: no fixed "
        f"set is worth more than {best}",
        f"who knows every outcome earns {margin['mean']:+.4f} [{margin['low']:+.4f}, {margin['high']:+.4f}] "
        f"a question beyond {best}, on {gain['count']} of {told['questions']} questions ({gain['share']:.1%} "
        f"[{gain['low']:.1%}, {gain['high']:.1%}], exact; the margin's interval is that of how many gain)",
        f"to lose a third of what uniform loses takes {found['needed_share_of_oracle']:.0%} of that margin, "
        f"{needed:+.4f} a question",
    ]
    lines += [
        f"  told the gold of all other questions, {each['tokens']:.1f} of at most {each['at_most']:.1f} "
        f"tokens: {each['mean']:+.4f} "
        f"[{each['low']:+.4f}, {each['high']:+.4f}], {'below' if each['high'] < needed else 'not below'} that"
        for each in found["told_of_others"]
    ]
    return [
        *lines,
        f"not excluded: who is told the gold of every set after each question, and remembers it, loses "
        f"{memory['regret']:.1f} in {last} questions ({memory['share_of_uniform']:.2f} of uniform's), since "
        f"each comes {last / told['questions']:.1f} times",
    ]
