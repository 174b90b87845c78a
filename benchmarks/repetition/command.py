"""`python -m benchmarks repetition`: what reading shared text once brings, and what choosing by it does."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np

from benchmarks.default.models import by_ranks, pools_of
from benchmarks.repetition.study import Corpus, fitted_weight, rows_of, settings_of
from benchmarks.repetition.summary import summarize, table
from benchmarks.repetition.windows import recut
from mio_rag import __version__
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.files import write_atomically
from mio_rag.relevance import RelevanceModel
from mio_rag.retrieval import CorpusIndex, Retriever

__all__ = ["add_options", "command"]

_OTHERS = 150  # questions of each other set that relevance is fitted on


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--data", type=Path, required=True, help="folder that holds one folder for each set")
    parser.add_argument("--indexes", type=Path, required=True, help="folder of indexes: SET-minilm for --fit")
    parser.add_argument("--set", default="squad2", help="set that is cut into windows (default: squad2)")
    parser.add_argument(
        "--fit", required=True, help="comma-separated other sets, which relevance is fitted on"
    )
    parser.add_argument("--words", type=int, default=90, help="of a window (default: 90)")
    parser.add_argument("--overlaps", default="0.5,0.2,0", help="shares of a window (default: 0.5,0.2,0)")
    parser.add_argument("--limit", type=int, default=250, help="questions (default: 250)")
    parser.add_argument("--held-out", type=int, default=100, help="questions that weights are measured on")
    parser.add_argument("--seed", type=int, default=0, help="of the questions and intervals (default: 0)")
    parser.add_argument("--time-limit", type=float, default=1.0, help="seconds a program (default: 1)")
    parser.add_argument("--work", type=Path, required=True, help="folder of indexes and finished rows")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/repetition.json"))


def command(given: argparse.Namespace) -> int:
    """Run what is not finished yet, then write JSON and table."""
    try:
        dataset = load_dataset(given.data / given.set)
        model = _model(given)
        results = {}
        for overlap in (float(part) for part in given.overlaps.split(",")):
            windows = recut(dataset, given.words, overlap)
            first, corpus = _corpora(given, windows)
            folder = given.work / windows.name
            rows = rows_of(folder, corpus, settings_of(model, given.time_limit), _note)
            results[windows.name] = {
                "windows": len(windows.passages),
                "questions": len(corpus.questions),
                "fitted_shared_text_weight": round(fitted_weight(first, model), 3) if overlap else None,
                **summarize(rows, given.seed),
            }
    except InputError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    report = {
        "benchmark": "repetition",
        "seed": given.seed,
        "relevance": model.provenance,
        "time_limit_seconds": given.time_limit,
        "counter": "regex",
        "results": results,
        "versions": {"mio-rag": __version__, **{p: metadata.version(p) for p in ("numpy", "scikit-learn")}},
        "machine": {"system": platform.system(), "processor": platform.machine()},
    }
    write_atomically(given.out, json.dumps(report, indent=1, allow_nan=False) + "\n")
    text = table(results)
    write_atomically(given.out.with_suffix(".txt"), text + "\n")
    print(text)
    return 0


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _model(given: argparse.Namespace) -> RelevanceModel:
    """Probabilities, fitted on other sets than the one that is reported."""
    path = given.work / "relevance.json"
    if path.is_file():
        return RelevanceModel.from_dict(json.loads(path.read_text(encoding="utf-8")))
    names = [name.strip() for name in given.fit.split(",") if name.strip() not in ("", given.set)]
    if not names:
        raise InputError("--fit names no other set than the one that is reported")
    sets = [
        pools_of(
            load_dataset(given.data / name),
            CorpusIndex.load(given.indexes / f"{name}-minilm"),
            _OTHERS,
            given.seed,
        )
        for name in names
    ]
    model = by_ranks(sets, "other sets", sets[0].pools[0].embedder)
    given.work.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(model.to_dict()))
    return model


def _corpora(given: argparse.Namespace, windows: Dataset) -> tuple[Corpus, Corpus]:
    """The questions that weights are measured on, and those that are reported."""
    folder = given.work / f"{windows.name}-index"
    if folder.is_dir():
        index = CorpusIndex.load(folder)
    else:
        _note(f"embedding {len(windows.passages)} windows")
        index = CorpusIndex.build(windows.passages, "minilm", windows.name)
        index.save(folder)
    asked = [question for question in windows.questions if question.answers]
    order = np.random.default_rng(given.seed).permutation(len(asked))
    chosen = [asked[k] for k in order[: given.held_out + given.limit]]
    pools = Retriever(index).retrieve_many([question.text for question in chosen])
    whole = Corpus(windows.name, tuple(chosen), tuple(pools))
    parts = (slice(given.held_out), slice(given.held_out, None))
    first, second = (replace(whole, questions=whole.questions[p], pools=whole.pools[p]) for p in parts)
    return first, second
