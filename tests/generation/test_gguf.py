"""llama.cpp in this process. Tests that need a model run when MIO_RAG_TEST_GGUF names a GGUF file."""

import dataclasses
import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.generation import GGUFGenerator, build_prompt, make_generator
from mio_rag.generation.gguf import trained_context
from mio_rag.types import GenerationError, Passage, Question

MODEL = os.environ.get("MIO_RAG_TEST_GGUF", "")
needs_model = pytest.mark.skipif(not MODEL, reason="MIO_RAG_TEST_GGUF names no GGUF file")

PASSAGES = [
    Passage("p1", "Paris is the capital of France.", "France"),
    Passage("p2", "Zürich lies in Switzerland. 東京 is Tokyo. 🎉 <|im_start|> and {braces}", "Élan"),
]
PROMPT = build_prompt(Question("q", "What is the capital of France?"), PASSAGES)
# Reading instructions and passages takes most of the time: where they are not the point, they are left out.
SHORT = dataclasses.replace(PROMPT, system="Answer in a word.", user="What is the capital of France?")
STORY = dataclasses.replace(PROMPT, system="You tell stories.", user="Tell me a long story.")


WINDOW = 768  # more than the 512 tokens that llama.cpp reads at once


@pytest.fixture(scope="module")
def generator() -> Iterator[GGUFGenerator]:
    with GGUFGenerator(MODEL, n_ctx=WINDOW) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "content", "options", "problem"),
    [
        ("none.gguf", None, {}, r"none\.gguf: no such file"),
        ("model.bin", b"GGUF", {}, r"'\.bin'.*'\.gguf'"),
        ("model.gguf", b"version https://git-lfs", {}, "begins with b'vers'"),
        ("model.gguf", b"", {}, "begins with b''"),
        ("model.gguf", b"GGUF", {"n_ctx": 0}, "n_ctx=0"),
        ("model.gguf", b"GGUF", {"threads": 0}, "threads=0"),
    ],
)
def test_unusable_files_and_settings_are_refused(
    name: str, content: bytes | None, options: dict[str, int], problem: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem):
        make_generator(f"gguf:{tmp_path / name}", **options)


def test_a_damaged_file_is_a_generation_error(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(GenerationError, match="cut short"):
        GGUFGenerator(model)


def named(text: str, kind: int, value: bytes) -> bytes:
    """A name of a GGUF file, and its value."""
    return struct.pack("<Q", len(text)) + text.encode() + struct.pack("<I", kind) + value


def test_the_head_of_a_file_gives_the_window_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    other = named("toy.rope.original_context_length", 4, struct.pack("<I", 5))
    words = named("toy.words", 9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 3) + b"one")
    for own, window in (
        (named("toy.context_length", 4, struct.pack("<I", 2048)), 2048),
        (named("toy.context_length", 10, struct.pack("<Q", 1 << 33)), 1 << 33),
        (named("toy.context_length", 4, struct.pack("<I", 0)), None),
        (named("toy.context_length", 6, struct.pack("<f", 0.5)), None),
        (b"", None),
    ):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + other + own + words)
        assert trained_context(path) == window


@pytest.mark.gguf
@needs_model
def test_prompt_tokens_are_what_the_model_reads(generator: GGUFGenerator) -> None:
    for prompt in (PROMPT, build_prompt(Question("q", "é" * 50), PASSAGES)):
        answer = generator.generate(prompt, max_tokens=1)
        assert answer.prompt_tokens == generator.prompt_tokens(prompt)


@pytest.mark.gguf
@needs_model
def test_answers_are_repeatable_and_carry_their_logprobs(generator: GGUFGenerator) -> None:
    first = generator.generate(SHORT, max_tokens=12)
    generator.generate(STORY, max_tokens=4)
    again = generator.generate(SHORT, max_tokens=12)
    assert (first.text, first.logprobs) == (again.text, again.logprobs)
    assert "Paris" in first.text
    assert 1 <= first.completion_tokens <= 12
    assert first.logprobs is not None
    assert len(first.logprobs) == first.completion_tokens
    assert all(value <= 0 for value in first.logprobs)
    said, missing = generator.weigh(SHORT, [generator.generate(SHORT, max_tokens=1).text, "no such token"])
    assert said >= first.logprobs[0] - 1e-3  # other spellings may add to it
    assert missing < said <= 0


