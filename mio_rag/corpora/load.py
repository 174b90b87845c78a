"""Load questions and passages from a folder, a file or by name.

Layout: a folder with

    corpus.jsonl[.gz]      one object a line: {"id", "text", "title"?, "source"?, "start"?, "end"?, "date"?,
                           "metadata"?}
    questions.jsonl[.gz]   {"id"?, "question", "answers"?, "gold_ids"?, "gold_sources"?, "choices"?, "type"?}

Without corpus.jsonl, the documents of the folder (.pdf, .docx, .md, .html, .txt and more) are the corpus,
with the questions that lie beside them or without any. `load_dataset` also takes ``"demo"`` (bundled),
``"FORMAT:PATH"`` for the files of a published set (`mio_rag.corpora.published`), and ``"hf:NAME"`` for the
public data sets in `NAMED_DATASETS`, fetched through the `datasets` package.
"""

from __future__ import annotations

import difflib
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from mio_rag.corpora.dataset import NEEDS_QUESTIONS, Dataset, load_folder, shortened
from mio_rag.corpora.published import (
    PUBLISHED_FORMATS,
    Paragraphs,
    check_published,
    is_published,
    load_published,
    rag_mini,
    read_published,
    table_rows,
    text_of,
)
from mio_rag.documents.files import MAX_BYTES, LeftOut, Read
from mio_rag.errors import DataError, InputError, require
from mio_rag.storage import parse_json, write_atomically
from mio_rag.types import Passage, Question

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


def check_name(name: str) -> None:
    """Raise `DataError` for a name that is not known."""
    if name not in NAMED_DATASETS:
        raise DataError(f"data set 'hf:{name}' is unknown: choose one of {', '.join(NAMED_DATASETS)}")


def load_named(name: str, limit: int | None = None) -> Dataset:
    """Fetch a public data set of `NAMED_DATASETS` by the `datasets` package.

    limit: only the first so many questions, of sets with paragraphs of their own with theirs alone.
    """
    check_name(name)
    library = require("datasets", "datasets", f"data set 'hf:{name}'")
    repository, corpus, (config, split) = NAMED_DATASETS[name]
    try:
        corpus_rows = library.load_dataset(repository, corpus[0], split=corpus[1]) if corpus else ()
        question_rows = library.load_dataset(repository, config, split=split)
    except (OSError, ValueError) as error:
        raise DataError(f"data set 'hf:{name}' ({repository}) could not be fetched: {error}") from error
    if limit is not None:
        question_rows = question_rows.select(range(min(limit, len(question_rows))))
    return convert_rows(name, corpus_rows, question_rows)


def convert_rows(
    name: str, corpus: Iterable[Mapping[str, Any]], questions: Iterable[Mapping[str, Any]]
) -> Dataset:
    """Convert rows of a named data set, as the `datasets` package yields them."""
    check_name(name)
    if name.startswith("rag-mini"):
        found = rag_mini(name, corpus, questions)
        return Dataset(name, found.passages, found.questions)
    paragraphs = Paragraphs(name)
    made = [_ROWS[name](row, paragraphs.enter) for row in questions]
    return Dataset(name, paragraphs.all, tuple(question for question in made if question is not None))


_Enter = Callable[[str, str], str]  # of `Paragraphs`


def _hotpot_question(row: Mapping[str, Any], enter: _Enter) -> Question:
    context = zip(row["context"]["title"], row["context"]["sentences"], strict=True)
    texts = {title: " ".join(s.strip() for s in sentences) for title, sentences in context}
    ids = {title: enter(title, text) for title, text in texts.items() if text.strip()}
    gold = tuple(dict.fromkeys(ids[title] for title in row["supporting_facts"]["title"] if title in ids))
    return Question(row["id"], row["question"], (row["answer"],), gold, type=row.get("type", ""))


def _squad_question(row: Mapping[str, Any], enter: _Enter) -> Question:
    here = enter(row["title"].replace("_", " "), row["context"])
    answers = tuple(dict.fromkeys(row["answers"]["text"]))
    gold, kind = ((here,), "") if answers else ((), "unanswerable")
    return Question(row["id"], row["question"], answers, gold, type=kind)


def _natural_question(row: Mapping[str, Any], enter: _Enter) -> Question | None:
    """The first long answer is the gold paragraph; rows without one are left out."""
    longs = [a for a in row["annotations"]["long_answer"] if a["start_token"] >= 0]
    if not longs:
        return None
    tokens, span = row["document"]["tokens"], slice(longs[0]["start_token"], longs[0]["end_token"])
    words = zip(tokens["token"][span], tokens["is_html"][span], strict=True)
    text = " ".join(word for word, markup in words if not markup)
    if not text.strip():
        return None
    shorts = [t for a in row["annotations"]["short_answers"] for t in a["text"]]
    verdicts = [{0: "no", 1: "yes"}[v] for v in row["annotations"]["yes_no_answer"] if v in (0, 1)]
    gold = enter(row["document"]["title"], text)
    return Question(
        str(row["id"]), row["question"]["text"], tuple(dict.fromkeys([*shorts, *verdicts])), (gold,)
    )


