"""Folders of documents -> passages of whole sentences."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from mio_rag.corpora.dataset import Dataset, LeftOut
from mio_rag.corpora.files import KINDS, read_document
from mio_rag.errors import DataError, InputError, require
from mio_rag.types import Passage, is_text

#: Largest file that is read, unless said otherwise.
MAX_BYTES = 100_000_000
_SHOWN = 10  # reasons listed before "and N more"
_LONG = 4000  # characters: the splitter takes time quadratic in them
#: What begins a line of its own in Markdown: a heading, a row of a table, an item of a list.
_LINE = re.compile(r"\s*(#{1,6}\s|\||[-*+\u2022]\s|\d{1,3}[.)]\s)")


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
    return [chunk for _, chunk in _placed_chunks(text, max_words, overlap_sentences)]


def _placed_chunks(text: str, max_words: int, overlap_sentences: int) -> Iterator[tuple[int, str]]:
    """Chunks, and where each begins in the text with its white space collapsed."""
    current: list[str] = []  # each with the white space before it
    fresh = end = 0  # sentences that no chunk holds yet; characters up to here, each sentence with a space
    for sentence in _sentences(text, max_words):
        if fresh and sum(len(s.split()) for s in current) + len(sentence.split()) > max_words:
            chunk = "".join(current)[1:]
            yield end - len(chunk) - 1, chunk
            current = current[-overlap_sentences:] if overlap_sentences else []
            while current and sum(len(s.split()) for s in current) + len(sentence.split()) > max_words:
                current.pop(0)
            fresh = 0
        current.append(sentence)
        end += len(sentence)
        fresh += 1
    if fresh:
        chunk = "".join(current)[1:]
        yield end - len(chunk) - 1, chunk


def _sentences(text: str, max_words: int) -> Iterator[str]:
    """Sentences, block by block, each behind a space, or a new line where a block is one of its own.

    One of more words than a chunk holds comes in pieces.
    """
    segmenter = require("pysbd", "documents", "splitting documents into sentences").Segmenter(
        language="en", clean=False
    )
    for before, block in _blocks(text):
        for piece in _pieces(block):
            # One word longer than a piece is no text, and the splitter would take minutes over it.
            found = [piece] if len(piece) > _LONG else segmenter.segment(piece)
            if " ".join(found).split() != piece.split():  # pysbd loses or cuts words around some signs
                found = re.split(r"(?<=[.!?]) ", piece)
            for sentence in found:
                words = sentence.split()
                for k in range(0, len(words), max_words):
                    yield before + " ".join(words[k : k + max_words])
                    before = " "


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Paragraphs, headings, rows of tables and items of lists, white space collapsed, and what stands before.

    A heading, a row and an item begin a line; so does what follows a heading, a row, or a list. Other lines
    are wrapped text, as in most files, and are joined.
    """
    after = False  # a line, or a list, that nothing goes on with
    for paragraph in re.split(r"\n\s*\n", text):
        lines: list[str] = []
        before, own = "\n" if after else " ", False
        after = False
        for line in paragraph.splitlines():
            begins = _LINE.match(line)
            if (begins or after) and lines:
                yield before, " ".join(" ".join(lines).split())
                lines = []
            if begins or after:
                before, own = "\n", begins is not None
            after = begins is not None and begins[1][0] in "#|"
            lines.append(line)
        if joined := " ".join(" ".join(lines).split()):
            yield before, joined
        after = after or own


