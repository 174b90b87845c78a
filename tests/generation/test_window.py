"""What the window leaves is shared out in one place."""

import pytest

from mio_rag.errors import InputError, MioRagError
from mio_rag.generation import ScriptedGenerator
from mio_rag.generation.window import context_budget, window_room
from mio_rag.types import GenerationError, Question

QUESTION = Question("q", "Which river is longer?")


def test_the_smaller_of_budget_and_window_binds() -> None:
    free, narrow = ScriptedGenerator({}), ScriptedGenerator({}, window=200)
    assert window_room(free, QUESTION, max_tokens=32) is None
    assert context_budget(free, QUESTION, 10_000, max_tokens=32) == 10_000
    room = window_room(narrow, QUESTION, max_tokens=32)
    assert room is not None
    assert 0 < room < 168
    assert window_room(narrow, QUESTION, max_tokens=42) == room - 10
    assert context_budget(narrow, QUESTION, 10_000, max_tokens=32) == room
    assert context_budget(narrow, QUESTION, 5, max_tokens=32) == 5


@pytest.mark.parametrize("kind", [GenerationError, InputError])
def test_no_room_is_told_with_what_helps(kind: type[MioRagError]) -> None:
    narrow = ScriptedGenerator({}, window=40)
    with pytest.raises(kind, match=r"'q' leaves no room .* window of scripted, .* 32 tokens: shorten"):
        context_budget(narrow, QUESTION, 60, max_tokens=32, error=kind)
