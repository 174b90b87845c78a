"""Amounts: questions that ask for one, texts that hold one, and the figures of an answer."""

import pytest

from mio_rag.relevance.sentences import answer_figures, asks_amount, figures, holds_amount
from mio_rag.types import Question


@pytest.mark.parametrize(
    "question",
    [
        "How many people live in Bari?",
        "how tall is the Skerryvore lighthouse",
        "What was the gross MARGIN?",
        "Which liabilities did the company disclose?",
        "What losses were booked?",
        "Which taxes are due?",
        "Is the population of Lima larger?",
    ],
)
def test_questions_that_ask_for_an_amount(question: str) -> None:
    assert asks_amount(question)


@pytest.mark.parametrize(
    "question",
    [
        "Who wrote Emma?",
        "When was the bridge built?",
        "Which taxi did he take?",
        "What is massage?",
        "",
        "How?",
    ],
)
def test_other_questions(question: str) -> None:
    assert not asks_amount(question)


@pytest.mark.parametrize(
    "text", ["$5", "£ 3 a day", "12.5", "1,250", "7 %", "7%", "40 million", "3 per cent"]
)
def test_texts_that_hold_an_amount(text: str) -> None:
    assert holds_amount(f"It was {text} then")


@pytest.mark.parametrize(
    "text", ["in 2023", "July 30, 2023", "Note 7", "12, 13 and 14", "ten", "$", "Form 10-Q", ""]
)
def test_years_days_and_numbers_of_things_are_no_amounts(text: str) -> None:
    assert not holds_amount(text)


def test_the_figures_of_an_answer_are_those_that_its_question_does_not_name() -> None:
    assert figures("1,250, 7 and 12.5.") == {"1,250", "7", "12.5"}
    asked = Question("q", "Why 88.5 in 2022?", ("It was 88.5, then 1,250 and 7.", "On July 30, 2023: 99"))
    assert answer_figures(asked) == {"1,250", "99"}
    assert answer_figures(Question("q", "Why?")) == frozenset()
