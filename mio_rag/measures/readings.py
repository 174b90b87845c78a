"""Measures of an answer and of what was read for it that take a model: an embedder, a judge, a writer."""

from __future__ import annotations

from collections.abc import Sequence

from mio_rag.generation.extractive import sentences
from mio_rag.generation.prompts import question_prompt
from mio_rag.measures.bert_score import bert_score
from mio_rag.measures.instruments import Reading
from mio_rag.measures.measure import Column, Frontier, Measure, Page, Use
from mio_rag.types import Question

_QUESTION_TOKENS = 48  # longest question that a writer writes


def _cosines(reading: Reading, text: str, others: Sequence[str]) -> float:
    """Largest cosine of a text with others, at least 0; 0 for a blank text."""
    assert reading.instruments.embedder is not None
    if not text.strip():
        return 0.0
    vectors = reading.instruments.embedder.encode([text, *others])
    return min(1.0, float((vectors[1:] @ vectors[0]).max(initial=0.0)))


def _answer_cosine(question: Question, reading: Reading) -> float:
    return _cosines(reading, reading.answer or "", question.answers)


def _question_cosine(question: Question, reading: Reading) -> float:
    return _cosines(reading, reading.answer or "", [question.text])


def _bert_score(question: Question, reading: Reading) -> float:
    vectors = reading.instruments.tokens
    assert vectors is not None
    found = (bert_score(vectors, accepted, reading.answer or "") for accepted in question.answers)
    return min(1.0, max(0.0, *found))


def _supported(question: Question, text: str, reading: Reading) -> float | None:
    """Share of the sentences of a text that the judge finds supported by what was read; None without any."""
    judge = reading.instruments.judge
    assert judge is not None
    said = sentences(text)
    if not said or not reading.passages:
        return 0.0 if said else None
    key = ("support", question.text, text, reading.passages)
    known = reading.known
    if key not in known:
        verdicts = [judge.supports(question.text, sentence, reading.passages) for sentence in said]
        known[key] = sum(verdicts) / len(said)
    share = known[key]
    assert isinstance(share, float)
    return share


def _faithfulness(question: Question, reading: Reading) -> float | None:
    return _supported(question, reading.answer or "", reading)


def _context_recall(question: Question, reading: Reading) -> float | None:
    found = [_supported(question, answer, reading) for answer in question.answers]
    return max((share for share in found if share is not None), default=None)


def _answer_relevance(question: Question, reading: Reading) -> float:
    writer = reading.instruments.writer
    assert writer is not None
    answer = reading.answer or ""
    if not answer.strip():
        return 0.0
    key = ("question", answer, reading.passages)
    known = reading.known
    if key not in known:
        prompt = question_prompt(answer, reading.passages)
        known[key] = writer.generate(prompt, max_tokens=_QUESTION_TOKENS).text
    return _cosines(reading, str(known[key]), [question.text])


def _answerable(question: Question) -> bool:
    return bool(question.answers)


_RAGAS = "Es et al., RAGAS, EACL 2024"
_NOT_IN_GRID = Frontier(Use.NONE)

#: In the order of the ledger. Each is taken only where its instruments are given.
READINGS = (
    Measure(
        "answer_cosine",
        "Answer cosine",
        "cosine of the answer with the closest gold answer, below 0 as 0",
        of="answer",
        better="higher",
        unit="0 to 1",
        source="Risch et al., Semantic Answer Similarity, MRQA 2021 (bi-encoder); embedder: run.json",
        compute=_answer_cosine,
        needs=("embedder",),
        labelled=_answerable,
        place=61,
        console=Column("answer cosine", interval=True),
        page=Page(91),
        frontier=_NOT_IN_GRID,
    ),
    Measure(
        "bert_score",
        "BERTScore",
        "F1 of matching the tokens of the answer with those of the best gold answer by their vectors",
        of="answer",
        better="higher",
        unit="0 to 1",
        source="Zhang et al., BERTScore, ICLR 2020 (neither weighted nor rescaled); model and layer: "
        "run.json",
        compute=_bert_score,
        needs=("tokens",),
        labelled=_answerable,
        place=62,
        console=Column("BERTScore", interval=True),
        page=Page(92),
        frontier=_NOT_IN_GRID,
    ),
    Measure(
        "faithfulness",
        "Faithfulness",
        "share of the answer's sentences that what was read supports, by a judge",
        of="answer",
        better="higher",
        unit="0 to 1",
        source=f"{_RAGAS} (sentences in place of statements; judge: run.json)",
        compute=_faithfulness,
        needs=("judge",),
        labelled=lambda question: True,
        place=63,
        console=Column("faithful", interval=True),
        page=Page(93, core=True),
        frontier=_NOT_IN_GRID,
    ),
    Measure(
        "answer_relevance",
        "Answer relevance",
        "cosine of the question with the one that a language model writes from answer and passages",
        of="answer",
        better="higher",
        unit="0 to 1",
        source=f"{_RAGAS} (one question, written greedily; model and embedder: run.json)",
        compute=_answer_relevance,
        needs=("embedder", "writer"),
        labelled=lambda question: True,
        place=64,
        console=Column("relevance", interval=True),
        page=Page(94),
        frontier=_NOT_IN_GRID,
    ),
    Measure(
        "question_cosine",
        "Question cosine",
        "cosine of the answer with the question, below 0 as 0: whether it keeps to the subject",
        of="answer",
        better="higher",
        unit="0 to 1",
        source="answer relevance without a language model; embedder: run.json",
        compute=_question_cosine,
        needs=("embedder",),
        labelled=lambda question: True,
        place=65,
        compared=False,
        console=None,
        page=Page(95, judged=False),
        frontier=_NOT_IN_GRID,
    ),
    Measure(
        "context_recall",
        "Context recall",
        "share of the sentences of the best gold answer that what was read supports, by a judge",
        of="selection",
        better="higher",
        unit="0 to 1",
        source=f"{_RAGAS}, as its package defines it (sentences; judge: run.json)",
        compute=_context_recall,
        needs=("judge",),
        labelled=_answerable,
        place=66,
        console=Column("context recall", interval=True),
        page=Page(96, card=False),
        frontier=_NOT_IN_GRID,
    ),
)
