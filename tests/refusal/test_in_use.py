"""A refusal model in evaluations and in the service."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.rows import refusal_scores
from mio_rag.generation import ExtractiveGenerator, ScriptedGenerator
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.cache import AnswerCache, CacheSettings
from mio_rag.types import Question
from tests.evaluation.runs import run
from tests.refusal.test_model import MODEL


def judging(index: CorpusIndex, reader: str, refuses: bool) -> Refusal:
    constant = 9.0 if refuses else -9.0
    return replace(MODEL, embedder=index.embedder.fingerprint, reader=reader, constant=constant)


@pytest.fixture
def mixed(rivers: Dataset) -> Dataset:
    """An answerable question, and one that nothing answers."""
    return replace(rivers, questions=(rivers.questions[0], Question("e", "Who baked?", type="unanswerable")))


@pytest.mark.parametrize("refuses", [True, False])
def test_rows_hold_what_was_said_and_count_what_was_given(
    mixed: Dataset, river_index: CorpusIndex, tmp_path: Path, refuses: bool
) -> None:
    reader = ScriptedGenerator({"a": "Mount Falterona", "e": "Ada"})
    model = judging(river_index, reader.name, refuses)
    found = run(mixed, river_index, reader, tmp_path, refusing=model, methods=("topk",), budgets=(120,))
    assert [row["said"] for row in found.rows] == ["Mount Falterona", "Ada"]
    assert [row["refused"] for row in found.rows] == [refuses, refuses]
    assert [row["answer"] for row in found.rows] == (["", ""] if refuses else ["Mount Falterona", "Ada"])
    assert [row["exact_match"] for row in found.rows] == ([0, 1] if refuses else [1, 0])
    [scores] = refusal_scores(found.rows, model.threshold).values()
    assert (scores.has_answer_exact, scores.no_answer) == ((0, 1) if refuses else (1, 0))
    assert scores.f1 == sum(row["token_f1"] for row in found.rows) / 2
    row = {"method": "x", "budget_tokens": 9, "question_type": "", "answers": ["x"], "error": "broke"}
    asked = {**row, "error": None, "said": "x", "refusal_probability": 0.1}
    (failed,) = refusal_scores([row, asked, {**asked, "answers": []}], 0.5).values()
    assert (failed.questions, failed.has_answer_f1, failed.refused) == (2, 0.5, 0.5)  # a failure is a refusal
    # Rows of another model, or of none, are not its own.
    for other in (judging(river_index, reader.name, not refuses), None):
        with pytest.raises(InputError, match="had another refusal"):
            run(
                mixed, river_index, reader, tmp_path, refusing=other, methods=("topk",), budgets=(120,),
                resume=True,
            )  # fmt: skip


def test_evaluate_tells_the_measures_of_squad(
    mixed: Dataset, river_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "data").mkdir()
    for name, rows in (
        ("corpus", [
            {"id": p.id, "title": p.title, "text": p.text, "source": p.source} for p in mixed.passages
        ]),
        ("questions", [
            {"id": q.id, "question": q.text, "answers": list(q.answers), "type": q.type}
            for q in mixed.questions
        ]),
    ):  # fmt: skip
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "data" / f"{name}.jsonl").write_text(text)
    river_index.save(tmp_path / "index")
    judging(river_index, "extractive", True).save(tmp_path / "m.json")
    asked = [
        "evaluate", str(tmp_path / "index"), "--questions", str(tmp_path / "data"), "--model", "extract",
        "--set", f"answers.refusal={tmp_path / 'm.json'}", "--budget", "256", "--out",
    ]  # fmt: skip
    done = CliRunner().invoke(app, [*asked, str(tmp_path / "one"), "--methods", "topk"])
    assert done.exit_code == 0, done.output
    assert "HasAns F1" in done.output
    told = json.loads(
        CliRunner().invoke(app, [*asked, str(tmp_path / "two"), "--methods", "topk", "--json"]).stdout
    )
    [scores] = told["refusal"]
    assert (scores["method"], scores["no_answer"], scores["has_answer_f1"]) == ("topk", 1, 0)
    done = CliRunner().invoke(app, [*asked, str(tmp_path / "three"), "--methods", "tier:easy"])
    assert done.exit_code == 2
    assert "answers.refusal does not go with policies" in done.output


def test_the_service_says_that_it_is_not_there(demo_index: CorpusIndex, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from mio_rag.service.app import create_app
    from mio_rag.service.run import check
    from mio_rag.service.settings import ServiceSettings

    body = {"question": "Which tower is taller?", "deadline_seconds": 20}
    answers = []
    for refuses in (True, False):
        cache = AnswerCache.of(tmp_path / "a.sqlite", demo_index, CacheSettings())
        model = judging(demo_index, "extractive", refuses)
        with TestClient(create_app(demo_index, ExtractiveGenerator(), refusing=model, cache=cache)) as client:
            first, again = (client.post("/ask", json=body).json() for _ in range(2))
        assert first["cached"] is None  # what another model judged is another answer
        assert again["cached"] is not None
        assert first["refusal"] == again["refusal"]
        assert first["refusal"]["refused"] is refuses
        assert (first["answer"] == "") is refuses
        answers.append(first["said"] if refuses else first["answer"])
        assert ("said" in first) is refuses
    assert answers[0] == answers[1] != ""
    with pytest.raises(InputError, match=r"answers\.refusal does not go with a policy of its own"):
        check(ServiceSettings("x", policy="frugal", refusal="m.json"), None, False)
    with pytest.raises(InputError, match="another embedder"):
        create_app(demo_index, ExtractiveGenerator(), refusing=dataclasses.replace(MODEL))
