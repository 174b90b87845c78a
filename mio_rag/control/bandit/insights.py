"""What a bandit has learned, in numbers and in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.control.bandit.context import TYPES
from mio_rag.control.bandit.learned import Learned, tally
from mio_rag.control.bandit.regions import net, pooled
from mio_rag.control.bandit.store import EventLog
from mio_rag.control.bandit.strategist import folded, known_settings

__all__ = ["insights", "stats", "stats_of"]

_NORMAL = 1.959963984540054
_LEAST = 10  # questions before something is said of a type


def stats_of(path: Path) -> dict[str, Any]:
    """`stats` of a file.

    Raises
    ------
    InputError
        If it is no log of a bandit.
    """
    log = EventLog(path)
    settings, strategies = known_settings(log)
    with log.reading() as events:
        learned = folded(Learned(settings, strategies), events)
    return {"about": log.about, **stats(learned)}


def stats(learned: Learned) -> dict[str, Any]:
    """Plain data: for each strategy how often it ran and what it brought, and the state of the whole."""
    n = learned.questions
    each = {}
    for name in (*learned.settings.base, *learned.strategies):
        kept = learned.tallies.get(name) or tally()
        ran = kept["ran"]
        always = name not in learned.models
        mean = {key: kept[key] / ran if ran else None for key in ("tokens", "seconds")}
        # The others are held against those that always run: of these nothing is known to be added.
        mean |= {key: kept[key] / ran if ran and not always else None for key in ("added", "own", "reward")}
        each[name] = {
            "always": always,
            "ran": int(ran),
            "selection_rate": ran / n if n else None,
            "share_exploring": kept["explored"] / ran if ran else None,
            "contribution_rate": mean["added"],
            "contribution": mean["own"],
            "reward": mean["reward"],
            "tokens": mean["tokens"],
            "seconds": mean["seconds"],
            "rating": kept["rated"],
        }
    probation = {
        kind: [s for s, p in zip(learned.strategies, learned.pruned(kind), strict=True) if p]
        for kind in TYPES
    }
    mean_regret = learned.regret / n if n else None
    return {
        "questions": n,
        "events": learned.seq,
        "strategies": each,
        "entropy_bits": learned.entropy(),
        "convergence": learned.convergence(),
        "regret": learned.regret,
        "regret_a_question": mean_regret,
        "changes": learned.changes,
        "probation": {kind: names for kind, names in probation.items() if names},
        "insights": insights(learned),
    }


def insights(learned: Learned) -> list[str]:
    """What strategies add by type of question, net of cost, as sentences with numbers; the largest first."""
    said: list[tuple[float, str]] = []
    for key, kept in {**_pooled(learned), **learned.regions}.items():
        count, mean, squares = net(kept, learned.token_price)
        if count < _LEAST:
            continue
        kind, _, name = key.partition("/")
        half = _NORMAL * float(np.sqrt(squares / (count - 1) / count))
        if abs(mean) <= half:
            continue
        worth = "worth its cost" if mean > 0 else "not worth its cost"
        shown = f"{mean:+.3f} \u00b1 {half:.3f} a question net, n = {count:.0f}"
        said.append((-abs(mean), f"{kind} questions: {name} is {worth}, {shown}"))
    for pair, (twice, smaller) in learned.overlaps.items():
        if smaller > 0.05:
            share = min(1.0, twice / smaller)
            said.append((0.0, f"{pair.replace('+', ' and ')} find {share:.0%} of the smaller part twice"))
    return [text for _, text in sorted(said)]


def _pooled(learned: Learned) -> dict[str, list[float]]:
    """Regions over all types, of strategies that ran for several."""
    found = {}
    for name in learned.strategies:
        parts = [kept for key, kept in learned.regions.items() if key.endswith(f"/{name}")]
        if len(parts) > 1:
            found[f"all/{name}"] = pooled(parts)
    return found
