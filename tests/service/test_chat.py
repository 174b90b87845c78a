"""Answers while they are written, and OpenAI's own client in front of a service."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("openai")

import openai
import uvicorn
from fastapi.testclient import TestClient

from mio_rag.generation import BaseGenerator, OpenAIGenerator, Prompt, ScriptedGenerator
from mio_rag.generation.base import telling, told_pieces
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.keys import Keys, new_key
from mio_rag.sources import Building, open_source
from mio_rag.types import Answer, GenerationError, Question
from tests.generation.faults import serving

QUESTION = "How tall is Skerryvore?"
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
PIECES = ["It is ", "48 ", "metres ", "tall."]


class Writer(BaseGenerator):
    """Writes its answer piece by piece, and waits in the middle until it may go on."""

    def __init__(self, fails: Exception | None = None, thinks: bool = False) -> None:
        super().__init__("writer", None, concurrency=8)
        self.go_on, self.fails, self.prompts = threading.Event(), fails, list[Prompt]()
        self._pieces = ["<th", "ink>Hm", "m</think>", *PIECES] if thinks else PIECES

    def _count(self, texts: list[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        self.prompts.append(prompt)
        tell = told_pieces()
        for k, piece in enumerate(self._pieces):
            if k == len(self._pieces) - 2:
                assert self.go_on.wait(20)
                if self.fails is not None:
                    raise self.fails
            if tell is not None:
                tell(piece)
        return Answer("".join(PIECES), self.prompt_tokens(prompt), 5, 0.0, self.name)


@contextmanager
def running(app: Any) -> Iterator[str]:
    """The base URL of a service that really listens."""
    config = uvicorn.Config(app, port=0, log_level="warning", http="mio_rag.service.edge:GuardedProtocol")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def connected() -> Iterator[Any]:
    """Makes OpenAI's client of a service."""
    with ExitStack() as stack:

        def made(app: Any, key: str = "none") -> Any:
            url = stack.enter_context(running(app))
            return stack.enter_context(openai.OpenAI(base_url=url, api_key=key, max_retries=0))

        yield made


def events(text: str) -> list[tuple[str, Any]]:
    """Name and data of each event."""
    found = []
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n", 1)
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


# -- /ask


