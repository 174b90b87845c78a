"""Options about policies: of the commands that answer questions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.control.composed.states import States
    from mio_rag.control.settings import ControlSettings

__all__ = ["PoliciesOption", "PolicyOption", "check_beside", "kinds_of", "only_policy"]

#: What may stand beside a policy; strategies and routers are refused in words of their own.
_BESIDE = {
    "index", "question", "generator", "policy", "trace", "mapped", "config", "explain", "json_output", "seed",
    "strategies", "router",
}  # fmt: skip

PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="FILE|PRESET",
        help="Let a policy decide everything, also how much is read: a TOML file, or frugal, balanced, "
        "thorough.",
    ),
]


def only_policy(controller: str | None, policy: str, context: typer.Context, searches: bool) -> str:
    """The controller that runs a policy.

    Parameters
    ----------
    searches : bool
        Whether strategies or a router are named on the command line.

    Raises
    ------
    InputError
        If another controller is asked for, or anything on the command line that its file decides; with
        everything that is wrong with the file, too.
    """
    problems = []
    if controller is not None:
        problems.append("--policy and another controller exclude each other: a policy decides everything")
    if searches:
        problems.append("--policy excludes --strategies and --router: name them in the policy's own file")
    check_beside(policy, context, _BESIDE, problems)
    return f"policy:{policy}"


def check_beside(
    policy: str, context: typer.Context, beside: Collection[str], problems: Sequence[str] = ()
) -> None:
    """Raise `InputError` for options on the command line that a policy's file decides.

    Parameters
    ----------
    beside : collection of str
        Names of parameters that may stand beside it.
    problems : sequence of str
        What is known to be wrong already.

    Raises
    ------
    InputError
        With these, the options, and where there is any of both, everything that is wrong with the file.
    """
    given = [
        max(one.opts, key=len)
        for one in context.command.params
        if one.name not in beside and _on_command_line(context, one.name or "")
    ]
    found = list(problems)
    if given:
        shown = f"`mio-rag policy show {policy} --toml`"
        found.append(f"--policy excludes {', '.join(given)}: its file decides that; {shown} prints it")
    if found:
        try:
            _states(policy)
        except InputError as error:
            found += error.problems
        raise InputError(found)


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _states(name: str) -> States:
    from mio_rag.control.composed.read import read_policy
    from mio_rag.control.composed.states import read_states

    return read_states(read_policy(name))


def kinds_of(names: Sequence[str]) -> dict[str, Any]:
    """What policies hold, by the hash of it: a run that is resumed with other contents must not go on.

    Parameters
    ----------
    names : sequence of str
        Presets and files.

    Raises
    ------
    InputError
        With everything that is wrong with any of them.
    """
    found = collect(*((lambda name=name: _states(name)) for name in names))
    return {"policy": {name: states.sha256 for name, states in zip(names, found, strict=True)}}


@dataclass(frozen=True)
class PoliciesOption:
    """Which policies are compared."""

    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Comma-separated policies to compare, as policy:NAME: presets or TOML files. Each reads at "
            "most --budget-tokens.",
        ),
    ] = None

    @property
    def names(self) -> tuple[str, ...]:
        """Presets and files."""
        return tuple(name.strip() for name in (self.policies or "").split(",") if name.strip())

    @property
    def controllers(self) -> tuple[str, ...]:
        """As the ledger names them."""
        return tuple(f"policy:{name}" for name in self.names)

    def added(self, settings: ControlSettings) -> ControlSettings:
        """The settings of controllers, with what the policies hold."""
        if not self.names:
            return settings
        return replace(settings, kinds={**settings.kinds, **kinds_of(self.names)})
