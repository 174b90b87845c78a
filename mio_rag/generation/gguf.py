"""Language models in GGUF files, run in this process by llama.cpp (package `xllamacpp`).

The package holds llama.cpp's own server. Completions are direct calls; its tokenizer and chat template are
only reached over HTTP, on a free port of the loopback interface with a random key. Decoding is greedy. With
one slot an answer does not depend on what was asked before; with several, what prompts share is read once,
and rounding then depends on what was read before.
"""

from __future__ import annotations

import atexit
import json
import math
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.entries import unit_rows
from mio_rag.errors import InputError, require
from mio_rag.generation.base import BaseGenerator, Chosen, Pieces, option_logprobs, spoken, told_pieces
from mio_rag.generation.counters import ServerCounter
from mio_rag.generation.http import HttpFailure, JsonClient
from mio_rag.generation.protocol import LETTERS, Prompt
from mio_rag.storage import known_sha256_of
from mio_rag.types import Answer, GenerationError, clean

_CONTEXT = re.compile(rb"\.context_length(?:\x04\x00{3}(.{4})|\x0a\x00{3}(.{8}))", re.DOTALL)
_HEAD_BYTES = 1 << 20
_MAGIC = b"GGUF"
_SEEN = 64  # most probable tokens that are looked through for the letters of the options
_ONCE = 16  # texts of a call
#: What names of vectors of `HiddenStates` begin with.
PREFIX = "hidden:"


def trained_context(path: Path) -> int | None:
    """Tokens of the window that a model was trained for; None where the head of the file does not have it.

    Names, types (4: uint32, 10: uint64) and values stand in a row, those of the model's shape before the
    vocabulary (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
    """
    with path.open("rb") as stream:
        found = _CONTEXT.search(stream.read(_HEAD_BYTES))
    return None if found is None else int.from_bytes(found[1] or found[2], "little") or None


def model_file(path: str | Path) -> Path:
    """The file of a model; `InputError` where its name or its first bytes are not those of one."""
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

        told = {"model": known_sha256_of(self._file), "xllamacpp": version("xllamacpp"), "temperature": 0}
        told |= {"seed": self._seed, "threads": self._threads, "reuse": self._reuse}
        return json.dumps(told, sort_keys=True)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt, with the model's own chat template applied."""
        self._check_open()
        templated = self._call("POST", "/apply-template", {"messages": prompt.messages})["prompt"]
        return len(self._call("POST", "/tokenize", {"content": templated, "add_special": True})["tokens"])

    def _count(self, texts: list[str]) -> list[int]:
        return ServerCounter(lambda path, body: self._call("POST", path, body), "").count(texts)

    def write(self, prompt: Prompt, grammar: str, *, max_tokens: int) -> Answer:
        """Answer one prompt in words of a grammar, in GBNF."""
        self._check_fits(prompt, max_tokens)
        return self._generate(prompt, max_tokens, grammar=grammar)

    def _generate(self, prompt: Prompt, max_tokens: int, **options: Any) -> Answer:
        start, tell = time.perf_counter(), told_pieces()
        options |= {"max_tokens": max_tokens, "logprobs": True}
        if tell is None:
            reply = self._complete(prompt, **options)
        else:
            pieces = Pieces(tell)
            options |= {"stream": True, "stream_options": {"include_usage": True}}
            self._complete(prompt, pieces.hear, **options)
            reply = pieces.reply
        seconds = time.perf_counter() - start
        choice, usage = reply["choices"][0], reply["usage"]
        scored = (choice.get("logprobs") or {}).get("content")
        text = (choice["message"].get("content") or "").strip()
        logprobs = tuple(float(token["logprob"]) for token in scored) if scored else None
        said = Answer(text, usage["prompt_tokens"], usage["completion_tokens"], seconds, self.name, logprobs)
        return spoken(said, bool(choice["message"].get("reasoning_content")))

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

    def _at_rest(self) -> None:
        """Begin nothing more, and wait for what runs: llama.cpp must not be freed under it."""
        with self._ended:
            self._ending = True
            self._ended.wait_for(lambda: self._running == 0)

    def _close(self) -> None:
        self._at_rest()
        self._http.close()
        # Dropping the last reference makes llama.cpp's server stop its threads and free the model.
        self._server = None

    def _complete(self, prompt: Prompt, hear: Callable[[Any], Any] | None = None, **options: Any) -> Any:
        body = {"messages": prompt.messages, "temperature": prompt.temperature, "seed": self._seed}
        body |= {"cache_prompt": self._reuse, **options}
        with self._ended:
            server = self._server
            self._check_open(server is None or self._ending)
            self._running += 1
        try:
            reply = server.handle_chat_completions(body, *([] if hear is None else [hear]))
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
            why = f"llama.cpp's server did not answer {path}: {error}"
            raise GenerationError(why, untold=error.status is None) from error