def test_an_answer_is_sent_while_it_is_written(demo_index: CorpusIndex) -> None:
    import httpx

    writer = Writer(thinks=True)
    body = {"question": QUESTION, "stream": True, "deadline_seconds": 20}
    with running(create_app(demo_index, writer)) as url, httpx.Client(trust_env=False, timeout=30) as client:
        address = url.removesuffix("/v1") + "/ask"
        with client.stream("POST", address, json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            chunks, text = response.iter_text(), ""
            while PIECES[1] not in text:
                text += next(chunks)
            assert "metres " not in text
            writer.go_on.set()
            text += "".join(chunks)
        told = events(text)
        assert [data["text"] for name, data in told if name == "text"] == PIECES
        name, last = told[-1]
        whole = client.post(address, json={**body, "stream": False}).json()
        assert name == "done"
        assert (last["answer"], last["parts"]) == (whole["answer"], whole["parts"])


def test_what_fails_on_the_way_is_an_event_and_before_it_a_status(demo_index: CorpusIndex) -> None:
    writer = Writer(GenerationError("the model broke"))
    writer.go_on.set()
    with TestClient(create_app(demo_index, writer)) as client:
        got = client.post("/ask", json={"question": QUESTION, "stream": True, "deadline_seconds": 30})
        name, last = events(got.text)[-1]
        assert (got.status_code, name, last["error"]["message"]) == (200, "error", "the model broke")
        empty = client.post("/ask", json={"question": " ", "stream": True})
        assert (empty.status_code, empty.headers["content-type"]) == (400, "application/json")


@pytest.mark.parametrize("policy", [None, "balanced"])
def test_a_reader_that_cannot_stream_sends_one_piece(demo_index: CorpusIndex, policy: str | None) -> None:
    reader = ScriptedGenerator(lambda prompt: "48 metres")
    with TestClient(create_app(demo_index, reader, policy=policy)) as client:
        body = {"question": QUESTION, "stream": True, "deadline_seconds": 30}
        told = events(client.post("/ask", json=body).text)
    assert told[0] == ("text", {"text": "48 metres"})
    assert [name for name, _ in told] == ["text", "done"]


# -- /v1


def test_a_client_gets_a_selection_in_front_of_its_model(demo_index: CorpusIndex, connected: Any) -> None:
    writer = Writer()
    writer.go_on.set()
    client = connected(create_app(demo_index, writer))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello!"}]},
        {"role": "user", "content": QUESTION},
    ]
    options = {"mio_rag": {"budget_tokens": 200, "where": {"title": "Skerry*"}}}
    done = client.chat.completions.create(
        model="writer", messages=messages, max_tokens=30, temperature=0.3, extra_body=options
    )
    choice = done.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("".join(PIECES), "stop")
    [prompt] = writer.prompts
    roles = [one["role"] for one in prompt.messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert prompt.messages[0]["content"].startswith("Be brief.")
    assert "Skerryvore" in prompt.user
    assert prompt.user.endswith(QUESTION)
    assert done.usage.prompt_tokens == writer.prompt_tokens(prompt)
    assert done.usage.total_tokens == done.usage.prompt_tokens + 5
    more = done.model_extra["mio_rag"]
    assert more["tokens"] <= more["budget"] == 200
    assert all("Skerryvore" in part["section"][0] for part in more["parts"])
    assert set(more["citations"]) <= {part["n"] for part in more["parts"]}
    assert any("temperature has no effect" in note["text"] for note in more["notes"])


def test_a_client_reads_a_stream(demo_index: CorpusIndex, connected: Any) -> None:
    writer = Writer()
    writer.go_on.set()
    client = connected(create_app(demo_index, writer))
    stream = client.chat.completions.create(
        model="writer",
        messages=[{"role": "user", "content": QUESTION}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content] == PIECES
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].model_extra["mio_rag"]["parts"]
    assert chunks[-1].usage.completion_tokens == 5


def test_a_model_is_a_reader_by_a_policy(demo_index: CorpusIndex, connected: Any) -> None:
    readers = {name: ScriptedGenerator(lambda prompt, name=name: name) for name in ("large", "org/small")}
    client = connected(create_app(demo_index, readers))
    names = [model.id for model in client.models.list()]
    assert names[:3] == ["large", "org/small", "frugal/large"]
    assert "thorough/org/small" in names
    messages = [{"role": "user", "content": QUESTION}]
    read = {}
    for name in ("org/small", "frugal/org/small", "thorough/large"):
        done = client.chat.completions.create(model=name, messages=messages)
        assert done.choices[0].message.content == name.removeprefix("frugal/").removeprefix("thorough/")
        read[name] = done.model_extra["mio_rag"]["tokens"]
    assert read["frugal/org/small"] < read["thorough/large"]
    with pytest.raises(openai.NotFoundError, match="the model 'gpt-9' is unknown: choose large"):
        client.chat.completions.create(model="gpt-9", messages=messages)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n": 2, "messages": [{"role": "assistant", "content": "x"}]}, "n is not supported"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "the last message must be the user's"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url' cannot be read"),
        ({"extra_body": {"mio_rag": {"budget_tokens": 0}}}, "budget_tokens must be from 1 to 8192, got 0"),
        ({"extra_body": {"mio_rag": {"wher": "title=x"}}}, "mio_rag.wher is not a setting: did you mean"),
        ({"extra_body": {"where": "title=x"}}, 'where at the top level is not read: write "mio_rag": {'),
        ({"extra_body": {"budget_tokens": 99}}, "budget_tokens at the top level is not read"),
        ({"extra_body": {"temprature": 0.1}}, "did you mean 'temperature'?"),
        ({"extra_body": {"colour": "red"}}, "colour is no field of a chat request: leave it out."),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice is not supported"),
    ],
)
def test_what_a_client_cannot_have_is_refused_in_words(
    demo_index: CorpusIndex, connected: Any, given: dict[str, Any], words: str
) -> None:
    client = connected(create_app(demo_index, ScriptedGenerator({})))
    body = {"model": "scripted", "messages": [{"role": "user", "content": QUESTION}], **given}
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.chat.completions.create(**body)
    assert words in str(refused.value)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_documents_hardly_hold_says_so(
    tmp_path: Path, connected: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "leave.md").write_text("# Leave\n\nThere are thirty days of leave a year.\n")
    (tmp_path / "docs" / "rail.md").write_text("# Rail\n\nBook the train early.\n")
    index = open_source(tmp_path / "docs", Building("tfidf")).index
    client = connected(create_app(index, ScriptedGenerator(lambda prompt: "With flour.")))

    def asked(question: str) -> tuple[str, list[str]]:
        given = {"model": "scripted", "messages": [{"role": "user", "content": question}]}
        if not stream:
            done = client.chat.completions.create(**given)
            text, more = done.choices[0].message.content, done.model_extra["mio_rag"]
        else:
            chunks = list(client.chat.completions.create(**given, stream=True))
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            more = chunks[-1].model_extra["mio_rag"]
        return text, [note["code"] for note in more["notes"]]

    text, codes = asked("How do I bake bread without yeast at the train?")
    assert text.startswith("With flour.\n\nNote: these documents probably do not answer the question (")
    assert "answerable" in codes
    text, codes = asked("How many days of leave are there?")
    assert (text, "answerable" in codes) == ("With flour.", False)


