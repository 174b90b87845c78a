"""`python -m benchmarks repetition`: what reading shared text once brings, and what choosing by it does."""

from __future__ import annotations

import argparse
import itertools
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.repetition.answers import model_answers
from benchmarks.repetition.corpora import BENT, Cut, corpora_of, fitted_model
from benchmarks.repetition.own import own_rows
from benchmarks.repetition.picture import draw
from benchmarks.repetition.study import MAIN, fitted_weight, rows_of, settings_of
from benchmarks.repetition.summary import in_order, summarize, table
from benchmarks.runner import note
from mio_rag import __version__
from mio_rag.errors import InputError
from mio_rag.storage import read_json, write_atomically


def command(given: argparse.Namespace) -> int:
    """Run what is not finished yet; JSON, table and picture hold every corpus so far after each one."""
    for cut in _cuts(given):
        _add(given, cut.name, _answered(given, cut) if given.generator else _measured(given, cut))
    print(table(_known(given.out)["results"]))
    return 0


def _cuts(given: argparse.Namespace) -> list[Cut]:
    bent = [part.strip() for part in given.bent.split(",")]
    if strange := sorted(set(bent) - set(BENT)):
        raise InputError(f"--bent {', '.join(strange)} is unknown: choose {', '.join(BENT)}")
    names, overlaps = given.sets.split(","), [float(part) for part in given.overlaps.split(",")]
    sizes = [0] if given.words else [int(part) for part in given.tokens.split(",")]
    return [
        Cut(given.data, name.strip(), given.embedder, tokens, given.words, overlap, kind, given.within)
        for name, tokens, overlap, kind in itertools.product(names, sizes, overlaps, bent)
    ]


def _measured(given: argparse.Namespace, cut: Cut) -> dict[str, Any]:
    """The rows of a corpus, and what they were measured on."""
    model = fitted_model(given.data, given.indexes, given.work, cut, given.fit, given.seed)
    first, corpus = corpora_of(cut, given.work, given.held_out, given.limit, given.seed, note)
    settings = settings_of(model, given.time_limit)
    if given.short:
        settings = {name: settings[name] for name in MAIN}
    rows = rows_of(given.work / cut.name, corpus, settings, note)
    if given.own:
        rows |= own_rows(given.work / cut.name, corpus, model, settings, given.seed, note)
    weighed = cut.overlap > 0 and not corpus.by_figures and cut.bent != "notice"
    return {
        "windows": len(cut.windows().passages),
        "questions": len(corpus.questions),
        "found": "share of the answer's figures" if corpus.by_figures else "answer word for word",
        "relevance": model.provenance,
        "fitted_shared_text_weight": round(fitted_weight(first, model), 3) if weighed else None,
        "seed": given.seed,
        "time_limit_seconds": given.time_limit,
        "versions": {"mio-rag": __version__, **{p: metadata.version(p) for p in ("numpy", "scikit-learn")}},
        **summarize(rows, given.seed),
    }


def _answered(given: argparse.Namespace, cut: Cut) -> dict[str, Any]:
    """The rows that are known of a corpus, and what a model answers beside them."""
    known = _known(given.out)["results"].get(cut.name)
    if known is None:
        raise InputError(f"'{given.out}' has no rows of {cut.name} yet: run it without --generator first")
    model = fitted_model(given.data, given.indexes, given.work, cut, given.fit, given.seed)
    _, corpus = corpora_of(cut, given.work, given.held_out, given.limit, given.seed, note)
    found = model_answers(given.generator, given.work, corpus, model, given.answers, given.seed, note)
    return {**known, "model_answers": found}


def _known(out: Path) -> dict[str, Any]:
    if out.is_file() and (found := read_json(out)).get("benchmark") == "repetition":
        return dict(found)
    machine = {"system": platform.system(), "processor": platform.machine()}
    return {"benchmark": "repetition", "counter": "regex", "machine": machine, "results": {}}


def _add(given: argparse.Namespace, name: str, measured: dict[str, Any]) -> None:
    report = _known(given.out)
    report["results"] = in_order({**report["results"], name: measured})
    write_atomically(given.out, json.dumps(report, indent=1, allow_nan=False) + "\n")
    write_atomically(given.out.with_suffix(".txt"), table(report["results"]) + "\n")
    draw(report["results"], given.out.with_suffix(".png"))
    note(f"{name}: done")
