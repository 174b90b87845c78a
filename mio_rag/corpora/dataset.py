"""A corpus with questions, and how one is made of a folder of documents."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mio_rag.documents.blocks import MAX_WORDS
from mio_rag.documents.files import MAX_BYTES, LeftOut, Read, read_folder
from mio_rag.errors import DataError
from mio_rag.types import Passage, Question, is_text

_SHOWN = 10  # problems of one kind that are listed

#: Ends the message about a set without questions.
NEEDS_QUESTIONS = (
    """it needs questions.jsonl[.gz], a line each: {"id": "1", "question": "...", "answers": ["..."]}"""
)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A corpus and its questions.

    passages: unique ids, at least one.
    questions: may be empty; gold ids refer to passages of the corpus, gold sources to their sources.
    closed_book: there is no corpus: the questions are asked of what a model knows by itself.
    unlisted: the corpus is a store, whose passages are not listed here, so that gold ids cannot be checked.
    left_out: files of a folder of documents that are not in the corpus, and why.

    Raises `DataError` for an empty corpus, repeated ids, or gold passages or documents that are not in the
    corpus.
    """

    name: str
    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
    closed_book: bool = False
    left_out: tuple[LeftOut, ...] = ()
    unlisted: bool = False

    def __post_init__(self) -> None:
        problems: list[str] = []
        if self.closed_book and self.passages:
            problems.append(f"'{self.name}' is closed book but has {len(self.passages)} passages: choose one")
        if not self.passages and not self.closed_book and not self.unlisted:
            problems.append(f"the corpus of '{self.name}' is empty: it needs at least one passage")
        for what, items in (("passage", self.passages), ("question", self.questions)):
            counts = Counter(item.id for item in items)
            repeated = [i for i, count in counts.items() if count > 1]
            problems += [
                f"{what} id '{i}' occurs more than once: ids must be unique" for i in repeated[:_SHOWN]
            ]
        broken = [f"passage {p.id!a}" for p in self.passages if not is_text(p.id, p.title, p.text, p.source)]
        broken += [
            f"question {q.id!a}" for q in self.questions if not is_text(q.id, q.text, *q.answers, *q.choices)
        ]
        problems += [
            f"{what} contains half of a surrogate pair, which is not a character: correct its text"
            for what in broken[:_SHOWN]
        ]
        ids, sources = {p.id for p in self.passages}, {p.source for p in self.passages}
        unknown = [(q, "passage", g) for q in self.questions for g in q.gold_ids if g not in ids]
        unknown += [(q, "document", g) for q in self.questions for g in q.gold_sources if g not in sources]
        unknown = [] if self.unlisted else unknown
        unread = {one.path: f", since it was not read: {one.reason}" for one in self.left_out}
        problems += [
            f"question '{q.id}' names gold {what} '{g}', which is not in the corpus{unread.get(g, '')}"
            for q, what, g in unknown[:_SHOWN]
        ]
        if len(unknown) > _SHOWN:
            problems.append(f"and {len(unknown) - _SHOWN} more unknown gold ids")
        if problems:
            raise DataError(problems)

    def content_hash(self) -> str:
        """Return SHA-256 over every passage and question: what a result was measured on."""
        digest = hashlib.sha256()
        for p in self.passages:
            known = [] if p.start is None else [p.start]
            row = [p.id, p.title, p.text, p.source, *known, *filter(None, [p.date])]
            digest.update(json.dumps(row).encode())
        for q in self.questions:
            told = [*q.evidence, *filter(None, [q.conversation])]
            labels = [q.answers, q.gold_ids, q.gold_sources, q.choices, q.type, *told]
            digest.update(json.dumps([q.id, q.text, *labels]).encode())
        return digest.hexdigest()


def shortened(problems: Sequence[str]) -> list[str]:
    """Return the first ten problems, and how many more there are."""
    more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    return [*problems[:_SHOWN], *more]


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
