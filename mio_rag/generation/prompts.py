"""Prompts: how a question and its passages are presented to a language model.

The wording is in ``prompts/*.txt``; this module only fills it in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from mio_rag.context import SEPARATOR, render_context
from mio_rag.errors import InputError
from mio_rag.types import Passage, Question, clean

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
