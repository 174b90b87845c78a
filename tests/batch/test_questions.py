"""The questions of a batch: from lines, from Parquet, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mio_rag.batch.ask import read_questions
from mio_rag.errors import DataError, InputError
from mio_rag.types import Question


def test_questions_from_files(tmp_path: Path) -> None:
    lines = [{"id": "a", "question": "Who?"}, {"question": "What?", "choices": ["x", "y"]}]
    text = "\n".join(json.dumps(line) for line in lines)
    (tmp_path / "q.jsonl").write_text(text)
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    expected = (Question("a", "Who?"), Question("1", "What?", choices=("x", "y")))
    assert read_questions(tmp_path / "q.jsonl") == expected
    assert read_questions(tmp_path / "q.jsonl.gz") == expected
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"query_id": ["a"], "question": ["Who?"]}), tmp_path / "q.parquet")
    assert read_questions(tmp_path / "q.parquet") == expected[:1]
    (tmp_path / "bad.jsonl").write_text(
        '{"question": 3}\nnothing\n{"question": "Who?", "choices": "x"}\n[]\n'
    )
    with pytest.raises(DataError) as error:
        read_questions(tmp_path / "bad.jsonl")
    assert len(error.value.problems) == 4
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(DataError, match="has no questions"):
        read_questions(tmp_path / "none.jsonl")


def test_an_index_or_a_text_file_is_no_file_of_questions(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("Who built it?")
    with pytest.raises(InputError, match=r"q\.txt' is not read: questions come in \.jsonl"):
        read_questions(tmp_path / "q.txt")
    (tmp_path / "index").mkdir()
    for name in ("manifest.json", "passages.jsonl"):
        (tmp_path / "index" / name).write_text("{}")
    with pytest.raises(InputError, match="is an index, not questions: give the questions first"):
        read_questions(tmp_path / "index")
