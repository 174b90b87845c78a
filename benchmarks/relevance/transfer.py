"""Weights fitted on one set, used on another: recall, tokens and calibration of every pair of sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.relevance.methods import LINK_BENEFIT
from benchmarks.relevance.models import halves, load
from benchmarks.relevance.summary import needed
from mio_rag.corpora.load import load_dataset
from mio_rag.evaluation.contenders import make_methods
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.evaluation.tune import Reading, Setting, readings
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel, calibration_measures
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.types import Question

#: The best ranking without any fitted weights, and weights of all sets together (their fit halves).
RANKING, ALL, OTHERS = "best ranking", "all sets", "all others"
OWN = "itself"


def transfer(
    data: Path,
    indexes: Path,
    names: Sequence[str],
    models: Path,
    study: Mapping[str, Any],
    *,
    budgets: Sequence[int],
    limit: int,
    seed: int,
    time_limit: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Every model on the report half of every set.

    Parameters
    ----------
    models : Path
        Folder with default.json and NAME/links.json, NAME/others.json.
    study : mapping
        Results of the relevance study by set, for its best rankings.
    limit : int
        Questions of each set.

    Returns
    -------
    dict
        set -> {"questions", "models": {fitted on: {"256": {recall, tokens, against_ranking}, "ece", ...}}}
    """
    own = {name: models / name / "links.json" for name in names}
    found: dict[str, Any] = {}
    for name in names:
        dataset = load_dataset(data / name)
        questions = halves(dataset, seed, limit).report
        index = CorpusIndex.load(indexes / name)
        pools = Retriever(index, link_hops=1).retrieve_many([q.text for q in questions])
        plain = Retriever(index).retrieve_many([q.text for q in questions])
        given = {key: load(path) for key, path in own.items() if path.is_file()}
        given |= {ALL: load(models / "default.json")}
        others = models / name / "others.json"
        given |= {OTHERS: load(others)} if others.is_file() else {}
        entries = {}
        ranked = {b: _ranked(study[name]["best_baseline"][str(b)], questions, plain, b) for b in budgets}
        entries[RANKING] = {str(b): _entry(rows, None) for b, rows in ranked.items()}
        for key, model in given.items():
            rows = {b: _linked(model, questions, pools, b, time_limit) for b in budgets}
            entries[key] = {str(b): _entry(rows[b], ranked[b]) for b in budgets}
            if questions[0].gold_ids:
                p = np.concatenate([model.probabilities(pool) for pool in pools])
                entries[key]["calibration"] = calibration_measures(np.clip(p, 0, 1), needed(questions, pools))
            progress(f"{name}: weights of {key}")
        if questions[0].gold_ids:
            cosine = np.concatenate([np.clip(pool.relevance, 0, 1) for pool in pools])
            entries[RANKING]["calibration"] = calibration_measures(cosine, needed(questions, pools))
        found[name] = {"questions": len(questions), "models": entries}
    return found


def _ranked(
    method: str, questions: Sequence[Question], pools: Sequence[Candidates], budget: int
) -> list[Reading]:
    rule = make_methods([method], Selector.raw(redundancy_weight=0.0, passage_penalty=0.0))[0]
    scored = [rule.scored(pool) for pool in pools]
    return readings(Setting.of(rule.selector, budget), rule.selector, questions, scored)


def _linked(
    model: RelevanceModel,
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    budget: int,
    time_limit: float,
) -> list[Reading]:
    chooser = Selector.raw(
        redundancy_weight=0.0,
        passage_penalty=0.0,
        link_benefit=LINK_BENEFIT,
        options=SolveOptions(time_limit_seconds=time_limit, relative_gap=1e-3),
    )
    valued = [replace(pool, relevance=model.probabilities(pool)) for pool in pools]
    return readings(Setting.of(chooser, budget), chooser, questions, valued)


def _entry(rows: Sequence[Reading], reference: Sequence[Reading] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "recall": mean_interval([r.recall for r in rows]),
        "tokens": float(np.mean([r.tokens for r in rows])),
    }
    if reference is not None:
        pairs = zip(rows, reference, strict=True)
        entry["against_ranking"] = mean_interval([a.recall - b.recall for a, b in pairs])
    return entry


def table(found: Mapping[str, Any], budget: int) -> str:
    """Gain in recall over the best ranking, by what weights were fitted on (rows) and used on (columns)."""
    rows = list(dict.fromkeys(key for entry in found.values() for key in entry["models"]))
    lines = [f"budget {budget}; * the interval lies above zero, ! below"]
    lines.append(" " * 18 + "".join(f"{name[:15]:>17}" for name in found))
    for row in rows:
        cells = []
        for name, entry in found.items():
            one = entry["models"].get(row, {}).get(str(budget))
            if one is None:
                cells.append("-")
            elif "against_ranking" not in one:
                cells.append(f"{one['recall']['mean']:.3f}")
            else:
                gain = one["against_ranking"]
                mark = "*" if gain["low"] > 0 else "!" if gain["high"] < 0 else ""
                cells.append(
                    f"{'[' if row == name else ''}{gain['mean']:+.3f}{mark}{']' if row == name else ''}"
                )
        lines.append(f"{row[:17]:<18}" + "".join(f"{cell:>17}" for cell in cells))
    lines.append("calibration error (all candidates):")
    for row in rows:
        cells = [
            f"{entry['models'][row]['calibration']['ece']:.4f}"
            if "calibration" in entry["models"].get(row, {})
            else "-"
            for entry in found.values()
        ]
        label = "cosine as it is" if row == RANKING else row
        lines.append(f"{label[:17]:<18}" + "".join(f"{cell:>17}" for cell in cells))
    return "\n".join(lines)