def _pieces(text: str) -> Iterator[str]:
    """A long paragraph in pieces that end where a sentence may end, otherwise between words."""
    start = 0
    while len(text) - start > _LONG:
        end = start + _LONG
        ends = [text.rfind(sign, start + _LONG // 2, end) + 1 for sign in (". ", "! ", "? ")]
        cut = max(ends) or text.rfind(" ", start, end)
        if cut < 0:  # one word longer than a piece
            cut = text.find(" ", end)
        if cut < 0:
            break
        yield text[start:cut]
        start = cut + 1
    if text[start:]:
        yield text[start:]


def load_folder(
    folder: str | Path,
    max_words: int = 120,
    *,
    overlap_sentences: int = 0,
    follow_links: bool = False,
    max_bytes: int = MAX_BYTES,
) -> Dataset:
    """A corpus from the documents below a folder, or from one file, in chunks of whole sentences.

    Files that end with .txt, .md, .pdf, .docx, .html or .htm are read. Whatever else there is, and whatever
    cannot be read, is in `Dataset.left_out` with the reason. Ids are "relative/path#k" (PDF:
    "relative/path#page.k"), sources the relative paths. Titles are those that DOCX and HTML files give
    themselves, the first heading of a Markdown file, a short first line of a text file that stands alone (it
    stays in the text), otherwise the file names. The head of other texts does not repeat its title. Offsets
    count the characters of a document with its white space collapsed, the pages of a PDF one after another.

    Parameters
    ----------
    max_words : int
        Largest chunk, >= 1.
    overlap_sentences : int
        How many sentences of a chunk the next one repeats, >= 0. What is repeated is read once.
    follow_links : bool
        Read what symbolic links out of the folder lead to. A file is read once, however many links there are.
    max_bytes : int
        Largest file that is read, >= 1.

    Raises
    ------
    DataError
        If nothing can be read, with the reasons.
    MissingExtraError
        If there are files that need a package which is not installed.
    """
    if max_bytes < 1:
        raise InputError(f"max_bytes={max_bytes} must be >= 1")
    folder = Path(folder)
    passages: list[Passage] = []
    files, left_out = {folder.name: folder}, list[LeftOut]()
    if not folder.is_file():
        tree = _Tree(folder, follow_links)
        files, left_out = tree.files, tree.left_out
    for label, path in sorted(files.items()):
        try:
            document = read_document(path, max_bytes)
        except DataError as error:
            left_out.append(LeftOut(label, str(error)))
            continue
        left_out += [LeftOut(f"{label}, {part}", reason) for part, reason in document.left_out]
        chunks, before = [], 0
        for prefix, text in document.parts:
            placed = list(_placed_chunks(text, max_words, overlap_sentences))
            for k, (start, chunk) in enumerate(placed):
                name = f"{label}#{prefix}{k}"
                chunks.append(Passage(name, chunk, document.title, label, before + start))
            if placed:
                start, chunk = placed[-1]
                before += start + len(chunk) + 1
        passages += chunks
        if not chunks and not document.left_out:
            left_out.append(LeftOut(label, "holds no text"))
    left_out.sort(key=lambda item: item.path)
    if not passages:
        reasons = [f"{item.path}: {item.reason}" for item in left_out[:_SHOWN]]
        more = [f"and {len(left_out) - _SHOWN} more"] if len(left_out) > _SHOWN else []
        expected = f"corpus.jsonl[.gz], or {', '.join(KINDS[:-1])} or {KINDS[-1]} files with text"
        raise DataError([f"'{folder}' holds no text that can be read: expected {expected}", *reasons, *more])
    return Dataset(folder.resolve().name, tuple(passages), (), left_out=tuple(left_out))


class _Tree:
    """The files of a folder by the names they go by, each once; links come after what they may lead to.

    Parameters
    ----------
    follow : bool
        Also go where links out of the folder lead.
    """

    def __init__(self, root: Path, follow: bool) -> None:
        self.root, self.follow = root, follow
        self.files: dict[str, Path] = {}
        self.left_out: list[LeftOut] = []
        self._home = Path(os.path.realpath(root))
        self._seen: dict[str, str] = {}  # real path -> the name it was first met by
        self._links: list[Path] = []
        self._folders = [root]
        while self._folders or self._links:
            if self._folders:
                self._open(self._folders.pop(0))
            else:
                self._go_along(self._links.pop(0))

    def _leave_out(self, path: Path, reason: str) -> None:
        self.left_out.append(LeftOut(self._label(path), reason))

    def _label(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix().encode("utf-8", "backslashreplace").decode()

    def _first(self, path: Path) -> bool:
        """Whether this is the first way to a file or folder; a second one is left out."""
        first = self._seen.setdefault(os.path.realpath(path), self._label(path))
        if first == self._label(path):
            return True
        self._leave_out(path, f"the same as '{first}', which is used instead")
        return False

    def _open(self, folder: Path) -> None:
        if not self._first(folder):
            return
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            self._leave_out(folder, f"the folder cannot be opened: {error.strerror or error}")
            return
        for path in (folder / name for name in names):
            try:
                mode = path.lstat().st_mode
            except OSError as error:
                self._leave_out(path, f"cannot be opened: {error.strerror or error}")
                continue
            if stat.S_ISLNK(mode):
                self._links.append(path)
            elif stat.S_ISDIR(mode):
                self._folders.append(path)
            else:
                self._take(path, mode)

    def _take(self, path: Path, mode: int) -> None:
        suffix = path.suffix.lower()
        if not is_text(str(path.relative_to(self.root))):
            self._leave_out(path, "its name is not valid UTF-8: rename it")
        elif not stat.S_ISREG(mode):
            self._leave_out(path, "is not a file (a pipe, a socket or a device)")
        elif suffix not in KINDS:
            self._leave_out(path, f"{suffix} files are not read" if suffix else "its name has no ending")
        elif self._first(path):
            self.files[self._label(path)] = path

    def _go_along(self, link: Path) -> None:
        target = Path(os.path.realpath(link))
        try:
            mode = link.stat().st_mode
        except OSError as error:
            self._leave_out(link, f"a broken link: {error.strerror or error}")
            return
        if not self.follow and not target.is_relative_to(self._home):
            self._leave_out(link, "a link out of the folder, followed only on request (--follow-links)")
        elif stat.S_ISDIR(mode):
            self._folders.append(link)
        else:
            self._take(link, mode)
