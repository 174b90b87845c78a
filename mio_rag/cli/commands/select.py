"""``mio-rag select``: passages for one question, with a proof and, on request, reasons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.cli.options.config import ConfigFile
from mio_rag.cli.options.money import MoneyOptions, at_rate
from mio_rag.cli.options.relevance import RelevanceOptions, check_weights
from mio_rag.cli.options.shared import (
    Budget,
    Exclude,
    Explain,
    Include,
    Json,
    ModeName,
    Pool,
    ProgramOptions,
    SolverOptions,
    check_request,
    fitting,
    load_index,
    make_selector,
    spread,
)
from mio_rag.cli.options.side import SideOptions
from mio_rag.cli.options.strategies import StrategyChoice
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.retrieval import Retriever
    from mio_rag.selection.result import Selection
    from mio_rag.selection.selector import Selector

__all__ = ["select"]


@spread
def select(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    budget_tokens: Budget = 256,
    *,
    program: ProgramOptions,
    must_include: Include = None,
    must_exclude: Exclude = None,
    evidence: RelevanceOptions,
    side: SideOptions,
    solving: SolverOptions,
    money: MoneyOptions,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    search: StrategyChoice,
    generator: Annotated[
        str | None, typer.Option("--generator", help="With --strategies: the model that they ask, as in ask.")
    ] = None,
    config: ConfigFile = None,
    explain: Explain = False,
    json_output: Json = False,
) -> None:
    """Choose passages for a question, and prove the choice. With --explain also say why.

    Where passages that are wanted do not fit, single sentences are chosen. Tokens are counted by an
    approximation; `ask` uses the tokenizer of its model.
    """
    from mio_rag.cli.show.selection import print_selection
    from mio_rag.cli.show.strategies import print_searched
    from mio_rag.generation import check_generator
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.selector import check_ids

    output = open_output(json_output)
    if generator is not None and search.strategies is None:
        raise InputError("--generator: select asks no model without --strategies; to answer, use ask")
    program = fitting(program, decided=search.controller is not None)
    selector, _, _, found, prices, *_ = collect(
        lambda: side.applied(
            lambda: evidence.applied(
                lambda: make_selector(program, solving, must_include or (), must_exclude or ())
            ),
            program,
        ),
        lambda: check_index(index),
        lambda: check_request(question, budget_tokens),
        lambda: evidence.retrieval(pool, retrieval),
        lambda: money.money(program),
        search.check,
        lambda: None if generator is None else check_generator(generator),
    )
    rate = None if prices is None else prices.rate()
    selector = at_rate(selector, rate)
    corpus = load_index(index)
    check_ids(selector, corpus.ids)
    check_weights(selector, corpus)
    retriever = Retriever.of(corpus, found)
    searched: dict[str, Any] = {}
    if search.controller is None:
        selection = selector.select(retriever.retrieve(question), budget_tokens, retriever.counter)
    else:
        selection, searched = _searched(search, question, retriever, selector, budget_tokens, generator)
    if json_output:
        cost = {} if rate is None else {"dollars": rate.cost(selection.tokens_used)}
        output.json({"question": question, **cost, **selection.to_dict(), **searched})
        return
    print_selection(output.console, selection, explain=explain)
    if searched:
        print_searched(output.console, searched)
    if rate is not None:
        output.console.print(rate.explain(selection.tokens_used))


def _searched(
    search: StrategyChoice,
    question: str,
    retriever: Retriever,
    selector: Selector,
    budget_tokens: int,
    generator: str | None,
) -> tuple[Selection, dict[str, Any]]:
    """The selection from what strategies find, and who found it."""
    from mio_rag.control.bandit.agent import make_pipeline
    from mio_rag.control.bandit.pipeline import searched_json
    from mio_rag.control.settings import ControlSettings
    from mio_rag.generation import make_generator
    from mio_rag.types import Question

    assert search.controller is not None
    reader = None if generator is None else make_generator(generator)
    try:
        settings = search.added(ControlSettings())
        pipeline = make_pipeline(search.controller, settings, retriever, reader, selector)
        result = pipeline.run(Question("question", question), budget_tokens, retriever.counter)
    finally:
        if reader is not None:
            reader.close()
    return result.selection, searched_json(result)
