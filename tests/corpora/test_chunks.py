"""How text is cut into passages: whole sentences, an overlap, every word in order."""

from pathlib import Path

import pysbd
import pytest

from mio_rag.corpora.documents import _pieces, _placed_chunks, chunk_text, load_folder
from mio_rag.errors import InputError


def test_one_long_paragraph_is_split_in_time_that_grows_with_its_length() -> None:
    """The splitter's time is quadratic in what it is given at once."""
    text = "The Arno flows through Florence to the sea. It is 241 km long. " * 600
    chunks = chunk_text(text.strip())
    assert " ".join(chunks).split() == text.split()
    assert all(chunk.endswith(("sea.", "long.")) for chunk in chunks)
    assert max(map(len, _pieces(text))) <= 4000
    assert list(_pieces("x" * 9000 + " end")) == ["x" * 9000, "end"]


def test_one_endless_word_is_not_searched_for_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = []
    segment = pysbd.Segmenter.segment
    monkeypatch.setattr(
        pysbd.Segmenter, "segment", lambda self, text: longest.append(len(text)) or segment(self, text)
    )
    text = "[" * 100_000 + ". An end."
    assert " ".join(chunk_text(text)).split() == text.split()
    assert max(longest) <= 4000


PROSE = (
    "Dr. Smith crossed the Po at 3.5 km/h on 1 Jan. 1901. He was late! Why? Nobody knows, e.g. he didn't.\n\n"
    "AT&T v. Smith & Co. (1987) was decided... Prices rose \u26a0 by 2.5 %. "
    "See http://x.org/a?q=1. \u266c \u222f Signs & wonders \u2302 remain. " + "word " * 45 + "end."
)


@pytest.mark.parametrize("max_words", [1, 7, 20, 1000])
def test_chunks_hold_every_word_in_order(max_words: int) -> None:
    chunks = chunk_text(PROSE, max_words)
    assert " ".join(chunks).split() == PROSE.split()
    assert all(len(chunk.split()) <= max_words for chunk in chunks)


def test_more_overlap_than_sentences_repeats_what_fits_not_less() -> None:
    text = "A b. C d. E f. G h. I j."
    three, four = (chunk_text(text, 6, overlap_sentences=k) for k in (3, 4))
    assert three == four == ["A b. C d. E f.", "C d. E f. G h.", "E f. G h. I j."]


def test_chunks_keep_sentences_whole_and_overlap() -> None:
    text = "One two three. Four five. Six seven eight nine. Ten."
    assert chunk_text(text, 6) == ["One two three. Four five.", "Six seven eight nine. Ten."]
    assert chunk_text(text, 6, overlap_sentences=1) == [
        "One two three. Four five.", "Four five. Six seven eight nine.", "Six seven eight nine. Ten.",
    ]  # fmt: skip
    assert chunk_text(" \n\n ") == []
    with pytest.raises(InputError, match="max_words=0"):
        chunk_text("x", 0)


def test_offsets_count_a_document_with_its_white_space_collapsed(tmp_path: Path) -> None:
    sentences = [f"Sentence number {k} of the story  has\nsome words." for k in range(40)]
    text = "\n\n".join(" ".join(sentences[k : k + 4]) for k in range(0, 40, 4))
    (tmp_path / "story.txt").write_text(text, encoding="utf-8")
    whole = " ".join(text.split())
    for overlap in (0, 1, 3):
        passages = load_folder(tmp_path, max_words=40, overlap_sentences=overlap).passages
        assert len(passages) > 5
        assert all(whole[p.start : p.end] == p.text for p in passages)
        assert (passages[1].start < passages[0].end) == (overlap > 0)


MARKDOWN = """# Lights

The tower was built by
Robert Stevenson in 1811. It is tall.

| what | cost |
|------|------|
| lamp | 4 |

## Keepers
The last keepers left. See:

- oil, which is dear
  and heavy
- wicks
2. Second one

Dr. Smith said so - and 3 others.
"""


def test_headings_rows_and_items_begin_a_line_and_wrapped_text_does_not() -> None:
    (chunk,) = chunk_text(MARKDOWN)
    assert chunk.split("\n") == [
        "# Lights",
        "The tower was built by Robert Stevenson in 1811. It is tall.",
        "| what | cost |",
        "|------|------|",
        "| lamp | 4 |",
        "## Keepers",
        "The last keepers left. See:",
        "- oil, which is dear and heavy",
        "- wicks",
        "2. Second one",
        "Dr. Smith said so - and 3 others.",
    ]


@pytest.mark.parametrize(("words", "overlap"), [(5, 0), (12, 1), (30, 2), (500, 0)])
def test_places_are_those_in_the_text_with_its_white_space_collapsed(words: int, overlap: int) -> None:
    flat, reached = " ".join(MARKDOWN.split()), 0
    for start, chunk in _placed_chunks(MARKDOWN, words, overlap):
        assert flat[start : start + len(chunk)] == chunk.replace("\n", " ")
        assert start <= reached + 1  # nothing is left out
        reached = max(reached, start + len(chunk))
    assert reached == len(flat)
