"""Measures of a selection, an answer and their cost.

Every measure is a number for one question, or None where it is undefined (no gold labels, no answer, ...).
Larger is better except for tokens and seconds. Names are the columns of the ledger and keys of the summary.

    exact_match, token_f1   SQuAD normalisation, best over the accepted answers (Rajpurkar et al., 2016, 2018)
    rouge_l                 F-measure of the longest common subsequence (rouge-score)
    accuracy                of multiple-choice answers
    gold_recall, all_gold   share of the gold passages that were selected; whether all were
    gold_precision          share of the selected passages that are gold
    reciprocal_rank, ndcg   of the selection in prompt order, against the gold passages (ir-measures)
    pool_recall             share of the gold passages in the pool: the ceiling of gold_recall
    source_recall           share of the gold documents with a selected passage, for data labelled by document
    answer_in_context       whether an accepted answer occurs in the selected text
    diversity               1 - mean pairwise cosine of the selected passages
    source_entropy          entropy of the sources of the selected passages, in bits
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.errors import require
from mio_rag.selection.result import Selection
from mio_rag.types import Question

__all__ = [
    "GENERATION_MEASURES",
    "SELECTION_MEASURES",
    "answer_measures",
    "diversity",
    "exact_match",
    "failed_measures",
    "gold_measures",
    "normalize_answer",
    "selection_measures",
    "token_f1",
]

SELECTION_MEASURES = (
    "gold_recall",
    "all_gold",
    "gold_precision",
    "reciprocal_rank",
    "ndcg",
    "pool_recall",
    "source_recall",
    "answer_in_context",
    "diversity",
    "source_entropy",
)
GENERATION_MEASURES = ("exact_match", "token_f1", "rouge_l", "accuracy")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and extra blanks (the SQuAD evaluation's rule)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the normalised prediction equals an accepted answer; with no accepted answer, 1 if it is empty."""
    given = normalize_answer(prediction)
    return float(any(given == normalize_answer(a) for a in answers or ("",)))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Largest F1 of the bags of normalised words over the accepted answers.

    Where either side has no words, 1 if both have none and 0 otherwise.
    """
    return max(
        _f1(normalize_answer(prediction).split(), normalize_answer(a).split()) for a in answers or ("",)
    )


def _f1(given: list[str], gold: list[str]) -> float:
    if not given or not gold:
        return float(given == gold)
    shared = sum((Counter(given) & Counter(gold)).values())
    return 2 * shared / (len(given) + len(gold))


def _rouge_l(prediction: str, answers: Sequence[str]) -> float:
    scorer = require("rouge_score.rouge_scorer", "evaluation", "the measure rouge_l").RougeScorer(["rougeL"])
    return max(float(scorer.score(a, prediction)["rougeL"].fmeasure) for a in answers)


def _is_unanswerable(question: Question) -> bool:
    return not question.answers and question.type == "unanswerable"


def answer_measures(question: Question, answer: str, choice: int | None = None) -> dict[str, float | None]:
    """Measures of an answer.

    Parameters
    ----------
    choice : int, optional
        Index of the chosen option, for multiple-choice questions.

    Returns
    -------
    dict
        None where the data has no accepted answer (unless the question is marked "unanswerable").
    """
    measures: dict[str, float | None] = dict.fromkeys(GENERATION_MEASURES)
    if question.answers or _is_unanswerable(question):
        measures["exact_match"] = exact_match(answer, question.answers)
        measures["token_f1"] = token_f1(answer, question.answers)
    if question.answers:
        measures["rouge_l"] = _rouge_l(answer, question.answers)
    if question.choices and question.answers and choice is not None:
        measures["accuracy"] = _chosen_right(question, choice)
    return measures


def _chosen_right(question: Question, choice: int) -> float:
    """1 if the chosen option is an accepted answer.

    Word for word if any option is one, since "1.5" and "15" are alike once normalised.
    """
    accepted = {a.strip() for a in question.answers}
    right = [k for k, option in enumerate(question.choices) if option.strip() in accepted]
    return float(choice in right) if right else exact_match(question.choices[choice], question.answers)


def failed_measures(question: Question, *, selection: bool, answer: bool) -> dict[str, float]:
    """Zeros for every measure that a success would have had, so that failing never pays.

    Parameters
    ----------
    selection, answer : bool
        Which of the two is missing: a selection that was made keeps its own measures, and without a reader
        there are none of an answer.
    """
    names: list[str] = []
    if answer and (question.answers or _is_unanswerable(question)):
        names += ["exact_match", "token_f1"]
    if answer and question.answers:
        names.append("rouge_l")
        if question.choices:
            names.append("accuracy")
    if selection:
        if question.gold_ids:
            names += ["gold_recall", "all_gold", "gold_precision", "pool_recall", "reciprocal_rank", "ndcg"]
        if question.gold_sources:
            names.append("source_recall")
        if question.answers and not _yes_no(question):
            names.append("answer_in_context")
    return dict.fromkeys(names, 0.0)


def selection_measures(question: Question, selection: Selection) -> dict[str, float | None]:
    """Measures of what was selected, against the labels of the question."""
    measures: dict[str, float | None] = dict.fromkeys(SELECTION_MEASURES)
    pool, ids = selection.candidates, selection.ids
    measures.update(gold_measures(question, selection))
    if question.gold_ids:
        measures.update(_rank_measures(ids, set(question.gold_ids)))
    if question.answers and not _yes_no(question):
        context = f" {normalize_answer(' '.join(f'{p.title} {p.text}' for p in selection.passages))} "
        measures["answer_in_context"] = float(
            any(f" {a} " in context for a in map(normalize_answer, question.answers) if a)
        )
    measures["diversity"] = diversity(pool, selection.chosen)
    if pool.sources is not None and selection.chosen:
        counts = np.array(list(Counter(pool.sources[i] for i in selection.chosen).values()), dtype=float)
        share = counts / counts.sum()
        measures["source_entropy"] = float(abs(-(share * np.log2(share)).sum()))
    return measures


def gold_measures(question: Question, selection: Selection) -> dict[str, float]:
    """Those measures that compare the selected passages with the labels as sets; quick to compute."""
    pool, ids = selection.candidates, selection.ids
    measures: dict[str, float] = {}
    if question.gold_ids:
        gold = set(question.gold_ids)
        found = gold & set(ids)
        measures["gold_recall"] = len(found) / len(gold)
        measures["all_gold"] = float(found == gold)
        measures["gold_precision"] = len(found) / len(ids) if ids else 0.0
        measures["pool_recall"] = len(gold & set(pool.ids)) / len(gold)
    if question.gold_sources and pool.sources is not None:
        chosen = {pool.sources[i] for i in selection.chosen}
        measures["source_recall"] = len(chosen & set(question.gold_sources)) / len(set(question.gold_sources))
    return measures


def _yes_no(question: Question) -> bool:
    """Whether occurrence of the answer in a text would mean nothing."""
    return all(normalize_answer(a) in {"yes", "no", "maybe"} for a in question.answers)


def _rank_measures(ids: Sequence[str], gold: set[str]) -> dict[str, float | None]:
    library: Any = require("ir_measures", "evaluation", "the measures reciprocal_rank and ndcg")
    if not ids:
        return {"reciprocal_rank": 0.0, "ndcg": 0.0}
    qrels = [library.Qrel("q", g, 1) for g in gold]
    run = [library.ScoredDoc("q", i, float(len(ids) - k)) for k, i in enumerate(ids)]
    values = library.calc_aggregate([library.RR, library.nDCG], qrels, run)
    return {"reciprocal_rank": float(values[library.RR]), "ndcg": float(values[library.nDCG])}


def diversity(pool: Candidates, chosen: Sequence[int]) -> float | None:
    """1 - mean pairwise cosine of the chosen passages; None for fewer than two, or without embeddings."""
    if pool.embeddings is None or len(chosen) < 2:
        return None
    vectors = pool.embeddings[list(chosen)].astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(norms, 1e-12)
    k = len(chosen)
    return float(1 - (np.square(unit.sum(axis=0)).sum() - np.square(unit).sum()) / (k * (k - 1)))
