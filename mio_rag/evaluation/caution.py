"""What must be said beside a proof: that it is about the program, and not about the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mio_rag.formulations.numbers import plural
from mio_rag.measures import evidence_measure

__all__ = ["FEW_QUESTIONS", "part_read", "proven_yet_behind", "too_few"]

Records = Sequence[Mapping[str, Any]]

#: With fewer, one question moves a mean by more than most methods differ, and intervals are rough.
FEW_QUESTIONS = 30


def part_read(run: Mapping[str, Any]) -> str:
    """That evidence may be read in part, where sentences were chosen; blank where passages were."""
    if run.get("settings", {}).get("units", "passages") == "passages":
        return ""
    return (
        "Where sentences are read, a gold passage counts as found if any of it is read: compare with whole "
        "passages by whether the answer is in the context, and by answers."
    )


def proven_yet_behind(summary: Records, comparisons: Records) -> list[str]:
    """A sentence for every method that is proven optimal and finds clearly less evidence than the baseline.

    Clearly: the paired 95 % interval lies below 0.

    Parameters
    ----------
    summary, comparisons : sequences of mappings
        As `mio_rag.evaluation.summary` makes them.
    """
    measure = evidence_measure(summary)
    if measure is None:
        return []
    scale, unit = (100, " points") if measure.kind == "rate" else (1, "")
    tested = [c for c in comparisons if c["measure"] == measure.name]
    differences = {(c["method"], c.get("budget_tokens")): c for c in tested}
    behind: dict[tuple[str, str], list[str]] = {}
    for entry in summary:
        budget, share = entry.get("budget_tokens"), entry.get("optimal_share")
        found = differences.get((entry["method"], budget))
        if not share or found is None or found.get("high") is None or found["high"] >= 0:
            continue
        less, low, high = (abs(scale * found[end]) for end in ("difference", "high", "low"))
        behind.setdefault((entry["method"], found["baseline"]), []).append(
            f"{less:.1f}{unit} less ({low:.1f} to {high:.1f}) at {budget} tokens, with {share:.0%} of its "
            "selections proven optimal"
        )
    return [
        f"{method} finds clearly less evidence than {baseline}: {'; '.join(told)}. The proof is about the "
        "program, not about the evidence: nothing scores higher by these settings, yet they ask for other "
        "passages than the questions need. Try another preset (--preset), relevance fitted on your "
        "questions (mio-rag calibrate), or a larger budget."
        for (method, baseline), told in behind.items()
    ]


def too_few(summary: Records, comparisons: Records) -> list[str]:
    """That the questions that name their evidence are too few to tell methods apart, where they are."""
    measure = evidence_measure(summary)
    counts = [int(c["n"]) for c in comparisons if measure is not None and c["measure"] == measure.name]
    asked = max(counts, default=0)
    if not 0 < asked < FEW_QUESTIONS:
        return []
    return [
        f"with {plural(asked, 'question')} methods cannot be told apart: one more that is found moves a mean "
        f"by {100 / asked:.0f} points. Run {FEW_QUESTIONS} or more before relying on a difference."
    ]
