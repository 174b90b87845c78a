"""Paraphrases against a cache by meaning, counted by hand."""

from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.evaluation.paraphrases import Paraphrase, held, lost, paraphrase_hits, written
from mio_rag.generation import ScriptedGenerator
from mio_rag.types import Question
from tests.evaluation.test_false_hits import Angles

EMBEDDER: Any = Angles()  # a 0, b 10, c 20, d 90, e 91, f 180 degrees


def question(id: str, text: str, answer: str, *gold: str) -> Question:
    return Question(id, text, (answer,), gold_ids=gold)


PAIRS = (("a", "Po"), ("c", "Arno"), ("d", "Po"), ("f", "Nile"))
KEPT = [question(str(k), *pair) for k, pair in enumerate(PAIRS, start=1)]


def test_hits_by_hand() -> None:
    # b lies 10 degrees from a and from c; of equal ones the first. e lies 1 degree from d.
    asked = [Paraphrase("b", KEPT[0], ("1",)), Paraphrase("e", KEPT[1], ("2",))]
    low, high, none = paraphrase_hits(KEPT, asked, EMBEDDER, (0.98, 0.999, 1.0))
    assert (low.asked, low.hits, low.false, low.served, low.rate) == (2, 2, 1, 0.5, 0.5)
    assert low.examples == (("e", "d"),)
    # Without its own question b is served by c, whose answer is another one; e is by d as before.
    assert (low.new_hits, low.new_false) == (2, 2)
    assert (high.hits, high.false, high.served, high.new_hits) == (1, 1, 0, 1)
    assert (none.hits, none.rate, none.low, none.new_hits) == (0, None, None, 0)
    # one of two: the exact limits are 1 - .975 ** (1 / 2) and its mirror
    assert low.served_low == pytest.approx(1 - 0.975**0.5)
    assert low.served_high == pytest.approx(0.975**0.5)


def test_a_question_in_its_own_words_is_not_kept() -> None:
    (found,) = paraphrase_hits(KEPT, [Paraphrase("A?", KEPT[0], ("1",))], Turned(), (0.9,))
    assert found.hits == 1  # by c, 20 degrees away; not by a
    assert found.false == 1


class Turned(Angles):
    """Knows "A?", too."""

    def encode(self, texts: Any, progress: Any = None) -> Any:
        return super().encode([{"A?": "a"}.get(t, t) for t in texts])


def test_sets_hold_questions_that_answer_each_other() -> None:
    questions = [
        question("1", "Who?", "The Po", "p"),
        question("2", "Who then?", "po.", "p"),
        question("3", "Who else?", "Arno", "p"),
        question("4", "Which?", "Po", "r"),
        question("5", "who", "Po", "p"),  # the first, word for word
        question("6", "Is it?", "yes", "s"),
        question("7", "Was it?", "yes", "s"),
        question("8", "Where?", "Po"),
        question("9", "Where then?", "Po"),
    ]
    assert [(p.text, p.alike) for p in held(questions)] == [("Who?", ("2",)), ("Who then?", ("1",))]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("In which year did Ada Lovelace leave the 3 mills?", None),
        ("when did  ada lovelace leave 3 mills", "same"),
        ("When did Ada Lovelace leave the 3 mills? When did Ada Lovelace leave 3 mills?", "same"),
        (" ", "blank"),
        ("When did Lovelace leave 3 mills at last?", "Ada"),
        ("When did Ada Lovelace leave all of the mills?", "3"),
    ],
)
def test_what_is_no_paraphrase(text: str, reason: str | None) -> None:
    assert lost("When did Ada Lovelace leave 3 mills?", text) == reason


def test_a_model_words_questions_anew() -> None:
    said = {
        "Who is Ada?": '1. Who is Ada\n2. "Tell me about Ada."\n3. Ada?',
        "Who is Bo?": "Who is Bo",
        "Who is Cy?": "Who?\n\nCyr?\nCyd?\nTell of Cy!",  # the fourth is not looked at
        "Who is Di?": "",
    }
    model = ScriptedGenerator(lambda prompt: said[prompt.question.text])
    questions = [question(str(k), text, "x") for k, text in enumerate(said)]
    seen: list[int] = []
    found, dropped = written(questions, model, seen.append)
    assert [(p.text, p.of.id, p.alike) for p in found] == [("Tell me about Ada.", "0", ("0",))]
    assert dropped == {"same": 1, "lost": 1, "blank": 1}
    assert seen == [1, 2, 3, 4]
    assert "Reply with 3 rewordings" in model.prompts[0].system


def test_what_cannot_be_measured_is_refused() -> None:
    one = [Paraphrase("b", KEPT[0], ("1",))]
    with pytest.raises(InputError, match=r"0, 2 must be in \(0, 1\]"):
        paraphrase_hits(KEPT, one, EMBEDDER, (0, 2))
    with pytest.raises(InputError, match="0 paraphrases and 4 different"):
        paraphrase_hits(KEPT, [], EMBEDDER)
    with pytest.raises(InputError, match="1 paraphrases and 1 different"):
        paraphrase_hits(KEPT[:1], one, EMBEDDER)
