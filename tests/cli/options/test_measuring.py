"""Options about measures that take a model: what cannot be measured is refused before anything is loaded."""

import pytest

from mio_rag.cli.control_options import MeasuringOptions
from mio_rag.errors import InputError


@pytest.mark.parametrize(
    ("options", "closed_book", "answered", "said"),
    [
        (MeasuringOptions(cosine="index"), True, True, "has no index"),
        (MeasuringOptions(cosine="tfidf"), False, True, "fitted to a corpus"),
        (MeasuringOptions(cosine="minilm"), False, False, "no answers to measure"),
        (MeasuringOptions(bert_score="minilm"), False, False, "no answers to measure"),
        (MeasuringOptions(bert_score="minilm@last"), False, True, "'last' behind @ is no number"),
        (MeasuringOptions(judge="oracle"), False, True, "judge 'oracle' is not known"),
        (MeasuringOptions(cosine="./absent"), False, True, "is no folder"),
    ],
)
def test_what_cannot_be_measured(
    options: MeasuringOptions, closed_book: bool, answered: bool, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        options.check(closed_book, answered)


def test_all_problems_at_once() -> None:
    with pytest.raises(InputError) as raised:
        MeasuringOptions(judge="oracle", cosine="tfidf", bert_score="x@y").check(False, False)
    assert len(raised.value.problems) == 5


def test_a_judge_of_the_context_needs_no_reader() -> None:
    MeasuringOptions(judge="words").check(False, False)
    instruments = MeasuringOptions(judge="words").load()
    assert instruments.given == {"judge"}
    assert MeasuringOptions().load().record() is None
