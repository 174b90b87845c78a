"""What tokens cost in dollars, and what a token must be worth for that.

If a passage that is needed is worth W dollars, a token into a model at D dollars must add D / W to the
probability that what is needed is there: that is the `token_price` of a `Selector`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting

_PER = 1e6  # tokens that a price is for


@dataclass(frozen=True)
class Rate:
    """What the tokens of one model cost.

    model: its name.
    into, out: dollars per million tokens into it and out of it, >= 0.
    worth: dollars that a needed passage is worth, > 0.

    Raises `InputError` with everything that is wrong.
    """

    model: str
    into: float
    out: float
    worth: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if not (is_setting(self.into) and is_setting(self.out)):
            problems.append(f"prices {self.into!r} and {self.out!r}: dollars per million tokens are >= 0")
        if self.worth is not None and not (is_setting(self.worth) and self.worth > 0):
            problems.append(f"worth={self.worth!r} must be a number of dollars > 0")
        if not problems and not self.token_price <= LARGEST_SETTING:
            problems.append(f"worth={self.worth!r} is too small beside the price of tokens")
        if problems:
            raise InputError(problems)

    @property
    def token_price(self) -> float:
        """What a token must be worth, in units of relevance; 0 where nobody says what relevance is worth."""
        return 0.0 if self.worth is None else self.into / _PER / self.worth

    def cost(self, prompt_tokens: int, completion_tokens: int = 0) -> float:
        """Dollars for these tokens."""
        return (prompt_tokens * self.into + completion_tokens * self.out) / _PER

    def explain(self, prompt_tokens: int, completion_tokens: int = 0) -> str:
        """What these tokens cost, and what they had to be worth, in one line."""
        said = f"{dollars(self.cost(prompt_tokens, completion_tokens))} for these tokens of {self.model}"
        if self.worth is None:
            return said
        needed = 100 * self.token_price
        must = f"100 tokens must add more than {100 * needed:.3g} % of one"
        return f"{said}; at {dollars(self.worth)} for a needed passage, {must}"


def dollars(amount: float) -> str:
    """An amount for people, with three digits that count and cents at least."""
    if amount <= 0:
        return "$0.00"
    digits = max(2, 2 - math.floor(math.log10(amount)))
    return f"${amount:.{min(digits, 12)}f}"
