import pytest

from mio_rag.generation import ExtractiveGenerator, build_prompt, extractive
from mio_rag.generation.extractive import compare
from mio_rag.types import Passage, Question

LIBRARY = [
    Passage("danube", "The Danube is 2,850 km long. It rises in Germany and joins the Black Sea.", "Danube"),
    Passage("rhine", "The Rhine is a river of about 1,230 km. It rises in Switzerland.", "Rhine"),
    Passage("curie", "Marie Curie was a physicist born in Warsaw on 7 November 1867. "
                     "She discovered radium with her husband Pierre Curie.", "Marie Curie"),
    Passage("einstein", "Albert Einstein (born 14 March 1879 in Ulm) developed the theory of relativity. "
                        "He never learned to drive.", "Albert Einstein"),
    Passage("eiffel", "The Eiffel Tower has three levels and was completed in 1889. "
                      "About 6 million people visit it each year.", "Eiffel Tower"),
    Passage("yen", "The currency of Japan is the yen.", "Economy of Japan"),
]  # fmt: skip


def answer(question: str, passages: list[Passage] = LIBRARY, **options: int) -> str:
    return ExtractiveGenerator().generate(build_prompt(Question("q", question), passages), **options).text


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How long is the Danube?", "2,850 km"),
        ("How many people visit the Eiffel Tower each year?", "6 million"),
        ("How many levels does the Eiffel Tower have?", "three"),
        ("When was Marie Curie born?", "7 November 1867"),
        ("In what year was Marie Curie born?", "1867"),
        ("Where was Marie Curie born?", "Warsaw"),
        ("Which country does the Rhine rise in?", "Switzerland"),
        ("Who developed the theory of relativity?", "Albert Einstein"),
        ("Who discovered radium?", "Marie Curie"),  # "She" stands for the title
        ("What is the currency of Japan?", "yen"),
        ("Is the Rhine a river?", "yes"),
        ("Did Albert Einstein learn to drive?", "no"),
        ("Were both Marie Curie and Albert Einstein born in Warsaw?", "no"),
        ("Which river is longer, the Rhine or the Danube?", "Danube"),
        ("Which river is shorter, the Rhine or the Danube?", "Rhine"),
        ("Who was born first, Albert Einstein or Marie Curie?", "Marie Curie"),
        ("Who was born later, Albert Einstein or Marie Curie?", "Albert Einstein"),
    ],
)
def test_answer_types(question: str, expected: str) -> None:
    assert answer(question) == expected


TABLE = (
    "Rates\nLane | Latest pickup | Penalty per late parcel\nIberia | 17:30 | EUR 6.50\n"
    "Nordics | 18:00 | EUR 6.00\nAlps | 18:00 | \nPayment is due in May."
)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the penalty per late parcel to the Nordics?", "EUR 6.00"),
        ("What is the latest pickup for Iberia?", "17:30"),
        ("What holds for the Nordics?", "Latest pickup: 18:00; Penalty per late parcel: EUR 6.00"),
    ],
)
def test_of_a_table_the_cell_below_the_words_that_are_asked_for(question: str, expected: str) -> None:
    assert answer(question, [Passage("t", TABLE)]) == expected


def test_words_of_scripts_without_blanks_are_found() -> None:
    text = "国内の宿泊費は一万二千円です。海外の日当は七千円です。"
    assert answer("海外の日当はいくらですか。", [Passage("j", text)]) == "海外の日当は七千円です。"


def test_comparison_brings_units_together_and_refuses_unlike_ones() -> None:
    mixed = [Passage("a", "The Alpha is 900 m long."), Passage("b", "The Beta is 2 km long.")]
    assert answer("Which is longer, the Alpha or the Beta?", mixed) == "Beta"
    unlike = [Passage("a", "The Alpha weighs 900 kg."), Passage("b", "The Beta is 2 km long.")]
    assert compare("Which is longer, the Alpha or the Beta?", unlike) is None
    assert compare("Which is longer, the Alpha or the Gamma?", mixed) is None
    assert compare("How long is the Alpha?", mixed) is None


def test_no_context_or_no_shared_word_gives_no_answer() -> None:
    assert answer("Who?", []) == ""
    assert answer("Zyzzyva quux?") == ""
    empty = ExtractiveGenerator().generate(build_prompt(Question("q", "Who?")))
    assert (empty.completion_tokens, empty.logprobs) == (0, None)
    assert empty.prompt_tokens > 0


def test_choose_takes_the_supported_option_and_the_first_without_evidence() -> None:
    generator = ExtractiveGenerator()
    prompt = build_prompt(Question("q", "Where was Marie Curie born?"), LIBRARY)
    assert generator.choose_scored(prompt, ["Ulm", "Paris", "Warsaw"]).index == 2
    assert generator.choose_scored(prompt, ["Warsaw", "Ulm", "Paris"]).index == 0
    assert generator.choose_scored(build_prompt(Question("q", "Where?")), ["Ulm", "Warsaw"]).index == 0
    chosen = build_prompt(Question("q", "Where was Marie Curie born?", choices=("Ulm", "Warsaw")), LIBRARY)
    assert generator.generate(chosen).text == "Warsaw"


def test_max_tokens_bounds_the_answer() -> None:
    # "7" is one token, "November" two, "1867" two.
    cuts = [answer("When was Marie Curie born?", max_tokens=n) for n in (2, 3, 4, 5)]
    assert cuts == ["7", "7 November", "7 November", "7 November 1867"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12 March 1990", 1990),
        ("March 12, 1990", 1990),
        ("1990-03-12", 1990),
        ("44 BC", -44),
        ("19th century", 1800),
        ("1980s", 1980),
        ("1789", 1789),
    ],
)
def test_dates(text: str, value: float) -> None:
    assert [(d.text, d.value) for d in extractive.dates(f"It was {text}, they say.")] == [(text, value)]
    assert extractive.numbers(f"It was {text}, they say.") == []
