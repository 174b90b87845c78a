"""Pools of overlapping windows: real documents cut every few words, and what the windows share.

All passages of a title are one document. It is cut into windows of `WORDS` words, each of which repeats a
share of the one before. Text between two neighbouring borders is a segment, and so is the title; each has the
tokens that MiniLM's tokenizer counts. The pool of a question is the `POOL` windows of the largest MiniLM
cosine, and `OWN_TOKENS` of each are its own. Of a large set `DOCUMENTS` documents are cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import note
from benchmarks.speed.cells import calibrated
from benchmarks.speed.pools import Arrays, Counter, drawn_arrays, minilm
from mio_rag.corpora.dataset import Dataset
from mio_rag.formulations import Segments, SelectionProgram, with_token_price
from mio_rag.formulations.robust import nominal_program
from mio_rag.types import Passage, Question

WORDS, POOL, DOCUMENTS, OWN_TOKENS = 90, 100, 500, 2
#: Shares of a window that the next one repeats.
OVERLAPS = (0.0, 0.2, 0.5)


@dataclass(frozen=True, eq=False)
class WindowPool:
    """The pool of one question at one overlap, best first.

    question: data set and id of the question.
    cosine: shape (n,); embeddings: unit rows, shape (n, 384).
    costs: tokens of each segment, shape (m,); needs: shape (n, m).
    """

    question: str
    overlap: float
    cosine: NDArray[np.float64]
    embeddings: NDArray[np.float32]
    costs: NDArray[np.float64]
    needs: NDArray[np.bool_]


@dataclass(frozen=True, order=True)
class SharedCell:
    """One setting: overlap, windows n, weight of redundancy, price of a token, budget in tokens."""

    overlap: float
    n: int
    redundancy: float
    price: float
    budget: int

    @property
    def name(self) -> str:
        """As it is reported, for instance ``shared/o50/n100/l0.3/t0.0002/b1024``."""
        of = f"shared/o{100 * self.overlap:.0f}/n{self.n}"
        return f"{of}/l{self.redundancy:g}/t{self.price:g}/b{self.budget}"


def shared_cells() -> list[SharedCell]:
    """Every cell, the small ones first."""
    return [
        SharedCell(overlap, n, redundancy, price, budget)
        for n in (50, 100)
        for overlap in OVERLAPS
        for redundancy in (0.0, 0.3)
        for price in (0.0, 0.0002, 0.001)
        for budget in (512, 1024)
    ]


def shared_program(pool: WindowPool, cell: SharedCell) -> SelectionProgram | None:
    """The program of a pool in a cell; None where the pool is too small.

    Values are those of a calibrated model. With redundancy, similarity counts as far as both windows are
    relevant, and what two windows have in common counts once: the lower of their values, times the share of
    the shorter one that both hold.
    """
    n = cell.n
    if pool.cosine.size < n:
        return None
    value, vectors = calibrated(pool.cosine[:n]), pool.embeddings[:n].astype(np.float64)
    shared = Segments(pool.costs, pool.needs[:n])
    root = np.sqrt(value)
    program = nominal_program(
        value,
        np.outer(root, root) * (vectors @ vectors.T),
        np.full(n, OWN_TOKENS),
        cell.budget,
        redundancy_weight=cell.redundancy,
    )
    pairwise = program.pairwise
    if cell.redundancy > 0:
        length = np.maximum(shared.alone, 1.0)
        common = shared.overlap(shared.costs) / np.minimum.outer(length, length)
        pairwise = pairwise + common * np.minimum.outer(value, value)
    whole = SelectionProgram(program.linear, pairwise, program.costs, cell.budget, segments=shared)
    return with_token_price(whole, cell.price)


def load_windows(
    folder: Path | None, names: Sequence[str], questions: int, seed: int
) -> tuple[list[WindowPool], dict[str, Any]]:
    """Return pools of questions at every overlap, and their description, as `pools.load_pools`."""
    about = {"words": WORDS, "overlaps": list(OVERLAPS), "documents": DOCUMENTS, "pool": POOL}
    rows, made_of = drawn_arrays("windows", folder, names, questions, seed, about, _build)
    made = [WindowPool(**{**r, "question": str(r["question"]), "overlap": float(r["overlap"])}) for r in rows]
    twice = {
        f"{overlap:g}": float(
            np.median(
                [
                    1 - p.costs[p.needs.any(axis=0)].sum() / (p.needs @ p.costs).sum()
                    for p in made
                    if p.overlap == overlap
                ]
            )
        )
        for overlap in OVERLAPS
    }
    return made, {**made_of, "tokens_read_twice_median": twice}


def _build(
    name: str, data: Dataset, asked: list[Question], rng: np.random.Generator
) -> Iterator[list[Arrays]]:
    embedder, counter = minilm()
    documents = _documents(data.passages, {i for q in asked for i in q.gold_ids}, rng)
    queries = embedder.encode([q.text for q in asked])
    per_overlap: list[list[Arrays]] = []
    for overlap in OVERLAPS:
        windows = [window for title, words in documents.items() for window in _cut(title, words, overlap)]
        note(f"{name}: embedding {len(windows)} windows that overlap by {overlap:.0%}")
        vectors = embedder.encode([w.text for w in windows])
        pools = []
        for question, query in zip(asked, queries, strict=True):
            cosine = (vectors @ query).astype(np.float64)
            best = np.argsort(-cosine, kind="stable")[:POOL]
            costs, needs = _segments([windows[int(k)] for k in best], counter)
            pools.append(
                {
                    "question": f"{name}/{question.id}", "overlap": overlap, "cosine": cosine[best],
                    "embeddings": vectors[best], "costs": costs, "needs": needs,
                }
            )  # fmt: skip
        per_overlap.append(pools)
    yield from (list(same) for same in zip(*per_overlap, strict=True))


@dataclass(frozen=True)
class _Window:
    """A window: the title, and its segments as (place in the document, text)."""

    title: str
    parts: tuple[tuple[int, str], ...]

    @property
    def text(self) -> str:
        """What is embedded."""
        return "\n".join([self.title, " ".join(text for _, text in self.parts)])


def _documents(
    passages: Sequence[Passage], wanted: set[str], rng: np.random.Generator
) -> dict[str, list[str]]:
    """Words of the documents by title: those of wanted passages first, up to `DOCUMENTS`."""
    words: dict[str, list[str]] = {}
    needed: dict[str, None] = {}
    for passage in passages:
        words.setdefault(passage.title, []).extend(passage.text.split())
        if passage.id in wanted:
            needed[passage.title] = None
    others = [title for title in words if title not in needed]
    drawn = [others[int(k)] for k in rng.permutation(len(others))]
    return {title: words[title] for title in [*needed, *drawn][:DOCUMENTS]}


def _cut(title: str, words: Sequence[str], overlap: float) -> list[_Window]:
    """The windows of a document; the last one ends with it."""
    step = WORDS - round(WORDS * overlap)
    starts = list(range(0, max(len(words) - WORDS, 0) + step, step))
    spans = [(a, min(a + WORDS, len(words))) for a in starts if a == 0 or a + WORDS - step < len(words)]
    borders = sorted({place for span in spans for place in span})
    windows = []
    for first, last in spans:
        inside = [b for b in borders if first <= b <= last]
        parts = [(a, " ".join(words[a:b])) for a, b in itertools.pairwise(inside)]
        windows.append(_Window(title, tuple(parts)))
    return windows


def _segments(windows: Sequence[_Window], counter: Counter) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return tokens of every segment of some windows, titles among them, and which window needs which."""
    at: dict[tuple[str, int], int] = {}
    texts: list[str] = []
    needs: list[list[int]] = []
    for window in windows:
        mine = []
        for place, text in ((-1, window.title), *window.parts):
            if (window.title, place) not in at:
                at[window.title, place] = len(texts)
                texts.append(text)
            mine.append(at[window.title, place])
        needs.append(mine)
    costs = np.array(counter.count(texts), dtype=np.float64)
    matrix = np.zeros((len(windows), len(texts)), dtype=bool)
    for i, mine in enumerate(needs):
        matrix[i, mine] = True
    return costs, matrix
