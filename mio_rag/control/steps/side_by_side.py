"""Search by strategies within something larger: from its meter, under its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mio_rag.candidates import Candidates
from mio_rag.control.meter import Meter
from mio_rag.control.steps.search import SearchSettings, search
from mio_rag.control.steps.strategies import check_strategies, make_strategies
from mio_rag.errors import InputError
from mio_rag.retrieval.retriever import Retriever
from mio_rag.types import Question

__all__ = ["asks_a_model", "listed", "needs_links", "strategies_problem", "strategy_pools"]


def listed(given: Any) -> tuple[str, ...]:
    """The strategies that a setting names: a list, or text with commas; "all" stands for every one.

    Raises
    ------
    InputError
        If it is neither, or names one that is unknown.
    """
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{given!r:.60} is no list of strategies")
    return check_strategies(names)


def strategies_problem(value: Any) -> str | None:
    """What is wrong with such a setting, in words; None: nothing is."""
    try:
        listed(value)
    except InputError as error:
        return f"must be a list of strategies ({'; '.join(error.problems)})"
    return None


def asks_a_model(settings: Mapping[str, Any]) -> bool:
    """Whether one of the strategies in an executor's settings asks a language model."""
    return any(one.needs_model for one in _made(settings))


def needs_links(settings: Mapping[str, Any]) -> list[str]:
    """Strategies in an executor's settings that need an index with evidence links."""
    return [one.name for one in _made(settings) if one.needs_links]


def _made(settings: Mapping[str, Any]) -> Sequence[Any]:
    given = settings.get("strategies")
    return () if given is None or strategies_problem(given) else make_strategies(listed(given))


def strategy_pools(
    retriever: Retriever,
    meter: Meter,
    questions: Sequence[Question],
    names: Sequence[str],
    deadline_seconds: float | None = None,
) -> tuple[list[Candidates], list[str]]:
    """A pool for each question, of what the strategies found, and what there is to say of them.

    A strategy that would take most of the time that the meter's question has left is left out, too.
    What they spend is in the meter's books, also where they fail.
    """
    how = SearchSettings()
    if deadline_seconds is not None:
        how = replace(how, deadline_seconds=float(deadline_seconds))
    pools, notes = [], []
    for question in questions:
        timed = how.within(meter.seconds_left)
        searched = search(
            question, retriever, meter.generator, names, timed, costs=meter.costs, meters=meter.beside
        )
        meter.joined()
        found = {name: sum(name in by for by in searched.found.values()) for name in names}
        said = ", ".join(f"{name} {count}" for name, count in found.items())
        notes += [f"of {len(searched.pool)} found: {said}", *searched.notes]
        pools.append(searched.pool)
    return pools, notes
