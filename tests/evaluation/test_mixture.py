"""Several question sets in one run: told apart, each asked of its own corpus, one total for all."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mio_rag import InputError
from mio_rag.cli.app import app
from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.harness import EvaluationSettings, evaluate, mixture_of
from mio_rag.evaluation.report import render_report
from mio_rag.evaluation.statistics import summarize
from mio_rag.generation import ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.retrieval.settings import RetrievalSettings
from mio_rag.selection.selector import Selector
from tests.evaluation.runs import SCRIPT, ledger, timeless

SETTINGS = EvaluationSettings(
    methods=("fused", "exact", "allocated", "paced"),
    budgets=(60,),
    selector=Selector.raw(),
    retrieval=RetrievalSettings(pool=10),
    limit=6,
)


def test_each_set_is_asked_of_its_own_corpus_and_totals_are_for_all(
    rivers: Dataset, river_index: CorpusIndex, demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    result = evaluate([rivers, demo], [river_index, demo_index], None, SETTINGS, tmp_path)
    few = len(rivers.questions[:6])
    assert Counter(row["dataset"] for row in result.rows) == {rivers.name: 4 * few, "demo": 24}
    known = {name: {p.id for p in data.passages} for name, data in ((rivers.name, rivers), ("demo", demo))}
    for row in result.rows:
        assert not row["error"]
        assert row["question_id"].startswith(row["dataset"] + ":")
        assert set(row["selected_ids"]) <= known[row["dataset"]]
    for method in ("allocated", "paced"):
        spent = [row["tokens_used"] for row in result.rows if row["method"] == method]
        assert sum(spent) <= 60 * (few + 6)
        assert max(spent) > 60  # one pays for another
    assert [row["dataset"] for row in ledger(tmp_path)] == [row["dataset"] for row in result.rows]
    assert result.run["dataset"] == f"{rivers.name}, demo"
    assert result.run["questions"] == few + 6
    assert result.run["passages"] == len(rivers.passages) + len(demo.passages)
    for entry in result.by_set:
        group = [
            r for r in result.rows if r["dataset"] == entry["dataset"] and r["method"] == entry["method"]
        ]
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
    settings = replace(SETTINGS, methods=("fused",), controllers=("always-retrieve",), limit=2)
    result = evaluate([rivers, demo], whole, ScriptedGenerator(SCRIPT), settings, tmp_path)
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
    assert alone.content_hash() == demo.content_hash()
    assert alone.name == "demo"


def test_what_cannot_be_told_apart_is_refused(
    rivers: Dataset, river_index: CorpusIndex, demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="two question sets are called 'demo'"):
        mixture_of([demo, demo], demo_index)
    with pytest.raises(InputError, match="2 question sets and 3 indexes"):
        mixture_of([demo, rivers], [demo_index, river_index, river_index])
    with pytest.raises(InputError, match="does not hold the corpus of 'demo' "):
        mixture_of([demo, rivers], [river_index, demo_index])
    with pytest.raises(InputError, match=f"corpus of 'demo', '{rivers.name}'"):
        mixture_of([demo, rivers], demo_index)
    with pytest.raises(InputError, match="no question set"):
        mixture_of([], demo_index)
    first, second = (
        Dataset(name, demo.passages, (replace(demo.questions[0], id=i),))
        for name, i in (("a", "b:c"), ("a:b", "c"))
    )
    with pytest.raises(InputError, match="cannot be told apart"):
        mixture_of([first, second], demo_index)
    settings = replace(SETTINGS, methods=("fused",), controllers=("always-retrieve",))
    with pytest.raises(InputError, match="controllers search one index"):
        evaluate(
            [rivers, demo], [river_index, demo_index], ScriptedGenerator(SCRIPT), settings, tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


def test_the_command_takes_sets_with_commas_between_them(tmp_path: Path) -> None:
    """Also a folder whose own name has a comma."""
    small = tmp_path / "one, two"
    small.mkdir()
    (small / "corpus.jsonl").write_text(
        '{"id": "p", "text": "The Po is 652 km long."}\n{"id": "r", "text": "The Rhine is 1233 km long."}\n',
        encoding="utf-8",
    )
    (small / "questions.jsonl").write_text(
        '{"id": "q", "question": "How long is the Po?", "gold_ids": ["p"]}\n', encoding="utf-8"
    )
    asked = ["--methods", "topk,exact", "--generator", "none", "--embedder", "tfidf", "--limit", "2"]
    done = CliRunner().invoke(app, ["evaluate", str(small), "--out", str(tmp_path / "a"), *asked])
    assert done.exit_code == 0, done.output
    assert "by question set" not in done.output
    done = CliRunner().invoke(
        app, ["evaluate", f"demo,{tmp_path / 'x'}", "--out", str(tmp_path / "b"), *asked]
    )
    assert done.exit_code == 2
    assert str(tmp_path / "x") in done.output.replace("\n", "")
    plain = tmp_path / "plain"
    small.rename(plain)
    done = CliRunner().invoke(
        app, ["evaluate", f"{plain}, demo", "--out", str(tmp_path / "c"), *asked, "--json"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {entry["dataset"] for entry in told["by_set"]} == {"plain", "demo"}
    assert (tmp_path / "c" / "report.html").is_file()
