"""The weights that ship, and the same fitted with one set left out.

A newcomer's questions are a set that nobody fitted on, so only figures with the set left out are reported.
Gaps, shares and covers have no scale, so that one list of features serves every embedder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mio_rag.corpora.dataset import Dataset
from mio_rag.pool import Candidates
from mio_rag.relevance import Labelled, RelevanceModel, fit
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.types import Question

#: Name -> the beginning of its fingerprint, by which weights know their embedder.
EMBEDDERS = {"minilm": "sentence-transformers:72362722b466552f", "tfidf": "tfidf:"}

_OWN = ("spread_gap", "bm25_share", "question_cover", "question_names", "title_named", "log_rank_best")
_PRODUCTS = (
    "spread_gap*pool_dense_lead",
    "spread_gap*pool_correlation",
    "spread_gap*pool_agreement",
    "spread_gap*pool_question_words",
    "spread_gap*pool_question_names",
    "bm25_share*pool_bm25_lead",
    "bm25_share*pool_correlation",
    "bm25_share*pool_agreement",
    "bm25_share*pool_question_words",
    "bm25_share*pool_question_names",
    "question_cover*pool_correlation",
    "question_cover*pool_question_words",
    "question_cover*pool_question_names",
)
_RANK_PRIOR = 0.85
_STRENGTHS = (0.03,)
_LIST = 20  # scores that a caller hands over with a question


@dataclass(frozen=True, eq=False)
class Pools:
    """The questions of a set, and what was retrieved for each, expanded one link deep."""

    name: str
    questions: tuple[Question, ...]
    pools: tuple[Candidates, ...]

    @property
    def by_passage(self) -> bool:
        """Whether gold passages are known, or only gold documents."""
        return any(q.gold_ids for q in self.questions)


def pools_of(dataset: Dataset, index: CorpusIndex, limit: int, seed: int) -> Pools:
    """Pools for up to `limit` labelled questions of a set, in an order that the seed tells."""
    asked = [q for q in dataset.questions if q.gold_ids] or [q for q in dataset.questions if q.gold_sources]
    order = np.random.default_rng(seed).permutation(len(asked))[:limit]
    chosen = tuple(asked[k] for k in order)
    return Pools(dataset.name, chosen, tuple(Retriever(index).retrieve_many([q.text for q in chosen])))


def by_ranks(sets: Sequence[Pools], name: str, embedder: str = "") -> RelevanceModel:
    """Weights for pools of a `Retriever`; sets weigh the same, and without gold passages nothing.

    They do not ask whether there is an answer at all: what ships for that has seen every set.

    Parameters
    ----------
    sets : sequence of Pools
        Of one embedder, or of several: the features are comparable.
    embedder : str
        Beginning of a fingerprint, for weights that are for one embedder.
    """
    labelled = [pool for given in sets if given.by_passage for pool in _labelled(given)]
    model = fit(
        labelled,
        features=(*_OWN, *_PRODUCTS),
        rank_prior=_RANK_PRIOR,
        strengths=_STRENGTHS,
        name=name,
        provenance=_told(sets, "pools of 50 by fused retrieval, expanded one link deep"),
        embedder=embedder,
    )
    ranges = _ranges(labelled) if embedder else {}
    return replace(model, ranges=ranges, measures=_short(model), answerable=None)


def by_scores(sets: Sequence[Pools], name: str) -> RelevanceModel:
    """Weights for one score a passage: the best of each pool by cosine, by BM25 and by fused rank in turn."""
    labelled = []
    for given in sets:
        if not given.by_passage:
            continue
        for question, pool in zip(given.questions, given.pools, strict=True):
            for score in ("dense", "bm25", "fused"):
                best = np.argsort(-pool.scores[score], kind="stable")[:_LIST]
                bare = Candidates(
                    ids=[pool.ids[k] for k in best],
                    texts=[pool.texts[k] for k in best],
                    relevance=pool.scores[score][best],
                    tokens=pool.tokens[best],
                )
                labelled.append(Labelled(bare, frozenset(question.gold_ids), 1 / len(given.questions)))
    model = fit(
        labelled,
        features=("log_rank_given", "given_gap"),
        strengths=_STRENGTHS,
        name=name,
        provenance=_told(sets, f"the best {_LIST} passages by cosine, by BM25 and by fused rank"),
    )
    return replace(model, measures=_short(model), answerable=None)


def _labelled(given: Pools) -> list[Labelled]:
    weight = 1 / sum(len(pool) for pool in given.pools)
    pairs = zip(given.questions, given.pools, strict=True)
    return [Labelled(pool, frozenset(question.gold_ids), weight) for question, pool in pairs]


def _told(sets: Sequence[Pools], of: str) -> str:
    counts: dict[str, int] = {}
    for given in sets:
        if given.by_passage:
            counts[given.name] = max(counts.get(given.name, 0), len(given.questions))
    told = ", ".join(f"{count} of {name}" for name, count in counts.items())
    how = "questions of public sets; every set weighs the same"
    return f"Fitted on {told} ({how}), {of}. Only numbers are kept."


def _ranges(labelled: Sequence[Labelled]) -> Mapping[str, tuple[float, float]]:
    """The smallest and largest best score of a pool, over all but one in a hundred at either end."""
    found = {}
    for score in ("dense", "bm25"):
        best = [float(one.candidates.scores[score].max()) for one in labelled]
        low, high = np.quantile(best, (0.005, 0.995))
        found[score] = (round(float(low), 3), round(float(high), 3))
    return found


def _short(model: RelevanceModel) -> Mapping[str, object]:
    """Measures without the reliability curves, which nobody reads in weights that ship."""
    return {name: value for name, value in model.measures.items() if not name.startswith("reliability")}
