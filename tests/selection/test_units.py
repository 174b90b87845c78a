"""Sentences as units: what is cut, what it is worth and costs; what is read is the passages' text."""

import itertools

import numpy as np
import pytest

from mio_rag.context import APART, RegexCounter, block_tokens, render_context
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever, TfidfEmbedder
from mio_rag.selection.program import Formulation
from mio_rag.selection.selector import Selector
from mio_rag.selection.units import MOST_UNITS, cut_into_sentences
from mio_rag.sentences import Sentences, sentence_spans
from mio_rag.types import Passage
from tests.selection.pools import replace

COUNTER = RegexCounter()
DOCUMENT = (
    "The Arno rises on Mount Falterona. It flows through Florence and Pisa. "
    "Bread is sold on its banks. The Arno is 241 kilometres long. They say it floods."
)


def pool(
    texts, relevance, *, spans=None, titles=None, sources=None, question="How long is the Arno?", **more
):
    """Candidates with sentences, embedded by their words' hashes."""
    cut = [sentence_spans(text) for text in texts]
    said = [text[a:b] for text, found in zip(texts, cut, strict=True) for a, b in found]
    sentences = Sentences(
        np.repeat(np.arange(len(texts)), [len(found) for found in cut]),
        np.array([span for found in cut for span in found]).reshape(-1, 2),
        np.array([_vector(text) for text in said], dtype=np.float32),
    )
    return Candidates(
        ids=[f"p{k}" for k in range(len(texts))],
        texts=texts,
        relevance=np.array(relevance, dtype=float),
        tokens=COUNTER.count(texts),
        query_embedding=_vector(question),
        question=question,
        spans=spans,
        titles=titles,
        sources=sources,
        sentences=sentences,
        **more,
    )


def _vector(text):
    made = np.zeros(16)
    for word in text.lower().split():
        made[sum(map(ord, word)) % 16] += 1
    return made / max(1e-9, float(np.linalg.norm(made)))


def windows(step=70, size=140):
    starts = range(0, len(DOCUMENT) - step, step)
    texts = [DOCUMENT[a : a + size] for a in starts]
    kept = [(a, text) for a, text in zip(starts, texts, strict=True) if text.strip()]
    return pool(
        [text for _, text in kept],
        np.linspace(0.9, 0.5, len(kept)),
        spans=[(a, a + len(text)) for a, text in kept],
        titles=["Arno"] * len(kept),
        sources=["arno.md"] * len(kept),
    )


def cut(candidates, fixed=None, related=None, one=True):
    n = len(candidates)
    return cut_into_sentences(
        candidates, COUNTER, np.full(n, -1, dtype=np.int8) if fixed is None else np.array(fixed), related, one
    )


SENTENCES = Selector(relevance_model="given", units="sentences", passage_penalty=0.0)


