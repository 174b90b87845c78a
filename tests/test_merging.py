"""Merged reading: every chosen passage word for word, in document order, and nothing twice."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mio_rag import Selector, select
from mio_rag.context import (
    APART,
    RegexCounter,
    documents,
    merged,
    passage_tokens,
    render_context,
    shared_characters,
)
from mio_rag.pool import Candidates
from mio_rag.types import Passage

_DOCUMENT = " ".join(f"word{k}" for k in range(60))


def _pool(spans, sources=None, titles=None, texts=None, relevance=None, document=_DOCUMENT):
    """Candidates that lie at these places of a document, where their texts are not given."""
    texts = texts or [document[start:end] for start, end in spans]
    n = len(texts)
    sources, titles = sources or ["d"] * n, titles or ["Title"] * n
    passages = [
        Passage(f"p{k}", text, title) for k, (text, title) in enumerate(zip(texts, titles, strict=True))
    ]
    return Candidates(
        ids=[p.id for p in passages],
        texts=texts,
        relevance=np.linspace(1, 0.5, n) if relevance is None else relevance,
        tokens=passage_tokens(passages, RegexCounter()),
        titles=titles,
        sources=sources,
        spans=spans,
    )


def _block(pool, chosen):
    return render_context(block.passage for block in merged(pool, chosen))


class TestMerged:
    def test_an_overlap_is_read_once_and_the_title_too(self):
        pool = _pool([(0, 23), (12, 47)])
        assert _block(pool, [1, 0]) == f"Title\n{_DOCUMENT[:47]}"
        parts = merged(pool, [1, 0])[0].parts
        assert [(part.id, part.start, part.end) for part in parts] == [("p0", 0, 23), ("p1", 12, 47)]

    def test_what_touches_goes_on_and_what_nobody_knows_is_a_line_s_end(self):
        words = "alpha beta\n\ngamma"
        assert _block(_pool([(0, 5), (6, 10)], document=words), [0, 1]) == "Title\nalpha\nbeta"
        assert _block(_pool([(0, 10), (12, 17)], document=words), [0, 1]) == "Title\nalpha beta\ngamma"
        assert _block(_pool([(0, 5), (5, 10)], document=words), [0, 1]) == "Title\nalpha beta"

    def test_a_gap_beside_white_space_is_none_that_a_splitter_stripped(self):
        words = "Rome fell"
        assert _block(_pool([(0, 2), (4, 9)], document=words), [0, 1]) == f"Title\nRo{APART} fell"
        assert _block(_pool([(0, 5), (6, 9)], document=words), [0, 1]) == f"Title\nRome {APART}ell"
        assert _block(_pool([(0, 4), (5, 9)], document=words), [0, 1]) == "Title\nRome\nfell"

    def test_a_number_that_a_splitter_cut_at_its_comma_is_not_read_as_two_words_of_one_line(self):
        assert _block(_pool([(0, 2), (3, 13)], document="12,410 metres"), [0, 1]) == "Title\n12\n410 metres"

    def test_between_sentences_white_space_is_as_it_was(self):
        pool = replace(_pool([(0, 7), (8, 15)], document="It was. So it is"), cut_from=["p", "p"])
        assert _block(pool, [0, 1]) == "Title\nIt was. So it i"

    def test_what_lies_apart_is_marked(self):
        assert _block(_pool([(0, 5), (18, 23)]), [1, 0]) == f"Title\nword0{APART}word3"

    def test_a_passage_within_another_adds_nothing(self):
        pool = _pool([(0, 47), (12, 23)])
        (block,) = merged(pool, [0, 1])
        assert block.passage.text == _DOCUMENT[:47]
        assert [(p.id, p.start, p.end) for p in block.parts] == [("p0", 0, 47), ("p1", 12, 23)]

    def test_other_sources_titles_and_passages_without_a_place_stay_apart(self):
        spans = [(0, 23), (12, 47), (12, 47), (-1, -1)]
        texts = [_DOCUMENT[:23], _DOCUMENT[12:47], _DOCUMENT[12:47], _DOCUMENT[12:47]]
        pool = _pool(spans, ["a", "b", "a", "a"], ["T", "T", "U", "T"], texts)
        assert len(merged(pool, [0, 1, 2, 3])) == 4
        assert set(documents(pool).tolist()) == {0, 1, 2, -1}

    def test_passages_of_a_document_that_contradicts_itself_are_read_by_themselves(self):
        texts = [_DOCUMENT[:23], "x" * 35, _DOCUMENT[18:40], _DOCUMENT[47:60], "other"]
        spans = [(0, 23), (12, 47), (18, 40), (47, 60), (0, 5)]
        pool = _pool(spans, ["d"] * 4 + ["e"], texts=texts)
        assert documents(pool).tolist() == [-1, -1, -1, -1, 1]
        assert [block.passage.text for block in merged(pool, range(5))] == texts

    def test_two_versions_of_a_document_are_never_joined_to_one_sentence(self):
        old, new = "The bridge closes at nine in the evening.", "The bridge is shut and closes at six today."
        texts = [old[:20], new[:20], new[20:]]
        pool = _pool([(0, 20), (0, 20), (20, len(new))], texts=texts)
        assert [block.passage.text for block in merged(pool, [0, 2])] == [texts[0], texts[2]]

    def test_blocks_stand_where_the_first_of_their_passages_would(self):
        pool = _pool([(0, 23), (0, 23), (12, 47)], ["a", "b", "a"])
        assert [block.passage.source for block in merged(pool, [1, 2, 0])] == ["b", "a"]

    def test_shared_characters(self):
        assert shared_characters(_pool([(0, 23), (12, 47), (23, 29)])).tolist() == [
            [0, 11, 0],
            [11, 0, 6],
            [0, 6, 0],
        ]


@st.composite
def _windows(draw):
    words = draw(st.lists(st.text("ab\u00e9 \n.", min_size=1, max_size=6), min_size=3, max_size=30))
    document = "".join(words) + "."
    pairs = st.tuples(st.integers(0, len(document) - 1), st.integers(1, 30))
    places = draw(st.lists(pairs, min_size=1, max_size=12))
    spans = [(a, min(a + size, len(document))) for a, size in places]
    kept = [(a, b) for a, b in spans if document[a:b].strip()] or [(0, len(document))]
    sources = [draw(st.sampled_from(["one", "two"])) for _ in kept]
    chosen = draw(st.permutations(range(len(kept))))
    return document, kept, sources, chosen[: draw(st.integers(1, len(kept)))]


class TestProperties:
    @settings(max_examples=300, deadline=None)
    @given(_windows())
    def test_every_passage_is_in_the_text_in_order_and_nothing_twice(self, made):
        document, spans, sources, chosen = made
        pool = _pool(spans, sources, document=document)
        blocks = merged(pool, chosen)
        assert sorted(part.id for block in blocks for part in block.parts) == sorted(f"p{i}" for i in chosen)
        for block in blocks:
            text, places = block.passage.text, [spans[int(part.id[1:])] for part in block.parts]
            for part, (start, end) in zip(block.parts, places, strict=True):
                assert text[part.start : part.end] == document[start:end]
            assert places == sorted(places, key=lambda place: place[0])
            covered = {k for start, end in places for k in range(start, end)}
            stretches = len({k for k in covered if k - 1 not in covered})
            between = len(text) - len(
                covered
            )  # each character of the document once, and what parts stretches
            assert 0 <= between <= len(APART) * (stretches - 1)

    @settings(max_examples=60, deadline=None)
    @given(_windows(), st.data())
    def test_texts_that_contradict_each_other_are_all_read_word_for_word(self, made, data):
        """A source that changed while it was indexed: some passages are of its older text."""
        document, spans, sources, chosen = made
        at = data.draw(st.integers(0, len(document) - 1))
        other = f"{document[:at]}#{document[at + 1 :]}"
        texts = [data.draw(st.sampled_from((document, other)))[a:b] for a, b in spans]
        blocks = merged(_pool(spans, sources, texts=texts), chosen)
        read = {part.id: (block, part) for block in blocks for part in block.parts}
        assert len(read) == sum(len(block.parts) for block in blocks) == len(chosen)
        for i in chosen:
            block, part = read[f"p{i}"]
            assert block.passage.text[part.start : part.end] == texts[i]
        for block in blocks:
            starts = [spans[int(part.id[1:])][0] for part in block.parts]
            assert starts == sorted(starts)
            together = {k for part in block.parts for k in range(*spans[int(part.id[1:])])}
            stretches = len({k for k in together if k - 1 not in together})
            assert len(block.passage.text) <= len(together) + len(APART) * (stretches - 1)

    @settings(max_examples=100, deadline=None)
    @given(_windows(), st.integers(1, 60))
    def test_the_budget_holds_and_the_block_is_what_was_counted(self, made, budget):
        document, spans, sources, _ = made
        pool = _pool(spans, sources, document=document)
        counter = RegexCounter()
        made = Selector.raw(redundancy_weight=0, passage_penalty=0).select(pool, budget, counter)
        assert made.tokens_used == counter.count([render_context(made.passages)])[0] <= budget


class TestSelection:
    def _windows(self, n=8, size=10, step=5):
        starts = [m.start() for m in re.finditer(r"\S+", _DOCUMENT)] + [len(_DOCUMENT) + 1]
        return [(starts[k * step], starts[k * step + size] - 1) for k in range(n)]

    def test_what_overlaps_leaves_room_for_more(self):
        pool = _pool(self._windows(), titles=[""] * 8)
        select = Selector.raw(redundancy_weight=0, passage_penalty=0, max_per_source=None).select
        counter = RegexCounter()
        apart = Selector.raw(redundancy_weight=0, passage_penalty=0, merge=False).select(pool, 60, counter)
        together = select(pool, 60, counter)
        assert len(together.chosen) > len(apart.chosen)
        assert together.tokens_used <= 60
        assert together.tokens_used < int(pool.tokens[list(together.chosen)].sum())
        assert len(apart.passages) == len(apart.chosen)
        assert not apart.is_merged

    def test_passages_are_what_is_read_and_ids_what_was_chosen(self):
        pool = _pool(self._windows())
        found = Selector.raw(redundancy_weight=0, passage_penalty=0).select(pool, 200, RegexCounter())
        assert len(found.ids) == 8
        assert len(found.passages) == len(found.texts) == 1
        data = found.to_dict()
        assert [part["id"] for part in data["read"][0]["parts"]] == [f"p{k}" for k in range(8)]
        assert data["read"][0]["text"] == found.texts[0]

    def test_without_a_counter_texts_stay_apart_since_nobody_can_count_what_they_make(self):
        pool = _pool(self._windows())
        found = Selector.raw(redundancy_weight=0, passage_penalty=0).select(pool, 100)
        assert not found.is_merged
        assert len(found.passages) == len(found.ids)

    def test_must_include_holds_while_the_room_grows(self):
        pool = _pool(self._windows())
        chooser = Selector.raw(redundancy_weight=0, passage_penalty=0, must_include=("p7",))
        assert "p7" in chooser.select(pool, 60, RegexCounter()).ids


def test_versions_that_only_their_files_date_are_told_apart() -> None:
    given = [
        Passage(
            f"p{k}",
            f"The landing fee is {fee} euros.",
            title="Fees",
            source=f"in/fees-{year}.md",
            start=0,
            end=28,
        )
        for k, (fee, year) in enumerate([(30, 2024), (40, 2025)])
    ]
    found = select("How has the landing fee changed?", given, scores=[0.9, 0.8], budget=40)
    assert found.context.startswith("Fees (2024)\nThe landing fee is 30 euros.\n\nFees (2025)\n")
    assert RegexCounter().count([found.context]) == [found.tokens]
