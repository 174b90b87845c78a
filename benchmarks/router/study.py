"""The runs: every tier on the same questions of every set, by evidence or by answers of a language model.

Questions come in an order drawn by seed, and a round adds some to every set, so that wherever a run is
interrupted the sets are in balance. Rows and replies stay in the work folder; a later run goes on from there.

    published   the three published tiers
    fixed       the first 5 passages, whole: what the publication compares with
    priced      the exact program, at one price of a token for all questions; at 0 as it is by default
    corrected   the published tiers with 5 passages more, as they are read after a weak search (by evidence)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.evaluation.ledger import Ledger
from mio_rag.evaluation.tiers import LabelSettings, label_questions
from mio_rag.generation import Generator
from mio_rag.learning.router import By, Table, read_table, write_table
from mio_rag.learning.router_model import Correction, Seen, look
from mio_rag.measures import Instruments, normalize_answer
from mio_rag.measures.instruments import Judge
from mio_rag.relevance import RelevanceModel
from mio_rag.retrieval import Retriever
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.selection.selector import Selector
from mio_rag.session.tiers import PUBLISHED, Tier
from mio_rag.types import Question

#: Routers learn on these, by folds, ...
TRAINED = ("squad2", "nq_open", "hotpotqa", "2wikimultihopqa", "mini_wikipedia")
#: ... and are used on these as well, which they never see. SEC 10-Q cannot take part: its labels name
#: filings, of which every tier reads some passage, and its answers are paragraphs, which none matches.
UNSEEN = ("musique", "pubmedqa")

MORE = Correction(0.0).more

_SEED = 0
_CEILING = 2048


def _priced(name: str, price: float) -> Tier:
    return Tier(name, 50, _CEILING, 96, unit="tokens", compress="none", token_price=price)


def _by_sentences(context: int) -> Tier:
    return Tier(f"sentences-{context}", 50, context, 96, unit="tokens", compress="program")


#: Ladders on which the exact program chooses, so that weights of relevance matter.
PROGRAMS = ("priced", "sentences")
#: By answers: what a small machine can ask a language model.
LADDERS: Mapping[str, tuple[Tier, ...]] = {
    "published": PUBLISHED,
    "fixed": (Tier("k5", 5, 100_000, 96, compress="none"),),
    "priced": (_priced("price-.002", 0.002), _priced("price-.001", 0.001)),
    "sentences": (_by_sentences(128), _by_sentences(256)),
}

_PRICES = (0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0)


def ladders_of(by: str) -> Mapping[str, tuple[Tier, ...]]:
    """The tiers of a study.

    By evidence, the order in which a tier's passages are read changes nothing: nothing is re-ranked.
    """
    if by == "answers":
        return LADDERS
    plain = tuple(dataclasses.replace(tier, rerank="") for tier in PUBLISHED)
    deep = tuple(Tier(f"k{k}", k, 100_000, 96, compress="none") for k in (1, 2, 3, 5, 8, 10))
    priced = tuple(_priced(f"price-{price:g}".replace("0.", "."), price) for price in _PRICES)
    more = tuple(
        dataclasses.replace(tier, name=f"{tier.name}-more", depth=tier.depth + MORE) for tier in plain[:-1]
    )
    return {"published": plain, "fixed": deep, "priced": priced, "corrected": more}


@dataclass(frozen=True)
class Plan:
    """What is asked of whom.

    Parameters
    ----------
    by : str
        "evidence" or "answers".
    data, indexes, work : Path
        Folders of the sets, of the indexes, and of finished rows.
    weights : str
        "left-out": the program and the signals of the search take relevance weights that were fitted on the
        other sets alone; "shipped": those that ship, fitted on questions of these sets among others.
    only : tuple of str
        The ladders that are asked; empty: all of the study.
    """

    by: By
    data: Path
    indexes: Path
    work: Path
    weights: str = "left-out"
    only: tuple[str, ...] = ()

    @property
    def ladders(self) -> Mapping[str, tuple[Tier, ...]]:
        """Tiers by ladder."""
        return {name: t for name, t in ladders_of(self.by).items() if not self.only or name in self.only}

    def folder(self, name: str, ladder: str) -> Path:
        """Where the rows of a ladder lie; only programs go by weights."""
        own = self.weights == "left-out" and ladder in PROGRAMS
        return self.work / self.by / name / (f"{ladder}-left-out" if own else ladder)

    def load(self, name: str) -> Dataset:
        """Questions with evidence, in an order drawn by seed; by answers those that have one.

        Where only gold documents are known, a question is held against evidence if its answer can be found in
        a text: reading something of the right document alone says little.
        """
        dataset = load_dataset(self.data / name)
        asked = [q for q in dataset.questions if self._held(q)]
        order = np.random.default_rng(_SEED).permutation(len(asked))
        return dataclasses.replace(dataset, questions=tuple(asked[k] for k in order))

    def _held(self, question: Question) -> bool:
        if self.by == "answers":
            return bool(question.answers and (question.gold_ids or question.gold_sources))
        found = [a for a in question.answers if normalize_answer(a) not in ("yes", "no", "maybe")]
        if question.gold_ids:
            return bool(question.answers or question.type == "unanswerable")
        return bool(question.gold_sources and found)

    def table(self, name: str, ladder: str) -> Path:
        """Where the table of a ladder lies."""
        return self.work / f"{self.by}-{self.weights}" / name / f"{ladder}.parquet"

    def index(self, name: str) -> CorpusIndex:
        """The index of a set."""
        return CorpusIndex.load(self.indexes / f"{name}-minilm")


def selector_of(model: RelevanceModel | None) -> Selector:
    """The program with these weights of relevance; None: with those that ship."""
    return Selector() if model is None else Selector(relevance_model=model)


def run_round(
    plan: Plan,
    name: str,
    dataset: Dataset,
    index: CorpusIndex,
    generator: Generator | None,
    upto: int,
    say: Callable[[str], None],
    model: RelevanceModel | None = None,
    judge: Judge | None = None,
) -> dict[str, Table]:
    """The tables of a set's first `upto` questions, by ladder.

    Parameters
    ----------
    model : RelevanceModel, optional
        Left-out weights of this set; None: those that ship.
    judge : Judge, optional
        Of faithfulness and context recall; with it, cosines are taken by the index's embedder.
    """
    instruments = None if judge is None else Instruments(embedder=index.embedder, judge=judge)
    selector = selector_of(model)
    seen: dict[str, Seen] = {}
    retriever, tables = Retriever(index), {}
    for ladder, tiers in plan.ladders.items():
        program = selector if ladder in PROGRAMS else Selector()
        settings = LabelSettings(tiers, plan.by, selector=program, limit=upto)
        found = label_questions(
            dataset,
            index,
            generator,
            settings,
            plan.folder(name, ladder),
            _teller(say, f"{name}, {ladder}"),
            instruments,
        )
        for question in found.table.outcomes.questions:
            if model is not None and question not in seen:
                seen[question] = look(retriever.retrieve(question), selector)
        table = found.table
        if model is not None:
            table = dataclasses.replace(table, seen=tuple(seen[q] for q in table.outcomes.questions))
        write_table(table, plan.table(name, ladder))
        tables[ladder] = table
    return tables


def _teller(say: Callable[[str], None], what: str) -> Callable[[int, str], None]:
    return lambda _, text: say(f"{what}: {text}")


def begun(plan: Plan, name: str) -> int:
    """Questions of a set that an earlier run has taken up: fewer cannot be asked."""
    found = [0]
    for ladder in plan.ladders:
        ledger = Ledger(plan.folder(name, ladder))
        found.append(len({question for question, _, _ in ledger.read()}))
    return max(found)


def finished(plan: Plan, name: str) -> dict[str, Table]:
    """The tables of a set that were written last; empty where a ladder is missing."""
    paths = {ladder: plan.table(name, ladder) for ladder in plan.ladders}
    if not all(path.is_file() for path in paths.values()):
        return {}
    return {ladder: read_table([path]) for ladder, path in paths.items()}
