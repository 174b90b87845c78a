"""Indexes for small devices: what recall their forms cost, and what memory an answer takes.

The corpus is real text: every passage of the sets, then single sentences of them, until there are as many as
wanted. Recall is of the nearest passages by exact vectors, and of gold passages. Memory is the peak of a
process that answers one question, above one that has only loaded the embedder: `python -m benchmarks.edge`
with a JSON argument is that process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.processes import ask_process
from benchmarks.questions import QuestionSet, load_sets
from benchmarks.runner import Measured, at_least, interval_text, note, text_table
from mio_rag.errors import InputError, MioRagError
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.generation import build_prompt, make_generator
from mio_rag.generation.extractive import sentences
from mio_rag.learning.router_model import KEY, RouterSettings
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.retrieval.vectors import VECTOR_KINDS, make_dense, open_vectors, why_not
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import peak_memory_mb
from mio_rag.session.tiers import PUBLISHED, tiers_of
from mio_rag.storage import read_json
from mio_rag.types import Passage, Question

_DEPTH, _TIMED = 10, 10


def measure(given: argparse.Namespace) -> Measured:
    """Build the index and measure its forms."""
    at_least(given, limit=1, passages=1)
    sets = load_sets(given, given.embedder)
    index = _index(sets, given)
    asked = [(one.name, q) for one in sets for q in one.dataset.questions[: given.limit]]
    gold = [frozenset(f"{name}:{i}" for i in q.gold_ids) for name, q in asked]
    queries = index.embedder.encode([question.text for _, question in asked])
    vectors = index.embeddings(range(len(index)))
    kinds = [kind for kind in VECTOR_KINDS if not why_not(kind, *vectors.shape)]
    recall = _recalls(vectors, kinds, index.ids, queries, gold)
    question = {"question": asked[0][1].text}
    forms = []
    before = ask_process(
        "benchmarks.edge", {**question, "index": str(given.work / "index"), "upto": "embedder"}
    )
    for kind in kinds:
        dense = make_dense(vectors, kind)
        folder = dataclasses.replace(index, _dense=dense).save(given.work / kind, overwrite=True)
        opened = open_vectors(folder / "dense.faiss")
        for mapped in (False, True):
            peak = ask_process(
                "benchmarks.edge", {**question, "index": str(folder), "mapped": mapped, "upto": "answer"}
            )
            # Product codes are never left on disk.
            seconds = _median_seconds(opened if mapped and opened is not None else dense, queries)
            size = (folder / "dense.faiss").stat().st_size / 1e6
            forms.append(
                {"vectors": kind, "mapped": mapped, "peak_mb": peak["peak_mb"], "file_mb": size,
                 "above_embedder_mb": peak["peak_mb"] - before["peak_mb"], "search_seconds": seconds}
            )  # fmt: skip
        note(f"{kind} vectors")
    tiers = []
    for tier in PUBLISHED:
        task = {"index": str(given.work / "index"), "mapped": True, "upto": "tier", "tier": tier.to_dict()}
        found = ask_process("benchmarks.edge", {**question, **task})
        tiers.append({"tier": tier.name, **found, "above_embedder_mb": found["peak_mb"] - before["peak_mb"]})
    whole = sum(len(one.dataset.passages) for one in sets)
    report = {
        "passages": len(index), "whole_passages": whole, "embedder": index.embedder.name, "recall": recall,
        "questions": len(asked), "forms": forms, "tiers": tiers,
    }  # fmt: skip
    return Measured(report, _table(report))


def _index(sets: Sequence[QuestionSet], given: argparse.Namespace) -> CorpusIndex:
    folder = given.work / "index"
    if not folder.is_dir():
        passages = passages_of(sets, given.passages)
        note(f"embedding {len(passages)} passages")
        CorpusIndex.build(passages, "tfidf" if given.quick else given.embedder, "edge").save(folder)
    found = CorpusIndex.load(folder)
    if len(found) != given.passages:
        raise InputError(
            f"'{folder}' holds {len(found)} passages, not {given.passages}: choose another --work"
        )
    return found


def passages_of(sets: Sequence[QuestionSet], count: int) -> list[Passage]:
    """Return the passages of all sets, and so many of their sentences that there are `count`; none twice.

    Raises `InputError` if the sets do not hold so many.
    """
    found: dict[str, Passage] = {}
    for passage in (*_whole(sets), *_single(sets)):
        if len(found) == count:
            break
        found.setdefault(f"{passage.title}\n{passage.text}", passage)
    if len(found) < count:
        raise InputError(f"the sets hold {len(found)} passages and sentences: lower --passages")
    return list(found.values())


def _whole(sets: Sequence[QuestionSet]) -> Iterator[Passage]:
    for one in sets:
        for p in one.dataset.passages:
            yield Passage(f"{one.name}:{p.id}", p.text, p.title, f"{one.name}:{p.source}" if p.source else "")


def _single(sets: Sequence[QuestionSet]) -> Iterator[Passage]:
    for one in sets:
        for p in one.dataset.passages:
            for k, sentence in enumerate(sentences(p.text)):
                yield Passage(f"{one.name}:{p.id}#{k}", sentence, "", f"{one.name}:{p.id}")


def _recalls(
    vectors: NDArray[np.float32],
    kinds: Sequence[str],
    ids: Sequence[str],
    queries: NDArray[np.float32],
    gold: Sequence[frozenset[str]],
) -> dict[str, Any]:
    """Return, by form, the share of the nearest 10 that are found, and of gold passages with its loss."""
    exact = make_dense(vectors).search(queries, _DEPTH)[1]
    before, known = _gold_found(exact, ids, gold), [k for k, one in enumerate(gold) if one]
    result = {}
    for kind in kinds:
        rows = make_dense(vectors, kind).search(queries, _DEPTH)[1]
        shared = [len(set(a) & set(b)) / _DEPTH for a, b in zip(exact.tolist(), rows.tolist(), strict=True)]
        found = _gold_found(rows, ids, gold)
        lost = mean_interval((before - found)[known].tolist())
        result[kind] = {
            "nearest": mean_interval(shared),
            "gold": float(found[known].mean()),
            "gold_lost": lost,
        }
    return result


def _gold_found(
    rows: NDArray[np.int64], ids: Sequence[str], gold: Sequence[frozenset[str]]
) -> NDArray[np.float64]:
    """Return the share of each question's gold passages that were found; a sentence counts for its own."""
    return np.array(
        [
            len({ids[row].partition("#")[0] for row in found} & wanted) / len(wanted) if wanted else np.nan
            for found, wanted in zip(rows.tolist(), gold, strict=True)
        ]
    )


