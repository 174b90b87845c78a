"""Tiers and routers: quality against tokens, with fixed tiers, fixed depths, one price for all, and oracles.

Every tier runs on every question, by evidence (is all of it read?) or by the answers of a language model.
Routers decide on questions that they have not learned from: by folds on the sets that they learn from, as a
whole on sets that they never meet. Each row is compared with the first five passages, and at equal tokens
with the best mixture of fixed tiers and with the best mixture of prices.

    published   the three published tiers
    fixed       the first K passages, whole
    priced      the exact program at one price of a token for all questions
    sentences   single sentences by the exact program (by answers)
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from benchmarks.compare import Row, differences, draw, rows_table, summarized
from benchmarks.questions import QuestionSet, left_out, load_sets, names_of, pools_of
from benchmarks.runner import Measured, note
from mio_rag.errors import InputError
from mio_rag.evaluation.tiers import LabelSettings, label_questions
from mio_rag.generation import Generator, make_generator
from mio_rag.learning.outcomes import gain_over_others
from mio_rag.learning.router import (
    WORKED,
    By,
    FitSettings,
    Table,
    Validated,
    chosen_at,
    fit_once,
    joined,
    measured,
    out_of_fold,
    seen_arrays,
)
from mio_rag.learning.router_model import TOKEN_PRICE, look
from mio_rag.measures import Instruments, normalize_answer
from mio_rag.measures.judges import make_judge
from mio_rag.retrieval import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.tiers import PUBLISHED, Tier
from mio_rag.types import Question

_COST, _BASE, _CEILING = "prompt_tokens", "k5", 2048
_MEASURES = (WORKED, _COST, "exact_match", "token_f1", "faithfulness")
_FITTED = 100  # questions of a set that left-out weights learn from
_PROGRAMS = ("priced", "sentences")  # ladders that relevance matters for
_Kind = Literal["mlp", "logistic", "utility"]
_Features = Literal["question", "question+search"]
_FEATURES: tuple[_Features, ...] = ("question", "question+search")
#: Name of a row -> kind and features of a router that learns which tier is needed.
ROUTERS: Mapping[str, tuple[_Kind, _Features]] = {
    "published router": ("mlp", "question"),
    "logistic": ("logistic", "question"),
    "mlp with search": ("mlp", "question+search"),
    "logistic with search": ("logistic", "question+search"),
}
_PRICES = (0.0001, 0.0003, 0.0005, 0.001, 0.002)  # of a token, for routers that learn what tiers achieve


def _ladders(by: By) -> dict[str, tuple[Tier, ...]]:
    """Return the tiers of a study; by evidence nothing is re-ranked, since order changes nothing."""

    def fixed(*depths: int) -> tuple[Tier, ...]:
        return tuple(
            Tier(name=f"k{k}", depth=k, context=100_000, new_tokens=96, compress="none") for k in depths
        )

    def priced(*prices: float) -> tuple[Tier, ...]:
        how: dict[str, Any] = {"unit": "tokens", "compress": "none"}
        return tuple(
            Tier(
                name=f"price-{p:g}".replace("0.", "."),
                depth=50,
                context=_CEILING,
                new_tokens=96,
                token_price=p,
                **how,
            )
            for p in prices
        )

    if by == "evidence":
        published = tuple(tier.replace(rerank="") for tier in PUBLISHED)
        return {
            "published": published,
            "fixed": fixed(1, 2, 3, 5, 8, 10),
            "priced": priced(0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0),
        }
    sentences = tuple(
        Tier(name=f"sentences-{n}", depth=50, context=n, new_tokens=96, unit="tokens", compress="program")
        for n in (128, 256)
    )
    return {"published": PUBLISHED, "fixed": fixed(5), "priced": priced(0.002, 0.001), "sentences": sentences}


def measure(given: argparse.Namespace) -> Measured:
    """Label the questions, train by folds, and compare."""
    by: By = given.by
    if by == "answers" and not given.generator:
        raise InputError("answers need a model: give --generator")
    unseen = [] if given.data is None else [name for name in given.unseen.split(",") if name]
    known = names_of(given)
    given.sets = ",".join([*known, *(name for name in unseen if name not in known)])
    sets = load_sets(given)
    models = left_out({one.name: pools_of(one, _FITTED) for one in sets})
    tables = {}
    reader = make_generator(given.generator) if by == "answers" else None
    try:
        for one in sets:
            selector = Selector(relevance_model=models[one.name])
            tables[one.name] = _labelled(one, by, reader, selector, given)
    finally:
        if reader is not None:
            reader.close()
    groups = {"by folds": _joined([tables[one.name] for one in sets if one.name not in unseen])}
    if unseen:
        groups["never met"] = _joined([tables[name] for name in unseen])
    learned, texts = groups["by folds"], list[str]()
    report: dict[str, Any] = {}
    for name, asked in groups.items():
        rows = _rows(learned, None if asked is learned else asked, given.seed)
        summary = _compared(rows, asked["published"].outcomes.sets)
        report[name] = {"questions": len(asked["published"]), "rows": summary}
        more = {"against k5": WORKED, "against tiers": WORKED, "against prices": WORKED}
        texts.append(f"{name}: {len(asked['published'])} questions")
        texts.append(
            rows_table(summary, {m: 0 if m == _COST else 3 for m in _MEASURES if m in rows[0].columns}, more)
        )
        texts.append(
            "\n".join(
                f"accuracy of {n}: {e['accuracy']:.3f}, the most frequent tier {e['most_frequent']:.3f}"
                for n, e in summary.items()
                if "accuracy" in e
            )
        )
    deciding = _deciding(learned["published"], given.seed)
    data = {"by": by, "weights": "left out", "groups": report, "deciding_seconds": deciding}
    summary = report["by folds"]["rows"]
    return Measured(data, "\n\n".join(texts), partial(draw, summary, cost=_COST, qualities=(WORKED,)))


# Tables ----------------------------------------------------------------------------------------------------


def _labelled(
    given: QuestionSet, by: By, reader: Generator | None, selector: Selector, settings: argparse.Namespace
) -> dict[str, Table]:
    """Return the table of every ladder, on the questions that all of them label."""
    questions = tuple(q for q in given.dataset.questions if _can_be_judged(q, by))
    asked = dataclasses.replace(given.dataset, questions=questions[: settings.limit])
    instruments = None
    if by == "answers":
        instruments = Instruments(embedder=given.index.embedder, judge=make_judge("embedding"))
    tables = {}
    for ladder, tiers in _ladders(by).items():
        program = selector if ladder in _PROGRAMS else Selector()
        folder = settings.work / by / given.name / ladder
        labels = LabelSettings(tiers, by, selector=program)
        tables[ladder] = label_questions(asked, given.index, reader, labels, folder, None, instruments).table
        note(f"{given.name}, {ladder}: {len(tables[ladder])} questions")
    shared = set.intersection(*(set(table.outcomes.ids) for table in tables.values()))
    retriever = Retriever(given.index)
    seen = {q.id: look(retriever.retrieve(q.text), selector) for q in asked.questions if q.id in shared}
    found = {}
    for ladder, table in tables.items():
        kept = table.where([i in shared for i in table.outcomes.ids])
        arrays = seen_arrays([seen[i] for i in kept.outcomes.ids])
        found[ladder] = Table(dataclasses.replace(kept.outcomes, arrays=arrays))
    return found


def _can_be_judged(question: Question, by: By) -> bool:
    """Return whether a question can be judged: without gold passages, its answer must be a text."""
    if by == "answers":
        return bool(question.answers)
    if question.gold_ids:
        return bool(question.answers or question.type == "unanswerable")
    return any(normalize_answer(a) not in ("yes", "no", "maybe") for a in question.answers)


def _joined(tables: Sequence[Mapping[str, Table]]) -> dict[str, Table]:
    """Join the tables of sets, with the measures that all have."""
    return {ladder: joined([of[ladder] for of in tables]) for ladder in tables[0]}


# Rows ------------------------------------------------------------------------------------------------------


def _rows(learned: Mapping[str, Table], asked: Mapping[str, Table] | None, seed: int) -> list[Row]:
    """Return every row on the questions of `asked`; None: on those that routers learn from, by folds."""
    here = learned if asked is None else asked
    kinds = {"published": "tier", "fixed": "fixed k", "priced": "price", "sentences": "sentences"}
    rows = [
        _row(tier.name, kinds[ladder], table, np.full(len(table), k))
        for ladder, table in here.items()
        for k, tier in enumerate(table.tiers)
    ]
    published = here["published"]
    for name, (kind, features) in ROUTERS.items():
        found = _decided(
            learned["published"], published, FitSettings(kind=kind, features=features, seed=seed)
        )
        figures = measured(found)
        about = {"accuracy": figures["accuracy"], "most_frequent": figures["most_frequent_label"]}
        rows.append(_row(name, "router", published, found.choice, about))
    for ladder, name in (("published", "utility"), ("priced", "utility of prices")):
        for features in _FEATURES:
            settings = FitSettings(kind="utility", features=features, seed=seed)
            found = _decided(learned[ladder], here[ladder], settings)
            assert found.success is not None
            for price in _PRICES:
                choice = chosen_at(found.success, learned[ladder].costs(), price)
                rows.append(
                    _row(f"{name}, {features} @{price:g}", f"{name}, {features}", here[ladder], choice)
                )
    for ladder, name in (("published", "tiers"), ("priced", "prices")):
        for price in (0.0001, 0.0005):
            outcomes = here[ladder].outcomes
            choice = np.argmax(outcomes.of(WORKED) - price * outcomes.of(_COST), axis=1)
            rows.append(_row(f"oracle of {name} @{price:g}", "oracle", here[ladder], choice))
    return rows


def _row(name: str, kind: str, table: Table, choice: Any, about: dict[str, Any] | None = None) -> Row:
    at = np.arange(len(table)), np.asarray(choice, dtype=np.intp)
    values = table.outcomes.values
    return Row(name, kind, {m: values[m][at] for m in _MEASURES if m in values}, about or {})


def _decided(learned: Table, asked: Table, settings: FitSettings) -> Validated:
    """Return what routers decide on questions that they have not learned from."""
    if asked is learned:
        return out_of_fold(learned, settings)
    router = fit_once(learned, settings)
    probabilities = np.array([router.probabilities(one) for one in asked.seen])
    success = np.array([router.success(one) for one in asked.seen]) if settings.kind == "utility" else None
    choice = (
        probabilities.argmax(axis=1) if success is None else chosen_at(success, learned.costs(), TOKEN_PRICE)
    )
    return Validated(asked, probabilities, success, np.asarray(choice, dtype=np.intp), 0.5)


def _compared(rows: Sequence[Row], sets: Sequence[str]) -> dict[str, Any]:
    base = next(row for row in rows if row.name == _BASE)
    for row in rows:
        row.about["against k5"] = differences(row.columns, base.columns, _MEASURES)
        row.about["saved"] = 1 - row.mean(_COST) / base.mean(_COST)
        for name, kind in (("against tiers", "tier"), ("against prices", "price")):
            fixed = [other for other in rows if other.kind == kind]
            of = [np.stack([r.columns[m] for r in fixed], axis=1) for m in (WORKED, _COST)]
            gain = gain_over_others(row.columns[WORKED], row.columns[_COST], *of)
            row.about[name] = {WORKED: dict(zip(("mean", "low", "high"), gain, strict=True))}
    return summarized(rows, sets)


def _deciding(table: Table, seed: int) -> dict[str, float]:
    """Return the median processor seconds of one decision by kind."""
    found = dict[str, float]()
    kinds: tuple[_Kind, ...] = ("mlp", "logistic", "utility")
    for kind in kinds:
        router, took = fit_once(table, FitSettings(kind=kind, seed=seed)), []
        for seen in table.seen[:200]:
            began = time.process_time()
            router.choose(seen)
            took.append(time.process_time() - began)
        found[kind] = float(np.median(took))
    return found
