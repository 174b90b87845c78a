"""Controllers with a language model: quality against cost, and whether calibration helps.

The harness asks every controller the same questions, with and without a corpus. Calibrated processes never
act on questions that they were calibrated on: what is estimated from the traces of one fold acts on the
other.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.compare import Row, draw, summarized
from benchmarks.questions import load_sets
from benchmarks.runner import Measured, at_least, interval_text, note, text_table
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import closed_book, shuffle_choices
from mio_rag.errors import InputError
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.evaluation.statistics import compare_rows
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.generation import Generator, make_generator
from mio_rag.learning.mdp_calibration import calibrate
from mio_rag.policies.setup import ControlSettings
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.session.budget import Limits
from mio_rag.session.trace import read_traces

_STEPS = 3
_MODEL = RetrievalMDP(horizon=_STEPS)  # the published process, planning for the steps that it has
_CALIBRATED = ("mdp", "mdp@confidence")
_COMMON = (
    "mdp",
    "mdp@confidence",
    "always-reason",
    "threshold",
    "random",
    "fixed-3",
    "fixed-0",
    "always-reason@confidence",
)
_COSTS = ("tokens", "lm_calls", "retrieval_calls", "steps")


@dataclass(frozen=True)
class Asked:
    """Questions, their index (None: closed book), the largest block of evidence, and the controllers."""

    dataset: Dataset
    index: CorpusIndex | None
    budget_tokens: int
    controllers: tuple[str, ...]

    @property
    def quality(self) -> str:
        """Name of the measure."""
        return "accuracy" if self.dataset.questions[0].choices else "token_f1"


def measure(given: argparse.Namespace) -> Measured:
    """Ask, calibrate by folds, ask again, and compare."""
    at_least(given, limit=2, closed_limit=0)
    if not given.generator:
        raise InputError("controllers need a model: give --generator")
    generator = make_generator(given.generator)
    try:
        report = {asked.dataset.name: _measured(asked, generator, given) for asked in _asked(given)}
    finally:
        generator.close()
    table = "\n\n".join(_table(name, found) for name, found in report.items())
    last = list(report.values())[-1]
    data = {"generator": generator.name, "process": _MODEL.to_dict(), "results": report}
    return Measured(
        data, table, partial(draw, last["controllers"], cost="tokens", qualities=(last["measure"],))
    )


def _asked(given: argparse.Namespace) -> list[Asked]:
    found = []
    if given.data is not None and given.closed_limit:
        dataset = shuffle_choices(closed_book(given.data / given.closed), given.seed)
        order = np.random.default_rng(given.seed).permutation(len(dataset.questions))[: given.closed_limit]
        drawn = dataclasses.replace(dataset, questions=tuple(dataset.questions[i] for i in order))
        found.append(Asked(drawn, None, 256, _COMMON))
    more = ("always-retrieve", "fixed-1", "fixed-3@confidence")
    found += [
        Asked(one.first(given.limit), one.index, given.budget_tokens, (*_COMMON, *more))
        for one in load_sets(given)
    ]
    return found


def _measured(asked: Asked, generator: Generator, given: argparse.Namespace) -> dict[str, Any]:
    work, name = given.work / asked.dataset.name, asked.dataset.name

    def run(
        questions: Dataset, controllers: Sequence[str], model: RetrievalMDP, folder: str
    ) -> list[dict[str, Any]]:
        settings = EvaluationSettings(
            methods=(),
            budgets=(asked.budget_tokens,),
            baseline=controllers[0],
            max_tokens=24,
            seed=given.seed,
            controllers=tuple(controllers),
            # Seconds bind nothing: on a busy machine they would cut runs by accident.
            control=ControlSettings(model=model, limits=Limits(steps=_STEPS, seconds=1e6), note_tokens=32),
            closed_book=asked.index is None,
        )
        note(f"{name}: {folder}")
        return evaluate(
            questions, asked.index, generator, settings, work / folder, resume=(work / folder).is_dir()
        ).rows

    # Only some models give the probabilities that confidence needs.
    controllers = [name for name in asked.controllers if given.calibrate or "@confidence" not in name]
    rows = run(asked.dataset, controllers, _MODEL, "given")
    traces = read_traces(work / "given", ("uncertainty",), "of a decision process")
    estimates = []
    for fold in (0, 1) if given.calibrate else ():
        inside = {q.id for k, q in enumerate(asked.dataset.questions) if k % 2 == fold}
        learned = [trace for trace in traces if trace.question_id in inside]
        # Costs by tokens: seconds are those of a busy machine.
        found = calibrate(learned, _MODEL, gauge="confidence", cost_by="tokens")
        others = tuple(q for k, q in enumerate(asked.dataset.questions) if k % 2 != fold)
        held = dataclasses.replace(asked.dataset, questions=others)
        for label, model in (("calibrated", found.model), ("by bins", found.by_bins)):
            made = run(held, _CALIBRATED, model, f"{label.replace(' ', '-')}-{fold}")
            rows += [{**row, "method": f"{row['method']}, {label}"} for row in made]
        estimates.append({"model": found.model.to_dict(), "by_bins": found.by_bins.to_dict()})
    rows = [{**row, "tokens": row["prompt_tokens"] + row["completion_tokens"]} for row in rows]
    by_method: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["question_id"]] = row
    ids = [q.id for q in asked.dataset.questions]
    compared = [
        Row(
            method,
            "process" if method.startswith("mdp") else "rule",
            {m: np.array([float(of[i][m] or 0) for i in ids]) for m in (asked.quality, *_COSTS)},
        )
        for method, of in by_method.items()
    ]
    against = {
        baseline: [row for row in compare_rows(rows, baseline, given.seed) if row["measure"] == asked.quality]
        for baseline in _CALIBRATED
        if baseline in by_method
    }
    return {
        "questions": len(ids), "measure": asked.quality, "budget_tokens": asked.budget_tokens,
        "closed_book": asked.index is None, "controllers": summarized(compared), "against": against,
        "calibration": estimates,
    }  # fmt: skip


def _table(name: str, found: Mapping[str, Any]) -> str:
    measures = (found["measure"], *_COSTS)
    against = {row["method"]: row for row in found["against"]["mdp"]}
    ordered = sorted(found["controllers"].items(), key=lambda item: -item[1][found["measure"]]["mean"])
    rows = [
        (
            method,
            *(interval_text(one[m], 3 if m == found["measure"] else 1) for m in measures),
            "" if method not in against else interval_text(
                {**against[method], "mean": against[method]["difference"]}, 3, "+"
            ) + f", q {against[method]['q_value']:.3f}",
        )
        for method, one in ordered
    ]  # fmt: skip
    return f"{name}: {found['questions']} questions\n" + text_table(("", *measures, "less mdp"), rows)
