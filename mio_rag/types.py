"""What is asked, what may be read, what was answered. Frozen, and checked at construction."""

from __future__ import annotations

from dataclasses import dataclass

from mio_rag.errors import InputError, MioRagError

__all__ = ["Answer", "GenerationError", "Passage", "Question"]


@dataclass(frozen=True)
class Passage:
    """One retrievable piece of text.

    Parameters
    ----------
    id : str
        Unique in its corpus.
    text : str
        Not blank.
    title, source : str
        Shown to the reader and used by per-source caps; may be empty.
    """

    id: str
    text: str
    title: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            raise InputError("a passage has an empty id: give every passage a unique, non-empty id")
        if not self.text.strip():
            raise InputError(f"passage '{self.id}' has no text: drop it or fill it")


@dataclass(frozen=True)
class Question:
    """A question, with its gold answers and evidence where they are known.

    Parameters
    ----------
    answers : tuple of str
        Accepted answers; empty when unknown or when the question is unanswerable.
    gold_ids : tuple of str
        Ids of the passages that hold the evidence. Empty when not labelled at passage level.
    gold_sources : tuple of str
        Sources (documents) that hold the evidence, for data labelled at document level.
    choices : tuple of str
        Options of a multiple-choice question.
    """

    id: str
    text: str
    answers: tuple[str, ...] = ()
    gold_ids: tuple[str, ...] = ()
    gold_sources: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    type: str = ""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InputError(f"question '{self.id}' is empty")


@dataclass(frozen=True)
class Answer:
    """What the generator said, and what it cost.

    Parameters
    ----------
    prompt_tokens, completion_tokens : int
        As the generator counts them.
    latency_seconds : float
        Wall time of the generation alone.
    logprobs : tuple of float or None
        Natural-log probability of each completion token, where the generator has them.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    latency_seconds: float
    generator: str
    logprobs: tuple[float, ...] | None = None


class GenerationError(MioRagError, RuntimeError):
    """A generator could not produce an answer.

    Parameters
    ----------
    spent : Answer, optional
        What the model did say where that turned out to be no answer: its tokens and seconds are charged.
    """

    def __init__(self, message: str = "", spent: Answer | None = None) -> None:
        super().__init__(message)
        self.spent = spent
