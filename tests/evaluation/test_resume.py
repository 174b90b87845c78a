"""The folder of a run: resumed to the same rows, refused where it is another's, one run at a time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.ledger import free_folder
from mio_rag.generation import ExtractiveGenerator, Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex, RetrievalSettings, TfidfEmbedder
from mio_rag.selection.selector import Selector
from mio_rag.session.costs import Prices
from tests.evaluation.runs import SCRIPT, check_rows, content, failing, ledger, run, timeless

FEW: dict[str, Any] = {"methods": ("topk",), "budgets": (30,)}


class Crash(Exception):
    """Something that nobody planned for."""


def crashing(on: str) -> ScriptedGenerator:
    def answer(prompt: Prompt) -> str:
        if prompt.question.id == on:
            raise Crash
        return f"answer to {prompt.question.id}"

    return ScriptedGenerator(answer)


def test_an_interrupted_run_resumes_to_the_same_rows(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    few = {"budgets": (150,), "retrieval": RetrievalSettings(pool=12), "limit": 10}
    whole = run(demo, demo_index, crashing("none"), tmp_path / "whole", **few)
    with pytest.raises(Crash):
        run(demo, demo_index, crashing(demo.questions[6].id), tmp_path / "cut", **few)
    written = (tmp_path / "cut" / "rows.jsonl").read_text().splitlines()
    assert len(written) == 12  # four questions, three methods
    (tmp_path / "cut" / "rows.jsonl").write_text("\n".join(written)[:-40])  # and the last line half written
    with pytest.raises(InputError, match="--resume"):
        run(demo, demo_index, crashing("none"), tmp_path / "cut", **few)
    again = crashing("none")
    resumed = run(demo, demo_index, again, tmp_path / "cut", resume=True, **few)
    assert timeless(resumed.rows) == timeless(whole.rows)
    assert timeless(ledger(tmp_path / "cut")) == timeless(ledger(tmp_path / "whole"))
    assert timeless(resumed.summary) == timeless(whole.summary)
    assert resumed.comparisons == whole.comparisons
    assert not {prompt.question.id for prompt in again.prompts} & {q.id for q in demo.questions[:3]}
    idle = crashing("none")  # a finished run has nothing left to do
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
            run(demo, demo_index, crashing("none"), tmp_path / "run", **few)
    written = len(rows.read_text().splitlines())
    assert written > 0
    again = crashing("none")
    run(demo, demo_index, again, tmp_path / "run", resume=True, **few)
    assert len(again.prompts) == 2 - written


def test_a_policy_s_total_counts_what_rows_of_an_interrupted_run_spent(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    policy = tmp_path / "total.toml"
    policy.write_text(
        "[price]\ntotal = 2400\nquestions = 6\n[search]\npool = 8\n"
        "[limits]\nevidence_tokens = 300\nanswer_tokens = 16\n"
    )
    few = {"methods": (), "controllers": (f"policy:{policy}",), "budgets": (300,), "limit": 6}
    whole = run(demo, demo_index, crashing("none"), tmp_path / "whole", **few)

    def crash(count: int, text: str) -> None:
        if text.startswith("3 of"):
            raise Crash

    with pytest.raises(Crash):
        run(demo, demo_index, crashing("none"), tmp_path / "cut", progress=crash, **few)
    resumed = run(demo, demo_index, crashing("none"), tmp_path / "cut", resume=True, **few)
    for shown in ("token_price", "prompt_tokens", "selected_ids", "error"):
        assert [row[shown] for row in resumed.rows] == [row[shown] for row in whole.rows], shown
    assert len({row["token_price"] for row in whole.rows}) == 6  # the price moves with what is spent
    assert sum(row["prompt_tokens"] + row["completion_tokens"] for row in resumed.rows) <= 2400


@pytest.mark.parametrize(
    ("generator", "first"),
    [(failing("a", "c"), {}), (failing(), {**FEW, "limit": 2})],
    ids=["failed rows are tried again", "more methods and budgets may join"],
)
def test_a_resumed_run_is_a_whole_one(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path, generator: Any, first: dict[str, Any]
) -> None:
    whole = run(rivers, river_index, failing(), tmp_path / "whole")
    run(rivers, river_index, generator, tmp_path / "parts", **first)
    mended = run(rivers, river_index, failing(), tmp_path / "parts", resume=True)
    assert timeless(mended.rows) == timeless(whole.rows)
    assert timeless(mended.summary) == timeless(whole.summary)  # intervals, too: the order is the same


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"limit": 3}, "1 more question,"),
        ({"limit": 1}, "3 more questions,"),
        ({"methods": ("exact",), "budgets": (30,)}, "the method mmr, the method topk, the budget 120,"),
    ],
)
def test_rows_are_never_lost_by_asking_for_less(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path, asked: dict[str, Any], named: str
) -> None:
    run(rivers, river_index, failing("d"), tmp_path)  # failed rows are rows as well
    before = content(tmp_path)
    with pytest.raises(InputError, match=f"also has {named} which ledger and report would lose"):
        run(rivers, river_index, failing(), tmp_path, resume=True, **asked)
    assert content(tmp_path) == before


def test_a_damaged_ledger_is_refused(rivers: Dataset, river_index: CorpusIndex, tmp_path: Path) -> None:
    run(rivers, river_index, failing(), tmp_path)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    for damage in ("{cut", "[1, 2]", "{}"):
        (tmp_path / "rows.jsonl").write_text("\n".join([*lines[:3], damage, *lines[4:]]))
        with pytest.raises(DataError, match="line 4 is not a row"):
            run(rivers, river_index, failing(), tmp_path, resume=True)
    (tmp_path / "run.json").write_text("{cut")
    with pytest.raises(DataError, match=r"run\.json' cannot be read"):
        run(rivers, river_index, failing(), tmp_path, resume=True)


def test_other_settings_data_and_models_cannot_join_a_run(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    relabelled = Dataset("rivers", rivers.passages, (replace(rivers.questions[0], gold_sources=("atlas",)),))
    dated = CorpusIndex.build([replace(p, date="2026-04-01") for p in rivers.passages], TfidfEmbedder())
    other = CorpusIndex.build(rivers.passages, TfidfEmbedder(dimensions=2))
    same = ScriptedGenerator(SCRIPT)
    unlike = ScriptedGenerator(SCRIPT | {rivers.questions[0].id: "something else"})
    run(rivers, river_index, same, tmp_path, limit=1)
    before = (tmp_path / "rows.jsonl").read_bytes()
    for data, index, generator, changes, named in (
        (rivers, river_index, same, {"retrieval": RetrievalSettings(pool=3)}, "pool"),
        (rivers, river_index, same, {"retrieval": RetrievalSettings(mode="dense")}, "mode"),
        (rivers, river_index, same, {"retrieval": RetrievalSettings(rerankers=("maxsim",))}, "rerankers"),
        (rivers, river_index, same, {"seed": 4}, "seed"),
        (rivers, river_index, same, {"max_tokens": 8}, "max_tokens"),
        (rivers, river_index, same, {"mmr_lambda": 0.5}, "mmr_lambda"),
        (
            rivers,
            river_index,
            same,
            {"selector": Selector(redundancy_weight=0.5)},
            "redundancy_weight, opt.*",
        ),
        (rivers, river_index, same, {"prices": Prices({"scripted": (1, 1)})}, "prices"),
        (relabelled, river_index, same, {}, "data_sha256"),
        (rivers, river_index, ExtractiveGenerator(), {}, "generator, .*"),
        (rivers, other, same, {}, "embedder_fingerprint, .*"),
        (rivers, dated, same, {}, "index_sha256"),
        (rivers, river_index, unlike, {}, "generator_sha256"),  # a model of the same name
    ):
        with pytest.raises(InputError, match=f"had another {named}:"):
            run(data, index, generator, tmp_path, limit=1, resume=True, **changes)
        assert (tmp_path / "rows.jsonl").read_bytes() == before
    again = ScriptedGenerator(dict(reversed(SCRIPT.items())))
    run(rivers, river_index, again, tmp_path, limit=2, resume=True)


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
    run(rivers, river_index, ScriptedGenerator(SCRIPT), out, **kinds)
    more = kinds | {"controllers": (f"workflow:{file}", "workflow:plain")}
    run(rivers, river_index, ScriptedGenerator(SCRIPT), out, resume=True, **more)
    write(0.9)
    with pytest.raises(InputError, match=r"had another content of workflow:.*own\.json"):
        run(rivers, river_index, ScriptedGenerator(SCRIPT), out, resume=True, **more)


def test_two_runs_never_work_in_one_folder(rivers: Dataset, river_index: CorpusIndex, tmp_path: Path) -> None:
    refused = []

    def answer(prompt: Prompt) -> str:  # while the first run waits for it, a second one begins
        with pytest.raises(InputError, match="another run is at work") as found:
            run(rivers, river_index, failing(), tmp_path / "out", resume=True)
        refused.append(found)
        return SCRIPT[prompt.question.id]

    result = run(rivers, river_index, ScriptedGenerator(answer), tmp_path / "out")
    assert refused
    check_rows(result, rivers, RegexCounter())
    leftover = tmp_path / "killed"  # before anything stood under its name
    leftover.mkdir()
    (leftover / f".run.{'0f' * 16}.partial.json").write_text("{")
    run(rivers, river_index, ScriptedGenerator(SCRIPT), leftover)


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


def test_foreign_folders_are_left_alone(rivers: Dataset, river_index: CorpusIndex, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for out, resume in ((tmp_path, False), (tmp_path, True), (tmp_path / "thesis.txt", False)):
        with pytest.raises(InputError, match="choose a"):
            run(rivers, river_index, None, out, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_ledger_with_fewer_columns_and_settings_is_resumed(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    whole = run(rivers, river_index, failing(), tmp_path, **FEW)
    older = [{k: v for k, v in row.items() if k != "peak_memory_mb"} for row in whole.rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in older[:2]))
    record = json.loads((tmp_path / "run.json").read_text())
    del record["settings"]["prices"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    resumed = run(rivers, river_index, failing(), tmp_path, resume=True, **FEW)
    assert timeless(resumed.rows) == timeless(whole.rows)
    assert [row["peak_memory_mb"] is None for row in ledger(tmp_path)][:2] == [True, True]


def test_a_run_without_a_folder_takes_the_first_free_one(tmp_path: Path) -> None:
    named = tmp_path / "evaluation"
    assert free_folder(named) == free_folder(named, resume=True) == named
    for count, name in enumerate(("evaluation", "evaluation-2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}", encoding="utf-8")
        assert free_folder(named) == tmp_path / f"evaluation-{count + 2}"
        assert free_folder(named, resume=True) == tmp_path / name
