"""Answer one question from an index: retrieve, select, generate."""

from __future__ import annotations

from collections.abc import Sequence

from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.generation import Generator, build_prompt
from mio_rag.generation.protocol import context_budget
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.rerank import Reranker
from mio_rag.retrieval.retriever import Retriever
from mio_rag.retrieval.settings import Mode
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import Answer, Question


def ask(
    index: CorpusIndex,
    question: str | Question,
    generator: Generator,
    selector: Selector | None = None,
    *,
    budget_tokens: int = DEFAULTS.budget,
    pool: int = DEFAULTS.pool,
    mode: Mode = "fused",
    max_tokens: int = DEFAULTS.answer,
    link_hops: int | None = None,
    rerankers: Sequence[str | Reranker] = (),
) -> tuple[Selection, Answer]:
    """Answer a question from an index.

    selector: by default ``Selector(units="auto")``: single sentences where the budget has little room.
    budget_tokens: largest context block as the generator counts tokens; what its window leaves, where that is
        less.
    pool, mode, link_hops, rerankers: see `Retriever`.
    max_tokens: longest answer.

    Where nothing is chosen, the answer is blank, and the generator is not called: without context it
    would make something up, and cost tokens. The selection's notes say why.

    Raises `InfeasibleError` if no selection satisfies the selector's constraints; the generator is then not
    called; `GenerationError` if the generator fails.
    """
    chooser = selector or Selector(units="auto")
    chooser.check_ids(index.ids)
    retriever = Retriever(
        index, pool=pool, mode=mode, counter=generator, link_hops=link_hops, rerankers=rerankers
    )
    return answer_from(
        retriever, question, generator, chooser, budget_tokens=budget_tokens, max_tokens=max_tokens
    )


def answer_from(
    retriever: Retriever,
    question: str | Question,
    generator: Generator,
    selector: Selector,
    *,
    budget_tokens: int = DEFAULTS.budget,
    max_tokens: int = DEFAULTS.answer,
) -> tuple[Selection, Answer]:
    """Answer a question from what a retriever finds; parameters, result and errors as of `ask`."""
    asked = question if isinstance(question, Question) else Question("question", question)
    if budget_tokens < 1:
        raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
    allowed = context_budget(generator, asked, budget_tokens, max_tokens=max_tokens, error=InputError)
    selection = selector.select(retriever.retrieve(asked.text), allowed, generator)
    if selection.result.x is None:
        raise InfeasibleError(selection.explain())
    if not selection.chosen:
        return selection, Answer("", 0, 0, 0.0, generator.name)
    return selection, generator.generate(build_prompt(asked, selection.passages), max_tokens=max_tokens)
