"""Options about relevance, evidence links and re-rankers, and what they make of a selector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.context import PromptOrder
    from mio_rag.relevance.source import Relevance
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.settings import Mode, RetrievalSettings
    from mio_rag.selection.selector import Selector

__all__ = ["RelevanceOptions", "Rerank", "check_weights"]


Rerank = Annotated[
    list[str] | None,
    typer.Option(
        "--rerank",
        help="Re-rank the pool: maxsim, cross-encoder:ID_OR_PATH or yes-no:GENERATOR. The score is "
        "used by rankings, and by relevance models that were fitted with it. Repeatable.",
    ),
]


@dataclass(frozen=True)
class RelevanceOptions:
    """What relevance means, and what links between passages are worth."""

    relevance: Annotated[
        str | None,
        typer.Option(
            "--relevance",
            help="auto (probabilities by what the pool brings), given (as retrieved), or a file from "
            "`mio-rag calibrate`. "
            "[by preset: auto]",
        ),
    ] = None
    link_hops: Annotated[
        int | None,
        typer.Option(
            "--link-hops",
            help="Extend the pool along evidence links, up to N hops. 0: do not. [1 where there are links]",
        ),
    ] = None
    link_benefit: Annotated[
        float | None,
        typer.Option(
            "--link-benefit",
            help="Benefit of choosing passages that a link or a short document relates. [by preset: 0.2]",
        ),
    ] = None
    redundancy_by_relevance: Annotated[
        bool,
        typer.Option(
            "--redundancy-by-relevance", help="Weight similarity by the relevance of both passages."
        ),
    ] = False
    prompt_order: Annotated[str, typer.Option("--prompt-order", help="best_first or document.")] = (
        "best_first"
    )
    rerank: Rerank = None

    def retrieval(self, pool: int, mode: str) -> RetrievalSettings:
        """How pools are found: by these, and by what the options --pool and --retrieval say.

        Raises
        ------
        InputError
            With what is out of range.
        """
        from mio_rag.retrieval.settings import RetrievalSettings

        return RetrievalSettings(pool, cast("Mode", mode), self.link_hops, tuple(self.rerank or ()))

    def applied(self, make: Callable[[], Selector]) -> Selector:
        """The selector that `make` gives, with these settings; the problems of both at once."""
        from mio_rag.selection.selector import Selector

        selector, model, *_ = collect(make, self.model, self.check)
        made = cast("Selector", selector)
        if self.relevance is not None and made.relevance_model == "given":
            Selector.preset("raw", relevance_model="auto")  # says why not
        return made.replace(
            relevance_model=made.relevance_model if self.relevance is None else model,
            link_benefit=made.link_benefit if self.link_benefit is None else self.link_benefit,
            redundancy_by_relevance=self.redundancy_by_relevance,
            prompt_order=cast("PromptOrder", self.prompt_order),
        )

    def model(self) -> Relevance:
        """What --relevance names.

        Raises
        ------
        DataError
            If it names a file that is no relevance model.
        """
        from mio_rag.relevance.model import load_model

        return "auto" if self.relevance in (None, "auto") else load_model(self.relevance)

    def check(self) -> None:
        """Raise `InputError` with what is out of range."""
        from mio_rag.retrieval.settings import RetrievalSettings
        from mio_rag.selection.selector import Selector

        RetrievalSettings(link_hops=self.link_hops, rerankers=tuple(self.rerank or ()))
        Selector(link_benefit=self.link_benefit or 0.0, prompt_order=cast("PromptOrder", self.prompt_order))


def check_weights(selector: Selector, index: CorpusIndex) -> None:
    """Refuse a relevance model that was fitted on another embedder than the index's, before anything is done.

    Raises
    ------
    InputError
        If it was.
    """
    from mio_rag.relevance.model import RelevanceModel

    model = selector.relevance_model
    misfit = isinstance(model, RelevanceModel) and model.misfit(index.embedder.fingerprint)
    if misfit:
        raise InputError(misfit)
