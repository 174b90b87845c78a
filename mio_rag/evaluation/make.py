"""Everything that can be compared, by name: methods and controllers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mio_rag.control.controller import Resuming, Setup
from mio_rag.control.make import find_kind, make_controller
from mio_rag.evaluation.contender import Contender
from mio_rag.evaluation.controlled import Controlled
from mio_rag.evaluation.methods import make_methods
from mio_rag.evaluation.paced import PACED, Paced, unpaced

__all__ = ["default_baseline", "make_contenders"]


def make_contenders(
    names: Sequence[str],
    setup: Setup,
    *,
    mmr_lambda: float = 0.7,
    traces: Path | None = None,
    questions: int = 1,
    rows: Iterable[Mapping[str, Any]] = (),
) -> list[Contender]:
    """Methods and controllers of these names, in their order.

    Parameters
    ----------
    names : sequence of str
        See `mio_rag.control.make` and `mio_rag.evaluation.methods`.
    setup : Setup
        What controllers are made of; methods take its selector.
    traces : Path or None
        File that takes the traces of controllers.
    questions : int
        Of the run: what "paced" may spend goes by it.
    rows : iterable of mapping
        What the run holds already.

    Raises
    ------
    InputError
        For names that are not known.
    """
    ranked = unpaced([name for name in names if find_kind(name) is None])
    methods = iter(make_methods(ranked, setup.selector, mmr_lambda) if ranked else [])

    kept = list(rows)

    def made(name: str) -> Contender:
        if name == PACED:
            return Paced(setup.selector, questions, kept)
        if find_kind(name) is None:
            return next(methods)
        controller = make_controller(name, setup)
        if isinstance(controller, Resuming):
            controller.take_up([_taken(row) for row in kept if row["method"] == name and not row["error"]])
        return Controlled(controller, setup.selector.solver, traces)

    return [made(name) for name in names]


def _taken(row: Mapping[str, Any]) -> int:
    """Tokens of a row, into and out of all models."""
    return int(row["prompt_tokens"]) + int(row["completion_tokens"])


def default_baseline(names: Sequence[str]) -> str:
    """Whom others are compared with: fused, else topk, else the first that is a rival, else the first."""
    kinds = {name: find_kind(name) for name in names}
    rivals = [name for name, kind in kinds.items() if kind is None or kind.rival]
    rankings = [name for name in ("fused", "topk") if name in names]
    return [*rankings, *rivals, *names][0]
