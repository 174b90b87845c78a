"""One step with a large index, in a process of its own: what it prints is one line of JSON.

    python benchmarks/large_probe.py STEP FOLDER PASSAGES TABLE

Run with any checkout on PYTHONPATH. Passages are made by recombining sentences of a table (see
`benchmarks.large.make_table`), so that words, lengths and vectors are spread as in real texts; a vector is
the mean of those of the sentences, so that embedding takes no time worth mentioning.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

_COPIES = 50  # every so many passages one is nearly a copy of the one before it
_OF_FILE = 20  # passages of a file


class Table:
    """Sentences of real texts, their vectors, and questions with theirs."""

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "table.json").read_text(encoding="utf-8"))
        self.texts: list[dict[str, Any]] = told["texts"]
        self.questions: list[str] = told["questions"]
        self.sentences: list[str] = told["sentences"]
        self.vectors = np.load(folder / "vectors.npy")
        self.number = {text: k for k, text in enumerate([*self.sentences, *self.questions])}

    def passage(self, k: int, files: bool) -> dict[str, Any]:
        """The fields of passage k: some sentences of one text, then some of another one."""
        copied = k % _COPIES == _COPIES - 1
        rng = np.random.default_rng(k - copied)
        a, b = self.texts[(k - copied) % len(self.texts)], self.texts[rng.integers(len(self.texts))]
        chosen = [*a["sentences"][: 2 + rng.integers(3)], *b["sentences"][rng.integers(3) :][:3]]
        parts = [self.sentences[s] for s in chosen]
        if copied:
            parts[-1] = parts[-1].rsplit(" ", 1)[0] + " altogether."
        elif not rng.integers(10):
            parts[-1] += f" Its number is {rng.integers(10**7)}."
        turn = k // len(self.texts)
        title = f"{a['title']} {turn}" if turn else a["title"]
        found = {"id": f"p{k}", "title": title, "text": " ".join(parts), "source": title}
        if files:
            spans, place = [], 0
            for part in parts:
                spans.append([place, place + len(part)])
                place += len(part) + 1
            name = f"notes/{k // _OF_FILE}.md"
            found |= {"title": f"Notes {k // _OF_FILE}", "source": name, "start": k % _OF_FILE * 10_000}
            found |= {"section": [title], "units": [[*span, []] for span in spans]}
        return found


class Given:
    """An embedder whose vectors are there: the mean of those of a text's sentences."""

    name, fingerprint, dimensions = "given", "given:1", 384

    def __init__(self, table: Table) -> None:
        self.table, self.seconds, self.spent = table, 0.0, 0.0

    def fit(self, texts: Any) -> None:
        """Nothing is learned."""

    def encode(self, texts: Any, progress: Any = None) -> np.ndarray:
        """One row for each text."""
        begun, spent = time.perf_counter(), time.process_time()
        known, rows, owners = self.table.number, [], []
        for k, text in enumerate(texts):
            parts = [text] if text in known else text.rpartition("\n")[2].replace(". ", ".\n").split("\n")
            for part in parts:
                rows.append(known.get(part, len(part) * 7919 % len(self.table.sentences)))
                owners.append(k)
        found = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        if rows:
            first = np.searchsorted(owners, np.arange(len(texts)))
            for at in range(0, len(texts), 1 << 14):
                end = min(at + (1 << 14), len(texts))
                last = first[end] if end < len(texts) else len(rows)
                part = self.table.vectors[rows[first[at] : last]]
                found[at:end] = np.add.reduceat(part, first[at:end] - first[at], axis=0)
            found /= np.linalg.norm(found, axis=1, keepdims=True)
        self.seconds += time.perf_counter() - begun
        self.spent += time.process_time() - spent
        return found

    def save(self, folder: Path) -> None:
        """Nothing is kept."""


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _now() -> float:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def _passages(table: Table, n: int, files: bool) -> list[Any]:
    from mio_rag.types import Passage

    make = Passage.from_dict if files else lambda fields: Passage(**fields)
    return [make(table.passage(k, files)) for k in range(n)]


def build(folder: Path, n: int, table: Table, files: bool) -> dict[str, Any]:
    """Build and save."""
    from mio_rag.retrieval.index import CorpusIndex

    passages, embedder = _passages(table, n, files), Given(table)
    held, begun, spent = _now(), time.perf_counter(), time.process_time()
    index = CorpusIndex.build(passages, embedder)
    built = time.perf_counter() - begun - embedder.seconds
    index.save(folder, overwrite=True)
    seconds, cpu = time.perf_counter() - begun - embedder.seconds, time.process_time() - spent
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    found = {
        "build_s": seconds,
        "build_cpu": cpu - embedder.spent,
        "save_s": seconds - built,
        "peak_mb": _megabytes(),
        "texts_mb": held,
    }
    return found | {"disk_mb": size / 1e6, "embed_s": embedder.seconds}


def search(folder: Path, n: int, table: Table, files: bool, mapped: bool = False) -> dict[str, Any]:
    """Open, and find pools."""
    embedder = Given(table)
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.retrieval.retriever import Retriever

    before, begun, spent = _now(), time.perf_counter(), time.process_time()
    index = CorpusIndex.load(folder, embedder, mapped=mapped)
    spent = time.process_time() - spent
    opened, held = time.perf_counter() - begun, _now()
    retriever, times, pools = Retriever(index), [], []
    begun = time.perf_counter()
    retriever.retrieve(table.questions[0])
    first = time.perf_counter() - begun
    for question in table.questions[1:61]:
        begun = time.process_time()
        pools.append(retriever.retrieve(question).ids)
        times.append(1000 * (time.process_time() - begun))
    words, near = [], []
    for question in table.questions[61:91]:
        begun = time.process_time()
        index.search_bm25(question, 200)
        words.append(1000 * (time.process_time() - begun))
        vector = embedder.encode([question])[0]
        begun = time.process_time()
        index.search_dense(vector, 200)
        near.append(1000 * (time.process_time() - begun))
    found = {
        "open_s": opened,
        "open_cpu": spent,
        "open_mb": held,
        "before_mb": before,
        "first_s": first,
        "peak_mb": _megabytes(),
    }
    found |= {f"{name}_ms": statistics.median(one) for name, one in
              (("pool", times), ("words", words), ("near", near))}  # fmt: skip
    return found | {"pool_p95_ms": float(np.quantile(times, 0.95)), "pools": pools}


if __name__ == "__main__":
    step, given, count, told = sys.argv[1:5]
    name, _, kind = step.partition("-")
    of = Table(Path(told))
    if name == "mapped":
        result = search(Path(given), int(count), of, kind == "files", True)
    else:
        result = globals()[name](Path(given), int(count), of, kind == "files")
    print(json.dumps(result))
