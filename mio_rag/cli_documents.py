"""Folders of documents on the command line: how far they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.corpus import Dataset

__all__ = ["DocumentOptions"]


@dataclass(frozen=True)
class DocumentOptions:
    """What of a folder of documents is read."""

    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Folder of documents: follow symbolic links out of it.")
    ] = False
    max_file_mb: Annotated[
        float | None,
        typer.Option("--max-file-mb", help="Folder of documents: largest file that is read. [100]"),
    ] = None

    def checked(self) -> None:
        """Raise `InputError` for a size that is none."""
        if self.max_file_mb is not None and not 0 < self.max_file_mb < math.inf:
            raise InputError(f"--max-file-mb={self.max_file_mb:g} must be a number above 0")

    def load(self, data: str) -> Dataset:
        """The data set, its documents read as the options say."""
        from mio_rag.datasets import load_dataset

        self.checked()
        limit = self.max_file_mb
        return load_dataset(
            data,
            follow_links=self.follow_links or None,
            max_bytes=None if limit is None else max(1, round(limit * 1e6)),
        )
