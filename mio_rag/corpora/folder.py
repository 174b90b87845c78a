"""Folders and files of documents as data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mio_rag.corpora.dataset import Dataset, shortened
from mio_rag.documents.blocks import MAX_WORDS
from mio_rag.documents.files import MAX_BYTES, Read, read_folder
from mio_rag.errors import DataError


def load_folder(
    folder: str | Path,
    max_words: int = MAX_WORDS,
    *,
    follow_links: bool = False,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
    known: Mapping[str, Read] | None = None,
) -> Dataset:
    """Return a corpus of the documents below a folder, or of one file.

    Files that end with one of `mio_rag.documents.files.KINDS` are read; what else there is, and what cannot
    be read, is in `Dataset.left_out` with the reason. Passages are spans of a document's text. Ids are
    "relative/path#k", sources the relative paths, titles those of the documents, otherwise their file names.

    max_words: words of a passage, about, >= 1; in scripts without blanks 1.7 characters are a word.
    follow_links: read what symbolic links out of the folder lead to; every file once.
    max_bytes: largest file that is read, >= 1.
    progress: called with (files done, files in all).
    known: what was read of unchanged files, by their paths below the folder: they are not read again.

    Raises `DataError` with the reasons if nothing can be read; `MissingExtraError` if there are files that
    need a package which is not installed.
    """
    read = read_folder(
        folder, max_words, follow_links=follow_links, max_bytes=max_bytes, progress=progress, known=known
    )
    if not read.passages:
        kinds = ".pdf, .html, .docx, .xlsx, .pptx, .md, .txt, .csv and code"
        expected = f"expected corpus.jsonl[.gz], or files with text ({kinds})"
        reasons = shortened([f"{one.path}: {one.reason}" for one in read.left_out])
        raise DataError([f"'{folder}' holds no text that can be read: {expected}", *reasons])
    return Dataset(Path(folder).resolve().name, read.passages, (), left_out=read.left_out)
