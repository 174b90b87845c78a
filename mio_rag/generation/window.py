"""What a model's window leaves for the context, beside the question and its answer."""

from __future__ import annotations

from mio_rag.errors import MioRagError
from mio_rag.generation.protocol import Generator
from mio_rag.types import GenerationError, Question


def window_room(
    generator: Generator,
    question: Question,
    *,
    max_tokens: int,
    error: type[MioRagError] = GenerationError,
) -> int | None:
    """Tokens that the window leaves for passages and notes.

    max_tokens: longest answer.
    error: what to raise: `GenerationError` where a question of a set fails, `InputError` where somebody asks
        it.

    Returns: at least 1; None where the window is unbounded or unknown.
    Raises `MioRagError` of the type `error`, if there is no room at all.
    """
    room = generator.context_allowance(question, max_tokens=max_tokens)
    if room is not None and room < 1:
        raise error(
            f"question '{question.id}' leaves no room for context in the window of {generator.name}, beside "
            f"an answer of {max_tokens} tokens: shorten the question, lower max_tokens, or use a model with "
            "a larger window"
        )
    return room


def context_budget(
    generator: Generator,
    question: Question,
    budget_tokens: int,
    *,
    max_tokens: int,
    error: type[MioRagError] = GenerationError,
) -> int:
    """The token budget, or what the window leaves where that is less; as `window_room`."""
    room = window_room(generator, question, max_tokens=max_tokens, error=error)
    return budget_tokens if room is None else min(budget_tokens, room)
