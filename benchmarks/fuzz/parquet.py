"""Rows for `select_batch`: bad ones are rejected with a reason, good ones are answered, each once."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet

from benchmarks.fuzz.endings import Wrong, strict
from benchmarks.fuzz.odd import TEXTS, chance, mutated_bytes, number, pick
from mio_rag.batch import select_batch
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions

_NAMES = ("texts", "titles", "sources", "clusters")
_VECTORS = {"query_embedding", "relevance", "tokens", "radius", "positions", "score:x"}
#: Arrow types that columns may come in; the first is the usual one.
_TYPES: dict[str, tuple[Any, ...]] = {
    "text": (arrow.string(), arrow.large_string(), arrow.dictionary(arrow.int32(), arrow.string())),
    "number": (
        arrow.float64(), arrow.float32(), arrow.float16(), arrow.int64(), arrow.int8(), arrow.uint64(),
    ),
    "other": (arrow.bool_(), arrow.binary(), arrow.date32(), arrow.decimal128(9, 2), arrow.null()),
}  # fmt: skip
_TEXTS = [text for text in TEXTS if text.encode("utf-8", "ignore").decode() == text]  # which Arrow can hold
_INTERNAL = re.compile(r"\b(\w+(Error|Exception|Warning)): ")
_SETTINGS: tuple[dict[str, Any], ...] = (
    {}, {}, {"redundancy_weight": 0.0}, {"radius": 0.1}, {"max_per_source": 1},
    {"solver": "branch_and_bound"}, {"link_benefit": 0.2}, {"prompt_order": "document"},
    {"passage_penalty": "auto"},
)  # fmt: skip
#: Column without which a setting has no row answered.
_NEEDS = {
    "radius": "query_embedding", "max_per_source": "sources", "link_benefit": "links",
    "prompt_order": "positions",
}  # fmt: skip


class Parquet:
    """Columns as plain lists, their types, which rows are good for sure, and bytes to damage."""

    def __init__(self, folder: Path) -> None:
        self._file, self._out = folder / "rows.parquet", folder / "out"

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a file of valid rows, some of them mutated, in columns of types that may be odd."""
        names = {"query_id", "ids"}
        names |= {"relevance"} if chance(rng, 0.7) else {"embeddings", "query_embedding"}
        names |= {"tokens"} if chance(rng, 0.7) else {"texts"}
        names |= {"embeddings"} if chance(rng, 0.6) else {"similarity"}
        optional = [*_NAMES, "links", "radius", "positions", "question", "score:x", "budget_tokens"]
        names |= {name for name in optional if chance(rng, 0.15)}
        names |= {"embeddings", "query_embedding"} if "radius" in names else set()
        rows = [_right(rng, sorted(names), k) for k in range(int(rng.integers(1, 9)))]
        good = []
        for row in rows:
            bent = chance(rng, 0.5)
            good.append(not bent)
            for _ in range(int(rng.integers(1, 3)) if bent else 0):
                _bend(rng, row, pick(rng, sorted(names)))
        types = {}
        if chance(rng, 0.3):
            name = pick(rng, sorted(names))
            types[name] = (pick(rng, list(_TYPES)), int(rng.integers(6)), int(rng.integers(3)))
        return {
            "rows": rows, "good": good, "types": types, "settings": pick(rng, _SETTINGS),
            "group_rows": int(rng.integers(1, 9)), "shard_rows": int(rng.integers(1, 9)),
            "damage": int(rng.integers(2**31)) if chance(rng, 0.1) else None,
        }  # fmt: skip

    def run(self, given: Any) -> str:
        """Write the file, choose, and count where every row went."""
        shutil.rmtree(self._out, ignore_errors=True)
        needs = {_NEEDS[name] for name in given["settings"] if name in _NEEDS}
        held = set(given["rows"][0]) if given["rows"] else set()
        sure = not given["types"] and given["damage"] is None and needs <= held
        try:
            table = _table(given["rows"], given["types"])
            parquet.write_table(table, self._file, row_group_size=given["group_rows"])
        except (arrow.ArrowException, TypeError, ValueError, OverflowError):
            return "no such file can be written"
        if given["damage"] is not None:
            rng = np.random.default_rng(given["damage"])
            self._file.write_bytes(mutated_bytes(rng, self._file.read_bytes()))
        selector = Selector.raw(options=SolveOptions(time_limit_seconds=1.0), **given["settings"])
        done = select_batch(self._file, self._out, 30, selector, workers=0, shard_rows=given["shard_rows"])
        if given["damage"] is None and done.rows != len(given["rows"]):
            raise Wrong("the batch counts other rows than the file holds", done.rows)
        self._check(given, done.rows, done.rejected, sure)
        return f"{'some' if done.rejected else 'no'} rows rejected"

    def _check(self, given: Any, rows: int, rejected: int, sure: bool) -> None:
        shards = [
            parquet.read_table(p).to_pylist() for p in sorted((self._out / "selections").glob("*.parquet"))
        ]
        answered = [row for shard in shards for row in shard]
        lines = (self._out / "rejected.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        refused = [json.loads(line) for line in lines]
        strict("summary.json", json.loads((self._out / "summary.json").read_text(encoding="utf-8")))
        times = Counter(row["row"] for row in [*answered, *refused])
        if times != Counter(range(rows)) or len(refused) != rejected:
            raise Wrong("a row is missing, or comes out twice", times)
        for row in refused:
            if not row["reasons"] or not all(reason.strip() for reason in row["reasons"]):
                raise Wrong("a row is rejected without a reason", row)
            internal = next((m for r in row["reasons"] if (m := _INTERNAL.search(r))), None)
            if internal is not None:
                raise Wrong(f"a row is rejected for an unexpected exception: {internal[1]}", row)
            if sure and given["good"][row["row"]]:
                raise Wrong("a good row is rejected", row["reasons"])
        for row in answered:
            _check_row(row, given["rows"][row["row"]] if given["damage"] is None else None, given)


def _right(rng: np.random.Generator, names: list[str], k: int) -> dict[str, Any]:
    n, d = int(rng.integers(1, 7)), 3
    pairs = np.triu(rng.random((n, n)), 1)
    made: dict[str, Any] = {
        "query_id": f"q{k}",
        "ids": [f"p{i}" for i in range(n)],
        "relevance": rng.random(n).tolist(),
        "tokens": rng.integers(1, 20, n).tolist(),
        "embeddings": rng.normal(size=(n, d)).tolist(),
        "query_embedding": rng.normal(size=d).tolist(),
        "similarity": (pairs + pairs.T).tolist(),
        "links": (pairs + pairs.T).tolist(),
        "radius": (0.1 * rng.random(n)).tolist(),
        "positions": list(range(n)),
        "question": "who?",
        "score:x": rng.random(n).tolist(),
        "budget_tokens": int(rng.integers(20, 60)),
        **{name: [pick(rng, ["a", "b c", "\u4e2d"]) for _ in range(n)] for name in _NAMES},
    }
    return {name: made[name] for name in names}


def _bend(rng: np.random.Generator, row: dict[str, Any], name: str) -> None:
    """Something of one column: null, shorter, longer, ragged, or with an odd entry."""
    before, way = row[name], int(rng.integers(5))
    nested = name in ("embeddings", "similarity", "links")
    if before is None or (way == 0 and isinstance(before, list)):
        row[name] = None
    elif not isinstance(before, list):
        odd = pick(rng, _TEXTS) if isinstance(before, str) else _float(rng)
        row[name] = odd if chance(rng, 0.8) else None
    elif way == 1:
        row[name] = before[: int(rng.integers(len(before) + 1))]
    elif way == 2:
        row[name] = [*before, *before[:1]]
    else:
        i = int(rng.integers(len(before))) if before else 0
        one = pick(rng, _TEXTS) if name in ("ids", *_NAMES) else _float(rng)
        if nested:
            one = pick(rng, [None, [], [one], [one, one, one], [None, 1.0, 2.0]])
        row[name] = [*before[:i], None if chance(rng, 0.2) else one, *before[i + 1 :]]


def _float(rng: np.random.Generator) -> float:
    odd = number(rng)
    return float(odd) if abs(odd) < 10**300 or isinstance(odd, float) else float("inf")


def _table(rows: list[dict[str, Any]], types: dict[str, Any]) -> Any:
    columns = {}
    for name in rows[0] if rows else ("query_id",):
        values = [row.get(name) for row in rows]
        text = name in ("query_id", "ids", "question", *_NAMES)
        usual = "text" if text else "number"
        depth = (
            0 if name in ("query_id", "question", "budget_tokens") else 1 if text or name in _VECTORS else 2
        )
        columns[name] = arrow.array(values, type=_type(usual, 0, 0, depth))
        if name in types:
            kind, which, shape = types[name]
            with contextlib.suppress(arrow.ArrowException):  # not of these values
                columns[name] = columns[name].cast(_type(kind, which, shape, depth), safe=False)
    return arrow.table(columns)


def _type(kind: str, which: int, shape: int, depth: int) -> Any:
    """The Arrow type of a column: lists in lists, large ones, or of a fixed size."""
    of = _TYPES[kind][which % len(_TYPES[kind])]
    for _ in range(depth):
        of = (arrow.list_, arrow.large_list, lambda inner: arrow.list_(inner, 3))[shape](of)
    return of


def _check_row(row: dict[str, Any], source: dict[str, Any] | None, given: Any) -> None:
    strict("a row of the output", row)
    if row["tokens_used"] > row["budget_tokens"]:
        raise Wrong("a row is answered above its budget", row)
    if row["bound"] is not None and row["objective"] is not None and row["bound"] < row["objective"]:
        raise Wrong("the bound of a row lies below its objective", row)
    if source is None or given["types"]:
        return
    if [source["ids"][i] for i in row["selected"]] != row["selected_ids"] or row["query_id"] != source[
        "query_id"
    ]:
        raise Wrong("a row is answered with ids that are not its own", row)
    tokens = source.get("tokens")
    if tokens is not None and sum(tokens[i] for i in row["selected"]) != row["tokens_used"]:
        raise Wrong("the tokens of a row are not the sum over its selection", row)
    budget = source.get("budget_tokens")
    if row["budget_tokens"] != (30 if budget is None else budget):
        raise Wrong("a row is answered at another budget than its own", row)
