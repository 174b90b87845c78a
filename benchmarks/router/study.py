"""The runs: every tier on the same questions of every set, by evidence or by answers of a language model.

Questions come in an order drawn by seed, and a round adds some to every set, so that wherever a run is
interrupted the sets are in balance. Rows and replies stay in the work folder; a later run goes on from there.

    published   the three published tiers
    fixed       the first 5 passages, whole: what the publication compares with
    priced      the exact program, at one price of a token for all questions
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mio_rag.control.router.table import Table, read_table, write_table
from mio_rag.control.router.tier import PUBLISHED, Tier
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.evaluation.ledger import Ledger
from mio_rag.evaluation.tiers import LabelSettings, label_questions
from mio_rag.generation import Generator
from mio_rag.retrieval.index import CorpusIndex

__all__ = ["LADDERS", "TRAINED", "UNSEEN", "Plan", "begun", "finished", "ladders_of", "run_round"]

#: Routers learn on these, by folds, ...
TRAINED = ("squad2", "nq_open", "hotpotqa", "2wikimultihopqa", "mini_wikipedia")
#: ... and are used on these as well, which they never see.
UNSEEN = ("musique", "pubmedqa")

_SEED = 0
_CEILING = 2048


def _priced(name: str, price: float) -> Tier:
    return Tier(name, 50, _CEILING, 96, unit="tokens", compress="none", token_price=price)


#: By answers: what a small machine can ask a language model.
LADDERS: Mapping[str, tuple[Tier, ...]] = {
    "published": PUBLISHED,
    "fixed": (Tier("k5", 5, 100_000, 96, compress="none"),),
    "priced": (_priced("price-.001", 0.001),),
}

_PRICES = (0.005, 0.002, 0.001, 0.0005, 0.0002)


def ladders_of(by: str) -> Mapping[str, tuple[Tier, ...]]:
    """The tiers of a study.

    By evidence, the order in which a tier's passages are read changes nothing: nothing is re-ranked.
    """
    if by == "answers":
        return LADDERS
    plain = tuple(dataclasses.replace(tier, rerank="") for tier in PUBLISHED)
    deep = tuple(Tier(f"k{k}", k, 100_000, 96, compress="none") for k in (1, 2, 3, 5, 8, 10))
    priced = tuple(_priced(f"price-{price:g}".replace("0.", "."), price) for price in _PRICES)
    return {"published": plain, "fixed": deep, "priced": priced}


@dataclass(frozen=True)
class Plan:
    """What is asked of whom.

    Parameters
    ----------
    by : str
        "evidence" or "answers".
    data, indexes, work : Path
        Folders of the sets, of the indexes, and of finished rows.
    """

    by: str
    data: Path
    indexes: Path
    work: Path

    def load(self, name: str) -> Dataset:
        """Questions with answers and evidence where the set has them, in an order drawn by seed."""
        dataset = load_dataset(self.data / name)
        asked = [
            q
            for q in dataset.questions
            if (q.answers or q.type == "unanswerable")
            and (self.by == "answers" or q.gold_ids or q.gold_sources)
        ]
        order = np.random.default_rng(_SEED).permutation(len(asked))
        return dataclasses.replace(dataset, questions=tuple(asked[k] for k in order))

    def table(self, name: str, ladder: str) -> Path:
        """Where the table of a ladder lies."""
        return self.work / self.by / name / f"{ladder}.parquet"

    def index(self, name: str) -> CorpusIndex:
        """The index of a set."""
        return CorpusIndex.load(self.indexes / f"{name}-minilm")


def run_round(
    plan: Plan,
    name: str,
    dataset: Dataset,
    index: CorpusIndex,
    generator: Generator | None,
    upto: int,
    say: Callable[[str], None],
) -> dict[str, Table]:
    """The tables of a set's first `upto` questions, by ladder."""
    tables = {}
    for ladder, tiers in ladders_of(plan.by).items():
        settings = LabelSettings(tiers, "answers" if plan.by == "answers" else "evidence", limit=upto)
        found = label_questions(
            dataset,
            index,
            generator,
            settings,
            plan.work / plan.by / name / ladder,
            _teller(say, f"{name}, {ladder}"),
        )
        write_table(found.table, plan.table(name, ladder))
        tables[ladder] = found.table
    return tables


def _teller(say: Callable[[str], None], what: str) -> Callable[[int, str], None]:
    return lambda _, text: say(f"{what}: {text}")


def begun(plan: Plan, name: str) -> int:
    """Questions of a set that an earlier run has taken up: fewer cannot be asked."""
    found = [0]
    for ladder in ladders_of(plan.by):
        ledger = Ledger(plan.work / plan.by / name / ladder)
        found.append(len({question for question, _, _ in ledger.read()}))
    return max(found)


def finished(plan: Plan, name: str) -> dict[str, Table]:
    """The tables of a set that were written last; empty where a ladder is missing."""
    paths = {ladder: plan.table(name, ladder) for ladder in ladders_of(plan.by)}
    if not all(path.is_file() for path in paths.values()):
        return {}
    return {ladder: read_table([path]) for ladder, path in paths.items()}
