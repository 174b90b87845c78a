"""What BaseGenerator promises for every back end, shown on the ones that need no model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mio_rag.generation as generation
from mio_rag.context import TokenCounter
from mio_rag.errors import InputError
from mio_rag.generation import (
    ExtractiveGenerator,
    Generator,
    Prompt,
    ScriptedGenerator,
    build_prompt,
    make_generator,
)
from mio_rag.generation.base import parse_choice
from mio_rag.types import GenerationError, Passage, Question

QUESTION = Question("q1", "Where is the tower?")
PASSAGES = [Passage("p1", "The tower stands in Paris.", "Tower")]


class CountingCounter:
    """One token a character; remembers what it was asked."""

    name = "characters"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self, texts: list[str]) -> list[int]:
        self.asked.extend(texts)
        return [len(text) for text in texts]


@pytest.mark.parametrize("generator", [ExtractiveGenerator(), ScriptedGenerator({})])
def test_protocols(generator: Generator) -> None:
    assert isinstance(generator, Generator)
    assert isinstance(generator, TokenCounter)


def test_what_fits_exactly_is_answered_and_one_token_more_is_refused_before_the_model() -> None:
    prompt = build_prompt(QUESTION, PASSAGES)
    needed = ScriptedGenerator({}).prompt_tokens(prompt)
    fits = ScriptedGenerator({"q1": "Paris"}, window=needed + 10)
    assert fits.generate(prompt, max_tokens=10).text == "Paris"
    with pytest.raises(GenerationError, match=rf"{needed} tokens.* 11.*{needed + 11}.*{needed + 10}"):
        fits.generate(prompt, max_tokens=11)
    with pytest.raises(GenerationError, match="window"):
        fits.stream(prompt, max_tokens=11)
    assert len(fits.prompts) == 1


def test_one_failure_leaves_the_other_answers_in_their_places() -> None:
    long = build_prompt(Question("q2", "long " * 500))
    unknown = build_prompt(Question("q3", "Not in the script?"))
    prompt = build_prompt(QUESTION, PASSAGES)
    generator = ScriptedGenerator({"q1": "Paris"}, window=400)
    results = generator.generate_many([long, prompt, unknown, prompt])
    assert [isinstance(r, GenerationError) for r in results] == [True, False, True, False]
    assert "window" in str(results[0])
    assert "q3" in str(results[2])
    assert generator.generate_many([]) == []


def test_counts_are_cached_by_text_and_keep_their_order() -> None:
    counter = CountingCounter()
    generator = ScriptedGenerator({}, counter=counter)
    assert generator.count(["aa", "b", "aa"]) == [2, 1, 2]
    assert generator.count(["b", "ccc"]) == [1, 3]
    assert counter.asked == ["aa", "b", "ccc"]


@pytest.mark.parametrize("choices", [(), ("red", "blue")])
def test_context_allowance_is_room_that_really_exists(choices: tuple[str, ...]) -> None:
    question = Question("q1", "Where is the tower?", choices=choices)
    generator = ScriptedGenerator({"q1": "x"}, window=1000, counter=CountingCounter())
    allowance = generator.context_allowance(question, max_tokens=20)
    assert allowance is not None
    prompt = build_prompt(question, [Passage("p", "y" * allowance)])
    assert generator.prompt_tokens(prompt) + 20 <= 1000
    # and not much room is given away
    assert generator.prompt_tokens(prompt) + 20 > 980
    assert ScriptedGenerator({}, window=5).context_allowance(question) == 0
    assert ScriptedGenerator({}).context_allowance(question) is None


def test_closed_generators_say_so() -> None:
    with ScriptedGenerator({"q1": "Paris"}) as generator:
        pass
    generator.close()
    with pytest.raises(GenerationError, match="closed"):
        generator.generate(build_prompt(QUESTION))
    with pytest.raises(GenerationError, match="closed"):
        generator.count(["x"])


def test_out_of_range_parameters() -> None:
    with pytest.raises(InputError, match="max_tokens=0"):
        ScriptedGenerator({}).generate(build_prompt(QUESTION), max_tokens=0)
    with pytest.raises(InputError, match="context_window=0"):
        ScriptedGenerator({}, window=0)
    with pytest.raises(InputError, match="1 choices"):
        ScriptedGenerator({}).choose(build_prompt(QUESTION), ["only"])
    with pytest.raises(InputError, match="blank"):
        ScriptedGenerator({}).choose(build_prompt(QUESTION), ["one", " "])


def test_choose_shows_the_options_even_if_the_prompt_was_built_without_them() -> None:
    generator = ScriptedGenerator({"q1": "B"})
    assert generator.choose(build_prompt(QUESTION, PASSAGES), ["Rome", "Paris"]) == 1
    assert "B. Paris" in generator.prompts[0].user
    assert generator.prompts[0].passages == tuple(PASSAGES)


@pytest.mark.parametrize(
    ("reply", "index"),
    [
        ("B", 1),
        (" (b) ".upper(), 1),
        ("**C**", 2),
        ("B. Paris", 1),
        ("A) Rome\nbecause of B", 0),
        ("The answer is C.", 2),
        ("Paris", 1),
        ("It is paris, I think", 1),
        ("A city called Paris", 1),  # "A" is an article here
        ("New York City", 2),
    ],
)
def test_letters_are_read(reply: str, index: int) -> None:
    assert parse_choice(reply, ["Rome", "Paris", "New York City"], "m") == index


@pytest.mark.parametrize("reply", ["", "D", "I do not know", "Rome or Paris", "?"])
def test_replies_that_name_no_single_option_are_errors(reply: str) -> None:
    with pytest.raises(GenerationError, match="names no option"):
        parse_choice(reply, ["Rome", "Paris", "New York City"], "m")


def test_a_lone_letter_is_a_letter_even_if_options_are_letters() -> None:
    assert parse_choice("A", ["B", "A"], "m") == 0


def test_an_option_within_another_is_not_named_by_it() -> None:
    assert parse_choice("in New York City", ["New York", "New York City"], "m") == 1


def test_script_by_id_by_text_and_by_function() -> None:
    prompt = build_prompt(QUESTION, PASSAGES)
    by_both = ScriptedGenerator({"Where is the tower?": "by text", "q1": "by id"})
    assert by_both.generate(prompt).text == "by id"
    assert ScriptedGenerator({"Where is the tower?": "by text"}).generate(prompt).text == "by text"

    def echo(given: Prompt) -> str:
        return given.passages[0].id

    answer = ScriptedGenerator(echo).generate(prompt)
    assert (answer.text, answer.completion_tokens, answer.generator) == ("p1", 2, "scripted")
    assert "".join(ScriptedGenerator(echo).stream(prompt)) == "p1"


def test_make_generator_scripted_file(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text(json.dumps({"q1": "Paris"}))
    generator = make_generator(f"scripted:{file}", window=500)
    assert generator.context_window == 500
    assert generator.generate(build_prompt(QUESTION)).text == "Paris"
    file.write_text("[1, 2]")
    with pytest.raises(InputError, match="object of strings"):
        make_generator(f"scripted:{file}")
    file.write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        make_generator(f"scripted:{file}")
    with pytest.raises(InputError, match="no such file"):
        make_generator(f"scripted:{tmp_path / 'none.json'}")


@pytest.mark.parametrize(
    "spec", ["", "gpt4", "gguf", "gguf:", "hf:", "openai:", "extractive:x", "scripted:", "GGUF:x"]
)
def test_unknown_specs_name_the_accepted_forms(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        make_generator(spec)
    for form in ("extractive", "gguf:PATH", "hf:ID_OR_PATH", "openai:URL#MODEL", "scripted:FILE.json"):
        assert form in str(caught.value)


def test_misspelt_options_are_refused_with_the_options_there_are() -> None:
    with pytest.raises(InputError, match=r"windwo.*context_window"):
        make_generator("extractive", windwo=5)
    with pytest.raises(InputError, match=r"n_ctxx.*n_ctx, threads, slots, seed"):
        make_generator("gguf:none.gguf", n_ctxx=5)


def test_public_names_are_pinned_and_exist() -> None:
    assert sorted(generation.__all__) == [
        "BaseGenerator",
        "ExtractiveGenerator",
        "GGUFGenerator",
        "Generator",
        "HuggingFaceGenerator",
        "OpenAIGenerator",
        "Prompt",
        "ScriptedGenerator",
        "build_prompt",
        "make_generator",
    ]
    for name in generation.__all__:
        assert getattr(generation, name) is not None
    with pytest.raises(AttributeError, match="Nothing"):
        _ = generation.Nothing


def test_importing_the_package_loads_no_heavy_module() -> None:
    heavy = ["torch", "transformers", "xllamacpp", "openai", "tiktoken", "httpx2", "asyncio", "http.client"]
    code = f"import mio_rag.generation, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
