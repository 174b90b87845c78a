"""`python -m benchmarks default`: what a newcomer gets, weights fitted with each set left out in turn."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from functools import partial
from importlib import metadata
from pathlib import Path

from benchmarks.default.models import EMBEDDERS, Pools, by_ranks, by_scores, pools_of
from benchmarks.default.picture import draw
from benchmarks.default.study import rows_of
from benchmarks.default.summary import over_budgets, summarize, table, totals
from mio_rag import __version__
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.files import write_atomically
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance import model as shipped
from mio_rag.retrieval import CorpusIndex

__all__ = ["add_options", "command"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--data", type=Path, required=True, help="folder that holds one folder for each set")
    parser.add_argument(
        "--indexes", type=Path, required=True, help="folder of indexes: SET-minilm and SET-tfidf for each set"
    )
    parser.add_argument("--sets", required=True, help="comma-separated; the order of the report")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of finished rows; a run resumes there"
    )
    parser.add_argument("--limit", type=int, default=400, help="questions of a set (default: 400)")
    parser.add_argument("--seed", type=int, default=0, help="of the questions' order (default: 0)")
    parser.add_argument("--time-limit", type=float, default=1.0, help="seconds a program (default: 1)")
    parser.add_argument("--ship", action="store_true", help="also write the weights that ship, of all sets")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/default.json"))


def command(given: argparse.Namespace) -> int:
    """Run what is not finished yet, then write JSON, table and picture."""
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    try:
        pools = {(name, embedder): _pools(given, name, embedder) for name in names for embedder in EMBEDDERS}
        if given.ship:
            _ship(list(pools.values()), pools)
        results, over, fitted = {}, {}, {name: _fitted(pools, name) for name in names}
        for (name, embedder), one in pools.items():
            models = _left_out(fitted[name], embedder)
            folder = given.work / f"{name}-{embedder}"
            rows = rows_of(folder, one, models, given.time_limit, partial(_told, folder.name))
            results[f"{name}, {embedder}"] = summarize(rows)
            over[f"{name}, {embedder}"] = over_budgets(rows)
    except InputError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    summed = totals(results)
    report = {
        "benchmark": "default",
        "seed": given.seed,
        "questions": {name: len(pools[name, "minilm"].questions) for name in names},
        "time_limit_seconds": given.time_limit,
        "counter": "regex",
        "totals": summed,
        "results": results,
        "over_budgets": over,
        "versions": {"mio-rag": __version__, **{p: metadata.version(p) for p in ("numpy", "scikit-learn")}},
        "machine": {"system": platform.system(), "processor": platform.machine()},
    }
    write_atomically(given.out, json.dumps(report, indent=1, allow_nan=False) + "\n")
    text = table(results, summed, over)
    write_atomically(given.out.with_suffix(".txt"), text + "\n")
    draw(results, given.out.with_suffix(".png"))
    print(text)
    return 0


def _told(where: str, row: str) -> None:
    _note(f"{where}: {row}")


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _pools(given: argparse.Namespace, name: str, embedder: str) -> Pools:
    index = CorpusIndex.load(given.indexes / f"{name}-{embedder}")
    found = pools_of(load_dataset(given.data / name), index, given.limit, given.seed)
    _note(f"{name}, {embedder}: {len(found.questions)} pools")
    return found


def _fitted(pools: dict[tuple[str, str], Pools], name: str) -> dict[str, RelevanceModel]:
    """Models for a set, fitted on the others: one for each embedder, for any, and for scores."""
    others = [one for (other, _), one in pools.items() if other != name]
    made = {"any": by_ranks(others, "left out, any"), "scores": by_scores(others, "left out, scores")}
    for embedder in EMBEDDERS:
        here = [one for (other, by), one in pools.items() if other != name and by == embedder]
        made[embedder] = by_ranks(here, "left out")
    _note(f"fitted without {name}")
    return made


def _left_out(fitted: dict[str, RelevanceModel], embedder: str) -> dict[str, RelevanceModel]:
    """What each row of a set with an embedder uses."""
    other = next(by for by in EMBEDDERS if by != embedder)
    return {"own": fitted[embedder], "other": fitted[other], "any": fitted["any"], "scores": fitted["scores"]}


def _ship(every: list[Pools], pools: dict[tuple[str, str], Pools]) -> None:
    folder = Path(shipped.__file__).parent
    made = {
        embedder: by_ranks([one for (_, by), one in pools.items() if by == embedder], embedder, fingerprint)
        for embedder, fingerprint in EMBEDDERS.items()
    }
    made |= {"ranks": by_ranks(every, "ranks"), "scores": by_scores(every, "scores")}
    for name, model in made.items():
        write_atomically(folder / f"{name}.json", json.dumps(model.to_dict(), indent=1) + "\n")
        _note(f"wrote {name}.json")