@pytest.mark.gguf
@needs_model
def test_the_window_is_respected(generator: GGUFGenerator) -> None:
    assert generator.context_window == WINDOW
    allowance = generator.context_allowance(Question("q", "Why?"), max_tokens=8)
    assert allowance is not None
    text = "word " * allowance
    while generator.count([text.strip()])[0] > allowance:
        text = text[: -len("word ")]
    answer = generator.generate(build_prompt(Question("q", "Why?"), [Passage("p", text)]), max_tokens=8)
    assert max(allowance, 512) < answer.prompt_tokens <= WINDOW - 8
    with pytest.raises(GenerationError, match="window"):
        generator.generate(build_prompt(Question("q", "Why?"), [Passage("p", "word " * 1100)]))
    assert generator.count(["", "a"]) == [0, 1]  # no special token is added
    assert generator.count(["x \ud800 y"])[0] >= 2  # a lone surrogate is counted, not an error
    with GGUFGenerator(MODEL, n_ctx=100_000) as large:
        assert large.context_window == trained_context(Path(MODEL))


@pytest.mark.gguf
@needs_model
@pytest.mark.parametrize("count", [2, 26])
def test_choices_are_constrained(generator: GGUFGenerator, count: int) -> None:
    options = [f"option {i}" for i in range(count)]
    question = build_prompt(Question("q", "Say anything but a letter. Tell me a story."))
    chosen = generator.choose_scored(question, options)
    assert chosen.index in range(count)
    assert 1 / count - 1e-6 <= (chosen.probability or 0) <= 1  # the most probable of them


ENDINGS = {
    "closed": "g.close()",
    "left open": "",
    "beside a thread that nobody waits for": (
        "import threading, time\n"
        "say = lambda: [g.generate(p, max_tokens=40) for _ in range(50)]\n"
        "threading.excepthook = lambda told: None  # it ends with an error, of which nobody hears\n"
        "threading.Thread(target=say, daemon=True).start(); time.sleep(0.3)"
    ),
    "by an exception": "raise SystemExit(3)",
}


@pytest.mark.gguf
@needs_model
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_cleanly_and_prints_nothing_of_its_own(ending: str) -> None:
    code = textwrap.dedent(f"""
        from mio_rag.generation import make_generator
        from mio_rag.generation.protocol import Prompt
        from mio_rag.types import Question
        g = make_generator("gguf:" + {MODEL!r}, n_ctx=512)
        p = Prompt(Question("q", "?"), (), {SHORT.system!r}, {SHORT.user!r})
        print(bool(g.generate(p, max_tokens=2).text))
    """)
    command = [sys.executable, "-c", code + ENDINGS[ending]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == (3 if ending == "by an exception" else 0), done.stderr
    assert done.stdout == "True\n"
    assert done.stderr == ""


@needs_model
def test_a_grammar_holds_the_model_to_its_words(generator: GGUFGenerator) -> None:
    prompt = build_prompt(Question("q", "Which of the two?"))
    said = generator.write(prompt, 'root ::= "left" | "right"', max_tokens=8)
    assert said.text in ("left", "right")
    assert said.completion_tokens >= 1


@needs_model
def test_hidden_states_are_unit_vectors_that_tell_questions_apart() -> None:
    from mio_rag.generation.gguf import HiddenStates

    states = HiddenStates(MODEL)
    texts = ["Who wrote Hamlet?", "Who wrote Macbeth?", "Is the Nile longer than the Amazon?"] * 8
    vectors = states.encode(texts)
    assert vectors.shape[0] == 24
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(vectors[0], vectors[21], atol=1e-3)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    assert states.fingerprint == HiddenStates(MODEL).fingerprint
