"""Weights of sentences on questions of one's own: labels by hand, and weights that find what was planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.fit import calibrate, fit_sentences, needed_sentences
from mio_rag.pool import Candidates
from mio_rag.relevance.sentences import SENTENCE_FEATURES
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.sentences import cut
from mio_rag.types import Passage, Question

LONG = "the revenue of the quarter was $1,250 million, which is more than what it was in all quarters of 2022"


def pool(texts: list[str], question: str, relevance: list[float]) -> Candidates:
    return Candidates(
        ids=[f"p{k}" for k in range(len(texts))], texts=texts, relevance=np.array(relevance),
        tokens=RegexCounter().count(texts), question=question, sentences=cut(texts),
    )  # fmt: skip


def reports(count: int = 30) -> tuple[list[Question], list[Candidates]]:
    """Questions whose answer is a row of a table in the passage that search thought less of."""
    questions, pools = [], []
    for k in range(count):
        figure = f"{k + 1},{100 + k}"
        asked = Question(f"q{k}", "What did the board say of revenue?", (LONG.replace("1,250", figure),))
        rows = f"Quarter ended in June\nSales of goods {figure}\nOther things that were sold"
        talk = "The board spoke of revenue. It was pleased with revenue."
        questions.append(asked)
        pools.append(pool([talk, rows], asked.text, [0.9, 0.1]))
    return questions, pools


def test_short_answers_word_for_word_and_long_ones_by_figures() -> None:
    found = pool(["Bari lies by the sea. Bari, 1,250 people.", "It is in Bari."], "Where?", [0.5, 0.5])
    assert needed_sentences(Question("q", "Where?", ("by the sea",)), found).tolist() == [True, False, False]
    assert needed_sentences(Question("q", "Where?", ("Bari",), ("p1",)), found).tolist() == [
        False,
        False,
        True,
    ]
    assert needed_sentences(Question("q", "What?", (LONG,)), found).tolist() == [False, True, False]
    assert not needed_sentences(Question("q", "What?"), found).any()
    asked = Question("q", "Where?", ("Bari",), gold_sources=("south",))
    placed = replace(found, sources=["north", "south"])
    assert needed_sentences(asked, placed).tolist() == [False, False, True]
    assert needed_sentences(asked, found).tolist() == [True, True, True]  # nobody knows their documents


def test_weights_find_rows_that_those_that_ship_pass_over() -> None:
    questions, pools = reports()
    fitted = fit_sentences(questions, pools)
    assert fitted.chance == 0.0  # the passage was never the one that search thought most of
    assert fitted.measures["log_loss_after"] < fitted.measures["log_loss_before"]
    assert fitted.measures["needed"] == fitted.measures["questions"] == 30
    best = [int(np.argmax(fitted.worth(one))) for one in pools]
    assert best == [3] * 30
    again = fit_sentences(questions, [replace(one, sentences=None) for one in pools])
    assert tuple(again.weights) == SENTENCE_FEATURES
    assert again.weights == pytest.approx(fitted.weights)
    unanswered = [Question(f"u{k}", "What?") for k in range(3)]
    with pytest.raises(InputError, match=r"9 of 12 questions .* at least 10"):
        fit_sentences([*questions[:9], *unanswered], pools[:12])


def test_calibrate_needs_no_gold_for_sentences() -> None:
    passages, questions = [], []
    for k in range(24):
        figure = f"{k + 1},{100 + k}"
        passages.append(
            Passage(f"p{k}", f"Net sales of shop{k} are told here.\nAll in all {figure}\nNo more.")
        )
        questions.append(
            Question(f"q{k}", f"What were net sales of shop{k}?", (LONG.replace("1,250", figure),))
        )
    data = Dataset("shops", tuple(passages), tuple(questions))
    retriever = Retriever(CorpusIndex.build(passages, "tfidf", "shops"))
    with pytest.raises(DataError, match="on answers alone"):
        calibrate(data, retriever)
    model = calibrate(data, retriever, sentences=True)
    assert model.sentences is not None
    assert "24 questions of 'shops'" in model.sentences.provenance
    found = retriever.retrieve(questions[3].text)
    chosen = Selector(relevance_model=model, units="sentences").select(found, 8, RegexCounter())
    assert "4,103" in " ".join(chosen.texts)
    bare = replace(data, questions=tuple(replace(q, answers=()) for q in questions))
    with pytest.raises(DataError, match="no question of 'shops' has an answer"):
        calibrate(bare, retriever, sentences=True)
