"""What a reader is, what it is asked, and what it may cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from mio_rag.context import SEPARATOR, render_context
from mio_rag.errors import InputError, MioRagError
from mio_rag.types import Answer, GenerationError, Passage, Question, clean

#: Names of the options of a multiple-choice question, in order.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: As chat templates and endpoints take it: role and content.
Message = dict[str, str]
#: Texts that tokenizers of common models read as control tokens.
CONTROL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>]{1,40}｜>|</?s>|\[/?INST\]|<</?SYS>>|</?think>"
    r"|<(?:start|end)_of_\w{1,20}>|<(?:bos|eos|pad|unk|mask)>|\[(?:CLS|SEP|MASK|PAD|BOS|EOS|UNK|gMASK)\]"
)
_FIELD = re.compile(r"\{(context|passages|passage|question|choices|answer)\}")


def disarmed(text: str, control: re.Pattern[str] = CONTROL) -> str:
    """The text with a blank inside of whatever a model could take for a control token."""
    return control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


@dataclass(frozen=True)
class Prompt:
    """What the model is given.

    passages: what the model may read, in that order; may be empty.
    system, user: the first and the last message, without any chat template.
    history: role and text of the messages between them.
    temperature: >= 0, of sampling the reply; 0: the likeliest words.
    """

    question: Question
    passages: tuple[Passage, ...]
    system: str
    user: str
    history: tuple[tuple[str, str], ...] = ()
    temperature: float = 0.0

    @cached_property
    def messages(self) -> list[Message]:
        """As chat templates and endpoints take them; no text in them is a control token."""
        told = (("system", self.system), *self.history, ("user", self.user))
        return [{"role": role, "content": disarmed(text)} for role, text in told]

    @property
    def texts(self) -> list[str]:
        """The texts of all messages."""
        return [one["content"] for one in self.messages]

    @property
    def context(self) -> str:
        """The context block: the text that a token budget bounds; empty without passages."""
        return render_context(self.passages)


@cache
def _template(name: str) -> str:
    # The newline that ends the file is not part of the template.
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def _filled(name: str, **fields: str) -> str:
    # One pass over the template, so that a text such as "{question}" arrives at the model as it is.
    return _FIELD.sub(lambda match: fields[match.group(1)], _template(name))


def _context(passages: Sequence[Passage]) -> str:
    """The context block with its heading; nothing without passages."""
    return _filled("context", passages=render_context(passages)) + SEPARATOR if passages else ""


def _tidy(text: str) -> str:
    return clean(text).strip()


def build_prompt(question: Question, passages: Sequence[Passage] = ()) -> Prompt:
    """Lay out a question and its passages, in the order given.

    question: with `choices`, the multiple-choice template is used, and the options are lettered.

    Raises `InputError` if the question has more options than there are letters (26).
    """
    if len(question.choices) > len(LETTERS):
        raise InputError(
            f"question '{question.id}' has {len(question.choices)} choices: at most {len(LETTERS)} can be "
            "lettered"
        )
    kind = "choice" if question.choices else "open"
    lettered = "\n".join(f"{letter}. {clean(text)}" for letter, text in zip(LETTERS, question.choices))  # noqa: B905
    user = _filled(
        f"{kind}_user", context=_context(passages), question=_tidy(question.text), choices=lettered
    )
    return Prompt(question, tuple(passages), _template(f"{kind}_system"), user)


def relevance_prompt(question: str, passage: str) -> Prompt:
    """Ask whether a passage (with its title) helps to answer a question; the reply is Yes or No."""
    user = _filled("relevant_user", passage=_tidy(passage), question=_tidy(question))
    return Prompt(Question("question", question), (), _template("relevant_system"), user)


def support_prompt(question: str, answer: str, passages: Sequence[Passage]) -> Prompt:
    """Ask whether passages support an answer to a question; the reply is Yes or No."""
    fields = {"passages": render_context(passages), "question": _tidy(question), "answer": _tidy(answer)}
    user = _filled("supported_user", **fields)
    return Prompt(Question("question", question), tuple(passages), _template("supported_system"), user)


def question_prompt(answer: str, passages: Sequence[Passage] = ()) -> Prompt:
    """Ask for the question that an answer was given to, from what the answer was read from."""
    user = _filled("asked_user", context=_context(passages), answer=_tidy(answer))
    return Prompt(Question("answer", answer), tuple(passages), _template("asked_system"), user)


def chat_prompt(prompt: Prompt, system: str, history: Sequence[tuple[str, str]]) -> Prompt:
    """Put an open question into a conversation; other prompts stay as they are.

    system: the caller's own instructions; may be empty.
    history: role and text of the messages before the question.
    """
    if prompt.question.choices or prompt.system != _template("open_system"):
        return prompt
    return replace(
        prompt,
        system="\n\n".join(filter(None, (_tidy(system), _template("chat_system")))),
        user=_filled("chat_user", context=_context(prompt.passages), question=_tidy(prompt.question.text)),
        history=tuple((role, clean(text)) for role, text in history),
    )


#: Longest reply that a choice is read from, where a model cannot be held to a letter.
CHOICE_TOKENS = 16


@dataclass(frozen=True)
class Choice:
    """An option of a multiple-choice question, chosen.

    probability: of this option among all of them, in [0, 1]; None where the generator cannot say.
    answer: the option's text, with what choosing it cost: one token where the model was held to a letter,
        else all that it replied.
    """

    index: int
    probability: float | None
    answer: Answer


@runtime_checkable
class Generator(Protocol):
    """Anything that answers a `Prompt`; also a `TokenCounter` for its own tokens."""

    @property
    def name(self) -> str:
        """Which model answers, for ledgers and messages."""

    @property
    def identity(self) -> str | None:
        """All that a reply depends on besides the prompt and its length; None: replies must not be stored."""

    @property
    def context_window(self) -> int | None:
        """Tokens that prompt and completion share; None: unbounded or unknown."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, >= 0, without begin-of-sequence or other special tokens."""

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt, chat template included."""

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer one prompt."""

    def generate_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int = 64
    ) -> list[Answer | GenerationError]:
        """Answer many prompts, in order; a failure takes the place of its answer."""

    def context_allowance(self, question: Question, *, max_tokens: int = 64) -> int | None:
        """Tokens that the window leaves for the context block; None: unbounded."""

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """The option that the generator holds to be right."""

    def close(self) -> None:
        """Release what the generator holds."""


