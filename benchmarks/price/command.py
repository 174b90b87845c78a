"""`python -m benchmarks price`: tokens spent where they pay, on a workload of several sets."""

from __future__ import annotations

import argparse
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.default.models import Pools, by_ranks, pools_of
from benchmarks.files import replaced, write_json
from benchmarks.price.scale import add_scale_options, scale
from benchmarks.price.study import CEILING, Asked, asked_of, rows_of
from benchmarks.price.summary import compared, draw, summarized, table
from mio_rag import __version__
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.retrieval import CorpusIndex

__all__ = ["add_options", "command"]

_WEIGHTS = {
    "left-out": "for each set, weights fitted on the other sets of this workload alone",
    "shipped": "the weights that ship, fitted on questions of these sets among others: in part the same",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--data", type=Path, help="folder that holds one folder for each set")
    parser.add_argument("--indexes", type=Path, help="folder of indexes: SET-minilm")
    parser.add_argument("--sets", help="comma-separated; two or more")
    parser.add_argument("--limit", type=int, default=150, help="questions of a set (default: 150)")
    parser.add_argument("--seed", type=int, default=1, help="of the questions' order (default: 1)")
    parser.add_argument("--weights", choices=tuple(_WEIGHTS), default="left-out", help="of relevance")
    parser.add_argument("--time-limit", type=float, default=1.0, help="seconds a program (default: 1)")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/price[-scale].json")
    add_scale_options(parser)


def command(given: argparse.Namespace) -> int:
    """Ask, decide, and write JSON, table and picture."""
    name = "price" if given.scale is None else "price-scale"
    given.out = given.out or Path(f"benchmarks/results/{name}.json")
    if given.scale is not None:
        return scale(given)
    missing = [f"--{name} is missing" for name in ("data", "indexes", "sets") if getattr(given, name) is None]
    if missing:
        raise InputError(missing)
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    if len(names) < 2:
        raise InputError(f"--sets={given.sets!r} must name two sets or more: a workload is mixed")
    asked = _asked(given, names)
    rows = rows_of(asked, given.time_limit, _note)
    summary, pairs = summarized(rows, asked), compared(rows)
    counts = {name: sum(one.data == name for one in asked) for name in names}
    about = (
        f"{len(asked)} questions ({', '.join(f'{count} of {name}' for name, count in counts.items())}); "
        f"{_WEIGHTS[given.weights]};\npools of 50, one link deep; at most {CEILING} tokens a question; mean "
        "and 95 % interval"
    )
    write_json(
        given.out,
        {
            "benchmark": "price",
            "seed": given.seed,
            "questions": counts,
            "weights": {"kind": given.weights, "meaning": _WEIGHTS[given.weights]},
            "ceiling": CEILING,
            "counter": "regex",
            "time_limit_seconds": given.time_limit,
            "rows": summary,
            "pairs": pairs,
            "versions": {"mio-rag": __version__, "numpy": metadata.version("numpy")},
        },
    )
    text = table(summary, pairs, about)
    with replaced(given.out.with_suffix(".txt")) as partial:
        partial.write_text(text + "\n", encoding="utf-8")
    draw(summary, given.out.with_suffix(".png"))
    print(text)
    return 0


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _asked(given: argparse.Namespace, names: list[str]) -> list[Asked]:
    pools: dict[str, Pools] = {}
    for name in names:
        index = CorpusIndex.load(given.indexes / f"{name}-minilm")
        pools[name] = pools_of(load_dataset(given.data / name), index, given.limit, given.seed)
        _note(f"{name}: {len(pools[name].questions)} pools")
    asked = []
    for name in names:
        others = [one for other, one in pools.items() if other != name]
        model = by_ranks(others, "left out") if given.weights == "left-out" else None
        asked += asked_of(pools[name], model)
    return asked
