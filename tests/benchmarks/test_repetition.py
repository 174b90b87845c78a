"""The study of corpora that repeat themselves: windows as they are cut, and figures worked out by hand."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.repetition.corpora import Cut, corpora_of
from benchmarks.repetition.elsewhere import chosen_elsewhere, mixture
from benchmarks.repetition.study import BUDGETS, Corpus, figures_found
from benchmarks.repetition.summary import REFERENCE, in_order, summarize, table
from benchmarks.repetition.windows import in_versions, recut, under_a_notice, words_of
from mio_rag.candidates import Candidates
from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.relevance.model import relevance_of
from mio_rag.relevance.sentences import SentenceModel, answer_figures
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.repetition import find_spans
from mio_rag.types import Passage, Question


def data() -> Dataset:
    texts = [" ".join(f"word{k}" for k in range(a, a + 25)) for a in (0, 25, 50)]
    passages = tuple(Passage(f"p{k}", text, "T", "d") for k, text in enumerate(texts))
    question = Question("q", "?", ("word3",), gold_ids=("p0",))
    return Dataset("set", (*passages, Passage("e", "alone", "", "e")), (question,))


@pytest.mark.parametrize("overlap", [0, 0.2, 0.5])
def test_windows_cover_every_document_and_overlap_by_so_much(overlap: float) -> None:
    cut = recut(data(), 20, overlap)
    windows = [p for p in cut.passages if p.source == "d"]
    document = " ".join(f"word{k}" for k in range(75))
    assert all(document[p.start : p.end] == p.text for p in windows)
    assert windows[-1].end == len(document)
    shared = set(windows[0].text.split()) & set(windows[1].text.split())
    assert len(shared) == round(20 * overlap)
    assert [p.text for p in cut.passages if p.source == "e"] == ["alone"]
    assert cut.questions[0].gold_ids == ()
    bare = [Passage(p.id, p.text, p.title, p.source) for p in windows]
    if overlap:  # what an index would find by itself
        assert (find_spans(bare) == [[p.start, p.end] for p in windows]).all()


def test_lines_of_a_document_stay_lines() -> None:
    rows = [f"item{k} {k}00\nnext{k}  {k}50" for k in range(6)]
    table = Dataset("set", tuple(Passage(f"p{k}", t, "T", "d") for k, t in enumerate(rows)), data().questions)
    document = "\n".join(row.replace("  ", " ") for row in rows)
    cut = recut(table, 6, 0.5).passages
    assert all(document[p.start : p.end] == p.text for p in cut)
    assert cut[-1].end == len(document)


@pytest.mark.parametrize(("words", "overlap"), [(0, 0), (10, 1), (10, -0.1), (10, 0.99)])
def test_windows_that_cannot_be_cut_are_refused(words: int, overlap: float) -> None:
    with pytest.raises(InputError):
        recut(data(), words, overlap)


def columns(rates: list[float], tokens: list[float]) -> dict[str, dict[str, list[float]]]:
    return {
        str(budget): {
            "answer": [rate] * 24,
            "tokens": [token] * 24,
            "proven": [1.0] * 24,
            "milliseconds": [1.0] * 24,
        }
        for budget, rate, token in zip(BUDGETS[-len(rates) :], rates, tokens, strict=True)
    }


def test_tokens_at_equal_answers_lie_on_the_line_between_budgets() -> None:
    rows = {
        REFERENCE: columns([0.2, 0.4, 0.5, 0.6, 0.7, 0.8], [100, 200, 300, 400, 600, 1000]),
        "half": columns([0.2, 0.4, 0.5, 0.6, 0.7, 0.8], [50, 100, 150, 200, 300, 500]),
        "between": columns([0.3, 0.5, 0.5, 0.5, 0.5, 0.7], [100, 200, 300, 400, 500, 600]),
    }
    found = summarize(rows, 0)["tokens_at_equal_answers"]
    assert [found["half"][b]["ratio"] for b in ("256", "512", "1024")] == [0.5, 0.5, 0.5]
    assert found["between"]["256"]["ratio"] == pytest.approx(150 / 200)
    assert found["between"]["512"]["ratio"] == pytest.approx((200 + 0.5 * 400) / 400)
    assert found["between"]["1024"]["ratio"] is None
    assert "never" in table({"set": summarize(rows, 0)})


def test_a_price_is_chosen_on_other_questions_than_those_that_are_reported() -> None:
    rates, tokens = [0.2, 0.4, 0.5, 0.6, 0.7, 0.8], [100, 200, 300, 400, 600, 1000]
    rows = {
        REFERENCE: columns(rates, tokens),
        "price 0.1, sentences, merged": columns([0.3] * 6, [10] * 6),  # cheap, and hardly answers
        "price 0.01, sentences, merged": columns([rate + 0.1 for rate in rates], [t / 2 for t in tokens]),
        "price 0.01, merged": columns(rates, tokens),  # a single price is no choice
    }
    found = chosen_elsewhere(rows, REFERENCE, (256, 512), 0)
    assert set(found) == {"sentences"}
    at = found["sentences"]["256"]
    assert at["prices"] == {"0.01": 20}
    assert at["answers"]["mean"] == pytest.approx(0.0, abs=1e-9)
    # .4 lies between .3 for 50 tokens and .5 for 100; .6 is reached by 150 of 400.
    assert at["tokens"] == found["sentences"]["512"]["tokens"] == {"mean": 0.375, "low": 0.375, "high": 0.375}


def test_what_a_price_seems_to_save_by_chance_is_not_reported_as_saved() -> None:
    """Each price answers other questions by luck: whichever half chooses, the other half pays."""
    answers = [1.0, 0.0] * 10
    lucky = {
        price: {
            str(b): {"answer": found, "tokens": [float(b)] * 20, "proven": [1.0] * 20, "milliseconds": [1.0]}
            for b in BUDGETS
        }
        for price, found in (("0.1", answers), ("0.2", answers[::-1]))
    }
    rows = {REFERENCE: lucky["0.1"], **{f"price {p}, merged": c for p, c in lucky.items()}}
    found = chosen_elsewhere(rows, REFERENCE, (256,), 0)["passages"]["256"]
    assert set(found["prices"]) == {"0.1", "0.2"}
    assert found["answers"]["mean"] < -0.02


@pytest.mark.parametrize(
    ("aim", "weights", "reached"),
    [(0.25, [0.5, 0, 0], True), (0.6, [0.5, 0.5, 0], True), (0.9, [0, 1, 0], False), (0, [0, 0, 0], True)],
)
def test_points_of_a_curve_are_mixed(aim: float, weights: list[float], reached: bool) -> None:
    found = mixture(np.array([10.0, 30.0, 50.0]), np.array([0.5, 0.7, 0.6]), aim)
    assert found[0] == pytest.approx(weights)
    assert found[1] is reached


def test_words_are_as_many_as_the_tokens_asked_for() -> None:
    given = data()
    words = words_of(given, 40)
    text = " ".join(given.passages[0].text.split()[:words])
    assert RegexCounter().count([text])[0] == pytest.approx(40, abs=3)
    assert words_of(given, 1) == 1


def test_older_versions_are_dated_and_differ() -> None:
    made = in_versions(data(), 0)
    newer, older = made.passages[:4], made.passages[4:]
    assert [p.text for p in newer] == [p.text for p in data().passages]
    assert all(n.date > o.date and n.source != o.source for n, o in zip(newer, older, strict=True))
    assert any(n.text != o.text for n, o in zip(newer, older, strict=True))
    assert in_versions(data(), 0).passages == made.passages
    assert all(p.date for p in recut(made, 20, 0.5).passages)


def test_a_notice_hides_where_windows_lie() -> None:
    noted = under_a_notice(recut(data(), 20, 0.5))
    assert len({p.text.split("only.")[0] for p in noted.passages}) == 1
    assert (find_spans(noted.passages) == -1).all()


def test_long_answers_are_looked_for_by_their_figures() -> None:
    asked = Question("q", "How much in 2022?", ("In 2022 it was $1,250, or 12.5 % (5 more), of 99,",))
    assert answer_figures(asked) == {"1,250", "12.5", "99"}
    dated = Question("q", "?", ("On July 30, 2023 and in 1999, 31 % of 32, 2100 or 2,023",))
    assert answer_figures(dated) == {"32", "2100", "2,023"}
    assert figures_found(asked, ["it was 1,250 then", "and 12.5"]) == pytest.approx(2 / 3)
    assert figures_found(asked, ["11,250 or 112.5"]) == 0
    assert figures_found(Question("q", "?", ("none",)), ["12"]) == 0


def test_corpora_are_in_order_of_set_size_and_overlap() -> None:
    names = ["squad2-128t-50-x", "squad2-64t-0-x", "nq_open-128t-20-x", "squad2-64t-50-x", "squad2-128t-0-x"]
    found = list(in_order({name: {} for name in names}))
    assert found == [
        "nq_open-128t-20-x", "squad2-64t-0-x", "squad2-64t-50-x", "squad2-128t-0-x", "squad2-128t-50-x",
    ]  # fmt: skip


def test_a_question_can_be_searched_for_in_its_own_documents_alone(tmp_path: Path) -> None:
    folder = tmp_path / "sec10q"
    folder.mkdir()
    lines = [
        {"id": f"{name}{k}", "text": f"Sales of {name} in part {k} were {k}7,123 million.", "source": name}
        for name in ("A", "B")
        for k in range(3)
    ]
    asked = [
        {"id": name, "question": "What were sales?", "answers": ["17,123"], "annotated_sources": [name]}
        for name in ("A", "B")
    ]
    for name, rows in (("corpus", lines), ("questions", asked)):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.write("\n".join(json.dumps(row) for row in rows))
    cut = Cut(tmp_path, "sec10q", "tfidf", 10, 0, 0.0, "plain", within=True)
    assert cut.name == "sec10q-10t-0-within-tfidf"
    _, corpus = corpora_of(cut, tmp_path / "work", 0, 10, 0, lambda told: None)
    found = {q.id: set(pool.sources or ()) for q, pool in zip(corpus.questions, corpus.pools, strict=True)}
    assert found == {"A": {"A"}, "B": {"B"}}
    everywhere = replace(cut, within=False)
    _, corpus = corpora_of(everywhere, tmp_path / "work", 0, 10, 0, lambda told: None)
    assert all(set(pool.sources or ()) == {"A", "B"} for pool in corpus.pools)
    with gzip.open(folder / "questions.jsonl.gz", "wt") as file:
        file.write(json.dumps({"id": "A", "question": "What were sales?", "answers": ["17,123"]}))
    with pytest.raises(InputError, match="names no documents for A: leave --within out"):
        corpora_of(cut, tmp_path / "other", 0, 10, 0, lambda told: None)


def test_own_weights_are_fitted_on_the_half_that_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.repetition import own
    from benchmarks.repetition.study import settings_of

    data = Dataset(
        "shops",
        tuple(
            Passage(f"p{k}", f"Shop{k} is told of.\nSales {k + 1},{100 + k}.\nNo more.") for k in range(24)
        ),
        tuple(Question(f"q{k}", f"What were sales of shop{k}?", (f"{k + 1},{100 + k}",)) for k in range(24)),
    )
    index = CorpusIndex.build(data.passages, "tfidf", "shops", sentences=True)
    pools = tuple(Retriever(index, pool=6).retrieve_many([q.text for q in data.questions]))
    corpus = Corpus("shops", data.questions, pools)
    model = relevance_of("auto", pools[0])[0]
    assert model is not None
    wanted = ("price 0.0005, sentences", "price 0.0005, sentences, greedy", "fused")
    settings = {name: row for name, row in settings_of(model, 1.0).items() if name in wanted}
    fitted: list[set[str]] = []
    fit_sentences = own.fit_sentences

    def noted(questions: list[Question], pools: list[Candidates], seed: int) -> SentenceModel:
        fitted.append({question.id for question in questions})
        return fit_sentences(questions, pools, seed=seed)

    monkeypatch.setattr(own, "fit_sentences", noted)
    rows = own.own_rows(tmp_path, corpus, model, settings, 0, lambda text: None)
    assert list(rows) == ["price 0.0005, sentences, own weights, merged"]
    assert fitted[0] | fitted[1] == {question.id for question in data.questions}
    assert not fitted[0] & fitted[1]
    answers = rows["price 0.0005, sentences, own weights, merged"]["128"]["answer"]
    assert len(answers) == 24
    assert np.mean(answers) > 0.9
    for number, others in enumerate(fitted):  # the rows of a half lie in a folder of its own
        kept = json.loads(next((tmp_path / f"own-{number}").glob("*.json")).read_text())
        half = [k for k, question in enumerate(data.questions) if question.id not in others]
        assert kept["columns"]["128"]["answer"] == [answers[k] for k in half]