_ROWS: dict[str, Callable[[Mapping[str, Any], _Enter], Question | None]] = {
    "hotpot_qa": _hotpot_question,
    "squad_v2": _squad_question,
    "natural_questions": _natural_question,
}


_NO_PASSAGES = (
    "no passages: put corpus.jsonl[.gz] or documents beside it, or ask them of what has them (`evaluate PATH "
    "--questions DATA`)"
)
_README = re.compile(r"readme\.\w+", re.IGNORECASE)
_INDEX = ("manifest.json", "passages.jsonl", "dense.faiss")  # as `mio-rag index` writes them

_Item = TypeVar("_Item", Passage, Question)


def load_dataset(
    source: str | Path,
    *,
    follow_links: bool | None = None,
    max_bytes: int | None = None,
    known: Mapping[str, Read] | None = None,
    progress: Callable[[int, int], None] | None = None,
    questions: bool = True,
) -> Dataset:
    """Load the data set at a path or of a name.

    source: "demo", a folder in the layout above, a folder of documents, "FORMAT:PATH", or "hf:NAME". What of
        a folder of documents, or of a published set, is not in the corpus is in `Dataset.left_out`. Gold
        documents of questions beside documents are their paths below the folder ("guides/rivers.md").
    follow_links, max_bytes, known, progress: as in `load_folder`, for folders of documents alone.
    questions: whether questions beside a corpus or documents are read, too.

    Raises `DataError` with every malformed line (file and line number), or what was not found; for a folder
    of documents, if nothing in it can be read.
    """
    check_source(source)
    name, folder = str(source), Path(source)
    is_named = name == "demo" or name.startswith("hf:") or is_published(source)
    if not is_named and all((folder / part).is_file() for part in _INDEX):
        raise DataError(
            f"'{source}' is an index, not the data that it was built from: name that, or give the questions "
            "with --questions"
        )
    if not is_named and folder.is_dir() and _find(folder, "corpus") is None:
        most = MAX_BYTES if max_bytes is None else max_bytes
        return _documents(folder, bool(follow_links), most, known, progress, questions)
    if follow_links is not None or max_bytes is not None:
        raise InputError(
            f"'{source}' is not a folder of documents: follow_links and max_bytes apply only to one; leave "
            "them out"
        )
    if name == "demo":
        return _load_layout(Path(__file__).parents[1] / "data" / "demo", "demo")
    if name.startswith("hf:"):
        return load_named(name[3:])
    if is_published(source):
        return load_published(source)
    return _load_layout(folder, folder.resolve().name, questions)


def check_source(source: str | Path) -> None:
    """Raise `DataError` where a source of `load_dataset` plainly names no data set; nothing is read."""
    name = str(source)
    if name.startswith("hf:"):
        check_name(name[3:])
    elif is_published(source):
        check_published(source)
    elif name != "demo" and not Path(source).is_dir():
        raise DataError(
            f"'{source}' is not a folder: give a folder with corpus.jsonl[.gz], a folder of documents "
            f"(.pdf, .docx, .html, .md, .txt and more), 'demo', 'hf:NAME', or the file of a published set "
            f"({', '.join(f'{one}:PATH' for one in PUBLISHED_FORMATS)})"
        )


def load_passages(path: str | Path) -> Dataset:
    """Load the passages of a JSONL file, as in ``corpus.jsonl``; ids may be missing.

    Raises `DataError` with every malformed line.
    """
    path, numbers = Path(path), count(1)
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    passages = _lines(path, lambda row: _passage({"id": f"{stem}-{next(numbers)}", **row}))
    return Dataset(stem, tuple(passages), ())


def load_questions(source: str | Path) -> tuple[Question, ...]:
    """Load the questions at a path or of a name, with a corpus or without.

    source: a folder with questions.jsonl[.gz], such a file, a table in .csv, or what `load_dataset` takes.
        The columns of a table are fields of a line: question, and perhaps answers, evidence and others;
        several answers have "|" between them.

    Raises `DataError` with every malformed line, or if there are no questions.
    """
    folder = Path(source)
    path = _find(folder, "questions") if folder.is_dir() else None
    if folder.is_file() and folder.name.endswith((".jsonl", ".jsonl.gz")):
        questions = _numbered(_lines(folder, _question))
    elif folder.is_file() and folder.name.endswith((".csv", ".csv.gz")):
        questions = _of_table(folder)
    elif is_published(source):
        questions = read_published(source).questions
    elif path is None or _find(folder, "corpus") is not None:
        questions = load_dataset(source).questions
    else:
        questions = _numbered(_lines(path, _question))
    if not questions:
        raise DataError(f"'{source}' has no questions: {NEEDS_QUESTIONS}")
    return questions


