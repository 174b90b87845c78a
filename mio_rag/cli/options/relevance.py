"""Options about relevance, evidence links and re-rankers, and what they make of a selector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mio_rag.errors import collect

if TYPE_CHECKING:
    from mio_rag.context import PromptOrder
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.settings import Mode, RetrievalSettings
    from mio_rag.selection.selector import Selector

__all__ = ["RelevanceOptions", "Rerank", "doubt_embedder"]


Rerank = Annotated[
    list[str] | None,
    typer.Option(
        "--rerank",
        help="Look again at the pool: maxsim, cross-encoder:ID_OR_PATH or yes-no:GENERATOR. A score for the "
        "relevance model and for rankings. Repeatable.",
    ),
]


@dataclass(frozen=True)
class RelevanceOptions:
    """What relevance means, and what links between passages are worth."""

    relevance: Annotated[
        str,
        typer.Option(
            "--relevance",
            help="cosine; default: shipped weights; or the file that `mio-rag calibrate` wrote.",
        ),
    ] = "cosine"
    link_hops: Annotated[
        int,
        typer.Option(
            "--link-hops", help="Follow evidence links out of the pool, so many in a row. 0: do not."
        ),
    ] = 0
    link_benefit: Annotated[
        float,
        typer.Option(
            "--link-benefit", help="What choosing both ends of a link gains, times the better's relevance."
        ),
    ] = 0.0
    redundancy_by_relevance: Annotated[
        bool,
        typer.Option("--redundancy-by-relevance", help="Weigh similarity by the relevance of both passages."),
    ] = False
    prompt_order: Annotated[
        str, typer.Option("--prompt-order", help="best_first, best_at_ends or document.")
    ] = "best_first"
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
        import dataclasses

        from mio_rag.relevance.model import load_model

        selector, model, *_ = collect(make, lambda: load_model(self.relevance), self.check)
        return dataclasses.replace(
            cast("Selector", selector),
            relevance_model=model,
            link_benefit=self.link_benefit,
            redundancy_by_relevance=self.redundancy_by_relevance,
            prompt_order=cast("PromptOrder", self.prompt_order),
        )

    def check(self) -> None:
        """Raise `InputError` with what is out of range."""
        from mio_rag.retrieval.settings import RetrievalSettings
        from mio_rag.selection.selector import Selector

        RetrievalSettings(link_hops=self.link_hops, rerankers=tuple(self.rerank or ()))
        Selector(link_benefit=self.link_benefit, prompt_order=cast("PromptOrder", self.prompt_order))


def doubt_embedder(selector: Selector, index: CorpusIndex) -> None:
    """Say on stderr where the relevance model was fitted with another embedder than the index's."""
    model = selector.relevance_model
    doubt = model and model.doubt(index.embedder.name, index.embedder.fingerprint)
    if doubt:
        from mio_rag.cli.terminal import errors

        errors.print(f"note: {doubt}", soft_wrap=True)
