"""The option that names a refusal model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.refusal.model import Refusal

__all__ = ["RefusalFile", "read_refusal"]

RefusalFile = Annotated[
    Path | None,
    typer.Option(
        "--refusal",
        metavar="FILE",
        help="Say 'not in these passages' where that is likely, by a model from `mio-rag unanswerable`.",
    ),
]


def read_refusal(path: Path, controllers: Sequence[str]) -> Refusal:
    """The model of a file.

    Raises
    ------
    InputError
        If controllers answer, or the file is no such model.
    """
    if controllers:
        raise InputError(
            "--refusal and --controller exclude each other: agents stop by their own uncertainty"
        )
    from mio_rag.refusal.model import Refusal

    return Refusal.load(path)
