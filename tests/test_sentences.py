"""Where sentences begin and end, and what the sentences of a pool must hold."""

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.generation.extractive import sentences
from mio_rag.pool import Candidates
from mio_rag.sentences import Sentences, leans, sentence_spans

TEXT = 'Dr. J. Smith left (at 9 a.m.). "It rained." He stayed!\n\n  A new line\nends one. '


def test_spans_are_the_sentences_without_the_white_space_around_them():
    found = [TEXT[a:b] for a, b in sentence_spans(TEXT)]
    assert found == [
        "Dr. J. Smith left (at 9 a.m.).",
        '"It rained."',
        "He stayed!",
        "A new line",
        "ends one.",
    ]
    assert sentences(TEXT) == found


def test_a_wrapped_line_goes_on_in_lower_case_and_rows_of_a_table_stay_apart():
    text = "Our report\nfully complies. Net sales\n  of 2022:\nMac 11,508\n7,174 iPads\n\nand costs\n\tfell."
    found = [text[a:b] for a, b in sentence_spans(text, wrapped=True)]
    assert found == [
        "Our report\nfully complies.",
        "Net sales\n  of 2022:",
        "Mac 11,508",
        "7,174 iPads",
        "and costs\n\tfell.",
    ]
    assert len(sentence_spans(text)) == 8
    assert sentence_spans("It is. I saw.\nWe ate. Bo\nwent.", wrapped=True)[-1] == (22, 30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # What a contract numbers, and its headings, stand with what they head.
        ("1. Term. This runs for a year. It ends.", ["1. Term. This runs for a year.", "It ends."]),
        ("He paid (Mr. Bo, ext. 4711). All is well.", ["He paid (Mr. Bo, ext. 4711).", "All is well."]),
        ("Born c. 1765 to Gen. Hood, cf. p. 3.", ["Born c. 1765 to Gen. Hood, cf. p. 3."]),
        ("He lost in 1998. Bo got 5. All saw.", ["He lost in 1998.", "Bo got 5.", "All saw."]),
        ("Schäden gab es am 6. Januar 1945. Sie blieb.", ["Schäden gab es am 6. Januar 1945.", "Sie blieb."]),
        ("Am 31. Mai begann es. Es blieb.", ["Am 31. Mai begann es.", "Es blieb."]),
        (
            "Li et al. (2023) saw [4]. So did Bo et al. We try.",
            ["Li et al. (2023) saw [4].", "So did Bo et al.", "We try."],
        ),
        ("He said no. Five came.", ["He said no.", "Five came."]),
        ("A bold claim! Why? It is so.", ["A bold claim! Why?", "It is so."]),
        ("| Name | Height |\n|---|---|\n| Arno | 5 m |", ["| Name | Height |\n|---|---|", "| Arno | 5 m |"]),
        ("| Name |\n\n---\n\nArno", ["| Name |", "---", "Arno"]),
        ("A row\n…\nA row", ["A row", "…", "A row"]),  # what stands between passages is not theirs
        ("Revenue\n2026 1,309\n2027 874", ["Revenue", "2026 1,309", "2027 874"]),
    ],
)
def test_a_piece_that_says_nothing_alone_stays_with_its_sentence(text, expected):
    assert [text[a:b] for a, b in sentence_spans(text, wrapped=True)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Он построен. Там жил М. Ю. Лермонтов.", ["Он построен.", "Там жил М. Ю. Лермонтов."]),
        ("高さは31メートル。彼は「来た。」と言った。", ["高さは31メートル。", "彼は「来た。」と言った。"]),
        ("Žádný maják. Šumavský kámen. Člověk šel.", ["Žádný maják.", "Šumavský kámen.", "Člověk šel."]),
        ("Είναι ψηλός. Τον έχτισε.", ["Είναι ψηλός.", "Τον έχτισε."]),
        ("هل هو طويل؟ نعم هو كذلك.", ["هل هو طويل؟", "نعم هو كذلك."]),
        ("¿Qué es esto? ¡Nada más! ¿Y cómo fue?", ["¿Qué es esto?", "¡Nada más!", "¿Y cómo fue?"]),
        ("Первая строка\nпродолжается. Всё ясно.", ["Первая строка\nпродолжается.", "Всё ясно."]),
    ],
)
def test_every_script_has_sentences(text, expected):
    assert [text[a:b] for a, b in sentence_spans(text, wrapped=True)] == expected


def test_nothing_but_white_space_is_lost():
    covered = "".join(TEXT[a:b] for a, b in sentence_spans(TEXT))
    assert "".join(covered.split()) == "".join(TEXT.split())


def test_a_long_piece_is_a_sentence_of_its_own():
    genome = "ACGT" * 20_000
    text = f"It was read. {genome} It is long."
    assert [text[a:b] for a, b in sentence_spans(text)] == ["It was read.", f"{genome} It is long."]
    figures = "1999 2.5 " * 10
    assert len(sentence_spans(f"Sales were good. {figures}")) == 2


@pytest.mark.parametrize(
    ("sentence", "does"),
    [
        ("He left.", True),
        ('"These were lost."', True),
        ("The latter won.", True),
        ("Heather left.", False),
        ("The city won.", False),
        ("Italy won.", False),
    ],
)
def test_sentences_that_start_with_a_pronoun_lean(sentence, does):
    assert leans(sentence) is does


def made(owners, spans, width=2):
    return Sentences(
        np.array(owners, dtype=np.int64),
        np.array(spans, dtype=np.int64).reshape(-1, 2),
        np.ones((len(owners), width), dtype=np.float32),
    )


@pytest.mark.parametrize(
    ("sentences_given", "said"),
    [
        (made([2], [(0, 1)]), "up to 2, of 2"),
        (made([1], [(0, 9)]), "beyond the text"),
        (made([0], [(0, 1)], width=3), "3 dimensions, the question 2"),
    ],
)
def test_sentences_must_fit_their_pool(sentences_given, said):
    with pytest.raises(InputError, match=said):
        Candidates(
            ids=["a", "b"],
            texts=["one", "two"],
            relevance=np.ones(2),
            tokens=np.ones(2, dtype=int),
            query_embedding=np.ones(2),
            sentences=sentences_given,
        )
