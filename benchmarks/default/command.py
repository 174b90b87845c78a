"""`python -m benchmarks default`: what a newcomer gets, weights fitted with each set left out in turn."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.default.models import EMBEDDERS, Pools, by_ranks, by_scores, pools_of
from benchmarks.default.outside import Strangers, fit_answerable, read_for, strangers_of
from benchmarks.default.picture import draw
from benchmarks.default.study import rows_of
from benchmarks.default.summary import over_budgets, summarize, table, totals
from benchmarks.runner import Measured, note
from mio_rag.corpora.load import load_dataset
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance import model as shipped
from mio_rag.retrieval import CorpusIndex
from mio_rag.storage import write_atomically

_BY_COSINE = ("minilm",)  # whose best cosine tells whether there is an answer; that of TF-IDF does not


def command(given: argparse.Namespace) -> Measured:
    """Run what is not finished yet, then write JSON, table and picture."""
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    pools, strangers = _found(given, names)
    if given.ship:
        _ship(pools, strangers)
    results, over, outside = {}, {}, {}
    fitted = {name: _fitted(pools, strangers, name) for name in names}
    for (name, embedder), one in pools.items():
        models = _left_out(fitted[name], embedder)
        folder = given.work / f"{name}-{embedder}"
        rows = rows_of(folder, one, models, given.time_limit, partial(_told, folder.name))
        results[f"{name}, {embedder}"] = summarize(rows)
        over[f"{name}, {embedder}"] = over_budgets(rows)
        outside[f"{name}, {embedder}"] = read_for(
            one, strangers[name, embedder], models["own"], given.time_limit
        )
    summed = totals(results)
    report = {
        "seed": given.seed,
        "questions": {name: len(pools[name, "minilm"].questions) for name in names},
        "time_limit_seconds": given.time_limit,
        "counter": "regex",
        "totals": summed,
        "results": results,
        "over_budgets": over,
        "questions_from_outside": outside,
    }
    return Measured(report, table(results, summed, over, outside), partial(draw, results))


def _told(where: str, row: str) -> None:
    note(f"{where}: {row}")


def _found(
    given: argparse.Namespace, names: list[str]
) -> tuple[dict[tuple[str, str], Pools], dict[tuple[str, str], Strangers]]:
    """The pools of every set and embedder, for its own questions and for those of the other sets."""
    datasets = {name: load_dataset(given.data / name) for name in names}
    pools, strangers = {}, {}
    for name, dataset in datasets.items():
        for embedder in EMBEDDERS:
            index = CorpusIndex.load(given.indexes / f"{name}-{embedder}")
            found = pools[name, embedder] = pools_of(dataset, index, given.limit, given.seed)
            strangers[name, embedder] = strangers_of(name, index, datasets, given.seed)
            note(f"{name}, {embedder}: {len(found.questions)} pools")
    return pools, strangers


def _fitted(
    pools: dict[tuple[str, str], Pools], strangers: dict[tuple[str, str], Strangers], name: str
) -> dict[str, RelevanceModel]:
    """Models for a set, fitted on the others: one for each embedder, for any, and for scores."""
    others = [one for (other, _), one in pools.items() if other != name]
    made = {"any": by_ranks(others, "left out, any"), "scores": by_scores(others, "left out, scores")}
    for embedder in EMBEDDERS:
        here = [one for (other, by), one in pools.items() if other != name and by == embedder]
        made[embedder] = by_ranks(here, "left out")
    anyone = fit_answerable(pools, strangers, left_out=name)
    known = {by: fit_answerable(pools, strangers, embedder=by, left_out=name) for by in _BY_COSINE}
    note(f"fitted without {name}")
    return {by: replace(model, answerable=known.get(by, anyone)) for by, model in made.items()}


def _left_out(fitted: dict[str, RelevanceModel], embedder: str) -> dict[str, RelevanceModel]:
    """What each row of a set with an embedder uses."""
    other = next(by for by in EMBEDDERS if by != embedder)
    return {"own": fitted[embedder], "other": fitted[other], "any": fitted["any"], "scores": fitted["scores"]}


def _ship(pools: dict[tuple[str, str], Pools], strangers: dict[tuple[str, str], Strangers]) -> None:
    folder, every = Path(shipped.__file__).parent, list(pools.values())
    made = {
        embedder: by_ranks([one for (_, by), one in pools.items() if by == embedder], embedder, fingerprint)
        for embedder, fingerprint in EMBEDDERS.items()
    }
    made |= {"ranks": by_ranks(every, "ranks"), "scores": by_scores(every, "scores")}
    anyone = fit_answerable(pools, strangers)
    known = {by: fit_answerable(pools, strangers, embedder=by) for by in _BY_COSINE}
    for name, model in made.items():
        shippable = model if name == "scores" else replace(model, answerable=known.get(name, anyone))
        write_atomically(folder / f"{name}.json", json.dumps(shippable.to_dict(), indent=1) + "\n")
        note(f"wrote {name}.json")
