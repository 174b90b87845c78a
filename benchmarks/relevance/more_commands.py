"""`python -m benchmarks transfer`, `tuned` and `latency`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import Any

from benchmarks.relevance import latency, transfer, tuned
from benchmarks.relevance.models import halves, load
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.ledger import environment
from mio_rag.retrieval import CorpusIndex
from mio_rag.solvers.branch_and_bound import warmup
from mio_rag.storage import write_atomically


def _names(given: argparse.Namespace) -> list[str]:
    return [name.strip() for name in given.sets.split(",") if name.strip()]


def _write(given: argparse.Namespace, report: dict[str, Any], text: str) -> int:
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out, json.dumps(report | environment(), indent=1, allow_nan=False) + "\n")
    write_atomically(given.out.with_suffix(".txt"), text + "\n")
    print(text)
    return 0


def transfer_command(given: argparse.Namespace) -> int:
    """Weights of each set on each set."""
    budgets = (256, 512)
    try:
        study = json.loads(given.study.read_text(encoding="utf-8"))["results"]
        found = transfer.transfer(
            given.data,
            given.indexes,
            _names(given),
            given.work / "models",
            study,
            budgets=budgets,
            limit=given.limit,
            seed=given.seed,
            time_limit=given.time_limit,
            progress=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except (InputError, OSError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = "\n\n".join(transfer.table(found, budget) for budget in budgets)
    return _write(given, {"benchmark": "transfer", "seed": given.seed, "results": found}, text)


def tuned_command(given: argparse.Namespace) -> int:
    """Everything tuned on one half, reported on the other."""
    found: dict[str, Any] = {}
    try:
        for name in _names(given):
            split = halves(load_dataset(given.data / name), given.seed, given.limit)
            own = given.work / "models" / name / "links.json"
            found[name] = {
                "questions": len(split.report),
                "fitted_on": len(split.fit),
                "budgets": tuned.tuned(
                    split,
                    CorpusIndex.load(given.indexes / name),
                    load(own if own.is_file() else given.work / "models" / "default.json"),
                    given.work / "tuned.sqlite",
                    budgets=[int(part) for part in given.budgets.split(",")],
                    trials=given.trials,
                    time_limit=given.time_limit,
                    progress=lambda text: print(text, file=sys.stderr, flush=True),
                ),
            }
    except (InputError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report = {"benchmark": "tuned", "seed": given.seed, "trials": given.trials, "limit": given.limit}
    return _write(given, report | {"results": found}, tuned.table(found))


def latency_command(given: argparse.Namespace) -> int:
    """The time of a new question, by stage."""
    found: dict[str, Any] = {}
    before = os.environ.get("MIO_RAG_CACHE")
    with tempfile.TemporaryDirectory() as folder:  # no question is known, none is remembered
        os.environ["MIO_RAG_CACHE"] = folder
        try:
            warmup()
            for name in _names(given):
                dataset = load_dataset(given.data / name)
                questions = halves(dataset, given.seed, given.questions + 3).report
                index = CorpusIndex.load(given.indexes / name)
                found[name] = latency.measure(index, questions, given.pool, given.budget_tokens)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        finally:
            os.environ.pop("MIO_RAG_CACHE")
            if before is not None:
                os.environ["MIO_RAG_CACHE"] = before
    load = os.getloadavg()[0]
    report = {"benchmark": "latency", "seed": given.seed, "pool": given.pool, "load": load, "results": found}
    return _write(given, report | {"budget_tokens": given.budget_tokens}, latency.table(found))
