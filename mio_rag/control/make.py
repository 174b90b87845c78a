"""Controllers by name. A new kind is a folder beside `mdp/`, and one line in `_KINDS`."""

from __future__ import annotations

from collections.abc import Sequence

from mio_rag.control.bandit.agent import check_searcher, make_searcher
from mio_rag.control.composed.controller import KIND as POLICY_KIND
from mio_rag.control.controller import Controller, Kind, Setup
from mio_rag.control.mdp.agent import check_agent, make_agent
from mio_rag.control.mdp.policies import POLICIES
from mio_rag.control.planner.controller import check_workflow, make_workflow, workflow_files
from mio_rag.control.planner.language import check_language, make_language
from mio_rag.control.planner.planning import check_planner, make_planner
from mio_rag.control.router.make import KINDS as ROUTER_KINDS
from mio_rag.control.settings import ControlSettings
from mio_rag.errors import InputError, choose

__all__ = ["check_controllers", "controller_files", "find_kind", "make_controller", "register"]

#: In the order in which messages list them.
_KINDS: list[Kind] = [
    *(Kind(name, make_agent, check_agent, rival=name != "mdp") for name in POLICIES),
    *ROUTER_KINDS,
    Kind("strategies", make_searcher, check_searcher, rival=False),
    Kind("workflow", make_workflow, check_workflow, files=workflow_files),
    Kind("planner", make_planner, check_planner, rival=False),
    Kind("planner-lm", make_language, check_language),
    POLICY_KIND,
]


def register(kind: Kind) -> None:
    """Make a kind of controller known by its name, everywhere that controllers are named.

    Raises
    ------
    InputError
        If the name is taken.
    """
    if any(kind.name == known.name or known.covers(kind.name) for known in _KINDS):
        raise InputError(f"a controller '{kind.name}' is known already: choose another name")
    _KINDS.append(kind)


def find_kind(name: str) -> Kind | None:
    """The kind of a controller of that name; None: there is none."""
    return next((kind for kind in _KINDS if kind.covers(name)), None)


def _kind(name: str) -> Kind:
    kind = find_kind(name)
    if kind is None:
        raise InputError(
            f"controller '{name}' is unknown: {choose(name, [known.name for known in _KINDS])} "
            "(for instance fixed-3, threshold:.4)"
        )
    return kind


def make_controller(name: str, setup: Setup) -> Controller:
    """The controller of that name.

    Raises
    ------
    InputError
        For a name that is not known, or makes no sense.
    """
    return _kind(name).make(name, setup)


def check_controllers(names: Sequence[str], settings: ControlSettings, closed_book: bool) -> None:
    """Raise `InputError` with everything that is wrong with these names; nothing is loaded."""
    problems = [f"controller '{n}' is listed twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    for name in dict.fromkeys(names):
        try:
            _kind(name).check(name, settings, closed_book)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)


def controller_files(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Digests of the files that controllers' names refer to, by name; of those that refer to some."""
    found = {name: dict(_kind(name).files(name)) for name in names}
    return {name: files for name, files in found.items() if files}
