"""The rows of `benchmarks.batch`: synthetic candidates from real embeddings.

Each takes a question's pool of MiniLM vectors (`speed.pools`), n of its 120 best passages at random, and the
cosine with a question vector that is shifted at random. Files are written one after the other, each whole, so
that any number of rows can be asked for, and writing them can be interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.files import replaced
from benchmarks.speed.pools import Pool
from mio_rag.errors import require

_FILE = 50_000
_GROUP = 1000
_DEEPEST = 120
_SHIFT = 0.02  # a coordinate of the question


def write_rows(
    folder: Path,
    pools: list[Pool],
    rows: int,
    items: int,
    seed: int,
    note: Callable[[str], None],
    *,
    embeddings: bool = True,
) -> Path:
    """A folder of candidates files, the same for the same arguments; files that are there are kept.

    Parameters
    ----------
    items : int
        Passages a row.
    note : callable
        Told of every file.
    embeddings : bool
        Whether rows hold vectors: nearly all of their bytes, and needed for redundancy alone.
    """
    for number, first in enumerate(range(0, rows, _FILE)):
        path = folder / f"{number:04d}-{items}-{seed}.parquet"
        if not path.exists():
            last = min(rows, first + _FILE)
            note(f"writing rows {first} to {last}")
            rng = np.random.default_rng([seed, number])
            _write(path, pools, range(first, last), items, rng, embeddings)
    return folder


def _write(
    path: Path, pools: list[Pool], rows: range, items: int, rng: np.random.Generator, embeddings: bool
) -> None:
    arrow: Any = require("pyarrow", "batch", "the benchmark")
    parquet: Any = require("pyarrow.parquet", "batch", "the benchmark")
    writer: Any = None
    with replaced(path) as temporary:
        for first in range(rows.start, rows.stop, _GROUP):
            numbers = range(first, min(rows.stop, first + _GROUP))
            if not embeddings:
                columns = _without_embeddings(pools, items, numbers, rng)
            else:
                made = [_row(pools, items, k, rng) for k in numbers]
                names = ("query_id", "ids", "relevance", "tokens")
                columns = {name: [row[name] for row in made] for name in names}
                vectors = np.concatenate([row["embeddings"] for row in made])
                lists = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.ravel()), vectors.shape[1])
                ends = arrow.array(np.arange(len(made) + 1) * items, arrow.int32())
                columns["embeddings"] = arrow.ListArray.from_arrays(ends, lists)
            table = arrow.table(columns)
            # Bytes of like weight next to each other take two thirds of the disk, and are read as fast.
            writer = writer or parquet.ParquetWriter(
                temporary,
                table.schema,
                compression="zstd",
                use_dictionary=False,
                use_byte_stream_split=["embeddings.list.element.list.element"] if embeddings else False,
                write_statistics=False,
            )
            writer.write_table(table)
        writer.close()


def _row(pools: list[Pool], items: int, number: int, rng: np.random.Generator) -> dict[str, Any]:
    pool = pools[int(rng.integers(len(pools)))]
    picked = rng.choice(min(len(pool), _DEEPEST), items, replace=False)
    query = pool.query + _SHIFT * rng.standard_normal(pool.query.size).astype(np.float32)
    relevance = (pool.embeddings[picked] @ (query / np.linalg.norm(query))).astype(np.float64)
    order = np.argsort(-relevance, kind="stable")
    picked = picked[order]
    return {
        "query_id": f"{pool.question}#{number}",
        "ids": [str(k) for k in picked],
        "relevance": relevance[order],
        "tokens": pool.tokens[picked],
        "embeddings": pool.embeddings[picked].astype(np.float16),
    }


def _without_embeddings(
    pools: list[Pool], items: int, rows: range, rng: np.random.Generator
) -> dict[str, Any]:
    """Rows like those of `_row`, all at once: a million of them take a minute."""
    drawn = rng.integers(len(pools), size=len(rows))
    names = [f"{pools[p].question}#{k}" for p, k in zip(drawn, rows, strict=True)]
    columns: dict[str, list[Any]] = {name: [None] * len(rows) for name in ("ids", "relevance", "tokens")}
    for number, pool in enumerate(pools):
        mine = np.flatnonzero(drawn == number)
        deepest = min(len(pool), _DEEPEST)
        picked = rng.random((mine.size, deepest)).argsort(axis=1)[:, :items]
        shifts = rng.standard_normal((mine.size, pool.query.size), dtype=np.float32)
        queries = pool.query + _SHIFT * shifts
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        cosines = np.take_along_axis(queries @ pool.embeddings[:deepest].T, picked, axis=1)
        order = np.argsort(-cosines, axis=1, kind="stable")
        best_first = np.take_along_axis(picked, order, axis=1)
        values = np.take_along_axis(cosines, order, axis=1).astype(np.float64)
        for k, own, worth in zip(mine.tolist(), best_first, values, strict=True):
            row = (list(map(str, own.tolist())), worth, pool.tokens[own])
            columns["ids"][k], columns["relevance"][k], columns["tokens"][k] = row
    return {"query_id": names, **columns}
