import pytest
from hypothesis import given
from hypothesis import strategies as st

from mio_rag.context import SEPARATOR, RegexCounter, TokenCounter, render_context, render_passage
from mio_rag.errors import InputError
from mio_rag.generation import build_prompt
from mio_rag.types import Passage, Question

COUNTER = RegexCounter()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        (" \n\t ", 0),
        ("cat", 1),
        ("cat.", 2),
        ("letter", 1),
        ("letters", 2),  # lette-r-s: six letters and one more
        ("information retrieval", 4),
        ("12345", 2),
        ("2,850 km", 4),
        ("東京", 2),
        ("_", 1),
        ("🎉", 1),
    ],
)
def test_regex_counter_by_hand(text: str, tokens: int) -> None:
    assert COUNTER.count([text]) == [tokens]


@given(st.text(), st.text())
def test_regex_counter_is_additive_at_blank_lines(a: str, b: str) -> None:
    whole, first, second = COUNTER.count([a + SEPARATOR + b, a, b])
    assert whole == first + second


@given(st.text())
def test_regex_counter_counts_every_text_that_is_not_blank(text: str) -> None:
    assert (COUNTER.count([text])[0] >= 1) == bool(text.strip())


def test_regex_counter_meets_the_protocol() -> None:
    assert isinstance(COUNTER, TokenCounter)
    assert COUNTER.name == "regex"


def test_passage_rendering() -> None:
    assert render_passage(Passage("a", "text", title="Title")) == "Title\ntext"
    assert render_passage(Passage("a", "text")) == "text"
    assert render_context([]) == ""
    assert render_context([Passage("a", "one", "T"), Passage("b", "two")]) == "T\none\n\ntwo"


def test_prompt_keeps_the_order_given() -> None:
    passages = [Passage("b", "second text"), Passage("a", "first text")]
    prompt = build_prompt(Question("q", "What?"), passages)
    assert prompt.passages == tuple(passages)
    assert prompt.context == "second text\n\nfirst text"
    assert prompt.context in prompt.user
    assert prompt.user.index(prompt.context) < prompt.user.index("What?")


def test_prompt_without_passages_has_no_context_block() -> None:
    prompt = build_prompt(Question("q", "What?"))
    assert prompt.context == ""
    assert prompt.user.startswith("Question: What?")
    assert "Passages" not in prompt.user


def test_multiple_choice_shows_lettered_options() -> None:
    prompt = build_prompt(Question("q", "Which?", choices=("red", "blue")))
    assert "A. red\nB. blue" in prompt.user
    assert "letter" in prompt.system
    assert "A." not in build_prompt(Question("q", "Which?")).user


def test_more_options_than_letters_are_refused() -> None:
    with pytest.raises(InputError, match="27 choices"):
        build_prompt(Question("q", "Which?", choices=tuple(map(str, range(27)))))


@pytest.mark.parametrize("hostile", ["{question}", "{context}", "{0}", "{", "}", "{{x}}", "%s \\1 \\g<0> $1"])
def test_texts_with_braces_arrive_as_they_are(hostile: str) -> None:
    question = Question("q", f"Is {hostile} kept?", choices=(f"{hostile}!", "no"))
    prompt = build_prompt(question, [Passage("a", f"text {hostile} text", f"title {hostile}")])
    assert f"title {hostile}\ntext {hostile} text" in prompt.user
    assert f"Is {hostile} kept?" in prompt.user
    assert f"A. {hostile}!" in prompt.user


def test_lone_surrogates_are_replaced() -> None:
    prompt = build_prompt(Question("q", "What \udc80?"), [Passage("a", "x \ud800 ü")])
    assert prompt.user.encode("utf-8")
    assert "x ? ü" in prompt.user


@given(st.lists(st.text(min_size=1).filter(lambda t: bool(t.strip())), max_size=4))
def test_the_context_is_a_piece_of_the_prompt(texts: list[str]) -> None:
    prompt = build_prompt(Question("q", "What?"), [Passage(str(i), t) for i, t in enumerate(texts)])
    assert prompt.context in prompt.user
