"""The OpenAI client against real servers: a small one that speaks the protocol, and llama.cpp's own."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.generation import OpenAIGenerator, build_prompt, make_generator
from mio_rag.types import Answer, GenerationError, Passage, Question

pytest.importorskip("httpx2")

MODEL = os.environ.get("MIO_RAG_TEST_GGUF", "")
PROMPT = build_prompt(Question("q", "Where is the tower?"), [Passage("p", "The tower stands in Paris.")])
Reply = tuple[int, Any]


def completion(text: str, **extra: Any) -> Reply:
    message = {"role": "assistant", "content": text}
    return 200, {
        "id": "1", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message, **extra}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
    }  # fmt: skip


class Server:
    """Answers by a function of path and body; keeps what it was sent and how many requests ran at once."""

    def __init__(self, respond: Callable[[str, dict[str, Any]], Reply]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []
        self.running = self.most = 0
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.paths.append(self.path)
                    if self.path.endswith("/chat/completions"):
                        outer.bodies.append(body)
                        outer.keys.append(self.headers.get("Authorization"))
                    outer.running += 1
                    outer.most = max(outer.most, outer.running)
                try:
                    status, reply = respond(self.path, body)
                finally:
                    with lock:  # before the reply leaves: the client may ask again the moment it arrives
                        outer.running -= 1
                try:
                    streamed = isinstance(reply, str)
                    raw = reply.encode() if streamed else json.dumps(reply).encode()
                    self.send_response(status)
                    self.send_header("Content-Type", "text/event-stream" if streamed else "application/json")
                    self.send_header("Content-Length", str(len(raw)))
                    self.end_headers()
                    self.wfile.write(raw)
                except OSError:
                    pass  # the client has given up, as the test wants it to

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(respond: Callable[[str, dict[str, Any]], Reply]) -> Server:
        started.append(Server(respond))
        return started[-1]

    yield start
    for server in started:
        server.server.shutdown()
        server.server.server_close()


@pytest.fixture(autouse=True)
def _no_key_and_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("mio_rag.generation.base._FIRST_SECONDS", 0.0)


def test_an_answer_and_what_was_sent_for_it(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    scored = {"content": [{"token": "Paris", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    server = serve(lambda path, body: completion(" Paris\n", logprobs=scored))
    with OpenAIGenerator(server.url, "m", logprobs=True) as generator:
        answer = generator.generate(PROMPT, max_tokens=7)
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens) == ("Paris", 11, 3)
    assert answer.logprobs == (-0.5,)
    assert answer.generator == "openai:m"
    (body,) = server.bodies
    assert server.keys == ["Bearer secret"]
    assert (body["model"], body["temperature"], body["max_tokens"], body["logprobs"]) == ("m", 0, 7, True)
    assert [m["content"] for m in body["messages"]] == [PROMPT.system, PROMPT.user]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failure_that_passes_is_retried(serve: Callable[..., Server], status: int) -> None:
    left = [status, status]
    server = serve(
        lambda path, body: (left.pop(), {"error": "busy"}) if left and "chat" in path else completion("Paris")
    )
    assert OpenAIGenerator(server.url, "m", retries=2).generate(PROMPT).text == "Paris"
    assert len(server.bodies) == 3


def test_a_refused_request_is_not_retried(serve: Callable[..., Server]) -> None:
    server = serve(lambda path, body: (401, {"error": {"message": "bad key"}}))
    with pytest.raises(GenerationError, match="OPENAI_API_KEY"):
        OpenAIGenerator(server.url, "m").generate(PROMPT)
    assert len(server.bodies) == 1


def test_a_slow_server_times_out(serve: Callable[..., Server]) -> None:
    release = threading.Event()

    def respond(path: str, body: dict[str, Any]) -> Reply:
        release.wait(30)
        return completion("late")

    server = serve(respond)
    try:
        with pytest.raises(GenerationError, match=r"within 0\.2 s.*timeout_seconds"):
            OpenAIGenerator(server.url, "m", timeout_seconds=0.2, retries=0).generate(PROMPT)
    finally:
        release.set()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_is_down() -> None:
    generator = OpenAIGenerator(f"http://127.0.0.1:{closed_port()}/v1", "m", retries=0)
    with pytest.raises(GenerationError, match="cannot be reached"):
        generator.generate(PROMPT)
    with pytest.raises(GenerationError, match="cannot be reached"):
        list(generator.stream(PROMPT))
    with pytest.raises(GenerationError, match=r"cannot be counted.*cannot be reached"):
        generator.count(["x"])
    assert all(isinstance(r, GenerationError) for r in generator.generate_many([PROMPT, PROMPT]))


def test_many_are_bounded_in_number_and_keep_their_order(serve: Callable[..., Server]) -> None:
    def respond(path: str, body: dict[str, Any]) -> Reply:
        asked = body["messages"][1]["content"].split("Question: ")[1].split("\n")[0]
        time.sleep(
            0.05 if asked == "0" else 0.02
        )  # so that requests overlap, and the first is not the first done
        return (400, {"error": {"message": "no"}}) if asked == "3" else completion(asked)

    server = serve(respond)
    prompts = [build_prompt(Question(str(i), str(i))) for i in range(12)]
    results = OpenAIGenerator(server.url, "m", concurrency=3).generate_many(prompts)
    assert isinstance(results[3], GenerationError)
    assert [r.text for r in results if isinstance(r, Answer)] == [str(i) for i in range(12) if i != 3]
    assert 2 <= server.most <= 3


def test_many_inside_a_running_event_loop(serve: Callable[..., Server]) -> None:
    server = serve(lambda path, body: completion("Paris"))
    generator = OpenAIGenerator(server.url, "m")

    async def notebook() -> list[Answer | GenerationError]:
        return generator.generate_many([PROMPT, PROMPT])

    assert [r.text for r in asyncio.run(notebook()) if isinstance(r, Answer)] == ["Paris", "Paris"]


def test_streaming(serve: Callable[..., Server]) -> None:
    def chunk(text: str) -> str:
        delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        return (
            "data: " + json.dumps({"id": "1", "object": "chat.completion.chunk", "choices": [delta]}) + "\n\n"
        )

    server = serve(lambda path, body: (200, chunk("Pa") + chunk("") + chunk("ris") + "data: [DONE]\n\n"))
    assert list(OpenAIGenerator(server.url, "m").stream(PROMPT)) == ["Pa", "ris"]
    assert server.bodies[0]["stream"] is True


def test_choose_reads_the_letter(serve: Callable[..., Server]) -> None:
    server = serve(lambda path, body: completion("B. Paris"))
    assert OpenAIGenerator(server.url, "m").choose(PROMPT, ["Rome", "Paris"]) == 1
    assert "B. Paris" in server.bodies[0]["messages"][1]["content"]


def llama_cpp(path: str, body: dict[str, Any]) -> Reply:
    if path == "/apply-template":
        return 200, {"prompt": " ".join(["<s>", *(m["content"] for m in body["messages"])])}
    if path == "/tokenize":
        return 200, {"tokens": body.get("content", "").split() + (["bos"] if body.get("add_special") else [])}
    return completion("Paris")


def vllm(path: str, body: dict[str, Any]) -> Reply:
    if path != "/tokenize":
        return completion("Paris")
    if "messages" in body:
        return 200, {"count": 42, "tokens": [0] * 42}
    if "prompt" not in body:
        return 400, {"error": "prompt is required"}
    return 200, {"count": len(body["prompt"]), "tokens": list(range(len(body["prompt"])))}


def test_the_server_s_own_tokenizer_counts(serve: Callable[..., Server]) -> None:
    server = serve(llama_cpp)
    generator = OpenAIGenerator(server.url, "m", window=1000)
    assert generator.count(["one two", "three", "one two"]) == [2, 1, 2]
    words = len(PROMPT.system.split()) + len(PROMPT.user.split())
    assert generator.prompt_tokens(PROMPT) == words + 2
    assert "/tokenize" in server.paths  # at the root of the server, not under /v1
    other = OpenAIGenerator(serve(vllm).url, "m")
    assert other.count(["abc"]) == [3]
    assert other.prompt_tokens(PROMPT) == 42


def test_the_window_refuses_before_the_model_is_called(serve: Callable[..., Server]) -> None:
    server = serve(llama_cpp)
    with pytest.raises(GenerationError, match="window"):
        OpenAIGenerator(server.url, "m", window=20).generate(PROMPT)
    assert "/v1/chat/completions" not in server.paths


def test_no_tokenizer_is_an_error_that_names_the_ways_out(serve: Callable[..., Server]) -> None:
    server = serve(
        lambda path, body: completion("Paris") if "chat" in path else (404, {"error": "no such path"})
    )
    generator = OpenAIGenerator(server.url, "some-model", retries=0)
    with pytest.raises(GenerationError, match=r"tokenizer=PATH_OR_HUB_ID.*tiktoken:ENCODING"):
        generator.count(["x"])
    assert generator.generate(PROMPT).text == "Paris"  # answering needs no count


def test_an_overloaded_server_is_not_taken_for_one_without_tokenizer(serve: Callable[..., Server]) -> None:
    busy = [True, True]
    server = serve(lambda path, body: (503, {}) if busy and busy.pop() else llama_cpp(path, body))
    generator = OpenAIGenerator(server.url, "gpt-4o", retries=0)
    with pytest.raises(GenerationError, match="cannot be counted"):
        generator.count(["one two"])
    busy.clear()
    assert generator.count(["one two"]) == [2]


def test_a_tokenizer_that_is_named_is_used(serve: Callable[..., Server], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    core = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>").save_pretrained(tmp_path)
    server = serve(llama_cpp)
    generator = make_generator(f"openai:{server.url}#org/m:x?tokenizer={tmp_path}&window=500&logprobs=0")
    assert generator.count(["one two  three"]) == [3]
    assert generator.prompt_tokens(PROMPT) == len(PROMPT.system.split()) + len(PROMPT.user.split())
    assert (generator.name, generator.context_window) == ("openai:org/m:x", 500)
    assert server.paths == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("openai:http://h/v1", "no model"),
        ("openai:http://h/v1#?window=5", "no model"),
        ("openai:localhost:80#m", "not an address"),
        ("openai:ftp://h#m", "not an address"),
        ("openai:http://h/v1#m?windw=5", "no option 'windw'"),
        ("openai:http://h/v1#m?window=big", "not of type int"),
        ("openai:http://h/v1#m?concurrency=0", "concurrency=0"),
        ("openai:http://h/v1#m?tokenizer=/no/such/folder", "no folder"),
        ("openai:http://h/v1#m?tokenizer=tiktoken:nonsense", "tiktoken has"),
    ],
)
def test_malformed_specs(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_generator(spec)


def test_keywords_win_over_the_spec() -> None:
    assert make_generator("openai:http://h/v1#m?window=5", window=7).context_window == 7


@pytest.mark.gguf
@pytest.mark.skipif(not MODEL, reason="MIO_RAG_TEST_GGUF names no GGUF file")
def test_against_llama_cpp_s_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.verbosity, params.api_keys = MODEL, 1024, -1, ["k"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with make_generator(f"openai:{server.listening_address}/v1#any?window=1024&logprobs=1") as generator:
        answer = generator.generate(PROMPT, max_tokens=8)
        assert "Paris" in answer.text
        assert answer.prompt_tokens == generator.prompt_tokens(PROMPT)
        assert answer.logprobs is not None
        assert len(answer.logprobs) == answer.completion_tokens
        assert generator.count(["", "a"]) == [0, 1]
        assert "".join(generator.stream(PROMPT, max_tokens=8)).strip() == answer.text
        assert [r.text for r in generator.generate_many([PROMPT, PROMPT], max_tokens=8)] == [answer.text] * 2
