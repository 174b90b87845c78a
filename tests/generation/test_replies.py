"""Replies on disk: asked once, charged as when they were made, and never mixed up."""

import math
import pickle
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from mio_rag.batch.answering import Retrying
from mio_rag.errors import InputError
from mio_rag.generation import (
    BaseGenerator,
    ExtractiveGenerator,
    Generator,
    GGUFGenerator,
    OpenAIGenerator,
    Prompt,
    ScriptedGenerator,
    build_prompt,
    make_generator,
)
from mio_rag.generation.protocol import ChoiceWeigher, content_of
from mio_rag.generation.replies import RememberingGenerator
from mio_rag.types import Answer, GenerationError, Question

OPEN = build_prompt(Question("q", "Where is the tower?"))
CITIES = ("Rome", "Paris")
CHOICE = build_prompt(Question("m", "Which?", choices=CITIES))


class Slow(BaseGenerator):
    """Counts how often it is asked, and claims to have taken 7 s each time."""

    def __init__(self, identity: str | None = "slow, version 1", text: str = "B") -> None:
        super().__init__("slow", None)
        self._identity, self.text, self.asked = identity, text, 0

    @property
    def identity(self) -> str | None:
        return self._identity

    def _count(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        self.asked += 1
        if prompt.question.id == "broken":
            raise GenerationError("no")
        return Answer(self.text, 11, 2, 7.0, self.name, (math.log(0.5), math.log(0.25)))


class Weigher(Slow):
    """Says how likely options are, the more so the longer they are."""

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> tuple[float, ...]:
        self.asked += 1
        return tuple(-1.0 / len(option) for option in options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "replies.sqlite"


def test_asked_once_and_charged_as_when_it_was_made(file: Path) -> None:
    first, later = Slow(), Slow(text="said too late")
    one = RememberingGenerator(first, file)
    assert isinstance(one, Generator)
    made = one.generate(OPEN, max_tokens=8)
    again = RememberingGenerator(later, file).generate(OPEN, max_tokens=8)
    assert again == made
    assert (again.latency_seconds, again.prompt_tokens, again.completion_tokens) == (7.0, 11, 2)
    assert (first.asked, later.asked) == (1, 0)


def test_another_model_length_or_wording_is_another_question(file: Path) -> None:
    model, other = Slow(), Slow("slow, version 2")
    remembering = RememberingGenerator(model, file)
    remembering.generate(OPEN, max_tokens=8)
    remembering.generate(OPEN, max_tokens=9)
    remembering.generate(build_prompt(Question("q", "Where is the  tower?")), max_tokens=8)
    RememberingGenerator(other, file).generate(OPEN, max_tokens=8)
    assert (model.asked, other.asked) == (3, 1)


def test_choices_come_back_with_their_probability(file: Path) -> None:
    model = Slow()
    remembering = RememberingGenerator(model, file)
    made = remembering.choose_scored(CHOICE, CITIES)
    assert (made.index, made.probability, made.answer.text) == (1, pytest.approx(0.5), "Paris")
    assert remembering.choose_scored(CHOICE, CITIES) == made
    assert model.asked == 1
    swapped = remembering.choose_scored(CHOICE, CITIES[::-1])  # the model still says B
    assert (swapped.index, swapped.answer.text, model.asked) == (1, "Rome", 2)


def test_what_weighs_options_still_does_and_is_asked_once(file: Path, tmp_path: Path) -> None:
    model = Weigher()
    remembering = RememberingGenerator(model, file)
    assert isinstance(remembering, RememberingGenerator)
    assert isinstance(remembering, ChoiceWeigher)
    assert not isinstance(RememberingGenerator(Slow(), tmp_path / "other.sqlite"), ChoiceWeigher)
    for _ in range(2):
        assert remembering.weigh(OPEN, ["Yes", "No"]) == (-1 / 3, -1 / 2)
        assert remembering.weigh(OPEN, ["No", "Yes"]) == (-1 / 2, -1 / 3)
    assert remembering.weigh(CHOICE, ["Yes", "No"]) == (-1 / 3, -1 / 2)
    assert model.asked == 3


def test_remembering_takes_no_ability_away(file: Path) -> None:
    class Writer(Weigher):
        def write(self, prompt: Prompt, grammar: str, *, max_tokens: int) -> Answer:
            self.asked += 1
            return Answer(grammar, 1, 1, 0.0, self.name)

    model = Writer()
    remembering = RememberingGenerator(model, file)
    abilities = {name for made in (GGUFGenerator, OpenAIGenerator, Writer) for name in dir(made)}
    assert {name for name in abilities if not name.startswith("_")} - {"text"} <= set(dir(remembering))
    assert [remembering.write(OPEN, "yes", max_tokens=4).text for _ in range(2)] == ["yes", "yes"]
    assert model.asked == 1


def test_a_choice_read_from_a_reply_costs_all_of_the_reply(file: Path) -> None:
    chosen = Slow(text="B, I think").choose_scored(CHOICE, CITIES)
    answer = chosen.answer
    assert (chosen.index, answer.text, answer.prompt_tokens, answer.completion_tokens) == (1, "Paris", 11, 2)
    assert answer.latency_seconds == 7.0
    mumbling = Slow(text="I cannot say")
    with pytest.raises(GenerationError, match="names no option") as failed:
        RememberingGenerator(mumbling, file).choose_scored(CHOICE, CITIES)
    assert failed.value.spent == mumbling.generate(CHOICE)
    assert pickle.loads(pickle.dumps(failed.value)).spent == failed.value.spent


def test_many_ask_only_for_what_is_missing_and_failures_are_not_kept(file: Path) -> None:
    model = Slow()
    remembering = RememberingGenerator(model, file)
    known = remembering.generate(OPEN, max_tokens=8)
    broken = build_prompt(Question("broken", "What?"))
    for asked in (3, 4):  # the failure is tried again, the rest is known by then
        found = remembering.generate_many([broken, OPEN, CHOICE], max_tokens=8)
        assert isinstance(found[0], GenerationError)
        assert found[1] == known
        assert isinstance(found[2], Answer)
        assert model.asked == asked


@pytest.mark.filterwarnings("ignore:the replies in")
@pytest.mark.parametrize("reply", ["nonsense", "[]", '{"text": "x"}', '{"text": 1, "surplus": 2}'])
def test_a_damaged_reply_is_asked_for_again(file: Path, reply: str) -> None:
    model = Slow()
    remembering = RememberingGenerator(model, file)
    made = remembering.generate(OPEN, max_tokens=8)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE replies SET reply = ?", (reply,))
    assert remembering.generate(OPEN, max_tokens=8) == made
    assert model.asked == 2


def test_what_cannot_be_kept_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match="extractive cannot be stored"):
        RememberingGenerator(ExtractiveGenerator(), file)
    with pytest.raises(InputError, match="is a folder"):
        RememberingGenerator(Slow(), file.parent)


def test_a_file_that_is_no_database_costs_no_result(file: Path) -> None:
    file.write_text("this is no database, and long enough to be taken for a damaged one " * 20)
    with pytest.warns(UserWarning, match=r"cannot be (read|written)"):
        assert RememberingGenerator(Slow(), file).generate(OPEN, max_tokens=8).text == "B"


def test_generators_tell_what_their_replies_depend_on(file: Path) -> None:
    pytest.importorskip("httpx2")
    spec = f"openai:http://127.0.0.1:9/v1#name?seed={{}}&replies={file}"
    one, other = make_generator(spec.format(1)), make_generator(spec.format(2))
    assert isinstance(one, RememberingGenerator)
    assert one.identity != other.identity
    assert content_of(one) != content_of(other)
    # A script may answer two questions of the same words differently, by their ids.
    script = ScriptedGenerator({"q1": "Rome", "q2": "Oslo"})
    assert script.identity is None
    assert content_of(script) == content_of(ScriptedGenerator({"q2": "Oslo", "q1": "Rome"}))
    assert content_of(script) != content_of(ScriptedGenerator({"q1": "Rome"}))
    assert content_of(ScriptedGenerator(lambda prompt: "Rome")) == "scripted"
    assert content_of(Retrying(script, 0, lambda into, out: False)) == content_of(script)
