"""Options about workflows: which models their nodes may ask, and what these cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.cli.options.control import AgentOptions
    from mio_rag.control.planner.settings import WorkflowSettings
    from mio_rag.control.settings import ControlSettings

__all__ = ["ModelOptions", "named_workflow"]

_KINDS = ("workflow",)


@dataclass(frozen=True)
class ModelOptions:
    """Which models the nodes of workflows may ask beside the reader, and what they cost."""

    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="NAME=SPEC", help="A generator that nodes of workflows may name; repeatable."
        ),
    ] = None
    model_price: Annotated[
        list[str] | None,
        typer.Option(
            "--model-price",
            metavar="NAME=IN,OUT",
            help="Dollars per million tokens into and out of a model, or of 'reader'; repeatable.",
        ),
    ] = None

    def of(self, agent: AgentOptions, controller: str | None, trace: Path | None) -> ControlSettings | None:
        """The settings for a controller, those of workflows included; see `AgentOptions.of`.

        Raises
        ------
        InputError
            For models without a workflow that could ask them, and as `AgentOptions.of`.
        """
        if controller is None or controller.partition(":")[0] not in _KINDS:
            if self.model or self.model_price:
                raise InputError("--model, --model-price: no effect without --workflow")
            return agent.of(controller, trace)
        return agent.of(controller, trace, {"workflow": self.settings().to_dict()})

    def settings(self) -> WorkflowSettings:
        """The settings that the options describe; the problems of all of them at once."""
        from mio_rag.control.planner.settings import WorkflowSettings

        problems: list[str] = []
        models = _pairs("--model", self.model or [], problems)
        prices = {}
        for name, text in _pairs("--model-price", self.model_price or [], problems).items():
            try:
                into, out = (float(part) for part in text.split(","))
            except ValueError:
                problems.append(f"--model-price {name}={text} must be two numbers with a comma between them")
                continue
            prices[name] = (into, out)
        try:
            made = WorkflowSettings(models=models, prices=prices)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(problems)
        return made


def named_workflow(controller: str | None, workflow: str) -> str:
    """The controller that follows a workflow.

    Raises
    ------
    InputError
        If another controller is asked for.
    """
    if controller is not None:
        raise InputError("--workflow and --controller exclude each other: a workflow is a controller")
    return f"workflow:{workflow}"


def _pairs(option: str, given: list[str], problems: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            problems.append(f"{option} {text}: give NAME=VALUE")
        elif name in found:
            problems.append(f"{option} names '{name}' twice")
        else:
            found[name.strip()] = value.strip()
    return found
