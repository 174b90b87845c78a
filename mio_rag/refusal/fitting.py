"""Fitting a refusal model on one part of a question set, and measuring it on the other."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.ask import ask
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError, MioRagError, require
from mio_rag.generation import Generator
from mio_rag.refusal.model import Refusal
from mio_rag.refusal.scores import Scores, best_threshold, squad_scores
from mio_rag.refusal.signs import SIGNS, signs_of
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["Observed", "fit_refusal", "observe", "warnings_of"]

_LEAST = 20  # questions of each kind, in each part


@dataclass(frozen=True, eq=False)
class Observed:
    """A question, what was said, and the signs.

    Parameters
    ----------
    signs : ndarray, shape (7,)
    """

    question: Question
    answer: str
    signs: NDArray[np.float64]


def observe(
    dataset: Dataset,
    index: CorpusIndex,
    generator: Generator,
    selector: Selector | None = None,
    *,
    budget_tokens: int = 256,
    max_tokens: int = 32,
    progress: Callable[[int, str], None] | None = None,
) -> list[Observed]:
    """Answer every question that has a key, and note the signs; a failure is a blank answer without signs."""
    keyed = [q for q in dataset.questions if q.answers or q.type == "unanswerable"]
    found = []
    for question in keyed:
        try:
            selection, answer = ask(
                index, question, generator, selector, budget_tokens=budget_tokens, max_tokens=max_tokens
            )
            found.append(Observed(question, answer.text, signs_of(question.text, selection, answer)))
        except InputError:
            raise
        except MioRagError:
            found.append(Observed(question, "", np.zeros(len(SIGNS))))
        if progress is not None:
            progress(1, "questions answered")
    return found


def fit_refusal(
    observed: Sequence[Observed], index: CorpusIndex, generator: Generator, seed: int = 0, **provenance: Any
) -> tuple[Refusal, dict[str, Scores]]:
    """The model fitted on one half of the questions, and scores of it and its rivals on the other.

    Halves are drawn by question id. The threshold is the one with the best F1 on the first half.

    Returns
    -------
    (Refusal, dict of str to Scores)
        Of "model"; of "best single sign", with sign and threshold chosen on the first half; of "never refuse"
        and "always refuse".

    Raises
    ------
    DataError
        With fewer than 20 questions of either kind in either half.
    """
    library = require("sklearn.linear_model", "retrieval", "fitting a refusal model")
    first = np.array([zlib.crc32(f"{seed}:{o.question.id}".encode()) % 2 == 0 for o in observed], dtype=bool)
    without = np.array([not o.question.answers for o in observed], dtype=bool)
    counts = [int((half & kind).sum()) for half in (first, ~first) for kind in (without, ~without)]
    if min(counts, default=0) < _LEAST:
        raise DataError(
            f"each half needs {_LEAST} unanswerable and {_LEAST} answerable questions, and they have "
            f"{', '.join(map(str, counts))}: questions without answers are marked by type 'unanswerable'"
        )
    signs = np.stack([o.signs for o in observed])
    mean, spread = signs[first].mean(axis=0), signs[first].std(axis=0)
    scaled = (signs - mean) / np.where(spread > 0, spread, 1.0)
    fitted = library.LogisticRegression(C=1.0, max_iter=1000).fit(scaled[first], without[first])
    weights = np.where(spread > 0, fitted.coef_[0] / np.where(spread > 0, spread, 1.0), 0.0)
    constant = float(fitted.intercept_[0] - weights @ mean)
    chances = 1 / (1 + np.exp(-(signs @ weights + constant)))

    def scores(values: NDArray[np.float64], threshold: float) -> Scores:
        rest = [o for o, chosen in zip(observed, first, strict=True) if not chosen]
        keys, said = [o.question.answers for o in rest], [o.answer for o in rest]
        return squad_scores(keys, said, values[~first], threshold)

    def best(values: NDArray[np.float64]) -> tuple[float, float]:
        part = [o for o, chosen in zip(observed, first, strict=True) if chosen]
        return best_threshold(
            [o.question.answers for o in part], [o.answer for o in part], values[first].tolist()
        )

    # A sign as a probability: where it stands among those of the first half, the fewer the likelier.
    singles = [
        1 - np.searchsorted(np.sort(signs[first, k]), signs[:, k], side="left") / first.sum()
        for k in range(len(SIGNS))
    ]
    single = max(singles, key=lambda values: best(values)[0])
    threshold = best(chances)[1]
    found = {
        "model": scores(chances, threshold),
        "best single sign": scores(single, best(single)[1]),
        "never refuse": scores(np.zeros(len(observed)), 1.0),
        "always refuse": scores(np.ones(len(observed)), 0.0),
    }
    held_out = {name: score.to_dict() for name, score in found.items()}
    brier = float(np.square(chances[~first] - without[~first]).mean())
    model = Refusal(
        tuple(map(float, weights)),
        constant,
        threshold,
        index.embedder.fingerprint,
        generator.name,
        {**provenance, "seed": seed, "fitted_on": int(first.sum()), "brier": brier, "held_out": held_out},
    )
    return model, found


def warnings_of(scores: Mapping[str, Scores]) -> list[str]:
    """What the scores of `fit_refusal` speak against the model with; empty where it has the best F1.

    A model that refuses everything, or nothing, is one that has no more than what it is held against.
    """
    rivals = {"always refusing": scores["always refuse"].f1, "never refusing": scores["never refuse"].f1}
    name, rival = max(rivals.items(), key=lambda pair: pair[1])
    f1 = scores["model"].f1
    if f1 > rival + 1e-12:
        return []
    return [
        f"the model is no better than {name}: on questions that it was not fitted on its F1 is "
        f"{100 * f1:.1f}, and that of {name} {100 * rival:.1f}"
    ]
