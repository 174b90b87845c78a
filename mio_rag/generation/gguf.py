"""Language models in GGUF files, run in this process by llama.cpp (package `xllamacpp`).

The package holds llama.cpp's own server. Completions go to it by direct calls. Its tokenizer and chat
template can only be reached over HTTP, so the server also listens on a free port of the loopback interface; a
random key, made anew for each server, keeps everyone else out. Nothing leaves the machine.

Decoding is greedy, and by default no state is kept from one prompt to the next: an answer, and the time it
took, do not depend on what was asked before. With several slots the part that a prompt shares with an earlier
one is not read again. That halves the time of agents, and it costs this independence: rounding then depends
on what was read before, and now and then so does the wording of a reply.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import queue
import secrets
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from mio_rag.errors import InputError, require
from mio_rag.generation.base import BaseGenerator, Chosen, option_logprobs
from mio_rag.generation.http import HttpFailure, JsonClient
from mio_rag.generation.prompts import LETTERS, Prompt
from mio_rag.storage import known_sha256_of
from mio_rag.types import Answer, GenerationError

# By number of the type: how `struct` reads it. 8 is a string, 9 an array.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_LONGEST = 1 << 16  # bytes of a name


def trained_context(path: Path) -> int | None:
    """Tokens of the window that a model was trained for; None where the file does not say, or not legibly.

    Notes
    -----
    Names and values stand at the beginning of the file, those of the model's shape before the vocabulary
    (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Whether the file is sound is not checked.
    """
    try:
        with path.open("rb") as stream:
            return _found(stream)
    except (OSError, OverflowError, ValueError, struct.error):
        return None


def _found(stream: BinaryIO) -> int | None:
    stream.seek(4)
    version, _, count = _read(stream, "IQQ")
    if version not in _VERSIONS:
        return None
    known: dict[str, Any] = {}
    for _ in range(count):
        key = _text(stream)
        (kind,) = _read(stream, "I")
        if kind in _NUMBERS:
            (known[key],) = _read(stream, _NUMBERS[kind])
        elif kind == _STRING and key == "general.architecture":
            known[key] = _text(stream)
        else:
            _skip(stream, kind)
        window = known.get(f"{known.get('general.architecture')}.context_length")
        if window is not None:
            return window if isinstance(window, int) and window >= 1 else None
    return None


def _read(stream: BinaryIO, form: str) -> tuple[Any, ...]:
    layout = struct.Struct(f"<{form}")
    return layout.unpack(stream.read(layout.size))


def _text(stream: BinaryIO) -> str:
    (length,) = _read(stream, "Q")
    if length > _LONGEST:
        raise ValueError(f"a name of {length} bytes")
    return stream.read(length).decode()


def _skip(stream: BinaryIO, kind: int) -> None:
    if kind in _NUMBERS:
        stream.seek(struct.calcsize(f"<{_NUMBERS[kind]}"), os.SEEK_CUR)
    elif kind == _STRING:
        (length,) = _read(stream, "Q")
        stream.seek(length, os.SEEK_CUR)
    elif kind == _ARRAY:
        inner, length = _read(stream, "IQ")
        if inner in _NUMBERS:
            stream.seek(length * struct.calcsize(f"<{_NUMBERS[inner]}"), os.SEEK_CUR)
        elif inner == _STRING:
            for _ in range(length):
                _skip(stream, inner)
        else:
            raise ValueError(f"an array of type {inner}")
    else:
        raise ValueError(f"a value of type {kind}")


_MAGIC = b"GGUF"
# Below every level that llama.cpp logs at: it would write progress lines to stderr for each request.
_SILENT = -1
# Most probable tokens that are looked through for the letters of the options.
_SEEN = 64


def model_file(path: str | Path) -> Path:
    """The file of a model, once its name and its first bytes are found to be those of one."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"gguf:{path}: no such file; give the path of a GGUF model file")
    if file.suffix.lower() != ".gguf":
        raise InputError(f"gguf:{path}: the name ends with '{file.suffix}', a model file's with '.gguf'")
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic != _MAGIC:
        raise InputError(
            f"gguf:{path}: the file begins with {magic!r}, a GGUF file with {_MAGIC!r}: it is something else "
            "under that name, or a pointer left by an unfinished download"
        )
    return file


class GGUFGenerator(BaseGenerator):
    """A GGUF model on this machine.

    path: a ``.gguf`` file.
    n_ctx: context window in tokens, >= 1; the model's own is the upper limit. Memory grows with it, up to
        there.
    threads: CPU threads, >= 1. More than one helps only while that many cores are idle: llama.cpp's threads
        wait for each other, and on a busy machine two are several times slower than one.
    slots: how many prompts are remembered, >= 1. From 2 on, a prompt goes on from the remembered one that
        begins like it; prompts of one kind share their instructions, those of one question also what they
        read.
    seed: passed to the sampler; decoding is greedy, so it matters only to builds whose kernels draw from it.

    Raises `InputError` if the file is missing or is not GGUF, or a parameter is out of range;
    `GenerationError` if llama.cpp cannot load the model; `MissingExtraError` without the extra ``gguf``.
    """

    def __init__(
        self, path: str | Path, *, n_ctx: int = 4096, threads: int = 1, slots: int = 1, seed: int = 0
    ) -> None:
        file = model_file(path)
        for label, value in (("n_ctx", n_ctx), ("threads", threads), ("slots", slots)):
            if value < 1:
                raise InputError(f"{label}={value}: give at least 1")
        self._file, self._seed, self._threads, self._reuse = file, seed, threads, slots > 1
        self._running, self._ending, self._ended = 0, False, threading.Condition()
        self._server, self._http = _start(file, n_ctx, threads, slots)
        _OPEN.add(self)
        properties = self._call("GET", "/props")
        super().__init__(f"gguf:{file.name}", int(properties["default_generation_settings"]["n_ctx"]), slots)

    @cached_property
    def identity(self) -> str:
        """The model's file by its content, the version of llama.cpp, and how it decodes."""
        from importlib.metadata import version

        told = {
            "model": known_sha256_of(self._file),
            "xllamacpp": version("xllamacpp"),
            "temperature": 0,
            "seed": self._seed,
        }
        return json.dumps(told | {"threads": self._threads, "reuse": self._reuse}, sort_keys=True)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt, with the model's own chat template applied."""
        self._check_open()
        templated = self._call("POST", "/apply-template", {"messages": _messages(prompt)})["prompt"]
        return len(self._call("POST", "/tokenize", {"content": templated, "add_special": True})["tokens"])

    def _count(self, texts: list[str]) -> list[int]:
        # Control tokens spelled out in a text are parsed here because the server parses them in a prompt too.
        return [
            len(self._call("POST", "/tokenize", {"content": text, "add_special": False})["tokens"])
            for text in texts
        ]

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        return self._replied(prompt, max_tokens=max_tokens)

    def write(self, prompt: Prompt, grammar: str, *, max_tokens: int) -> Answer:
        """Answer one prompt in words of a grammar, in GBNF."""
        self._check_fits(prompt, max_tokens)
        return self._replied(prompt, max_tokens=max_tokens, grammar=grammar)

    def _replied(self, prompt: Prompt, **options: Any) -> Answer:
        start = time.perf_counter()
        reply = self._complete(prompt, logprobs=True, **options)
        seconds = time.perf_counter() - start
        choice, usage = reply["choices"][0], reply["usage"]
        scored = (choice.get("logprobs") or {}).get("content")
        return Answer(
            text=(choice["message"].get("content") or "").strip(),
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            latency_seconds=seconds,
            generator=self.name,
            logprobs=tuple(float(token["logprob"]) for token in scored) if scored else None,
        )

    def _choose(self, prompt: Prompt, choices: Sequence[str]) -> Chosen:
        # One pass: the grammar leaves the model no other token than one of the letters, and what the others
        # would have had is among the most probable tokens.
        letters = LETTERS[: len(choices)]
        grammar = f"root ::= [{letters[0]}-{letters[-1]}]"
        reply = self._complete(prompt, max_tokens=1, grammar=grammar, logprobs=True, top_logprobs=_SEEN)
        said = (reply["choices"][0]["message"].get("content") or "").strip()
        if len(said) != 1 or said not in letters:
            raise GenerationError(f"{self.name} replied {said!r} under a grammar of the letters {letters}")
        return letters.index(said), _among(reply["choices"][0], said, letters), None

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> tuple[float, ...]:
        """Natural-log probability that the reply begins with each option, upper and lower case alike.

        Summed over the 20 most likely first tokens; an option that is none of them gets the probability of
        the last of these, which bounds it from above.
        """
        self._check_fits(prompt, 1)
        reply = self._complete(prompt, max_tokens=1, logprobs=True, top_logprobs=20)
        scored = (reply["choices"][0].get("logprobs") or {}).get("content")
        if not scored:
            raise GenerationError(f"{self.name} gave no log-probabilities for its first token")
        likely = [(str(t["token"]), float(t["logprob"])) for t in scored[0]["top_logprobs"]]
        return option_logprobs(likely, options)

    def _stream(self, prompt: Prompt, max_tokens: int) -> Iterator[str]:
        pieces: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
        stopped = threading.Event()

        def receive(chunk: Any) -> bool:
            if "error" in chunk:
                pieces.put(GenerationError(f"{self.name}: {chunk['error'].get('message', chunk['error'])}"))
            for choice in chunk.get("choices", ()):
                if text := choice["delta"].get("content"):
                    pieces.put(text)
            return stopped.is_set()  # True ends the completion

        def run() -> None:
            try:
                self._complete(prompt, receive, max_tokens=max_tokens, stream=True)
                pieces.put(None)
            except BaseException as error:
                pieces.put(error)

        worker = threading.Thread(target=run, name="mio-rag-gguf-stream")
        worker.start()
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            # A reader that leaves early must not leave a completion running in a server that may be closed
            # next.
            stopped.set()
            worker.join()

    def _at_rest(self) -> None:
        """Begin nothing more, and wait for what somebody gave up on: llama.cpp must not be freed under it."""
        with self._ended:
            self._ending = True
            self._ended.wait_for(lambda: self._running == 0)

    def _close(self) -> None:
        self._at_rest()
        self._http.close()
        # Dropping the last reference makes llama.cpp's server stop its threads and free the model.
        self._server = None

    def _complete(self, prompt: Prompt, receive: Any = None, **options: Any) -> Any:
        body = {
            "messages": _messages(prompt),
            "temperature": 0,
            "seed": self._seed,
            "cache_prompt": self._reuse,
            **options,
        }
        with self._ended:
            server = self._server
            if server is None or self._ending:
                raise GenerationError(
                    f"the generator {self.name} is closed: make a new one with make_generator"
                )
            self._running += 1
        try:
            reply = (
                server.handle_chat_completions(body, receive)
                if receive
                else server.handle_chat_completions(body)
            )
        finally:
            with self._ended:
                self._running -= 1
                self._ended.notify_all()
        if isinstance(reply, dict) and "error" in reply:
            raise GenerationError(f"{self.name}: {reply['error'].get('message', reply['error'])}")
        return reply

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return self._http.request(method, path, body)
        except HttpFailure as error:
            raise GenerationError(
                f"llama.cpp's server did not answer {path}: {error}", untold=error.status is None
            ) from error


#: An interpreter that ends with a completion under way, in a thread that nobody waits for, dies of it.
_OPEN: weakref.WeakSet[GGUFGenerator] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for one in list(_OPEN):
        one._at_rest()


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]


