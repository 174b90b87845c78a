"""What every generator does: count, refuse what does not fit, answer, stream, choose."""

from __future__ import annotations

import math
import random
import re
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from threading import BoundedSemaphore, Lock, RLock, local
from typing import Any, Self, TypeVar

import numpy as np

from mio_rag.context import RegexCounter
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation.http import DONE
from mio_rag.generation.protocol import (
    CHOICE_TOKENS,
    LETTERS,
    Choice,
    Generator,
    Prompt,
    build_prompt,
    chat_prompt,
    disarmed,
)
from mio_rag.types import Answer, GenerationError, Passage, Question, clean

T = TypeVar("T")
#: Position and probability of an option, and the reply that named it; None: one letter, in one pass.
Chosen = tuple[int, float | None, Answer | None]
Replies = list[Answer | GenerationError]

_CACHED_TEXTS = 10_000  # of a few questions: more would be most of what a service holds
# A probe stands where the passages will stand, so that heading and separators are counted with them.
_PROBE = Passage(id="probe", text="x")
_SEAM_TOKENS = 8  # tokenizers may split a text differently at the ends of the context block than alone
_FRAME_TOKENS = 64  # of a chat template, where nothing counts it
_FIRST_SECONDS, _LONGEST_SECONDS = 0.5, 10.0  # between repetitions
_PATIENCE_SECONDS = 60.0  # longest Retry-After that is waited for


# -- what a reply says ------------------------------------------------------------------------------------

# "B", "(B)", "B.", "**B**", "B) Paris": a capital that stands alone, at the start of the reply.
_LEADING = re.compile(r"^[\s(\[*\"'`]*([A-Z])(?=[\s)\].:,*\"'`]*$|[)\].:,*])")
# "The answer is B", "option (C)".
_NAMED = re.compile(
    r"\b(?:answer|option|choice|letter)\b(?:\s+is)?[\s:(\[*\"'`]*([A-Z])\b(?!['’])", re.IGNORECASE
)
#: How models mark what they think before they answer, at the start of a reply or up to a lone end mark.
_THOUGHT = re.compile(
    r"\A\s*(?:<(?P<a>think(?:ing)?|thought|reasoning)>.*?(?:</(?P=a)>|\Z)"
    r"|\[(?P<b>THINK(?:ING)?)\].*?(?:\[/(?P=b)\]|\Z)"
    r"|◁think▷.*?(?:◁/think▷|\Z)"
    r"|<\|channel\|>analysis.*?(?:<\|channel\|>final<\|message\|>|\Z)"
    r"|(?:(?!<think>).)*</think>)",
    re.DOTALL,
)
_OPENINGS = ("<think", "<thought", "<reasoning", "[THINK", "◁think", "<|channel|>")


def spoken(said: Answer, thought: bool = False) -> Answer:
    """What a model replied, without what it thought first.

    thought: whether it also thought elsewhere, or was cut off.

    Raises `GenerationError` where nothing is left, because the reply ended before the answer began.
    """
    text = said.text
    while match := _THOUGHT.match(text):
        text = text[match.end() :]
    text = text.strip()
    if text:
        return said if text == said.text else replace(said, text=text, logprobs=None)
    if said.text or thought:
        raise GenerationError(
            f"the answer was cut off: {said.completion_tokens} tokens went into thinking, and none were left "
            "for the answer. Allow longer answers (--answer, max_tokens), or turn the model's thinking off",
            spent=replace(said, text="", logprobs=None),
            repeat=False,
        )
    return said


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def parse_choice(reply: str, choices: Sequence[str], who: str) -> int:
    """Index of the option that a reply names, by its letter or by its text.

    Raises `GenerationError` if no option, or more than one, is named: guessing would count as knowledge.
    """
    plain, said = [_plain(choice) for choice in choices], _plain(reply)
    exact = [i for i, choice in enumerate(plain) if choice and choice == said]
    # A letter was asked for, so a reply that is nothing but a letter is one, even if some option reads "A".
    if exact and len(said) > 1:
        return exact[0]
    for match in (_LEADING.search(reply.strip().split("\n", 1)[0]), _NAMED.search(reply)):
        if match and match.group(1) in LETTERS[: len(choices)]:
            return LETTERS.index(match.group(1))
    if exact:
        return exact[0]
    inside = [i for i, choice in enumerate(plain) if choice and f" {choice} " in f" {said} "]
    # "New York City" also contains "New York": an option inside a longer named one is not named itself.
    inside = [i for i in inside if not any(j != i and f" {plain[i]} " in f" {plain[j]} " for j in inside)]
    if len(inside) == 1:
        return inside[0]
    raise GenerationError(
        f"the reply of {who} names no option, or more than one, of {LETTERS[: len(choices)]}: {reply[:80]!r}"
    )


