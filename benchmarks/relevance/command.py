"""`python -m benchmarks relevance`: fit on one half of each set's questions, report on the other."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.relevance.methods import compared
from benchmarks.relevance.models import default_model, fit_pools, halves, load, models_of, store
from benchmarks.relevance.picture import draw, table
from benchmarks.relevance.study import Columns, ceilings, pools_of, run_method
from benchmarks.relevance.summary import calibration, summarize
from benchmarks.runner import Measured, note
from mio_rag.corpora.load import load_dataset
from mio_rag.relevance import Labelled, RelevanceModel
from mio_rag.retrieval import CorpusIndex
from mio_rag.retrieval.rerank import Reranker, make_reranker
from mio_rag.storage import write_atomically

_BUDGETS = (64, 128, 256, 384, 512, 768, 1024)
_ABLATION = (256, 512)


def command(given: argparse.Namespace) -> Measured | int:
    """Run what is not finished yet, then write JSON, table and picture."""
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    models = _models(given, names)
    if given.models_only:
        return 0
    results = {name: _set(given, name, models[name]) for name in names}
    report = {
        "seed": given.seed,
        "limit": given.limit,
        "reranker": given.rerank,
        "time_limit_seconds": given.time_limit,
        "relative_gap": 1e-3,
        "counter": "regex",
        "results": results,
    }
    return Measured(report, table(results), partial(draw, results))


def _models(given: argparse.Namespace, names: list[str]) -> dict[str, dict[str, RelevanceModel]]:
    """By set: its own models, those of all sets and of all others; from the work folder if there."""
    folder = given.work / "models"
    done = folder / "done.json"
    label = json.dumps([names, given.seed, given.limit, *([given.rerank] if given.rerank else [])])
    if not (done.is_file() and done.read_text(encoding="utf-8") == label):
        _fit_all(given, names, folder)
        write_atomically(done, label)
    made: dict[str, dict[str, RelevanceModel]] = {}
    for name in names:
        files = sorted((folder / name).glob("*.json")) if (folder / name).is_dir() else []
        made[name] = {file.stem: load(file) for file in [*files, folder / "default.json"]}
    return made


def _fit_all(given: argparse.Namespace, names: list[str], folder: Path) -> None:
    pools: dict[str, list[Labelled]] = {}
    reranker = _reranker(given)
    embedder = ""
    for name in names:
        found = fit_pools(given.data, given.indexes, name, given.seed, given.limit, reranker)
        if found[0]:
            embedder = CorpusIndex.load(given.indexes / name).embedder.fingerprint
            for key, model in models_of(name, found, embedder).items():
                store(folder / name / f"{key}.json", model)
            pools[name] = found[1]
        note(f"{name}: fitted on {len(found[0])} questions")
    store(folder / "default.json", default_model(pools, embedder))
    for name in names:
        others = {key: value for key, value in pools.items() if key != name}
        if name in pools and others:
            store(folder / name / "others.json", default_model(others, embedder, f"all but {name}"))
            note(f"{name}: fitted on the other sets")


def _reranker(given: argparse.Namespace) -> Reranker | None:
    return make_reranker(given.rerank) if given.rerank else None


def _set(given: argparse.Namespace, name: str, models: dict[str, RelevanceModel]) -> dict[str, Any]:
    dataset = load_dataset(given.data / name)
    split = halves(dataset, given.seed, given.limit)
    reranker = _reranker(given)
    pools = pools_of(CorpusIndex.load(given.indexes / name), split.report, reranker)
    if not split.by_passage:  # a set without passage labels has no model of its own
        models = models | {"links": models["default"]}
    columns: dict[str, Columns] = {}
    for one in compared(models, given.time_limit, reranker.name if reranker else None):
        budgets = _BUDGETS if one.every_budget else _ABLATION
        columns[one.name] = run_method(
            given.work / "rows" / name,
            split.report,
            pools,
            one,
            budgets,
            lambda text: note(f"{name}: {text}"),
        )
    return {
        "questions": len(split.report),
        "fitted_on": len(split.fit) if split.by_passage else 0,
        "gold": "passage" if split.by_passage else "document",
        "data_sha256": dataset.content_hash(),
        "ceilings": ceilings(split.report, pools),
        "calibration": calibration(models, split.report, pools[max(pools)]) if split.by_passage else {},
        **summarize(columns, _BUDGETS, 512),
    }
