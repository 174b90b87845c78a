"""Options about tiers and routers, of every command that answers questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.control.router.settings import RouterSettings, Utility
    from mio_rag.control.settings import ControlSettings

__all__ = ["RouterOptions", "read_utility"]


def read_utility(text: str | None) -> Utility:
    """The utility as it is written: alpha, beta, gamma, delta; later ones may be left out."""
    from mio_rag.control.router.settings import Utility

    if text is None:
        return Utility()
    try:
        given = [float(part) for part in text.split(",")]
        return Utility(*given)
    except (ValueError, TypeError) as error:
        problems = error.problems if isinstance(error, InputError) else ["give up to four numbers"]
        raise InputError(
            [f"--utility={text!r}: {p}; for instance 1,0.0005 (alpha, beta a token)" for p in problems]
        ) from error


@dataclass(frozen=True)
class RouterOptions:
    """Who chooses the tier of a question, and among which."""

    router: Annotated[
        Path | None,
        typer.Option("--router", help="Router that chooses the tier; a file of `mio-rag route train`."),
    ] = None
    tiers: Annotated[
        Path | None,
        typer.Option("--tiers", help="TOML file of tiers, without a router. [the three published ones]"),
    ] = None
    utility: Annotated[
        str | None,
        typer.Option(
            "--utility",
            help="Of a router that knows utilities: alpha, beta a token, gamma a second, delta a megabyte. "
            "[1,0.0005,0,0]",
        ),
    ] = None
    unsure: Annotated[
        str, typer.Option("--unsure", help="Where several tiers are plausible: stay, or up a tier.")
    ] = "stay"

    @property
    def given(self) -> bool:
        """Whether any of them was given."""
        return any(getattr(self, field.name) != field.default for field in fields(RouterOptions))

    def check(self, names: Sequence[str]) -> None:
        """Refuse options that have no effect, since none of these controllers has tiers."""
        from mio_rag.control.router.make import has_tiers

        if not any(map(has_tiers, names)):
            self.unused()

    def unused(self) -> None:
        """Refuse options that have no effect where nothing has tiers."""
        given = [
            f"--{field.name}" for field in fields(RouterOptions) if getattr(self, field.name) != field.default
        ]
        if given:
            raise InputError(
                f"{', '.join(given)}: no effect without a controller that has tiers, for instance routed"
            )

    def settings(self) -> RouterSettings:
        """What the options describe; the problems of all of them at once."""
        from mio_rag.control.router.model import read_router
        from mio_rag.control.router.settings import RouterSettings
        from mio_rag.control.router.tier import PUBLISHED, read_tiers

        tiers, utility, router, _ = collect(
            lambda: PUBLISHED if self.tiers is None else read_tiers(self.tiers),
            lambda: read_utility(self.utility),
            lambda: None if self.router is None else read_router(str(self.router)),
            lambda: RouterSettings(unsure=self.unsure),
        )
        if router is not None and self.tiers is not None and tiers != router.tiers:
            raise InputError(
                f"--tiers={self.tiers} holds {len(tiers)} tiers, and the router chooses among "
                f"{len(router.tiers)} of its own, {', '.join(t.name for t in router.tiers)}: leave out "
                "--tiers"
            )
        path = None if self.router is None else str(self.router)
        return RouterSettings(tiers if router is None else router.tiers, path, utility, self.unsure)

    def applied(self, settings: ControlSettings) -> ControlSettings:
        """The settings of controllers with those of tiers and routers, where any were given."""
        from mio_rag.control.router.settings import KEY

        if not self.given:
            return settings
        kinds = {**settings.kinds, KEY: self.settings().to_dict()}
        return dataclasses.replace(settings, kinds=kinds)
