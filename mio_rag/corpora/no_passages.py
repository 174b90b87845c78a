"""Published question sets that come without passages: PopQA, Bamboogle, ORAN-Bench-13K."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from mio_rag.corpora.dataset import LeftOut
from mio_rag.corpora.raw import Found, converted, json_lines, table_rows, take
from mio_rag.errors import DataError, InputError
from mio_rag.reading import parse_json
from mio_rag.types import Question

__all__ = ["read_bamboogle", "read_oran_bench", "read_popqa"]

_LEVELS = {"fin_E": "easy", "fin_M": "medium", "fin_H": "hard"}


def read_popqa(path: Path, name: str) -> Found:
    """The TSV file of PopQA: columns id, question, prop (the relation), possible_answers (a JSON list), ...

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
    """The CSV file of Bamboogle: columns Question and Answer.

    Source: Press et al., Findings of EMNLP 2023.
    """
    numbers = count(1)

    def question(row: Mapping[str, Any]) -> Question:
        key = f"{name}-{next(numbers):03d}"
        return Question(key, take(row, "Question", str), (take(row, "Answer", str),))

    rows = table_rows(path, ",", ("Question", "Answer"))
    return Found((), tuple(converted(rows, question, "a CSV file with Question, Answer")))


def read_oran_bench(path: Path, name: str) -> Found:
    """ORAN-Bench-13K: fin_E.json, fin_M.json and fin_H.json, or a folder that has them.

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
