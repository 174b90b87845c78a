"""`python -m benchmarks control`: run what is not finished, then write JSON, table and picture."""

from __future__ import annotations

import argparse
import math
from functools import partial
from typing import Any

from benchmarks.control.picture import draw, table
from benchmarks.control.study import MODELS, SETS, Set, run_calibrated, run_given
from benchmarks.control.summary import answered, begun, gather, summarize
from benchmarks.runner import Measured, note
from mio_rag.errors import InputError
from mio_rag.evaluation.ledger import environment
from mio_rag.generation import Generator, make_generator
from mio_rag.retrieval.index import CorpusIndex

_ROUNDS = 50  # of the whole study


def command(given: argparse.Namespace) -> Measured:
    """Ask in rounds over all sets, calibrate, report."""
    if not 0 <= given.share <= 100:
        raise InputError(f"--share={given.share:g} must be in [0, 100]")
    indexes = {s.name: None if s.closed_book else CorpusIndex.load(given.indexes / s.name) for s in SETS}
    generator = make_generator(given.generator)
    try:
        results = _run(given, indexes, generator)
    finally:
        generator.close()
    report = {
        "generator": generator.name,
        "identity": generator.identity,
        "given": MODELS["given"].to_dict(),
        "results": results,
        **environment(),
    }
    return Measured(report, table(results), partial(draw, results))


def _run(
    given: argparse.Namespace, indexes: dict[str, CorpusIndex | None], generator: Generator
) -> dict[str, Any]:
    for k in range(1, _ROUNDS + 1):
        share = min(k / _ROUNDS, given.share / 100)
        for chosen in SETS if share else ():
            # An earlier run may have got further: its failed answers are tried again in every round.
            upto = max(math.ceil(share * chosen.questions), begun(chosen, given.work))
            run_given(chosen, given.data, indexes[chosen.name], generator, given.work, upto, note)
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
    calibration = run_calibrated(chosen, given.data, index, generator, given.work, upto, note)
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
