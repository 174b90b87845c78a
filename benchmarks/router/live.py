"""Routers that are really asked, question by question, against what the table foretells."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.router.rows import COST, Group
from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.generation import Generator
from mio_rag.learning.router import By, FitSettings, Table, fit_once, row_worked
from mio_rag.learning.router_model import KEY, RouterSettings, Utility
from mio_rag.learning.weights import write_weights
from mio_rag.policies.setup import ControlSettings
from mio_rag.retrieval.index import CorpusIndex

_UNBOUNDED = 1_000_000


def confirmed(
    learned: Table,
    asked: Group,
    sets: Mapping[str, tuple[Dataset, CorpusIndex]],
    generator: Generator,
    by: By,
    work: Path,
    seed: int = 0,
    kinds: Sequence[Literal["mlp", "utility"]] = ("mlp", "utility"),
) -> list[dict[str, Any]]:
    """Train on a table, ask through the controller `routed`, and compare with the table of these questions.

    Parameters
    ----------
    learned : Table
        Of other questions; the tiers that are asked are those of `asked`.
    sets : mapping
        Name -> questions and index.
    work : Path
        Folder for routers and runs; a run resumes there. Of other rows comes another router, and another run.
    kinds : sequence of str
        They go by the question alone: what the search shows depends on the weights of relevance.
    """
    table = asked.ladders["published"]
    place = {question: k for k, question in enumerate(table.outcomes.ids)}
    found = []
    for kind in kinds:
        router = fit_once(learned, FitSettings(kind=kind, features="question", seed=seed)).router
        router = dataclasses.replace(router, tiers=table.tiers)
        path = work / f"{kind}.safetensors"
        work.mkdir(parents=True, exist_ok=True)
        write_weights(router.weights(), path)
        settings = RouterSettings(table.tiers, str(path), Utility())
        rows = []
        for name, (dataset, index) in sets.items():
            here = tuple(q for q in dataset.questions if q.id in place)
            if here:
                folder = work / f"{kind}-{name}-{len(here)}-{learned.sha256[:8]}"
                rows += evaluate(
                    dataclasses.replace(dataset, questions=here),
                    index,
                    generator,
                    EvaluationSettings(
                        methods=(),
                        budgets=(_UNBOUNDED,),
                        controllers=("routed",),
                        control=ControlSettings(kinds={KEY: settings.to_dict()}),
                    ),
                    folder,
                    resume=(folder / "run.json").is_file(),
                ).rows
        failed = sum(1 for row in rows if row["error"])
        rows = [row for row in rows if not row["error"]]
        choices = [router.choose(seen, settings.utility).place for seen in table.seen]
        told = {
            row["question_id"]: (place[row["question_id"]], choices[place[row["question_id"]]])
            for row in rows
        }
        foretold = [table.outcomes.values[COST][told[row["question_id"]]] for row in rows]
        worked = [table.worked[told[row["question_id"]]] for row in rows]
        tokens = [float(row[COST]) for row in rows]
        found.append(
            {
                "router": kind,
                "questions": len(rows),
                "failed": failed,
                "same_tier": float(
                    np.mean([row["tier"] == table.tiers[told[row["question_id"]][1]].name for row in rows])
                ),
                "same_tokens": float(np.mean([a == b for a, b in zip(tokens, foretold, strict=True)])),
                "same_outcome": float(
                    np.mean([row_worked(row, by) == did for row, did in zip(rows, worked, strict=True)])
                ),
                "tokens": float(np.mean(tokens)),
                "tokens_foretold": float(np.mean(foretold)),
            }
        )
    return found
