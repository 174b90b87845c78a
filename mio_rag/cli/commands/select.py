"""``mio-rag select``: passages for one question, with a proof and, on request, reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    load_index,
    make_selector,
    spread,
)
from mio_rag.cli.options.side import SideOptions
from mio_rag.cli.output import open_output
from mio_rag.errors import collect

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
    config: ConfigFile = None,
    explain: Explain = False,
    json_output: Json = False,
) -> None:
    """Choose passages for a question, and prove the choice; with --explain also say why.

    Tokens are counted by an approximation, since no model reads the passages; `ask` uses the tokenizer of its
    model.
    """
    from mio_rag.cli.show.selection import print_selection
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.ids import check_ids

    output = open_output(json_output)
    selector, _, _, found, prices = collect(
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
    )
    rate = None if prices is None else prices.rate()
    selector = at_rate(selector, rate)
    corpus = load_index(index)
    check_ids(selector, corpus.ids)
    check_weights(selector, corpus)
    retriever = Retriever.of(corpus, found)
    selection = selector.select(retriever.retrieve(question), budget_tokens, retriever.counter)
    if json_output:
        cost = {} if rate is None else {"dollars": rate.cost(selection.tokens_used)}
        output.json({"question": question, **cost, **selection.to_dict()})
        return
    print_selection(output.console, selection, explain=explain)
    if rate is not None:
        output.console.print(rate.explain(selection.tokens_used))
