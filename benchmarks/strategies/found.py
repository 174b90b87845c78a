"""What every strategy finds for every question, kept line by line: the expensive part of the study.

Questions are taken from the sets in turn, so that wherever the run is stopped the sets are alike in number. A
later run goes on from there. Which questions, and their order in a set, is drawn by seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.corpora.load import load_dataset
from mio_rag.errors import MioRagError
from mio_rag.generation import Generator
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.session.search import Searched, SearchSettings, search
from mio_rag.session.strategies import STRATEGIES
from mio_rag.storage import append_lines
from mio_rag.types import Question

SETS = ("squad2", "nq_open", "pubmedqa", "2wikimultihopqa", "musique", "hotpotqa")
POOL = 50
_SEED = 24
_KEPT = 200  # rows of each ranking
#: Seconds bind nothing here: on a busy machine they would leave strategies out by accident.
_HOW = SearchSettings(deadline_seconds=3600.0)


def asked(data: Path, name: str) -> list[Question]:
    """The questions of a set that have gold passages, in an order drawn by seed."""
    questions = [q for q in load_dataset(data / name).questions if q.gold_ids]
    return [questions[i] for i in np.random.default_rng(_SEED).permutation(len(questions))]


def find(
    data: Path, indexes: Path, generator: Generator, out: Path, each: int, say: Callable[[str], None]
) -> None:
    """Search by all strategies for the first `each` questions of every set; what is in the file stays.

    Parameters
    ----------
    indexes : Path
        Folder with an index NAME-minilm for every set.
    out : Path
        File of JSON lines.
    """
    done = {(row["set"], row["id"]) for row in read_found(out)} if out.exists() else set()
    questions = {name: asked(data, name)[:each] for name in SETS}
    # An index at a time is what fits beside others: all six take less than a gigabyte.
    retrievers = {
        name: Retriever(CorpusIndex.load(indexes / f"{name}-minilm"), pool=POOL, counter=generator)
        for name in SETS
    }
    for name, question in _in_turn(questions):
        if (name, question.id) in done:
            continue
        try:
            found = search(question, retrievers[name], generator, STRATEGIES, _HOW)
        except MioRagError as error:  # the model's server, say: try again in the next run
            say(f"{name} {question.id}: {error}")
            continue
        append_lines(out, [json.dumps(_row(name, question, found))])
        done.add((name, question.id))
        say(f"{len(done)} questions: {name} {question.id}")


def _in_turn(questions: dict[str, list[Question]]) -> Iterator[tuple[str, Question]]:
    for place in range(max(map(len, questions.values()))):
        for name, those in questions.items():
            if place < len(those):
                yield name, those[place]


def _row(name: str, question: Question, found: Searched) -> dict[str, Any]:
    return {
        "set": name,
        "id": question.id,
        "question": question.text,
        "strategies": {
            one.strategy: {
                "rows": list(one.found.rows[:_KEPT]),
                "queries": list(one.found.queries),
                "dropped": one.found.dropped,
                "note": one.found.note,
                "failed": one.failed,
                "prompt_tokens": one.amount.prompt_tokens,
                "completion_tokens": one.amount.completion_tokens,
                "lm_calls": one.amount.lm_calls,
                "retrieval_calls": one.amount.retrieval_calls,
                "seconds": one.amount.seconds,
            }
            for one in found.tried
        },
    }


def read_found(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; one that was cut short is passed over."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
