"""How often routers name the right tier, beside the most frequent label: no more than what was published.

Two kinds of accuracy: out of fold, which is what a router that is used would have; and as it was published,
on the held-out questions by which the best epoch of training is chosen, which flatters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.router.rows import ROUTERS, at_tiers, groups_of
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.learning.router import FitSettings, Table, fit_once, measured, out_of_fold
from mio_rag.learning.router_model import Utility
from mio_rag.session.tiers import PUBLISHED

#: What accuracy needs of the study's ladders.
LADDERS = ("published", "fixed")
_WHOLE = tuple(f"k{tier.depth}" for tier in PUBLISHED)
_SEEDS = 10  # of networks, trained as published


def accuracies(tables: Mapping[str, Mapping[str, Table]], seed: int) -> dict[str, Any]:
    """What is right of every kind of router, at the published tiers and at as many whole passages.

    Parameters
    ----------
    tables : mapping
        Set -> ladder -> table; routers learn from all of them, by folds.
    """
    group = groups_of(tables, list(tables), "")
    whole = at_tiers(group.ladders["fixed"], _WHOLE)
    asked = {"published tiers": group.ladders["published"], "whole passages": whole}
    return {name: _ladder(table, seed) for name, table in asked.items()}


def _ladder(table: Table, seed: int) -> dict[str, Any]:
    names, labels, m = np.array(table.outcomes.sets), table.labels, len(table.tiers)
    frequent = labels == np.bincount(labels, minlength=m).argmax()
    by_set = {name: labels[names == name] for name in dict.fromkeys(table.outcomes.sets)}
    routers = {}
    for name, (kind, features) in ROUTERS.items():
        found = out_of_fold(table, FitSettings(kind=kind, features=features, seed=seed))
        right = (found.choice == labels).astype(float)
        routers[name] = {
            "accuracy": mean_interval(right.tolist()),
            "against the most frequent": mean_interval((right - frequent).tolist()),
            "sets": {one: float(right[names == one].mean()) for one in by_set},
            "against the best mixture": measured(found, Utility())["against_mixture"],
        }
    best = [_as_published(table, seed + k) for k in range(_SEEDS)]
    return {
        "tiers": [tier.to_dict() for tier in table.tiers],
        "questions": {name: len(found) for name, found in by_set.items()},
        "labels": np.bincount(labels, minlength=m).tolist(),
        "most_frequent": float(frequent.mean()),
        "most_frequent_of_its_set": float(
            sum(np.bincount(one).max() for one in by_set.values()) / len(labels)
        ),
        "routers": routers,
        "as_published": {
            "seeds": _SEEDS,
            "mean": float(np.mean(best)),
            "least": min(best),
            "most": max(best),
        },
        "sha256": table.sha256,
    }


def _as_published(table: Table, seed: int) -> float:
    """Accuracy on the held-out questions, at the epoch that is best on them."""
    history = fit_once(table, FitSettings(kind="mlp", features="question", seed=seed)).history
    assert history is not None
    return history.accuracy[history.best]


def accuracy_table(results: Mapping[str, Any]) -> str:
    """The figures as text."""
    lines = [results["about"]]
    for name, found in results["ladders"].items():
        told = ", ".join(f"{count} {one}" for one, count in found["questions"].items())
        tiers = " ".join(f"{t['name']} {c}" for t, c in zip(found["tiers"], found["labels"], strict=True))
        lines += [
            "",
            f"{name}: {sum(found['labels'])} questions ({told}); labels {tiers}",
            f"  {'always the most frequent label':32} {found['most_frequent']:.3f}",
            f"  {'that of its set':32} {found['most_frequent_of_its_set']:.3f}",
        ]
        lines += [
            f"  {router:32} {_told(entry['accuracy'], '')}, against the most frequent "
            f"{_told(entry['against the most frequent'])}, against fixed tiers at equal tokens "
            f"{_told(entry['against the best mixture'])}"
            for router, entry in found["routers"].items()
        ]
        best = found["as_published"]
        lines.append(
            f"  {'network, on what chose its epoch':32} {best['mean']:.3f}, mean of {best['seeds']} "
            f"seeds ({best['least']:.3f} to {best['most']:.3f})"
        )
    return "\n".join(lines)


def _told(interval: Mapping[str, float], sign: str = "+") -> str:
    mean, low, high = (f"{interval[end]:{sign}.3f}" for end in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"
