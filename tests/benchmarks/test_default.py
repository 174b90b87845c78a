"""The study of the default: differences, totals and marks are those of the columns, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.default.models import by_scores, pools_of
from benchmarks.default.outside import fit_answerable, read_for, strangers_of
from benchmarks.default.study import BASELINES, BUDGETS, OURS, Columns, head
from benchmarks.default.summary import over_budgets, summarize, table, totals
from mio_rag.candidates import Candidates
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.retrieval import CorpusIndex
from mio_rag.types import Question

ELSEWHERE = (
    "How do I sort a list of dictionaries by a key in Python?",
    "What is the boiling point of ethanol?",
    "Which party won the parliamentary election in Hungary?",
    "How long should sourdough prove overnight?",
    "What does the mitochondrial membrane regulate?",
    "Who composed the soundtrack of the film?",
)
RECALL = {"topk": [0.0, 1.0, 0.0, 0.0], "fused": [1.0, 1.0, 0.0, 0.0], "default": [1.0, 1.0, 1.0, 1.0]}


def columns(recall: list[float], tokens: float) -> Columns:
    return {
        str(budget): {"recall": recall, "tokens": [tokens * budget] * 4, "proven": [1.0] * 4}
        for budget in BUDGETS
    }


def test_rows_are_held_against_the_best_ranking_and_summed_by_hand() -> None:
    rows = {name: columns(RECALL.get(name, [0.0] * 4), 1.0) for name in (*BASELINES, *OURS)}
    rows["default"] = columns(RECALL["default"], 0.5)
    rows["bm25"]["256"] = {"recall": [1.0, 1.0, 1.0, 0.0], "tokens": [128.0] * 4, "proven": [1.0] * 4}
    results = {"one, minilm": summarize(rows)}
    assert [results["one, minilm"][str(b)]["best"] for b in BUDGETS] == ["bm25", "fused", "fused"]
    summed = totals(results)
    assert summed["default"]["difference"] == pytest.approx((0.25 + 0.5 + 0.5) / 3)
    assert summed["default"]["token_share"] == pytest.approx((1.0 + 0.5 + 0.5) / 3)
    assert summed["default"]["share_of_all_tokens"] == pytest.approx((128 + 256 + 512) / (128 + 512 + 1024))
    assert summed["raw"]["clearly_below"] == ["one, minilm 256"]
    over = {"one, minilm": over_budgets(rows)}
    # A question counts once: 0, 0, 2/3 and 1 of the budgets are better.
    assert over["one, minilm"]["default"]["mean"] == pytest.approx((0 + 0 + 2 / 3 + 1) / 4)
    assert over["one, minilm"]["default"]["high"] <= 1
    read = {str(budget): {"tokens": 40.0, "before": 100.0, "nothing": 0.25} for budget in BUDGETS}
    outside = {"one, minilm": {**read, "told": {"area": 0.9, "questions": 4.0}}}
    text = table(results, summed, over, outside)
    assert "in the mean at 256: 40 of 100 tokens" in text
    assert "default, mean of a question over the budgets" in text
    assert "bm25 0.750" in text


def test_the_head_of_a_pool_with_near_duplicates_is_cut_as_a_whole() -> None:
    count = 53  # links led to three more
    known = np.zeros((count, count))
    known[0, 52] = known[52, 0] = known[1, 2] = known[2, 1] = 0.9
    pool = Candidates(
        ids=[str(k) for k in range(count)],
        texts=[f"text {k}" for k in range(count)],
        relevance=np.linspace(1, 0, count),
        tokens=[2] * count,
        sources=["a"] * count,
        spans=[(10 * k, 10 * k + len(f"text {k}")) for k in range(count)],
        dates=[""] * count,
        duplicates=known,
    )
    first = head(pool)
    assert len(first) == 50
    assert first.duplicates is not None
    assert first.duplicates.sum() == pytest.approx(1.8)


def test_whether_there_is_an_answer_is_fitted_without_the_set_left_out() -> None:
    data = load_dataset("demo")
    index = CorpusIndex.build(data.passages, "tfidf", "demo")
    elsewhere = Dataset(
        "b", data.passages[:1], tuple(Question(str(k), text) for k, text in enumerate(ELSEWHERE))
    )
    own = pools_of(data, index, 30, 0)
    foreign = strangers_of("a", index, {"a": data, "b": elsewhere}, 0)
    assert list(foreign) == ["b"]
    pools, strangers = {("a", "tfidf"): own}, {("a", "tfidf"): foreign}
    fitted = fit_answerable(pools, strangers)
    assert not fitted.by_cosine
    assert fit_answerable(pools, strangers, embedder="tfidf").by_cosine
    # A set that is left out leaves nothing behind, neither its collection nor its questions.
    mixed = {("a", "tfidf"): {**foreign, "c": own}}
    more = {**pools, ("c", "tfidf"): own}
    assert fit_answerable(more, {**mixed, ("c", "tfidf"): {"a": own}}, left_out="c") == fitted
    model = replace(by_scores([own], "x"), answerable=fitted)
    read = read_for(own, foreign, model, 1.0)
    assert read["told"]["area"] > 0.9
    assert all(
        read[str(budget)]["tokens"] == read[str(budget)]["before"] for budget in BUDGETS
    )  # by words alone
    cosine = replace(model, answerable=fit_answerable(pools, strangers, embedder="tfidf"))
    dearer = read_for(own, foreign, cosine, 1.0)
    assert all(dearer[str(budget)]["tokens"] < dearer[str(budget)]["before"] for budget in BUDGETS)
