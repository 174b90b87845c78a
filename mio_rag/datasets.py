"""Question sets and corpora: one layout on disk, and the ways into it.

Layout: a folder with

    corpus.jsonl[.gz]      one object a line: {"id", "text", "title"?, "source"?}
    questions.jsonl[.gz]   {"id", "question", "answers"?, "gold_ids"?, "gold_sources"?, "choices"?, "type"?}

`load_dataset` also takes ``"demo"`` (bundled), a folder of .txt, .md and .pdf files (no questions), and
``"hf:NAME"`` for the public data sets in `NAMED_DATASETS`, fetched through the `datasets` package.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mio_rag.errors import DataError, InputError, require
from mio_rag.types import Passage, Question

__all__ = [
    "NAMED_DATASETS",
    "Dataset",
    "chunk_text",
    "convert_rows",
    "load_dataset",
    "load_folder",
    "load_named",
]

_SHOWN = 10  # problems listed before "and N more"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A corpus and its questions.

    Parameters
    ----------
    name : str
    passages : tuple of Passage
        Unique ids, at least one.
    questions : tuple of Question
        May be empty; gold ids refer to passages of the corpus.

    Raises
    ------
    DataError
        For an empty corpus, repeated ids, or gold ids that are not in the corpus.
    """

    name: str
    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]

    def __post_init__(self) -> None:
        problems: list[str] = []
        if not self.passages:
            problems.append(f"the corpus of '{self.name}' is empty: it needs at least one passage")
        for what, items in (("passage", self.passages), ("question", self.questions)):
            repeated = _repeated(item.id for item in items)
            problems += [
                f"{what} id '{i}' occurs more than once: ids must be unique" for i in repeated[:_SHOWN]
            ]
        broken = [f"passage {p.id!a}" for p in self.passages if not is_text(p.id, p.title, p.text, p.source)]
        broken += [
            f"question {q.id!a}" for q in self.questions if not is_text(q.id, q.text, *q.answers, *q.choices)
        ]
        problems += [
            f"{what} holds half of a surrogate pair, which is no character: mend its text"
            for what in broken[:_SHOWN]
        ]
        known = {p.id for p in self.passages}
        unknown = [(q.id, g) for q in self.questions for g in q.gold_ids if g not in known]
        problems += [
            f"question '{q}' names gold passage '{g}', which is not in the corpus"
            for q, g in unknown[:_SHOWN]
        ]
        if len(unknown) > _SHOWN:
            problems.append(f"and {len(unknown) - _SHOWN} more unknown gold ids")
        if problems:
            raise DataError(problems)

    def content_hash(self) -> str:
        """SHA-256 over every passage and question: what a result was measured on."""
        digest = hashlib.sha256()
        for p in self.passages:
            digest.update(json.dumps([p.id, p.title, p.text, p.source]).encode())
        for q in self.questions:
            labels = [q.answers, q.gold_ids, q.gold_sources, q.choices, q.type]
            digest.update(json.dumps([q.id, q.text, *labels]).encode())
        return digest.hexdigest()


def is_text(*parts: str) -> bool:
    """Whether the parts can be written as UTF-8: a damaged escape can leave half of a surrogate pair."""
    try:
        return all(part.isascii() or part.encode() for part in parts)
    except UnicodeEncodeError:
        return False


