"""The study of policies with language models: who is asked in which order, what is kept, what is told."""

import json
from pathlib import Path

import numpy as np
import pytest
from mio_rag.control.planner.run import Kit

from benchmarks.composed.command import _readers
from benchmarks.composed.language import (
    LANGUAGE_TIERS,
    Asked,
    Reader,
    bandit_of,
    contenders,
    planner_of,
    rows_of_readers,
)
from benchmarks.composed.language_summary import EITHER, PLAIN, table_of, told_of
from benchmarks.composed.study import Source, trained
from mio_rag.control.planner.settings import WorkflowSettings
from mio_rag.corpora.load import Dataset
from mio_rag.deciders.workflow import find_workflow
from mio_rag.errors import InputError
from mio_rag.generation import make_generator
from mio_rag.learning.bandit_log import EventLog
from mio_rag.learning.outcomes import Source as Collected
from mio_rag.learning.outcomes import collect_outcomes, data_hash
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits
from mio_rag.session.models import Models

CHEAP, DEAR = Reader("cheap", "extractive", 0.1, 0.4), Reader("dear", "extractive", 0.3, 1.2)


@pytest.fixture
def source(demo: Dataset, demo_index: CorpusIndex) -> Source:
    return Source.of(demo, demo_index, 12, 2, 0)


def outcomes(demo: Dataset, index: CorpusIndex, folder: Path) -> Path:
    """A table of two workflows on every question of the demo."""
    with_reader = make_generator("extractive")
    kit = Kit(Retriever(index), Selector(), Models({}), WorkflowSettings(), Limits(40, 20_000, 1e6), 16)
    mine = Collected("demo", tuple(demo.questions), kit, data_hash(index, demo.questions))
    workflows = [find_workflow("brief"), find_workflow("plain")]
    collect_outcomes(folder, [mine], workflows, with_reader, budget_tokens=200)
    return folder


