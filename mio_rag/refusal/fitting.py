"""Fit a refusal model on one half of a question set, and score it on the other.

The scores are those of SQuAD 2.0, where a reader may also reply that there is no answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError, MioRagError, require
from mio_rag.generation import Generator
from mio_rag.measures import exact_match, token_f1
from mio_rag.refusal.model import SIGNS, Refusal, signs_of
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.selection.selector import Selector
from mio_rag.session.ask import ask
from mio_rag.types import Question

Floats = NDArray[np.float64]
_LEAST = 20  # questions of each kind, in each half


@dataclass(frozen=True)
class Scores:
    """Exact match and F1, each in [0, 1]; of answerable and of unanswerable questions apart.

    has_answer_exact, has_answer_f1: an answerable question that is refused scores 0.
    no_answer: share of unanswerable questions that are refused; exact match and F1 are the same there.
    best_f1, best_threshold: the largest F1 that a threshold reaches on these questions.
    """

    questions: int
    threshold: float
    exact: float
    f1: float
    has_answer: int
    has_answer_exact: float | None
    has_answer_f1: float | None
    no_answers: int
    no_answer: float | None
    refused: float
    best_f1: float
    best_threshold: float

    def to_dict(self) -> dict[str, float | int | None]:
        """Return plain data for JSON."""
        return asdict(self)


def squad_scores(
    accepted: Sequence[Sequence[str]], answers: Sequence[str], no_answer: Sequence[float], threshold: float
) -> Scores:
    """Score answers at a threshold, as the SQuAD 2.0 script does (Rajpurkar et al., ACL 2018), in shares.

    accepted: empty where the question is unanswerable.
    answers: replies of the reader; a blank one is a refusal.
    no_answer: probability that there is no answer; above the threshold a question is refused.
    """
    chances, answerable, exact, f1 = _table(accepted, answers, no_answer)
    refused = (chances > threshold) | np.array([not a.strip() for a in answers])
    exact, f1 = np.where(refused, ~answerable, exact), np.where(refused, ~answerable, f1)

    def mean(values: Floats, rows: NDArray[np.bool_]) -> float | None:
        return float(values[rows].mean()) if rows.any() else None

    return Scores(
        len(answers), threshold, float(exact.mean()), float(f1.mean()),
        int(answerable.sum()), mean(exact, answerable), mean(f1, answerable),
        int((~answerable).sum()), mean(f1, ~answerable), float(refused.mean()),
        *best_threshold(accepted, answers, no_answer),
    )  # fmt: skip


def best_threshold(
    accepted: Sequence[Sequence[str]], answers: Sequence[str], no_answer: Sequence[float]
) -> tuple[float, float]:
    """Return the largest F1 over all thresholds, and the smallest threshold that reaches it."""
    chances, answerable, _, f1 = _table(accepted, answers, no_answer)
    if_refused = (~answerable).astype(float)
    order = np.argsort(chances, kind="stable")
    gained = np.concatenate([[0.0], np.cumsum((f1 - if_refused)[order])]) + if_refused.sum()
    # Questions of the same probability are refused or answered together.
    ends = np.flatnonzero(np.append(np.diff(chances[order]) > 0, True)) + 1
    thresholds = np.concatenate([[0.0], chances[order][ends - 1]])
    totals = gained[np.concatenate([[int((chances <= 0).sum())], ends])]
    k = int(np.flatnonzero(totals >= totals.max() - 1e-12)[0])
    return float(totals[k] / len(answers)), float(thresholds[k])


def _table(
    accepted: Sequence[Sequence[str]], answers: Sequence[str], no_answer: Sequence[float]
) -> tuple[Floats, NDArray[np.bool_], Floats, Floats]:
    """Probabilities, whether answerable, and exact match and F1 if nothing were refused."""
    if not answers or not len(accepted) == len(answers) == len(no_answer):
        raise InputError(
            f"{len(accepted)} questions, {len(answers)} answers and {len(no_answer)} probabilities: give one "
            "of each for every question, and at least one question"
        )
    chances = np.asarray(no_answer, dtype=np.float64)
    if not np.all((chances >= 0) & (chances <= 1)):
        raise InputError("probabilities that there is no answer must be between 0 and 1")
    pairs = list(zip(answers, accepted, strict=True))
    exact, f1 = (np.array([score(*pair) for pair in pairs]) for score in (exact_match, token_f1))
    return chances, np.array([bool(a) for a in accepted]), exact, f1


@dataclass(frozen=True, eq=False)
class Observed:
    """A question, the reader's answer, and its signs, shape (7,)."""

    question: Question
    answer: str
    signs: Floats


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
    """Answer every question that has a key, and compute its signs; a failure is a blank answer, signs 0."""
    found = []
    for question in (q for q in dataset.questions if q.answers or q.type == "unanswerable"):
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
    """Fit model and threshold on one half of the questions, drawn by id; score them and rivals on the other.

    Scores of "model"; of "best single sign", chosen on the first half; of "never refuse" and "always refuse".

    Raises `DataError` with fewer than 20 questions of either kind in either half.
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
    scale = np.where(spread > 0, spread, 1.0)
    fitted = library.LogisticRegression(C=1.0, max_iter=1000)
    fitted.fit(((signs - mean) / scale)[first], without[first])
    weights = np.where(spread > 0, fitted.coef_[0] / scale, 0.0)
    constant = float(fitted.intercept_[0] - weights @ mean)
    chances = 1 / (1 + np.exp(-(signs @ weights + constant)))

    def half(values: Floats, rows: NDArray[np.bool_]) -> tuple[list[tuple[str, ...]], list[str], list[float]]:
        part = [o for o, chosen in zip(observed, rows, strict=True) if chosen]
        return [o.question.answers for o in part], [o.answer for o in part], values[rows].tolist()

    def best(values: Floats) -> tuple[float, float]:
        return best_threshold(*half(values, first))

    # A sign as a probability: its rank among those of the first half, the lower the likelier.
    ranks = [np.searchsorted(np.sort(column[first]), column, side="left") / first.sum() for column in signs.T]
    single = max((1 - rank for rank in ranks), key=lambda values: best(values)[0])
    threshold = best(chances)[1]
    rivals = {
        "model": (chances, threshold),
        "best single sign": (single, best(single)[1]),
        "never refuse": (np.zeros(len(observed)), 1.0),
        "always refuse": (np.ones(len(observed)), 0.0),
    }
    scores = {name: squad_scores(*half(values, ~first), at) for name, (values, at) in rivals.items()}
    measured = {
        "seed": seed,
        "fitted_on": int(first.sum()),
        "brier": float(np.square(chances[~first] - without[~first]).mean()),
        "held_out": {name: score.to_dict() for name, score in scores.items()},
    }
    fitted_for = (index.embedder.fingerprint, generator.name)
    model = Refusal(tuple(map(float, weights)), constant, threshold, *fitted_for, {**provenance, **measured})
    return model, scores


def warnings_of(scores: Mapping[str, Scores]) -> list[str]:
    """Return a warning where a constant has an F1 as good as that of the model; else an empty list."""
    rivals = {"always refusing": scores["always refuse"].f1, "never refusing": scores["never refuse"].f1}
    name, rival = max(rivals.items(), key=lambda pair: pair[1])
    f1 = scores["model"].f1
    if f1 > rival + 1e-12:
        return []
    return [
        f"the model is no better than {name}: on questions that it was not fitted on its F1 is "
        f"{100 * f1:.1f}, and that of {name} {100 * rival:.1f}"
    ]
