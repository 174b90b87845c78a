"""`python -m benchmarks router`: ask what is not finished, then write JSON, table and picture."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.default.models import by_ranks, pools_of
from benchmarks.files import replaced, write_json
from benchmarks.router import accuracy
from benchmarks.router.goals import chosen_elsewhere, goals_of
from benchmarks.router.kept import Kept, asked_model, merged, read_rows, tables_of, write_rows
from benchmarks.router.live import confirmed
from benchmarks.router.rows import (
    Folds,
    Group,
    at_actions_of,
    deciding_seconds,
    groups_of,
    rows_of,
    without,
)
from benchmarks.router.study import (
    TRAINED,
    UNSEEN,
    Plan,
    begun,
    finished,
    run_round,
    selector_of,
)
from benchmarks.router.summary import MEASURES, draw, shortened, summarized, table
from benchmarks.runner import note
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError, choose
from mio_rag.evaluation.ledger import environment
from mio_rag.evaluation.tiers import silent
from mio_rag.generation import Generator, ScriptedGenerator, make_generator
from mio_rag.learning.router import By, Table
from mio_rag.learning.router_model import look
from mio_rag.measures.judges import make_judge
from mio_rag.relevance import RelevanceModel
from mio_rag.retrieval import Retriever
from mio_rag.retrieval.index import CorpusIndex

_FITTED = 100  # questions of a set that left-out weights learn from
_ROUNDS = 10  # of answers; evidence is asked in one


def command(given: argparse.Namespace) -> int:
    """Ask in rounds over all sets, train by folds, report."""
    if not 0 <= given.share <= 100:
        raise InputError(f"--share={given.share:g} must be in [0, 100]")
    if given.by == "answers" and (given.share or given.live) and not given.generator:
        raise InputError("answers need a model: give --generator")
    if given.accuracy and (given.by != "evidence" or given.live):
        raise InputError("--accuracy is by evidence, and nothing is asked live: leave out --by and --live")
    names = _names(given.sets)
    counts = _counts(given.questions, names)
    only = accuracy.LADDERS if given.accuracy else ()
    plan = Plan(given.by, given.data, given.indexes, given.work, given.weights, only)
    about = {"by": given.by, "weights": given.weights}
    kept: Kept = read_rows(given.rows, about) if given.rows else {}
    known: dict[str, dict[str, Table]] = {}
    if given.share or kept:
        sources = _sources(plan, names)
        known = {name: _known(sources[name], kept[name]) for name in names if name in kept}
        if given.share:
            _ask_more(plan, sources, given, known)
            _ask(plan, sources, counts, given, known)
    tables = {name: found for name in names if (found := merged(known.get(name, {}), finished(plan, name)))}
    learned = [name for name in TRAINED if name in tables]
    if not learned:
        raise InputError(f"nothing of {', '.join(TRAINED)} is finished in '{given.work}': raise --share")
    if given.accuracy:
        return _accuracy(plan, tables, given)
    out = given.out or Path(f"benchmarks/results/router-{given.by}.json")
    results = _results(plan, tables, learned, given.seed)
    if given.live:
        results["live"] = _asked_live(plan, tables, learned, given)
    write_json(out, shortened(results))
    if given.by == "answers":
        write_rows(out.with_name(f"{out.stem}-rows.json"), tables, about, MEASURES)
    text = table(results)
    with replaced(out.with_suffix(".txt")) as partial:
        partial.write_text(text + "\n", encoding="utf-8")
    draw(results, out.with_suffix(".png"))
    print(text)
    return 0


def _accuracy(plan: Plan, tables: Mapping[str, Mapping[str, Table]], given: argparse.Namespace) -> int:
    """Write the report of accuracy alone, over all sets that are finished."""
    results = {
        "benchmark": "router accuracy",
        "about": "label: the cheapest tier that holds all gold evidence; five folds; mean and 95 % interval",
        "weights": plan.weights,
        "seed": given.seed,
        "ladders": accuracy.accuracies(tables, given.seed),
        **environment(),
    }
    out = given.out or Path("benchmarks/results/router-accuracy.json")
    write_json(out, results)
    text = accuracy.accuracy_table(results)
    with replaced(out.with_suffix(".txt")) as partial:
        partial.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def _names(text: str | None) -> list[str]:
    known = (*TRAINED, *UNSEEN)
    names = list(known) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    if strange := [name for name in names if name not in known]:
        raise InputError(f"--sets: {', '.join(strange)} is unknown: {choose(strange[0], known)}")
    return names


def _counts(text: str, names: list[str]) -> dict[str, int]:
    """How many questions of each set are asked. A set with none still teaches the weights of others."""
    counts = dict.fromkeys(names, 0)
    for entry in text.split(","):
        name, given, number = entry.strip().rpartition("=")
        if not number.isdecimal() or (given and name not in counts):
            raise InputError(f"--questions: '{entry}' must be a number, or SET=N of {', '.join(names)}")
        counts.update({name: int(number)} if given else dict.fromkeys(names, int(number)))
    if not any(counts.values()):
        raise InputError(f"--questions={text}: give at least one question")
    return counts


@dataclass(frozen=True, eq=False)
class _Source:
    """A set, its index, and the weights that were fitted without it; None: those that ship."""

    dataset: Dataset
    index: CorpusIndex
    model: RelevanceModel | None


def _sources(plan: Plan, names: list[str]) -> dict[str, _Source]:
    sets = {name: (plan.load(name), plan.index(name)) for name in names}
    models = _left_out(sets) if plan.weights == "left-out" else {}
    return {name: _Source(*found, models.get(name)) for name, found in sets.items()}


def _known(source: _Source, kept: Mapping[str, Any]) -> dict[str, Table]:
    retriever, selector = Retriever(source.index), selector_of(source.model)
    return tables_of(
        kept,
        source.dataset,
        source.index.embedder.fingerprint,
        lambda text: look(retriever.retrieve(text), selector),
    )


def _ask_more(
    plan: Plan,
    sources: Mapping[str, _Source],
    given: argparse.Namespace,
    known: Mapping[str, dict[str, Table]],
) -> None:
    """Ask the questions of an earlier run on the ladders that it did not have."""
    if plan.by == "evidence" or all(set(plan.ladders) <= set(tables) for tables in known.values()):
        return
    with closing(make_generator(given.generator)) as generator:
        for name, tables in known.items():
            lacking = tuple(ladder for ladder in plan.ladders if ladder not in tables)
            if not lacking:
                continue
            source = sources[name]
            by_id = {q.id: q for q in source.dataset.questions}
            ids = next(iter(tables.values())).outcomes.ids
            asked = dataclasses.replace(source.dataset, questions=tuple(by_id[i] for i in ids))
            # Beside what is asked of other questions, so that neither counts as the other.
            rest = dataclasses.replace(plan, only=lacking, work=plan.work / "more")
            judge, upto = make_judge("embedding"), len(ids)
            tables |= run_round(rest, name, asked, source.index, generator, upto, note, source.model, judge)


def _ask(
    plan: Plan,
    sources: Mapping[str, _Source],
    counts: Mapping[str, int],
    given: argparse.Namespace,
    known: Mapping[str, Mapping[str, Table]],
) -> None:
    """Every round asks some more of every set. Questions that are known already count."""
    generator = None if plan.by == "evidence" else make_generator(given.generator)
    judge = None if plan.by == "evidence" else make_judge("embedding")
    rounds = _ROUNDS if plan.by == "answers" else 1
    try:
        for k in range(1, rounds + 1):
            for name, source in sources.items():
                done = {i for table in known.get(name, {}).values() for i in table.outcomes.ids}
                rest = tuple(q for q in source.dataset.questions if q.id not in done)
                wanted = math.ceil(counts[name] * given.share / 100 * k / rounds) - len(done)
                upto, before = min(wanted, len(rest)), begun(plan, name)
                if upto > 0 and (upto > before or not finished(plan, name)):
                    asked = dataclasses.replace(source.dataset, questions=rest)
                    upto = max(upto, before)
                    run_round(plan, name, asked, source.index, generator, upto, note, source.model, judge)
    finally:
        if generator is not None:
            generator.close()


def _left_out(sets: Mapping[str, tuple[Dataset, CorpusIndex]]) -> dict[str, RelevanceModel]:
    """For each set, weights that were fitted on the others."""
    pools = {name: pools_of(dataset, index, _FITTED, 0) for name, (dataset, index) in sets.items()}
    models = {}
    for name in sets:
        others = [one for other, one in pools.items() if other != name]
        if not any(one.by_passage for one in others):
            raise InputError(f"no other set says which passages '{name}' could learn from: name more --sets")
        models[name] = by_ranks(others, "left out")
        note(f"{name}: weights fitted without it")
    return models


def _results(
    plan: Plan, tables: dict[str, dict[str, Table]], learned: list[str], seed: int
) -> dict[str, Any]:
    trained = groups_of(tables, learned, "sets that routers learn from, by folds")
    known: Folds = {}
    groups = {trained.name: _group(trained, trained, seed, known, plan.by)}
    others = [name for name in UNSEEN if name in tables]
    if others:
        unseen = groups_of(tables, others, "sets that routers never met")
        groups[unseen.name] = _group(trained, unseen, seed, known, plan.by)
    if plan.by == "answers" and (elsewhere := _by_evidence(plan, trained, names=learned)) is not None:
        named = "the same questions, by routers that learned from evidence on others"
        groups[named] = _group(elsewhere, dataclasses.replace(trained, name=named), seed, {}, plan.by)
    quality = "exact match or token F1 of .6" if plan.by == "answers" else "all gold evidence in the context"
    deciding = deciding_seconds(trained.ladders["published"], seed)
    generator = asked_model(next(iter(tables.values())))
    return {
        "benchmark": "router",
        "by": plan.by,
        "weights": plan.weights,
        "quality": quality,
        "about": f"what tiers are held against: {quality}; generator {generator}; "
        f"{plan.weights} weights of relevance; out of fold;\nmean and 95 % interval; 'against' compares "
        "question by question with the best mixture at equal tokens;\n'saved': tokens against k = 5; "
        "'label': share of right tiers",
        "seed": seed,
        "tiers": {k: [tier.to_dict() for tier in tiers] for k, tiers in plan.ladders.items()},
        "groups": groups,
        "deciding_seconds": deciding,
        "goals": goals_of(groups, deciding, plan.by),
        **environment(),
    }


def _by_evidence(plan: Plan, asked: Group, names: list[str]) -> Group | None:
    """What is known by evidence of other questions of these sets, at the same tiers; None where it is not."""
    evidence = dataclasses.replace(plan, by="evidence")
    tables = {name: found for name in names if (found := finished(evidence, name))}
    if not tables:
        return None
    group = groups_of(tables, list(tables), "learned from evidence")
    return at_actions_of(without(group, asked.outcomes.ids), asked)


def _asked_live(
    plan: Plan, tables: dict[str, dict[str, Table]], learned: list[str], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """Routers that learned from half of the questions of each set, asked about the other half."""
    group = groups_of(tables, learned, "")
    half = set(group.outcomes.ids[1::2])
    others = without(group, half).ladders["published"]
    asked = without(group, set(group.outcomes.ids) - half)
    reader: Generator = ScriptedGenerator(silent)
    if plan.by == "answers":
        reader = make_generator(given.generator)
    try:
        sets = {name: (plan.load(name), plan.index(name)) for name in learned}
        return confirmed(others, asked, sets, reader, plan.by, plan.work / f"live-{plan.by}", given.seed)
    finally:
        reader.close()


def _group(trained: Group, asked: Group, seed: int, known: Folds, by: By) -> dict[str, Any]:
    rows = rows_of(trained, None if asked is trained else asked, seed, known)
    published = asked.ladders["published"]
    sets, m = asked.outcomes.sets, len(published.tiers)
    routed = next(row for row in rows if row.name == "published router").chances[:, :m]
    names = list(dict.fromkeys(sets))
    here = {name: np.array([one == name for one in sets]) for name in names}
    return {
        "questions": len(asked.outcomes),
        "sets": {name: int(mask.sum()) for name, mask in here.items()},
        "labels": {
            name: (np.bincount(published.labels[mask], minlength=m) / mask.sum()).tolist()
            for name, mask in here.items()
        },
        "routed": {name: routed[mask].mean(axis=0).tolist() for name, mask in here.items()},
        "rows": summarized(rows, asked),
        "chosen": chosen_elsewhere(rows, asked, by),
    }
