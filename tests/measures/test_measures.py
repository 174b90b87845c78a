"""Measures against values worked out by hand, or by a plain loop."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.measures import (
    answer_measures,
    coverage,
    evidence_found,
    exact_match,
    failed_measures,
    measures,
    normalize_answer,
    selection_measures,
    token_f1,
)
from mio_rag.measures.answers import figure_match, rouge_l
from mio_rag.pool import Candidates
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

#: In the order of the ledger.
OF_SELECTIONS = [
    "answer_in_context", "evidence_covered",
    "gold_recall", "all_gold", "gold_precision", "reciprocal_rank", "ndcg", "context_precision",
    "pool_recall", "source_recall", "diversity", "topic_coverage",
    "precision_5", "recall_5", "precision_10", "recall_10", "source_entropy",
    "retrieved_precision_5", "retrieved_precision_10", "retrieved_recall_5", "retrieved_recall_10",
    "retrieved_reciprocal_rank",
]  # fmt: skip
OF_ANSWERS = ["exact_match", "token_f1", "rouge_l", "figure_match", "accuracy"]


#: Measured in tests/measures, with their instruments.
OF_READINGS = [
    "answer_cosine", "bert_score", "faithfulness", "answer_relevance", "question_cosine", "context_recall",
]  # fmt: skip


def test_every_measure_that_is_computed_is_measured_here() -> None:
    computed = [m.name for m in measures() if m.compute is not None]
    assert computed == OF_SELECTIONS + OF_ANSWERS + OF_READINGS
    assert [m.name for m in measures() if m.needs] == OF_READINGS


def test_exact_match_takes_any_accepted_answer() -> None:
    for text, normal in (
        ("The  Eiffel-Tower!", "eiffeltower"), ("An apple a day", "apple day"), ("U.S.A.", "usa"),
        ("anthem theory", "anthem theory"), ("the", ""), ("It's 3.14", "its 314"),
        ("手当は「１５円」です。", "手 当 は 15 円 で す"), ("a–b Café", "–b café"),
    ):  # fmt: skip
        assert normalize_answer(text) == normal
    assert exact_match("the Po.", ["Arno", "Po"]) == 1
    assert exact_match("Po river", ["Po"]) == 0
    assert exact_match("", []) == exact_match("the", []) == 1
    assert exact_match("Po", []) == 0


def test_token_f1_by_hand() -> None:
    # shared: the bag {red, red}; 3 words given, 4 accepted
    assert token_f1("red red green", ["red red blue blue"]) == pytest.approx(
        2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)
    )
    assert token_f1("red", ["blue", "red green"]) == pytest.approx(2 / 3)
    assert token_f1("blue", ["red"]) == 0
    assert token_f1("", ["red"]) == token_f1("red", []) == 0
    assert token_f1("", []) == token_f1("a", ["the"]) == 1


def test_rouge_l_is_that_of_the_package_rouge_score() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    rng = np.random.default_rng(0)
    words = ["the", "The", "a", "U.S.A.", "3.14", "it's", "Straße", "İ", "日本", "-", "", "two words", "a_b"]
    for _ in range(200):
        one, other = (" ".join(rng.choice(words, rng.integers(9))) for _ in "ab")
        expected = scorer.score(one, other)["rougeL"].fmeasure
        assert rouge_l(one, other) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(("text", "accepted", "share"), [
    ("It was 40.665 billion.", "Net sales were $40,665 million, up 3%.", 1 / 2),
    ("up 0.03", "up 3 percent", 1.0),
    ("1,234 and 56", "On July 1, 2023:\n1. it was (1,234) in the 10-Q\n2. 56 in Q3", 1.0),
    ("1.240", "1.234", 0.0),
    ("2023", "in 2023", 1.0),
    ("2023", "5 in 2023", 0.0),
    ("nothing", "no figures", None),
])  # fmt: skip
def test_figures_of_an_answer(text: str, accepted: str, share: float | None) -> None:
    found = figure_match(text, [accepted])
    assert found == (None if share is None else pytest.approx(share))


def test_topics_are_groups_of_like_passages() -> None:
    vectors = np.repeat(np.eye(20), 2, axis=0)[:40] + 0.01 * np.eye(40, 20)
    chosen = selection(["p0", "p1"], [1.0] * 40, [""] * 40, vectors)
    assert selection_measures(Question("q", "?"), chosen)["topic_coverage"] == pytest.approx(1 / 8)


def test_answers_without_a_key_are_not_scored() -> None:
    assert answer_measures(Question("q", "?"), "anything") == dict.fromkeys(OF_ANSWERS)
    unanswerable = Question("q", "?", type="unanswerable")
    assert answer_measures(unanswerable, "") == {
        "exact_match": 1.0, "token_f1": 1.0, "rouge_l": None, "figure_match": None, "accuracy": None,
    }  # fmt: skip
    assert answer_measures(unanswerable, "something")["exact_match"] == 0


@pytest.mark.parametrize(
    ("choices", "answer", "right"),
    [
        (("1.5", "15", "150"), "15", 1),
        (("C", "C++", "C#"), "C#", 2),
        (("-5", "5"), "-5", 0),
        (("the red one", "the blue one"), "Red one.", 0),
        (("A", "The"), "The", 1),
    ],
)
def test_accuracy_tells_options_apart(choices: tuple[str, ...], answer: str, right: int) -> None:
    question = Question("q", "?", (answer,), choices=choices)
    given = [answer_measures(question, option, k)["accuracy"] for k, option in enumerate(choices)]
    assert given == [float(k == right) for k in range(len(choices))]
    assert answer_measures(question, choices[right])["accuracy"] is None


def selection(
    chosen: list[str], relevance: list[float], sources: list[str], vectors: np.ndarray
) -> Selection:
    """Passages p0, p1, ... of which the given ones are chosen."""
    n = len(relevance)
    pool = Candidates(
        ids=[f"p{k}" for k in range(n)],
        texts=[f"Text number {k} tells of the Mount Falterona" if k == 2 else f"Text {k}" for k in range(n)],
        relevance=np.array(relevance), tokens=np.ones(n, dtype=int), embeddings=vectors, sources=sources,
        titles=["Title"] * n,
    )  # fmt: skip
    out = [i for i in pool.ids if i not in chosen]
    return Selector.raw(redundancy_weight=0, must_include=chosen, must_exclude=out).select(pool, n)


VECTORS = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 0, 2], [-1, 0, 0], [0, 0, 0]])


def test_selection_measures_by_hand() -> None:
    # prompt order is by relevance: p2, p0, p1
    chosen = selection(["p0", "p1", "p2"], [0.5, 0.4, 0.9, 0.8, 0.1], ["x", "x", "y", "z", ""], VECTORS)
    assert chosen.ids == ("p2", "p0", "p1")
    question = Question(
        "q", "?", ("mount falterona!", "elsewhere"), ("p0", "p1", "p3", "absent"), gold_sources=("x", "z")
    )
    measured = selection_measures(question, chosen)
    assert set(measured) == set(OF_SELECTIONS)
    ideal = 1 + 1 / math.log2(3) + 1 / math.log2(4) + 1 / math.log2(5)
    assert measured == {
        "evidence_covered": 2 / 4,
        "gold_recall": 2 / 4,
        "all_gold": 0.0,
        "gold_precision": pytest.approx(2 / 3),
        "reciprocal_rank": 1 / 2,
        "ndcg": pytest.approx((1 / math.log2(3) + 1 / math.log2(4)) / ideal, abs=1e-6),
        # gold passages stand second and third in the prompt
        "context_precision": pytest.approx((1 / 2 + 2 / 3) / 2),
        "pool_recall": 3 / 4,
        "source_recall": 1 / 2,
        "answer_in_context": 1.0,
        # cosines 0.6, 0 and 0
        "diversity": pytest.approx(1 - 0.6 / 3),
        "topic_coverage": 3 / 5,  # none of five is like another
        "precision_5": 2 / 5,
        "precision_10": 2 / 10,
        "recall_5": 2 / 4,
        "recall_10": 2 / 4,
        "source_entropy": pytest.approx(-(1 / 3) * math.log2(1 / 3) - (2 / 3) * math.log2(2 / 3)),
        # the pool is p0 to p4 in this order, whatever was selected: gold are the first, second and fourth
        "retrieved_precision_5": 3 / 5,
        "retrieved_precision_10": 3 / 10,
        "retrieved_recall_5": 3 / 4,
        "retrieved_recall_10": 3 / 4,
        "retrieved_reciprocal_rank": 1.0,
    }


def test_what_is_read_of_the_evidence_counts_by_its_words() -> None:
    text = "One two three four five. Six seven eight nine ten."
    assert coverage([text], ["ONE two, three <b>four</b> five"]) == 0.5
    assert coverage([text], [text[:24]]) == 0.5
    assert coverage([text, "one two"], ["one two three"]) == pytest.approx(2 / 12)  # a run of four, or all
    assert coverage(["銀行営業時間"], ["本店の銀行営業時間"]) == 1.0
    assert coverage([], [text]) == coverage([text], []) == 0.0
    pool = Candidates(["a", "b"], [text, "Something else"], [0.9, 0.1], [10, 2])
    whole = Selector.raw(redundancy_weight=0, must_include=["a"], must_exclude=["b"]).select(pool, 20)
    for labels, share in (
        ({"gold_ids": ("a", "b")}, 0.5), ({"gold_ids": ("a", "absent")}, 0.5), ({}, None),
        ({"gold_ids": ("b",), "evidence": ("six seven eight nine", "not there at all")}, 0.5),
    ):  # fmt: skip
        assert selection_measures(Question("q", "?", **labels), whole)["evidence_covered"] == share


def test_coverage_is_of_passages_or_else_of_documents() -> None:
    pool = selection(["p0"], [0.5, 0.4, 0.9, 0.8, 0.1], ["x", "x", "y", "z", ""], VECTORS).candidates
    by_passage = Question("q", "?", gold_ids=("p0", "p3", "absent"), gold_sources=("x",))
    assert evidence_found(by_passage, pool, [0, 1, 2]) == 1 / 3
    by_document = Question("q", "?", gold_sources=("x", "z"))
    assert evidence_found(by_document, pool, [0, 1, 2]) == 1 / 2
    assert evidence_found(by_document, pool, []) == 0
    with pytest.raises(InputError, match="no gold passages and no gold documents"):
        evidence_found(Question("q", "?"), pool, [0])
    with pytest.raises(InputError, match="names no sources"):
        evidence_found(by_document, replace(pool, sources=None), [0])


@pytest.mark.parametrize(
    ("dates", "found"), [(None, 1.0), (("2020", "2024"), 1.0), (("2024", "2020"), 0.0), (("", "2020"), 1.0)]
)
def test_a_twin_of_a_gold_passage_counts_unless_it_is_older(dates, found) -> None:
    alike = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    pool = Candidates(
        ["gold", "twin", "other"], ["a b c", "a b c", "d"], [0.5, 0.6, 0.4], [3, 3, 1],
        dates=None if dates is None else [*dates, ""], duplicates=alike,
    )  # fmt: skip
    given = Selector(redundancy_weight=0, passage_penalty=0, relevance_model="given", must_exclude=["gold"])
    chosen = given.replace(near_duplicates="all").select(pool, 9)
    assert set(chosen.ids) == {"twin", "other"}
    measured = selection_measures(Question("q", "?", gold_ids=("gold", "gold")), chosen)
    names = ("gold_recall", "all_gold", "gold_precision", "ndcg")
    assert [measured[name] for name in names] == [found, found, found / 2, pytest.approx(found)]
    assert evidence_found(Question("q", "?", gold_ids=("gold",)), pool, [2, 1]) == found
    assert evidence_found(Question("q", "?", gold_ids=("gold", "twin")), pool, [2, 1]) == 0.5


def test_all_gold_and_a_perfect_ranking() -> None:
    chosen = selection(["p3", "p4"], [0.5, 0.4, 0.9, 0.8, 0.1], [""] * 5, VECTORS)
    measured = selection_measures(Question("q", "?", gold_ids=("p4", "p3", "p3")), chosen)
    for name in (
        *("gold_recall", "all_gold", "gold_precision", "reciprocal_rank", "ndcg", "pool_recall"),
        "context_precision",
    ):
        assert measured[name] == 1
    assert measured["source_entropy"] == 0
    assert measured["answer_in_context"] is measured["source_recall"] is None


def test_choosing_nothing() -> None:
    none = selection([], [0.5, 0.4, 0.9, 0.8, 0.1], ["x"] * 5, VECTORS)
    measured = selection_measures(Question("q", "?", ("Falterona",), ("p0",)), none)
    assert {k for k, v in measured.items() if v is None} == {"source_recall", "diversity", "source_entropy"}
    assert {k: v for k, v in measured.items() if v} == {
        "pool_recall": 1.0, "retrieved_precision_5": 0.2, "retrieved_precision_10": 0.1,
        "retrieved_recall_5": 1.0, "retrieved_recall_10": 1.0, "retrieved_reciprocal_rank": 1.0,
    }  # fmt: skip


def test_answers_are_found_as_whole_words_and_yes_is_not_looked_for() -> None:
    chosen = selection(["p2"], [0.5, 0.4, 0.9, 0.8, 0.1], ["x"] * 5, VECTORS)
    found = {
        answer: selection_measures(Question("q", "?", (answer,)), chosen)["answer_in_context"]
        for answer in ("Mount Falterona", "mount", "oun", "Yes", "number 2 tells")
    }
    assert found == {"Mount Falterona": 1.0, "mount": 1.0, "oun": 0.0, "Yes": None, "number 2 tells": 1.0}


@pytest.mark.parametrize(
    ("answer", "text", "is_there"),
    [
        ("178", "Drip | 178.00 | yes", True),
        ("178.00 euros", "It costs 178 euros.", True),
        ("1,410", "In all 1410.", True),
        ("1410.5", "in all 1.410,50 EUR", True),
        ("3.5", "about 3,5 hours", True),
        ("10000", "10.000 Euro", True),  # as the words of SQuAD are: the full stop is left out
        ("17800", "Drip | 178.00 | yes", False),
        ("15", "1.5 hours", False),
        ("1.5", "15 hours", False),
        ("12", "on 12.10.2024", False),
        ("12.10.2024", "on 12.10.2024.", True),
    ],
)
def test_numbers_are_found_by_their_value(answer: str, text: str, is_there: bool) -> None:
    pool = Candidates(ids=["a"], texts=[text], relevance=np.ones(1), tokens=np.ones(1, dtype=int))
    chosen = Selector.raw(redundancy_weight=0, must_include=["a"]).select(pool, 9)
    found = selection_measures(Question("q", "?", (answer,)), chosen)["answer_in_context"]
    assert found == float(is_there)


@pytest.mark.parametrize(
    "question",
    [
        Question("q", "?", ("a",), ("p0",), gold_sources=("x",), choices=("a", "b")),
        Question("q", "?", ("yes",), gold_sources=("x",)),
        Question("q", "?", type="unanswerable"),
        Question("q", "?"),
    ],
)
def test_a_failure_scores_zero_wherever_a_success_scores(question: Question) -> None:
    chosen = selection(["p0", "p1"], [0.5, 0.4, 0.9, 0.8, 0.1], ["x"] * 5, VECTORS)
    choice = 0 if question.choices else None
    scored = selection_measures(question, chosen) | answer_measures(question, "a", choice)
    defined = {name for name, value in scored.items() if value is not None} - {
        "diversity", "source_entropy", "topic_coverage",
    }  # fmt: skip
    assert failed_measures(question, selection=True, answer=True) == dict.fromkeys(defined, 0.0)
    only_answer = failed_measures(question, selection=False, answer=True)
    assert set(only_answer) == defined & set(OF_ANSWERS)
    only_selection = failed_measures(question, selection=True, answer=False)
    assert set(only_selection) == defined & set(OF_SELECTIONS)
