"""The lexical index gives what bm25s gives, from memory and from disk."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mio_rag.retrieval.hashed import HashedTexts, bytes_of, word_hash
from mio_rag.retrieval.lexical import STOP_WORDS, LexicalIndex, words_of

TEXTS = [
    "The Arno flows through Florence, and through Pisa.",
    "A tower in Pisa leans; the tower of Florence does not.",
    "Ödön's naïve café \u4e2d\u6587 x 42",
    "the and of",
    "Florence Florence Florence",
]
QUESTIONS = ["Which tower leans in Pisa?", "florence Florence", "ödön 42", "the of", "nothing here", ""]


def by_bm25s(question: str, texts: list[str] = TEXTS) -> np.ndarray:
    import bm25s

    made = bm25s.BM25()
    said = bm25s.tokenize([*texts, question], stopwords="en", return_ids=False, show_progress=False)
    made.index([words or ["\u2205"] for words in said[:-1]], show_progress=False)
    words = [word for word in said[-1] if word in made.vocab_dict]
    return made.get_scores(words) if words else np.zeros(len(texts))


def test_words_are_those_of_bm25s() -> None:
    import bm25s
    from bm25s.stopwords import STOPWORDS_EN

    assert frozenset(STOPWORDS_EN) == STOP_WORDS
    texts = [*TEXTS, *QUESTIONS[:-1], "it's E=mc2, A.B.C. (under_score) don't 3.14"]
    expected = bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    assert [words_of(text) for text in texts] == [list(words) for words in expected]


@pytest.mark.parametrize("mapped", [False, True])
def test_scores_are_those_of_bm25s(tmp_path: Path, mapped: bool) -> None:
    built = LexicalIndex.build(TEXTS)
    built.save(tmp_path / "one")
    read = LexicalIndex.load(tmp_path / "one", mapped=mapped)
    read.save(tmp_path / "two")
    again = LexicalIndex.load(tmp_path / "two", mapped=not mapped)
    for question in QUESTIONS:
        for index in (built, read, again):
            np.testing.assert_array_equal(index.scores(question), by_bm25s(question).astype(np.float64))
    assert (tmp_path / "one/terms.npz").read_bytes() == (tmp_path / "two/terms.npz").read_bytes()


words = st.sampled_from(["the", "of", "arno", "pisa", "tower", "leans", "Florence", "42", "x", "café"])
a_text = st.lists(words, max_size=12).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(a_text, min_size=1, max_size=8), a_text)
def test_scores_of_any_texts_are_those_of_bm25s(texts: list[str], question: str) -> None:
    found = LexicalIndex.build(texts).scores(question)
    np.testing.assert_array_equal(found, by_bm25s(question, texts).astype(np.float64))


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    LexicalIndex.build(TEXTS).save(tmp_path)
    with np.load(tmp_path / "terms.npz") as data:
        arrays = dict(data)
    for changed in ({"lengths": np.zeros(0, np.int32)}, {"rows": np.zeros(1, np.int32)}):
        np.savez(tmp_path / "terms.npz", **{**arrays, **changed})
        with pytest.raises(ValueError, match="do not fit together"):
            LexicalIndex.load(tmp_path)


@settings(max_examples=60, deadline=None)
@given(st.lists(a_text, min_size=1, max_size=40), a_text, st.integers(1, 5))
def test_best_passages_are_those_of_all_scores(texts: list[str], question: str, k: int) -> None:
    index = LexicalIndex.build(texts)
    every = index.scores(question)
    rows, scores = index.best(question, k)
    expected = np.argsort(-every, kind="stable")[: min(k, int((every > 0).sum()))]
    assert rows.tolist() == expected.tolist()
    assert scores.tolist() == every[expected].tolist() == index.of(question, expected).tolist()


def test_words_of_many_texts_are_hashed_as_one_alone() -> None:
    texts = [
        *TEXTS,
        "",
        "...",
        "a_b \u0130stanbul \u00df \u1e9e \u2013 \u201cq\u201d e\u0301",
        "x" * 300_000 + " y",
    ]
    found = HashedTexts(bytes_of(text.lower()) for text in texts)
    each = [re.findall(r"\w+", text.lower()) for text in texts]
    assert np.diff(found.first).tolist() == list(map(len, each))
    assert found.hashes.tolist() == [word_hash(word) for own in each for word in own]
    assert found.single.tolist() == [len(word) == 1 for own in each for word in own]


@pytest.mark.parametrize("mapped", [False, True])
def test_passages_in_other_languages_are_cut_by_their_script(tmp_path: Path, mapped: bool) -> None:
    texts = [
        "七年战争是欧洲的战争。",
        "阿诺河流经佛罗伦萨。",
        "Он жил в городе и на реке, но это было не в Риме.",
    ]
    built = LexicalIndex.build(texts)
    built.save(tmp_path)
    read = LexicalIndex.load(tmp_path, mapped=mapped)
    for question, best in (("佛罗伦萨在哪里？", 1), ("战争", 0), ("города", 2)):
        for index in (built, read):
            assert index.scores(question).argmax() == best
            assert (index.scores(question) > 0).sum() == 1
    assert LexicalIndex.build(TEXTS)._parameters.get("languages") is None  # English is read as ever
