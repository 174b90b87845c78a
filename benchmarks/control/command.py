"""`python -m benchmarks control`: run what is not finished, then write JSON, table and picture."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.control.picture import draw, table
from benchmarks.control.study import MODELS, SETS, Set, run_calibrated, run_given
from benchmarks.control.summary import answered, begun, gather, summarize
from benchmarks.files import replaced, write_json
from mio_rag.errors import InputError, MioRagError
from mio_rag.evaluation.ledger import environment
from mio_rag.generation import Generator, make_generator
from mio_rag.retrieval.index import CorpusIndex

__all__ = ["add_options", "command"]

_ROUNDS = 50  # of the whole study


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--data", type=Path, required=True, help="folder that holds one folder for each set")
    parser.add_argument("--indexes", type=Path, required=True, help="folder that holds an index for hotpotqa")
    parser.add_argument(
        "--generator", required=True, help="for instance 'gguf:MODEL.gguf?slots=8&replies=FILE.sqlite'"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of finished rows; a run resumes there"
    )
    parser.add_argument(
        "--share",
        type=float,
        default=100.0,
        help="percent of the questions to ask (default: 100); 0 reports what all controllers have answered",
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/control.json"))


def command(given: argparse.Namespace) -> int:
    """Ask in rounds over all sets, calibrate, report."""
    try:
        if not 0 <= given.share <= 100:
            raise InputError(f"--share={given.share:g} must be in [0, 100]")
        indexes = {s.name: None if s.closed_book else CorpusIndex.load(given.indexes / s.name) for s in SETS}
        generator = make_generator(given.generator)
        try:
            results = _run(given, indexes, generator)
        finally:
            generator.close()
    except MioRagError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report = {
        "benchmark": "control",
        "generator": generator.name,
        "identity": generator.identity,
        "given": MODELS["given"].to_dict(),
        "results": results,
        **environment(),
    }
    write_json(given.out, report)
    text = table(results)
    with replaced(given.out.with_suffix(".txt")) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    draw(results, given.out.with_suffix(".png"))
    print(text)
    return 0


def _run(
    given: argparse.Namespace, indexes: dict[str, CorpusIndex | None], generator: Generator
) -> dict[str, Any]:
    for k in range(1, _ROUNDS + 1):
        share = min(k / _ROUNDS, given.share / 100)
        for chosen in SETS if share else ():
            # An earlier run may have got further: its failed answers are tried again in every round.
            upto = max(math.ceil(share * chosen.questions), begun(chosen, given.work))
            run_given(chosen, given.data, indexes[chosen.name], generator, given.work, upto, _say)
        if share >= given.share / 100:
            break
    return {s.name: _result(s, given, indexes[s.name], generator) for s in SETS}


def _result(
    chosen: Set, given: argparse.Namespace, index: CorpusIndex | None, generator: Generator
) -> dict[str, Any]:
    dataset = chosen.load(given.data)
    ids = [question.id for question in dataset.questions]
    upto = answered(chosen, ids, given.work)
    if upto < 2:
        raise InputError(f"{chosen.name}: fewer than 2 questions are answered by all: raise --share")
    calibration = run_calibrated(chosen, given.data, index, generator, given.work, upto, _say)
    measure = "accuracy" if dataset.questions[0].choices else "token_f1"
    return {
        "questions": upto,
        "planned": chosen.questions,
        "measure": measure,
        "closed_book": chosen.closed_book,
        "budget_tokens": None if chosen.closed_book else chosen.budget_tokens,
        "data_sha256": dataset.content_hash(),
        "calibration": calibration,
        **summarize(gather(chosen, ids, given.work), measure),
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