def option_logprobs(likely: Sequence[tuple[str, float]], options: Sequence[str]) -> tuple[float, ...]:
    """Natural-log probability of each option as the first token of a reply.

    likely: the most likely first tokens with their log-probabilities, at least one. Blanks around a token,
        and the case of its letters, do not matter; spellings of one option add up.

    Returns: an option that no token spells gets the smallest log-probability of all: it has at most that.
    """
    floor = min(value for _, value in likely)
    spelt = [[v for t, v in likely if t.strip().casefold() == option.casefold()] for option in options]
    return tuple(float(np.logaddexp.reduce(values)) if values else floor for values in spelt)


# -- repetitions, and what calls cost ---------------------------------------------------------------------

_ALLOWED: ContextVar[Callable[[int, int], bool] | None] = ContextVar("allowed", default=None)
_TELL: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def repeated(
    ask: Callable[[], T],
    retries: int,
    allowed: Callable[[GenerationError], bool] = lambda error: True,
    wait: Callable[[float], None] = time.sleep,
) -> T:
    """Ask until it succeeds, waiting longer each time, at least as long as a server's Retry-After says.

    allowed: called with every failure; whether the call may be repeated.
    """
    for attempt in range(retries + 1):
        try:
            return ask()
        except GenerationError as error:
            told = error.retry_after or 0.0
            if not allowed(error) or not error.repeat or attempt == retries or told > _PATIENCE_SECONDS:
                raise
            usual = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(attempt, 20))
            wait(max(told, usual * (0.5 + random.random() / 2)))
    raise AssertionError("unreachable")


def allowance(allowed: Callable[[int, int], bool]) -> AbstractContextManager[None]:
    """Within it, a call that may have been charged is repeated only where this account allows it.

    allowed: (prompt tokens, longest reply) of one attempt more -> whether the account holds them.
    """
    return _within(_ALLOWED, allowed)


def may_repeat(spent: Answer) -> bool:
    """Whether the account, if there is one, allows an attempt more like one that may have been charged."""
    allowed = _ALLOWED.get()
    return allowed is None or allowed(spent.prompt_tokens, spent.completion_tokens)


def most_tokens(generator: Generator, prompt: Prompt) -> int:
    """Tokens of a prompt; its bytes, which no tokenizer exceeds, where nothing can count them."""
    try:
        return generator.prompt_tokens(prompt)
    except MioRagError:
        return len("".join(prompt.texts).encode("utf-8", "replace")) + _FRAME_TOKENS


def tokens_around(generator: Generator, question: Question) -> int:
    """Tokens of a prompt without the passages in it, at most: template, question, and the seams."""
    probe = build_prompt(question, [_PROBE])
    return generator.prompt_tokens(probe) - generator.count([_PROBE.text])[0] + _SEAM_TOKENS


def charged(
    error: BaseException, generator: Generator, prompt: Prompt, max_tokens: int, seconds: float = 0.0
) -> Answer | None:
    """What a failed call cost, or may have cost; None: nothing.

    A call that was sent, and of which no usable reply says what it cost, counts with its prompt and its
    longest reply. So does one that failed as no back end should: its progress is unknown.
    """
    if isinstance(error, GenerationError):
        untold = error.untold or isinstance(error.__cause__, (TimeoutError, ConnectionError))
        if error.spent is not None or not untold:
            return error.spent
    elif isinstance(error, MioRagError):
        return None
    return Answer("", most_tokens(generator, prompt), max_tokens, seconds, generator.name)


# -- streams ----------------------------------------------------------------------------------------------


def telling(tell: Callable[[str], None]) -> AbstractContextManager[None]:
    """Within it, a back end that can stream calls `tell` with each piece of its answers, without thinking."""
    waiting, speaks = "", False

    def hear(piece: str) -> None:
        nonlocal waiting, speaks
        if speaks:
            tell(piece)
            return
        text = waiting = waiting + piece
        while (match := _THOUGHT.match(text)) and match.end() < len(text):
            text = text[match.end() :]
        text = text.lstrip()
        if text and not any(text.startswith(mark) or mark.startswith(text) for mark in _OPENINGS):
            speaks = True
            tell(text)

    return _within(_TELL, hear)


