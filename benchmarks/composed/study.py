"""What the parts of a policy are worth together, by the evidence that is read: no language model is asked.

Every contender is a policy with one knob: a price of a token, or a limit on evidence. All knobs run on all
held-out questions; between the two knobs whose mean tokens lie around a total, outcomes are mixed in the
proportion that spends exactly that total, so that contenders are compared at equal tokens, question by
question.

    fused            top-k by reciprocal rank fusion, up to a limit: what all are compared with
    again            that, with a second search for question and best passage, for every question
    tiers            a router chooses one of three depths of that ranking
    program          the exact program, up to a limit, at no price
    price            the exact program at one price
    price, again     and a second search where the price says that it pays
    price, tiers     the exact program at one price, up to what a router allows
    all              price, tiers and second search
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.tiers import LabelSettings, label_questions
from mio_rag.generation import ScriptedGenerator
from mio_rag.learning.router import FitSettings, fit_once, joined
from mio_rag.learning.weights import write_weights
from mio_rag.measures import evidence_found
from mio_rag.policies.compose import compose
from mio_rag.policies.setup import Setup
from mio_rag.policy import policy_of
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.session.loop import Session
from mio_rag.session.tiers import Tier
from mio_rag.storage import write_atomically
from mio_rag.types import Question

LIMITS = (80, 160, 320, 640, 1280, 2048)
PRICES = (0.008, 0.004, 0.002, 0.001, 0.0005, 0.00025, 0.0001)
_CEILING = 2048
#: What routers choose among.
TIERS = (
    Tier("small", 50, 200, 32, unit="tokens", compress="none"),
    Tier("medium", 50, 600, 32, unit="tokens", compress="none"),
    Tier("large", 50, _CEILING, 32, unit="tokens", compress="none"),
)

_RANKED = {"by": "ranking"}
_AGAIN = {"by": "price", "query": "feedback", "most": 1}
#: Name -> what its knob is, and what its policy says beside it; ROUTER stands for the file of a router.
CONTENDERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "fused": ("limit", {"reading": _RANKED}),
    "again": (
        "limit",
        {"reading": _RANKED, "repetition": {"by": "always-retrieve", "signal": "tracked", "most": 1}},
    ),
    "tiers": ("price", {"reading": {"by": "tier"}, "amount": {"by": "router", "file": "RANKING"}}),
    "program": ("limit", {}),
    "price": ("price", {}),
    "price, again": ("price", {"repetition": _AGAIN}),
    "price, tiers": ("price", {"amount": {"by": "router", "file": "PROGRAM"}}),
    "all": ("price", {"amount": {"by": "router", "file": "PROGRAM"}, "repetition": _AGAIN}),
}


@dataclass(frozen=True, eq=False)
class Source:
    """A set: questions to learn from, others to be asked, and its index."""

    name: str
    training: Dataset
    questions: tuple[Question, ...]
    index: CorpusIndex

    @classmethod
    def of(cls, dataset: Dataset, index: CorpusIndex, training: int, asked: int, seed: int) -> Source:
        """The first questions of an order drawn by seed to learn from, the last to be asked."""
        # Without options: nobody chooses one here.
        labelled = [dataclasses.replace(q, choices=()) for q in dataset.questions if q.gold_ids]
        order = [labelled[k] for k in np.random.default_rng(seed).permutation(len(labelled))]
        learn = dataclasses.replace(dataset, questions=tuple(order[:training]))
        return cls(dataset.name, learn, tuple(order[-asked:]), index)


@dataclass(frozen=True)
class Knob:
    """A contender at one price, or one limit."""

    contender: str
    value: float

    @property
    def policy(self) -> dict[str, Any]:
        """As plain data."""
        kind, said = CONTENDERS[self.contender]
        limit, price = (int(self.value), 0.0) if kind == "limit" else (_CEILING, self.value)
        return {
            **said,
            "price": {"token": price},
            "limits": {"evidence_tokens": limit, "answer_tokens": 32},
        }


def knobs_of(contender: str) -> tuple[Knob, ...]:
    """A contender at every value of its knob."""
    values = LIMITS if CONTENDERS[contender][0] == "limit" else PRICES
    return tuple(Knob(contender, value) for value in values)


class _Remembering(Retriever):
    """Searches for every text once."""

    def __init__(self, index: CorpusIndex) -> None:
        super().__init__(index)
        self._retrieved: dict[str, Candidates] = {}
        self._rankings: dict[str, list[int]] = {}
        self._fused_pools: dict[str, Candidates] = {}

    def retrieve(self, question: str) -> Candidates:
        if question not in self._retrieved:
            self._retrieved[question] = super().retrieve(question)
        return self._retrieved[question]

    def ranked(self, text: str, words: str | None = None) -> list[int]:
        if text not in self._rankings:
            self._rankings[text] = super().ranked(text, words)
        return self._rankings[text]

    def pool_of(self, question: str, ranking: Sequence[int], fused: Mapping[int, float]) -> Candidates:
        key = f"{question} {list(ranking[:60])}"
        if key not in self._fused_pools:
            self._fused_pools[key] = super().pool_of(question, ranking, fused)
        return self._fused_pools[key]


def trained(
    sources: Sequence[Source],
    work: Path,
    seed: int,
    say: Callable[[str], None],
    among: Sequence[Tier] = TIERS,
) -> dict[str, Path]:
    """Routers of the training questions: one for what rankings read, one for what the program reads."""
    files = {}
    for name, price in (("RANKING", None), ("PROGRAM", 0.0)):
        path = work / f"{name.lower()}.safetensors"
        if not path.is_file():
            tiers = tuple(dataclasses.replace(tier, token_price=price) for tier in among)
            settings = LabelSettings(tiers, by="evidence", seed=seed)
            tables = [
                label_questions(one.training, one.index, None, settings, work / name / one.name).table
                for one in sources
            ]
            made = fit_once(
                joined(tables), FitSettings(kind="utility", features="question+search", seed=seed)
            )
            plain = tuple(dataclasses.replace(tier, token_price=None) for tier in among)
            router = dataclasses.replace(made.router, tiers=plain)
            write_weights(router.weights(), path)
            say(f"router {name} of {sum(len(table) for table in tables)} questions")
        files[name] = path
    return files


def rows_of(
    source: Source, knobs: Sequence[Knob], routers: Mapping[str, Path], work: Path, say: Callable[[str], None]
) -> dict[Knob, list[dict[str, float]]]:
    """What every knob read of every question; finished ones lie in files."""
    retriever = _Remembering(source.index)
    found = {}
    for knob in knobs:
        data = json.loads(json.dumps(knob.policy))
        router = data.get("amount", {}).get("file")
        if router is not None:
            data["amount"]["file"] = str(routers[router])
        asked = [question.id for question in source.questions]
        told = hashlib.sha256(json.dumps([knob.policy, asked]).encode()).hexdigest()[:16]
        path = work / source.name / f"{knob.contender.replace(', ', '-')}-{told}.json"
        if path.is_file():
            found[knob] = json.loads(path.read_text(encoding="utf-8"))
            continue
        setup = Setup(retriever=Retriever(source.index))
        made = compose(policy_of(data, knob.contender), setup)
        controller = dataclasses.replace(made, kit=dataclasses.replace(made.kit, retriever=retriever))
        found[knob] = [_row(controller, question) for question in source.questions]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found[knob]))
        say(f"{source.name}: {knob.contender} at {knob.value:g}")
    return found


def _row(controller: Session, question: Question) -> dict[str, float]:
    got = controller.attempt(question, ScriptedGenerator(lambda prompt: ""), _CEILING).check()
    trace, selection = got.trace, got.selection
    amount = got.costs.total()
    chosen, pool = ((), None) if selection is None else (selection.chosen, selection.candidates)
    recall = 0.0 if pool is None else evidence_found(question, pool, chosen)
    searching = sum(call.seconds for call in trace.calls if call.part == "retrieve")
    return {
        "tokens": float(amount.prompt_tokens),
        "recall": float(recall),
        "complete": float(recall >= 1.0),
        "said": float(trace.complete or 0.0),
        "searches": float(amount.retrieval_calls),
        "deciding": float(trace.seconds - searching),
    }
