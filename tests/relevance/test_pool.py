"""What a pool tells of its question: which of its words the passages hold."""

import math
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mio_rag.pool import Candidates
from mio_rag.relevance.features import asked_names, asked_words, question_cover, question_names

# Letters that make words long and short, begin and end them, or change their number in lower case.
TEXTS = st.text(alphabet="abAB1_ -.'İßéΣς²", max_size=24)


def pool(question: str, texts: list[str], titles: list[str]) -> Candidates:
    n = len(texts)
    return Candidates(
        ids=[f"p{k}" for k in range(n)], texts=texts, titles=titles, question=question,
        relevance=np.linspace(1, 0.5, n), tokens=np.full(n, 10),
    )  # fmt: skip


def tokens(candidates: Candidates) -> list[set[str]]:
    """The words of every passage, as a regular expression finds them."""
    pairs = zip(candidates.titles or (), candidates.texts, strict=True)
    return [set(re.findall(r"\w+", f"{title} {text}".lower())) for title, text in pairs]


@given(question=TEXTS, texts=st.lists(TEXTS.filter(str.strip), min_size=1, max_size=4), title=TEXTS)
def test_a_word_counts_where_it_stands_as_a_whole_word(question: str, texts: list[str], title: str) -> None:
    found = pool(question, texts, [title, *[""] * (len(texts) - 1)])
    held, words, names = tokens(found), asked_words(question), asked_names(question)
    weight = {w: math.log((len(held) + 1) / (sum(w in one for one in held) + 0.5)) for w in words}
    total = sum(weight.values())
    cover = [sum(weight[w] for w in words if w in one) / total if total > 0 else 0.0 for one in held]
    assert question_cover(found).tolist() == cover
    share = [sum(name in one for name in names) / len(names) if names else 0.0 for one in held]
    assert question_names(found).tolist() == share


def test_parts_of_words_do_not_count() -> None:
    found = pool("Which Ada wrote 12 notes?", ["Adam wrote 120 notes", "ada_b", "Ada, 12"], ["", "", ""])
    assert question_names(found).tolist() == [0.0, 0.0, 1.0]
    assert question_cover(found).tolist()[1] == 0.0
