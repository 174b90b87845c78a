"""Large indexes without embedding: built, opened and searched by this checkout and by another one.

Passages are recombined from sentences of real texts, and so are their vectors: see `benchmarks.large_probe`.
Every step is a process of its own, whose result is kept, so that a run resumes. Time is processor time, which
other work on the machine changes least; a pool is the default one, 50 passages by words and vectors.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.large_probe import Table
from benchmarks.runner import Measured, note, numbers, stored, text_table
from benchmarks.side_by_side import checkout_of
from mio_rag.corpora.load import load_dataset
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.sentences import sentence_spans

_HERE = Path(__file__).parents[1]
_TEXTS, _QUESTIONS = 6000, 120
_RATIOS = {  # largest goal of each, at 300,000 passages
    "build_cpu": ("built, processor seconds", 0.25), "peak_mb": ("peak memory, MB", 0.4),
    "open_cpu": ("opened, processor seconds", 0.1), "open_mb": ("memory once open, MB", None),
    "pool_ms": ("a pool, processor ms", 0.2), "words_ms": ("200 best by words, ms", None),
    "near_ms": ("200 nearest, ms", None), "disk_mb": ("on disk, MB", None),
}  # fmt: skip


def measure(given: argparse.Namespace) -> Measured:
    """Measure both checkouts at each size."""
    table = given.shared / f"large-{given.corpus.parent.name if given.corpus else 'demo'}"
    if not (table / "vectors.npy").is_file():
        _make_table(table, given.corpus)
    sizes, rows = [], []
    base, named = checkout_of(given.base, given.work)
    for n in numbers("--passages", given.passages, int):
        found = {side: _measured(given.work, side, folder, n, table)
                 for side, folder in (("base", base), ("this", _HERE))}  # fmt: skip
        pools = [one.pop("pools") for one in found.values()]
        same = [len(set(a) & set(b)) / max(1, len(a)) for a, b in zip(*pools, strict=True)]
        ratios = {key: found["this"][key] / found["base"][key] for key in _RATIOS}
        own = {"passages": n, **found, "ratios": ratios, "same_pool": statistics.fmean(same)}
        if given.peers:
            own["peers"] = stored(given.work / f"peers-{n}.json", n, partial(_peers, n, table))
        sizes.append(own)
        for key, (text, goal) in _RATIOS.items():
            values = [f"{found[side][key]:,.2f}" for side in ("base", "this")]
            rows.append([f"{n:,}: {text}", *values, f"{ratios[key]:.2f}", "" if goal is None else goal])
        rows.append([f"{n:,}: share of the base's pools", "", "", f"{own['same_pool']:.3f}", ""])
        rows += [[f"{n:,}: {name}, {what}", "", f"{value:,.2f}", "", ""]
                 for name, one in own.get("peers", {}).items() for what, value in one.items()]  # fmt: skip
    return Measured({"base": named, "sizes": sizes}, text_table(["", "base", "this", "ratio", "goal"], rows))


def _measured(work: Path, side: str, checkout: Path, n: int, table: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for step in ("build", "search"):
        told = [step, str(work / f"{side}{n}"), str(n), str(table)]
        found = stored(work / f"{side}-{n}-{step}.json", told[2], partial(_asked, checkout, told)) | found
    return found


def _asked(checkout: Path, told: list[str]) -> dict[str, Any]:
    note(" ".join(told[:3]))
    command = [sys.executable, str(_HERE / "benchmarks" / "large_probe.py"), *told]
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _make_table(folder: Path, corpus: Path | None) -> None:
    """Write sentences of real texts with their embeddings, and questions."""
    folder.mkdir(parents=True, exist_ok=True)
    place: dict[str, int] = {}
    texts = list[dict[str, Any]]()
    for title, text in _texts(corpus):
        own = [text[a:b].strip() for a, b in sentence_spans(text)]
        own = [one for one in own if 20 < len(one) < 400][:7]
        if len(own) > 1 and len(texts) < _TEXTS:
            numbered = [place.setdefault(one, len(place)) for one in own]
            texts.append({"title": title, "sentences": numbered})
    if corpus is None:
        questions = [one.text for one in load_dataset("demo").questions]
    else:
        with gzip.open(corpus.with_name("questions.jsonl.gz"), "rt", encoding="utf-8") as lines:
            questions = [json.loads(line)["question"] for line in lines]
    questions, sentences = questions[:_QUESTIONS], list(place)
    np.save(folder / "vectors.npy", make_embedder("minilm").encode([*sentences, *questions]))
    told = {"texts": texts, "sentences": sentences, "questions": questions}
    (folder / "table.json").write_text(json.dumps(told), encoding="utf-8")


def _texts(corpus: Path | None) -> Iterator[tuple[str, str]]:
    if corpus is None:
        yield from ((one.title, one.text) for one in load_dataset("demo").passages)
        return
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row.get("title", ""), row["text"]


def _peers(n: int, folder: Path) -> dict[str, dict[str, float]]:
    """Words alone by tantivy, by bm25s and by this checkout: building, and the 200 best of a question."""
    from mio_rag.retrieval.lexical import LexicalIndex, words_of

    table = Table(folder)
    texts = [table.passage(k, False)["text"] for k in range(n)]
    found = {}
    ways: dict[str, Callable[[list[str]], Any]] = {
        "this": LexicalIndex.build, "tantivy": _tantivy, "bm25s": _bm25s,
    }  # fmt: skip
    for name, build in ways.items():
        begun = time.process_time()
        made = build(texts)
        spent = time.process_time() - begun
        times = []
        for question in table.questions:
            begun = time.process_time()
            made.best(question, 200) if name == "this" else made(words_of(question))
            times.append(1000 * (time.process_time() - begun))
        found[name] = {"built, processor seconds": spent, "200 best, ms": statistics.median(times)}
    return found


def _tantivy(texts: list[str]) -> Any:
    import tantivy

    schema = tantivy.SchemaBuilder()
    schema.add_text_field("text", stored=False)
    index = tantivy.Index(schema.build())
    writer = index.writer(heap_size=200_000_000)
    for text in texts:
        writer.add_document(tantivy.Document(text=text))
    writer.commit()
    index.reload()
    searcher, either = index.searcher(), tantivy.Occur.Should

    def best(words: list[str]) -> Any:  # terms, never the syntax of its parser
        terms = [(either, tantivy.Query.term_query(index.schema, "text", word)) for word in words]
        return searcher.search(tantivy.Query.boolean_query(terms), 200).hits

    return best


def _bm25s(texts: list[str]) -> Any:
    import bm25s

    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    return lambda words: index.retrieve([words], k=min(200, len(texts)), show_progress=False)