def test_all_contenders_answer_with_every_reader_and_a_run_goes_on(
    demo: Dataset, demo_index: CorpusIndex, source: Source, tmp_path: Path
) -> None:
    files = trained([source], tmp_path, 0, lambda text: None, LANGUAGE_TIERS)
    files["PLANNER"] = tmp_path / "planner.safetensors"
    names, count = planner_of(outcomes(demo, demo_index, tmp_path / "table"), [source], files["PLANNER"])
    assert names == ["brief", "plain"]
    assert count == len(demo.questions) - len(source.questions)  # those that are asked teach nothing
    files["STATE"] = tmp_path / "bandit.sqlite"
    assert bandit_of([source], CHEAP, tmp_path / "replies.sqlite", files["STATE"], pytest.fail) == 12
    learned = files["STATE"].read_bytes()
    assert bandit_of([source], CHEAP, tmp_path / "replies.sqlite", files["STATE"], pytest.fail) == 12

    every = contenders()
    said: list[str] = []
    rows = rows_of_readers([source], [CHEAP, DEAR], every, files, tmp_path, said.append)
    assert said == ["1 of 2 questions", "2 of 2 questions"]
    assert set(rows) == {
        Asked(name, place, reader)
        for name in every for place in range(3) for reader in ("cheap", "dear")
    }  # fmt: skip
    asked = [question.id for question in reversed(source.questions)]
    assert all([row["question"] for row in mine] == asked for mine in rows.values())
    assert not any(row["failed"] for mine in rows.values() for row in mine)
    for place in range(3):  # without a bandit, which explores, the same prompts at other prices
        cheap, dear = (rows[Asked("without search", place, name)] for name in ("cheap", "dear"))
        assert [row["tokens"] for row in cheap] == [row["tokens"] for row in dear]
        assert [3 * row["dollars"] for row in cheap] == pytest.approx([row["dollars"] for row in dear])
    spends = [np.mean([row["tokens"] for row in rows[Asked(PLAIN, k, "cheap")]]) for k in range(3)]
    assert spends == sorted(spends)
    assert all(row["calls"] == 1 for row in rows[Asked(PLAIN, 0, "cheap")])
    assert all(row["calls"] > 1 for row in rows[Asked("workflow rewrite-first", 0, "cheap")])
    assert files["STATE"].read_bytes() == learned  # every contender learns on in a copy
    (copy,) = (tmp_path / "language" / "cheap").glob("search-alone-0-*.sqlite")
    with EventLog(copy).reading() as events:
        assert events.last() > 12

    # Cut within a line, and asked fewer: nothing is asked again but what is missing.
    (path,) = (tmp_path / "language" / "cheap").glob("all-1-*.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1]) + lines[1][:20])
    before = {one: one.read_bytes() for one in path.parent.glob("*.jsonl") if one != path}
    again = rows_of_readers([source], [CHEAP, DEAR], every, files, tmp_path, lambda text: None)
    assert {one: one.read_bytes() for one in before} == before
    rerun = [row["question"] for row in again[Asked("all", 1, "cheap")]]
    assert rerun == [json.loads(line)["question"] for line in lines] == asked
    fewer = Source(source.name, source.training, source.questions[-1:], source.index)
    kept = rows_of_readers([fewer], [CHEAP], every, files, tmp_path, lambda text: None)
    assert [row["question"] for row in kept[Asked("all", 1, "cheap")]] == asked[:1]

    seldom = Reader("dear", "extractive", 0.3, 1.2, asked=1)
    some = rows_of_readers([source], [CHEAP, seldom], every, files, tmp_path, said.append)
    assert [len(some[Asked("all", 1, name)]) for name in ("cheap", "dear")] == [2, 1]
    shared = told_of(some, [CHEAP, seldom])[EITHER]
    assert {here[PLAIN]["questions"] for here in shared.values()} == {1}

    told = told_of(rows, [CHEAP, DEAR])
    assert list(told) == ["cheap", "dear", EITHER]
    assert all(len(told[who]) == 3 for who in told)
    text = table_of(told)
    assert all(name in text for name in every)


def test_without_a_part_no_contender_has_it() -> None:
    every, some = contenders(), contenders(["search", "amount", "reading", "repetition"])
    assert set(every) - set(some) == {
        "order alone",
        "without order",
        "workflow rewrite-first",
        "workflow search-parts",
    }
    assert "order" in every["all"][1]
    assert "order" not in some["all"][1]
    assert some["all"][1] == every["without order"][1]
    assert "amount" not in every["without reading"][1]  # a tier reads once, and nothing can be chosen again
    alone = contenders(["reading"])
    assert list(alone) == ["none (fused)", "reading alone", "without reading", "all"]


def row(name: str, tokens: float, dollars: float, f1: float) -> dict[str, object]:
    told = {"f1": f1, "complete": f1, "searches": 1.0, "calls": 1.0}
    return {"question": "q", "set": name, "tokens": tokens, "dollars": dollars, **told}


def test_money_buys_the_reader_that_did_better_on_the_other_sets() -> None:
    # Dear is better on set a, cheap on b and c: on a, the others speak for cheap, and they do not see a.
    f1 = {"cheap": (0.0, 1.0, 0.5), "dear": (1.0, 0.0, 0.0)}
    rows = {
        Asked(name, 0, reader): [
            row(where, 10, 1.0, value) for where, value in zip("abc", f1[reader], strict=True)
        ]
        for name in (PLAIN, "all") for reader in f1
    }  # fmt: skip
    told = told_of(rows, [CHEAP, DEAR])[EITHER]["1"]
    # a: cheap by .75 to 0 on the others; b: dear by .5 to .25; c: a draw of .5 and .5, the first.
    assert told[PLAIN]["f1"] == pytest.approx((0.0 + 0.0 + 0.5) / 3)
    assert told["all"][f"f1 beside {PLAIN}"]["mean"] == 0


def test_who_cannot_spend_so_little_is_said_to() -> None:
    rows = {
        Asked(PLAIN, 0, "cheap"): [row("a", 100, 1.0, 0.5)],
        Asked(PLAIN, 1, "cheap"): [row("a", 200, 2.0, 0.5)],
        Asked(PLAIN, 2, "cheap"): [row("a", 300, 3.0, 0.5)],
        Asked("all", 0, "cheap"): [row("a", 150, 1.5, 0.9)],
        Asked("all", 1, "cheap"): [row("a", 250, 2.5, 0.9)],
        Asked("all", 2, "cheap"): [row("a", 350, 3.5, 0.9)],
    }
    told = told_of(rows, [CHEAP])["cheap"]
    assert told["100"]["all"] is None
    assert told["200"]["all"]["tokens"] == pytest.approx(200)
    assert told["200"]["all"][f"f1 beside {PLAIN}"]["mean"] == pytest.approx(0.4)
    assert "spends more than that at every setting" in table_of({"cheap": told})


def test_readers_are_named_with_their_prices() -> None:
    made = _readers("a=gguf:/x/y.gguf?slots=1@0.05,0.2 b=openai:http://h@x#m@1,4,2")
    assert made == [
        Reader("a", "gguf:/x/y.gguf?slots=1", 0.05, 0.2),
        Reader("b", "openai:http://h@x#m", 1.0, 4.0, 2),
    ]
    with pytest.raises(InputError, match="must be NAME=SPEC@IN,OUT"):
        _readers("a=extractive@cheap")
    with pytest.raises(InputError, match="needs --readers"):
        _readers("")