def _median_seconds(dense: Any, queries: NDArray[np.float32]) -> float:
    took = []
    for k in range(min(_TIMED, len(queries))):
        began = time.process_time()
        dense.search(queries[k : k + 1], 200)
        took.append(time.process_time() - began)
    return float(np.median(took))


def _table(report: Mapping[str, Any]) -> str:
    recall = [
        (kind, interval_text(one["nearest"]), f"{one['gold']:.3f}", interval_text(one["gold_lost"], 3, "+"))
        for kind, one in report["recall"].items()
    ]
    forms = [
        (f"{one['vectors']}, {'on disk' if one['mapped'] else 'in memory'}", f"{one['peak_mb']:.0f}",
         f"{one['above_embedder_mb']:.0f}", f"{one['file_mb']:.1f}", f"{one['search_seconds']:.3f}")
        for one in report["forms"]
    ]  # fmt: skip
    tiers = [
        (one["tier"], f"{one['peak_mb']:.0f}", f"{one['above_embedder_mb']:.0f}", one["prompt_tokens"])
        for one in report["tiers"]
    ]
    return "\n\n".join(
        [
            f"{report['passages']} passages ({report['whole_passages']} whole), {len(tiers)} tiers",
            text_table(("vectors", "nearest 10", "gold", "gold lost"), recall),
            text_table(("vectors", "peak MB", "above the embedder", "file MB", "search s"), forms),
            text_table(("tier, exact vectors on disk", "peak MB", "above the embedder", "tokens"), tiers),
        ]
    )


# In the process that is measured ---------------------------------------------------------------------------


def _answer(task: Mapping[str, Any]) -> dict[str, float]:
    """Go as far as a component: "embedder", "answer" or "tier"."""
    folder, question, tokens = Path(task["index"]), Question("question", task["question"]), 0
    embedder = make_embedder(read_json(folder / "manifest.json")["embedder"], folder)
    embedder.encode([question.text])
    if task["upto"] != "embedder":
        index, generator = (
            CorpusIndex.load(folder, embedder, mapped=task["mapped"]),
            make_generator("extractive"),
        )
        retriever = Retriever(index, counter=generator)
        if task["upto"] == "answer":
            chosen = Selector().select(retriever.retrieve(question.text), 256, generator)
            generator.generate(build_prompt(question, chosen.passages), max_tokens=32)
        else:
            settings = RouterSettings(tiers=tiers_of([task["tier"]], "the tier"))
            setup = Setup(ControlSettings(kinds={KEY: settings.to_dict()}), retriever)
            session = make_controller(f"tier:{task['tier']['name']}", setup)
            found = session.attempt(
                question, generator, 1_000_000
            ).check()  # what is read is for the tier to say
            tokens = found.costs.total().prompt_tokens
        generator.close()
    peak = peak_memory_mb()
    if peak is None:
        raise InputError("this system does not report the peak memory of a process")
    return {"peak_mb": peak, "prompt_tokens": tokens}


if __name__ == "__main__":
    try:
        print(json.dumps(_answer(json.loads(sys.argv[1]))))
    except MioRagError as error:
        sys.exit(str(error))
