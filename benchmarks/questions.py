"""Question sets, their pools, and weights of relevance that were fitted without a set."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.runner import note, sources
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance import Labelled, RelevanceModel, fit
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.types import Question

#: Settings of the fit of the weights that ship, chosen with public sets in view.
_OWN = ("spread_gap", "bm25_share", "question_cover", "question_names", "title_named", "log_rank_best")
_OF_POOL = {
    "spread_gap": ("dense_lead", "correlation", "agreement", "question_words", "question_names"),
    "bm25_share": ("bm25_lead", "correlation", "agreement", "question_words", "question_names"),
    "question_cover": ("correlation", "question_words", "question_names"),
}
_PRODUCTS = tuple(f"{own}*pool_{of}" for own, those in _OF_POOL.items() for of in those)
_RANK_PRIOR, _STRENGTHS = 0.85, (0.03,)


@dataclass(frozen=True, eq=False)
class QuestionSet:
    """A data set with its labelled questions in an order drawn by seed, and its index."""

    dataset: Dataset
    index: CorpusIndex

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self.dataset.name

    def first(self, count: int, of: int = 0) -> Dataset:
        """Return the data set with `count` questions, the first `of` left out."""
        return replace(self.dataset, questions=self.dataset.questions[of : of + count])


def names_of(given: argparse.Namespace) -> list[str]:
    """Return the names of `--sets`."""
    return [name.strip() for name in given.sets.split(",") if name.strip()]


def load_sets(given: argparse.Namespace, embedder: str = "minilm") -> list[QuestionSet]:
    """Load the question sets of `--data` with their indexes, which are built where they are missing.

    Without `--data` the bundled questions are split into two sets, so that each has others to learn from.

    Raises
    ------
    InputError
        If `--sets` names none, or one that `--data` lacks.
    """
    built = given.shared / f"indexes-{sources()}"
    if given.data is None:
        demo, name = load_dataset("demo"), "tfidf" if given.quick else embedder
        index = _index(demo, built / f"demo-{name}", name)
        halves = (replace(demo, name=f"demo-{k + 1}", questions=demo.questions[k::2]) for k in range(2))
        return [QuestionSet(_drawn(half, given.seed), index) for half in halves]
    found = []
    if not (names := names_of(given)):
        raise InputError("--sets names no set: give folders of --data, separated by commas")
    if missing := [name for name in names if not (given.data / name).is_dir()]:
        raise InputError(f"'{given.data}' holds no {', '.join(missing)}: change --data or --sets")
    for name in names:
        dataset = load_dataset(given.data / name)
        folder = built / f"{name}-{embedder}-{dataset.content_hash()[:12]}"
        if given.indexes is not None:
            folder = given.indexes / f"{name}-{embedder}"
        index = _index(dataset, folder, embedder)
        found.append(QuestionSet(_drawn(dataset, given.seed), index))
    return found


def _index(dataset: Dataset, folder: Path, embedder: str) -> CorpusIndex:
    if not folder.is_dir():
        note(f"{dataset.name}: building the index")
        CorpusIndex.build(dataset.passages, embedder, dataset.name).save(folder)
    return CorpusIndex.load(folder)


def _drawn(dataset: Dataset, seed: int) -> Dataset:
    """Keep questions with gold passages; where a set has none, those with gold documents."""
    known = [q for q in dataset.questions if q.gold_ids] or [q for q in dataset.questions if q.gold_sources]
    order = np.random.default_rng(seed).permutation(len(known))
    return replace(dataset, questions=tuple(known[k] for k in order))


@dataclass(frozen=True, eq=False)
class Pools:
    """Questions of a set, and the pool of each, expanded one link deep."""

    name: str
    questions: tuple[Question, ...]
    pools: tuple[Candidates, ...]


def pools_of(given: QuestionSet, limit: int) -> Pools:
    """Retrieve the pools of the first `limit` questions."""
    asked = given.dataset.questions[:limit]
    note(f"{given.name}: pools of {len(asked)} questions")
    found = Retriever(given.index).retrieve_many([q.text for q in asked])
    return Pools(given.name, asked, tuple(found))


def left_out(pools: Mapping[str, Pools]) -> dict[str, RelevanceModel]:
    """Fit weights for each set on the gold passages of the others, every set with the same weight.

    Raises
    ------
    InputError
        If the other sets name no gold passage.
    """
    models = {}
    for name in pools:
        labelled = [one for other, mine in pools.items() if other != name for one in _labelled(mine)]
        if not labelled:
            raise InputError(
                f"no other set names the gold passages that weights for '{name}' need: add --sets"
            )
        made = fit(
            labelled,
            features=(*_OWN, *_PRODUCTS),
            rank_prior=_RANK_PRIOR,
            strengths=_STRENGTHS,
            name="left out",
            provenance=f"sets other than {name}",
        )
        models[name] = dataclasses.replace(made, answerable=None)
    return models


def _labelled(given: Pools) -> list[Labelled]:
    weight = 1 / sum(len(pool) for pool in given.pools)
    pairs = zip(given.questions, given.pools, strict=True)
    return [Labelled(pool, frozenset(q.gold_ids), weight) for q, pool in pairs if q.gold_ids]