def write_questions(questions: Iterable[Question], file: Path) -> None:
    """Write questions to a file that `load_questions` reads."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"question" if key == "text" else key: value for key, value in asdict(one).items() if value}
        for one in questions
    ]
    write_atomically(file, "".join(json.dumps(row) + "\n" for row in rows))


def questions_of(given: Iterable[Question | Mapping[str, Any] | str]) -> tuple[Question, ...]:
    """Return questions of texts, mappings as in questions.jsonl, or `Question`; `InputError` for the rest."""
    found, problems = [], list[str]()
    for k, one in enumerate(given):
        row = {"question": one} if isinstance(one, str) else one
        try:
            if isinstance(row, Mapping) and all(isinstance(key, str) for key in row):
                row = _question(row)
            if not isinstance(row, Question):
                raise InputError("give a Question, a mapping or a text")
            found.append(row)
        except InputError as error:
            problems += [f"questions[{k}]: {problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    return _numbered(found)


def _documents(
    folder: Path,
    follow_links: bool,
    max_bytes: int,
    known: Mapping[str, Read] | None,
    progress: Callable[[int, int], None] | None,
    with_questions: bool,
) -> Dataset:
    """The documents of a folder, and the questions that lie beside them."""
    path = _find(folder, "questions")
    how: dict[str, Any] = {"follow_links": follow_links, "max_bytes": max_bytes}
    try:
        found = load_folder(folder, known=known, progress=progress, **how)
    except DataError as error:
        if path is None:
            raise
        raise DataError([f"'{folder}' has {path.name}, but {_NO_PASSAGES}", *error.problems]) from error
    # A report quotes questions: it is not what they are asked of. Whether there are questions changes nothing
    # else, so that every command reads the same documents.
    sources = sorted({passage.source for passage in found.passages})
    own = {one for one in sources if one.endswith((".html", ".json")) and _is_report(folder / one)}
    passages = tuple(passage for passage in found.passages if passage.source not in own)
    if path is not None and all(_README.fullmatch(passage.source) for passage in passages):
        raise DataError(f"'{folder}' has {path.name}, but {_NO_PASSAGES}")
    left_out = [one for one in found.left_out if path is None or one.path != path.name]
    left_out += [LeftOut(one, "mio-rag wrote it: a report") for one in sorted(own)]
    asked = _numbered(_lines(path, _question)) if path is not None and with_questions else ()
    return Dataset(found.name, passages, asked, left_out=tuple(left_out))


def _is_report(file: Path) -> bool:
    """Whether a run of `mio-rag evaluate` wrote a file."""
    with suppress(OSError):
        return '"data_sha256"' in file.with_name("run.json").read_text(encoding="utf-8", errors="replace")
    return False


def _find(folder: Path, stem: str) -> Path | None:
    return next((p for p in (folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz") if p.is_file()), None)


def _load_layout(folder: Path, name: str, with_questions: bool = True) -> Dataset:
    corpus, asked = _find(folder, "corpus"), _find(folder, "questions")
    assert corpus is not None
    problems = list[str]()
    passages = list(_parsed(corpus, _passage, problems))
    questions = [] if asked is None or not with_questions else list(_parsed(asked, _question, problems))
    if problems:
        raise DataError(shortened(problems))
    return Dataset(name, tuple(passages), _numbered(questions))


def _numbered(questions: Iterable[Question]) -> tuple[Question, ...]:
    """Give questions without an id their number, from 1."""
    return tuple(one if one.id else replace(one, id=str(k)) for k, one in enumerate(questions, start=1))


def _lines(path: Path, build: Callable[[Mapping[str, Any]], _Item]) -> list[_Item]:
    """Objects built from the lines of a JSONL file; `DataError` with every malformed one."""
    problems = list[str]()
    found = list(_parsed(path, build, problems))
    if problems:
        raise DataError(shortened(problems))
    return found


def _parsed(path: Path, build: Callable[[Mapping[str, Any]], _Item], problems: list[str]) -> Iterator[_Item]:
    """Objects built from the lines of a JSONL file; malformed lines go to `problems`."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = parse_json(line, "the line")
                    if not isinstance(row, dict):
                        raise InputError(f"expected a JSON object, found {type(row).__name__}")
                    yield build(row)
                except InputError as error:
                    problems += [f"{path.name}, line {number}: {p}" for p in error.problems]
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        problems.append(f"{path.name} cannot be read: {error}")