#: An interpreter that ends while a daemon thread runs a completion would crash.
_OPEN: weakref.WeakSet[GGUFGenerator] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for one in list(_OPEN):
        one._at_rest()


def _among(choice: Mapping[str, Any], said: str, letters: str) -> float | None:
    """Probability of the letter said among all the letters; one too improbable to be listed counts as 0."""
    listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0]
    if "logprob" not in listed:
        return None
    top = listed.get("top_logprobs", ())
    logs = {t["token"]: float(t["logprob"]) for t in top if t["token"] in set(letters)}
    logs[said] = float(listed["logprob"])
    return math.exp(logs[said]) / sum(map(math.exp, logs.values()))


def _params(file: Path, threads: int, key: str) -> tuple[Any, Any]:
    """The package, and what every server is started with."""
    xllamacpp = require("xllamacpp", "gguf", "running a GGUF model")
    params, cpu = xllamacpp.CommonParams(), xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    params.model.path = str(file)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = -1  # silent: llama.cpp would write progress lines to stderr for each request
    params.api_keys = [key]
    params.ui = False
    # Finding out what fits on devices next to the processor reads the model's file once more.
    params.fit_params = any(one["type"] != cpu for one in xllamacpp.get_device_info())
    return xllamacpp, params


def _start(file: Path, n_ctx: int, threads: int, slots: int) -> tuple[Any, JsonClient]:
    key = secrets.token_urlsafe(24)
    xllamacpp, params = _params(file, threads, key)
    # llama.cpp makes room for all that is asked for, and no prompt may use more than the model knows.
    params.n_ctx = min(n_ctx, slots * (trained_context(file) or n_ctx))
    params.n_parallel = slots
    params.kv_unified = True  # every slot may take the whole window
    params.n_threads_http = 2
    params.endpoint_slots = False
    params.cache_prompt = slots > 1
    params.cache_ram_mib = 0
    server = _served(xllamacpp, params)
    return server, JsonClient(server.listening_address, key, local=True)


def _served(xllamacpp: Any, params: Any) -> Any:
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise GenerationError(
            f"llama.cpp cannot load {params.model.path} ({error}): the file may be cut short, too large for "
            "the memory, or of an architecture newer than the installed xllamacpp"
        ) from error


class HiddenStates:
    """Vectors of texts from a frozen GGUF model: the state after the last token, at unit length.

    path: a ``.gguf`` file.
    n_ctx: longest text in tokens; longer ones are refused by llama.cpp.

    Raises as `GGUFGenerator`.
    """

    def __init__(self, path: str | Path, n_ctx: int = 512) -> None:
        file = model_file(path)
        xllamacpp, params = _params(file, 1, secrets.token_urlsafe(24))
        self.name = f"{PREFIX}{file.name}"
        self.fingerprint = f"{PREFIX}{known_sha256_of(file)[:16]}"
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_parallel = 1
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
        self._server = _served(xllamacpp, params)
        self.encode(["."])  # a server that is dropped before it has served anything never ends

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Unit rows, shape (len(texts), d), float32.

        Raises `GenerationError` if the model refuses a text, for instance one that is too long.
        """
        rows: list[Any] = []
        for start in range(0, len(texts), _ONCE):
            given = [clean(text).strip() or " " for text in texts[start : start + _ONCE]]
            reply = self._server.handle_embeddings({"input": given})
            if "error" in reply:
                raise GenerationError(f"{self.name}: {reply['error'].get('message', reply['error'])}")
            rows += [entry["embedding"] for entry in sorted(reply["data"], key=lambda entry: entry["index"])]
            if progress is not None:
                progress(len(given))
        return np.asarray(unit_rows(rows), dtype=np.float32)
