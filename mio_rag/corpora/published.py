"""Question sets in the files that their authors publish, named FORMAT:PATH.

    hotpotqa:FILE        hotpot_dev_distractor_v1.json and the like; with paragraphs
    2wikimultihop:FILE   dev.json; with paragraphs
    musique:FILE         musique_ans_v1.0_dev.jsonl, musique_full_v1.0_dev.jsonl; with paragraphs
    triviaqa:FILE        qa/wikipedia-dev.json, with the documents in evidence/ beside qa/
    sec-10q:FOLDER       sec-10-q/data/v1 of Docugami's KG-RAG data sets; with documents
    popqa:FILE           popQA.tsv; questions alone
    bamboogle:FILE       the CSV file; questions alone
    rag-mini-wikipedia:FOLDER, rag-mini-bioasq:FOLDER
                         Parquet, CSV or JSONL with the columns id and passage, and question and answer
    nq:FILE              nq-open-oracle.jsonl, with paragraphs; NQ-open.dev.jsonl, questions alone
    oran-bench:PATH      fin_E.json, fin_M.json, fin_H.json, or their folder; questions alone

Text files may be packed with gzip. Nothing is fetched. Every row that does not fit is named. Questions
without passages are asked of another corpus, or of a model alone.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from mio_rag.corpora.dataset import Dataset, load_folder, shortened
from mio_rag.documents.files import LeftOut
from mio_rag.errors import DataError, InputError, require
from mio_rag.storage import parse_json
from mio_rag.types import Passage, Question

_KINDS = {str: "text", list: "a list", dict: "an object", bool: "true or false"}

_T = TypeVar("_T")
_Made = TypeVar("_Made")

#: A row, and where it stands: "dev.json, row 3".
Row = tuple[str, Any]


@dataclass(frozen=True)
class Found:
    """What a published file holds.

    passages: empty where the set comes without any.
    left_out: rows and files that the set itself has damaged, and why each is missing.
    """

    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
    left_out: tuple[LeftOut, ...] = ()


class Paragraphs:
    """Paragraphs that questions bring with them, each once; ids begin with the name of the set."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._by_text: dict[tuple[str, str], Passage] = {}

    def enter(self, title: str, text: str) -> str:
        """Return the id of a paragraph."""
        number = f"{self._name}-{len(self._by_text):06d}"
        if (title, text) not in self._by_text:
            self._by_text[title, text] = Passage(number, text, title=title, source=title)
        return self._by_text[title, text].id

    @property
    def all(self) -> tuple[Passage, ...]:
        """All, in the order in which they were met."""
        return tuple(self._by_text.values())


