"""What tokens cost in dollars, and what a token must be worth for that.

A file of prices is a TOML file with a table for every model, in dollars per million tokens:

    ["openai:gpt-4o-mini"]
    input = 0.15
    output = 0.60

If a passage that is needed is worth W dollars, a token into a model at D dollars must add D / W to the
probability that what is needed is there: that is the `token_price` of a `Selector`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting
from mio_rag.storage import read_toml

_PER = 1e6  # tokens that a price is for


@dataclass(frozen=True)
class Rate:
    """What the tokens of one model cost.

    model: as the list of prices names it.
    into, out: dollars per million tokens into it and out of it, >= 0.
    worth: dollars that a needed passage is worth, > 0.
    """

    model: str
    into: float
    out: float
    worth: float | None = None

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


@dataclass(frozen=True)
class Money:
    """Prices of models, and what relevance is worth.

    prices: name of a model -> dollars per million tokens into it and out of it, finite and >= 0.
    worth: dollars that a needed passage is worth, > 0.
    model: whose prices count, where the list does not name the reader.

    Raises `InputError` with everything that is wrong.
    """

    prices: Mapping[str, tuple[float, float]]
    worth: float | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        problems = [] if self.prices else ["the list of prices is empty: give a table for every model"]
        problems += [
            f"price of '{model}' is {pair!r}: dollars per million tokens are >= 0"
            for model, pair in self.prices.items()
            if not all(map(is_setting, pair))
        ]
        if self.worth is not None and not (is_setting(self.worth) and self.worth > 0):
            problems.append(f"worth={self.worth!r} must be a number of dollars > 0")
        if self.model is not None and self.model not in self.prices:
            problems.append(f"model '{self.model}' has no price: {_listed(self.prices)}")
        if not problems and self.worth is not None:
            highest = max(into for into, _ in self.prices.values()) / _PER / self.worth
            if not highest <= LARGEST_SETTING:
                problems.append(f"worth={self.worth!r} is too small beside the prices of tokens")
        if problems:
            raise InputError(problems)
        kept = {model: (float(into), float(out)) for model, (into, out) in self.prices.items()}
        object.__setattr__(self, "prices", kept)

    def rate(self, reader: str | None = None) -> Rate:
        """Return the prices of `model` where it is given, else those of the reader.

        reader: name of a generator; what stands before its colon may be missing in the list. None: no model
            reads, and a list of one model is that model's.

        Raises `InputError` if the model has no price.
        """
        found = self.model
        if found is None and reader is None:
            if len(self.prices) > 1:
                raise InputError(f"{len(self.prices)} models have prices: say whose count with --price-model")
            found = next(iter(self.prices))
        elif found is None and reader is not None:
            found = reader if reader in self.prices else reader.partition(":")[2]
            if found not in self.prices:
                raise InputError(
                    f"model '{reader}' has no price: {_listed(self.prices)}; add a table [\"{reader}\"], or "
                    "name one of these with --price-model"
                )
        assert found is not None
        return Rate(found, *self.prices[found], self.worth)


def read_money(path: Path, worth: float | None = None, model: str | None = None) -> Money:
    """Return the prices in a TOML file; raises as `Money`, and `InputError` for a file of something else."""
    problems: list[str] = []
    prices: dict[str, tuple[float, float]] = {}
    for name, table in read_toml(path).items():
        if isinstance(table, dict) and set(table) == {"input", "output"}:
            prices[name] = table["input"], table["output"]
        else:
            problems.append(
                f"'{path}': '{name}' must be a table with input and output, dollars per million tokens: "
                f'["{name}"] input = 0.15, output = 0.60'
            )
    if problems:
        raise InputError(problems)
    try:
        return Money(prices, worth, model)
    except InputError as error:
        raise InputError(
            [p if p.startswith("worth") else f"'{path}': {p}" for p in error.problems]
        ) from error


def dollars(amount: float) -> str:
    """An amount for people, with three digits that count and cents at least."""
    if amount <= 0:
        return "$0.00"
    digits = max(2, 2 - math.floor(math.log10(amount)))
    return f"${amount:.{min(digits, 12)}f}"


def _listed(prices: Mapping[str, Any]) -> str:
    return f"prices are given for {', '.join(prices)}"