class TestCut:
    def test_every_sentence_is_a_unit_and_a_pronoun_brings_the_one_before(self):
        found = cut(pool([DOCUMENT], [0.8])).candidates
        assert sorted(found.ids) == [f"p0#s{k}" for k in range(1, 6)]
        texts = dict(zip(found.ids, found.texts, strict=True))
        assert texts["p0#s4"] == "The Arno is 241 kilometres long."
        assert texts["p0#s2"].startswith("The Arno rises on Mount Falterona. It flows")
        assert texts["p0#s5"].startswith("The Arno is 241 kilometres long. They say")
        assert set(found.cut_from) == {"p0"}
        assert (np.diff(found.relevance) <= 0).all()

    def test_overlapping_windows_give_every_sentence_once(self):
        found = cut(windows()).candidates
        whole = [text for text in found.texts if text == "The Arno is 241 kilometres long."]
        assert len(whole) == 1
        assert all(DOCUMENT[a:b] == t for (a, b), t in zip(found.spans, found.texts, strict=True))
        ends = found.spans[:, 1].tolist()
        assert len(set(zip(found.spans[:, 0].tolist(), ends, strict=True))) == len(ends)

    def test_places_of_windows_that_contradict_each_other_are_kept_apart(self):
        texts = ["One fish swims here now.", "Two fish swim."]
        given = pool(texts, [0.5, 0.4], spans=[(0, 24), (4, 18)], titles=["", ""], sources=["s", "s"])
        assert sorted(cut(given).candidates.texts) == sorted(texts)

    def test_sentences_of_a_document_that_contradicts_itself_are_not_read_together(self):
        old = "The bridge closes at nine. Carts have to wait outside."
        new = "The bridge is shut. Carts may pass. Horses drink at the well. Bread is sold there."
        given = pool(
            [old, new, "Elsewhere it rains."],
            [0.5, 0.4, 0.3],
            spans=[(0, len(old)), (0, len(new)), (-1, -1)],
            titles=["Rules"] * 3,
            sources=["rules.md"] * 3,
        )
        read = SENTENCES.select(given, 200, COUNTER).texts
        assert {text for text in read if "nine" in text} == {old}
        assert {text for text in read if "Bread" in text} == {new}

    def test_the_newest_of_versions_is_cut_and_otherwise_the_most_relevant(self):
        texts = ["The bridge closes at nine.", "The bridge closes at ten."]
        alike = np.array([[0, 0.9], [0.9, 0]])
        dated = pool(texts, [0.9, 0.4], duplicates=alike, dates=["2024-01-01", "2025-01-01"])
        assert cut(dated).candidates.cut_from == ("p1",)
        undated = replace(dated, dates=None)
        assert cut(undated).candidates.cut_from == ("p0",)
        assert cut(undated, fixed=[-1, 1]).candidates.cut_from == ("p1",)
        assert sorted(cut(undated, one=False).candidates.cut_from) == ["p0", "p1"]
        all_ = " (selection.near_duplicates=all reads both)"
        newer = f"left out: 'p0', an older version of 'p1'{all_}"
        same = f"left out: 'p1', nearly the same as 'p0'{all_}"
        assert newer in SENTENCES.select(dated, 50, COUNTER).notes
        assert same in SENTENCES.select(undated, 50, COUNTER).notes

    def test_of_near_duplicates_what_is_not_cut_replaces_nothing(self):
        texts = ["The bridge closes at nine.", "The bridge closes at ten.", "The bridge closes at noon."]
        alike = np.array([[0, 0.9, 0], [0.9, 0, 0.9], [0, 0.9, 0]])
        given = pool(texts, [0.2, 0.4, 0.9], duplicates=alike)
        assert sorted(cut(given).candidates.cut_from) == ["p0", "p2"]
        assert cut(given).not_cut == {1: 2}

    def test_what_a_required_passage_says_is_not_said_again(self):
        given = pool(["Bread needs flour. Salt helps.", "Bread  needs flour. Rome lies far."], [0.1, 0.9])
        found = cut(given, fixed=[1, -1]).candidates
        assert sorted(found.texts) == ["Bread needs flour.", "Rome lies far.", "Salt helps."]
        assert found.cut_from[found.texts.index("Bread needs flour.")] == "p0"

    def test_the_same_words_about_two_things_are_two_sentences(self):
        texts = ["It stands in the sea. Its tower has 48 metres."] * 2
        towers = pool(texts, [0.9, 0.4], titles=["Skerryvore", "Ardmore"], dates=["2019-01-01", "2024-01-01"])
        assert sorted(cut(towers).candidates.cut_from) == ["p0", "p0", "p1", "p1"]
        versions = replace(towers, titles=["Skerryvore"] * 2)
        assert sorted(cut(versions).candidates.cut_from) == ["p1", "p1"]

    def test_rows_and_items_keep_their_lines(self):
        table = "## Opening hours\n- Museum: 10 to 18\n- Cafe: 9 to 17. Tea is free.\n\nThe Arno is long."
        given = pool([table], [0.9], spans=[(0, len(table))], titles=["Arno"], sources=["arno.md"])
        assert SENTENCES.select(given, 200, COUNTER).texts == (table,)

    def test_a_required_passage_is_read_by_its_name_where_others_hold_its_text(self):
        inner = "Bread is sold on its banks. The Arno is 241 kilometres long."
        at, end = DOCUMENT.index(inner), DOCUMENT.index(inner) + len(inner)
        spans = [(0, len(DOCUMENT)), (at, end), (at + 3, end)]
        given = pool(
            [DOCUMENT[a:b] for a, b in spans],
            [0.9, 0.1, 0.1],
            spans=spans,
            titles=["Arno"] * 3,
            sources=["arno.md"] * 3,
        )
        for must in (["p1"], ["p2"], ["p1", "p2"]):
            found = replace(SENTENCES, must_include=must).select(given, 200, COUNTER)
            assert set(must) <= set(found.ids)
            assert found.texts == (DOCUMENT,)

    def test_a_relation_of_passages_is_one_of_their_best_sentences(self):
        related = np.array([[0, 0.2], [0.2, 0]])
        found = cut(pool([DOCUMENT, "The Arno is long. Bread is good."], [0.8, 0.6]), related=related)
        assert np.count_nonzero(found.related) == 2
        i, j = np.argwhere(found.related)[0]
        firsts = [found.candidates.cut_from.index(name) for name in ("p0", "p1")]
        assert {int(i), int(j)} == set(firsts)

    def test_the_most_probable_sentences_are_the_pool_beside_required_ones(self):
        many = " ".join(f"The Arno has bridge number {k}." for k in range(MOST_UNITS + 20))
        given = pool([many, "Bread is sold."], [0.9, 0.0])
        assert len(cut(given).candidates) == MOST_UNITS
        found = cut(given, fixed=[-1, 1])
        assert len(found.candidates) == MOST_UNITS + 1
        assert found.fixed.tolist() == [-1] * MOST_UNITS + [1]


