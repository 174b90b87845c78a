"""Options about money: what tokens cost, and what a needed passage is worth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.allocation.money import Money, Rate
    from mio_rag.cli.options.shared import ProgramOptions
    from mio_rag.selection.selector import Selector

__all__ = ["MoneyOptions", "at_rate"]


@dataclass(frozen=True)
class MoneyOptions:
    """Prices of tokens in dollars."""

    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices",
            metavar="FILE",
            help='TOML file: a table ["MODEL"] with input and output, dollars per million tokens.',
        ),
    ] = None
    worth: Annotated[
        float | None,
        typer.Option(
            "--worth",
            help="Dollars that a needed passage is worth; with --prices it gives the price of a token.",
        ),
    ] = None
    price_model: Annotated[
        str | None,
        typer.Option("--price-model", help="Whose prices count. [the reader's]"),
    ] = None

    def money(self, program: ProgramOptions | None = None) -> Money | None:
        """What the options say; None where there are no prices.

        Parameters
        ----------
        program : ProgramOptions, optional
            What else may set the price of a token.

        Raises
        ------
        InputError
            For a worth or a model without prices, two prices of a token, and a file that holds none.
        """
        from mio_rag.allocation.money import read_money

        problems = []
        if self.prices is None:
            given = {"--worth": self.worth, "--price-model": self.price_model}
            problems = [f"{n} needs --prices: give the file" for n, v in given.items() if v is not None]
        if self.worth is not None and program is not None and program.token_price is not None:
            problems.append("--worth and --token-price both set the price of a token: give one of them")
        if problems:
            raise InputError(problems)
        return None if self.prices is None else read_money(self.prices, self.worth, self.price_model)


def at_rate(selector: Selector, rate: Rate | None) -> Selector:
    """The selector with the price of a token that follows from its worth, where that is given."""
    if rate is None or rate.worth is None:
        return selector
    return selector.replace(token_price=rate.token_price)
