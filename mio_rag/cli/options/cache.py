"""Options about answers that were given before."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.answer_cache import AnswerCache, CacheSettings
    from mio_rag.retrieval.index import CorpusIndex

__all__ = ["CacheOptions"]


@dataclass(frozen=True)
class CacheOptions:
    """Where answers are kept, how many, how long, and what it takes for the same question."""

    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="FILE",
            help="Keep answers in this file, and give them again to the same question under the same "
            "settings.",
        ),
    ] = None
    cache_by_meaning: Annotated[
        float | None,
        typer.Option(
            "--cache-by-meaning",
            metavar="COSINE",
            help="With --cache: also to a question whose embedding is as close as that. It can be wrong.",
        ),
    ] = None
    cache_entries: Annotated[
        int, typer.Option("--cache-entries", help="With --cache: keep so many answers.")
    ] = 10_000
    cache_days: Annotated[
        float, typer.Option("--cache-days", help="With --cache: give no answer that is older.")
    ] = 30.0

    def checked(self, controller: str | None = None) -> CacheSettings | None:
        """The settings; None without a file.

        Raises
        ------
        InputError
            For what is out of range, has no effect, or goes with no controller.
        """
        if self.cache is None:
            given = [f for f in fields(self) if getattr(self, f.name) != f.default]
            if given:
                named = ", ".join(f"--{f.name.replace('_', '-')}" for f in given)
                raise InputError(f"{named}: no effect without --cache FILE")
            return None
        if controller is not None:
            raise InputError(
                f"--cache and the controller {controller} exclude each other: answers of agents are not kept"
            )
        from mio_rag.answer_cache import CacheSettings

        return CacheSettings(self.cache_entries, self.cache_days, self.cache_by_meaning)

    def open(self, index: CorpusIndex, settings: CacheSettings) -> AnswerCache:
        """The cache for an index.

        Raises
        ------
        InputError
            If the file is something else.
        """
        from mio_rag.answer_cache import AnswerCache

        assert self.cache is not None
        return AnswerCache.of(self.cache, index, settings)
