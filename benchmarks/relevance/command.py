"""`python -m benchmarks relevance`: fit on one half of each set's questions, report on the other."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.relevance.methods import compared
from benchmarks.relevance.models import default_model, fit_pools, halves, load, models_of, store
from benchmarks.relevance.picture import draw, table
from benchmarks.relevance.study import Columns, ceilings, pools_of, run_method
from benchmarks.relevance.summary import calibration, summarize
from mio_rag import __version__
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.files import write_atomically
from mio_rag.relevance import Labelled, RelevanceModel
from mio_rag.retrieval import CorpusIndex
from mio_rag.retrieval.rerank import make_reranker
from mio_rag.retrieval.reranker import Reranker

__all__ = ["add_options", "command"]

_BUDGETS = (64, 128, 256, 384, 512, 768, 1024)
_ABLATION = (256, 512)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--data", type=Path, required=True, help="folder that holds one folder for each set")
    parser.add_argument("--indexes", type=Path, required=True, help="folder that holds an index for each set")
    parser.add_argument("--sets", required=True, help="comma-separated; the order of the report")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of finished parts; a run resumes there"
    )
    parser.add_argument("--time-limit", type=float, default=1.0, help="seconds a program (default: 1)")
    parser.add_argument("--limit", type=int, help="questions of each half, for a quick look")
    parser.add_argument("--seed", type=int, default=0, help="of the split (default: 0)")
    parser.add_argument("--rerank", help="add rows with a re-ranker, as in `mio-rag select`: maxsim, ...")
    parser.add_argument("--models-only", action="store_true", help="fit the models and stop")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/relevance.json"))


def command(given: argparse.Namespace) -> int:
    """Run what is not finished yet, then write JSON, table and picture."""
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    try:
        models = _models(given, names)
        if given.models_only:
            return 0
        results = {name: _set(given, name, models[name]) for name in names}
    except InputError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    report = {
        "benchmark": "relevance",
        "seed": given.seed,
        "limit": given.limit,
        "reranker": given.rerank,
        "time_limit_seconds": given.time_limit,
        "relative_gap": 1e-3,
        "counter": "regex",
        "results": results,
        "versions": {
            "mio-rag": __version__,
            **{p: metadata.version(p) for p in ("numpy", "scikit-learn", "faiss-cpu", "bm25s")},
        },
        "machine": {"system": platform.system(), "processor": platform.machine()},
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out, json.dumps(report, indent=1, allow_nan=False) + "\n")
    text = table(results)
    write_atomically(given.out.with_suffix(".txt"), text + "\n")
    draw(results, given.out.with_suffix(".png"))
    print(text)
    return 0


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
        _note(f"{name}: fitted on {len(found[0])} questions")
    store(folder / "default.json", default_model(pools, embedder))
    for name in names:
        others = {key: value for key, value in pools.items() if key != name}
        if name in pools and others:
            store(folder / name / "others.json", default_model(others, embedder, f"all but {name}"))
            _note(f"{name}: fitted on the other sets")


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
            lambda text: _note(f"{name}: {text}"),
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
