"""What an index finds repeated: places of overlapping windows, near-duplicates, and both on disk."""

from __future__ import annotations

import numpy as np
import pytest

from mio_rag.context import RegexCounter, merged, render_context
from mio_rag.errors import IndexFormatError
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.embedders import TfidfEmbedder
from mio_rag.retrieval.repetition import (
    REPETITION_FILE,
    Repetition,
    find_groups,
    find_spans,
    similarity,
    sketched,
)
from mio_rag.types import Line, Passage

_WORDS = [f"w{k}" for k in range(200)]


def _windows(source, size=30, step=15, words=_WORDS):
    texts = [" ".join(words[k : k + size]) for k in range(0, len(words) - size + 1, step)]
    return [Passage(f"{source}{k}", text, "T", source) for k, text in enumerate(texts)]


@pytest.fixture(scope="module")
def index():
    plain = [Passage(f"x{k}", f"something else number {k} and more of it here", "X", "x") for k in range(3)]
    copy = Passage("copy", " ".join([*_WORDS[:30], "indeed"]), "C", "c", date="2024-05-01")
    return CorpusIndex.build([*_windows("a"), *plain, copy], TfidfEmbedder(dimensions=8), "windows")


class TestPlaces:
    def test_windows_are_laid_as_they_were_cut(self):
        passages = _windows("a")
        spans = find_spans(passages)
        document = " ".join(_WORDS)
        assert [document[start:end] for start, end in spans] == [p.text for p in passages]

    def test_sources_that_repeat_nothing_have_no_place(self):
        assert (
            find_spans([Passage("1", "a" * 30, source="s"), Passage("2", "b" * 30, source="s")]) == -1
        ).all()

    def test_documents_that_contradict_themselves_are_counted_and_have_no_places(self):
        windows = [Passage(p.id, p.text, "", "a", k * 60) for k, p in enumerate(_windows("a", step=15))]
        right = [Passage(p.id, p.text, "", "a", int(s)) for p, (s, _) in zip(
            windows, find_spans(_windows("a")), strict=True)]  # fmt: skip
        assert Repetition.build(right).contradicting == 0
        wrong = [*right]
        wrong[3] = Passage("x", right[3].text.replace("w5", "v5"), "", "a", right[3].start)
        apart = [Passage(f"o{p.id}", p.text, "", "other", p.start) for p in right]
        assert Repetition.build([*wrong, *apart]).contradicting == len(wrong)
        assert Repetition.build(windows).contradicting == len(windows)
        spans = Repetition.build([*wrong, *apart]).spans
        assert (spans[: len(wrong)] == -1).all()
        assert (spans[len(wrong) :] == find_spans(right)).all()

    def test_a_pool_with_one_of_two_versions_does_not_join_it_to_the_other(self):
        old, new = "The bridge closes at nine in the evening.", "The bridge is shut and closes at six today."
        passages = [
            Passage("old", old[:20], "", "rules.md", 0),
            Passage("new", new[:20], "", "rules.md", 0),
            Passage("rest", new[20:], "", "rules.md", 20),
        ]
        index = CorpusIndex.build(passages, TfidfEmbedder(dimensions=2), "rules")
        found = Retriever(index, pool=2, counter=RegexCounter()).retrieve("closes at nine or six today")
        assert all(len(block.parts) == 1 for block in merged(found, range(len(found))))

    def test_a_window_within_the_one_before_does_not_hide_where_that_ends(self):
        words = _WORDS[:80]
        cut = [(0, 50), (10, 20), (40, 70), (55, 80)]
        passages = [Passage(str(k), " ".join(words[a:b]), "", "s") for k, (a, b) in enumerate(cut)]
        spans, document = find_spans(passages), " ".join(words)
        assert [document[a:b] for a, b in spans] == [p.text for p in passages]


def _groups(passages):
    return find_groups(passages, sketched([p.text for p in passages]))


