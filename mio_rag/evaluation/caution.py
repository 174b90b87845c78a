"""What must be said beside a proof: that it is about the program, and not about the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mio_rag.context import TokenCounter
from mio_rag.formulations.numbers import plural
from mio_rag.measures import evidence_measure
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.selection.selector import Selector
from mio_rag.selection.units import is_tight

__all__ = [
    "FEW_QUESTIONS", "FITTING", "PARTED", "part_read", "proven_yet_behind", "read_otherwise", "too_few",
]  # fmt: skip

#: The method that reads what `ask` reads by itself.
FITTING = "exact:auto"
#: Methods that may read single sentences: their evidence, which is labelled by passages, does not compare.
PARTED = (FITTING, "exact:sentences")

Records = Sequence[Mapping[str, Any]]

#: With fewer, one question moves a mean by more than most methods differ, and intervals are rough.
FEW_QUESTIONS = 30
_SOME = 300  # passages of an index whose tokens are counted, for a mean


def part_read(run: Mapping[str, Any]) -> str:
    """That evidence may be read in part, where sentences were chosen; blank where passages were."""
    parted = [name for name in run.get("methods") or () if name in PARTED]
    if run.get("settings", {}).get("units", "passages") == "passages" and not parted:
        return ""
    named = f" (by {' and '.join(parted)})" if parted else ""
    return (
        f"Where sentences are read{named}, a gold passage counts as found if any of it is read: compare with "
        "whole passages by whether the answer is in the context, and by answers."
    )


def read_otherwise(
    selector: Selector, budgets: Sequence[int], indexes: Sequence[CorpusIndex], counter: TokenCounter
) -> str:
    """That `ask` reads sentences where this run chose passages; blank where it does not.

    Parameters
    ----------
    selector : Selector
        Of a run whose units nobody has named.
    budgets : sequence of int
    indexes : sequence of CorpusIndex
    counter : TokenCounter
        The reader's tokenizer; it counts a few hundred passages.
    """
    if selector.units != "passages" or selector.about_passages() or selector.relevance_model == "given":
        return ""
    some = [p.text for index in indexes for p in index.passages[:: max(1, len(index) // _SOME)]]
    mean = sum(counter.count(some)) / max(1, len(some))
    tight = [f"{budget:,}" for budget in sorted(budgets) if is_tight(mean, budget)]
    if not tight:
        return ""
    return (
        f"Passages have {mean:.0f} tokens here in the mean: with a budget of {' or '.join(tight)} "
        "`mio-rag ask` mostly reads single sentences, and this run chose whole passages, by which "
        "evidence is labelled. To measure what ask reads, add exact:auto to --methods."
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
