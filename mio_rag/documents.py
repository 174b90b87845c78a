"""Folders of documents -> passages of whole sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mio_rag.corpus import Dataset
from mio_rag.errors import DataError, InputError, require
from mio_rag.types import Passage

__all__ = ["chunk_text", "load_folder"]


def chunk_text(text: str, max_words: int = 120, overlap_sentences: int = 0) -> list[str]:
    """Split text into chunks of whole sentences.

    Parameters
    ----------
    max_words : int
        Largest chunk, >= 1. A single longer sentence is cut at words.
    overlap_sentences : int
        How many sentences of a chunk the next one repeats, >= 0.
    """
    if max_words < 1 or overlap_sentences < 0:
        raise InputError(f"max_words={max_words} must be >= 1 and overlap_sentences={overlap_sentences} >= 0")
    chunks: list[str] = []
    current: list[str] = []
    fresh = 0
    for sentence in _sentences(text, max_words):
        if fresh and sum(len(s.split()) for s in current) + len(sentence.split()) > max_words:
            chunks.append(" ".join(current))
            current = current[-overlap_sentences:] if overlap_sentences else []
            while current and sum(len(s.split()) for s in current) + len(sentence.split()) > max_words:
                current.pop(0)
            fresh = 0
        current.append(sentence)
        fresh += 1
    if fresh:
        chunks.append(" ".join(current))
    return chunks


def _sentences(text: str, max_words: int) -> Iterator[str]:
    """Sentences, paragraph by paragraph; one of more words than a chunk holds comes in pieces."""
    segmenter = require("pysbd", "documents", "splitting documents into sentences").Segmenter(
        language="en", clean=False
    )
    for paragraph in re.split(r"\n\s*\n", text):
        whole = " ".join(paragraph.split())
        found = segmenter.segment(whole) if whole else []
        if " ".join(found).split() != whole.split():  # pysbd loses or cuts words around some signs
            found = re.split(r"(?<=[.!?]) ", whole)
        for sentence in found:
            words = sentence.split()
            yield from (" ".join(words[k : k + max_words]) for k in range(0, len(words), max_words))


def load_folder(folder: str | Path, max_words: int = 120) -> Dataset:
    """A corpus from the .txt, .md and .pdf files below a folder, in chunks of whole sentences.

    Ids are "relative/path#k" (PDF: "relative/path#page.k"), titles the file names, sources the relative
    paths.

    Raises
    ------
    DataError
        For files that cannot be read, or when there is no text.
    """
    folder = Path(folder)
    passages: list[Passage] = []
    problems: list[str] = []
    files = sorted(
        p for p in folder.rglob("*") if p.suffix.lower() in (".txt", ".md", ".pdf") and p.is_file()
    )
    for path in files:
        label = path.relative_to(folder).as_posix()
        try:
            pages = _pages(path)
        except DataError as error:
            problems += error.problems
            continue
        for prefix, text in pages:
            for k, chunk in enumerate(chunk_text(text, max_words)):
                passages.append(Passage(f"{label}#{prefix}{k}", chunk, title=path.stem, source=label))
    if problems:
        raise DataError(problems)
    if not passages:
        raise DataError(
            f"'{folder}' holds no text: expected corpus.jsonl[.gz], or .txt, .md or .pdf files with text"
        )
    return Dataset(folder.resolve().name, tuple(passages), ())


def _pages(path: Path) -> list[tuple[str, str]]:
    """(id prefix, text) for each page of a PDF, or for the whole text file."""
    if path.suffix.lower() != ".pdf":
        try:
            return [("", path.read_text(encoding="utf-8-sig"))]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error
    pypdf = require("pypdf", "documents", "reading PDF files")
    try:
        reader = pypdf.PdfReader(str(path))
        texts = [page.extract_text() for page in reader.pages]
    except Exception as error:  # on a damaged file pypdf raises whatever its parser stumbles over
        raise DataError(f"{path} cannot be read as a PDF ({type(error).__name__}: {error})") from error
    # Fonts without a proper map yield halves of surrogate pairs.
    return [(f"{k}.", text.encode("utf-8", "replace").decode()) for k, text in enumerate(texts, start=1)]
