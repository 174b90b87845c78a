"""The runs: every controller on the same questions, round by round, set after set.

A round adds questions to every set, so that wherever the run is interrupted all controllers have answered the
same first questions. Rows, traces and replies stay in the work folder; a later run goes on from there.

Calibrated processes never act on questions that they were calibrated on: questions are dealt into two folds,
and what is estimated from the traces of one acts on the other.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import closed_book, load_dataset, shuffle_choices
from mio_rag.errors import InputError
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.generation import Generator
from mio_rag.learning.mdp_calibration import Calibration, calibrate
from mio_rag.policies.setup import ControlSettings
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.session.budget import Limits
from mio_rag.session.trace import Trace, read_traces

_SEED = 0
_STEPS = 3
#: The published process, planning for the steps that it has.
MODELS = {"given": RetrievalMDP(horizon=_STEPS)}
_CALIBRATED = ("mdp", "mdp@confidence")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Set:
    """A question set, and who answers it.

    Parameters
    ----------
    questions : int
        How many the whole study asks.
    budget_tokens : int
        Largest block of evidence.
    probes : tuple of str
        Controllers whose measured runs the calibration uses, besides mdp@confidence.
    """

    name: str
    questions: int
    closed_book: bool
    budget_tokens: int
    controllers: tuple[str, ...]
    probes: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Controllers and probes."""
        return (*self.controllers, *self.probes)

    def load(self, data: Path) -> Dataset:
        """The questions in an order drawn by seed, choices shuffled."""
        source = data / self.name
        dataset = closed_book(source) if self.closed_book else load_dataset(source)
        dataset = shuffle_choices(dataset, _SEED)
        order = np.random.default_rng(_SEED).permutation(len(dataset.questions))[: self.questions]
        return dataclasses.replace(dataset, questions=tuple(dataset.questions[i] for i in order))


_COMMON = ("mdp", "mdp@confidence", "always-reason", "threshold", "random", "fixed-3", "fixed-0")
SETS = (
    Set("oran_bench", 300, True, 256, _COMMON, ("always-reason@confidence",)),
    Set(
        "hotpotqa",
        200,
        False,
        192,
        (*_COMMON, "always-retrieve", "fixed-1"),
        ("always-reason@confidence", "fixed-3@confidence"),
    ),
)


def _settings(chosen: Set, controllers: Sequence[str], model: RetrievalMDP, limit: int) -> EvaluationSettings:
    # Seconds bind nothing here: on a busy machine they would cut runs by accident.
    limits = Limits(steps=_STEPS, tokens=20_000, seconds=1e6)
    return EvaluationSettings(
        methods=(),
        budgets=(chosen.budget_tokens,),
        baseline=controllers[0],
        limit=limit,
        max_tokens=24,
        seed=_SEED,
        controllers=tuple(controllers),
        control=ControlSettings(model, limits=limits, note_tokens=32),
        closed_book=chosen.closed_book,
    )


def run_given(
    chosen: Set, data: Path, index: CorpusIndex | None, generator: Generator, work: Path, upto: int, say: Say
) -> None:
    """Answer the first `upto` questions with every controller, under the published process."""
    dataset = chosen.load(data)
    settings = _settings(chosen, chosen.all, MODELS["given"], min(upto, len(dataset.questions)))
    evaluate(
        dataset,
        index,
        generator,
        settings,
        work / chosen.name / "given",
        resume=True,
        progress=lambda _, text: say(f"{chosen.name}, given: {text}"),
    )


def run_calibrated(
    chosen: Set, data: Path, index: CorpusIndex | None, generator: Generator, work: Path, upto: int, say: Say
) -> list[dict[str, Any]]:
    """Calibrate on one fold of the first `upto` questions, act on the other, both ways.

    Returns
    -------
    list of dict
        For each fold: the estimates, the checks, and the model that acted on the other fold.
    """
    dataset = chosen.load(data)
    asked = dataset.questions[:upto]
    traces = read_traces(work / chosen.name / "given", ("uncertainty",), "of a decision process")
    told = []
    for fold in (0, 1):
        learned = {q.id for k, q in enumerate(asked) if k % 2 == fold}
        found = _estimated([t for t in traces if t.question_id in learned], chosen)
        others = dataclasses.replace(
            dataset, questions=tuple(q for k, q in enumerate(asked) if k % 2 != fold)
        )
        if not others.questions:
            raise InputError(f"{chosen.name}: {len(asked)} questions make no two folds: raise --questions")
        for name, model in (("calibrated", found.model), ("by-bins", found.by_bins)):
            say(f"{chosen.name}, {name}: fold {fold}")
            folder = work / chosen.name / f"{name}-{fold}-of-{upto}"
            settings = _settings(chosen, _CALIBRATED, model, len(others.questions))
            evaluate(others, index, generator, settings, folder, resume=True)
        told.append(
            {
                "learned_from": len(learned),
                "estimates": {
                    key: value
                    for key, value in dataclasses.asdict(found).items()
                    if key not in ("model", "by_bins")
                },
                "model": found.model.to_dict(),
                "by_bins": found.by_bins.to_dict(),
            }
        )
    plain: list[dict[str, Any]] = json.loads(json.dumps(told))
    return plain


def _estimated(traces: Sequence[Trace], chosen: Set) -> Calibration:
    """What measured runs say; costs by tokens, since seconds here are those of a busy machine."""
    return calibrate(traces, MODELS["given"], gauge="confidence", cost_by="tokens")
