"""``mio-rag tune``: find weights on labelled questions, as a file of options."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli.options.config import config_text, kept_options
from mio_rag.cli.options.relevance import RelevanceOptions, check_weights
from mio_rag.cli.options.shared import (
    Json,
    ModeName,
    Pool,
    ProgramOptions,
    SolverOptions,
    load_index,
    make_selector,
    spread,
)
from mio_rag.cli.output import open_output
from mio_rag.errors import DataError, InputError, collect

if TYPE_CHECKING:
    from mio_rag.evaluation.tune import TuneResult

__all__ = ["tune"]

_FIT = "fit"
_BUDGET, _TRIALS, _PATIENCE, _FOLDS = 256, 60, 25, 4

_VARY = "redundancy_weight,passage_penalty,token_price,link_benefit"
_MANY = SolverOptions(time_limit=1.0, relative_gap=0.001)
"""A search solves very many programs, so the time limit of each is shorter."""


@spread
def tune(
    data: Annotated[str, typer.Argument(help="Folder with corpus and labelled questions, or 'demo'.")],
    index: Annotated[Path, typer.Option("--index", help="Index of this corpus.")],
    out: Annotated[Path, typer.Option("--out", help="TOML file of the chosen options; read with --config.")],
    budget_tokens: Annotated[
        int | None,
        typer.Option(
            "--budget-tokens",
            help="Token budget; with --recall, the largest one; with --mean-tokens, of any question. "
            "[256; 2048 with --mean-tokens]",
        ),
    ] = None,
    mean_tokens: Annotated[
        float | None,
        typer.Option(
            "--mean-tokens",
            help="Find the price of a token at which questions spend this many in the mean; needs no labels.",
        ),
    ] = None,
    recall: Annotated[
        float | None,
        typer.Option("--recall", help="Reach this mean share of evidence found with the fewest tokens."),
    ] = None,
    vary: Annotated[
        str,
        typer.Option(
            "--vary", help="Comma-separated; also redundancy_by_relevance, max_per_source. The rest stays."
        ),
    ] = _VARY,
    trials: Annotated[int, typer.Option("--trials", help="Maximum trials of each search.")] = _TRIALS,
    patience: Annotated[
        int, typer.Option("--patience", help="Stop a search after N trials without improvement.")
    ] = _PATIENCE,
    folds: Annotated[int, typer.Option("--folds", help="Folds of the cross-validation.")] = _FOLDS,
    kind: Annotated[str, typer.Option("--kind", help="With --relevance fit: logistic or isotonic.")] = (
        "logistic"
    ),
    storage: Annotated[
        Path | None,
        typer.Option("--storage", help="SQLite file of the trials, to resume from. [OUT, .sqlite]"),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None,
    *,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    solving: SolverOptions = _MANY,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    json_output: Json = False,
) -> None:
    """Find weights on labelled questions. At a budget or for evidence to find, by nested cross-validation.

    --relevance fit fits a relevance model within the folds and writes it beside the file. A model that was
    fitted on these questions makes all figures too good. Run the same command again to resume; with larger
    --trials or --patience it continues a finished search.
    """
    from mio_rag.cli.progress import progress_bar
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.harness import check_corpus
    from mio_rag.evaluation.tune import Goal, TuneSettings
    from mio_rag.evaluation.tune import tune as search
    from mio_rag.files import claimed, write_atomically
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index

    kept = storage or out.with_suffix(".sqlite")
    output = open_output(
        json_output,
        lambda: (
            f"finished trials are kept in '{kept}': run the same command to resume" if kept.exists() else ""
        ),
    )
    if mean_tokens is not None:
        from mio_rag.cli.commands.tune_price import CEILING, tune_price

        searched = {
            "--recall": recall is not None,
            "--vary": vary != _VARY,
            "--trials": trials != _TRIALS,
            "--patience": patience != _PATIENCE,
            "--folds": folds != _FOLDS,
            "--storage": storage is not None,
            "--relevance fit": evidence.relevance == _FIT,
        }
        collect(lambda: _only_price(searched), lambda: _check(out, None, limit))
        tune_price(
            output, data, index, out, mean_tokens, CEILING if budget_tokens is None else budget_tokens, limit,
            program, evidence, solving, pool, retrieval,
        )  # fmt: skip
        return
    budget = _BUDGET if budget_tokens is None else budget_tokens
    fitting = evidence.relevance == _FIT
    given = dataclasses.replace(evidence, relevance="cosine") if fitting else evidence
    selector, goal, _, _, pooling, *_ = collect(
        lambda: given.applied(lambda: make_selector(program, solving)),
        lambda: Goal(budget, recall),
        lambda: check_source(data),
        lambda: check_index(index),
        lambda: given.retrieval(pool, retrieval),
        lambda: _check(out, storage, limit),
        lambda: _check_norm(program),
    )
    settings = TuneSettings(
        goal,
        selector,
        cast("Any", kind) if fitting else selector.relevance_model,
        [name.strip() for name in vary.split(",") if name.strip()],
        trials,
        patience,
        folds,
        solving.seed,
    )
    dataset, corpus = collect(lambda: load_dataset(data), lambda: load_index(index))
    check_corpus(dataset, corpus)
    check_weights(selector, corpus)
    asked = [q for q in dataset.questions[:limit] if q.gold_ids]
    asked = asked or [q for q in dataset.questions[:limit] if q.gold_sources]
    if not asked:
        raise DataError(f"no question of '{dataset.name}' names its gold passages or documents: label some")
    retriever = Retriever.of(corpus, pooling)
    added = {"link_hops": pooling.link_hops, "rerankers": pooling.rerankers}
    label = [dataset.content_hash(), corpus.digest(), pool, retrieval, added]
    with claimed(out):
        with progress_bar("retrieving", len(asked)) as advance:
            pools = retriever.retrieve_many([q.text for q in asked], advance)
        with progress_bar("trials", (folds + 1) * trials) as advance:
            found = search(
                asked,
                pools,
                settings,
                kept,
                label=str(label),
                progress=advance,
            )
        written = None
        if fitting:
            written = _fit(asked, pools, settings.relevance, out, solving.seed, corpus, dataset.name)
        options = _options(found, program, given, written, pool, retrieval)
        write_atomically(out, _text(found, options, dataset.name, goal.recall))
    if json_output:
        output.json({"out": str(out), "options": options, **found.to_dict()})
        return
    for line in _lines(found):
        output.console.print(line, soft_wrap=True)
    output.console.print(f"{out}", soft_wrap=True)


def _only_price(searched: dict[str, bool]) -> None:
    """Refuse what belongs to a search: a price is not searched for by trials."""
    problems = [
        f"{name} belongs to a search on labelled questions, and --mean-tokens makes none: leave one out"
        for name, given in searched.items()
        if given
    ]
    if problems:
        raise InputError(problems)


def _check_norm(program: ProgramOptions) -> None:
    if program.norm is not None:
        raise InputError(
            f"--norm={program.norm} belongs to a radius, and settings are tuned without one: leave it out"
        )


def _check(out: Path, storage: Path | None, limit: int | None) -> None:
    from mio_rag.files import make_parent

    problems = []
    if out.is_dir() or out.suffix != ".toml":
        problems.append(f"--out={out} must be a file that ends in .toml")
    if storage is not None and os.path.realpath(storage) == os.path.realpath(out):
        problems.append(f"--storage={storage} must be another file than --out")
    if limit is not None and limit < 1:
        problems.append(f"--limit={limit} must be >= 1")
    if problems:
        raise InputError(problems)
    make_parent(out)


def _fit(
    questions: Sequence[Any],
    pools: Sequence[Any],
    kind: Any,
    out: Path,
    seed: int,
    corpus: Any,
    name: str,
) -> str:
    """Fit relevance on all questions, and write it beside the configuration; its file name."""
    from mio_rag.evaluation.fit import write_model
    from mio_rag.relevance import Labelled, fit

    labelled = [Labelled(p, frozenset(q.gold_ids)) for p, q in zip(pools, questions, strict=True)]
    model = fit(
        labelled,
        kind=kind,
        seed=seed,
        name=out.stem,
        embedder=corpus.embedder.fingerprint,
        provenance=f"{len(labelled)} questions of '{name}', fitted while tuning",
    )
    path = out.with_name(f"{out.stem}.relevance.json")
    write_model(model, path)
    return path.name


def _options(
    found: TuneResult,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    model: str | None,
    pool: int,
    retrieval: str,
) -> dict[str, Any]:
    """The options of `select`, `ask` and `evaluate` that the figures were found with."""
    setting = found.setting
    return {
        "budget_tokens": setting.budget_tokens,
        "redundancy": setting.redundancy_weight,
        "redundancy_by_relevance": setting.redundancy_by_relevance,
        "passage_penalty": setting.passage_penalty,
        "token_price": setting.token_price,
        "link_benefit": setting.link_benefit,
        **kept_options(program, evidence, pool, retrieval, model),
        "max_per_source": setting.max_per_source,
    }


def _text(found: TuneResult, options: dict[str, Any], name: str, recall: float | None) -> str:
    """The file: options, and what they are worth."""
    measured = {
        "questions": found.questions,
        "trials": found.trials,
        "clearly_better": found.clearly_better,
        **{
            f"{part}_{key}": [round(figures[key][end], 4) for end in ("mean", "low", "high")]
            for part, figures in (("outer", found.outer), ("inner", found.inner), ("start", found.start))
            for key in ("recall", "tokens")
        },
    }
    goal = "the most evidence"
    if recall is not None:
        goal = f"the fewest tokens that find {recall:.0%} of the evidence"
    comment = (
        f"Tuned on {found.questions} questions of '{name}' for {goal}; read it with --config.\n"
        "outer_*: on questions that the search did not see (mean, and its 95 % interval); this is what to\n"
        "expect. inner_*: on those that it did see. start_*: the setting that it started from.\n"
        "recall: the share of the evidence that was found. clearly_better: than the start, on questions not\n"
        "seen, by the 95 % interval."
    )
    return config_text(options, measured, comment)


def _signed(entry: dict[str, float], scale: float, digits: int, unit: str = "") -> str:
    """A difference with its interval; zero has no minus."""
    mean, low, high = (
        f"{round(scale * entry[end], digits) + 0.0:+.{digits}f}" for end in ("mean", "low", "high")
    )
    return f"{mean}{unit} ({low} to {high})"


def _lines(found: TuneResult) -> list[str]:
    """The outcome for people: what to expect first."""

    def figures(entry: dict[str, Any]) -> str:
        r, t = entry["recall"], entry["tokens"]
        return (
            f"evidence found {r['mean']:.1%} ({r['low']:.1%} to {r['high']:.1%}) with {t['mean']:.0f} tokens"
        )

    gain, saved = found.outer["gain"], found.outer["saved"]
    more = {"mean": -saved["mean"], "low": -saved["high"], "high": -saved["low"]}
    tokens, searches = _signed(more, 1, 0), len(found.folds) + 1
    lines = [
        f"{found.questions} questions; {found.trials} trials in {searches} searches, one for each of "
        f"{searches - 1} folds and one on all questions",
        f"  on questions not seen   {figures(found.outer)}",
        f"  on questions seen       {figures(found.inner)}  (optimistic)",
        f"  the start, on all       {figures(found.start)}",
        f"  against the start       evidence found {_signed(gain, 100, 1, ' points')}, tokens {tokens}",
    ]
    if not found.improved:
        return [*lines, "nothing better was found: the file holds the settings that the search started from"]
    if not found.clearly_better:
        lines.append("no clear improvement on questions not seen: try more questions before relying on it")
    return lines
