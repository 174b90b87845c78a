"""Indexes for small devices: what recall their forms cost, and what memory an answer takes.

The corpus is real text: every passage of the sets, then single sentences of them, set by set, until there
are as many as are wanted. Recall is of the nearest passages by exact vectors, and of gold passages, over
questions of the sets. Memory is the peak of a process that answers one question, above one that has only
loaded the embedder.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.footprint import fits, tier_footprints
from benchmarks.runner import Measured
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.ledger import environment
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.generation.extractive import sentences
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.vectors import VECTOR_KINDS, make_dense, open_vectors
from mio_rag.session.tiers import PUBLISHED
from mio_rag.types import Passage, Question

_DEPTH = 10
_BOUND = 150.0  # megabytes above the embedder
_LOST = 0.01  # of gold recall
_TIMED = 10  # searches


def command(given: argparse.Namespace) -> Measured:
    """Build the index, measure its forms, write the report, and print it."""
    if given.passages < 1 or given.questions < 1:
        raise InputError(f"--passages={given.passages} and --questions={given.questions} must be >= 1")
    names = [name for name in given.sets.split(",") if name] or sorted(
        folder.name for folder in given.data.iterdir() if any(folder.glob("corpus.jsonl*"))
    )
    sets = {name: load_dataset(given.data / name) for name in names}
    index = _index(sets, given)
    asked = [
        (name, question, frozenset(f"{name}:{i}" for i in question.gold_ids))
        for name, dataset in sets.items()
        for question in _drawn(dataset, given.questions)
    ]
    queries = index.embedder.encode([question.text for _, question, _ in asked])
    results = {
        "benchmark": "edge",
        "passages": len(index),
        "whole_passages": sum(len(dataset.passages) for dataset in sets.values()),
        "embedder": index.embedder.name,
        "questions": len(asked),
        "sets": names,
        "recall": _recalls(index, queries, [gold for _, _, gold in asked]),
        "forms": [fit.to_dict() for fit in fits(index, queries, asked[0][1].text)],
        "seconds": _seconds(index, queries, given.work),
        "tiers": [
            vars(found)
            for found in tier_footprints(given.work / "index", asked[0][1].text, PUBLISHED, mapped=True)
        ],
        **environment(),
    }
    return Measured(results, table(results))


def _index(sets: dict[str, Dataset], given: argparse.Namespace) -> CorpusIndex:
    """The index of the work folder; built where it is not there."""
    folder = given.work / "index"
    if folder.is_dir():
        found = CorpusIndex.load(folder)
        if len(found) != given.passages or found.embedder.name != given.embedder:
            raise InputError(
                f"'{folder}' holds {len(found)} passages by {found.embedder.name}: choose another --work"
            )
        return found
    passages = passages_of(sets, given.passages)
    done = 0

    def say(count: int) -> None:
        nonlocal done
        if (done + count) // 5000 > done // 5000:
            print(f"{done + count} of {len(passages)} embedded", file=sys.stderr, flush=True)
        done += count

    index = CorpusIndex.build(passages, given.embedder, "edge", say)
    index.save(folder)
    return index


def passages_of(sets: dict[str, Dataset], count: int) -> list[Passage]:
    """The passages of all sets, and so many of their sentences that there are `count`; none twice.

    Raises
    ------
    InputError
        If the sets do not hold so many.
    """
    found: dict[str, Passage] = {}
    for passage in (*_whole(sets), *_single(sets)):
        if len(found) == count:
            break
        text = passage.text if passage.title == "" else f"{passage.title}\n{passage.text}"
        found.setdefault(text, passage)
    if len(found) < count:
        raise InputError(f"the sets hold {len(found)} passages and sentences: {count} are too many")
    return list(found.values())


def _whole(sets: dict[str, Dataset]) -> Iterator[Passage]:
    for name, dataset in sets.items():
        for p in dataset.passages:
            yield Passage(f"{name}:{p.id}", p.text, p.title, f"{name}:{p.source}" if p.source else "")


def _single(sets: dict[str, Dataset]) -> Iterator[Passage]:
    for name, dataset in sets.items():
        for p in dataset.passages:
            for k, sentence in enumerate(sentences(p.text)):
                yield Passage(f"{name}:{p.id}#{k}", sentence, "", f"{name}:{p.id}")


def _drawn(dataset: Dataset, count: int) -> list[Question]:
    order = np.random.default_rng(0).permutation(len(dataset.questions))
    return [dataset.questions[k] for k in sorted(order[:count].tolist())]


def _recalls(
    index: CorpusIndex, queries: NDArray[np.float32], gold: Sequence[frozenset[str]]
) -> dict[str, Any]:
    """By form: the share of the nearest 10 that are found, and of gold passages; with its loss."""
    vectors = index.embeddings(range(len(index)))
    exact = make_dense(vectors).search(queries, _DEPTH)[1]
    known = [k for k, one in enumerate(gold) if one]
    ids = index.ids
    told: dict[str, Any] = {}
    before = gold_found(exact, ids, gold)
    for kind in VECTOR_KINDS:
        rows = make_dense(vectors, kind).search(queries, _DEPTH)[1]
        shared = [len(set(a) & set(b)) / _DEPTH for a, b in zip(exact.tolist(), rows.tolist(), strict=True)]
        found = gold_found(rows, ids, gold)
        told[kind] = {
            "nearest": mean_interval(shared),
            "gold": float(found[known].mean()),
            "gold_lost": mean_interval((before - found)[known].tolist()),
        }
    return told


def gold_found(
    rows: NDArray[np.int64], ids: Sequence[str], gold: Sequence[frozenset[str]]
) -> NDArray[np.float64]:
    """Share of the gold passages of each question among the rows that were found; nan without any.

    A sentence stands for its passage.
    """
    return np.array(
        [
            len({ids[row].partition("#")[0] for row in found} & wanted) / len(wanted) if wanted else np.nan
            for found, wanted in zip(rows.tolist(), gold, strict=True)
        ]
    )


def _seconds(index: CorpusIndex, queries: NDArray[np.float32], work: Path) -> dict[str, dict[str, float]]:
    """Processor seconds of one search, in memory and on disk: the median of some."""
    told = {}
    vectors = index.embeddings(range(len(index)))
    for kind in VECTOR_KINDS:
        dense = make_dense(vectors, kind)
        told[kind] = {"in memory": _median(dense, queries)}
        folder = dataclasses.replace(index, _dense=dense).save(work / kind, overwrite=True)
        found = open_vectors(folder / "dense.faiss")
        if found is not None:
            told[kind]["on disk"] = _median(found, queries)
    return told


def _median(dense: Any, queries: NDArray[np.float32]) -> float:
    took = []
    for k in range(_TIMED):
        began = time.process_time()
        dense.search(queries[k : k + 1], 200)
        took.append(time.process_time() - began)
    return float(np.median(took))


def table(results: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [
        f"{results['passages']} passages ({results['whole_passages']} whole, the others sentences of them), "
        f"{results['embedder']}, {results['questions']} questions of {', '.join(results['sets'])}",
        "",
        f"{'vectors':10} {'nearest 10':>24} {'gold':>6} {'gold lost':>26}",
    ]
    for kind, found in results["recall"].items():
        near, lost = _told(found["nearest"], ""), _told(found["gold_lost"])
        lines.append(f"{kind:10} {near:>24} {found['gold']:>6.3f} {lost:>26}")
    lines += [
        "",
        f"{'vectors':10} {'kept':12} {'peak MB':>8} {'above the embedder':>19} {'file MB':>8} "
        f"{'search s':>9}",
    ]
    for form in results["forms"]:
        kept = "on disk" if form["mapped"] else "in memory"
        took = results["seconds"][form["vectors"]]
        seconds = took.get(kept, took["in memory"])  # product codes are never left on disk
        lines.append(
            f"{form['vectors']:10} {kept:12} {form['peak_mb']:>8.0f} {form['above_model_mb']:>19.0f} "
            f"{form['vectors_mb']:>8.1f} {seconds:>9.3f}"
        )
    lines += [
        "",
        f"{'tier, exact vectors on disk':30} {'peak MB':>8} {'above the embedder':>19} {'tokens':>7}",
    ]
    for tier in results["tiers"]:
        lines.append(
            f"{tier['component']:30} {tier['peak_mb']:>8.0f} {tier['added_mb']:>19.0f} "
            f"{tier['prompt_tokens']:>7}"
        )
    good = [
        f"{form['vectors']} {'on disk' if form['mapped'] else 'in memory'}"
        for form in results["forms"]
        if form["above_model_mb"] <= _BOUND
        and results["recall"][form["vectors"]]["gold_lost"]["mean"] <= _LOST
    ]
    goal = f"within {_BOUND:.0f} MB above the embedder, and within {100 * _LOST:.0f} point of gold recall"
    return "\n".join([*lines, "", f"{goal}: {', '.join(good) or 'none'}"])


def _told(interval: dict[str, float], sign: str = "+") -> str:
    return f"{interval['mean']:{sign}.3f} ({interval['low']:{sign}.3f} to {interval['high']:{sign}.3f})"
