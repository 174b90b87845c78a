"""The parts of a policy at equal tokens, by the evidence that is read: no language model is asked.

Every contender is a policy at several prices of a token, or limits on evidence. Outcomes of the two settings
around a total are mixed in the proportion that spends exactly that total.

    fused            top-k by reciprocal rank fusion, up to a limit: the baseline
    again            that, with a second search for question and best passage, for every question
    tiers            a router chooses one of three depths of that ranking
    program          the exact program, up to a limit, at no price
    price            the exact program at one price
    price, again     and a second search if the price says that it pays
    price, tiers     the exact program at one price, up to what a router allows
    all              price, tiers and second search
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.compare import Row, at_equal_cost, draw, equal_cost_table, summarized
from benchmarks.questions import QuestionSet, load_sets
from benchmarks.runner import Measured, at_least, note, numbers, stored
from mio_rag.evaluation.tiers import LabelSettings, label_questions
from mio_rag.generation import ScriptedGenerator
from mio_rag.learning.router import FitSettings, fit_once, joined
from mio_rag.learning.weights import write_weights
from mio_rag.measures import evidence_found
from mio_rag.policies.compose import compose
from mio_rag.policies.setup import Setup
from mio_rag.policy import policy_of
from mio_rag.pool import Candidates
from mio_rag.retrieval.retriever import Retriever
from mio_rag.session.loop import Session
from mio_rag.session.tiers import Tier
from mio_rag.types import Question

T = TypeVar("T")
TOTALS = (300, 500, 900)
_CEILING = 2048
_TIERS = tuple(
    Tier(name=name, depth=50, context=tokens, new_tokens=32, unit="tokens", compress="none")
    for name, tokens in (("small", 200), ("medium", 600), ("large", _CEILING))
)
_RANKED = {"by": "ranking"}
_AGAIN = {"by": "price", "query": "feedback", "most": 1}
_PROGRAM = {"by": "router", "file": "PROGRAM"}
#: Name -> what its setting is, and its policy; RANKING and PROGRAM stand for the files of routers.
CONTENDERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "fused": ("limit", {"selection": _RANKED}),
    "again": (
        "limit",
        {"selection": _RANKED, "repeat": {"by": "always-retrieve", "signal": "tracked", "most": 1}},
    ),
    "tiers": ("price", {"selection": {"by": "tier"}, "depth": {"by": "router", "file": "RANKING"}}),
    "program": ("limit", {}),
    "price": ("price", {}),
    "price, again": ("price", {"repeat": _AGAIN}),
    "price, tiers": ("price", {"depth": _PROGRAM}),
    "all": ("price", {"depth": _PROGRAM, "repeat": _AGAIN}),
}


def measure(given: argparse.Namespace) -> Measured:
    """Run every policy on the held-out questions of every set."""
    at_least(given, limit=1, training=2)
    sets = [_labelled(one) for one in load_sets(given)]
    held = {one.name: one.dataset.questions[given.training :][-given.limit :] for one in sets}
    names = [name for name, questions in held.items() for _ in questions]
    routers = _trained(sets, given.training, given.work, given.seed)
    settings = {
        "limit": numbers("--limits", given.limits, int),
        "price": numbers("--prices", given.prices, float),
    }
    rows = []
    for name, (kind, policy) in CONTENDERS.items():
        for value in settings[kind]:
            limit, price = (value, 0.0) if kind == "limit" else (_CEILING, value)
            ends = {"price": {"token": price}, "limits": {"budget": limit, "max_tokens": 32}}
            found: list[dict[str, float]] = []
            for one in sets:
                questions = held[one.name]
                make = partial(_outcomes, one, questions, {**policy, **ends}, routers)
                key = [policy, ends, [q.id for q in questions]]
                found += stored(
                    given.work / one.name / f"{name.replace(', ', '-')}-{value:g}.json", key, make
                )
            columns = {m: np.array([one[m] for one in found]) for m in found[0]}
            rows.append(Row(f"{name} {value:g}", name, columns))
            note(rows[-1].name)
    summary = summarized(rows, names)
    equal = at_equal_cost(rows, "tokens", TOTALS, "complete", ("fused", "price", "all"))
    counts = {one.name: names.count(one.name) for one in sets}
    report = {"questions": counts, "training": given.training, "rows": summary, "equal_tokens": equal}
    text = equal_cost_table(equal, "tokens", "complete")
    return Measured(report, text, partial(draw, summary, cost="tokens", qualities=("complete",)))


def _labelled(given: QuestionSet) -> QuestionSet:
    """Keep the questions with gold passages, without options."""
    kept = tuple(dataclasses.replace(q, choices=()) for q in given.dataset.questions if q.gold_ids)
    return QuestionSet(dataclasses.replace(given.dataset, questions=kept), given.index)


def _trained(sets: Sequence[QuestionSet], training: int, work: Path, seed: int) -> dict[str, Path]:
    """Train routers on the first questions: one for what rankings read, one for what the program reads."""
    files = {}
    for name, price in (("RANKING", None), ("PROGRAM", 0.0)):
        path = files[name] = work / f"{name.lower()}-{training}-{seed}.safetensors"
        if path.is_file():
            continue
        tiers = tuple(tier.replace(token_price=price) for tier in _TIERS)
        settings = LabelSettings(tiers, by="evidence", seed=seed)
        tables = [
            label_questions(
                one.first(training), one.index, None, settings, work / f"{name}-{training}" / one.name
            ).table
            for one in sets
        ]
        made = fit_once(joined(tables), FitSettings(kind="utility", features="question+search", seed=seed))
        write_weights(dataclasses.replace(made, tiers=_TIERS).weights(), path)
        note(f"router {name} of {sum(map(len, tables))} questions")
    return files


class _Remembering(Retriever):
    """Search for every text once."""

    def __init__(self, index: Any) -> None:
        super().__init__(index)
        self._known: dict[Any, Any] = {}

    def _once(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
        found: T = self._known[key]
        return found

    def retrieve(self, question: str) -> Candidates:
        return self._once(question, lambda: super(_Remembering, self).retrieve(question))

    def ranked(self, text: str, words: str | None = None) -> list[int]:
        return self._once((text, words), lambda: super(_Remembering, self).ranked(text, words))

    def pool_of(self, question: str, ranking: Sequence[int], fused: Mapping[int, float]) -> Candidates:
        key = (question, tuple(ranking[:60]))
        return self._once(key, lambda: super(_Remembering, self).pool_of(question, ranking, fused))


_RETRIEVERS: dict[int, _Remembering] = {}


def _outcomes(
    given: QuestionSet, questions: Sequence[Question], policy: dict[str, Any], routers: Mapping[str, Path]
) -> list[dict[str, float]]:
    """Return what a policy reads of every question."""
    data = json.loads(json.dumps(policy))
    if "file" in data.get("depth", {}):
        data["depth"]["file"] = str(routers[data["depth"]["file"]])
    retriever = _RETRIEVERS.setdefault(id(given.index), _Remembering(given.index))
    made = compose(policy_of(data, "studied"), Setup(retriever=Retriever(given.index)))
    session = dataclasses.replace(made, kit=dataclasses.replace(made.kit, retriever=retriever))
    return [_outcome(session, question) for question in questions]


def _outcome(session: Session, question: Question) -> dict[str, float]:
    got = session.attempt(question, ScriptedGenerator(lambda prompt: ""), _CEILING).check()
    total, read = got.costs.total(), got.selection
    recall = 0.0 if read is None else evidence_found(question, read.candidates, read.chosen)
    return {
        "tokens": float(total.prompt_tokens),
        "recall": float(recall),
        "complete": float(recall >= 1.0),
        "searches": float(total.retrieval_calls),
    }
