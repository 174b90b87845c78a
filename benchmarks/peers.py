"""Pipelines of other libraries over a folder of documents: question and budget -> texts, best first.

Each with its own splitter and its defaults, on the text that our readers give, so that splitting and choosing
are compared and not PDF parsers; with our embedder and token budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.corpora.load import load_dataset
from mio_rag.errors import require
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.embedders import Embedder
from mio_rag.types import Passage

#: Question and budget -> texts, best first; the harness stops at the budget.
Peer = Callable[[str, int], Sequence[str]]


def texts_of(files: Path) -> dict[str, str]:
    """The text of each document, as its passages and the lines between them give it."""
    parts: dict[str, dict[int, str]] = {}
    for passage in load_dataset(files).passages:
        known = parts.setdefault(passage.source, {})
        known[passage.start or 0] = passage.text
        for line in passage.lines:
            known.setdefault(line.start, line.text)
    return {name: _joined(known) for name, known in parts.items()}


def _joined(parts: dict[int, str]) -> str:
    text, end = "", 0
    for start, part in sorted(parts.items()):
        if start + len(part) > end:
            text += ("\n" if text else "") + part[max(0, end - start) :]
            end = start + len(part)
    return text


def _split(files: Path, splitter: Any) -> list[tuple[str, str]]:
    parts = ((name, part) for name, text in texts_of(files).items() for part in splitter.split_text(text))
    return [(name, part) for name, part in parts if part.strip()]


def _search(chunks: Sequence[tuple[str, str]], embedder: Embedder, mode: str, work: Path) -> Peer:
    """Top-k over chunks (source, text)."""
    if (work / "manifest.json").is_file():
        index = CorpusIndex.load(work, embedder)
    else:
        passages = [Passage(str(k), text, source=source) for k, (source, text) in enumerate(chunks)]
        index = CorpusIndex.build(passages, embedder)
        index.save(work, overwrite=True)
    retriever = Retriever(index, mode="dense" if mode == "dense" else "fused", link_hops=0)

    def read(question: str, budget: int) -> Sequence[str]:
        pool = retriever.retrieve(question)
        order = np.argsort(-pool.scores[mode], kind="stable")
        return [pool.texts[i] for i in order]

    return read


def recursive(size: int, mode: str) -> Callable[[Path, Embedder, Path], Peer]:
    """LangChain's recursive splitter, chunks of `size` cl100k tokens with an eighth of overlap, and top-k."""

    def make(files: Path, embedder: Embedder, work: Path) -> Peer:
        splitters = require("langchain_text_splitters", "bench", "LangChain's splitter")
        splitter = splitters.RecursiveCharacterTextSplitter.from_tiktoken_encoder(
            "cl100k_base", chunk_size=size, chunk_overlap=size // 8, disallowed_special=()
        )
        chunks = _split(files, splitter)
        return _search(chunks, embedder, mode, work)

    return make


def llama_index(files: Path, embedder: Embedder, work: Path) -> Peer:
    """LlamaIndex's default: sentence splitter with chunks of 1,024 tokens, dense top-k."""
    node_parser = require("llama_index.core.node_parser", "llama-index", "LlamaIndex's splitter")
    splitter = node_parser.SentenceSplitter()
    return _search(_split(files, splitter), embedder, "dense", work)


def tokenpack(files: Path, embedder: Embedder, work: Path) -> Peer:
    """tokenpack-rag: its chunks for small budgets, its scores, and the strategy of its command."""
    pipeline = require("tokenpack.pipeline", "bench", "tokenpack-rag")
    scoring = require("tokenpack.scoring", "bench", "tokenpack-rag")
    selectors = require("tokenpack.selectors", "bench", "tokenpack-rag")
    texts = work / "texts"  # what our readers read of PDFs and pages, as text files
    texts.mkdir(parents=True, exist_ok=True)
    for k, (name, text) in enumerate(texts_of(files).items()):
        (texts / f"{k:04d}-{Path(name).stem}.txt").write_text(text, encoding="utf-8")
    model = _TokenpackEmbedder(embedder)
    sizes = {"target_tokens": 250, "min_tokens": 40, "max_tokens": 320}
    index = pipeline.ingest_path(texts, work / "index.json", model, **sizes)

    def read(question: str, budget: int) -> Sequence[str]:
        (query,) = model.embed([question])
        scored = scoring.score_chunks(query, index.chunks, index.embeddings, query_text=question)
        found = selectors.select_chunks(
            scored, "budget-top-k", budget, embeddings=index.embeddings, coverage_query=question
        )
        return [one.chunk.text for one in found.selected]

    return read


class _TokenpackEmbedder:
    def __init__(self, embedder: Embedder) -> None:
        self._embedder, self.model_name = embedder, embedder.name

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Vectors of texts as lists."""
        return [list(map(float, row)) for row in self._embedder.encode(texts)]


PEERS: dict[str, Callable[[Path, Embedder, Path], Peer]] = {
    "recursive400-dense": recursive(400, "dense"),
    "recursive400-fused": recursive(400, "fused"),
    "recursive200-fused": recursive(200, "fused"),
    "llama-index": llama_index,
    "tokenpack": tokenpack,
}