def test_nothing_to_read_is_said_and_no_model_is_asked(demo_index: CorpusIndex, connected: Any) -> None:
    reader = ScriptedGenerator(lambda prompt: "from memory")
    client = connected(create_app(demo_index, reader, policy="frugal"))
    asked = {"model": "scripted", "messages": [{"role": "user", "content": "What is the capital of Peru?"}]}
    done = client.chat.completions.create(**asked)
    assert done.choices[0].message.content == "These documents probably do not answer the question."
    chunks = client.chat.completions.create(**asked, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == done.choices[0].message.content
    assert reader.prompts == []


def test_keys_and_their_budgets_hold_for_clients(
    demo_index: CorpusIndex, connected: Any, tmp_path: Path
) -> None:
    key, table = new_key("one")
    (tmp_path / "keys.toml").write_text(f"{table}per_user = {{ tokens = {{ day = 2000 }} }}\n")
    app = create_app(demo_index, ScriptedGenerator(lambda prompt: "48"), keys=Keys(tmp_path / "keys.toml"))
    client = connected(app, key)
    asked = {"model": "scripted", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 30}
    with pytest.raises(openai.BadRequestError, match="X-User"):
        client.chat.completions.create(**asked)
    with pytest.raises(openai.RateLimitError) as spent:
        [client.chat.completions.create(**asked, user="a") for _ in range(9)]
    assert spent.value.code == "budget_spent"
    assert int(spent.value.response.headers["retry-after"]) > 0
    assert client.chat.completions.create(**asked, user="b").choices


# -- streams of endpoints


def sse(*chunks: Any) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(c).encode() for c in chunks) + b"data: [DONE]\n\n"


def delta(**given: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": given, "finish_reason": None}]}


@pytest.mark.parametrize("streams", [True, False])
def test_an_endpoint_is_passed_on_piece_by_piece(streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mio_rag.generation.base._FIRST_SECONDS", 0.0)
    usage = {"prompt_tokens": 60, "completion_tokens": 4}

    def respond(path: str, body: Any) -> tuple[int, Any, dict[str, str]]:
        if not streams or not body.get("stream"):
            whole = {"choices": [{"message": {"content": "".join(PIECES)}}], "usage": usage}
            return 200, whole, {"Content-Type": "application/json"}
        thought = delta(role="assistant", reasoning_content="Hm")
        chunks = [thought, *(delta(content=piece) for piece in PIECES), {"choices": [], "usage": usage}]
        return 200, sse(*chunks), {"Content-Type": "text/event-stream"}

    prompt = Prompt(Question("q", QUESTION), (), "s", "u")
    with serving(respond) as server, OpenAIGenerator(server.url, "m") as reader:
        told: list[str] = []
        with telling(told.append):
            answer = reader.generate(prompt, max_tokens=9)
        assert answer.text == "".join(PIECES)
        assert (answer.prompt_tokens, answer.completion_tokens) == (60, 4)
        assert told == (PIECES if streams else [])
        assert reader.generate(prompt, max_tokens=9).text == answer.text


def test_an_endpoint_that_breaks_in_a_stream_is_not_asked_again() -> None:
    def respond(path: str, body: Any) -> tuple[int, Any, dict[str, str]]:
        if not path.endswith("/chat/completions"):
            return 404, {}, {}
        return (
            200,
            sse(delta(content="It is "), {"error": {"message": "overloaded"}}),
            {"Content-Type": "text/event-stream"},
        )

    with serving(respond) as server, OpenAIGenerator(server.url, "m") as reader:
        told: list[str] = []
        with telling(told.append), pytest.raises(GenerationError, match="overloaded"):
            reader.generate(Prompt(Question("q", QUESTION), (), "s", "u"), max_tokens=9)
        assert told == ["It is "]
        assert len(server.asked()) == 1
