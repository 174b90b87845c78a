"""Questions that a collection holds no answer to: those of other sets. Weights that tell them, and what is
read for them.

Weights for a set are fitted without its questions and without its collection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.default.models import Pools
from benchmarks.default.study import BUDGETS
from mio_rag.corpora.dataset import Dataset
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance.model import SIGNALS, Answerable, pool_signals
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions

#: Set whose questions they are -> their pools from a collection that is not theirs.
Strangers = Mapping[str, Pools]

_QUESTIONS = 20  # of each other set
_REGULARISATION = 1.0


def strangers_of(name: str, index: CorpusIndex, datasets: Mapping[str, Dataset], seed: int) -> Strangers:
    """Some questions of every other set, asked of a collection."""
    retriever = Retriever(index)
    found = {}
    for other, dataset in datasets.items():
        if other == name:
            continue
        order = np.random.default_rng(seed).permutation(len(dataset.questions))[:_QUESTIONS]
        asked = tuple(dataset.questions[k] for k in order)
        pools = retriever.retrieve_many([question.text for question in asked])
        found[other] = Pools(other, asked, tuple(pools))
    return found


def fit_answerable(
    pools: Mapping[tuple[str, str], Pools],
    strangers: Mapping[tuple[str, str], Strangers],
    *,
    embedder: str = "",
    left_out: str = "",
) -> Answerable:
    """Weights from sets and embedders; each set weighs the same, and so do both kinds of questions.

    Parameters
    ----------
    pools, strangers : mapping
        (set, embedder) -> pools.
    embedder : str
        The only one to fit on, with its cosines; blank: all of them, without.
    left_out : str
        A set that takes no part, neither its collection nor its questions.
    """
    names = SIGNALS if embedder else SIGNALS[:-1]
    rows, labels, weights = [], [], []
    for key, inside in pools.items():
        if left_out == key[0] or (embedder and embedder != key[1]):
            continue
        others = [pool for s, found in strangers[key].items() if s != left_out for pool in found.pools]
        for label, part in ((1.0, list(inside.pools)), (0.0, others)):
            rows.append(_matrix(part, names))
            labels += [label] * len(part)
            weights += [1 / len(part)] * len(part)
    matrix = np.vstack(rows)
    mean, scale = matrix.mean(axis=0), matrix.std(axis=0)
    model = LogisticRegression(C=_REGULARISATION, max_iter=1000)
    weighed = 100 * np.array(weights)  # as many as a hundred questions of each kind and collection
    model.fit((matrix - mean) / scale, labels, sample_weight=weighed)
    fitted = model.coef_[0] / scale
    intercept = float(model.intercept_[0] - fitted @ mean)
    found = {name: round(float(weight), 6) for name, weight in zip(names, fitted, strict=True)}
    return Answerable(found, round(intercept, 6))


def read_for(
    inside: Pools, strangers: Strangers, model: RelevanceModel, time_limit: float
) -> dict[str, dict[str, float]]:
    """By budget: what the default reads for questions from elsewhere, with and without asking for an answer.

    Returns
    -------
    dict
        budget -> ``tokens`` and ``nothing`` (the share of questions that nothing is read for), ``before``
        (tokens where nobody asks whether there is an answer); and "told": the area under the ROC curve of the
        probability, between these questions and the set's own.
    """
    options = SolveOptions(time_limit_seconds=time_limit, relative_gap=1e-3)
    own = Selector(relevance_model=model, options=options)
    plain = own.replace(relevance_model=replace(model, answerable=None))
    pools = [pool for found in strangers.values() for pool in found.pools]
    told: dict[str, Any] = {}
    for budget in BUDGETS:
        made = [own.choose(pool, budget) for pool in pools]
        told[str(budget)] = {
            "tokens": float(np.mean([choice.used for choice in made])),
            "nothing": float(np.mean([not choice.chosen for choice in made])),
            "before": float(np.mean([plain.choose(pool, budget).used for pool in pools])),
        }
    assert model.answerable is not None
    likely = [model.answerable.probability(pool) for pool in (*inside.pools, *pools)]
    labels = [1] * len(inside.pools) + [0] * len(pools)
    return {**told, "told": {"area": float(roc_auc_score(labels, likely)), "questions": float(len(pools))}}


def _matrix(pools: Sequence[Any], names: Sequence[str]) -> NDArray[np.float64]:
    found = [pool_signals(pool) for pool in pools]
    return np.array([[signals[name] for name in names] for signals in found if signals is not None])
