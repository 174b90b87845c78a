"""Published question sets whose questions bring their own paragraphs: HotpotQA, 2WikiMultiHopQA, MuSiQue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mio_rag.corpora.raw import Found, Paragraphs, converted, json_lines, json_rows, take, texts
from mio_rag.errors import InputError
from mio_rag.types import Question

__all__ = ["read_musique", "read_supporting_facts"]


def read_supporting_facts(path: Path, name: str) -> Found:
    """The JSON files of HotpotQA and 2WikiMultiHopQA, which are laid out alike.

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
    """The JSONL files of MuSiQue, "ans" and "full".

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
