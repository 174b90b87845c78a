"""Reading an option out of a free-text reply, or out of the likely first tokens of one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mio_rag.generation.prompts import LETTERS
from mio_rag.types import GenerationError

__all__ = ["option_logprobs", "parse_choice"]

# "B", "(B)", "B.", "**B**", "B) Paris": a capital that stands alone, at the start of the reply.
_LEADING = re.compile(r"^[\s(\[*\"'`]*([A-Z])(?=[\s)\].:,*\"'`]*$|[)\].:,*])")
# "The answer is B", "option (C)".
_NAMED = re.compile(
    r"\b(?:answer|option|choice|letter)\b(?:\s+is)?[\s:(\[*\"'`]*([A-Z])\b(?!['’])", re.IGNORECASE
)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def parse_choice(reply: str, choices: Sequence[str], who: str) -> int:
    """Index of the option that a reply names, by its letter or by its text.

    Tried in order: the reply is the text of an option; its first line begins with a letter that stands alone;
    it says "answer is X"; the text of exactly one option occurs in it.

    Raises
    ------
    GenerationError
        If no option, or more than one, is named: guessing would count as knowledge.
    """
    plain = [_plain(choice) for choice in choices]
    said = _plain(reply)
    first_line = reply.strip().split("\n", 1)[0]
    exact = [i for i, choice in enumerate(plain) if choice and choice == said]
    # A letter was asked for, so a reply that is nothing but a letter is one, even if some option reads "A".
    if exact and len(said) > 1:
        return exact[0]
    for match in (_LEADING.search(first_line), _NAMED.search(reply)):
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

    Parameters
    ----------
    likely : sequence of (str, float)
        The most likely first tokens with their log-probabilities, at least one. Blanks around a token, and
        the case of its letters, do not matter; spellings of one option add up.

    Returns
    -------
    tuple of float
        An option that no token spells gets the smallest log-probability of all: it has at most that.
    """
    floor = min(value for _, value in likely)
    found = []
    for option in options:
        spelt = [value for token, value in likely if token.strip().casefold() == option.casefold()]
        found.append(float(np.logaddexp.reduce(spelt)) if spelt else floor)
    return tuple(found)