def text_of(path: Path) -> str:
    """Return the text of a file, also packed with gzip; `DataError` if it cannot be read as UTF-8."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}' is not in UTF-8 ({error}): save it as UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from error


def json_rows(path: Path, key: str = "") -> list[Row]:
    """Return the rows of a file that is one JSON list, or has one under a key."""
    content = parse_json(text_of(path), f"'{path}'", DataError)
    rows = content.get(key) if key and isinstance(content, dict) else None if key else content
    if not isinstance(rows, list):
        expected = f'an object with a list "{key}"' if key else "a list of questions"
        raise DataError(f"'{path}' holds no such set: expected {expected}")
    return [(f"{path.name}, row {number}", row) for number, row in enumerate(rows, start=1)]


def json_lines(path: Path) -> Iterator[Row]:
    """Yield the rows of a file with one JSON value a line; what is no JSON comes as the `InputError`."""
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if line.strip():
            place = f"{path.name}, line {number}"
            try:
                yield place, parse_json(line, "the line")
            except InputError as error:
                yield place, error


def table_rows(path: Path, delimiter: str, needed: Collection[str]) -> Iterator[Row]:
    """Yield the rows of a table with a head; `DataError` if needed columns are missing, or it is no table."""
    reader = csv.DictReader(io.StringIO(text_of(path), newline=""), delimiter=delimiter, strict=True)
    try:
        if missing := [name for name in needed if name not in (reader.fieldnames or ())]:
            raise DataError(
                f"'{path}' has no column {', '.join(missing)}: expected a table with the columns "
                f"{', '.join(needed)}, found {', '.join((reader.fieldnames or ())[:8]) or 'nothing'}"
            )
        for row in reader:
            yield f"{path.name}, line {reader.line_num}", row
    except csv.Error as error:
        raise DataError(f"'{path}', line {reader.line_num} is no line of a table: {error}") from error


def converted(rows: Iterable[Row], convert: Callable[[Mapping[str, Any]], _Made], layout: str) -> list[_Made]:
    """Convert rows; `DataError` with every row that does not fit, or if there is none."""
    made: list[_Made] = []
    problems: list[str] = []
    for place, row in rows:
        try:
            if isinstance(row, InputError):
                raise row
            if not isinstance(row, dict):
                raise InputError(f"expected a JSON object, found {type(row).__name__}")
            made.append(convert(row))
        except InputError as error:
            problems += [f"{place}: {problem}" for problem in error.problems]
    if problems:
        raise DataError([*shortened(problems), f"expected {layout}"])
    if not made:
        raise DataError(f"the file holds no questions: expected {layout}")
    return made


def take(row: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    """Return the value under a key; `InputError` if there is none, or it is of another kind."""
    value = row.get(key)
    if not isinstance(value, kind):
        said = "missing" if value is None else f"not {_KINDS.get(kind, kind.__name__)}"
        raise InputError(f"'{key}' is {said}")
    return value


def texts(row: Mapping[str, Any], key: str) -> list[str]:
    """The list of texts under a key; empty where there is no key."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InputError(f"'{key}' is not a list of texts")
    return value


def words(text: str) -> str:
    """The words of a text in lower case, a blank around each: what one text has in common with another."""
    return " ".join(("", *re.findall(r"[^\W_]+", text.casefold()), ""))


_LEVELS = {"fin_E": "easy", "fin_M": "medium", "fin_H": "hard"}


def read_popqa(path: Path, name: str) -> Found:
    """Read the TSV file of PopQA: columns id, question, prop (the relation), possible_answers (JSON).

    Source: Mallen et al., ACL 2023.
    """

    def question(row: Mapping[str, Any]) -> Question:
        answers = parse_json(take(row, "possible_answers", str), "'possible_answers'")
        if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
            raise InputError("'possible_answers' is not a JSON list of texts")
        return Question(
            take(row, "id", str), take(row, "question", str), tuple(dict.fromkeys(answers)), type=row["prop"]
        )

    columns = ("id", "prop", "question", "possible_answers")
    rows = table_rows(path, "\t", columns)
    return Found((), tuple(converted(rows, question, f"a TSV file with {', '.join(columns)}")))


def read_bamboogle(path: Path, name: str) -> Found:
    """Read the CSV file of Bamboogle: columns Question and Answer.

    Source: Press et al., Findings of EMNLP 2023.
    """
    numbers = count(1)

    def question(row: Mapping[str, Any]) -> Question:
        key = f"{name}-{next(numbers):03d}"
        return Question(key, take(row, "Question", str), (take(row, "Answer", str),))

    rows = table_rows(path, ",", ("Question", "Answer"))
    return Found((), tuple(converted(rows, question, "a CSV file with Question, Answer")))


