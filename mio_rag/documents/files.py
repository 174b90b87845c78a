"""Files and folders -> passages: what is read, what is left out and why."""

from __future__ import annotations

import codecs
import io
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from mio_rag.documents.blocks import (
    MAX_WORDS,
    Document,
    heads,
    short_title,
    stated_date,
)
from mio_rag.documents.dates import day_in_name, period_of, year_of
from mio_rag.errors import DataError, InputError
from mio_rag.sentences import is_series
from mio_rag.types import Passage, is_text

#: Largest file that is read, unless said otherwise.
MAX_BYTES = 100_000_000
#: Endings of files of code and of settings.
_CODE = (
    ".py", ".pyi", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".java", ".kt", ".kts", ".scala", ".c",
    ".h", ".cc", ".cpp", ".hpp", ".cs", ".go", ".rs", ".rb", ".php", ".pl", ".r", ".jl", ".lua",
    ".swift", ".sql", ".sh", ".bash", ".zsh", ".ps1", ".bat", ".json", ".json5", ".toml", ".yaml",
    ".yml", ".ini", ".cfg", ".conf", ".properties", ".xml", ".css", ".scss", ".proto", ".graphql",
    ".tf", ".gradle", ".cmake", ".vue", ".dart",
)  # fmt: skip
#: Ending -> module and function that reads such a file; loaded when there is one.
_TEXTS = {
    **dict.fromkeys((".txt", ".text", ".rst"), "plain.read_text"),
    ".log": "plain.read_log",
    **dict.fromkeys((".md", ".markdown", ".mdx"), "markdown.read_markdown"),
    **dict.fromkeys((".csv", ".tsv"), "plain.read_csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "plain.read_jsonl"),
    **dict.fromkeys(_CODE, "plain.read_code"),
}
_BYTES = {".eml": "plain.read_mail"}
_PACKED = {
    **dict.fromkeys((".docx", ".docm"), "docx.read_docx"),
    **dict.fromkeys((".xlsx", ".xlsm"), "office.read_xlsx"),
    **dict.fromkeys((".pptx", ".pptm"), "office.read_pptx"),
}
_OF_A_SET = ("questions.jsonl", "corpus.jsonl")  # asked and read by `evaluate`: no documents
#: Endings of the files that are read.
KINDS = (".pdf", ".html", ".htm", ".xhtml", *_PACKED, *_BYTES, *_TEXTS)
_OLE = b"\xd0\xcf\x11\xe0"  # what Word wraps an encrypted document in, and what .doc files are
#: Folders that tools keep for themselves; they are not read.
TOOL_FOLDERS = frozenset(
    (".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".ipynb_checkpoints")
)
_SAME, _OF_A_TOOL, _GUESSED = "the same as", "a folder of a tool, which is not read", "taken as"
_EMPTY = "is empty"
#: How reasons begin for what lacks no text.
NOT_MISSED = (_SAME, _OF_A_TOOL, _GUESSED, _EMPTY)
_META = re.compile(
    rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w-]+)|<\?xml[^>]{0,99}encoding=["']([\w-]+)""", re.I
)
_CONTROLS = re.compile(r"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_OTHER_LETTERS = re.compile(r"[^\W\d_\0-\u024f]{3}")
#: Words of file names that say nothing of the text.
_NAMELESS = frozenset((
    "copy", "doc", "document", "download", "export", "file", "final", "image", "img", "new", "output", "page",
    "pdf", "print", "scan", "scanned", "untitled", "version",
))  # fmt: skip


@dataclass(frozen=True)
class LeftOut:
    """A file, or a part of one, that is missing from a corpus.

    path: where it stands in its folder, for instance "reports/may.pdf" or "reports/may.pdf, page 3".
    reason: why it was left out.
    """

    path: str
    reason: str


@dataclass(frozen=True)
class Read:
    """The passages of files, and what could not be read of them."""

    passages: tuple[Passage, ...]
    left_out: tuple[LeftOut, ...]


def read_document(path: Path, max_bytes: int = MAX_BYTES) -> Document:
    """The blocks of a file of one of the `KINDS`, by its ending.

    Text is UTF-8, or what a byte order mark says; an HTML file may declare another encoding. For other bytes
    it is guessed, which `Document.left_out` says.

    max_bytes: largest size of the file, and of what a packed file (DOCX, XLSX, PPTX) unpacks to.

    Raises `DataError` with why it cannot be read, without its name.
    Raises `MissingExtraError` if the package that reads files of this kind is not installed.
    """
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise DataError(f"holds {_megabytes(size)}, more than the limit of {_megabytes(max_bytes)}")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror or error}") from error
    if not data:
        raise DataError(_EMPTY)
    kind = path.suffix.lower()
    try:
        document = _document(kind, data, max_bytes)
    except (DataError, ImportError):
        raise
    except Exception as error:  # what a parser stumbles over on a damaged file may be anything
        said = " ".join(str(error).split())[:200]
        name = kind[1:].upper()
        raise DataError(
            f"cannot be read as {name} ({type(error).__name__}{': ' if said else ''}{said})"
        ) from error
    if not document.title:
        document.title = _title_of(path.stem, document.printed)
    titles = [document.title, *(block.text for block in document.blocks[:1] if heads(block.text))]
    days = [period_of(title, year=True) for title in titles if is_series(title, path.stem)]
    days += [day_in_name(path.stem), year_of(document.title)]
    document.date = document.date or stated_date(document.blocks) or max(days, key=len)
    return document


def _document(kind: str, data: bytes, max_bytes: int) -> Document:
    if kind == ".pdf":
        return _reader("pdf.read_pdf")(data)
    if kind in (".html", ".htm", ".xhtml"):
        return _read_text("html.read_html", data, _declared(data))
    if kind in _PACKED:
        if data.startswith(_OLE):
            raise DataError(
                f"is encrypted, or an old {kind[:-1]} file: save it as {kind}, without a password"
            )
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > max_bytes:
            raise DataError(f"unpacks to {_megabytes(size)}, more than the limit of {_megabytes(max_bytes)}")
        return _reader(_PACKED[kind])(data)
    if kind in _BYTES:
        return _reader(_BYTES[kind])(data)
    if kind not in _TEXTS:
        raise DataError(f"{kind} files are not read" if kind else "has no ending")
    return _read_text(_TEXTS[kind], data)


def _reader(name: str) -> Callable[..., Document]:
    module, _, function = name.partition(".")
    read: Callable[..., Document] = getattr(import_module(f"mio_rag.documents.{module}"), function)
    return read


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _name_as_title(name: str) -> str:
    """A file name as a title: words, without long numbers."""
    words = re.sub(r"[_\s]+|(?<=\D)-(?=\D)|(?<=\d)-(?=[^\W\d])", " ", name).split()
    kept = [word for word in words if not re.fullmatch(r"[\d-]{5,}", word)]
    return short_title(" ".join(kept or words)) or name


def _title_of(name: str, printed: str) -> str:
    """The name of a file as its title; or what its first page prints, if the name says no more."""
    title = _name_as_title(name)
    said, shown = (set(re.findall(r"[^\W\d_]{3,}", text.casefold())) for text in (title, printed))
    says_more = said - shown - _NAMELESS
    return title if says_more or not (said & shown or len(shown) > 1) else printed


def _read_text(name: str, data: bytes, declared: str | None = None) -> Document:
    read = _reader(name)
    try:
        return read(_decoded(data, declared))
    except UnicodeDecodeError as error:
        encoding = _guessed(data)
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            text = "\0"
        if _CONTROLS.search(text):
            raise DataError(
                f"is not {error.encoding.upper()} text (at byte {error.start}): save it as UTF-8, or as "
                "UTF-16 with a byte order mark"
            ) from error
    document = read(text)
    why = f"{_GUESSED} {encoding}, since it is not {(declared or 'utf-8').upper()}: save it as UTF-8"
    document.left_out.append(("its encoding", f"{why} if letters are wrong"))
    return document


def _guessed(data: bytes) -> str:
    """The encoding of a text that does not say it: Windows-1252, unless its letters are of other scripts."""
    with suppress(ImportError):
        from charset_normalizer import from_bytes

        best = from_bytes(data[:50_000].rpartition(b"\n")[0] or data[:50_000]).best()
        if best is not None and _OTHER_LETTERS.search(str(best)):  # among Latin ones it errs
            return best.encoding
    return "cp1252"


def _decoded(data: bytes, declared: str | None = None) -> str:
    if data.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    elif data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    else:
        encoding = declared or "utf-8"
    try:
        text = data.decode(encoding)
    except LookupError as error:
        raise DataError(f"declares the encoding '{declared}', which is unknown: save it as UTF-8") from error
    if "\0" in text:
        raise DataError("holds NUL characters: it is not text, or it is UTF-16 without a byte order mark")
    return text


def _declared(data: bytes) -> str | None:
    """The encoding that a page says it has, read as browsers read it."""
    found = _META.search(data[:4096])
    if found is None:
        return None
    declared = (found[1] or found[2]).decode()
    try:
        known = codecs.lookup(declared).name
    except LookupError:
        return declared
    if known in ("iso8859-1", "ascii"):
        return "cp1252"
    return "utf-8" if known.startswith("utf-16") else known  # without a mark it could not have said so


def read_file(
    path: str | Path, max_words: int = MAX_WORDS, *, name: str = "", max_bytes: int = MAX_BYTES
) -> Read:
    """The passages of one file.

    max_words: words of a passage, about, >= 1.
    name: what passages name as their source; the name of the file if blank.
    """
    path = Path(path)
    name = name or path.name
    try:
        document = read_document(path, max_bytes)
    except DataError as error:
        return Read((), (LeftOut(name, str(error)),))
    from mio_rag.documents.passages import passages_of

    passages = passages_of(document, name, max_words)
    left_out = [LeftOut(f"{name}, {part}", reason) for part, reason in document.left_out]
    if not passages and not left_out:
        left_out = [LeftOut(name, "holds no text")]
    return Read(tuple(passages), tuple(left_out))


def read_folder(
    folder: str | Path,
    max_words: int = MAX_WORDS,
    *,
    follow_links: bool = False,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
    known: Mapping[str, Read] | None = None,
) -> Read:
    """The passages of all files below a folder that can be read, by their paths, or of one file.

    Large folders are read in several processes.

    max_words: words of a passage, about, >= 1.
    follow_links: read what symbolic links out of the folder lead to. A file is read once, however many links
        there are.
    max_bytes: largest file that is read, >= 1.
    progress: told how many files are done, of how many.
    known: what was read of unchanged files, by their paths below the folder: they are not read again.

    Raises `InputError` for limits below 1.
    Raises `MissingExtraError` if there are files that need a package which is not installed.
    """
    if max_bytes < 1 or max_words < 1:
        raise InputError(f"max_bytes={max_bytes} and max_words={max_words} must be >= 1")
    folder = Path(folder)
    files, left_out = {folder.name: folder}, list[LeftOut]()
    if not folder.is_file():
        tree = _Tree(folder, follow_links)
        files, left_out = tree.files, tree.left_out
    found: dict[str, Read] = {label: read for label, read in (known or {}).items() if label in files}
    jobs = [(path, max_words, label, max_bytes) for label, path in files.items() if label not in found]
    for done, (k, read) in enumerate(_all_read(jobs), 1):
        found[jobs[k][2]] = read
        if progress is not None:
            progress(done, len(jobs))
    found = dict(sorted(found.items()))
    left_out += [one for read in found.values() for one in read.left_out]
    return Read(
        tuple(passage for read in found.values() for passage in read.passages),
        tuple(sorted(left_out, key=lambda one: one.path)),
    )


def passed_over(folder: str | Path, *, follow_links: bool = False) -> list[LeftOut]:
    """What there is below a folder that no reader is for, without reading anything."""
    return _Tree(Path(folder), follow_links).left_out


_Job = tuple[Path, int, str, int]


def _read(job: _Job) -> Read:
    path, max_words, label, max_bytes = job
    return read_file(path, max_words, name=label, max_bytes=max_bytes)


def _all_read(jobs: Sequence[_Job]) -> Iterator[tuple[int, Read]]:
    """What each file holds, as it is read."""
    sizes = [_size(path) for path, *_ in jobs]
    from mio_rag.documents.processes import MUCH, cores, side_by_side

    workers = min(len(jobs), cores())
    if workers < 2 or sum(sizes) < MUCH:
        yield from ((k, _read(job)) for k, job in enumerate(jobs))
        return

    def broken(job: _Job) -> Read:
        return Read((), (LeftOut(job[2], "broke its reader, which ended"),))

    longest_first = sorted(range(len(jobs)), key=lambda k: -sizes[k])
    yield from side_by_side(_read, jobs, longest_first, workers, broken)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class _Tree:
    """The files of a folder by the names they go by, each once; links come after what they may lead to.

    follow: also go where links out of the folder lead.
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
        self._leave_out(path, f"{_SAME} '{first}', which is used instead")
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
            elif stat.S_ISDIR(mode) and path.name in TOOL_FOLDERS:
                self._leave_out(path, _OF_A_TOOL)
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
        elif path.name in _OF_A_SET:
            self._leave_out(path, "holds the questions or passages of a question set")
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