def _of_table(path: Path) -> tuple[Question, ...]:
    """The questions of a table with a head; a spreadsheet may part its columns by semicolons or tabs."""
    head = text_of(path).partition("\n")[0]
    questions, problems = list[Question](), list[str]()
    for number, (place, row) in enumerate(table_rows(path, max(",;\t", key=head.count), ["question"]), 1):
        try:
            if None in row:
                raise InputError("the line has more cells than the head: put quotes around texts with commas")
            lists = {
                key: [one.strip() for one in (row[key] or "").split("|") if one.strip()]
                for key in _LISTS & set(row)
            }
            questions.append(_question({**row, **lists, "id": row.get("id") or str(number)}))
        except InputError as error:
            problems += [f"{place}: {problem}" for problem in error.problems]
    if problems:
        raise DataError(shortened(problems))
    return tuple(questions)


# Rows -------------------------------------------------------------------------------------------------------

_PASSAGE = ("id", "text", "title", "source", "start", "end", "date", "metadata")
_QUESTION = ("id", "question", "answers", "gold_ids", "gold_sources", "choices", "type", "evidence",
             "conversation")  # fmt: skip
_LISTS = {"answers", "gold_ids", "gold_sources", "choices", "evidence"}


def _string(row: Mapping[str, Any], key: str, required: bool = False) -> str:
    value = _plain_id(row.get(key)) if key == "id" else row.get(key)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        raise InputError(f"'{key}' is {'missing' if value is None else 'not a string'}")
    return value


def _strings(row: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = row.get(key)
    if value is None:
        return ()
    if isinstance(value, list) and key == "gold_ids":
        value = list(map(_plain_id, value))
    if isinstance(value, list) and key == "evidence":  # texts, or objects with a text
        value = [one.get("text") if isinstance(one, Mapping) else one for one in value]
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise InputError(f"'{key}' is not a list of strings")
    return tuple(value)


def _plain_id(value: Any) -> Any:
    """Return an id that is a whole number as a text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_misspelt(row: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Refuse a field that is nearly one which is missing; others may stand there, they are not read."""
    for given in row:
        missing = [name for name in fields if name not in row]
        if given not in fields and (near := difflib.get_close_matches(given, missing, 1, 0.85)):
            raise InputError(f"'{given}' is not a field: did you mean '{near[0]}'? If not, rename it")


def _passage(row: Mapping[str, Any]) -> Passage:
    _check_misspelt(row, _PASSAGE)
    metadata = row.get("metadata")
    if not isinstance(metadata, dict | None):
        raise InputError("'metadata' is not an object: give names and values")
    return Passage(
        _string(row, "id", required=True),
        _string(row, "text", required=True),
        _string(row, "title"),
        _string(row, "source"),
        row.get("start"),  # what is no place in a document is refused there
        row.get("end"),
        _string(row, "date"),
        metadata=metadata or {},
    )


def _question(row: Mapping[str, Any]) -> Question:
    _check_misspelt(row, _QUESTION)
    lists: dict[str, Any] = {name: _strings(row, name) for name in _QUESTION if name in _LISTS}
    return Question(
        _string(row, "id"),
        _string(row, "question", required=True),
        **lists,
        type=_string(row, "type"),
        conversation=_string(row, "conversation"),
    )


# Sets without a corpus, choices, names ----------------------------------------------------------------------


def closed_book(source: str | Path) -> Dataset:
    """Return the questions of a source without its corpus, and without the labels that need it."""
    left_out = read_published(source).left_out if is_published(source) else ()
    asked = load_questions(source)
    questions = tuple(replace(q, gold_ids=(), gold_sources=(), evidence=()) for q in asked)
    return Dataset(source_name(source), (), questions, closed_book=True, left_out=left_out)


def shuffle_choices(dataset: Dataset, seed: int) -> Dataset:
    """Return the questions with their choices in an order drawn for each from seed and id.

    Question writers put the right choice more often in some places than in others, and models prefer some
    letters: shuffling takes both out of the comparison.
    """
    import numpy as np  # here: loading a data set needs no numpy

    questions = []
    for question in dataset.questions:
        rng = np.random.default_rng([seed, zlib.crc32(question.id.encode())])
        order = rng.permutation(len(question.choices))
        questions.append(replace(question, choices=tuple(question.choices[i] for i in order)))
    return replace(dataset, questions=tuple(questions))


def source_name(source: str | Path) -> str:
    """Return how records of runs call a source."""
    text = str(source)
    if is_published(source):
        return text.partition(":")[0]
    return text if text == "demo" or text.startswith("hf:") else Path(source).resolve().name
