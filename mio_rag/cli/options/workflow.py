"""Options about workflows: which models their nodes may ask, and what these cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.control.planner.settings import WorkflowSettings
    from mio_rag.control.settings import ControlSettings

__all__ = ["ModelOptions", "PlannerOptions", "named_planner", "named_workflow", "only_planner"]


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


@dataclass(frozen=True)
class PlannerOptions(ModelOptions):
    """A planner that chooses among workflows, and the models that these may ask."""

    planner: Annotated[
        Path | None,
        typer.Option("--planner", help="Let a planner choose a workflow: file of `mio-rag plan train`."),
    ] = None
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", help="With --planner: what the cost of a plain answer must be worth, in F1."),
    ] = None

    planner_model: Annotated[
        Path | None,
        typer.Option("--planner-model", help="GGUF file of a planner that was trained on hidden states."),
    ] = None

    def kinds(self, names: Sequence[str]) -> dict[str, Any]:
        """Settings of the kinds of controllers that workflows are for.

        Parameters
        ----------
        names : sequence of str
            Of the controllers that are asked.

        Raises
        ------
        InputError
            For options that none of them looks at, and as `settings`.
        """
        stems = {name.partition(":")[0].partition("@")[0] for name in names}
        if self.planner is None and (self.alpha is not None or self.planner_model is not None):
            raise InputError("--alpha, --planner-model: no effect without --planner")
        if not stems & {"workflow", "planner"}:
            if self.model or self.model_price:
                raise InputError("--model, --model-price: no effect without a workflow or a planner")
            return {}
        found: dict[str, Any] = {"workflow": self.settings().to_dict()}
        if self.planner is not None:
            model = None if self.planner_model is None else str(self.planner_model)
            # A run that is resumed with another file of that name must not go on.
            content = self.planner.read_bytes() if self.planner.is_file() else b""
            found["planner"] = {
                "file": str(self.planner),
                "alpha": self.alpha,
                "model": model,
                "sha256": sha256(content).hexdigest(),
            }
        return found

    def adding(self, controller: str | None) -> Callable[[ControlSettings], ControlSettings]:
        """Adds the settings of workflows to those of controllers; see `AgentOptions.of`."""

        def added(settings: ControlSettings) -> ControlSettings:
            kinds = self.kinds([] if controller is None else [controller])
            return replace(settings, kinds={**settings.kinds, **kinds})

        return added


def named_planner(names: Sequence[str]) -> tuple[str, ...]:
    """The controllers with the planner, unless it is among them at prices of its own."""
    asked = any(name.partition("@")[0] == "planner" for name in names)
    return tuple(names) if asked else (*names, "planner")


def named_workflow(controller: str | None, workflow: str) -> str:
    """The controller that follows a workflow.

    Raises
    ------
    InputError
        If another controller is asked for.
    """
    return _alone(controller, f"workflow:{workflow}")


def only_planner(controller: str | None) -> str:
    """The controller that is a planner; errors as `named_workflow`."""
    return _alone(controller, "planner")


def _alone(controller: str | None, name: str) -> str:
    if controller is not None:
        raise InputError("--workflow, --planner and --controller exclude each other: each is a controller")
    return name


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
