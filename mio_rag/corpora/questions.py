"""Question sets beside a corpus of another source, without any corpus, and with their choices in another
order."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path

import numpy as np

from mio_rag.corpora.dataset import Dataset, LeftOut
from mio_rag.corpora.load import load_dataset, load_questions
from mio_rag.corpora.published import is_published, read_published
from mio_rag.types import Question

__all__ = ["closed_book", "shuffle_choices", "with_corpus"]


def closed_book(source: str | Path) -> Dataset:
    """The questions of a source, without its corpus; gold passages are forgotten with it."""
    asked, left_out = _asked(source)
    questions = tuple(dataclasses.replace(q, gold_ids=(), gold_sources=()) for q in asked)
    return Dataset(_name(source), (), questions, closed_book=True, left_out=left_out)


def with_corpus(source: str | Path, corpus: str | Path) -> Dataset:
    """The questions of one source with the passages of another.

    Raises
    ------
    DataError
        Also if the questions name gold passages that the corpus does not have.
    """
    found = load_dataset(corpus)
    name = f"{_name(source)} with {_name(corpus)}"
    asked, left_out = _asked(source)
    return Dataset(name, found.passages, asked, left_out=(*found.left_out, *left_out))


def _asked(source: str | Path) -> tuple[tuple[Question, ...], tuple[LeftOut, ...]]:
    """The questions of a source, and those of a published set that are damaged."""
    left_out = read_published(source).left_out if is_published(source) else ()
    return load_questions(source), left_out


def shuffle_choices(dataset: Dataset, seed: int) -> Dataset:
    """The same questions with their choices in an order drawn for each from seed and id.

    Question writers put the right choice more often in some places than in others, and models prefer some
    letters: shuffling takes both out of the comparison.
    """
    questions = []
    for question in dataset.questions:
        rng = np.random.default_rng([seed, zlib.crc32(question.id.encode())])
        order = rng.permutation(len(question.choices))
        questions.append(dataclasses.replace(question, choices=tuple(question.choices[i] for i in order)))
    return dataclasses.replace(dataset, questions=tuple(questions))


def _name(source: str | Path) -> str:
    text = str(source)
    if is_published(source):
        return text.partition(":")[0]
    return text if text == "demo" or text.startswith("hf:") else Path(source).resolve().name