def _among(choice: Mapping[str, Any], said: str, letters: str) -> float | None:
    """Probability of the letter said among all the letters; one too improbable to be listed counts as 0."""
    listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0]
    if "logprob" not in listed:
        return None
    top = listed.get("top_logprobs", ())
    logs = {t["token"]: float(t["logprob"]) for t in top if t["token"] in set(letters)}
    logs[said] = float(listed["logprob"])
    return math.exp(logs[said]) / sum(map(math.exp, logs.values()))


def has_devices(xllamacpp: Any) -> bool:
    """Whether there is anything beside the processor that layers of a model could be put on."""
    kinds = xllamacpp.ggml_backend_dev_type
    return any(one["type"] != kinds.GGML_BACKEND_DEVICE_TYPE_CPU for one in xllamacpp.get_device_info())


def _start(file: Path, n_ctx: int, threads: int, slots: int) -> tuple[Any, JsonClient]:
    xllamacpp = require("xllamacpp", "gguf", "running a GGUF model")
    key = secrets.token_urlsafe(24)
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    # llama.cpp makes room for all that is asked for, and no prompt may use more than the model knows.
    params.n_ctx = min(n_ctx, slots * (trained_context(file) or n_ctx))
    params.n_parallel = slots
    params.kv_unified = True  # every slot may take the whole window
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.verbosity = _SILENT
    params.api_keys = [key]
    params.n_threads_http = 2
    params.endpoint_slots = False
    params.ui = False
    params.cache_prompt = slots > 1
    params.cache_ram_mib = 0
    # Finding out what fits on devices reads the model's file once more.
    params.fit_params = has_devices(xllamacpp)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        raise GenerationError(
            f"llama.cpp cannot load {file} ({error}): the file may be cut short, too large for the memory, "
            "or of an architecture newer than the installed xllamacpp"
        ) from error
    return server, JsonClient(server.listening_address, key, local=True)