def told_pieces() -> Callable[[str], None] | None:
    """What a back end that streams reports its pieces to; None: no stream is wanted."""
    return _TELL.get()


class Pieces:
    """Puts a reply together from its pieces, in the form of chat completions, and reports its texts.

    told, ended: whether a text was reported; whether a piece said that the reply is whole.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self.told, self.ended = tell, False, False
        self._done = False
        self._message: dict[str, Any] = {"content": None}
        self._logprobs: list[Any] = []
        self._reason: Any = None
        self._usage: Any = None

    def hear(self, chunk: Any) -> bool:
        """Take a piece; returns False, for llama.cpp goes on then.

        Raises `GenerationError` for a piece that reports an error, or is none.
        """
        if self._done or chunk == DONE:
            self._done = self.ended = True
            return False
        try:
            if (error := chunk.get("error")) is not None:
                told = error.get("message", error) if isinstance(error, dict) else error
                raise GenerationError(str(told)[:300], untold=True, repeat=not self.told)
            self._usage = chunk.get("usage") or self._usage
            for choice in chunk.get("choices") or ():
                delta = choice.get("delta") or {}
                for name in ("content", "reasoning_content", "reasoning"):
                    if isinstance(text := delta.get(name), str):
                        self._message[name] = (self._message.get(name) or "") + text
                if delta.get("content"):
                    self.told = True
                    self._tell(delta["content"])
                self._reason = choice.get("finish_reason") or self._reason
                self.ended = self.ended or bool(self._reason)
                self._logprobs += (choice.get("logprobs") or {}).get("content") or []
        except (AttributeError, TypeError, KeyError) as error:
            why = f"a piece of the reply cannot be read: {error}"
            raise GenerationError(why, untold=True, repeat=not self.told) from error
        return False

    @property
    def reply(self) -> dict[str, Any]:
        """The whole reply."""
        scored = {"content": self._logprobs} if self._logprobs else None
        choice = {"message": self._message, "finish_reason": self._reason, "logprobs": scored}
        return {"choices": [choice], "usage": self._usage}


# -- generators -------------------------------------------------------------------------------------------


class _Turns:
    """Admits a number of threads at a time; a thread that is in may enter again."""

    def __init__(self, count: int) -> None:
        self._free, self._mine = BoundedSemaphore(count), local()

    def __enter__(self) -> None:
        depth = getattr(self._mine, "depth", 0)
        if not depth:
            self._free.acquire()
        self._mine.depth = depth + 1

    def __exit__(self, *failure: object) -> None:
        self._mine.depth -= 1
        if not self._mine.depth:
            self._free.release()


def one_by_one(answer: Callable[[Prompt], Answer], prompts: Sequence[Prompt]) -> Replies:
    """Answer prompts in turn; a failure takes the place of its answer."""
    results: Replies = []
    for prompt in prompts:
        try:
            results.append(answer(prompt))
        except GenerationError as error:
            results.append(error)
    return results


class BaseGenerator(ABC):
    """Shared behaviour of the back ends. Safe to use from several threads.

    A back end gives `_generate`; it may refine `_count`, `prompt_tokens`, `_generate_many`, `_choose` and
    `_close`.

    name: goes into every `Answer`.
    context_window: tokens that prompt and completion share; None: unbounded or unknown, nothing is refused.
    concurrency: calls that may run at the same time, >= 1. Threads that make more wait for their turn.
    """

    def __init__(self, name: str, context_window: int | None = None, concurrency: int = 1) -> None:
        if context_window is not None and context_window < 1:
            raise InputError(f"context_window={context_window}: give at least 1 token, or None for no limit")
        self.name, self.context_window, self.concurrency = name, context_window, concurrency
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock, self._counting = Lock(), RLock()
        self._turns, self._closed = _Turns(concurrency), False

    @property
    def identity(self) -> str | None:
        """All that a reply depends on besides the prompt and its length; None: replies must not be stored."""
        return None

    @property
    def content(self) -> str | None:
        """What tells it from another generator of the same name; None: nothing is known but the name."""
        return self.identity

    def _count(self, texts: list[str]) -> list[int]:
        """Tokens of each text, without special tokens; called with texts that are not cached."""
        return RegexCounter().count(texts)

    @abstractmethod
    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        """Answer a prompt that is known to fit."""

    def _generate_many(self, prompts: list[Prompt], max_tokens: int) -> Replies:
        """Answer prompts that are known to fit."""
        return one_by_one(lambda prompt: self._generate(prompt, max_tokens), prompts)

    def _choose(self, prompt: Prompt, choices: Sequence[str]) -> Chosen:
        """By default the reply is read as a letter, or as the text of an option."""
        longest, window = CHOICE_TOKENS, self.context_window
        if window is not None:
            longest = min(longest, window - self.prompt_tokens(prompt))
        said = self.generate(prompt, max_tokens=longest)
        try:
            index = parse_choice(said.text, choices, self.name)
        except GenerationError as error:
            error.spent, error.repeat = said, False
            raise
        if not said.logprobs:
            return index, None, said
        # The probability of a letter is that of its token; that of a longer reply is bounded by the whole.
        letter = said.text.strip().startswith(LETTERS[index])
        return index, math.exp(min(0.0, said.logprobs[0] if letter else sum(said.logprobs))), said

    def _close(self) -> None:  # noqa: B027 (most back ends hold nothing)
        """Release what the back end holds."""

    def _said(self, text: str, prompt: Prompt, start: float) -> Answer:
        """An answer whose tokens are counted here."""
        tokens = self.prompt_tokens(prompt), self.count([text])[0]
        return Answer(text, *tokens, time.perf_counter() - start, self.name)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, >= 0, without begin-of-sequence or other special tokens; cached by text."""
        self._check_open()
        with self._lock:
            known = {text: self._counts[text] for text in texts if text in self._counts}
            for text in known:
                self._counts.move_to_end(text)
        fresh = [text for text in dict.fromkeys(texts) if text not in known]
        if fresh:
            harmless = [disarmed(text if text.isascii() else clean(text)) for text in fresh]
            with self._counting:  # fast tokenizers fail when two threads use them at once
                known.update(zip(fresh, self._count(harmless), strict=True))
            with self._lock:
                self._counts.update((text, known[text]) for text in fresh)
                while len(self._counts) > _CACHED_TEXTS:
                    self._counts.popitem(last=False)
        return [known[text] for text in texts]

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt, chat template included."""
        return sum(self.count(prompt.texts))

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer one prompt.

        Raises `GenerationError` if prompt and completion do not fit the window, if the generator is closed,
        or if the back end fails; `spent` is what the failed call cost or may have cost.
        """
        self._check_fits(prompt, max_tokens)
        with self._turns:
            start = time.perf_counter()
            try:
                return self._generate(prompt, max_tokens)
            except GenerationError as error:
                error.spent = charged(error, self, prompt, max_tokens, time.perf_counter() - start)
                raise

    def generate_many(self, prompts: Sequence[Prompt], *, max_tokens: int = 64) -> Replies:
        """Answer many prompts, in order; a failure takes the place of its answer."""
        self._check_max_tokens(max_tokens)
        results: dict[int, Answer | GenerationError] = {}
        for i, prompt in enumerate(prompts):
            try:
                self._check_fits(prompt, max_tokens)
            except GenerationError as error:
                results[i] = error
        fitting = [i for i in range(len(prompts)) if i not in results]
        if fitting:
            with self._turns:
                answered = self._generate_many([prompts[i] for i in fitting], max_tokens)
            results.update(zip(fitting, answered, strict=True))
        return [results[i] for i in range(len(prompts))]

    def context_allowance(self, question: Question, *, max_tokens: int = 64) -> int | None:
        """Tokens that the window leaves for the context block of this question; None: unbounded."""
        self._check_max_tokens(max_tokens)
        if self.context_window is None:
            return None
        probe = build_prompt(question, [_PROBE])
        self.count([*probe.texts, *build_prompt(question).texts, _PROBE.text])  # together: cached from now on
        return max(0, self.context_window - max_tokens - tokens_around(self, question))

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """The option that the generator holds to be right; a prompt without these choices is built again.

        Raises `InputError` for fewer than 2 or more than 26 choices, or a blank one; `GenerationError` as
        `generate`, and if a reply names no option (`spent` is that reply).
        """
        if not 2 <= len(choices) <= len(LETTERS):
            raise InputError(f"{len(choices)} choices were given: between 2 and {len(LETTERS)} are supported")
        if any(not choice.strip() for choice in choices):
            raise InputError("a choice is blank: give every option a text")
        prompt = with_choices(prompt, choices)
        self._check_fits(prompt, 1)
        with self._turns:
            start = time.perf_counter()
            index, probability, said = self._choose(prompt, choices)
            seconds = time.perf_counter() - start
        if said is not None:
            return Choice(index, probability, replace(said, text=choices[index], logprobs=None))
        tokens = self.prompt_tokens(prompt)
        return Choice(index, probability, Answer(choices[index], tokens, 1, seconds, self.name))

    def close(self) -> None:
        """Release what the generator holds (model memory, connections); may be called twice."""
        if not self._closed:
            self._closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _check_open(self, closed: bool = False) -> None:
        if closed or self._closed:
            raise GenerationError(f"the generator {self.name} is closed: make a new one with make_generator")

    @staticmethod
    def _check_max_tokens(max_tokens: int) -> None:
        if max_tokens < 1:
            raise InputError(f"max_tokens={max_tokens}: an answer needs at least 1 token")

    def _check_fits(self, prompt: Prompt, max_tokens: int) -> None:
        self._check_max_tokens(max_tokens)
        self._check_open()
        if self.context_window is None:
            return
        needed = self.prompt_tokens(prompt)
        if needed + max_tokens > self.context_window:
            raise GenerationError(
                f"the prompt takes {needed} tokens and the answer up to {max_tokens}, together "
                f"{needed + max_tokens}, but the window of {self.name} holds {self.context_window}: "
                "lower the token budget or max_tokens, or use a model with a larger window"
            )


