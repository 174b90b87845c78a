"""What must be said beside a proof: that it is about the program, and not about the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mio_rag.measures import evidence_measure

__all__ = ["proven_yet_behind"]

Records = Sequence[Mapping[str, Any]]


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
    differences = {(c["method"], c["budget_tokens"]): c for c in comparisons if c["measure"] == measure.name}
    behind: dict[tuple[str, str], list[str]] = {}
    for entry in summary:
        found = differences.get((entry["method"], entry["budget_tokens"]))
        if not entry.get("optimal_share") or found is None or found.get("high") is None or found["high"] >= 0:
            continue
        points, low, high = (abs(100 * found[end]) for end in ("difference", "high", "low"))
        behind.setdefault((entry["method"], found["baseline"]), []).append(
            f"{points:.1f} points less ({low:.1f} to {high:.1f}) at {entry['budget_tokens']} tokens, with "
            f"{entry['optimal_share']:.0%} of its selections proven optimal"
        )
    return [
        f"{method} finds clearly less evidence than {baseline}: {'; '.join(told)}. The proof is about the "
        "program, not about the evidence: nothing scores higher by these settings, yet they ask for other "
        "passages than the questions need. Try another relevance model (--relevance), weights that "
        "are tuned on your questions (mio-rag tune), or a larger budget."
        for (method, baseline), told in behind.items()
    ]
