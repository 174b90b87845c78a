"""Endpoints and their connections, against servers that speak the protocol, and llama.cpp's own."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from email.utils import formatdate
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

pytest.importorskip("httpx2")

from mio_rag.errors import Notice
from mio_rag.generation import OpenAIGenerator, build_prompt, make_generator
from mio_rag.generation.http import HttpFailure, JsonClient
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.ask import ask
from mio_rag.types import GenerationError, Passage, Question
from tests.generation.faults import Respond, Server, completion, serving, tokenized

MODEL = os.environ.get("MIO_RAG_TEST_GGUF", "")
PROMPT = build_prompt(Question("q", "Where is the tower?"), [Passage("p", "The tower stands in Paris.")])
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


class Serve(ExitStack):
    """Starts servers that are stopped when the test ends."""

    def __call__(self, respond: Any) -> Server:
        """Reply: a text, a body, or (status, body)."""

        def full(path: str, body: Any) -> tuple[int, Any, dict[str, str]]:
            made = respond(path, body)
            if isinstance(made, str):
                made = completion(made, USAGE)
            return (*made, {}) if isinstance(made, tuple) else (200, made, {})

        return self.enter_context(serving(full))


@pytest.fixture
def serve() -> Iterator[Serve]:
    with Serve() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_key_and_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("mio_rag.generation.base._FIRST_SECONDS", 0.0)


def test_an_answer_and_what_was_sent_for_it(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    scored = {"content": [{"token": "Paris", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    server = serve(lambda path, body: completion(" Paris\n", USAGE, logprobs=scored))
    with OpenAIGenerator(server.url, "m", logprobs=True) as generator:
        answer = generator.generate(PROMPT, max_tokens=7)
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens) == ("Paris", 11, 3)
    assert (answer.logprobs, answer.generator) == ((-0.5,), "openai:m")
    (body,) = server.asked()
    assert {one[2]["Authorization"] for one in server.requests} == {"Bearer secret"}
    assert (body["model"], body["temperature"], body["max_tokens"], body["logprobs"]) == ("m", 0, 7, True)
    assert [m["content"] for m in body["messages"]] == [PROMPT.system, PROMPT.user]


@pytest.mark.parametrize(
    ("refuse", "message"),
    [
        ("max_tokens", "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
        ("temperature", "'temperature' does not support 0: only the default (1) value is supported"),
        ("seed", "Unknown field: seed"),
    ],
)
def test_what_the_server_does_not_take_is_put_otherwise(serve: Serve, refuse: str, message: str) -> None:
    def respond(path: str, body: Any) -> Any:
        return (400, {"error": {"message": message}}) if refuse in body else "Paris"

    server = serve(respond)
    with OpenAIGenerator(server.url, "m") as generator:
        assert [generator.generate(PROMPT, max_tokens=7).text for _ in range(2)] == ["Paris", "Paris"]
    asked = server.asked()
    assert [refuse in body for body in asked] == [True, False, False]  # learned once
    assert asked[-1].get("max_completion_tokens", asked[-1].get("max_tokens")) == 7


@pytest.mark.parametrize(
    "content",
    [
        "<think>\nIn Lyon?\n</think>\n\nParis", "In Lyon?\n</think>Paris", "[THINK]In Lyon?[/THINK]Paris",
        [{"type": "thinking", "thinking": [{"text": "Lyon?"}]}, {"type": "text", "text": "Paris"}],
        ["Pa", {"type": "text", "text": "ris"}],
    ],
)  # fmt: skip
def test_thinking_is_not_the_answer(serve: Serve, content: Any) -> None:
    with OpenAIGenerator(serve(lambda path, body: completion(content, USAGE)).url, "m") as generator:
        assert generator.generate(PROMPT).text == "Paris"


@pytest.mark.parametrize("content", [None, "", "<think>In Lyon", [{"type": "thinking", "thinking": []}]])
def test_an_answer_that_thinking_left_no_room_for(serve: Serve, content: Any) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 7}
    server = serve(lambda path, body: completion(content, usage, finish_reason="length"))
    generator = OpenAIGenerator(server.url, "m")
    with generator, pytest.raises(GenerationError, match="cut off: 7 tokens went into thinking") as caught:
        generator.generate(PROMPT, max_tokens=7)
    assert caught.value.spent is not None
    assert (caught.value.spent.prompt_tokens, caught.value.spent.completion_tokens) == (11, 7)
    assert len(server.asked()) == 1  # the same would come again


def test_a_refusal_is_named_and_an_own_count_marked(serve: Serve) -> None:
    replies = [completion(None, USAGE, finish_reason="content_filter"), completion("Paris")]
    server = serve(lambda path, body: replies.pop(0) if path.endswith("/completions") else (404, {}))
    with OpenAIGenerator(server.url, "m") as generator:
        with pytest.raises(GenerationError, match="refuses to answer: its content filter") as refused:
            generator.generate(PROMPT)
        assert (refused.value.spent.prompt_tokens, refused.value.spent.estimated) == (11, False)
        assert generator.generate(PROMPT).estimated


@pytest.mark.parametrize(("said", "seconds"), [("7", 7), ("a day and hour", 7200), ("soon", None)])
def test_how_long_a_server_asks_to_wait(said: str, seconds: float | None) -> None:
    said = formatdate(time.time() + 7200, usegmt=True) if seconds == 7200 else said
    refusal = 429, {"error": {"message": "slow down"}}, {"Retry-After": said}
    with serving(lambda path, body: refusal) as server:
        reader = OpenAIGenerator(server.url, "m", retries=0)
        with reader, pytest.raises(GenerationError, match="slow down") as caught:
            reader.generate(PROMPT)
    told = caught.value.retry_after
    assert told == seconds if seconds is None else told == pytest.approx(seconds, abs=60)


def test_requests_in_flight_learn_of_a_renamed_parameter_each_for_itself(serve: Serve) -> None:
    both, renamed = Barrier(2), Event()

    def respond(path: str, body: Any) -> Any:
        if "chat" not in path:
            return 404, {}
        if "max_tokens" not in body:
            renamed.set()
            return "Paris"
        if both.wait(10):
            renamed.wait(10)  # until the other one has sent the new name
        return 400, {"error": {"message": "'max_tokens' is not supported: use 'max_completion_tokens'"}}

    with OpenAIGenerator(serve(respond).url, "m", concurrency=2, retries=0) as generator:
        results = generator.generate_many([PROMPT, build_prompt(Question("q", "Where?"))])
    assert [getattr(one, "text", one) for one in results] == ["Paris", "Paris"]


def test_an_estimate_does_not_overrule_what_the_server_reports(serve: Serve) -> None:
    replies = iter([(500, {"error": {"message": "busy"}}), completion("Paris", USAGE)])
    server = serve(lambda path, body: next(replies) if "chat" in path else (404, {}))
    with OpenAIGenerator(server.url, "m") as generator:
        with pytest.warns(Notice, match="approximate"):
            lost = generator.prompt_tokens(PROMPT)
        assert lost > USAGE["prompt_tokens"]
        assert generator.generate(PROMPT).prompt_tokens == lost + USAGE["prompt_tokens"]


def llama_cpp(path: str, body: dict[str, Any]) -> Any:
    if path == "/apply-template":
        return {"prompt": " ".join(["<s>", *(m["content"] for m in body["messages"])])}
    if path == "/tokenize":
        return {"tokens": tokenized(body.get("content", "")) + (["bos"] if body.get("add_special") else [])}
    return "Paris"


def test_the_server_s_own_tokenizer_counts(serve: Serve) -> None:
    server = serve(llama_cpp)
    generator = OpenAIGenerator(server.url, "m", window=1000)
    assert generator.count(["one two", "three", "one two"]) == [2, 1, 2]
    words = len(PROMPT.system.split()) + len(PROMPT.user.split())
    assert generator.prompt_tokens(PROMPT) == words + 2
    assert "/tokenize" in {path for path, *_ in server.requests}  # at the root, not under /v1
    asked = len(server.requests)
    assert generator.count([f"text {k}" for k in range(500)]) == [2] * 500
    assert len(server.requests) == asked + 1
    assert generator.count([f"text {k}" for k in range(500)]) == [2] * 500
    assert len(server.requests) == asked + 1  # by text


def test_a_question_is_counted_in_a_few_requests_and_once(serve: Serve, demo_index: CorpusIndex) -> None:
    server = serve(llama_cpp)
    with OpenAIGenerator(server.url, "m", window=4096) as generator:
        counted = []
        for question in (
            "How tall is Skerryvore?",
            "Who designed the Forth Bridge?",
            "How tall is Skerryvore?",
        ):
            before = len(server.requests)
            ask(demo_index, question, generator, budget_tokens=200)
            paths = [path for path, *_ in server.requests[before:]]
            counted.append(paths.count("/tokenize"))
    assert counted[0] <= 8  # how the server counts and what its template adds among them
    assert counted[1] <= 5
    assert counted[2] == 0


def test_without_a_tokenizer_counts_are_approximate_and_a_warning_names_the_ways_out(serve: Serve) -> None:
    server = serve(lambda path, body: "Paris" if "chat" in path else (404, {"error": "no such path"}))
    generator = OpenAIGenerator(server.url, "some-model", retries=0)
    with pytest.warns(Notice, match=r"'some-model'.*tokenizer=PATH_OR_HUB_ID.*tiktoken:ENCODING"):
        assert generator.count(["x y"]) == [2]
    assert generator.generate(PROMPT).text == "Paris"


def test_an_overloaded_server_is_not_taken_for_one_without_tokenizer(serve: Serve) -> None:
    busy = [True, True]
    server = serve(lambda path, body: (503, {}) if busy and busy.pop() else llama_cpp(path, body))
    generator = OpenAIGenerator(server.url, "gpt-4o", retries=0)
    with pytest.raises(GenerationError, match="cannot be counted"):
        generator.count(["one two"])
    busy.clear()
    assert generator.count(["one two"]) == [2]


def test_a_tokenizer_that_is_named_is_used(serve: Serve, tmp_path: Path) -> None:
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
    assert server.requests == []


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
        assert answer.prompt_tokens == generator.prompt_tokens(PROMPT)
        assert answer.logprobs is not None
        assert len(answer.logprobs) == answer.completion_tokens
        assert generator.count(["", "a"]) == [0, 1]
        assert [r.text for r in generator.generate_many([PROMPT, PROMPT], max_tokens=8)] == [answer.text] * 2


# -- one connection to a server in this process


def echo(path: str, body: Any) -> tuple[int, Any, dict[str, str]]:
    if path == "/html":
        return 200, b"<html>", {}
    if path == "/away":
        return 307, {}, {"Location": "/"}
    return {"/busy": 503, "/slow": 1}.get(path, 200), {"path": path, "body": body}, {}


@pytest.fixture
def local() -> Iterator[tuple[Server, JsonClient]]:
    with serving(echo) as server:
        client = JsonClient(server.address, "secret", 0.4, local=True)
        yield server, client
        client.close()


@pytest.mark.parametrize("how", [0, "close"])
def test_a_connection_that_the_server_let_go_is_opened_again(how: Any) -> None:
    dying = [how]

    def respond(path: str, body: Any) -> tuple[int, Any, dict[str, str]]:
        if dying and dying.pop() == 0:
            return 0, None, {}  # without a word, as a server does that is told to stop
        return 200, {"path": path}, {"Connection": "close"} if path == "/last" else {}

    respond_: Respond = respond
    with serving(respond_) as server:
        client = JsonClient(server.address, "secret", 5, local=True)
        assert client.request("GET", "/last" if how else "/")["path"]
        assert client.request("GET", "/")["path"] == "/"
        assert server.connections == 2
        client.close()


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/busy", 503, "HTTP 503"),
        ("/away", 307, "HTTP 307"),
        ("/html", 200, "not JSON: b'<html>'"),
        ("/slow", None, "timed out|within"),
    ],
)
def test_what_brings_no_json_in_time_fails(
    local: tuple[Server, JsonClient], path: str, status: int | None, why: str
) -> None:
    server, client = local
    with pytest.raises(HttpFailure, match=why) as found:
        client.request("GET", path)
    assert found.value.status == status
    assert len(server.requests) == 1
    assert client.request("GET", "/")["path"] == "/"  # and the client goes on
    client.close()
    with pytest.raises(HttpFailure, match="closed"):
        client.request("GET", "/")
