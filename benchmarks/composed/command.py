"""`python -m benchmarks composed`: completeness, contenders at equal tokens, and the load test."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.composed.complete import Rows, fitted, left_out, rows_of, studied
from benchmarks.composed.costs import costs_of
from benchmarks.composed.language import (
    LANGUAGE_TIERS,
    PARTS,
    Asked,
    Reader,
    bandit_of,
    contenders,
    planner_of,
    rows_of_readers,
)
from benchmarks.composed.language_summary import PLAIN, table_of, told_of
from benchmarks.composed.load import load
from benchmarks.composed.local import with_model
from benchmarks.composed.overhead import overhead
from benchmarks.composed.own import SIZES, curve_of
from benchmarks.composed.picture import draw_contenders, draw_costs, draw_reliability
from benchmarks.composed.study import CONTENDERS, Source, knobs_of, trained
from benchmarks.composed.study import rows_of as contender_rows
from benchmarks.composed.summary import summarize, table
from benchmarks.default.models import EMBEDDERS, Pools, pools_of
from benchmarks.runner import note
from mio_rag import __version__
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.relevance import complete as shipped
from mio_rag.retrieval import CorpusIndex
from mio_rag.storage import read_json, write_atomically

_PARTS = ("complete", "costs", "evidence", "language", "load", "model")


def command(given: argparse.Namespace) -> int:
    """Run one part, write JSON, table and picture; 1 where the load test found what must not be."""
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    if given.part not in ("costs", "load", "model") and (
        not names or given.data is None or given.indexes is None
    ):
        raise InputError(f"--part {given.part} needs --data, --indexes and --sets")
    if given.part == "complete":
        return _complete(given, names)
    if given.part == "costs":
        return _costs(given)
    parts = {"evidence": _evidence, "language": _language}
    return parts[given.part](given, names) if given.part in parts else _load(given)


def _report(given: argparse.Namespace, part: str, found: dict[str, Any]) -> None:
    told = {
        "benchmark": f"composed, {part}",
        "seed": given.seed,
        **found,
        "versions": {"mio-rag": __version__, **{p: metadata.version(p) for p in ("numpy", "scikit-learn")}},
        "machine": {"system": platform.system(), "processor": platform.machine()},
    }
    path = given.out / f"composed-{part}.json"
    given.out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(told, indent=1, allow_nan=False) + "\n")


def _complete(given: argparse.Namespace, names: list[str]) -> int:
    paths = {(name, by): given.work / "rows" / f"{name}-{by}.npz" for name in names for by in EMBEDDERS}
    pools: dict[tuple[str, str], Pools] = {}
    if not all(path.is_file() for path in paths.values()):
        for name, by in paths:
            index = CorpusIndex.load(given.indexes / f"{name}-{by}")
            pools[name, by] = pools_of(load_dataset(given.data / name), index, given.limit, given.seed)
            note(f"{name}, {by}: pools")
    rows: list[Rows] = []
    for name in names:
        open_ = [by for by in EMBEDDERS if not paths[name, by].is_file()]
        models = left_out(pools, name) if open_ else {}
        rows += [
            rows_of(name, by, paths[name, by], pools.get((name, by)), models.get(by), note)
            for by in EMBEDDERS
        ]
    unseen = _unseen(given)
    found = studied(rows)
    counts = {one.name: len(one.complete) for one in rows}
    own = curve_of(rows, unseen, given.seed)
    asked = counts | {one.name: len(one.complete) for one in unseen}
    _report(given, "complete", {"questions": asked, "results": found, "own questions": own})
    draw_reliability(found, own, given.out / "composed-complete.png")
    for kind, one in found.items():
        off = ", ".join(f"{name} {told['calibration_error']:.3f}" for name, told in one["sets"].items())
        print(
            f"{kind:14} off by {one['all']['calibration_error']:.3f}, Brier {one['all']['brier']:.3f}: {off}"
        )
    for kind, curve in own.items():
        print(f"{kind}: each set off by, with so many questions of one's own ({', '.join(map(str, SIZES))})")
        for way, by_size in curve.items():
            each = ", ".join(f"{one['each set']:.3f}" for one in by_size.values())
            together = ", ".join(f"{one['together']:.3f}" for one in by_size.values())
            print(f"  {way:16} {each}; all sets together {together}")
    if given.ship:
        listed = ", ".join(f"{count} of {name}" for name, count in counts.items())
        about = {
            "fitted": f"questions of public sets ({listed}), by two embedders, at six prices; relevance "
            "weighed without the set. Only numbers are kept.",
            "calibration_error": {kind: one["all"]["calibration_error"] for kind, one in found.items()},
        }
        write_atomically(Path(shipped.__file__).parent / "complete.json", fitted(rows, about).to_json())
    return 0


def _unseen(given: argparse.Namespace) -> list[Rows]:
    """Sets that nothing was fitted on, by what ships."""
    made = []
    for name in (name.strip() for name in given.unseen.split(",") if name.strip()):
        for by in EMBEDDERS:
            path = given.work / "rows" / f"{name}-{by}.npz"
            pools = None
            if not path.is_file():
                index = CorpusIndex.load(given.indexes / f"{name}-{by}")
                pools = pools_of(load_dataset(given.data / name), index, given.limit, given.seed)
            made.append(rows_of(name, by, path, pools, None, note))
    return made


def _sources(given: argparse.Namespace, names: list[str]) -> list[Source]:
    return [
        Source.of(
            load_dataset(given.data / name),
            CorpusIndex.load(given.indexes / f"{name}-minilm"),
            given.training,
            given.asked,
            given.seed,
        )
        for name in names
    ]


def _evidence(given: argparse.Namespace, names: list[str]) -> int:
    sources = _sources(given, names)
    routers = trained(sources, given.work, given.seed, note)
    knobs = {name: knobs_of(name) for name in CONTENDERS}
    every = [knob for mine in knobs.values() for knob in mine]
    rows: dict[Any, list[dict[str, float]]] = {knob: [] for knob in every}
    for source in sources:
        for knob, own in contender_rows(source, every, routers, given.work, note).items():
            rows[knob] += own
    told = summarize({name: (rows, mine) for name, mine in knobs.items()})
    counts = {one.name: len(one.questions) for one in sources}
    deciding = {
        name: sum(row["deciding"] for k in mine for row in rows[k]) / sum(len(rows[k]) for k in mine)
        for name, mine in knobs.items()
    }
    found = {"questions": counts, "training": given.training, "results": told, "deciding_seconds": deciding}
    _report(given, "evidence", found)
    text = table(told)
    write_atomically(given.out / "composed-evidence.txt", text)
    draw_contenders(told, given.out / "composed-evidence.png")
    print(text)
    return 0


def _readers(text: str) -> list[Reader]:
    """NAME=SPEC@IN,OUT or NAME=SPEC@IN,OUT,ASKED, separated by blanks."""
    made = []
    for one in text.split():
        name, _, rest = one.partition("=")
        spec, _, prices = rest.rpartition("@")
        try:
            into, out, *asked = prices.split(",")
            made.append(Reader(name, spec, float(into), float(out), *map(int, asked[:1])))
        except ValueError as error:
            raise InputError(
                f"--readers: {one!r} must be NAME=SPEC@IN,OUT, in dollars, or with ,ASKED: fewer questions "
                "of a set than --asked"
            ) from error
    if not made:
        raise InputError("--part language needs --readers, for instance small=gguf:FILE@0.1,0.4")
    return made


def _parts(text: str, can_order: bool) -> list[str]:
    """The parts that are studied; without a table of outcomes nobody can learn the order."""
    named = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in named if name not in PARTS]:
        raise InputError(f"--parts: {', '.join(unknown)} is no part: choose among {', '.join(PARTS)}")
    return [part for part in PARTS if part in named and (can_order or part != "order")]


def _language(given: argparse.Namespace, names: list[str]) -> int:
    readers, parts = _readers(given.readers), _parts(given.parts, given.table is not None)
    sources = _sources(given, names)
    files = trained(sources, given.work, given.seed, note, LANGUAGE_TIERS)
    learned: dict[str, Any] = {"router": given.training * len(sources)}
    if "search" in parts:
        files["STATE"] = given.work / "bandit.sqlite"
        replies = given.work / "replies.sqlite"
        learned["bandit"] = bandit_of(sources, readers[-1], replies, files["STATE"], note)
    if "order" in parts:
        files["PLANNER"] = given.work / "planner.safetensors"
        workflows, count = planner_of(given.table, sources, files["PLANNER"])
        learned |= {"planner": count, "workflows": workflows}
    rows = rows_of_readers(sources, readers, contenders(parts), files, given.work, note)
    told = told_of(rows, readers)
    counts = {one.name: len(one.questions) for one in sources}
    prices = {one.name: {"input": one.into, "output": one.out} for one in readers}
    is_whole = given.parts == ",".join(PARTS)
    name = "language" if is_whole else "language-parts"
    found = {"parts": parts, "questions": counts, "learned": learned, "prices": prices, "results": told}
    _report(given, name, found)
    text = table_of(told)
    write_atomically(given.out / f"composed-{name}.txt", text)
    print(text)
    if not is_whole:
        return 0
    widest = max(readers, key=lambda one: len(rows[Asked(PLAIN, 0, one.name)]))
    draw_contenders(told[widest.name], given.out / "composed-language.png", PLAIN)
    return 0


def _costs(given: argparse.Namespace) -> int:
    """Of what `--part evidence` wrote."""
    found = costs_of(read_json(given.out / "composed-evidence.json")["results"])
    _report(given, "costs", found)
    draw_costs(found, given.out / "composed-costs.png")
    for level in found["levels"]:
        tokens, told = level["tokens"], []
        for model, dollars in level["dollars"].items():
            after = "more than was tried" if dollars["after"] is None else f"${dollars['after']:.2f}"
            told.append(f"{model} ${dollars['before']:.2f} to {after}")
        after = "more than was tried" if tokens["after"] is None else f"{tokens['after']:.0f}"
        print(
            f"all evidence for {100 * level['complete']:.0f} % of the questions: {tokens['before']:.0f} "
            f"tokens to {after}; a thousand answers: {', '.join(told)}"
        )
    return 0


def _load(given: argparse.Namespace) -> int:
    if given.part == "model":
        return _model(given)
    found = load(given.work, given.questions, given.kills, given.seed, note)
    found["deciding"] = overhead(given.work)
    _report(given, "load", found)
    problems = [problem for run in found["runs"].values() for problem in run["problems"]]
    for name, run in found["runs"].items():
        print(
            f"{name}: {run['answered']} of {run['questions']} answered, {run['kills']} kills, "
            f"${run['spent']:.4f} spent, ${run['lost']:.4f} lost, total ${run['total']:.4f}"
        )
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _model(given: argparse.Namespace) -> int:
    """The load test against a local server with a real model."""
    if given.gguf is None or not given.gguf.is_file():
        raise InputError("--part model needs --gguf: the file of a model")
    found = with_model(given.work, given.gguf, given.questions, given.kills, given.seed, note)
    _report(given, "model", found)
    run = found["run"]
    print(
        f"{run['answered']} of {run['questions']} answered, {run['kills']} kills, ${run['spent']:.4f} spent"
    )
    for problem in run["problems"]:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if run["problems"] else 0
