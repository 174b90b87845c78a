"""Several question sets in one run: each asked of its own corpus, one total for all."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mio_rag import InputError
from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.harness import EvaluationSettings, evaluate, mixture_of
from mio_rag.evaluation.report import render_report
from mio_rag.evaluation.statistics import summarize
from mio_rag.generation import ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.retrieval.settings import RetrievalSettings
from mio_rag.selection.selector import Selector
from tests.cli.running import here
from tests.evaluation.runs import SCRIPT, ledger, timeless

SETTINGS = EvaluationSettings(
    methods=("fused", "exact", "allocated", "paced"),
    budgets=(60,),
    selector=Selector.raw(),
    retrieval=RetrievalSettings(pool=10),
    limit=6,
)
FEW = replace(SETTINGS, methods=("fused",), controllers=("always-retrieve",), limit=2)


def test_each_set_is_asked_of_its_own_corpus_and_totals_are_for_all(
    rivers: Dataset, river_index: CorpusIndex, demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    result = evaluate([rivers, demo], [river_index, demo_index], None, SETTINGS, tmp_path)
    few = len(rivers.questions[:6])
    assert Counter(row["dataset"] for row in result.rows) == {rivers.name: 4 * few, "demo": 24}
    known = {data.name: {p.id for p in data.passages} for data in (rivers, demo)}
    for row in result.rows:
        assert not row["error"]
        assert row["question_id"].startswith(row["dataset"] + ":")
        assert set(row["selected_ids"]) <= known[row["dataset"]]
    for method in ("allocated", "paced"):
        spent = [row["tokens_used"] for row in result.rows if row["method"] == method]
        assert sum(spent) <= 60 * (few + 6)
    assert [row["dataset"] for row in ledger(tmp_path)] == [row["dataset"] for row in result.rows]
    assert (result.run["dataset"], result.run["questions"]) == (f"{rivers.name}, demo", few + 6)
    assert result.run["passages"] == len(rivers.passages) + len(demo.passages)
    for entry in result.by_set:
        group = [r for r in result.rows if all(r[k] == entry[k] for k in ("dataset", "method"))]
        assert {"dataset": entry["dataset"], **summarize(group)[0]} == entry
    assert json.loads((tmp_path / "by_set.json").read_text(encoding="utf-8")) == result.by_set
    page = render_report(result.rows, result.summary, result.comparisons, result.run)
    assert "By question set" in page
    again = evaluate([rivers, demo], [river_index, demo_index], None, SETTINGS, tmp_path, resume=True)
    assert timeless(again.rows) == timeless(result.rows)
    with pytest.raises(InputError, match="another data_sha256"):
        evaluate([demo, rivers], [demo_index, river_index], None, SETTINGS, tmp_path, resume=True)


def test_one_index_may_hold_all_corpora(rivers: Dataset, demo: Dataset, tmp_path: Path) -> None:
    whole = CorpusIndex.build((*rivers.passages, *demo.passages), make_embedder("tfidf"), "both")
    result = evaluate([rivers, demo], whole, ScriptedGenerator(SCRIPT), FEW, tmp_path)
    assert Counter(row["dataset"] for row in result.rows) == {rivers.name: 4, "demo": 4}
    with pytest.raises(InputError, match=f"does not hold the corpus of '{rivers.name}' "):
        evaluate(rivers, whole, None, replace(SETTINGS, limit=2), tmp_path / "one")


def test_the_stream_has_an_even_share_of_each_set(rivers: Dataset, demo: Dataset) -> None:
    indexes = [CorpusIndex.build(data.passages, make_embedder("tfidf")) for data in (rivers, demo)]
    mixed = mixture_of([rivers, demo], indexes)
    assert len(set(mixed.set_of)) == len(rivers.questions) + len(demo.questions)
    for end in range(1, len(mixed.questions)):
        here = sum(q.id.startswith("demo:") for q in mixed.questions[:end])
        assert abs(here - end * len(demo.questions) / len(mixed.questions)) <= 1
    alone = mixture_of(demo, indexes[1], limit=3)
    assert alone.questions == demo.questions[:3]


def test_sets_and_indexes_that_do_not_match_are_refused(
    rivers: Dataset, river_index: CorpusIndex, demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    first, second = (
        Dataset(name, demo.passages, (replace(demo.questions[0], id=i),))
        for name, i in (("a", "b:c"), ("a:b", "c"))
    )
    for sets, indexes, said in (
        ([demo, demo], demo_index, "two question sets are called 'demo'"),
        ([demo, rivers], [demo_index, river_index, river_index], "2 question sets and 3 indexes"),
        ([demo, rivers], [river_index, demo_index], "does not hold the corpus of 'demo' "),
        ([demo, rivers], demo_index, f"corpus of 'demo', '{rivers.name}'"),
        ([], demo_index, "no question set"),
        ([first, second], demo_index, "cannot be told apart"),
    ):
        with pytest.raises(InputError, match=said):
            mixture_of(sets, indexes)
    with pytest.raises(InputError, match="controllers search one index"):
        evaluate([rivers, demo], [river_index, demo_index], ScriptedGenerator(SCRIPT), FEW, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_takes_sets_with_commas_between_them(tmp_path: Path) -> None:
    small = tmp_path / "one, two"  # its own name has a comma
    small.mkdir()
    (small / "corpus.jsonl").write_text(
        '{"id": "p", "text": "The Po is 652 km long."}\n{"id": "r", "text": "The Rhine is 1233 km long."}\n',
        encoding="utf-8",
    )
    asked = '{"id": "q", "question": "How long is the Po?", "gold_ids": ["p"]}\n'
    (small / "questions.jsonl").write_text(asked, encoding="utf-8")
    options = ["--methods", "topk,exact", "--generator", "none", "--embedder", "tfidf", "--limit", "2"]
    done = here("evaluate", small, "--out", tmp_path / "a", *options)
    assert (done.returncode, "by question set" in done.stdout) == (0, False)
    done = here("evaluate", f"demo,{tmp_path / 'x'}", "--out", tmp_path / "b", *options)
    assert done.returncode == 2
    assert str(tmp_path / "x") in done.stderr.replace("\n", "")
    plain = small.rename(tmp_path / "plain")
    done = here("evaluate", f"{plain}, demo", "--out", tmp_path / "c", *options, "--json")
    assert {entry["dataset"] for entry in json.loads(done.stdout)["by_set"]} == {"plain", "demo"}
    assert (tmp_path / "c" / "report.html").is_file()
