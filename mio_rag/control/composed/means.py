"""What a policy may use: models with their prices, and limits that hold whatever a controller wants."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from mio_rag.errors import InputError
from mio_rag.generation import check_generator
from mio_rag.session.trace import is_between

__all__ = ["READER", "SHA256", "Bounds", "Model", "is_whole"]

#: The model that answers; policies name its price, commands name the model.
READER = "reader"

#: What a hash of a file looks like.
SHA256 = re.compile(r"[0-9a-f]{64}")


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether a value is a whole number, and no less than that."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True)
class Model:
    """A generator and what it costs.

    Parameters
    ----------
    input, output : float, optional
        Dollars per million tokens into and out of it, >= 0; both or none.
    spec : str, optional
        As `mio_rag.generation.make_generator` takes it. The reader has none: commands name it.
    sha256 : str, optional
        Of the file that a spec ``gguf:FILE`` names.
    """

    input: float | None = None
    output: float | None = None
    spec: str | None = None
    sha256: str | None = None

    def problems(self, name: str) -> list[str]:
        """What is wrong with it, as the model of a name."""
        where, problems = f"model '{name}'", []
        if (self.input is None) != (self.output is None):
            problems.append(f"{where}: give both input and output, dollars per million tokens")
        for side in ("input", "output"):
            value = getattr(self, side)
            if value is not None and not is_between(value, 0, math.inf):
                problems.append(f"{where}: {side} = {value!r} must be a number of dollars >= 0")
        if name == READER and self.spec is not None:
            problems.append(f"{where}: spec = {self.spec!r}: --generator names the reader; leave it out")
        elif name != READER and self.spec is None:
            problems.append(f'{where}: give spec, for instance "openai:gpt-4o-mini"')
        elif not (self.spec is None or isinstance(self.spec, str)):
            return [
                *problems,
                f'{where}: spec = {self.spec!r} must be text, for instance "openai:gpt-4o-mini"',
            ]
        elif self.spec is not None:
            try:
                check_generator(self.spec)
            except InputError as error:
                problems += [f"{where}: {problem}" for problem in error.problems]
        named = self.spec or ""
        if self.sha256 is not None and not (SHA256.fullmatch(str(self.sha256)) and named.startswith("gguf:")):
            problems.append(f'{where}: sha256 is for a model of a file, spec = "gguf:FILE", in 64 digits')
        return problems

    @property
    def is_priced(self) -> bool:
        """Whether it has a price."""
        return self.input is not None and self.output is not None


@dataclass(frozen=True)
class Bounds:
    """Limits that hold whatever a controller wants.

    Parameters
    ----------
    evidence_tokens : int
        Largest block of passages, >= 1.
    answer_tokens : int
        Longest answer, >= 1; a tier names its own.
    tokens : int
        Into and out of all models for one question, >= 1.
    steps : int
        Actions that ask a model, >= 0.
    seconds : float
        After which no action begins, > 0.
    """

    evidence_tokens: int = 1024
    answer_tokens: int = 64
    tokens: int = 20_000
    steps: int = 10
    seconds: float = 120.0

    def __post_init__(self) -> None:
        problems = [
            f"limits: {name} = {getattr(self, name)!r} must be a whole number >= {least}"
            for name, least in (("evidence_tokens", 1), ("answer_tokens", 1), ("tokens", 1))
            if not is_whole(getattr(self, name), least)
        ]
        is_counted = not problems
        if not is_whole(self.steps, 0):
            problems.append(f"limits: steps = {self.steps!r} must be a whole number >= 0")
        if not (is_between(self.seconds, 0, math.inf) and self.seconds > 0):
            problems.append(f"limits: seconds = {self.seconds!r} must be a number > 0")
        if is_counted and self.tokens < self.evidence_tokens + self.answer_tokens:
            problems.append(
                f"limits: tokens = {self.tokens} is below evidence_tokens and answer_tokens together "
                f"({self.evidence_tokens + self.answer_tokens}): raise it, or lower these"
            )
        if problems:
            raise InputError(problems)
