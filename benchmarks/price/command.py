"""`python -m benchmarks price`: tokens spent where they pay, on a workload of several sets."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks.default.models import Pools, by_ranks, pools_of
from benchmarks.price.scale import scale
from benchmarks.price.study import CEILING, Asked, asked_of, rows_of
from benchmarks.price.summary import compared, draw, summarized, table
from benchmarks.runner import Measured, note
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.retrieval import CorpusIndex

_WEIGHTS = {
    "left-out": "for each set, weights fitted on the other sets of this workload alone",
    "shipped": "the weights that ship, fitted on questions of these sets among others: in part the same",
}


def command(given: argparse.Namespace) -> Measured | int:
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
    rows = rows_of(asked, given.time_limit, note)
    summary, pairs = summarized(rows, asked), compared(rows)
    counts = {name: sum(one.data == name for one in asked) for name in names}
    about = (
        f"{len(asked)} questions ({', '.join(f'{count} of {name}' for name, count in counts.items())}); "
        f"{_WEIGHTS[given.weights]};\npools of 50, one link deep; at most {CEILING} tokens a question; mean "
        "and 95 % interval"
    )
    report = {
        "seed": given.seed,
        "questions": counts,
        "weights": {"kind": given.weights, "meaning": _WEIGHTS[given.weights]},
        "ceiling": CEILING,
        "counter": "regex",
        "time_limit_seconds": given.time_limit,
        "rows": summary,
        "pairs": pairs,
    }
    return Measured(report, table(summary, pairs, about), partial(draw, summary))


def _asked(given: argparse.Namespace, names: list[str]) -> list[Asked]:
    pools: dict[str, Pools] = {}
    for name in names:
        index = CorpusIndex.load(given.indexes / f"{name}-minilm")
        pools[name] = pools_of(load_dataset(given.data / name), index, given.limit, given.seed)
        note(f"{name}: {len(pools[name].questions)} pools")
    asked = []
    for name in names:
        others = [one for other, one in pools.items() if other != name]
        model = by_ranks(others, "left out") if given.weights == "left-out" else None
        asked += asked_of(pools[name], model)
    return asked
