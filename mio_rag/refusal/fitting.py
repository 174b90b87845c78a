"""Fit and score a refusal model.

The measures of SQuAD 2.0, where a reader may also say that there is no answer.

Fitting a refusal model on one part of a question set, and measuring it on the other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.ask import ask
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError, MioRagError, require
from mio_rag.generation import Generator
from mio_rag.measures import exact_match, token_f1
from mio_rag.refusal.model import SIGNS, Refusal, signs_of
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Exact match and F1, each between 0 and 1; of answerable and of unanswerable questions apart.

    Parameters
    ----------
    has_answer_exact, has_answer_f1 : float or None
        HasAns: an answerable question that is refused scores 0. None without such questions.
    no_answer : float or None
        NoAns: share of unanswerable questions that are refused; exact match and F1 are the same there.
    best_f1, best_threshold : float
        The largest F1 that a threshold reaches on these questions, known only with their key, and that
        threshold.
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
        """Plain data for JSON."""
        return asdict(self)


def squad_scores(
    accepted: Sequence[Sequence[str]],
    answers: Sequence[str],
    no_answer: Sequence[float],
    threshold: float,
) -> Scores:
    """The measures at a threshold.

    Parameters
    ----------
    accepted : sequence of sequences of str
        Accepted answers; empty where the question is unanswerable.
    answers : sequence of str
        What the reader said; a blank answer is a refusal.
    no_answer : sequence of float
        Probability that there is no answer, in [0, 1].
    threshold : float
        Above it a question is refused.

    Raises
    ------
    InputError
        Without questions, with lengths that differ, or with probabilities out of range.

    Notes
    -----
    Rajpurkar et al., ACL 2018; as their evaluation script 2.0, in shares instead of percent.
    """
    chances = _checked(accepted, answers, no_answer)
    answerable = np.array([bool(a) for a in accepted])
    refused = (chances > threshold) | np.array([not a.strip() for a in answers])
    exact, f1 = _as_said(accepted, answers)
    exact_now = np.where(refused, ~answerable, exact)
    f1_now = np.where(refused, ~answerable, f1)
    best, at = best_threshold(accepted, answers, no_answer)

    def mean(values: Floats, rows: Floats) -> float | None:
        return float(values[rows].mean()) if rows.any() else None

    return Scores(
        len(answers),
        threshold,
        float(exact_now.mean()),
        float(f1_now.mean()),
        int(answerable.sum()),
        mean(exact_now, answerable),
        mean(f1_now, answerable),
        int((~answerable).sum()),
        mean(f1_now, ~answerable),
        float(refused.mean()),
        best,
        at,
    )


def best_threshold(
    accepted: Sequence[Sequence[str]], answers: Sequence[str], no_answer: Sequence[float]
) -> tuple[float, float]:
    """The largest F1 over all thresholds, and the smallest threshold that reaches it.

    Parameters and errors are those of `squad_scores`. A threshold is 0, at which everything with a positive
    probability is refused, or one of the probabilities.
    """
    chances = _checked(accepted, answers, no_answer)
    answerable = np.array([bool(a) for a in accepted])
    _, f1 = _as_said(accepted, answers)
    if_refused = (~answerable).astype(float)
    order = np.argsort(chances, kind="stable")
    gained = np.concatenate([[0.0], np.cumsum((f1 - if_refused)[order])]) + if_refused.sum()
    # Questions of the same probability are refused or answered together.
    ends = np.flatnonzero(np.append(np.diff(chances[order]) > 0, True)) + 1
    thresholds = np.concatenate([[0.0], chances[order][ends - 1]])
    answered = np.concatenate([[int((chances <= 0).sum())], ends])
    totals = gained[answered]
    k = int(np.flatnonzero(totals >= totals.max() - 1e-12)[0])
    return float(totals[k] / len(answers)), float(thresholds[k])


def _as_said(accepted: Sequence[Sequence[str]], answers: Sequence[str]) -> tuple[Floats, Floats]:
    """Exact match and F1 were nothing refused; a blank answer is a refusal all the same."""
    pairs = list(zip(answers, accepted, strict=True))
    return (
        np.array([exact_match(said, keys) for said, keys in pairs]),
        np.array([token_f1(said, keys) for said, keys in pairs]),
    )


def _checked(accepted: Sequence[Sequence[str]], answers: Sequence[str], no_answer: Sequence[float]) -> Floats:
    if not answers or not len(accepted) == len(answers) == len(no_answer):
        raise InputError(
            f"{len(accepted)} questions, {len(answers)} answers and {len(no_answer)} probabilities: give one "
            "of each for every question, and at least one question"
        )
    chances = np.asarray(no_answer, dtype=np.float64)
    if not np.all((chances >= 0) & (chances <= 1)):
        raise InputError("probabilities that there is no answer must be between 0 and 1")
    return chances


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