@runtime_checkable
class ChoiceWeigher(Protocol):
    """A generator that reports how likely short replies are; not every back end can."""

    @property
    def name(self) -> str:
        """Which model it is."""

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> tuple[float, ...]:
        """Natural-log probability that the reply begins with each option, upper and lower case alike.

        Raises `GenerationError` where the prompt does not fit the window or the back end fails.
        """


@runtime_checkable
class GrammarWriter(Protocol):
    """A generator that can be held to a grammar; not every back end can."""

    @property
    def name(self) -> str:
        """Which model it is."""

    def write(self, prompt: Prompt, grammar: str, *, max_tokens: int) -> Answer:
        """Answer one prompt in words of a grammar, in GBNF, the form of llama.cpp.

        Raises `GenerationError` as `Generator.generate`; also for a grammar that cannot be read.
        """


def content_of(generator: Generator) -> str:
    """What tells a generator from others, for caches and records of runs: its `content`, identity or name,
    and its window.
    """
    content = str(getattr(generator, "content", None) or generator.identity or generator.name)
    window = generator.context_window
    return content if window is None else f"{content} window={window}"


def window_room(
    generator: Generator,
    question: Question,
    *,
    max_tokens: int,
    error: type[MioRagError] = GenerationError,
) -> int | None:
    """Tokens that the window leaves for passages and notes, >= 1; None: unbounded or unknown.

    Raises `error` if there is no room: `GenerationError` where a question of a set fails, `InputError` where
    a person asks it.
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
    """The token budget, or what the window leaves where that is less; raises as `window_room`."""
    room = window_room(generator, question, max_tokens=max_tokens, error=error)
    return budget_tokens if room is None else min(budget_tokens, room)
