"""Options about search strategies: of ``select``, ``ask``, ``evaluate`` and ``serve``."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.control.settings import ControlSettings

__all__ = ["StrategyChoice"]


@dataclass(frozen=True)
class StrategyChoice:
    """By which strategies is searched, and what a bandit among them goes by."""

    strategies: Annotated[
        str | None,
        typer.Option(
            "--strategies",
            help="Search by these, side by side: raw, hyde, query2doc, grounded, multi-query, separated by "
            "commas; all; or bandit, which learns what each is worth.",
        ),
    ] = None
    strategy_state: Annotated[
        Path | None,
        typer.Option(
            "--strategy-state", help="With bandit: SQLite file of what is learned; made if missing."
        ),
    ] = None
    strategy_price: Annotated[
        float | None,
        typer.Option(
            "--strategy-price",
            help="With bandit: what a token of the model must add, in passages that are certainly needed. "
            "[0.0001]",
        ),
    ] = None
    strategy_memory: Annotated[
        float | None,
        typer.Option(
            "--strategy-memory",
            help="With bandit: how much ratings of answers move the relevance of passages read for them. [0]",
        ),
    ] = None
    strategy_deadline: Annotated[
        float | None,
        typer.Option("--strategy-deadline", help="Seconds after which a strategy is left out. [30]"),
    ] = None

    @property
    def controller(self) -> str | None:
        """The name of the controller that searches so; None without --strategies."""
        if self.strategies is None:
            return None
        return "strategies:" + "+".join(part.strip() for part in self.strategies.split(","))

    @property
    def learns(self) -> bool:
        """Whether a bandit chooses."""
        return self.strategies is not None and self.strategies.strip() == "bandit"

    def kinds(self) -> dict[str, Any]:
        """Settings for `ControlSettings.kinds`; nothing where nothing is said."""
        search = {} if self.strategy_deadline is None else {"deadline_seconds": self.strategy_deadline}
        bandit = {} if self.strategy_price is None else {"token_price": self.strategy_price}
        bandit |= {} if self.strategy_memory is None else {"passage_memory": self.strategy_memory}
        state = {} if self.strategy_state is None else {"state": str(self.strategy_state)}
        given = {**state, **({"search": search} if search else {}), **({"bandit": bandit} if bandit else {})}
        return {"strategies": given} if given else {}

    def added(self, settings: ControlSettings) -> ControlSettings:
        """The settings of controllers, with those of these strategies."""
        return replace(settings, kinds={**settings.kinds, **self.kinds()})

    def check(self) -> None:
        """Raise `InputError` with everything that is wrong; nothing is loaded."""
        given = [
            f"--{f.name.replace('_', '-')}"
            for f in fields(StrategyChoice)
            if getattr(self, f.name) is not None and f.name != "strategies"
        ]
        if self.strategies is None:
            if given:
                raise InputError(f"{', '.join(given)}: no effect without --strategies")
            return
        if not self.learns and "bandit" in [part.strip() for part in self.strategies.split(",")]:
            raise InputError("--strategies bandit chooses among all strategies: name no others beside it")
        from mio_rag.control.make import check_controllers
        from mio_rag.control.settings import ControlSettings

        only_bandit = [name for name in given if name != "--strategy-deadline"]
        if not self.learns and only_bandit:
            raise InputError(f"{', '.join(only_bandit)}: no effect without --strategies bandit")
        assert self.controller is not None
        check_controllers([self.controller], self.added(ControlSettings()), closed_book=False)
