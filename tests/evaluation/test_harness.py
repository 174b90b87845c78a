"""The harness: rows that add up, failures that count, settings that are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.harness import EvaluationSettings
from mio_rag.evaluation.statistics import compare_rows, summarize
from mio_rag.generation import ExtractiveGenerator, ScriptedGenerator
from mio_rag.measures import measures
from mio_rag.retrieval import CorpusIndex, RetrievalSettings
from mio_rag.selection.selector import Selector
from mio_rag.solvers.result import SolveOptions
from mio_rag.types import GenerationError, Passage, Question
from tests.evaluation.runs import SCRIPT, check_rows, failing, ledger, never, run

PROMISED = {
    "question_id", "method", "budget_tokens", "selected_ids", "tokens_used", "prompt_tokens", "gold_recall",
    "all_gold", "exact_match", "token_f1", "status", "gap", "solve_seconds",
}  # fmt: skip


def test_every_question_method_and_budget_is_a_row_and_files_agree(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    generator = ScriptedGenerator(SCRIPT)
    result = run(rivers, river_index, generator, tmp_path)
    keys = [(r["question_id"], r["method"], r["budget_tokens"]) for r in result.rows]
    assert keys == [(q, m, b) for q in "abcd" for m in ("topk", "mmr", "exact") for b in (30, 120)]
    check_rows(result, rivers, RegexCounter())
    assert {row["question_id"]: row["exact_match"] for row in result.rows} == {"a": 1, "b": 1, "c": 1, "d": 0}
    assert {row["gold_recall"] for row in result.rows if row["question_id"] == "d"} == {None}
    # An equal prompt is generated once, and charged to each row.
    shown = [(p.system, p.user) for p in generator.prompts]
    assert len(shown) == len(set(shown)) < len(keys)
    tokens = {(p.question.id, tuple(x.id for x in p.passages)): generator.prompt_tokens(p)
              for p in generator.prompts}  # fmt: skip
    for row in result.rows:
        assert row["completion_tokens"] == RegexCounter().count([row["answer"]])[0]
        assert row["prompt_tokens"] == tokens[row["question_id"], tuple(row["selected_ids"])]
    # ledger.parquet, summary.json, comparisons.json and run.json say the same.
    rows = ledger(tmp_path)
    assert set(rows[0]) >= PROMISED
    assert [json.loads(row.pop("decisions")) for row in rows] == [row["decisions"] for row in result.rows]
    assert rows == [{name: row.get(name) for name in rows[0]} for row in result.rows]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == summarize(rows)
    assert json.loads((tmp_path / "comparisons.json").read_text()) == compare_rows(rows, "topk")
    for entry in summary:
        group = [r for r in rows if all(r[k] == entry[k] for k in ("method", "budget_tokens"))]
        assert entry["n"] == len(group) == 4
        for measure in (m.name for m in measures() if m.of != "run"):
            values = [row[measure] for row in group if row.get(measure) is not None]
            assert (measure in entry) == bool(values)
            if values:
                assert entry[measure]["mean"] == pytest.approx(np.mean(values))
        spent = sum(row["prompt_tokens"] + row["completion_tokens"] for row in group)
        right = sum(row["exact_match"] for row in group)
        assert entry["tokens_per_correct"]["mean"] == pytest.approx(spent / right)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["data_sha256"] == rivers.content_hash()
    assert (record["questions"], record["passages"], record["generator"]) == (
        4,
        len(rivers.passages),
        "scripted",
    )


def test_a_larger_budget_is_worth_as_much(demo: Dataset, demo_index: CorpusIndex, tmp_path: Path) -> None:
    small = {"budgets": (110, 220), "retrieval": RetrievalSettings(pool=12), "limit": 5}
    with ExtractiveGenerator() as reader:
        result = run(demo, demo_index, reader, tmp_path, **small)
    check_rows(result, demo, RegexCounter())
    assert not any(row["error"] for row in result.rows)
    exact = [row for row in result.rows if row["method"] == "exact"]
    assert {row["status"] for row in exact} == {"optimal"}
    for less, more in zip(exact[::2], exact[1::2], strict=True):
        assert more["objective"] >= less["objective"] - 1e-6


def test_a_failed_answer_scores_zero_and_keeps_its_selection(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    fine = run(rivers, river_index, ScriptedGenerator(SCRIPT), tmp_path / "fine")
    result = run(rivers, river_index, failing("b"), tmp_path / "broken")
    for good, row in zip(fine.rows, result.rows, strict=True):
        if row["question_id"] != "b":
            assert row["error"] is None
            continue
        assert (row["status"], row["error"]) == ("error", "the model fell over")
        assert row["exact_match"] == row["token_f1"] == row["rouge_l"] == 0
        for kept in ("gold_recall", "ndcg", "selected_ids", "tokens_used"):
            assert row[kept] == good[kept]
    for before, after in zip(fine.summary, result.summary, strict=True):
        assert (after["n"], after["failed"], before["failed"]) == (4, 1, 0)
        assert after["exact_match"]["mean"] == pytest.approx(before["exact_match"]["mean"] - 1 / 4)
        assert after["gold_recall"] == before["gold_recall"]


def test_a_question_without_a_pool_scores_zero_everywhere(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    # It shares no word with the corpus: BM25 finds nothing to choose from.
    question = Question("lost", "Xylophone quagga?", ("Po",), ("r4",), gold_sources=("atlas",))
    data = Dataset("rivers", rivers.passages, (question, *rivers.questions))
    bm25 = RetrievalSettings(mode="bm25")
    result = run(data, river_index, ScriptedGenerator(SCRIPT), tmp_path / "read", retrieval=bm25)
    lost = [row for row in result.rows if row["question_id"] == "lost"]
    assert len(lost) == 6
    zeros = (
        "gold_recall", "all_gold", "gold_precision", "pool_recall", "reciprocal_rank", "ndcg",
        "source_recall", "answer_in_context", "exact_match", "token_f1", "rouge_l",
    )  # fmt: skip
    for row in lost:
        assert row["error"]
        assert {row[name] for name in zeros} == {0.0}
    assert all(entry["failed"] == 1 and entry["gold_recall"]["mean"] < 1 for entry in result.summary)
    alone = run(data, river_index, None, tmp_path / "alone", retrieval=bm25)
    assert not {"exact_match", "token_f1", "rouge_l"} & set().union(*alone.summary)
    assert {row["exact_match"] for row in ledger(tmp_path / "alone")} == {None}


def test_an_index_of_another_corpus_is_refused(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    reworded = (replace(rivers.passages[0], text="The Arno rises elsewhere."), *rivers.passages[1:])
    untitled = CorpusIndex.build([Passage(p.id, p.text, "", p.source) for p in rivers.passages], "tfidf")
    for data, index, error, said in (
        (Dataset("r", reworded, rivers.questions), river_index, InputError, "1 passages differ, for .* 'r0'"),
        (Dataset("r", rivers.passages[:4], rivers.questions), river_index, InputError, "passages differ"),
        (Dataset("r", rivers.passages, ()), river_index, DataError, "no questions"),
        (rivers, untitled, InputError, "6 passages differ"),
    ):
        with pytest.raises(error, match=said):
            run(data, index, None, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_five_failures_in_a_row_stop_the_run_and_keep_its_rows(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    few = {"methods": ("topk", "mmr"), "budgets": (150,), "retrieval": RetrievalSettings(pool=8), "limit": 12}
    ids = [q.id for q in demo.questions]
    with pytest.raises(GenerationError, match=r"5 questions in a row.*fell over.*--resume"):
        run(demo, demo_index, failing(*ids[2:]), tmp_path, **few)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [r["question_id"] for r in rows] == [i for i in ids[:7] for _ in "ab"]
    assert [bool(r["error"]) for r in rows] == [False] * 4 + [True] * 10
    # Four failures, a success, four failures: no reason to stop.
    patchy = run(demo, demo_index, failing(*ids[2:6], *ids[7:11]), tmp_path, resume=True, **few)
    assert [entry["failed"] for entry in patchy.summary] == [8, 8]


def test_multiple_choice(rivers: Dataset, river_index: CorpusIndex, tmp_path: Path) -> None:
    questions = (
        Question("right", "Which river is longer?", ("15",), ("r3",), choices=("1.5", "15", "C++")),
        Question("wrong", "Which language is it?", ("C#",), ("r3",), choices=("C", "C++", "C#")),
        Question("single", "Which river flows through Rome?", ("Po",), ("r3",), choices=("Po",)),
        Question("blank", "Which river is in Rome?", ("Po",), ("r3",), choices=("Po", " ")),
        Question("mute", "Which river is shorter?", ("Po",), ("r3",), choices=("Po", "Arno")),
    )
    data = Dataset("choices", rivers.passages, questions)
    generator = ScriptedGenerator({"right": "B", "wrong": "A", "mute": "I will not say"})
    result = run(data, river_index, generator, tmp_path, methods=("topk",), budgets=(60,))
    seen = {row["question_id"]: (row["accuracy"], row["error"] is None) for row in result.rows}
    failed = dict.fromkeys(("single", "blank", "mute"), (0.0, False))
    assert seen == {"right": (1.0, True), "wrong": (0.0, True), **failed}
    assert [row["answer"] for row in result.rows[:2]] == ["15", "C"]
    assert (result.summary[0]["accuracy"]["mean"], result.summary[0]["failed"]) == (pytest.approx(1 / 5), 3)


def test_a_window_smaller_than_the_budget_binds(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    plan: dict[str, Any] = {"methods": ("topk",), "budgets": (120,), "max_tokens": 10}
    unbound = run(rivers, river_index, ScriptedGenerator(SCRIPT), tmp_path / "free", **plan)
    window = min(row["prompt_tokens"] for row in unbound.rows) + 10 - 20
    bound = run(rivers, river_index, ScriptedGenerator(SCRIPT, window=window), tmp_path / "bound", **plan)
    for before, row in zip(unbound.rows, bound.rows, strict=True):
        assert (row["error"], row["budget_tokens"]) == (None, 120)
        assert row["prompt_tokens"] + 10 <= window
        assert 0 < row["tokens_used"] < before["tokens_used"]
    tight = run(rivers, river_index, ScriptedGenerator(SCRIPT, window=30), tmp_path / "tight", **plan)
    assert all("window of scripted" in row["error"] for row in tight.rows)


def test_a_budget_below_every_passage_reads_nothing(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    few = {"methods": ("topk",), "budgets": (2, 150), "retrieval": RetrievalSettings(pool=8), "limit": 6}
    for resume in (False, True):
        result = run(demo, demo_index, None, tmp_path / "both", resume=resume, **few)
        assert all(row["error"] is None for row in result.rows)
        assert [bool(row["selected_ids"]) for row in result.rows] == [False, True] * 6
        assert result.rows[0]["gold_recall"] == 0


def test_answers_that_no_file_can_hold(rivers: Dataset, river_index: CorpusIndex, tmp_path: Path) -> None:
    strange = "half \ud83d of a pair, a nul \x00 and a line\u2028separator"
    few: dict[str, Any] = {"methods": ("topk",), "budgets": (60,)}
    result = run(rivers, river_index, ScriptedGenerator(lambda _: strange), tmp_path, **few)
    assert {row["answer"] for row in ledger(tmp_path)} == {strange.replace("\ud83d", "?")}
    again = run(rivers, river_index, ScriptedGenerator(never), tmp_path, resume=True, **few)
    assert again.rows == result.rows


def test_records_are_strict_json(rivers: Dataset, river_index: CorpusIndex, tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    options = SolveOptions(time_limit_seconds=float("inf"))
    selector = Selector.raw(options=options, max_per_source={"atlas": 1})
    few: dict[str, Any] = {"selector": selector, "methods": ("exact",), "budgets": (60,)}
    run(rivers, river_index, None, tmp_path, **few)
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)
    run(rivers, river_index, None, tmp_path, resume=True, **few)


def test_every_problem_of_the_settings_is_listed() -> None:
    with pytest.raises(InputError) as raised:
        EvaluationSettings(
            methods=("topk", "nonsense"), budgets=(0, 5, 5), baseline="mmr",
            limit=0, max_tokens=0, seed=-1, mmr_lambda=0,
        )  # fmt: skip
    assert len(raised.value.problems) == 8
    assert EvaluationSettings(methods=("exact", "mmr")).reference == "exact"
    assert EvaluationSettings(methods=("exact", "topk")).reference == "topk"