class TestSelect:
    def test_what_is_read_fits_and_is_text_of_the_document_in_order(self):
        given = windows()
        for budget in (12, 20, 35, 60, 200):
            found = SENTENCES.select(given, budget, COUNTER)
            assert found.result.is_optimal
            block = COUNTER.count([render_context(found.passages)])[0] if found.chosen else 0
            assert found.tokens_used == block <= budget
            for passage in found.passages:
                assert passage.title == "Arno"
                places = [DOCUMENT.find(piece) for piece in passage.text.split("\n\u2026\n")]
                assert places == sorted(places)
                assert -1 not in places
            assert set(found.ids) <= set(given.ids)
            assert found.pool is not found.candidates
        assert found.texts == (DOCUMENT,)

    def test_the_choice_is_the_best_of_all(self):
        given = pool([DOCUMENT, "The Arno is long. Bread is good."], [0.8, 0.6], titles=["Arno", "More"])
        selector = replace(SENTENCES, passage_penalty=0.05, token_price=0.002)
        made = Formulation(selector, given, COUNTER)
        program = made.program(40)

        def best_of(one):
            choices = itertools.product((0, 1), repeat=one.n)
            return max(one.objective(x) for x in choices if not one.violations(x))

        found = selector.select(given, 40, COUNTER)
        # What the text counts less than its parts is given back: the proof is for that budget of parts.
        assert found.tokens_used <= 40 <= found.program.budget
        assert found.result.objective == pytest.approx(best_of(found.program))
        assert found.result.objective >= best_of(program) - 1e-9
        within = [
            program.objective(x)
            for x in itertools.product((0, 1), repeat=program.n)
            if block_tokens(made.candidates, [i for i, taken in enumerate(x) if taken], COUNTER, True) <= 40
        ]
        assert found.result.objective <= max(within) + 1e-9
        penalty = 0.05 * cut(given).shares
        assert program.linear == pytest.approx(
            made.candidates.relevance - penalty - 0.002 * program.costs, abs=1e-12
        )

    def test_titles_are_paid_once(self):
        made = Formulation(SENTENCES, windows(), COUNTER)
        everything = made.program(60).cost(np.ones(len(made.candidates)))
        read = COUNTER.count([f"Arno\n{DOCUMENT}"])[0]
        marks = COUNTER.count([APART])[0] * (len(made.candidates) - 1)
        assert read <= everything <= read + marks < made.candidates.tokens.sum()

    def test_passages_that_must_be_read_are_read_whole_and_excluded_ones_are_not_cut(self):
        given = pool([DOCUMENT, "Bread needs flour. It needs salt."], [0.8, 0.1])
        found = replace(SENTENCES, must_include=["p1"], passage_penalty=0.3).select(given, 80, COUNTER)
        assert "Bread needs flour. It needs salt." in found.texts
        without = replace(SENTENCES, must_exclude=["p0"]).select(given, 80, COUNTER)
        assert without.ids == ("p1",)

    def test_sources_and_places_are_those_of_the_passages(self):
        old, new = "It was dry. The bridge closes at nine.", "The bridge is shut. Carts may pass over it."
        given = pool(
            [old, new, "Elsewhere it rains. It often does.", "The Arno is long. Bread is good."],
            [0.5, 0.4, 0.3, 0.6],
            spans=[(0, len(old)), (0, len(new)), (-1, -1), (7, 39)],
            sources=["rules.md", "rules.md", "", "arno.md"],
        )
        found = SENTENCES.select(given, 200, COUNTER)
        assert [(block.passage.source, block.passage.text) for block in found.blocks] == [
            ("arno.md", "The Arno is long. Bread is good."),
            ("rules.md", old),
            ("rules.md", new),
            ("", "Elsewhere it rains. It often does."),
        ]
        places = {one["text"]: one["source"] for one in found.to_dict(why=True)["reasons"]}
        assert places["It was dry."] == "rules.md"
        alone = [
            candidate
            for candidate in map(found.candidates.passage, range(len(found.candidates)))
            if candidate.start is not None
        ]
        assert {(one.source, one.text, one.start) for one in alone} == {
            ("arno.md", "The Arno is long.", 7),
            ("arno.md", "Bread is good.", 25),
        }


