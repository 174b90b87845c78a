"""An index on disk, for every test of the command line."""

import json
from pathlib import Path

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory, demo_index: CorpusIndex) -> Path:
    return demo_index.save(tmp_path_factory.mktemp("cli") / "index")


@pytest.fixture(scope="session")
def rivers_at(tmp_path_factory: pytest.TempPathFactory, river_index: CorpusIndex) -> Path:
    return river_index.save(tmp_path_factory.mktemp("rivers") / "INDEX")


@pytest.fixture(scope="session")
def rivers_data(tmp_path_factory: pytest.TempPathFactory, rivers: Dataset) -> Path:
    """The rivers as a folder with passages and questions."""
    data = tmp_path_factory.mktemp("data") / "rivers"
    data.mkdir()
    passages = [{"id": p.id, "text": p.text, "title": p.title, "source": p.source} for p in rivers.passages]
    asked = [
        {"id": q.id, "question": q.text, "answers": q.answers, "gold_ids": q.gold_ids}
        for q in rivers.questions
    ]
    for name, rows in (("corpus", passages), ("questions", asked)):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data
