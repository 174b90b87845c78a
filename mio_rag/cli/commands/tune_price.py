"""``mio-rag tune --mean-tokens``: the price of a token at which questions spend so many in the mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mio_rag.cli.options.config import config_text, kept_options
from mio_rag.cli.options.relevance import RelevanceOptions
from mio_rag.cli.options.shared import ProgramOptions, SolverOptions, load_index, make_selector
from mio_rag.cli.output import Output
from mio_rag.errors import DataError, InputError, collect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mio_rag.allocation import PricePoint, WorkloadPrice
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.selection.selector import Selector

__all__ = ["CEILING", "tune_price"]

#: Most tokens of a question, where nothing else is said.
CEILING = 2048
_APART = 1.1


def tune_price(
    output: Output,
    data: str,
    index: Path,
    out: Path,
    mean_tokens: float,
    ceiling: int,
    limit: int | None,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    solving: SolverOptions,
    pool: int,
    retrieval: str,
) -> None:
    """Find the price, and write it with the settings that it was found with.

    Parameters
    ----------
    ceiling : int
        Most tokens of any question: the budget that the file holds.
    """
    from mio_rag.allocation import price_for
    from mio_rag.cli.progress import progress_bar
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.harness import check_corpus
    from mio_rag.files import claimed, write_atomically
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index

    selector, pooling, *_ = collect(
        lambda: evidence.applied(lambda: make_selector(program, solving)),
        lambda: evidence.retrieval(pool, retrieval),
        lambda: check_source(data),
        lambda: check_index(index),
        lambda: _check(mean_tokens, ceiling),
    )
    dataset, corpus = collect(lambda: load_dataset(data), lambda: load_index(index))
    check_corpus(dataset, corpus)
    asked = dataset.questions[:limit]
    if not asked:
        raise DataError(f"'{dataset.name}' has no questions: give some of the kind that is to be asked")
    with claimed(out):
        with progress_bar("retrieving", len(asked)) as advance:
            retriever = Retriever.of(corpus, pooling)
            pools = retriever.retrieve_many([q.text for q in asked], advance)
        found = price_for(pools, mean_tokens, selector=selector, ceilings=ceiling, counter=retriever.counter)
        options = _options(found, selector, ceiling, program, evidence, pool, retrieval)
        write_atomically(out, _text(found, options, dataset.name, corpus))
    if output.as_json:
        output.json({"out": str(out), "options": options, **found.to_dict()})
        return
    output.console.print(f"{found.explain()}\n{out}", soft_wrap=True)


def _check(mean_tokens: float, ceiling: int) -> None:
    problems = []
    if not 0 < mean_tokens <= 1e12:
        problems.append(f"--mean-tokens={mean_tokens} must be a number above 0")
    if ceiling < 1:
        problems.append(f"--budget-tokens={ceiling} must be >= 1")
    elif mean_tokens > ceiling:
        problems.append(
            f"--mean-tokens={mean_tokens:g} is above --budget-tokens={ceiling}, the most that any question "
            "may take: raise the budget"
        )
    if problems:
        raise InputError(problems)


def _options(
    found: WorkloadPrice,
    selector: Selector,
    ceiling: int,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    pool: int,
    retrieval: str,
) -> dict[str, Any]:
    """The options of `select`, `ask` and `evaluate` under which so much is spent."""
    return {
        "budget_tokens": ceiling,
        "redundancy": selector.redundancy_weight,
        "redundancy_by_relevance": selector.redundancy_by_relevance,
        "passage_penalty": selector.passage_penalty,
        "token_price": found.token_price,
        "link_benefit": None if selector.link_benefit == "auto" else selector.link_benefit,
        "radius": program.radius,
        "norm": program.norm,
        **kept_options(program, evidence, pool, retrieval),
    }


def _text(found: WorkloadPrice, options: dict[str, Any], name: str, corpus: CorpusIndex) -> str:
    """The file: options, what is spent under them, and the curve that the search has seen."""
    curve = _spread(found.curve)
    measured = {
        "questions": found.questions,
        "mean_tokens": round(found.at.mean_tokens, 1),
        "wanted_mean_tokens": found.wanted,
        "mean_value": round(found.at.mean_value, 6),
        "curve_token_prices": [float(f"{point.token_price:.4g}") for point in curve],
        "curve_mean_tokens": [round(point.mean_tokens, 1) for point in curve],
        "passages": len(corpus),
        "embedder_fingerprint": corpus.embedder.fingerprint,
    }
    comment = (
        f"The price of a token at which {found.questions} questions of '{name}' spend at most "
        f"{found.wanted:g} tokens\nin the mean; read it with --config. No labels were used. budget_tokens "
        "is the most that one\nquestion may take. For a service of so many tokens a day, as its forecast:\n"
        f"mio-rag serve INDEX --tokens-per-day N --start-price {found.token_price:g} "
        f"--mean-tokens {found.at.mean_tokens:.0f}"
    )
    return config_text(options, measured, comment)


def _spread(curve: Sequence[PricePoint]) -> list[PricePoint]:
    """Of the prices that were tried, those between which spending differs by a tenth or more."""
    kept: list[PricePoint] = []
    for point in curve:
        if point.mean_tokens > 0 and (not kept or point.mean_tokens >= _APART * kept[-1].mean_tokens):
            kept.append(point)
    return kept
