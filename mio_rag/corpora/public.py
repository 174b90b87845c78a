"""Public question sets by name, in the formats in which they are published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, require
from mio_rag.reading import parse_json
from mio_rag.types import Passage, Question

__all__ = ["NAMED_DATASETS", "check_name", "convert_rows", "load_named"]

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
    """A public data set of `NAMED_DATASETS`, fetched by the `datasets` package.

    Parameters
    ----------
    limit : int, optional
        Only the first so many questions (for sets that bring their own paragraphs, also only those
        paragraphs).
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

    def enter(title: str, text: str) -> str:
        key = (title, text)
        if key not in passages:
            passages[key] = Passage(f"{name}-{len(passages):06d}", text, title=title, source=title)
        return passages[key].id

    convert = _ROWS[name]
    converted = [question for row in questions if (question := convert(row, enter)) is not None]
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
            gold = parse_json(gold, f"relevant_passage_ids of question {k} of '{name}'", DataError)
        ids = tuple(i for i in map(str, gold) if i in known)
        answers = () if row["answer"] is None else (str(row["answer"]),)
        converted.append(Question(str(row.get("id", k)), row["question"], answers, ids))
    return Dataset(name, passages, tuple(converted))


#: Enters a paragraph (title, text) into the corpus, once, and gives its id.
_Enter = Callable[[str, str], str]


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
