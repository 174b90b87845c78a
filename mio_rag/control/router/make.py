"""Controllers with tiers by name; see `mio_rag.control.router.controller`."""

from __future__ import annotations

from pathlib import Path

from mio_rag.control.controller import Controller, Kind, Setup
from mio_rag.control.router.controller import Always, Drawn, Oracle, Tiered
from mio_rag.control.router.model import Deciding, Router, read_router
from mio_rag.control.router.settings import RouterSettings
from mio_rag.control.router.tier import Tier
from mio_rag.control.settings import ControlSettings
from mio_rag.errors import InputError, choose

__all__ = ["KINDS", "check", "has_tiers", "make"]


def _tiers(settings: RouterSettings, router: Router | None) -> tuple[Tier, ...]:
    return settings.tiers if router is None else router.tiers


def _router(settings: RouterSettings) -> Router | None:
    return None if settings.router is None else read_router(settings.router)


def check(name: str, settings: ControlSettings, closed_book: bool) -> None:
    """Raise `InputError` for a name that makes no sense with these settings; no model is loaded."""
    stem, colon, tier = name.partition(":")
    problems = []
    if closed_book:
        problems.append(f"controller '{name}' needs a corpus: leave it out, or give one")
    given = RouterSettings.of(settings.kinds)
    if given.router is not None and not Path(given.router).is_file():
        raise InputError([*problems, f"'{given.router}' does not exist: give the file of a router"])
    if stem == "tier":
        names = [one.name for one in _tiers(given, _router(given))]
        if tier not in names:
            meant = choose(name, [f"tier:{one}" for one in names])
            problems.append(f"controller '{name}' names no tier: {meant}")
    elif colon or "@" in name:
        problems.append(f"controller '{name}' is unknown: write '{stem.partition('@')[0]}' alone")
    elif stem == "routed" and given.router is None:
        problems.append("controller 'routed' needs a router: give --router, a file of `mio-rag route train`")
    if problems:
        raise InputError(problems)


def make(name: str, setup: Setup) -> Controller:
    """The controller of that name.

    Raises
    ------
    InputError
        As `check`; also for a router that was trained with another embedder than the index has.
    """
    check(name, setup.settings, setup.retriever is None)
    assert setup.retriever is not None
    given = RouterSettings.of(setup.settings.kinds)
    router = _router(given)
    if router is not None:
        router.check(setup.retriever.index.embedder.fingerprint)
    tiers, said = _tiers(given, router), given.to_dict()
    stem, _, tier = name.partition(":")
    if stem == "tier":
        chosen = next(one for one in tiers if one.name == tier)
        return Tiered(name, (chosen,), Always(0), setup.retriever, setup, said)
    if stem == "random-tier":
        shares = tuple(1 / len(tiers) for _ in tiers) if router is None else router.shares
        return Tiered(name, tiers, Drawn(shares, setup.seed), setup.retriever, setup, said)
    if stem == "oracle-tier":
        retriever = setup.retriever
        return Oracle(name, [Tiered(name, (one,), Always(0), retriever, setup, said) for one in tiers])
    assert router is not None
    chooser = Deciding(router, given.utility, given.unsure)
    return Tiered(name, tiers, chooser, setup.retriever, setup, said, router.correction)


#: As `mio_rag.control.make` registers them.
KINDS = (
    Kind("tier", make, check),
    Kind("routed", make, check, rival=False),
    Kind("random-tier", make, check),
    Kind("oracle-tier", make, check),
)


def has_tiers(name: str) -> bool:
    """Whether a controller of that name reads as much as its tiers say."""
    return any(kind.covers(name) for kind in KINDS)
