"""What was aimed at, and whether it was reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.router.rows import COST, Group, Row
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.learning.router import WORKED

_ACCURACY = 0.72  # published
_SAVED = 0.5  # share of tokens against k = 5
_LOST = 0.005  # exact match, or share of questions with all evidence
_SETS = ("hotpotqa", "squad2")
_FEW = 100  # questions, below which no goal is said to be met
_DECIDING = 0.001  # seconds
_OURS = ("price", "sentences", "utility", "both")
_FOLDS = 5


def goals_of(groups: Mapping[str, Any], deciding: Mapping[str, float], by: str) -> list[dict[str, str]]:
    """Each goal with what was found: "met", "not met", or "open" where the questions are too few to tell.

    The first group is that of the sets that routers learn from.
    """
    group = next(iter(groups.values()))
    rows = group["rows"]
    published = rows["published router"]
    found = [
        _goal(
            f"the published accuracy of {_ACCURACY:.2f} is reached",
            published["accuracy"] >= _ACCURACY,
            f"{published['accuracy']:.3f} (the most frequent label {published['most_frequent_label']:.3f})",
            group["questions"],
        ),
        _goal(
            "the published router saves tokens against k = 5",
            published["against k5"]["token_reduction"] > 0,
            f"{published['against k5']['token_reduction']:.0%}, "
            f"{WORKED} {_told(published['against k5'][WORKED])}",
            group["questions"],
        ),
    ]
    found += [_half(name, group, by) for name in _SETS if name in group["sets"]]
    found.append(_above_rivals(rows, group["questions"]))
    slowest = max(deciding, key=lambda kind: deciding[kind])
    found.append(
        _goal(
            "deciding takes less than 1 ms",
            deciding[slowest] < _DECIDING,
            f"the slowest kind, {slowest}, takes {1e3 * deciding[slowest]:.3f} ms",
            _FEW,
        )
    )
    return found


def _goal(goal: str, met: bool, found: str, questions: int) -> dict[str, str]:
    verdict = "open" if questions < _FEW else "met" if met else "not met"
    few = f" ({questions} questions: too few to tell)" if questions < _FEW else ""
    return {"goal": goal, "met": verdict, "found": found + few}


def _told(interval: Mapping[str, float]) -> str:
    return f"{interval['mean']:+.3f} ({interval['low']:+.3f} to {interval['high']:+.3f})"


def chosen_elsewhere(rows: Sequence[Row], group: Group, by: str) -> dict[str, Any]:
    """On the sets of the goals: what the setting does that is best on *other* questions of the set.

    By folds, the row of ours that saves half of the tokens of k = 5 and does best on the rest of the set
    decides (the one that saves most, where none saves so much). So no question takes part in the choice of
    the setting that it is counted for.
    """
    outcomes, measure = group.outcomes, "exact_match" if by == "answers" else WORKED
    base = next(row for row in rows if row.name == "k5")
    ours = [row for row in rows if row.kind in _OURS]
    read, before = np.array([row.values(outcomes, COST) for row in ours]), base.values(outcomes, COST)
    did = np.array([row.values(outcomes, measure) for row in ours]) - base.values(outcomes, measure)
    found = {}
    for name in _SETS:
        here = np.flatnonzero(np.array(outcomes.sets) == name)
        if len(here) < 2 * _FOLDS:
            continue
        places = np.zeros(len(here), dtype=np.intp)
        for fold in range(_FOLDS):
            asked = np.arange(len(here)) % _FOLDS == fold
            rest = here[~asked]
            saved = 1 - read[:, rest].mean(axis=1) / before[rest].mean()
            gained = np.where(saved >= _SAVED, did[:, rest].mean(axis=1), -np.inf)
            best = np.flatnonzero(gained == gained.max())  # all of them where none saves so much
            places[asked] = best[np.argmax(saved[best])]
        found[name] = {
            "difference": mean_interval(did[places, here].tolist()),
            "saved": float(1 - read[places, here].mean() / before[here].mean()),
            "settings": dict(Counter(ours[k].name for k in places).most_common()),
        }
    return found


def _half(name: str, group: Mapping[str, Any], by: str) -> dict[str, str]:
    """Half of the tokens on a set at no worse quality, by a setting that is chosen on its other questions.

    Beside it, in hindsight: our row of the best mean on these questions.
    """
    measure = "exact match against k5" if by == "answers" else "against k5"
    rows, questions = group["rows"], group["sets"][name]
    goal = f"{name}: half of the tokens of k = 5 at no more than .5 points less"
    if (chosen := group["chosen"].get(name)) is None:
        return _goal(goal, False, "", 0)
    ours = [
        (row, entry["sets"][name])
        for row, entry in rows.items()
        if entry["kind"] in _OURS
        and entry["sets"][name]["saved"] >= _SAVED
        and entry["sets"][name].get(measure)
    ]
    told = f"by settings chosen on other questions {chosen['saved']:.0%}, {_told(chosen['difference'])}"
    if ours:
        best, entry = max(ours, key=lambda pair: float(pair[1][measure]["mean"]))
        told += f"; in hindsight {best} {entry['saved']:.0%}, {_told(entry[measure])}"
    else:
        told += "; no row of ours saves so much there"
    few = "" if questions >= _FEW else f"; {questions} questions: too few to say more than the mean"
    saved, difference = chosen["saved"] >= _SAVED, chosen["difference"]
    held = saved and difference["mean"] >= -_LOST
    proven = saved and difference["low"] >= -_LOST and questions >= _FEW
    verdict = "met" if proven else "in mean" if held else "not met"
    return {"goal": goal, "met": verdict, "found": told + few}


def _above_rivals(rows: Mapping[str, Any], questions: int) -> dict[str, str]:
    """Ours against the best of tiers and label routers at equal tokens or fewer."""
    goal = "above every rival at equal tokens"
    rivals = {k: e for k, e in rows.items() if e["kind"] in ("tier", "fixed k", "router")}
    ours = {k: e for k, e in rows.items() if e["kind"] in _OURS and e.get("shown") is not False}
    beaten = {
        rival: max(
            (
                (entry[WORKED]["mean"] - other[WORKED]["mean"], name)
                for name, entry in ours.items()
                if entry["prompt_tokens"]["mean"] <= other["prompt_tokens"]["mean"]
            ),
            default=(-1.0, "none"),
        )
        for rival, other in rivals.items()
    }
    above = [rival for rival, (gain, _) in beaten.items() if gain > 0]
    rest = ", ".join(rival for rival in rivals if rival not in above)
    told = f"at no more tokens one of ours does more than {len(above)} of {len(rivals)} rivals"
    return _goal(goal, len(above) == len(rivals), told + (f"; not than {rest}" if rest else ""), questions)
