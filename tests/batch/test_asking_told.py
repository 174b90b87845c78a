"""What a batch of questions says: why questions were left, what is missing, and rows that are all alike."""

import json
from pathlib import Path
from typing import Any

import pytest

from mio_rag.batch.ask import AskedSummary, ask_many
from mio_rag.cli.batch import _why_left
from mio_rag.errors import InputError
from mio_rag.generation import ScriptedGenerator
from mio_rag.policy import Policy, policy_of, read_policy
from mio_rag.retrieval import CorpusIndex
from mio_rag.types import Question

QUESTIONS = tuple(Question(f"q{k}", f"How long is the river number {k}?") for k in range(24))
SAID: dict[str, Any] = {"limits": {"evidence_tokens": 60, "answer_tokens": 8}, "search": {"pool": 6}}
PRICED = SAID | {"models": {"reader": {"input": 100.0, "output": 400.0}}}


def run(index: CorpusIndex, out: Path, policy: Policy, **more: Any) -> AskedSummary:
    reader = ScriptedGenerator(lambda prompt: "241 kilometres")
    return ask_many(QUESTIONS, index, reader, policy, out, **({"concurrency": 3} | more))


@pytest.mark.parametrize(
    ("said", "total", "lower"),
    [
        (PRICED, {"total_dollars": 0.2}, "limits.budget"),
        (SAID, {"total_tokens": 2000}, "limits.max_tokens"),
        (
            PRICED | {"order": {"workflow": "rewrite-first"}, "limits": SAID["limits"] | {"tokens": 900}},
            {"total_dollars": 0.6},
            "limits.max_total_tokens",
        ),
    ],
)
def test_why_questions_were_left_is_told(
    said: dict[str, Any], total: dict[str, Any], lower: str, river_index: CorpusIndex, tmp_path: Path
) -> None:
    # One by one, since what is left in the end depends on which question is the last.
    done = run(river_index, tmp_path, policy_of(said, "p"), concurrency=1, **total)
    assert 0 < done.left < len(QUESTIONS)
    assert done.total is not None
    assert done.needs is not None
    assert 0 < done.total - done.spent - done.lost < done.needs
    assert done.lower == lower
    told = _why_left(done)
    assert " left, and one question may " in told
    assert told.endswith(f"raise the total, or lower {lower}")
    kept = json.loads((tmp_path / "summary.json").read_text())
    assert (kept["needs"], kept["lower"]) == (done.needs, lower)


def test_nothing_is_needed_where_nothing_is_left(river_index: CorpusIndex, tmp_path: Path) -> None:
    done = run(river_index, tmp_path, policy_of(PRICED, "p"), total_dollars=50.0)
    assert (done.left, done.needs, done.lower) == (0, None, None)


def test_every_row_has_the_same_keys(river_index: CorpusIndex, tmp_path: Path) -> None:
    policy = policy_of(PRICED, "p")

    def rows() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]

    first = run(river_index, tmp_path, policy, total_dollars=0.2)
    found = rows()
    assert {row["state"] for row in found} == {"answered", "open"}
    assert len({tuple(row) for row in found}) == 1
    open_rows = [row for row in found if row["state"] == "open"]
    assert all(row["prompt_tokens"] is None and row["error"] is None for row in open_rows)
    more = run(river_index, tmp_path, policy, total_dollars=9.0)
    assert (more.done_before, more.answered) == (first.answered, len(QUESTIONS))
    assert all(row["prompt_tokens"] > 0 for row in rows())


def test_a_missing_price_is_told_by_its_table(river_index: CorpusIndex, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        run(river_index, tmp_path, read_policy("frugal"), total_dollars=1.0)
    assert "[models.reader] input and output" in str(error.value)
    assert "`mio-rag policy show frugal --toml > FILE`" in str(error.value)
    with pytest.raises(InputError) as error:
        run(river_index, tmp_path, policy_of(SAID, "own"), total_dollars=1.0)
    assert "policy show" not in str(error.value)


def test_what_is_not_worth_its_price_costs_nothing_and_is_asked_again(
    river_index: CorpusIndex, tmp_path: Path
) -> None:
    def rows(out: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]

    dear = policy_of(SAID | {"price": {"token": 0.9}}, "dear")
    done = run(river_index, tmp_path / "dear", dear)
    assert (done.answered, done.failed, done.unread, done.left) == (0, 0, 24, 0)
    assert done.spent == 0
    (row, *_) = rows(tmp_path / "dear")
    assert (row["state"], row["selected_ids"], row["lm_calls"]) == ("unread", [], 0)
    assert row["way"][-1] == "no model was asked: nothing was worth reading"
    # Under a total the price is the pacer's, so that a larger one reads what the smaller one could not.
    usual = policy_of(SAID, "usual")
    poor = run(river_index, tmp_path / "total", usual, total_tokens=400)
    assert poor.unread + poor.left > 0
    rich = run(river_index, tmp_path / "total", usual, total_tokens=20_000)
    assert rich.answered > poor.answered
    assert all(bool(row["selected_ids"]) == (row["state"] == "answered") for row in rows(tmp_path / "total"))
