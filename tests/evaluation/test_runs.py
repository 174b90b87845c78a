"""Runs of the harness: rows that add up, failures that count, and runs that resume to the same rows."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.context import RegexCounter, render_context
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.harness import EvaluationSettings, Report, evaluate, mixture_of
from mio_rag.evaluation.report import render_report
from mio_rag.evaluation.statistics import compare_rows, summarize
from mio_rag.evaluation.tiers import LabelSettings, label_questions
from mio_rag.generation import ExtractiveGenerator, Prompt, ScriptedGenerator
from mio_rag.measures import measures
from mio_rag.methods import register_method, unregister_method
from mio_rag.retrieval import CorpusIndex, RetrievalSettings, TfidfEmbedder
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Prices
from mio_rag.session.tiers import Tier
from mio_rag.solvers.result import SolveOptions
from mio_rag.types import GenerationError, Passage, Question
from tests.evaluation.runs import SCRIPT, Crash, at, content, ledger, run, scripted, timeless

FEW: dict[str, Any] = {"methods": ("topk",), "budgets": (30,)}


def check_rows(result: Report, data: Dataset) -> None:
    """What holds in every run of methods."""
    passages, questions = {p.id: p for p in data.passages}, {q.id: q for q in data.questions}
    assert result.rows
    for row in result.rows:
        block = render_context(passages[i] for i in row["selected_ids"])
        assert (
            row["tokens_used"] == (RegexCounter().count([block])[0] if block else 0) <= row["budget_tokens"]
        )
        if gold := set(questions[row["question_id"]].gold_ids):
            found = set(row["selected_ids"]) & gold
            assert row["gold_recall"] == len(found) / len(gold)
            assert row["all_gold"] == (found == gold)


def test_every_question_method_and_budget_is_a_row_and_files_agree(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    generator = ScriptedGenerator(SCRIPT)
    result = run(rivers, river_index, generator, tmp_path)
    keys = [(r["question_id"], r["method"], r["budget_tokens"]) for r in result.rows]
    assert keys == [(q, m, b) for q in "abcd" for m in ("topk", "mmr", "exact") for b in (30, 120)]
    check_rows(result, rivers)
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
    # ledger.parquet, summary.json, comparisons.json and run.json agree.
    rows = ledger(tmp_path)
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
    assert (record["questions"], record["passages"], record["generator"]) == (4, 6, "scripted")


def test_a_failed_answer_scores_zero_and_keeps_its_selection(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    fine = run(rivers, river_index, scripted(), tmp_path / "fine")
    result = run(rivers, river_index, scripted("b"), tmp_path / "broken")
    for good, row in zip(fine.rows, result.rows, strict=True):
        if row["question_id"] != "b":
            assert row["error"] is None
            continue
        assert (row["status"], row["error"]) == ("error", "the model fell over")
        assert row["exact_match"] == row["token_f1"] == row["rouge_l"] == 0
        kept = ("gold_recall", "ndcg", "selected_ids", "tokens_used")
        assert [row[name] for name in kept] == [good[name] for name in kept]
    for before, after in zip(fine.summary, result.summary, strict=True):
        assert (after["n"], after["failed"], before["failed"]) == (4, 1, 0)
        assert after["exact_match"]["mean"] == pytest.approx(before["exact_match"]["mean"] - 1 / 4)
        assert after["gold_recall"] == before["gold_recall"]


def test_a_question_without_a_pool_scores_zero_everywhere(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    # It shares no word with the corpus: BM25 retrieves nothing.
    question = Question("lost", "Xylophone quagga?", ("Po",), ("r4",), gold_sources=("atlas",))
    data = Dataset("rivers", rivers.passages, (question, *rivers.questions))
    bm25 = RetrievalSettings(mode="bm25")
    result = run(data, river_index, ScriptedGenerator(SCRIPT), tmp_path / "read", retrieval=bm25)
    zeros = (
        "gold_recall", "all_gold", "gold_precision", "pool_recall", "reciprocal_rank", "ndcg",
        "source_recall", "answer_in_context", "exact_match", "token_f1", "rouge_l",
    )  # fmt: skip
    for row in result.rows[:6]:
        assert row["error"]
        assert {row[name] for name in zeros} == {0.0}
    assert all(entry["failed"] == 1 and entry["gold_recall"]["mean"] < 1 for entry in result.summary)
    alone = run(data, river_index, None, tmp_path / "alone", retrieval=bm25)
    assert not {"exact_match", "token_f1", "rouge_l"} & set().union(*alone.summary)
    assert {row["exact_match"] for row in ledger(tmp_path / "alone")} == {None}


def test_five_failures_in_a_row_stop_the_run_and_keep_its_rows(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    few = {"methods": ("topk", "mmr"), "budgets": (150,), "retrieval": RetrievalSettings(pool=8), "limit": 12}
    ids = [q.id for q in demo.questions]
    with pytest.raises(GenerationError, match=r"5 questions in a row.*fell over.*--resume"):
        run(demo, demo_index, scripted(*ids[2:]), tmp_path, **few)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [r["question_id"] for r in rows] == [i for i in ids[:7] for _ in "ab"]
    assert [bool(r["error"]) for r in rows] == [False] * 4 + [True] * 10
    # Four failures, a success, four failures: no reason to stop.
    patchy = run(demo, demo_index, scripted(*ids[2:6], *ids[7:11]), tmp_path, resume=True, **few)
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


def test_files_hold_any_answer_and_are_strict_json(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    strange = "half \ud83d of a pair, a nul \x00 and a line\u2028separator"
    options = SolveOptions(time_limit_seconds=float("inf"))
    selector = Selector.raw(options=options, max_per_source={"atlas": 1})
    few: dict[str, Any] = {"selector": selector, "methods": ("exact",), "budgets": (60,)}
    result = run(rivers, river_index, ScriptedGenerator(lambda _: strange), tmp_path, **few)
    assert {row["answer"] for row in ledger(tmp_path)} == {strange.replace("\ud83d", "?")}
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)
    again = run(rivers, river_index, ScriptedGenerator(lambda _: strange), tmp_path, resume=True, **few)
    assert again.rows == result.rows


def test_wrong_settings_and_corpora_are_refused(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as raised:
        EvaluationSettings(
            methods=("topk", "nonsense"), budgets=(0, 5, 5), baseline="mmr",
            limit=0, max_tokens=0, seed=-1,
        )  # fmt: skip
    assert len(raised.value.problems) == 7
    assert EvaluationSettings(methods=("exact", "mmr")).reference == "mmr"
    assert EvaluationSettings(methods=("exact", "topk")).reference == "topk"
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


def test_tiers_are_labelled_by_evidence_without_a_reader(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    tiers = tuple(
        Tier(name=name, depth=depth, context=context, new_tokens=8 * depth, unit="tokens")
        for name, depth, context in (("easy", 1, 100), ("hard", 6, 900))
    )
    some = [q for q in demo.questions if q.gold_ids and not q.choices][:4]
    chosen = [dataclasses.replace(q, choices=("one", *q.answers[:1], "three")) for q in some]
    found = []
    for k, questions in enumerate((some, chosen)):
        asked = dataclasses.replace(demo, questions=tuple(questions))
        labelled = label_questions(
            asked, demo_index, None, LabelSettings(tiers, "evidence"), tmp_path / str(k)
        )
        assert (labelled.failed, len(labelled.table)) == (0, 4)
        assert "accuracy" not in labelled.table.outcomes.values  # no option was chosen
        found.append(labelled.table)
    np.testing.assert_array_equal(found[0].worked, found[1].worked)
    np.testing.assert_array_equal(found[0].labels, found[1].labels)


# Resuming


def test_an_interrupted_run_resumes_to_the_same_rows(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    few = {"budgets": (150,), "retrieval": RetrievalSettings(pool=12), "limit": 10}
    whole = run(demo, demo_index, scripted(), tmp_path / "whole", **few)
    with pytest.raises(Crash):
        run(demo, demo_index, scripted(crash=demo.questions[6].id), tmp_path / "cut", **few)
    written = (tmp_path / "cut" / "rows.jsonl").read_text().splitlines()
    assert len(written) == 12  # four questions, three methods
    (tmp_path / "cut" / "rows.jsonl").write_text("\n".join(written)[:-40])  # and the last line half written
    with pytest.raises(InputError, match="--resume"):
        run(demo, demo_index, scripted(), tmp_path / "cut", **few)
    again, idle = scripted(), scripted()
    resumed = run(demo, demo_index, again, tmp_path / "cut", resume=True, **few)
    assert timeless(resumed.rows) == timeless(whole.rows)
    assert timeless(ledger(tmp_path / "cut")) == timeless(ledger(tmp_path / "whole"))
    assert timeless(resumed.summary) == timeless(whole.summary)  # intervals, too: the order is the same
    assert resumed.comparisons == whole.comparisons
    assert not {prompt.question.id for prompt in again.prompts} & {q.id for q in demo.questions[:3]}
    third = run(demo, demo_index, idle, tmp_path / "cut", resume=True, **few)
    assert timeless(third.rows) == timeless(whole.rows)
    assert idle.prompts == []


def test_a_row_that_is_written_when_an_interrupt_comes_is_kept(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"budgets": (150,), "retrieval": RetrievalSettings(pool=12), "limit": 2, "methods": ("exact",)}
    rows = tmp_path / "run" / "rows.jsonl"

    def interrupted(_: int) -> None:
        if rows.is_file() and rows.stat().st_size > 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mio_rag.evaluation.ledger.os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(demo, demo_index, scripted(), tmp_path / "run", **few)
    written = len(rows.read_text().splitlines())
    assert written > 0
    again = scripted()
    run(demo, demo_index, again, tmp_path / "run", resume=True, **few)
    assert len(again.prompts) == 2 - written


@pytest.mark.parametrize("first", [{}, {**FEW, "limit": 2}], ids=["failed rows", "fewer methods and budgets"])
def test_failed_and_missing_rows_are_made_by_the_next_run(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path, first: dict[str, Any]
) -> None:
    whole = run(rivers, river_index, scripted(), tmp_path / "whole")
    run(rivers, river_index, scripted("a", "c"), tmp_path / "parts", **first)
    mended = run(rivers, river_index, scripted(), tmp_path / "parts", resume=True)
    assert timeless(mended.rows) == timeless(whole.rows)
    assert timeless(mended.summary) == timeless(whole.summary)


def test_rows_are_never_lost_and_damage_is_named(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    run(rivers, river_index, scripted("d"), tmp_path)  # failed rows are rows as well
    before = content(tmp_path)
    for asked, named in (
        ({"limit": 3}, "1 more question,"),
        ({"methods": ("exact",), "budgets": (30,)}, "the method mmr, the method topk, the budget 120,"),
    ):
        with pytest.raises(InputError, match=f"also has {named} which ledger and report would lose"):
            run(rivers, river_index, scripted(), tmp_path, resume=True, **asked)
        assert content(tmp_path) == before
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    for damage in ("{cut", "[1, 2]", "{}"):
        (tmp_path / "rows.jsonl").write_text("\n".join([*lines[:3], damage, *lines[4:]]))
        with pytest.raises(DataError, match="line 4 is not a row"):
            run(rivers, river_index, scripted(), tmp_path, resume=True)
    (tmp_path / "run.json").write_text("{cut")
    with pytest.raises(DataError, match=r"run\.json' cannot be read"):
        run(rivers, river_index, scripted(), tmp_path, resume=True)


def test_other_settings_data_and_models_cannot_join_a_run(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    relabelled = Dataset("rivers", rivers.passages, (replace(rivers.questions[0], gold_sources=("atlas",)),))
    dated = CorpusIndex.build([replace(p, date="2026-04-01") for p in rivers.passages], TfidfEmbedder())
    other = CorpusIndex.build(rivers.passages, TfidfEmbedder(dimensions=2))
    same = ScriptedGenerator(SCRIPT)
    unlike = ScriptedGenerator(SCRIPT | {rivers.questions[0].id: "something else"})
    few = FEW | {"limit": 1}
    run(rivers, river_index, same, tmp_path, **few)
    before = (tmp_path / "rows.jsonl").read_bytes()
    for data, index, generator, changes, named in (
        (rivers, river_index, same, {"retrieval": RetrievalSettings(pool=3)}, "pool"),
        (rivers, river_index, same, {"retrieval": RetrievalSettings(mode="dense")}, "mode"),
        (rivers, river_index, same, {"seed": 4}, "seed"),
        (rivers, river_index, same, {"max_tokens": 8}, "max_tokens"),
        (
            rivers,
            river_index,
            same,
            {"selector": Selector(redundancy_weight=0.5, units="passages")},
            "redundancy_weight",
        ),
        (rivers, river_index, same, {"prices": Prices({"scripted": (1, 1)})}, "prices"),
        (relabelled, river_index, same, {}, "data_sha256"),
        (rivers, river_index, ExtractiveGenerator(), {}, "generator, .*"),
        (rivers, other, same, {}, "embedder_fingerprint, .*"),
        (rivers, dated, same, {}, "index_sha256"),
        (rivers, river_index, unlike, {}, "generator_sha256"),  # a model of the same name
    ):
        with pytest.raises(InputError, match=f"had another {named}:"):
            run(data, index, generator, tmp_path, resume=True, **(few | changes))
        assert (tmp_path / "rows.jsonl").read_bytes() == before
    again = ScriptedGenerator(dict(reversed(SCRIPT.items())))
    run(rivers, river_index, again, tmp_path, resume=True, **(few | {"limit": 2}))


def test_an_edited_workflow_cannot_join_a_run(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    file, out = tmp_path / "own.json", tmp_path / "run"
    kinds = {"methods": (), "controllers": (f"workflow:{file}",), "limit": 1}

    def write(share: float) -> None:
        read = {"do": "select", "from": ["found"], "share": share}
        nodes = {"found": {"do": "retrieve"}, "read": read, "answer": {"do": "answer", "from": ["read"]}}
        file.write_text(json.dumps({"name": "own", "nodes": nodes, "answer": "answer"}))

    write(0.5)
    run(rivers, river_index, scripted(), out, **kinds)
    more = kinds | {"controllers": (f"workflow:{file}", "workflow:plain")}
    run(rivers, river_index, scripted(), out, resume=True, **more)
    write(0.9)
    with pytest.raises(InputError, match=r"had another content of workflow:.*own\.json"):
        run(rivers, river_index, scripted(), out, resume=True, **more)


def test_two_runs_never_work_in_one_folder(rivers: Dataset, river_index: CorpusIndex, tmp_path: Path) -> None:
    refused = []

    def answer(prompt: Prompt) -> str:  # while the first run waits for it, a second one begins
        with pytest.raises(InputError, match="another run is at work") as found:
            run(rivers, river_index, scripted(), tmp_path / "out", resume=True)
        refused.append(found)
        return SCRIPT[prompt.question.id]

    check_rows(run(rivers, river_index, ScriptedGenerator(answer), tmp_path / "out", **FEW), rivers)
    assert refused
    leftover = tmp_path / "killed"  # before any file had its name
    leftover.mkdir()
    (leftover / f".run.{'0f' * 16}.partial.json").write_text("{")
    run(rivers, river_index, scripted(), leftover, **FEW)
    (tmp_path / "thesis.txt").write_text("years of work")
    for out, resume in ((tmp_path, False), (tmp_path, True), (tmp_path / "thesis.txt", False)):
        with pytest.raises(InputError, match="choose a"):
            run(rivers, river_index, None, out, resume=resume)


def test_a_run_that_fails_before_its_first_row_leaves_its_folder_as_it_was(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    asked: list[str] = []

    def answer(prompt: Prompt) -> str:
        asked.append(prompt.question.id)
        if asked.count(asked[-1]) > 1:  # the first controller has left its trace
            raise KeyboardInterrupt
        return "sand"

    two: dict[str, Any] = {"methods": (), "controllers": ("fixed-1", "fixed-2"), "budgets": (30,)}
    one = two | {"controllers": ("fixed-1",), "limit": 2}
    for out in (tmp_path / "new" / "run", tmp_path):
        asked.clear()
        with pytest.raises(KeyboardInterrupt):
            run(rivers, river_index, ScriptedGenerator(answer), out, **two)
        assert list(tmp_path.iterdir()) == []
    asked.clear()
    run(rivers, river_index, ScriptedGenerator(answer), tmp_path, **one)
    before = content(tmp_path)
    assert before["traces.jsonl"]
    with pytest.raises(KeyboardInterrupt):
        run(rivers, river_index, ScriptedGenerator(answer), tmp_path, resume=True, **two)
    assert content(tmp_path) == before


# Totals, and several question sets


def test_totals_are_kept_and_an_interrupted_run_ends_alike(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    few: dict[str, Any] = {
        "methods": ("exact", "allocated", "paced"), "budgets": (60, 150),
        "retrieval": RetrievalSettings(pool=12), "limit": 12,
    }  # fmt: skip
    whole = run(demo, demo_index, None, tmp_path / "whole", **few)
    assert all(row["error"] is None for row in whole.rows)

    def of(method: str, budget: int) -> list[dict[str, Any]]:
        return [r for r in whole.rows if (r["method"], r["budget_tokens"]) == (method, budget)]

    def mass(method: str, budget: int) -> float:
        return float(sum(d["relevance"] for r in of(method, budget) for d in r["decisions"] if d["selected"]))

    for budget in (60, 150):
        for method in ("allocated", "paced"):
            used = [row["tokens_used"] for row in of(method, budget)]
            assert 0 < sum(used) <= 12 * budget
            assert max(used) > budget > min(used)  # one question pays for another
        assert mass("allocated", budget) > mass("exact", budget)
    for count in (4, 8):
        with pytest.raises(Crash):
            run(demo, demo_index, None, tmp_path / "cut", resume=True, progress=at(count), **few)
    resumed = run(demo, demo_index, None, tmp_path / "cut", resume=True, **few)
    assert timeless(resumed.rows) == timeless(whole.rows)
    with pytest.raises(InputError, match="had another questions_of_paced"):
        run(demo, demo_index, None, tmp_path / "cut", resume=True, **{**few, "limit": 13})


def test_a_policy_s_total_counts_what_an_interrupted_run_spent(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    policy = tmp_path / "total.toml"
    policy.write_text(
        "[price]\ntotal = 2400\nquestions = 6\n[search]\npool = 8\n[limits]\nbudget = 300\nmax_tokens = 16\n"
    )
    few = {"methods": (), "controllers": (f"policy:{policy}",), "budgets": (300,), "limit": 6}
    whole = run(demo, demo_index, scripted(), tmp_path / "whole", **few)
    with pytest.raises(Crash):
        run(demo, demo_index, scripted(), tmp_path / "cut", progress=at(3), **few)
    resumed = run(demo, demo_index, scripted(), tmp_path / "cut", resume=True, **few)
    for shown in ("token_price", "prompt_tokens", "selected_ids", "error"):
        assert [row[shown] for row in resumed.rows] == [row[shown] for row in whole.rows], shown
    assert len({row["token_price"] for row in whole.rows}) == 6  # the price moves with what is spent
    assert sum(row["prompt_tokens"] + row["completion_tokens"] for row in resumed.rows) <= 2400


def test_a_total_counts_the_reader_s_tokens(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    class Wordy(ScriptedGenerator):
        def count(self, texts: Sequence[str]) -> list[int]:
            return [2 * tokens + 3 for tokens in RegexCounter().count(texts)]

    reader = Wordy({q.id: "x" for q in rivers.questions})
    result = run(rivers, river_index, reader, tmp_path, methods=("allocated",), budgets=(70,))
    assert 0 < sum(row["tokens_used"] for row in result.rows) <= 70 * len(rivers.questions)
    with pytest.raises(InputError, match=r"method 'allocated': token_price=0.1 is what is looked for here"):
        EvaluationSettings(methods=("allocated",), selector=Selector(token_price=0.1))
    with pytest.raises(InputError, match="'paced' is listed twice"):
        EvaluationSettings(methods=("paced", "paced"))
    with pytest.raises(InputError, match="did you mean 'paced'"):
        EvaluationSettings(methods=("paced", "paces"))


MIXED = EvaluationSettings(
    methods=("fused", "allocated", "paced"), budgets=(60,), selector=Selector.raw(),
    retrieval=RetrievalSettings(pool=10), limit=6,
)  # fmt: skip


def test_each_set_is_asked_of_its_own_corpus_and_totals_are_for_all(
    rivers: Dataset, river_index: CorpusIndex, demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    result = evaluate([rivers, demo], [river_index, demo_index], None, MIXED, tmp_path)
    few = len(rivers.questions[:6])
    assert Counter(row["dataset"] for row in result.rows) == {rivers.name: 3 * few, "demo": 18}
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
    for entry in result.by_set:
        group = [r for r in result.rows if all(r[k] == entry[k] for k in ("dataset", "method"))]
        assert {"dataset": entry["dataset"], **summarize(group)[0]} == entry
    assert json.loads((tmp_path / "by_set.json").read_text(encoding="utf-8")) == result.by_set
    page = render_report(result.rows, result.summary, result.comparisons, result.run)
    assert "By question set" in page
    with pytest.raises(InputError, match="another data_sha256"):
        evaluate([demo, rivers], [demo_index, river_index], None, MIXED, tmp_path, resume=True)


def test_sets_are_mixed_evenly_and_one_index_may_hold_all(
    rivers: Dataset, river_index: CorpusIndex, demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    mixed = mixture_of([rivers, demo], [river_index, demo_index])
    assert len(set(mixed.set_of)) == len(rivers.questions) + len(demo.questions)
    for end in range(1, len(mixed.questions)):
        count = sum(q.id.startswith("demo:") for q in mixed.questions[:end])
        assert abs(count - end * len(demo.questions) / len(mixed.questions)) <= 1
    assert mixture_of(demo, demo_index, limit=3).questions == demo.questions[:3]
    whole = CorpusIndex.build((*rivers.passages, *demo.passages), TfidfEmbedder(), "both")
    few = replace(MIXED, methods=("fused",), controllers=("always-retrieve",), limit=2)
    result = evaluate([rivers, demo], whole, ScriptedGenerator(SCRIPT), few, tmp_path / "both")
    assert Counter(row["dataset"] for row in result.rows) == {rivers.name: 4, "demo": 4}
    first, second = (
        Dataset(name, demo.passages, (replace(demo.questions[0], id=i),))
        for name, i in (("a", "b:c"), ("a:b", "c"))
    )
    for sets, indexes, said in (
        ([demo, demo], demo_index, "two question sets are called 'demo'"),
        ([demo, rivers], [demo_index, river_index, river_index], "2 question sets and 3 indexes"),
        ([demo, rivers], [river_index, demo_index], "does not hold the corpus of 'demo' "),
        ([demo, rivers], demo_index, f"corpus of 'demo', '{rivers.name}'"),
        (rivers, whole, f"does not hold the corpus of '{rivers.name}' "),
        ([], demo_index, "no question set"),
        ([first, second], demo_index, "cannot be told apart"),
    ):
        with pytest.raises(InputError, match=said):
            mixture_of(sets, indexes)
    with pytest.raises(InputError, match="controllers search one index"):
        evaluate([rivers, demo], [river_index, demo_index], scripted(), few, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_method_that_fails_changes_neither_what_was_retrieved_nor_what_is_proven(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    register_method("lost", lambda pool, budget: ["absent"])
    try:
        found = run(rivers, river_index, None, tmp_path, methods=("topk", "lost", "exact"), budgets=(60,))
    finally:
        unregister_method("lost")
    topk, lost, exact = found.summary
    assert lost["failed"] == 4
    assert topk["pool_recall"] == lost["pool_recall"] == exact["pool_recall"]
    assert (topk["optimal_share"], lost["optimal_share"], exact["optimal_share"]) == (None, None, 1.0)
    assert {row["status"] for row in found.rows if row["method"] == "topk"} == {"ranked"}
    assert found.run["resolved"]["topk"]["solver"] == "topk"
    assert len({one["sha256"] for one in found.run["resolved"].values()}) == 2  # the lost one ranks, too