def read_oran_bench(path: Path, name: str) -> Found:
    """Read ORAN-Bench-13K: fin_E.json, fin_M.json and fin_H.json, or a folder that has them.

    A line is [question, ["1. option", ...], "number of the right one"]. Some published lines have no
    question, no options, or the number of an option that is not there: these are left out, and said.

    Source: Gajjar and Shah, ORAN-Bench-13K, 2024.
    """
    files = [path] if path.is_file() else [p for stem in _LEVELS for p in sorted(path.rglob(f"{stem}.json"))]
    if not files:
        raise DataError(f"'{path}' has none of {', '.join(f'{stem}.json' for stem in _LEVELS)}")
    questions: list[Question] = []
    left_out: list[LeftOut] = []
    foreign: list[str] = []
    for file in files:
        for place, row in json_lines(file):
            if not (isinstance(row, list) and len(row) == 3 and isinstance(row[1], list)):
                foreign.append(place)
                continue
            number = place.rpartition(" ")[2]
            try:
                questions.append(_multiple_choice(f"{name}-{file.stem}-{number}", row, file.stem))
            except InputError as error:
                left_out.append(LeftOut(place, str(error)))
    if foreign or not questions:
        raise DataError(
            f"{foreign[0] if foreign else path}: no question of this set: expected a line "
            '["question", ["1. option", ...], "1"]'
        )
    return Found((), tuple(questions), tuple(left_out))


def _multiple_choice(key: str, row: list[Any], stem: str) -> Question:
    text, options, right = row
    choices = [
        re.sub(rf"^\s*{k}\s*[.)]\s*", "", str(option)).strip() for k, option in enumerate(options, start=1)
    ]
    if not isinstance(text, str) or not text.strip():
        raise InputError("the question is blank")
    if len(choices) < 2 or not all(choices):
        raise InputError(f"it has {len([c for c in choices if c])} options with text, of 2 or more needed")
    place = int(right) if str(right).strip().isdecimal() else 0
    if not 1 <= place <= len(choices):
        raise InputError(f"the right option is said to be '{right}' of {len(choices)}")
    return Question(key, text, (choices[place - 1],), choices=tuple(choices), type=_LEVELS.get(stem, ""))


#: Key of a TriviaQA question -> folder of its documents.
_EVIDENCE = {"EntityPages": "wikipedia", "SearchResults": "web"}
_COLUMNS = ("Question", "Source Docs", "Question Type", "Source Chunk Type", "Answer")
#: What closes an answer of SEC 10-Q: the documents that it rests on.
_CITED = re.compile(r"\s*\bSOURCE(?:\(S\)|S)?:(?P<named>[^\n]*)\s*\Z")


def read_triviaqa(path: Path, name: str) -> Found:
    """Read a question file of TriviaQA, with its documents where they lie beside it as published.

    {"Data": [{"QuestionId", "Question", "Answer": {"Value", "Aliases"}, "EntityPages": [{"Filename",
    "Title"}], "SearchResults": [...]}]} below "qa", documents below "evidence/wikipedia" and "evidence/web".
    Gold documents are those that an accepted answer occurs in, as in the paper's distant supervision.
    The unfiltered files come without documents.

    Source: Joshi et al., ACL 2017.
    """
    from mio_rag.documents.passages import passages_of
    from mio_rag.documents.plain import read_text

    evidence = path.resolve().parent.parent / "evidence"
    titles: dict[str, str] = {}
    named: dict[str, tuple[str, ...]] = {}

    def question(row: Mapping[str, Any]) -> Question:
        answer = row.get("Answer") or {}
        if not isinstance(answer, dict):
            raise InputError("'Answer' is not an object")
        value = answer.get("Value")
        known = [a for a in (value, *texts(answer, "Aliases")) if isinstance(a, str) and a.strip()]
        key = take(row, "QuestionId", str)
        documents = dict(_documents(row))
        titles.update(documents)
        named[key] = tuple(documents)
        return Question(key, take(row, "Question", str), tuple(dict.fromkeys(known)))

    layout = '{"Data": [{"QuestionId", "Question", "Answer": {"Value", "Aliases"}, ...}, ...]}'
    asked = converted(json_rows(path, "Data"), question, layout)
    if not evidence.is_dir():
        return Found((), tuple(asked))
    passages: list[Passage] = []
    left_out: list[LeftOut] = []
    found: dict[str, str] = {}
    for label, title in titles.items():
        file = (evidence / label).resolve()
        if not file.is_relative_to(evidence):
            raise DataError(f"'{path}' names the document '{label}', which lies outside of '{evidence}'")
        try:
            text = text_of(file)
        except DataError as error:
            left_out.append(LeftOut(f"evidence/{label}", str(error)))
            continue
        found[label] = words(text)
        document = read_text(text)
        document.title = title
        passages += passages_of(document, label)
    if not passages:
        raise DataError(f"'{evidence}' holds none of the documents that '{path.name}' names")
    return Found(tuple(passages), tuple(_with_gold(q, named[q.id], found) for q in asked), tuple(left_out))


