"""Folders and files of documents as data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mio_rag.corpora.dataset import Dataset
from mio_rag.documents.files import MAX_BYTES, LeftOut, Read, read_folder
from mio_rag.documents.passages import MAX_WORDS
from mio_rag.errors import DataError

_SHOWN = 10  # reasons listed before "and N more"


def load_folder(
    folder: str | Path,
    max_words: int = MAX_WORDS,
    *,
    follow_links: bool = False,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
    known: Mapping[str, Read] | None = None,
) -> Dataset:
    """A corpus from the documents below a folder, or from one file.

    Files that end with one of `mio_rag.documents.files.KINDS` are read; what else there is, and what cannot
    be read, is in `Dataset.left_out` with the reason. Passages are spans of the text that is made of a
    document: its headings, paragraphs, items, rows and lines of code, a line each. Ids are "relative/path#k",
    sources the relative paths, titles what the documents call themselves, otherwise their file names.

    max_words: words of a passage, about, >= 1; in scripts without blanks 1.7 characters are a word.
    follow_links: read what symbolic links out of the folder lead to. A file is read once, however many links
        there are.
    max_bytes: largest file that is read, >= 1.
    progress: told how many files are done, of how many.
    known: what was read of unchanged files, by their paths below the folder: they are not read again.

    Raises `DataError` if nothing can be read, with the reasons.
    Raises `MissingExtraError` if there are files that need a package which is not installed.
    """
    read = read_folder(
        folder, max_words, follow_links=follow_links, max_bytes=max_bytes, progress=progress, known=known
    )
    if not read.passages:
        _refuse(f"'{folder}'", read.left_out)
    return Dataset(Path(folder).resolve().name, read.passages, (), left_out=read.left_out)


def _refuse(what: str, left_out: tuple[LeftOut, ...]) -> None:
    reasons = [f"{one.path}: {one.reason}" for one in left_out[:_SHOWN]]
    more = [f"and {len(left_out) - _SHOWN} more"] if len(left_out) > _SHOWN else []
    expected = (
        "corpus.jsonl[.gz], or files with text (.pdf, .html, .docx, .xlsx, .pptx, .md, .txt, .csv and code)"
    )
    raise DataError([f"{what} holds no text that can be read: expected {expected}", *reasons, *more])