def test_from_the_index_to_the_text():
    passages = [
        Passage("a", "The Arno rises in Tuscany. It is 241 kilometres long. Bread is sold there.", "Arno"),
        Passage("b", "The Tiber is 406 kilometres long. Rome lies on the Tiber.", "Tiber"),
        Passage("c", "Flour and water make bread. Salt helps.", "Bread"),
    ]
    index = CorpusIndex.build(passages, TfidfEmbedder(), "rivers", sentences=True)
    found = Retriever(index, counter=COUNTER).retrieve("How long is the Tiber?")
    chosen = Selector(units="sentences").select(found, 20, COUNTER)
    assert "The Tiber is 406 kilometres long." in chosen.texts[0]
    assert chosen.ids[0] == "b"
    # Nobody need have embedded them: then words tell them apart.
    bare = CorpusIndex.build(passages, TfidfEmbedder(), "rivers")
    given = Retriever(bare, counter=COUNTER).retrieve("How long is the Tiber?")
    assert given.sentences is None
    for asked in (given, replace(given, embeddings=None, query_embedding=None)):
        by_words = Selector(units="sentences").select(asked, 20, COUNTER)
        assert by_words.texts[0].startswith("The Tiber is 406 kilometres long.")
        assert by_words.tokens_used <= 20
        assert by_words.result.is_optimal
    # How similar they are is told by their words then.
    made = Formulation(Selector(units="sentences", redundancy_weight=0.1), given, COUNTER).candidates
    tiber, rome, bread = map(
        made.texts.index,
        ("The Tiber is 406 kilometres long.", "Rome lies on the Tiber.", "Flour and water make bread."),
    )
    assert made.similarity[tiber, rome] > made.similarity[tiber, bread] == 0
    np.testing.assert_allclose(np.diag(made.similarity), 1)
    dear = Selector(units="sentences", redundancy_weight=5.0, passage_penalty=0.0)
    assert "Rome" not in " ".join(dear.select(given, 60, COUNTER).texts)


def test_documents_that_contradict_themselves_are_read_apart_from_an_index_too() -> None:
    passages = [
        Passage("a", "The toll bridge is red.", "T", "s", 0),
        Passage("b", "toll bridge is blue. Nice view.", "T", "s", 4),
        Passage("c", "The ferry is slow.", "T", "r", 0),
        Passage("d", "It is cheap.", "T", "r", 18),
    ]
    index = CorpusIndex.build(passages, "tfidf", "bridges", sentences=True)
    retriever = Retriever(index, counter=COUNTER)
    one, other = map(retriever.retrieve, ("Which colour has the toll bridge?", "Is the ferry slow?"))
    for given in (one, one.merge(other, 4, set())):
        found = Selector(passage_penalty=0.0, units="sentences", prompt_order="document").select(
            given, 200, COUNTER
        )
        read = [block.passage.text for block in found.blocks]
        assert not any("red" in text and "blue" in text for text in read)
        assert any("red" in text for text in read)
        assert any("blue" in text for text in read)


def test_a_document_that_contradicts_itself_is_not_taken_for_one_that_has_its_passage_s_name() -> None:
    given = pool(
        ["The bridge is red and old.", "bridge is blue and old.", "Cats are nice and soft."],
        [0.9, 0.9, 0.9],
        spans=[(0, 26), (4, 27), (40, 63)],
        titles=["T"] * 3,
        sources=["x", "x", "p0"],
        positions=range(3),
    )
    chosen = Selector(passage_penalty=0.0, units="sentences", relevance_model="given").select(
        given, 300, COUNTER
    )
    assert sorted(block.passage.source for block in chosen.blocks) == ["p0", "x", "x"]
