"""Weights and source caps tuned on one half of a set, for rankings as for us; reported on the other half.

Rankings choose their score, and at most how many passages of one document they take. Our program chooses what
relevance is (the set's own probabilities or the shipped ones, the cosine, the fused score) and all weights.
Both see the same questions while choosing, by the same goal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.relevance.methods import BASELINES, LINK_BENEFIT
from benchmarks.relevance.models import Halves
from mio_rag.evaluation.contenders import make_methods
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.evaluation.tune import Goal, Reading, Setting, TuneSettings, readings, tune
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.types import Question

_CAPS = (None, 1, 2, 3)
_VARY = (
    "redundancy_weight",
    "redundancy_by_relevance",
    "passage_penalty",
    "token_price",
    "link_benefit",
    "max_per_source",
)


def tuned(
    split: Halves,
    index: CorpusIndex,
    model: RelevanceModel,
    storage: Path,
    *,
    budgets: Sequence[int],
    trials: int,
    time_limit: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Tune on `split.fit`, report on `split.report`, at each budget.

    Returns
    -------
    dict
        budget -> {"ranking", "ours", "untuned"}: recall, tokens, what was chosen; ours and untuned with the
        paired difference to the tuned ranking.
    """
    halves = {"fit": split.fit, "report": split.report}
    plain = {k: Retriever(index).retrieve_many([q.text for q in qs]) for k, qs in halves.items()}
    linked = {
        k: Retriever(index, link_hops=1).retrieve_many([q.text for q in qs]) for k, qs in halves.items()
    }
    options = SolveOptions(time_limit_seconds=time_limit, relative_gap=1e-3)
    start = Selector.raw(
        redundancy_weight=0.0, passage_penalty=0.0, link_benefit=LINK_BENEFIT, options=options
    )
    found = {}
    for budget in budgets:
        goal = Goal(budget)
        rank, rule, cap = _best_ranking(split.fit, plain["fit"], goal)
        reference = _ranked(rule, cap, split.report, plain["report"], budget)
        best: tuple[float, str, Setting] | None = None
        for name, value in _values(model).items():
            searched = tune(
                split.fit,
                [value(pool) for pool in linked["fit"]],
                TuneSettings(goal, start, None, _VARY, trials, max(1, trials // 2), 2),
                storage,
                label=f"{split.name}/{name}/{model.name}",
            )
            inside = readings(searched.setting, start, split.fit, [value(p) for p in linked["fit"]])
            worth = _worth(goal, inside)
            progress(f"{split.name} at {budget}: {name} {worth:.3f} on the half to fit")
            if best is None or worth > best[0]:
                best = worth, name, searched.setting
        assert best is not None
        ours, source, setting = best[0], best[1], best[2]
        value = _values(model)[source]
        rows = readings(setting, start, split.report, [value(p) for p in linked["report"]])
        plainly = _values(model)["probability"]
        untuned = readings(
            Setting.of(start, budget), start, split.report, [plainly(p) for p in linked["report"]]
        )
        found[str(budget)] = {
            "ranking": _entry(reference, None) | {"method": rank, "max_per_source": cap},
            "ours": _entry(rows, reference)
            | {"relevance": source, "setting": asdict(setting), "worth_inside": ours},
            "untuned": _entry(untuned, reference),
        }
    return found


def _values(model: RelevanceModel) -> Mapping[str, Callable[[Candidates], Candidates]]:
    """What relevance may be."""

    def fused(pool: Candidates) -> Candidates:
        score = pool.scores["fused"]
        return replace(pool, relevance=score / max(float(score.max(initial=0.0)), 1e-12))

    return {
        "probability": lambda pool: replace(pool, relevance=model.probabilities(pool)),
        "cosine": lambda pool: pool,
        "fused": fused,
    }


def _best_ranking(
    questions: Sequence[Question], pools: Sequence[Candidates], goal: Goal
) -> tuple[str, Any, int | None]:
    """The ranking and source cap that are worth most on these questions."""
    scored = []
    for name in BASELINES:
        rule = make_methods([name], Selector.raw(redundancy_weight=0.0, passage_penalty=0.0))[0]
        for cap in _CAPS:
            rows = _ranked(rule, cap, questions, pools, goal.budget_tokens)
            scored.append((_worth(goal, rows), name, rule, cap))
    _, name, rule, cap = max(scored, key=lambda entry: entry[0])
    return name, rule, cap


def _ranked(
    rule: Any, cap: int | None, questions: Sequence[Question], pools: Sequence[Candidates], budget: int
) -> list[Reading]:
    setting = replace(Setting.of(rule.selector, budget), max_per_source=cap)
    return readings(setting, rule.selector, questions, [rule.scored(pool) for pool in pools])


def _worth(goal: Goal, rows: Sequence[Reading]) -> float:
    return goal.worth(float(np.mean([r.recall for r in rows])), float(np.mean([r.tokens for r in rows])))


def _entry(rows: Sequence[Reading], reference: Sequence[Reading] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "recall": mean_interval([r.recall for r in rows]),
        "tokens": float(np.mean([r.tokens for r in rows])),
    }
    if reference is not None:
        pairs = zip(rows, reference, strict=True)
        entry["against_ranking"] = mean_interval([a.recall - b.recall for a, b in pairs])
    return entry


def table(results: Mapping[str, Any]) -> str:
    """One block a set."""
    lines = []
    for name, entry in results.items():
        lines.append(f"{name}: {entry['questions']} questions, tuned on {entry['fitted_on']} others")
        for budget, found in entry["budgets"].items():
            rank = found["ranking"]
            cap = "" if rank["max_per_source"] is None else f", {rank['max_per_source']} a document"
            label = f"{rank['method']}{cap}"
            lines.append(
                f"  {budget:>5} {'ranking, tuned':<15} {rank['recall']['mean']:.3f} at {rank['tokens']:4.0f}"
                f"  ({label})"
            )
            for key, shown in (("untuned", "ours, untuned"), ("ours", "ours, tuned")):
                one = found[key]
                gain = one["against_ranking"]
                chosen = ""
                if key == "ours":
                    kept = {k: v for k, v in one["setting"].items() if v and k != "budget_tokens"}
                    brief = ", ".join(f"{k} {v:.3g}" if v is not True else k for k, v in kept.items())
                    chosen = f"  ({one['relevance']}; {brief})"
                lines.append(
                    f"  {budget:>5} {shown:<15} {one['recall']['mean']:.3f} at {one['tokens']:4.0f}  "
                    f"{gain['mean']:+.3f} ({gain['low']:+.3f} to {gain['high']:+.3f}){chosen}"
                )
    return "\n".join(lines)
