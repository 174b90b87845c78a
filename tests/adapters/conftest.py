"""What the tests of all adapters share: the bundled set in a local embedder, and what should come out."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mio_rag
from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import TfidfEmbedder
from mio_rag.selection.result import Selection

# Set before the frameworks are imported: no test may need a network or write to a home folder.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
os.environ["LANGSMITH_TRACING"] = "false"


@pytest.fixture(scope="session", autouse=True)
def dspy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DSPy keeps a cache on disk from its import on."""
    folder = tmp_path_factory.mktemp("dspy")
    os.environ["DSPY_CACHEDIR"] = str(folder)
    return folder


class Counting:
    """A local model that counts what it embeds."""

    def __init__(self, model: TfidfEmbedder) -> None:
        self.model, self.texts = model, 0

    def many(self, texts: list[str]) -> list[list[float]]:
        self.texts += len(texts)
        return self.model.encode(texts).tolist()

    def one(self, text: str) -> list[float]:
        return self.many([text])[0]


@pytest.fixture(scope="session")
def fitted(demo: Dataset) -> TfidfEmbedder:
    model = TfidfEmbedder(dimensions=60)
    model.fit([p.text for p in demo.passages])
    return model


@pytest.fixture
def model(fitted: TfidfEmbedder) -> Counting:
    return Counting(fitted)


@pytest.fixture
def question() -> str:
    return "Which suspension bridge was opened first, the Menai or the Clifton Suspension Bridge?"


@pytest.fixture
def nearest(demo: Dataset, model: Counting, question: str) -> list[int]:
    """Places of the 20 passages nearest to the question, best first."""
    cosines = np.array(model.many([p.text for p in demo.passages])) @ np.array(model.one(question))
    return [int(i) for i in np.argsort(-cosines, kind="stable")[:20]]


@pytest.fixture
def expected(demo: Dataset, model: Counting, question: str, nearest: list[int]) -> Callable[..., Selection]:
    """What the bare selector chooses of them, told everything by hand."""

    def choose(budget: int, render: Callable[..., str] = lambda p: p.text, **settings) -> Selection:
        pool = [demo.passages[i] for i in nearest]
        return mio_rag.select(
            question,
            [{"id": p.id, "text": render(p), "source": p.source} for p in pool],
            embeddings=model.many([p.text for p in pool]),
            question_embedding=model.one(question),
            budget=budget,
            **settings,
        )

    return choose


def check_notes(notes: list[dict], selection: Selection) -> None:
    """The notes of what was chosen are those of the selection, in its order."""
    assert [n["rank"] for n in notes] == list(range(1, len(selection.chosen) + 1))
    by_id = {d.id: d for d in selection.decisions}
    for note, chosen in zip(notes, selection.ids, strict=True):
        assert note["reason"] == by_id[chosen].reason
        assert note["tokens"] == by_id[chosen].tokens
        assert note["value"] == pytest.approx(by_id[chosen].value, abs=1e-5)
        assert note["certificate"]["status"] == "optimal"
        assert note["certificate"]["objective"] == pytest.approx(selection.result.objective, abs=1e-5)
        assert note["certificate"]["bound"] >= note["certificate"]["objective"]
        assert note["certificate"]["text"].startswith("optimal: objective")
