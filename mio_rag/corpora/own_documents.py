"""Published question sets that come with documents: TriviaQA, and SEC 10-Q as Docugami lays it out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

from mio_rag.corpora.dataset import LeftOut
from mio_rag.corpora.documents import chunk_text, load_folder
from mio_rag.corpora.raw import Found, converted, json_rows, table_rows, take, text_of, texts, words
from mio_rag.errors import DataError, InputError
from mio_rag.types import Passage, Question

__all__ = ["read_sec_10q", "read_triviaqa"]

#: Key of a TriviaQA question -> folder of its documents.
_EVIDENCE = {"EntityPages": "wikipedia", "SearchResults": "web"}
_COLUMNS = ("Question", "Source Docs", "Question Type", "Source Chunk Type", "Answer")
#: What closes an answer of SEC 10-Q: the documents that it rests on.
_CITED = re.compile(r"\s*\bSOURCE(?:\(S\)|S)?:(?P<named>[^\n]*)\s*\Z")


def read_triviaqa(path: Path, name: str) -> Found:
    """A question file of TriviaQA, with its documents where they lie beside it as published.

    {"Data": [{"QuestionId", "Question", "Answer": {"Value", "Aliases"}, "EntityPages": [{"Filename",
    "Title"}], "SearchResults": [...]}]} below "qa", documents below "evidence/wikipedia" and "evidence/web".
    Gold documents are those that an accepted answer occurs in, as in the paper's distant supervision.
    The unfiltered files come without documents.

    Source: Joshi et al., ACL 2017.
    """
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
        chunks = enumerate(chunk_text(text))
        passages += [Passage(f"{label}#{k}", chunk, title, label) for k, chunk in chunks]
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
    """SEC 10-Q of Docugami's KG-RAG data sets: a folder with qna_data.csv and the filings in docs.

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
