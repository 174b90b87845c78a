"""What a total has left: questions that a larger one answers, and those that it has no room for."""

import json
from pathlib import Path
from typing import Any

import pytest

from mio_rag.batch.ask import AskedSummary, ask_many, read_questions
from mio_rag.cli.batch import _why_left
from mio_rag.corpora.load import Dataset
from mio_rag.generation import make_generator
from mio_rag.policy import policy_of
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector

POLICY = policy_of(
    {"price": {"token": 0.0005}, "limits": {"evidence_tokens": 400, "answer_tokens": 32}}, "p12"
)
COUNT, SPARSE, AMPLE = 40, 7000, 20_000


@pytest.fixture(scope="module")
def index(demo: Dataset) -> CorpusIndex:
    return CorpusIndex.build(demo.passages, "tfidf", demo.name)


def run(index: CorpusIndex, out: Path, total: int, **more: Any) -> AskedSummary:
    asked = read_questions("demo")[:COUNT]
    given = {"concurrency": 1} | more
    return ask_many(asked, index, "extractive", POLICY, out, total_tokens=total, **given)


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]


def test_what_has_no_room_is_left_and_what_it_needs_is_told(index: CorpusIndex, tmp_path: Path) -> None:
    done = run(index, tmp_path, SPARSE)
    found = rows(tmp_path)
    assert done.spent + done.lost <= SPARSE
    assert (done.failed, done.unread) == (0, 0)
    assert done.left == COUNT - done.answered > 0
    assert done.needs is not None
    assert SPARSE - done.spent < done.needs <= 1000
    assert "raise the total" in _why_left(done)
    texts, retriever = {q.id: q for q in read_questions("demo")}, Retriever(index)
    reader = make_generator("extractive")
    refused = [row for row in found if "nothing worth reading fits in" in (row["way"] or [""])[-1]]
    assert refused
    for row in refused:
        pool = retriever.retrieve(texts[row["query_id"]].text)
        assert Selector(token_price=row["token_price"]).select(pool, 400, reader).chosen
        assert (row["state"], row["lm_calls"]) == ("open", 0)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_raised_total_answers_what_a_smaller_one_could_not(
    concurrency: int, index: CorpusIndex, tmp_path: Path
) -> None:
    first = run(index, tmp_path, SPARSE)
    before = {row["row"]: row for row in rows(tmp_path) if row["state"] == "answered"}
    same = run(index, tmp_path, SPARSE, concurrency=concurrency)
    assert (same.answered, same.spent, same.unread) == (first.answered, first.spent, 0)
    more = run(index, tmp_path, AMPLE, concurrency=concurrency)
    assert (more.answered, more.failed, more.unread, more.left) == (COUNT, 0, 0, 0)
    assert first.spent < more.spent <= AMPLE
    found = rows(tmp_path)
    assert all(found[number] == row for number, row in before.items())  # none is asked or charged twice
    assert more.spent == sum(row["prompt_tokens"] + row["completion_tokens"] for row in found)
