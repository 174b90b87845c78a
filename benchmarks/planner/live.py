"""A sample of the decisions carried out live: as the table says? And with another reader?"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.corpora.load import load_questions
from mio_rag.generation import Generator, make_generator
from mio_rag.learning.planner import Planner, write_planner
from mio_rag.learning.planner_training import Table, train_planner
from mio_rag.measures import answer_measures
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.session.budget import Limits
from mio_rag.types import Question

_ALPHA = 0.1
_MAX_TOKENS = 24


def confirmed(table: Table, given: argparse.Namespace) -> dict[str, Any]:
    """The last questions of the table, decided on by planners that learned from all others.

    Returns
    -------
    dict
        For each mode: how many runs came to the same workflow, answer quality and tokens as the table, and
        what the same decisions give with another reader.
    """
    n = len(table.outcomes)
    held = np.arange(max(0, n - given.live), n, dtype=np.intp)
    learned = np.arange(max(0, n - given.live), dtype=np.intp)
    budget = int(table.outcomes.provenance.get("budget_tokens") or 256)
    found: dict[str, Any] = {}
    for mode in ("once", "again"):
        planner = train_planner(table, learned, mode=mode).planner
        found[mode] = _compared(table, given, planner, held, given.generator, budget)
        if given.swap is not None:
            found[f"{mode}, other reader"] = _compared(table, given, planner, held, given.swap, budget)
    return found


def _compared(
    table: Table, given: argparse.Namespace, planner: Planner, held: Any, reader: str, budget: int
) -> dict[str, Any]:
    experience = table.experience(planner.tree, planner.features, held, planner.unit, planner.cost)
    expected = planner.replay(experience, _ALPHA)
    same, quality, tokens, invalid = 0, [], [], 0
    with_reader = make_generator(reader)
    with tempfile.TemporaryDirectory() as folder, closing(with_reader):
        file = Path(folder) / "planner.safetensors"
        write_planner(planner, file)
        settings = ControlSettings(
            limits=Limits(40, 20_000, 1e6), kinds={"planner": {"file": str(file), "alpha": _ALPHA}}
        )
        retrievers: dict[str, tuple[Retriever, Mapping[str, Question]]] = {}
        for k, i in enumerate(held):
            name = table.outcomes.sets[i]
            if name not in retrievers:
                retrievers[name] = loaded(given, name, with_reader)
            retriever, questions = retrievers[name]
            question = questions[table.outcomes.ids[i].partition(":")[2]]
            asked = make_controller("planner", Setup(settings, retriever, max_tokens=_MAX_TOKENS))
            got = asked.attempt(question, with_reader, budget)
            invalid += got.error is not None
            total = got.costs.total()
            ran = got.trace.columns()["workflow"]
            f1 = answer_measures(question, got.trace.answer, got.trace.choice).get("token_f1") or 0.0
            quality.append(f1)
            tokens.append(total.prompt_tokens + total.completion_tokens)
            same += (
                ran == planner.tree.workflows[expected[k]].name
                and abs(f1 - experience.quality[k, expected[k]]) < 1e-9
                and abs(tokens[-1] / planner.unit - experience.cost[k, expected[k]]) < 1e-9
            )
    rows = np.arange(len(held))
    return {
        "reader": with_reader.name,
        "questions": len(held),
        "as_the_table_says": int(same),
        "failed": int(invalid),
        "f1": float(np.mean(quality)),
        "f1_of_the_table": float(experience.quality[rows, expected].mean()),
        "tokens": float(np.mean(tokens)),
    }


def loaded(
    given: argparse.Namespace, name: str, reader: Generator
) -> tuple[Retriever, Mapping[str, Question]]:
    """The retriever of a question set, and its questions by id."""
    index = CorpusIndex.load(given.indexes / f"{name}-minilm")
    questions = {question.id: question for question in load_questions(given.data / name)}
    return Retriever(index, counter=reader), questions
