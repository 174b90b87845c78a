"""Words of texts in many scripts: the same for corpus and question."""

import pytest

from mio_rag.errors import InputError
from mio_rag.retrieval.words import STOP_WORDS, Words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What are the agreements of the parties?", "agreement parti"),
        ("1,200 people, 3,5 and 3.14; v1.2 of 2024-05-01", "1200 peopl 3 5 3.14 v1.2 2024 05 01"),
        ("Plan B has 7 max_batch_tokens", "plan 7 max batch token"),
        ("co\u00adoperation, \ufb01les, ＦＵＬＬ", "cooper file full"),
        ("café Café", "cafe cafe"),
        ("東京タワー", "東京 京タ タワ ワー 東 京"),
        ("山", "山"),
        ("한국어", "한국 국어"),
        ("ประเทศ", "ประ ระเ ะเท เทศ"),
        ("ກາ", "ກາ"),
        ("the and of", ""),
    ],
)
def test_words_of_a_text(text: str, found: str) -> None:
    assert Words()(text) == found.split()


@pytest.mark.parametrize(
    ("language", "text", "one", "other"),
    [
        ("german", "Die Verträge, die wir mit ihnen haben, sind für uns und für sie.", "Verträge", "Vertrag"),
        ("french", "Les contrats que nous avons sont dans la maison de la ville.", "contrats", "contrat"),
        (
            "spanish",
            "La casa de los padres es una de las que no están en el pueblo.",
            "políticas",
            "politica",
        ),
        ("russian", "Он не знал, что это было в городе и на реке.", "городе", "города"),
        ("arabic", "هذا هو الكتاب الذي كان في المدينة على الطاولة", "الكتاب", "كِتاب"),
        ("hindi", "यह किताब है और वह भारत में है जो कि नहीं है", "किताबें", "किताब"),
        ("greek", "το σπίτι είναι στην πόλη και δεν είναι από το χωριό", "πόλη", "πόλης"),
        ("english", "The house is in the town and it is not from the village.", "houses", "house"),
    ],
)
def test_languages_are_known_by_their_stop_words(language: str, text: str, one: str, other: str) -> None:
    words = Words.of([text] * 30)
    assert language in words.languages
    assert words(one) == words(other) != []
    assert (Words.foreign([text] * 30) is None) == (language == "english")


def test_scripts_keep_their_own_languages() -> None:
    texts = ["Он не знал, что это было в городе и на реке."] * 9 + ["七年战争是欧洲的战争"] * 9 + ["A Paris"]
    assert Words.of(texts).languages == ("english", "russian")
    assert Words.of(["granite 42"]).languages == ("english",)
    assert Words.foreign(["granite 42"]) is None
    assert Words.of(["Xin chào các bạn đang đọc bài viết này hôm nay"] * 40).languages == ()


def test_every_language_stems() -> None:
    for language in STOP_WORDS:
        assert Words([language])("internationale 12") != []
    with pytest.raises(InputError, match="klingon"):
        Words(["klingon"])


def test_a_year_or_quarter_of_a_company_is_its_number() -> None:
    assert Words()("Q4 of FY2023, FY22, 2023Q4, Q22021") == ["q4", "2023", "2022", "2023", "q4", "q2", "2021"]