def _documents(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Path below the folder of evidence, and title, of each document of a TriviaQA question."""
    for key, folder in _EVIDENCE.items():
        for one in row.get(key) or ():
            if not isinstance(one, dict):
                raise InputError(f"'{key}' holds something else than objects")
            if one.get("Filename"):
                yield f"{folder}/{take(one, 'Filename', str)}", str(one.get("Title") or "")


def _with_gold(question: Question, labels: tuple[str, ...], found: Mapping[str, str]) -> Question:
    accepted = [a for a in map(words, question.answers) if a.strip()]
    gold = [label for label in labels if label in found and any(a in found[label] for a in accepted)]
    return Question(question.id, question.text, question.answers, gold_sources=tuple(gold))


def read_sec_10q(path: Path, name: str) -> Found:
    """Read SEC 10-Q of Docugami's KG-RAG data sets: a folder with qna_data.csv and the filings in docs.

    Columns: Question, Source Docs (patterns such as "2023*AAPL"), Question Type, Source Chunk Type, Answer.
    Gold documents are those that the answer cites at its end, which is cut off; where it cites none, those
    that the patterns match.

    Source: Docugami, KG-RAG-datasets, 2023.
    """
    tables = [p for p in (path / "qna_data.csv", path / "questions_and_answers.csv") if p.is_file()]
    if not tables or not (path / "docs").is_dir():
        raise DataError(f"'{path}' is not laid out like sec-10-q/data/v1: expected qna_data.csv and docs/")
    corpus = load_folder(path / "docs")
    stems = {source: Path(source).stem for source in dict.fromkeys(p.source for p in corpus.passages)}
    numbers = count(1)

    def question(row: Mapping[str, Any]) -> Question:
        patterns = [part.strip() for part in take(row, "Source Docs", str).split(",") if part.strip()]
        answer = take(row, "Answer", str)
        cited = match["named"] if (match := _CITED.search(answer)) else ""
        gold = [source for source, stem in stems.items() if stem in cited]
        gold = gold or [s for s, stem in stems.items() if any(fnmatchcase(stem, p) for p in patterns)]
        if not gold:
            raise InputError(f"'Source Docs' is {', '.join(patterns)}, which no document in docs/ matches")
        said = answer[: match.start()].strip() if match else answer.strip()
        return Question(
            f"{name}-{next(numbers):03d}",
            take(row, "Question", str),
            (said,) if said else (),
            gold_sources=tuple(gold),
            type=take(row, "Question Type", str),
        )

    rows = table_rows(tables[0], ",", _COLUMNS)
    asked = converted(rows, question, f"a CSV file with {', '.join(_COLUMNS)}")
    return Found(corpus.passages, tuple(asked), corpus.left_out)


def read_supporting_facts(path: Path, name: str) -> Found:
    """Read the JSON files of HotpotQA and 2WikiMultiHopQA, which are laid out alike.

    A list of {"_id", "question", "answer", "type", "context": [[title, [sentence, ...]], ...],
    "supporting_facts": [[title, sentence number], ...]}; test files have neither answers nor facts.

    Sources: Yang et al., EMNLP 2018; Ho et al., COLING 2020.
    """
    paragraphs = Paragraphs(name)

    def question(row: Mapping[str, Any]) -> Question:
        ids = {}
        for one in take(row, "context", list):
            if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], str)):
                raise InputError("'context' holds something else than [title, [sentence, ...]]")
            text = " ".join(s.strip() for s in texts({"context": one[1]}, "context"))
            if text.strip():
                ids[one[0]] = paragraphs.enter(one[0], text)
        facts = [f[0] for f in row.get("supporting_facts") or () if isinstance(f, list) and f]
        gold = tuple(dict.fromkeys(ids[title] for title in facts if title in ids))
        answer = row.get("answer")
        answers = (answer,) if isinstance(answer, str) and answer.strip() else ()
        return Question(
            take(row, "_id", str), take(row, "question", str), answers, gold, type=str(row.get("type") or "")
        )

    layout = '[{"_id", "question", "answer", "context": [[title, [sentence, ...]], ...], ...}, ...]'
    asked = converted(json_rows(path), question, layout)
    return Found(paragraphs.all, tuple(asked))


def read_musique(path: Path, name: str) -> Found:
    """Read the JSONL files of MuSiQue, "ans" and "full".

    A line is {"id", "question", "answer", "answer_aliases", "answerable", "paragraphs": [{"title",
    "paragraph_text", "is_supporting"}, ...]}. The "full" files pair each question with one of the same id
    whose paragraphs do not answer it: that one's id ends with "-unanswerable" here.

    Source: Trivedi et al., TACL 2022.
    """
    paragraphs = Paragraphs(name)

    def question(row: Mapping[str, Any]) -> Question:
        gold = []
        for one in take(row, "paragraphs", list):
            if not isinstance(one, dict):
                raise InputError("'paragraphs' holds something else than objects")
            here = paragraphs.enter(take(one, "title", str), take(one, "paragraph_text", str))
            if one.get("is_supporting") is True:
                gold.append(here)
        key, text = take(row, "id", str), take(row, "question", str)
        if row.get("answerable", True) is False:
            return Question(f"{key}-unanswerable", text, type="unanswerable")
        answer = row.get("answer")
        answers = [a for a in (answer, *texts(row, "answer_aliases")) if isinstance(a, str) and a.strip()]
        return Question(
            key, text, tuple(dict.fromkeys(answers)), tuple(dict.fromkeys(gold)), type=key.split("__")[0]
        )

    layout = 'a line {"id", "question", "answer", "paragraphs": [{"title", "paragraph_text"}, ...], ...}'
    asked = converted(json_lines(path), question, layout)
    return Found(paragraphs.all, tuple(asked))


def rag_mini(name: str, corpus: Iterable[Mapping[str, Any]], questions: Iterable[Mapping[str, Any]]) -> Found:
    """Convert rows of a set of rag-datasets: passages with ids, and questions, of bioasq with their passages.

    Passages of wikipedia questions are not labelled.
    """
    passages = tuple(
        Passage(str(row["id"]), row["passage"])
        for row in corpus
        if isinstance(row["passage"], str) and row["passage"].strip() not in ("", "nan")  # published gaps
    )
    known, made = {p.id for p in passages}, list[Question]()
    for k, row in enumerate(questions):
        gold = row.get("relevant_passage_ids")
        if isinstance(gold, str):  # published as the text of a list
            gold = parse_json(gold or "[]", f"relevant_passage_ids of question {k} of '{name}'", DataError)
        ids = tuple(i for i in map(str, () if gold is None else gold) if i in known)
        answers = () if row["answer"] is None else (str(row["answer"]),)
        made.append(Question(str(row.get("id", k)), row["question"], answers, ids))
    return Found(passages, tuple(made))


def read_rag_mini(path: Path, name: str) -> Found:
    """Read a folder of RAG-Mini Wikipedia or BioASQ: files are told apart by their columns.

    Source: huggingface.co/rag-datasets.
    """
    parts: dict[str, list[Mapping[str, Any]]] = {"passage": [], "question": []}
    for file in sorted(filter(Path.is_file, path.rglob("*"))):  # passages.parquet is a folder of parts
        rows = list(_rows_of(file))
        for part, found in parts.items():
            if rows and part in rows[0]:
                found += rows
    missing = [part for part, rows in parts.items() if not rows]
    if missing or any("id" not in row for row in parts["passage"]):
        columns = "id and passage" if "passage" in missing or not missing else "question and answer"
        raise DataError(f"'{path}' has no file (.parquet, .csv, .jsonl) with the columns {columns}")
    return rag_mini(name, parts["passage"], parts["question"])


def _rows_of(file: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, whatever its format; of other files none."""
    ending = file.name.removesuffix(".gz").rpartition(".")[2]
    if ending == "parquet":
        parquet: Any = require("pyarrow.parquet", "evaluation", "a Parquet file")
        yield from parquet.read_table(file).to_pylist()
    elif ending == "csv":
        yield from csv.DictReader(io.StringIO(text_of(file), newline=""))
    elif ending in ("jsonl", "json"):
        yield from (row for _, row in json_lines(file) if isinstance(row, dict))


def read_nq(path: Path, name: str) -> Found:
    """Read Natural Questions in lines: {"question", "answer" or "answers"}, and "ctxs" where there are any.

    ctxs: [{"title", "text", "isgold"}, ...], of which one may be gold.

    Source: Kwiatkowski et al., TACL 2019; Lee et al., ACL 2019; with paragraphs: Liu et al., TACL 2024.
    """
    paragraphs, numbers = Paragraphs(name), count(1)

    def question(row: Mapping[str, Any]) -> Question:
        gold = []
        for one in row.get("ctxs") or ():
            here = paragraphs.enter(take(one, "title", str), take(one, "text", str))
            if one.get("isgold") is True:
                gold.append(here)
        answers = texts(row, "answers") or texts(row, "answer")
        return Question(f"{name}-{next(numbers)}", take(row, "question", str), tuple(answers), tuple(gold))

    layout = 'a line {"question", "answers", "ctxs": [{"title", "text", "isgold"}, ...]}'
    asked = converted(json_lines(path), question, layout)
    return Found(paragraphs.all, tuple(asked))


#: Name before the colon -> how the set is read, and what it is given.
_FORMATS: dict[str, tuple[Callable[[Path, str], Found], str]] = {
    "hotpotqa": (read_supporting_facts, "a file"),
    "2wikimultihop": (read_supporting_facts, "a file"),
    "musique": (read_musique, "a file"),
    "triviaqa": (read_triviaqa, "a file"),
    "sec-10q": (read_sec_10q, "a folder"),
    "rag-mini-wikipedia": (read_rag_mini, "a folder"),
    "rag-mini-bioasq": (read_rag_mini, "a folder"),
    "nq": (read_nq, "a file"),
    "popqa": (read_popqa, "a file"),
    "bamboogle": (read_bamboogle, "a file"),
    "oran-bench": (read_oran_bench, "a file or a folder"),
}
PUBLISHED_FORMATS = tuple(_FORMATS)


def is_published(source: str | Path) -> bool:
    """Whether a source names a published format."""
    return str(source).partition(":")[0] in _FORMATS and ":" in str(source)


def check_published(source: str | Path) -> None:
    """Raise `DataError` where there is nothing to read; nothing is read."""
    name, _, path = str(source).partition(":")
    what, there = _FORMATS[name][1], Path(path)
    if not path or not (("file" in what and there.is_file()) or ("folder" in what and there.is_dir())):
        raise DataError(f"'{source}': '{path}' is not {what}: give {name}:PATH with the path of one")


def read_published(source: str | Path) -> Found:
    """Read FORMAT:PATH: passages, if the set has any, and questions.

    Raises `DataError` with every row that does not have the published layout.
    """
    check_published(source)
    name, _, path = str(source).partition(":")
    return _FORMATS[name][0](Path(path), name)


def load_published(source: str | Path) -> Dataset:
    """Load a published set with its passages; `DataError` as `read_published`, and without passages."""
    found = read_published(source)
    if not found.passages:
        raise DataError(
            f"'{source}' brings questions without passages: ask them of another corpus (`evaluate PATH "
            f"--questions {source}`), or a model alone (`evaluate --questions {source}`)"
        )
    return Dataset(str(source).partition(":")[0], found.passages, found.questions, left_out=found.left_out)
