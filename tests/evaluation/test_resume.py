"""The folder of a run: resumed to the same rows, refused where it is another's, one run at a time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mio_rag.context import RegexCounter
from mio_rag.control.costs import Prices
from mio_rag.corpora.load import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.harness import evaluate
from mio_rag.evaluation.ledger import free_folder
from mio_rag.generation import ExtractiveGenerator, Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex, RetrievalSettings, TfidfEmbedder
from mio_rag.selection.selector import Selector
from tests.evaluation.runs import SCRIPT, SETTINGS, check_rows, failing, ledger, run, timeless


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
    asked = {prompt.question.id for prompt in again.prompts}
    assert not asked & {q.id for q in demo.questions[:3]}
    # A finished run has nothing left to do.
    idle = crashing("none")
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


def test_a_resumed_run_has_spent_of_a_policy_s_total_what_its_rows_have(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    policy = tmp_path / "total.toml"
    policy.write_text(
        "[price]\ntotal = 2400\nquestions = 6\n[search]\npool = 8\n"
        "[limits]\nevidence_tokens = 300\nanswer_tokens = 16\n"
    )
    name = f"policy:{policy}"
    few = {"methods": (), "controllers": (name,), "budgets": (300,), "limit": 6}
    whole = run(demo, demo_index, crashing("none"), tmp_path / "whole", **few)

    def crash(count: int, text: str) -> None:
        if text.startswith("3 of"):
            raise Crash

    given = replace(SETTINGS, **few)
    with pytest.raises(Crash):
        evaluate(demo, demo_index, crashing("none"), given, tmp_path / "cut", progress=crash)
    resumed = run(demo, demo_index, crashing("none"), tmp_path / "cut", resume=True, **few)
    for shown in ("token_price", "prompt_tokens", "selected_ids", "error"):
        assert [row[shown] for row in resumed.rows] == [row[shown] for row in whole.rows], shown
    assert len({row["token_price"] for row in whole.rows}) == 6  # the price moves with what is spent
    assert sum(row["prompt_tokens"] + row["completion_tokens"] for row in resumed.rows) <= 2400


def test_failed_rows_are_tried_again_and_take_their_place(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    whole = run(rivers, river_index, failing(), tmp_path / "whole")
    run(rivers, river_index, failing("a", "c"), tmp_path / "patchy")
    mended = run(rivers, river_index, failing(), tmp_path / "patchy", resume=True)
    assert timeless(mended.rows) == timeless(whole.rows)
    assert timeless(mended.summary) == timeless(whole.summary)  # intervals included: the order is the same


def test_more_methods_and_budgets_may_join_a_run(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    run(rivers, river_index, failing(), tmp_path / "grown", methods=("topk",), budgets=(30,), limit=2)
    grown = run(rivers, river_index, failing(), tmp_path / "grown", resume=True)
    whole = run(rivers, river_index, failing(), tmp_path / "whole")
    assert timeless(grown.rows) == timeless(whole.rows)


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
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=f"also has {named} which ledger and report would lose"):
        run(rivers, river_index, failing(), tmp_path, resume=True, **asked)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


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


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"retrieval": RetrievalSettings(pool=3)}, "pool"),
        ({"retrieval": RetrievalSettings(mode="dense")}, "mode"),
        ({"retrieval": RetrievalSettings(rerankers=("maxsim",))}, "rerankers"),
        ({"seed": 4}, "seed"),
        ({"max_tokens": 8}, "max_tokens"),
        ({"mmr_lambda": 0.5}, "mmr_lambda"),
        ({"selector": Selector(redundancy_weight=0.5)}, "redundancy_weight, options"),
    ],
)
def test_other_settings_cannot_join_a_run(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    run(rivers, river_index, failing(), tmp_path, limit=1)
    before = (tmp_path / "rows.jsonl").read_bytes()
    with pytest.raises(InputError, match=f"had another {named}:"):
        run(rivers, river_index, failing(), tmp_path, limit=1, resume=True, **changes)
    assert (tmp_path / "rows.jsonl").read_bytes() == before


def test_other_data_readers_and_embedders_cannot_join_a_run(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    run(rivers, river_index, failing(), tmp_path, limit=1)
    relabelled = Dataset("rivers", rivers.passages, (replace(rivers.questions[0], gold_sources=("atlas",)),))
    with pytest.raises(InputError, match="another data_sha256"):
        run(relabelled, river_index, failing(), tmp_path, resume=True)
    with pytest.raises(InputError, match="another generator"):
        run(rivers, river_index, ExtractiveGenerator(), tmp_path, limit=1, resume=True)
    other = CorpusIndex.build(rivers.passages, TfidfEmbedder(dimensions=2))
    with pytest.raises(InputError, match="another embedder_fingerprint"):
        run(rivers, other, failing(), tmp_path, limit=1, resume=True)
    dated = CorpusIndex.build([replace(p, date="2026-04-01") for p in rivers.passages], TfidfEmbedder())
    with pytest.raises(InputError, match="another index_sha256"):
        run(rivers, dated, failing(), tmp_path, limit=1, resume=True)


def test_a_model_of_the_same_name_cannot_join_a_run(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    run(rivers, river_index, ScriptedGenerator(SCRIPT), tmp_path, limit=1)
    again = ScriptedGenerator(dict(reversed(SCRIPT.items())))
    run(rivers, river_index, again, tmp_path, limit=2, resume=True)
    other = ScriptedGenerator(SCRIPT | {rivers.questions[0].id: "something else"})
    with pytest.raises(InputError, match="had another generator_sha256"):
        run(rivers, river_index, other, tmp_path, limit=2, resume=True)


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
    more = kinds | {"controllers": (*kinds["controllers"], "workflow:plain")}
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
    assert timeless(ledger(tmp_path / "out")) == timeless(
        ledger(run(rivers, river_index, ScriptedGenerator(SCRIPT), tmp_path / "alone").folder)
    )
    leftover = tmp_path / "killed"
    leftover.mkdir()
    # By a kill before anything stood under its name.
    (leftover / f".run.{'0f' * 16}.partial.json").write_text("{")
    run(rivers, river_index, ScriptedGenerator(SCRIPT), leftover)


#: The first two take their turns and leave traces; the last cannot use this reader at all.
REFUSED: dict[str, Any] = {"controllers": ("fixed-1", "fixed-2", "planner-lm"), "budgets": (30,)}


def test_a_run_that_is_refused_leaves_nothing_behind(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    for out in (tmp_path / "new" / "run", tmp_path):
        with pytest.raises(InputError, match="grammar"):
            run(rivers, river_index, ExtractiveGenerator(), out, methods=(), **REFUSED)
        assert list(tmp_path.iterdir()) == []
    few: dict[str, Any] = {"methods": (), "controllers": ("fixed-1",), "budgets": (30,)}
    assert run(rivers, river_index, ExtractiveGenerator(), tmp_path / "new" / "run", **few).rows


def test_a_run_is_left_as_it_was_where_going_on_is_refused(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    few: dict[str, Any] = {"methods": (), "controllers": ("fixed-1",), "budgets": (30,)}
    run(rivers, river_index, ExtractiveGenerator(), tmp_path, limit=2, **few)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before["traces.jsonl"]
    with pytest.raises(InputError, match="grammar"):
        run(rivers, river_index, ExtractiveGenerator(), tmp_path, resume=True, methods=(), limit=4, **REFUSED)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_foreign_folders_are_left_alone(rivers: Dataset, river_index: CorpusIndex, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for out, resume in ((tmp_path, False), (tmp_path, True), (tmp_path / "thesis.txt", False)):
        with pytest.raises(InputError, match="choose a"):
            run(rivers, river_index, None, out, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_ledger_from_before_costs_had_columns_is_gone_on_with(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    whole = run(rivers, river_index, failing(), tmp_path, methods=("topk",), budgets=(30,))
    older = [{k: v for k, v in row.items() if k != "peak_memory_mb"} for row in whole.rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in older[:2]))
    record = json.loads((tmp_path / "run.json").read_text())
    del record["settings"]["prices"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    resumed = run(rivers, river_index, failing(), tmp_path, methods=("topk",), budgets=(30,), resume=True)
    assert timeless(resumed.rows) == timeless(whole.rows)
    assert [row["peak_memory_mb"] is None for row in ledger(tmp_path)][:2] == [True, True]
    priced = Prices({"scripted": (1, 1)})
    few: dict[str, Any] = {"methods": ("topk",), "budgets": (30,), "prices": priced}
    with pytest.raises(InputError, match="another prices"):
        run(rivers, river_index, failing(), tmp_path, resume=True, **few)


def test_a_run_without_a_folder_takes_the_first_free_one(tmp_path: Path) -> None:
    named = tmp_path / "evaluation"
    assert free_folder(named) == free_folder(named, resume=True) == named
    for count, name in enumerate(("evaluation", "evaluation-2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}", encoding="utf-8")
        assert free_folder(named) == tmp_path / f"evaluation-{count + 2}"
        assert free_folder(named, resume=True) == tmp_path / name
