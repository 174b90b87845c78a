"""Judges of support on answers whose support is known.

Of each set, questions with gold passages and an accepted answer are drawn, no yes or no. A judge scores three
sentences for each: the gold answer with the gold passages (supported), the gold answer of the next question
with the same passages (a wrong answer), and the gold answer with the passages of the next question (wrong
passages). Reported is the area under the ROC curve against either error, with a 95 % bootstrap interval over
questions. The rival of the embedding judge embeds question and answer together.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import Measured
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.ledger import environment
from mio_rag.measures import normalize_answer
from mio_rag.measures.judges import EmbeddingJudge, WordJudge
from mio_rag.retrieval.embedders import Embedder, make_embedder

_DRAWS = 1000
_KINDS = ("words", "embedding", "embedding of question and answer")


def command(given: argparse.Namespace) -> Measured:
    """Measure every set, write the report, and print it."""
    if given.questions < 2:
        raise InputError(f"--questions={given.questions} must be >= 2")
    folder = Path(given.data)
    chosen = [name for name in given.sets.split(",") if name]
    several = folder.is_dir() and not any(folder.glob("corpus.jsonl*"))
    sources: list[str | Path] = [given.data]
    if several:
        sources = [folder / name for name in chosen or sorted(p.name for p in folder.iterdir() if p.is_dir())]
    embedder = make_embedder(given.embedder)
    sets = {}
    for source in sources:
        if several and not any(Path(source).glob("corpus.jsonl*")):
            continue
        data = load_dataset(source)
        sets[data.name] = measured(data, embedder, given.questions, given.seed)
    text = "\n".join(_shown(name, found) for name, found in sets.items())
    return Measured({"embedder": embedder.fingerprint, "sets": sets, **environment()}, text)


def measured(data: Dataset, embedder: Embedder, count: int, seed: int) -> dict[str, Any]:
    """Areas of the judges of one set."""
    found: dict[str, Any] = {"data_sha256": data.content_hash(), "judges": None}
    by_id = {p.id: p for p in data.passages}
    asked = [
        q
        for q in data.questions
        if q.gold_ids and q.answers and normalize_answer(q.answers[0]) not in ("yes", "no", "maybe", "")
    ]
    order = np.random.default_rng(seed).permutation(len(asked))[:count]
    drawn = [asked[int(k)] for k in order]
    if len(drawn) < 2:
        return found
    words, embedding = WordJudge(), EmbeddingJudge(embedder)
    scores = {kind: np.zeros((len(drawn), 3)) for kind in _KINDS}
    for k, question in enumerate(drawn):
        other = drawn[(k + 1) % len(drawn)]
        read = tuple(by_id[i] for i in question.gold_ids)
        elsewhere = tuple(by_id[i] for i in other.gold_ids)
        cases = (
            (question.answers[0], read),
            (other.answers[0], read),
            (question.answers[0], elsewhere),
        )
        for j, (said, passages) in enumerate(cases):
            scores["words"][k, j] = words.score(said, passages)
            scores["embedding"][k, j] = embedding.score(said, passages)
            together = embedding.score(f"{question.text} {said}", passages)
            scores["embedding of question and answer"][k, j] = together
    found["judges"] = {
        kind: {
            "wrong answer": _with_interval(values[:, 0], values[:, 1], seed),
            "wrong passages": _with_interval(values[:, 0], values[:, 2], seed),
        }
        for kind, values in scores.items()
    }
    found["questions"] = len(drawn)
    return found


def area(right: NDArray[np.float64], wrong: NDArray[np.float64]) -> float:
    """Probability that a supported sentence scores above one that is not; ties count half."""
    above = (right[:, None] > wrong[None, :]).mean()
    return float(above + 0.5 * (right[:, None] == wrong[None, :]).mean())


def _with_interval(right: NDArray[np.float64], wrong: NDArray[np.float64], seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(right), (_DRAWS, len(right)))
    low, high = np.percentile([area(right[r], wrong[r]) for r in rows], [2.5, 97.5])
    return {"area": area(right, wrong), "low": float(low), "high": float(high)}


def _shown(name: str, found: dict[str, Any]) -> str:
    lines = [name]
    for kind, errors in (found["judges"] or {}).items():
        told = ", ".join(
            f"{e} {v['area']:.3f} ({v['low']:.3f} to {v['high']:.3f})" for e, v in errors.items()
        )
        lines.append(f"  {kind}: {told}")
    return "\n".join(lines)
