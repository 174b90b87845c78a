"""The DSPy adapter inside DSPy programs, with DSPy's own local retriever."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from tests.adapters.conftest import Counting

dspy = pytest.importorskip("dspy")

from dspy.retrievers import Embeddings, EmbeddingsWithScores
from dspy.utils import DummyLM

from mio_rag.adapters.dspy import SelectionModule


@pytest.fixture
def corpus(demo: Dataset) -> list[str]:
    return [p.text for p in demo.passages]


def embed(model: Counting):
    return lambda texts: np.array(model.many(list(texts)))


@pytest.mark.parametrize("kind", [EmbeddingsWithScores, Embeddings])
def test_with_dspys_own_retriever(kind, demo, corpus, model, question, expected) -> None:
    """With scores or without, and nothing is embedded again: the retriever keeps its corpus' vectors."""
    module = SelectionModule(
        kind(corpus, embed(model), k=20), budget=200, preset="raw", redundancy_weight=0.3
    )
    wanted = expected(200, preset="raw", redundancy_weight=0.3)
    assert 1 < len(wanted.ids) < 20
    before = model.texts
    found = module(question)
    assert model.texts - before == (1 if kind is EmbeddingsWithScores else 2)  # the question
    assert found.passages == list(wanted.texts)
    assert [demo.passages[i].id for i in found.indices] == list(wanted.ids)
    if kind is EmbeddingsWithScores:
        assert found.scores == pytest.approx([wanted.decisions[i].relevance for i in wanted.chosen])
    places = [wanted.candidates.ids[int(i)] for i in found.report["left_out"]]
    assert len(places) == 20 - len(found.passages)
    assert [n["rank"] for n in found.notes] == list(range(1, len(found.passages) + 1))
    assert found.report["certificate"]["objective"] == pytest.approx(wanted.result.objective, abs=1e-5)
    assert asyncio.run(module.acall(question)).passages == found.passages


class Program(dspy.Module):
    def __init__(self, retriever) -> None:
        super().__init__()
        self.context = SelectionModule(retriever, budget=200, passage_penalty="auto")
        self.answer = dspy.Predict("context: list[str], question -> answer")

    def forward(self, question):
        found = self.context(question)
        said = self.answer(context=found.passages, question=question)
        return dspy.Prediction(answer=said.answer, passages=found.passages)


# DSPy's own retriever cannot be copied whole, and says so when it is saved.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_in_a_program(corpus, model, question, tmp_path: Path) -> None:
    """DSPy's predictors insist on a language model: this one is scripted, and shows what it was asked."""
    program = Program(EmbeddingsWithScores(corpus, embed(model), k=20))
    lm = DummyLM([{"answer": "Menai"}] * 2)
    with dspy.context(lm=lm):
        said = program(question)
        program.save(tmp_path / "program.json")
        copy = Program(program.context.retriever)
        copy.load(tmp_path / "program.json")
        assert copy(question).passages == said.passages
    prompt = lm.history[0]["messages"][-1]["content"]
    assert all(text in prompt for text in said.passages)
    assert "certificate" not in prompt


def test_passages_of_the_call_with_what_goes_along() -> None:
    module = SelectionModule(budget=2, redundancy_weight=0)
    found = module("q", passages=["a", "b", "c"], scores=[0.1, 0.9, 0.5], pages=[7, 8, 9], model="m")
    assert (found.passages, found.scores, found.pages, found.model) == (["b", "c"], [0.9, 0.5], [8, 9], "m")
    assert module("q", passages=[]).passages == []
    assert asyncio.run(module.acall("q", passages=["a"], scores=[1])).passages == ["a"]
    copy = module.deepcopy()  # as DSPy's optimizers make them
    copy.budget = 1
    assert copy("q", passages=["a", "b"], scores=[1, 2]).passages == ["b"]
    assert module.budget == 2


def test_other_retrievers(model) -> None:
    def plain(query: str) -> list[str]:
        return ["The Menai bridge opened.", "Yeast ferments.", "The bridge at Menai was opened."]

    module = SelectionModule(plain, budget=9, embedder=embed(model), preset="raw", redundancy_weight=0.9)
    assert "Yeast ferments." not in module("When did the Menai bridge open?").passages
    assert asyncio.run(module.acall("When did the Menai bridge open?")).passages

    class Awaited(dspy.Module):
        async def aforward(self, query):
            return dspy.Prediction(passages=[{"long_text": "x"}, {"text": "y"}], scores=[1.0, 2.0])

    module = SelectionModule(Awaited(), budget=9, redundancy_weight=0)
    assert [p.get("text") for p in asyncio.run(module.acall("q")).passages] == ["y", None]
