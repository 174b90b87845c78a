"""Options about controllers: of ``ask`` for one question, of ``evaluate`` for a question set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.control.settings import ControlSettings
    from mio_rag.corpora.dataset import Dataset

__all__ = ["AgentOptions", "ControlOptions"]


@dataclass(frozen=True)
class AgentOptions:
    """How a controller obtains U, which process it follows, and its limits."""

    uncertainty: Annotated[
        str,
        typer.Option(
            "--uncertainty",
            help="How U is obtained: tracked by the model, or measured by confidence, evidence or complete.",
        ),
    ] = "tracked"
    mdp_config: Annotated[
        Path | None, typer.Option("--mdp-config", help="TOML file with the decision process.")
    ] = None
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", help="Maximum actions before the answer. [the horizon]")
    ] = None
    max_total_tokens: Annotated[
        int, typer.Option("--max-total-tokens", help="Maximum prompt and answer tokens for one question.")
    ] = 20_000
    max_seconds: Annotated[
        float, typer.Option("--max-seconds", help="Start no action after this many seconds.")
    ] = 120.0
    stop_at: Annotated[
        float, typer.Option("--stop-at", help="U at which always-reason, always-retrieve and threshold stop.")
    ] = 0.05

    def unused(self, trace: Path | None) -> None:
        """Refuse options that have no effect without a controller."""
        given = [
            f"--{field.name.replace('_', '-')}"
            for field in fields(AgentOptions)
            if getattr(self, field.name) != field.default
        ]
        if named := given + (["--trace"] if trace is not None else []):
            raise InputError(f"{', '.join(named)}: no effect without a controller, for instance mdp")

    def of(
        self,
        controller: str | None,
        trace: Path | None,
        *added: Callable[[ControlSettings], ControlSettings],
    ) -> ControlSettings | None:
        """The settings for a controller, once its name and the file of its trace are found good.

        Parameters
        ----------
        controller : str or None
            None: there is none, and options that are for one are refused.
        added : callable
            Each adds the settings of a further kind of controllers.
        """
        if controller is None:
            self.unused(trace)
            return None
        from mio_rag.control.make import check_controllers

        def described() -> ControlSettings:
            settings = self.settings()
            for add in added:
                settings = add(settings)
            return settings

        found, _ = collect(described, lambda: _check_trace(trace))
        settings = cast("ControlSettings", found)
        check_controllers([controller], settings, closed_book=False)
        return settings

    def settings(self) -> ControlSettings:
        """The settings that the options describe; the problems of all of them at once."""
        from mio_rag.control.meter import Limits
        from mio_rag.control.settings import ControlSettings
        from mio_rag.learning.mdp import model_of

        model, _ = collect(
            lambda: model_of(self.mdp_config, {}),
            lambda: ControlSettings(
                gauge=self.uncertainty,
                limits=Limits(self.max_steps or 0, self.max_total_tokens, self.max_seconds),
                stop_at=self.stop_at,
            ),
        )
        steps = self.max_steps if self.max_steps is not None else model.horizon or Limits().steps
        limits = Limits(steps, self.max_total_tokens, self.max_seconds)
        return ControlSettings(model, self.uncertainty, limits, self.stop_at)


@dataclass(frozen=True)
class ControlOptions(AgentOptions):
    """Which controllers an evaluation compares, and on which questions."""

    controllers: Annotated[
        str | None,
        typer.Option(
            "--controllers",
            help="Comma-separated: mdp, always-reason, always-retrieve, threshold[:X], random, fixed-N; each "
            "may end with @tracked, @confidence, @evidence or @complete; workflow:NAME, planner[@ALPHA].",
        ),
    ] = None
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", help="Take the passages from here, and only the questions from DATA."),
    ] = None
    closed_book: Annotated[
        bool, typer.Option("--closed-book", help="Answer without a corpus, from the model alone.")
    ] = False
    keep_choices: Annotated[
        bool, typer.Option("--keep-choices", help="Do not shuffle the options of multiple-choice questions.")
    ] = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the controllers."""
        return tuple(name.strip() for name in (self.controllers or "").split(",") if name.strip())

    def check(self, data: str, generator: str) -> None:
        """Raise `InputError` for what cannot be asked together; nothing is loaded."""
        from mio_rag.corpora.load import check_source

        problems = []
        if self.closed_book and self.corpus is not None:
            problems.append("--closed-book and --corpus exclude each other")
        if self.names and generator == "none":
            problems.append("controllers need a model that answers: give --generator")
        for source in (data, self.corpus):
            try:
                check_source("demo" if source is None else source)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)

    def load(self, data: str, seed: int) -> Dataset:
        """The questions with what they are asked of, their choices shuffled by the seed."""
        from mio_rag.corpora.load import load_dataset
        from mio_rag.corpora.questions import closed_book, shuffle_choices, with_corpus

        if self.closed_book:
            dataset = closed_book(data)
        else:
            dataset = load_dataset(data) if self.corpus is None else with_corpus(data, self.corpus)
        has_choices = any(question.choices for question in dataset.questions)
        return shuffle_choices(dataset, seed) if has_choices and not self.keep_choices else dataset


def _check_trace(trace: Path | None) -> None:
    if trace is not None and (trace.is_dir() or not trace.absolute().parent.is_dir()):
        raise InputError(f"--trace={trace} must be a file, in a folder that exists")