def with_choices(prompt: Prompt, choices: Sequence[str]) -> Prompt:
    """The prompt with these options."""
    if prompt.question.choices == tuple(choices):
        return prompt
    return build_prompt(replace(prompt.question, choices=tuple(choices)), prompt.passages)


# -- generators in front of others ------------------------------------------------------------------------


def _inner(name: str) -> Any:
    return property(lambda wrapped: getattr(wrapped._inner, name))


class WrappedGenerator:
    """A generator in front of another one: whatever it does not do itself, that one does."""

    name: Any = _inner("name")
    identity: Any = _inner("identity")
    context_window: Any = _inner("context_window")
    concurrency: Any = _inner("concurrency")
    counts_afar: Any = _inner("counts_afar")
    count: Any = _inner("count")
    prompt_tokens: Any = _inner("prompt_tokens")
    generate: Any = _inner("generate")
    context_allowance: Any = _inner("context_allowance")
    choose_scored: Any = _inner("choose_scored")
    close: Any = _inner("close")

    def __init__(self, inner: Generator) -> None:
        self._inner = inner

    @property
    def content(self) -> str:
        """What tells the generator that answers from others."""
        return str(getattr(self._inner, "content", None) or self._inner.identity or self._inner.name)

    def generate_many(self, prompts: Sequence[Prompt], *, max_tokens: int = 64) -> Replies:
        """Answer each prompt in turn; a failure takes the place of its answer."""
        return one_by_one(lambda prompt: self.generate(prompt, max_tokens=max_tokens), prompts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class Alone(WrappedGenerator):
    """A generator that may not be safe in threads, which gets one call at a time."""

    concurrency = 1

    def __init__(self, inner: Generator) -> None:
        super().__init__(inner)
        self._alone = RLock()


def _alone(name: str) -> Callable[..., Any]:
    def call(self: Alone, *given: Any, **named: Any) -> Any:
        with self._alone:
            return getattr(self._inner, name)(*given, **named)

    return call


for _name in ("count", "prompt_tokens", "context_allowance", "generate", "generate_many", "choose_scored"):
    setattr(Alone, _name, _alone(_name))


class Streamed(WrappedGenerator):
    """A generator whose answers are reported to `tell` piece by piece, where it can stream."""

    def __init__(self, inner: Generator, tell: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._tell = tell

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer one prompt."""
        with telling(self._tell):
            return self._inner.generate(prompt, max_tokens=max_tokens)


class Conversation(WrappedGenerator):
    """A generator that gets its questions within a conversation; see `chat_prompt`."""

    identity = None  # replies depend on the conversation

    def __init__(self, inner: Generator, system: str, history: Sequence[tuple[str, str]]) -> None:
        super().__init__(inner)
        self._told: Callable[[Prompt], Prompt] = lambda prompt: chat_prompt(prompt, system, history)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole conversation."""
        return self._inner.prompt_tokens(self._told(prompt))

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer within the conversation."""
        return self._inner.generate(self._told(prompt), max_tokens=max_tokens)

    def context_allowance(self, question: Question, *, max_tokens: int = 64) -> int | None:
        """Tokens that the window leaves for the context block next to the conversation."""
        left = self._inner.context_allowance(question, max_tokens=max_tokens)
        if left is None:
            return None
        plain = build_prompt(question, [_PROBE])
        return max(0, left - self.prompt_tokens(plain) + self._inner.prompt_tokens(plain))
