"""What the commands ``mio-rag route`` print for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mio_rag.cli.show.tables import Field, print_fields
from mio_rag.cli.terminal import Terminal

if TYPE_CHECKING:
    from mio_rag.control.router.model import Router
    from mio_rag.evaluation.tiers import Labelled

__all__ = ["print_labels", "print_router", "router_json"]


def print_labels(console: Terminal, found: Labelled) -> None:
    """Each tier: how many questions need it, how often it does, and what it costs."""
    table = found.table
    console.print(
        f"{len(table)} questions labelled; left out: {found.unlabelled} without gold, "
        f"{found.failed} on which a tier failed"
    )
    needed = np.bincount(table.labels, minlength=len(table.tiers))
    costs = table.costs()
    print_fields(
        console,
        [Field("tier", [tier.name for tier in table.tiers], "left")],
        [
            Field("needed by", [f"{count} ({count / len(table):.0%})" for count in needed]),
            Field("does for", [f"{share:.3f}" for share in table.worked.mean(axis=0)]),
            Field("tokens", [f"{tokens:.0f}" for tokens in costs[:, 0]]),
            Field("seconds", [f"{seconds:.2f}" for seconds in costs[:, 1]]),
        ],
    )
    if none := found.unanswered:
        does = "reads the evidence of" if table.by == ("evidence",) else "answers"
        rule = table.outcomes.provenance.get("unanswered")
        console.print(
            f"no tier {does} {none} ({none / len(table):.0%}) of the questions; which tier these are counted "
            f"under follows the rule '{rule}' (--unanswered)"
        )


def print_router(console: Terminal, router: Router) -> None:
    """Tiers and their use, then everything that was measured out of fold."""
    said, measures = router.provenance, router.measures
    console.print(f"{router.kind} router of {said.get('questions', '?')} questions, by {router.features}")
    console.print(
        f"labels by {', '.join(said.get('by', []))}; sets: "
        + ", ".join(f"{count} {name}" for name, count in said.get("sets", {}).items()),
        style="dim",
    )
    if router.correction is not None:
        console.print(
            f"searches with no cosine of {router.correction.below:.3f} are weak: {router.correction.more} "
            "passages more are read; what follows was measured without them"
        )
    print_fields(
        console,
        [Field("tier", [tier.name for tier in router.tiers], "left")],
        [
            Field("depth", [str(tier.depth) for tier in router.tiers]),
            Field("context", [f"{tier.context} {tier.unit}" for tier in router.tiers]),
            Field("answer", [str(tier.new_tokens) for tier in router.tiers]),
            Field("chosen", [f"{share:.0%}" for share in router.shares]),
            Field("tokens", [f"{tokens:.0f}" for tokens in router.costs[:, 0]]),
        ],
    )
    if not measures:
        return
    console.print(
        f"\nout of fold: the right tier for {measures['accuracy']:.3f} of the questions (always the most "
        f"frequent: {measures['most_frequent_label']:.3f}); calibration error "
        f"{measures['calibration_error']:.3f}; several tiers plausible for {measures['unsure_share']:.0%}"
    )
    places = {f"tier:{tier.name}": place for place, tier in enumerate(router.tiers)}
    # A file keeps names in alphabetical order: it shows what training showed.
    order = sorted(measures["rows"], key=lambda name: (not name.startswith("router"), places.get(name, 99)))
    rows = {name: measures["rows"][name] for name in order}
    first = ["worked", "prompt_tokens", "tokens_used", "gold_recall"]
    columns = sorted(rows["router"], key=lambda name: first.index(name) if name in first else len(first))
    if "confusion" in measures:
        _print_confusion(console, [tier.name for tier in router.tiers], measures["confusion"])
    print_fields(
        console,
        [Field("", list(rows), "left")],
        [
            Field(name.replace("_", " "), [_number(row.get(name)) for row in rows.values()])
            for name in columns
        ],
    )
    if (found := measures.get("against_mixture")) is None:  # of an earlier release
        return
    verdict = (
        "more than" if found["low"] > 0 else "less than" if found["high"] < 0 else "not clearly more than"
    )
    routed = rows["router"]["worked"]
    console.print(
        f"the router does for {routed:.3f}, {verdict} the best mixture of fixed tiers at its tokens "
        f"({routed - found['mean']:.3f}): {found['mean']:+.3f}, 95 % interval {found['low']:+.3f} to "
        f"{found['high']:+.3f}"
    )


def _print_confusion(console: Terminal, tiers: list[str], confusion: list[list[int]]) -> None:
    """How many questions that need a tier are given which."""
    print_fields(
        console,
        [Field("needed", tiers, "left")],
        [
            Field(f"chosen:\n{name}", [str(row[place]) for row in confusion])
            for place, name in enumerate(tiers)
        ],
    )
    console.print()


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 2 else f"{value:.3f}"


def router_json(router: Router) -> dict[str, Any]:
    """Plain data: all but the arrays."""
    return {
        "kind": router.kind,
        "features": router.features,
        "embedder": router.embedder,
        "tiers": [tier.to_dict() for tier in router.tiers],
        "shares": list(router.shares),
        "costs": router.costs.tolist(),
        "plausible": router.plausible,
        "confidence": router.confidence,
        "correction": None if router.correction is None else dict(vars(router.correction)),
        "measures": dict(router.measures),
        "provenance": dict(router.provenance),
    }