def _repeated(ids: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for i in ids:
        if i in seen:
            repeated[i] = None
        seen.add(i)
    return list(repeated)


def load_dataset(source: str | Path) -> Dataset:
    """The data set at a path or of a name.

    Parameters
    ----------
    source : str or Path
        "demo", a folder in the layout above, a folder of documents, or "hf:NAME".

    Raises
    ------
    DataError
        With every malformed line (file and line number), or what was not found.
    """
    if str(source) == "demo":
        return _load_layout(Path(__file__).parent / "data" / "demo", "demo")
    if str(source).startswith("hf:"):
        return load_named(str(source)[3:])
    folder = Path(source)
    if not folder.is_dir():
        raise DataError(
            f"'{source}' is not a folder: give a folder with corpus.jsonl[.gz], a folder of .txt/.md/.pdf "
            "files, "
            "'demo', or 'hf:NAME'"
        )
    if _find(folder, "corpus") is not None:
        return _load_layout(folder, folder.resolve().name)
    if _find(folder, "questions") is not None:
        raise DataError(f"'{source}' has questions but no corpus.jsonl[.gz]: retrieval needs passages")
    return load_folder(folder)


def _find(folder: Path, stem: str) -> Path | None:
    return next((p for p in (folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz") if p.is_file()), None)


def _load_layout(folder: Path, name: str) -> Dataset:
    problems: list[str] = []
    corpus, questions = _find(folder, "corpus"), _find(folder, "questions")
    assert corpus is not None
    passages = tuple(_parsed(corpus, _passage, problems))
    asked = tuple(_parsed(questions, _question, problems)) if questions is not None else ()
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise DataError([*problems[:_SHOWN], *more])
    return Dataset(name, passages, asked)


def _parsed(path: Path, build: Any, problems: list[str]) -> Iterator[Any]:
    """Objects built from the lines of a JSONL file; malformed lines go to `problems`."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise InputError(f"expected a JSON object, found {type(row).__name__}")
                    yield build(row)
                except InputError as error:
                    problems += [f"{path.name}, line {number}: {p}" for p in error.problems]
                except (ValueError, RecursionError) as error:
                    reason = getattr(error, "msg", str(error))
                    problems.append(f"{path.name}, line {number}: not valid JSON ({reason})")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        problems.append(f"{path.name} cannot be read: {error}")


def _string(row: Mapping[str, Any], key: str, required: bool = False) -> str:
    value = row.get(key)
    if value is None and not required:
        return ""
    if isinstance(value, int) and not isinstance(value, bool) and key == "id":
        return str(value)
    if not isinstance(value, str):
        raise InputError(f"'{key}' is {'missing' if value is None else 'not a string'}")
    return value


def _strings(row: Mapping[str, Any], key: str, numbers: bool = False) -> tuple[str, ...]:
    value = row.get(key)
    if value is None:
        return ()
    if numbers and isinstance(value, list):  # ids may be whole numbers, here as there
        value = [str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in value]
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise InputError(f"'{key}' is not a list of strings")
    return tuple(value)


def _passage(row: Mapping[str, Any]) -> Passage:
    return Passage(
        _string(row, "id", required=True),
        _string(row, "text", required=True),
        _string(row, "title"),
        _string(row, "source"),
    )


def _question(row: Mapping[str, Any]) -> Question:
    return Question(
        id=_string(row, "id", required=True),
        text=_string(row, "question", required=True),
        answers=_strings(row, "answers"),
        gold_ids=_strings(row, "gold_ids", numbers=True),
        gold_sources=_strings(row, "gold_sources"),
        choices=_strings(row, "choices"),
        type=_string(row, "type"),
    )


# --- folders of documents --------------------------------------------------------------------------------


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
    segmenter = require("pysbd", "documents", "splitting documents into sentences").Segmenter(
        language="en", clean=False
    )
    sentences: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        whole = " ".join(paragraph.split())
        found = segmenter.segment(whole) if whole else []
        if " ".join(found).split() != whole.split():  # pysbd loses or cuts words around some signs
            found = re.split(r"(?<=[.!?]) ", whole)
        for sentence in found:
            words = sentence.split()
            sentences += [" ".join(words[k : k + max_words]) for k in range(0, len(words), max_words)]
    chunks: list[str] = []
    current: list[str] = []
    fresh = 0
    for sentence in sentences:
        if fresh and sum(len(s.split()) for s in current) + len(sentence.split()) > max_words:
            chunks.append(" ".join(current))
            current = current[len(current) - overlap_sentences :] if overlap_sentences else []
            while current and sum(len(s.split()) for s in current) + len(sentence.split()) > max_words:
                current.pop(0)
            fresh = 0
        current.append(sentence)
        fresh += 1
    if fresh:
        chunks.append(" ".join(current))
    return chunks


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


# --- named public data sets ------------------------------------------------------------------------------

#: name -> (repository, corpus configuration and split or None, questions configuration and split)
NAMED_DATASETS: dict[str, tuple[str, tuple[str, str] | None, tuple[str | None, str]]] = {
    "rag-mini-wikipedia": (
        "rag-datasets/rag-mini-wikipedia",
        ("text-corpus", "passages"),
        ("question-answer", "test"),
    ),
    "rag-mini-bioasq": (
        "rag-datasets/rag-mini-bioasq",
        ("text-corpus", "passages"),
        ("question-answer-passages", "test"),
    ),
    "hotpot_qa": ("hotpotqa/hotpot_qa", None, ("distractor", "validation")),
    "squad_v2": ("rajpurkar/squad_v2", None, (None, "validation")),
    "natural_questions": ("google-research-datasets/natural_questions", None, ("dev", "validation")),
}


def load_named(name: str, limit: int | None = None) -> Dataset:
    """A public data set of `NAMED_DATASETS`, fetched by the `datasets` package.

    Parameters
    ----------
    limit : int, optional
        Only the first so many questions (for sets that bring their own paragraphs, also only those
        paragraphs).
    """
    if name not in NAMED_DATASETS:
        raise DataError(f"data set 'hf:{name}' is unknown: choose one of {', '.join(NAMED_DATASETS)}")
    library = require("datasets", "datasets", f"data set 'hf:{name}'")
    repository, corpus, (config, split) = NAMED_DATASETS[name]
    try:
        corpus_rows = library.load_dataset(repository, corpus[0], split=corpus[1]) if corpus else ()
        question_rows = library.load_dataset(repository, config, split=split)
    except (OSError, ValueError, ConnectionError) as error:
        raise DataError(f"data set 'hf:{name}' ({repository}) could not be fetched: {error}") from error
    if limit is not None:
        question_rows = question_rows.select(range(min(limit, len(question_rows))))
    return convert_rows(name, corpus_rows, question_rows)


def convert_rows(
    name: str, corpus: Iterable[Mapping[str, Any]], questions: Iterable[Mapping[str, Any]]
) -> Dataset:
    """Rows in the published format of a named data set -> the layout's types.

    Parameters
    ----------
    name : str
        A key of `NAMED_DATASETS`; it decides the format.
    corpus, questions : iterables of mappings
        Rows as the `datasets` package yields them.
    """
    if name not in NAMED_DATASETS:
        raise DataError(f"data set '{name}' is unknown: choose one of {', '.join(NAMED_DATASETS)}")
    if name.startswith("rag-mini"):
        return _convert_rag_mini(name, corpus, questions)
    passages: dict[tuple[str, str], Passage] = {}

    def paragraph(title: str, text: str) -> str:
        key = (title, text)
        if key not in passages:
            passages[key] = Passage(f"{name}-{len(passages):06d}", text, title=title, source=title)
        return passages[key].id

    converted = []
    for row in questions:
        if name == "hotpot_qa":
            context = zip(row["context"]["title"], row["context"]["sentences"], strict=True)
            texts = {t: " ".join(s.strip() for s in sentences) for t, sentences in context}
            ids = {t: paragraph(t, text) for t, text in texts.items() if text.strip()}
            gold = tuple(dict.fromkeys(ids[t] for t in row["supporting_facts"]["title"] if t in ids))
            converted.append(
                Question(row["id"], row["question"], (row["answer"],), gold, type=row.get("type", ""))
            )
        elif name == "squad_v2":
            here = paragraph(row["title"].replace("_", " "), row["context"])
            answers = tuple(dict.fromkeys(row["answers"]["text"]))
            gold, kind = ((here,), "") if answers else ((), "unanswerable")
            converted.append(Question(row["id"], row["question"], answers, gold, type=kind))
        else:
            question = _natural_question(row, paragraph)
            if question is not None:
                converted.append(question)
    return Dataset(name, tuple(passages.values()), tuple(converted))


def _convert_rag_mini(
    name: str, corpus: Iterable[Mapping[str, Any]], questions: Iterable[Mapping[str, Any]]
) -> Dataset:
    passages = tuple(
        Passage(str(row["id"]), row["passage"])
        for row in corpus
        if isinstance(row["passage"], str) and row["passage"].strip() not in ("", "nan")  # published gaps
    )
    known = {p.id for p in passages}
    converted = []
    for k, row in enumerate(questions):
        gold = row.get("relevant_passage_ids") or []
        if isinstance(gold, str):  # published as the text of a list
            gold = json.loads(gold)
        ids = tuple(i for i in map(str, gold) if i in known)
        answers = () if row["answer"] is None else (str(row["answer"]),)
        converted.append(Question(str(row.get("id", k)), row["question"], answers, ids))
    return Dataset(name, passages, tuple(converted))


def _natural_question(row: Mapping[str, Any], paragraph: Any) -> Question | None:
    """A Natural Questions row: its first long answer is the gold paragraph; rows without one are left out."""
    tokens, html = row["document"]["tokens"]["token"], row["document"]["tokens"]["is_html"]

    def span(start: int, end: int) -> str:
        return " ".join(t for t, tag in zip(tokens[start:end], html[start:end], strict=True) if not tag)

    longs = [a for a in row["annotations"]["long_answer"] if a["start_token"] >= 0]
    if not longs:
        return None
    text = span(longs[0]["start_token"], longs[0]["end_token"])
    if not text.strip():
        return None
    shorts = [t for a in row["annotations"]["short_answers"] for t in a["text"]]
    verdicts = [{0: "no", 1: "yes"}[v] for v in row["annotations"]["yes_no_answer"] if v in (0, 1)]
    gold = paragraph(row["document"]["title"], text)
    return Question(
        str(row["id"]), row["question"]["text"], tuple(dict.fromkeys([*shorts, *verdicts])), (gold,)
    )
