"""Prompts: how a question and its passages are presented to a language model.

The wording lives in ``prompts/*.txt``; this module only fills it in. One template asks for a short answer,
the other for the letter of an option. Without passages the whole context block is left out, heading included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mio_rag.context import SEPARATOR, render_context
from mio_rag.errors import InputError
from mio_rag.types import Passage, Question, clean

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of the options of a multiple-choice question, in order."""

#: As chat templates and endpoints take it: role and content.
Message = dict[str, str]

#: Texts that tokenizers of common models read as control tokens.
CONTROL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>]{1,40}｜>|</?s>|\[/?INST\]|<</?SYS>>|</?think>"
    r"|<(?:start|end)_of_\w{1,20}>|<(?:bos|eos|pad|unk|mask)>|\[(?:CLS|SEP|MASK|PAD|BOS|EOS|UNK|gMASK)\]"
)


def disarmed(text: str, control: re.Pattern[str] = CONTROL) -> str:
    """The text with a blank inside of whatever a model could take for a control token."""
    return control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


_FIELD = re.compile(r"\{(context|passages|passage|question|choices|answer)\}")


@dataclass(frozen=True)
class Prompt:
    """What the model is given.

    question: what is asked.
    passages: what the model may read, in the order in which it reads it; may be empty.
    system, user: the first and the last message, without any chat template.
    history: role and text of the messages between them.
    """

    question: Question
    passages: tuple[Passage, ...]
    system: str
    user: str
    history: tuple[tuple[str, str], ...] = ()

    @property
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


def _fill(template: str, **fields: str) -> str:
    # One pass over the template: braces inside a passage or a question are never looked at, so that a text
    # such as "{question}" or "{0}" arrives at the model as it is.
    return _FIELD.sub(lambda match: fields[match.group(1)], template)


def build_prompt(question: Question, passages: Sequence[Passage] = ()) -> Prompt:
    """Lay out a question and its passages, in the order given.

    question: with `choices`, the multiple-choice template is used, and the options are lettered in their
        order.
    passages: may be empty.

    Raises `InputError` if the question has more options than there are letters (26).
    """
    if len(question.choices) > len(LETTERS):
        raise InputError(
            f"question '{question.id}' has {len(question.choices)} choices: at most {len(LETTERS)} can be "
            "lettered"
        )
    kind = "choice" if question.choices else "open"
    context = ""
    if passages:
        context = _fill(_template("context"), passages=render_context(passages)) + SEPARATOR
    lettered = "\n".join(
        f"{letter}. {clean(text)}" for letter, text in zip(LETTERS, question.choices, strict=False)
    )
    user = _fill(
        _template(f"{kind}_user"), context=context, question=clean(question.text).strip(), choices=lettered
    )
    return Prompt(question, tuple(passages), _template(f"{kind}_system"), user)


def relevance_prompt(question: str, passage: str) -> Prompt:
    """Ask whether a passage helps to answer a question; the reply is Yes or No.

    passage: as a reader sees it, title included.
    """
    user = _fill(_template("relevant_user"), passage=clean(passage).strip(), question=clean(question).strip())
    return Prompt(Question("question", question), (), _template("relevant_system"), user)


def support_prompt(question: str, answer: str, passages: Sequence[Passage]) -> Prompt:
    """Ask whether passages support an answer to a question; the reply is Yes or No."""
    user = _fill(
        _template("supported_user"),
        passages=render_context(passages),
        question=clean(question).strip(),
        answer=clean(answer).strip(),
    )
    return Prompt(Question("question", question), tuple(passages), _template("supported_system"), user)


def question_prompt(answer: str, passages: Sequence[Passage] = ()) -> Prompt:
    """Ask for the question that an answer was given to, from what the answer was read from."""
    context = _fill(_template("context"), passages=render_context(passages)) + SEPARATOR if passages else ""
    user = _fill(_template("asked_user"), context=context, answer=clean(answer).strip())
    return Prompt(Question("answer", answer), tuple(passages), _template("asked_system"), user)


def chat_prompt(prompt: Prompt, system: str, history: Sequence[tuple[str, str]]) -> Prompt:
    """Put an open question into a conversation; other prompts stay as they are.

    system: the caller's own instructions; may be empty.
    history: role and text of the messages before the question.
    """
    if prompt.question.choices or prompt.system != _template("open_system"):
        return prompt
    context = _fill(_template("context"), passages=prompt.context) + SEPARATOR if prompt.passages else ""
    return replace(
        prompt,
        system="\n\n".join(filter(None, (clean(system).strip(), _template("chat_system")))),
        user=_fill(_template("chat_user"), context=context, question=clean(prompt.question.text).strip()),
        history=tuple((role, clean(text)) for role, text in history),
    )
