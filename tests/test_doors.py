"""The same question gives the same text at every door, and every door has the same defaults."""

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mio_rag import Collection, Passage, Selector, select
from mio_rag.adapters.plain import DEFAULT
from mio_rag.corpora.dataset import Dataset
from mio_rag.defaults import DEFAULTS
from mio_rag.policy import Policy
from mio_rag.retrieval import CorpusIndex, TfidfEmbedder
from mio_rag.sources import Building
from tests.cli.running import here

QUESTION = "When did the Clifton Suspension Bridge open, and who designed it?"
BUDGET = 128


@pytest.fixture(scope="module")
def passages(demo: Dataset) -> list[Passage]:
    """All that a search finds, without titles, which frameworks do not have."""
    return [replace(one, title="") for one in demo.passages[:40]]


@pytest.fixture(scope="module")
def folder(passages: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doors")
    CorpusIndex.build(passages, TfidfEmbedder(dimensions=30), "few").save(path / "index")
    asked = {"id": "q1", "question": QUESTION, "answers": ["1864"], "gold_ids": [passages[23].id]}
    (path / "questions.jsonl").write_text(json.dumps(asked) + "\n")
    return path


@pytest.fixture(scope="module")
def index(folder: Path) -> CorpusIndex:
    return CorpusIndex.load(folder / "index")


@pytest.fixture(scope="module")
def wanted(index: CorpusIndex) -> Any:
    chosen = Collection(index).select(QUESTION, budget=BUDGET)
    assert 1 < len(chosen.texts) < 10
    assert chosen.tokens <= BUDGET
    return chosen


def by_command(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    done = here("select", folder / "index", QUESTION, "--budget", BUDGET, "--json")
    return str(json.loads(done.stdout)["context"])


def by_ask(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    done = here("ask", folder / "index", QUESTION, "--budget", BUDGET, "--model", "extract", "--json")
    return str(json.loads(done.stdout)["context"])


def by_select(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    return select(QUESTION, passages, embedder=index.embedder, budget=BUDGET).context


def by_async(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    return str(asyncio.run(Collection(folder / "index").aselect(QUESTION, budget=BUDGET)).context)


def by_answer(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    return str(Collection(index).ask(QUESTION, budget=BUDGET).selection.context)


def by_store(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    from tests.stores.memory import Memory

    return Collection(Memory(index), embedder=index.embedder).select(QUESTION, budget=BUDGET).context


def by_http(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    client = pytest.importorskip("fastapi.testclient")
    from mio_rag.generation import make_generator
    from mio_rag.service.app import create_app

    with client.TestClient(create_app(index, make_generator("extractive"))) as service:
        given = {"question": QUESTION, "budget_tokens": BUDGET}
        return str(service.post("/select", json=given).json()["context"])


def by_mcp(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    client = pytest.importorskip("mcp").Client
    from mio_rag.assistants import Assistants, make_server

    async def run() -> Any:
        async with client(make_server(Assistants([folder / "index"]))) as tools:
            given = {"question": QUESTION, "budget_tokens": BUDGET}
            return await tools.call_tool("find_context", given)

    blocks = asyncio.run(run()).content[0].text.split("\n\n[")[1:]
    return "\n\n".join(block.partition("\n")[2] for block in blocks)


def by_langchain(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    documents = pytest.importorskip("langchain_core.documents")
    from mio_rag.adapters.langchain import SelectionCompressor

    given = [documents.Document(one.text, id=one.id, metadata={"source": one.source}) for one in passages]
    chooser = SelectionCompressor(budget=BUDGET, embedder=index.embedder)
    return "\n\n".join(one.page_content for one in chooser.compress_documents(given, QUESTION))


def by_llama_index(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    schema = pytest.importorskip("llama_index.core.schema")
    from mio_rag.adapters.llama_index import SelectionPostprocessor

    hidden = {"excluded_llm_metadata_keys": ["source"], "excluded_embed_metadata_keys": ["source"]}
    nodes = [
        schema.TextNode(text=one.text, id_=one.id, metadata={"source": one.source}, **hidden)
        for one in passages
    ]
    nodes = [schema.NodeWithScore(node=node) for node in nodes]
    chooser = SelectionPostprocessor(budget=BUDGET, embedder=index.embedder, source_key="source")
    return "\n\n".join(one.text for one in chooser.postprocess_nodes(nodes, query_str=QUESTION))


def by_haystack(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    haystack = pytest.importorskip("haystack")
    from mio_rag.adapters.haystack import SelectionRanker

    given = [haystack.Document(id=p.id, content=p.text, meta={"source_id": p.source}) for p in passages]
    found = SelectionRanker(budget=BUDGET, embedder=index.embedder).run(QUESTION, given)
    return "\n\n".join(one.content for one in found["documents"])


def by_dspy(folder: Path, index: CorpusIndex, passages: list[Passage]) -> str:
    pytest.importorskip("dspy")
    from mio_rag.adapters.dspy import SelectionModule

    module = SelectionModule(budget=BUDGET, embedder=index.embedder)
    given = [{"text": one.text, "source": one.source} for one in passages]
    return "\n\n".join(module(QUESTION, passages=given).passages)


DOORS = (
    by_command, by_ask, by_select, by_async, by_answer, by_store, by_http, by_mcp, by_langchain,
    by_llama_index, by_haystack, by_dspy,
)  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_every_door_reads_the_same_text(
    door: Callable[..., str], folder: Path, index: CorpusIndex, passages: list[Passage], wanted: Any
) -> None:
    assert door(folder, index, passages) == wanted.context


def test_batches_and_evaluations_read_the_same(folder: Path, wanted: Any) -> None:
    pytest.importorskip("pyarrow")
    units = {wanted.candidates.ids[i] for i in wanted.chosen}
    data = folder / "questions.jsonl"
    given = ["--model", "extract", "--budget", BUDGET]
    here("batch", "answer", folder / "index", data, "--out", folder / "batch", *given)
    row = json.loads((folder / "batch" / "answers.jsonl").read_text().splitlines()[0])
    assert {one["id"] for one in row["read"]} == units
    here("evaluate", folder / "index", "--questions", data, "--methods", "mio", "--budget", BUDGET,
         "--out", folder / "evaluation")  # fmt: skip
    row = json.loads((folder / "evaluation" / "rows.jsonl").read_text().splitlines()[0])
    assert {one["id"] for one in row["decisions"] if one["selected"]} == units


def test_a_filter_is_the_same_at_every_door(
    folder: Path, index: CorpusIndex, passages: list[Passage]
) -> None:
    where = {"source": "travel*"}
    found = Collection(index).select(QUESTION, budget=BUDGET, where=where)
    assert {part["source"] for part in found.parts} == {"travel-guide"}
    done = here("select", folder / "index", QUESTION, "--budget", BUDGET, "--json", "-w", "source=travel*")
    assert json.loads(done.stdout)["context"] == found.context
    out, data = folder / "filtered", folder / "questions.jsonl"
    given = ["--out", out, "--model", "extract", "--budget", BUDGET]
    here("batch", "answer", folder / "index", data, *given, "-w", "source=travel*")
    row = json.loads((out / "answers.jsonl").read_text().splitlines()[0])
    assert {one["id"] for one in row["read"]} == {found.candidates.ids[i] for i in found.chosen}
    allowed = {one.text for one in passages if one.source.startswith("travel")}
    documents = pytest.importorskip("langchain_core.documents")
    from mio_rag.adapters.langchain import SelectionCompressor

    given = [documents.Document(one.text, metadata={"source": one.source}) for one in passages]
    chooser = SelectionCompressor(budget=400, embedder=index.embedder, where=where, units="passages")
    assert {one.page_content for one in chooser.compress_documents(given, QUESTION)} <= allowed


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


def test_every_door_has_the_same_defaults() -> None:
    from mio_rag.assistants import FindContext
    from mio_rag.session.ask import ask

    assert defaults_of(select)["budget"] == DEFAULTS.budget
    assert defaults_of(select)["policy"] == DEFAULTS.policy
    assert defaults_of(Collection)["embedder"] == Building().embedder == DEFAULTS.embedder
    assert defaults_of(Collection)["policy"] == DEFAULTS.policy
    for function in (Collection.select, Collection.ask, ask):
        given = defaults_of(function)
        assert given.get("budget", given.get("budget_tokens")) == DEFAULTS.budget
    assert defaults_of(Collection.ask)["answer_tokens"] == defaults_of(ask)["max_tokens"] == DEFAULTS.answer
    assert FindContext(question="q").budget_tokens == DEFAULTS.budget
    policy = Policy.load(DEFAULTS.policy)
    assert (policy.limits.budget, policy.limits.max_tokens) == (DEFAULTS.budget, DEFAULTS.answer)
    assert policy.search.retrieval.pool == DEFAULTS.pool
    chosen = policy.selector(0.0, DEFAULT)
    for one in (DEFAULT, chosen, Selector()):
        assert one.units == DEFAULTS.units
    for one in (DEFAULT, chosen):
        assert one.options.time_limit_seconds == DEFAULTS.seconds
        assert one.options.relative_gap == DEFAULTS.gap


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("langchain", "SelectionCompressor"),
        ("llama_index", "SelectionPostprocessor"),
        ("haystack", "SelectionRanker"),
        ("dspy", "SelectionModule"),
    ],
)
def test_frameworks_have_the_same_defaults(module: str, name: str) -> None:
    kind = getattr(pytest.importorskip(f"mio_rag.adapters.{module}"), name)
    made = kind()
    assert made.budget == DEFAULTS.budget
    assert made.selector == DEFAULT