class TestNearDuplicates:
    def test_groups_hold_what_is_alike_and_nothing_else(self):
        texts = [
            " ".join(_WORDS[:50]),
            " ".join([*_WORDS[:49], "other"]),
            " ".join(_WORDS[25:75]),
            "short",
            "short",
        ]
        groups = _groups([Passage(str(k), text) for k, text in enumerate(texts)])
        assert groups.tolist() == [0, 0, 2, 3, 3]

    def test_every_pair_above_the_threshold_is_found_in_a_random_corpus(self):
        rng = np.random.default_rng(0)
        passages = []
        for k in range(60):
            words = rng.choice(_WORDS, 60)
            passages.append(Passage(f"{k}", " ".join(words)))
            words[rng.integers(0, 60)] = "changed"
            passages.append(Passage(f"{k}b", " ".join(words)))
        groups = _groups(passages)
        assert groups[1::2].tolist() == groups[::2].tolist() == list(range(0, 120, 2))


class TestIndex:
    def test_it_keeps_places_dates_and_duplicates(self, index, tmp_path):
        again = CorpusIndex.load(index.save(tmp_path / "index"))
        assert again.repetition is not None
        assert (again.repetition.spans == index.repetition.spans).all()
        assert again.repetition.copies == 1
        assert again.passages[-1].date == "2024-05-01"

    def test_places_of_another_corpus_are_refused(self, index, tmp_path):
        index.repetition.save(tmp_path)
        with pytest.raises(IndexFormatError, match="does not fit"):
            Repetition.load(tmp_path, len(index) + 1)
        (tmp_path / REPETITION_FILE).write_bytes(b"no such thing")
        with pytest.raises(IndexFormatError, match="cannot be read"):
            Repetition.load(tmp_path, len(index))

    def test_pools_know_places_and_exact_duplicates(self, index):
        pool = Retriever(index, pool=20, counter=RegexCounter()).retrieve("w1 w2 w3")
        at = {name: k for k, name in enumerate(pool.ids)}
        assert pool.duplicates[at["a0"], at["copy"]] == pytest.approx(
            similarity(pool.texts[at["a0"]], pool.texts[at["copy"]])
        )
        assert pool.dates[at["copy"]] == "2024-05-01"
        block = render_context(b.passage for b in merged(pool, [at["a0"], at["a1"]]))
        assert block == "T\n" + " ".join(_WORDS[:45])

    def test_windows_that_overlap_are_no_duplicates(self):
        passages = _windows("a", size=60, step=2)
        found = Repetition.build(passages)
        assert found.copies > 0
        assert found.among(range(len(passages)), passages) is None

    def test_texts_that_say_who_beat_whom_are_no_duplicates(self):
        rest = " ".join(_WORDS[:60]).replace("w", "x")
        texts = [f"Rome beat Pisa by 3 to 1 and {rest}", f"Pisa beat Rome by 3 to 1 and {rest}"]
        passages = [Passage(str(k), text, "", str(k)) for k, text in enumerate(texts)]
        found = Repetition.build(passages)
        assert found.copies == 1
        assert found.among([0, 1], passages) is None


def test_hardly_a_pair_at_the_threshold_is_missed() -> None:
    """Thirty words of which one differs: .806, where an even weighing of errors would miss one pair of 23."""
    rng = np.random.default_rng(3)
    missed = 0
    for k in range(200):
        words = [f"w{k}x{number}" for number in rng.permutation(30)]
        other = [*words[:24], "changed", *words[25:]]
        pair = [Passage("one", " ".join(words)), Passage("other", " ".join(other))]
        assert similarity(pair[0].text, pair[1].text) == pytest.approx(25 / 31)
        missed += int(_groups(pair)[1] == 1)
    assert missed == 0


def test_a_line_that_contradicts_a_text_takes_the_places_of_its_document():
    line, text = Line(0, "Fees"), "Fees are 5 EUR."
    for heading, start in ((line, 0), (Line(0, "Dues"), -1)):
        passages = [
            Passage("a", text, source="d", start=0, end=len(text)),
            Passage("b", "Paid at once.", source="d", start=20, end=33, lines=(heading,)),
        ]
        found = Repetition.build(passages)
        assert found.spans[:, 0].tolist() == [start, 20 if start == 0 else -1]
        assert found.lines_agree
