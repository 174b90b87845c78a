"""Commands that fit: tune, tune price, calibrate, unanswerable."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli.options import (
    Budget,
    GeneratorSpec,
    Json,
    MaxTokens,
    ModeName,
    Pool,
    ProgramOptions,
    RelevanceOptions,
    Rerank,
    SolverOptions,
    check_weights,
    config_text,
    kept_options,
    load_index,
    make_selector,
    spread,
)
from mio_rag.cli.output import Output, open_output
from mio_rag.cli.terminal import progress_bar, styled
from mio_rag.errors import DataError, InputError, collect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mio_rag.allocation import PricePoint, WorkloadPrice
    from mio_rag.evaluation.tune import TuneResult
    from mio_rag.relevance.model import Kind
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.selection.selector import Selector


# -- tune ------------------------------------------------------------------------------------------------

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
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.harness import check_corpus
    from mio_rag.evaluation.tune import Goal, TuneSettings
    from mio_rag.evaluation.tune import tune as search
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.storage import claimed, write_atomically

    kept = storage or out.with_suffix(".sqlite")
    output = open_output(
        json_output,
        lambda: (
            f"finished trials are kept in '{kept}': run the same command to resume" if kept.exists() else ""
        ),
    )
    if mean_tokens is not None:
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
    from mio_rag.storage import make_parent

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


# -- tune price ------------------------------------------------------------------------------------------

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
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.harness import check_corpus
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.storage import claimed, write_atomically

    selector, pooling, *_ = collect(
        lambda: evidence.applied(lambda: make_selector(program, solving)),
        lambda: evidence.retrieval(pool, retrieval),
        lambda: check_source(data),
        lambda: check_index(index),
        lambda: _check_of_tune_price(mean_tokens, ceiling),
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
        options = _options_of_tune_price(found, selector, ceiling, program, evidence, pool, retrieval)
        write_atomically(out, _text_of_tune_price(found, options, dataset.name, corpus))
    if output.as_json:
        output.json({"out": str(out), "options": options, **found.to_dict()})
        return
    output.console.print(f"{found.explain()}\n{out}", soft_wrap=True)


def _check_of_tune_price(mean_tokens: float, ceiling: int) -> None:
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


def _options_of_tune_price(
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


def _text_of_tune_price(found: WorkloadPrice, options: dict[str, Any], name: str, corpus: CorpusIndex) -> str:
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


# -- calibrate -------------------------------------------------------------------------------------------


def calibrate(
    data: Annotated[
        str, typer.Argument(help="Folder with corpus and questions that name gold passages, or 'demo'.")
    ],
    index: Annotated[Path, typer.Option("--index", help="Index of this corpus.")],
    out: Annotated[
        Path, typer.Option("--out", help="File for the model; its plot is written beside it (.png).")
    ],
    kind: Annotated[str, typer.Option("--kind", help="logistic or isotonic.")] = "logistic",
    link_hops: Annotated[
        int,
        typer.Option("--link-hops", help="Links followed to extend the pool; use the same later. 0: none."),
    ] = 1,
    link_stages: Annotated[
        int, typer.Option("--link-stages", help="Stages with features from evidence links. 0: none.")
    ] = 1,
    sentences: Annotated[
        bool,
        typer.Option(
            "--sentences",
            help="Fit weights of sentences, too, on answers; no question need name gold passages then.",
        ),
    ] = False,
    rerank: Rerank = None,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the folds.")] = 0,
    json_output: Json = False,
) -> None:
    """Fit a relevance model on labelled questions. It gives the probability that a passage is needed."""
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.fit import calibrate as fit_model
    from mio_rag.evaluation.fit import write_model
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.retrieval.settings import Mode, RetrievalSettings

    output = open_output(json_output)
    *_, found, _ = collect(
        lambda: check_source(data),
        lambda: check_index(index),
        lambda: RetrievalSettings(pool, cast("Mode", retrieval), link_hops, tuple(rerank or ())),
        lambda: _check_of_calibrate(kind, link_stages, limit, seed, out),
    )
    dataset, corpus = collect(lambda: load_dataset(data), lambda: load_index(index))
    retriever = Retriever.of(corpus, found)
    with progress_bar("retrieving", len(dataset.questions[:limit])) as advance:
        model = fit_model(
            dataset,
            retriever,
            kind=cast("Kind", kind),
            link_stages=link_stages,
            limit=limit,
            seed=seed,
            name=out.stem,
            progress=advance,
            sentences=sentences,
        )
    picture = write_model(model, out)
    if json_output:
        output.json({"out": str(out), "plot": picture and str(picture), **model.to_dict()})
        return
    if model.sentences is not None:
        said = model.sentences.measures
        output.console.print(
            f"{said['questions']} questions, {said['sentences']} sentences, {said['needed']} needed; "
            f"log loss {said['log_loss_after']:.4f} out of fold, {said['log_loss_before']:.4f} by what ships",
        )
    if picture is None:
        output.console.print(f"{out}: relevance of passages as it ships", soft_wrap=True)
        return
    measures = model.measures
    output.console.print(
        f"{measures['questions']} questions, {measures['candidates']} candidates, "
        f"{measures['needed']} needed; out of fold:",
    )
    for label, key in (("cosine as it is", "before"), (f"{model.kind} model", "after")):
        found = measures[key]
        output.console.print(
            f"  {label:<16} calibration error {found['ece']:.4f} ({found['ece_likely']:.4f} where likely), "
            f"log loss {found['log_loss']:.4f}",
        )
    output.console.print(f"{out}, {picture}", soft_wrap=True)


def _check_of_calibrate(kind: str, link_stages: int, limit: int | None, seed: int, out: Path) -> None:
    problems = []
    if limit is not None and limit < 1:
        problems.append(f"--limit={limit} must be >= 1")
    if not 0 <= seed < 2**31:
        problems.append(f"--seed={seed} must be between 0 and 2^31 - 1")
    if kind not in ("logistic", "isotonic"):
        problems.append(f"--kind={kind!r} is unknown: choose logistic or isotonic")
    if not 0 <= link_stages <= 3:
        problems.append(f"--link-stages={link_stages} must be between 0 and 3")
    if out.is_dir() or out.suffix != ".json":
        problems.append(f"--out={out} must be a file that ends in .json")
    if problems:
        raise InputError(problems)


# -- unanswerable ----------------------------------------------------------------------------------------


def unanswerable(
    data: Annotated[
        str,
        typer.Argument(
            help="Questions of both kinds, with the corpus of the index; unanswerable ones have the type "
            "'unanswerable'."
        ),
    ],
    index: Annotated[Path, typer.Option("--index", help="Index of that corpus.")],
    out: Annotated[Path, typer.Option("--out", help="File for the model: JSON.")],
    generator: GeneratorSpec = "extractive",
    budget_tokens: Budget = 256,
    max_tokens: MaxTokens = 32,
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Draws the two halves.")] = 0,
    json_output: Json = False,
) -> None:
    """Fit when to refuse a question, and measure it. On two halves of a set, by the measures of SQuAD 2.0."""
    import dataclasses

    from mio_rag.cli.show import print_scores
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.harness import check_corpus
    from mio_rag.evaluation.ledger import environment
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.refusal.fitting import fit_refusal, observe, warnings_of
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output)

    def numbers() -> None:
        wrong = {"--limit": limit is not None and limit < 1, "--budget-tokens": budget_tokens < 1}
        wrong["--max-tokens"] = max_tokens < 1
        if any(wrong.values()):
            raise InputError([f"{name} must be >= 1" for name, is_wrong in wrong.items() if is_wrong])

    collect(
        lambda: check_source(data), lambda: check_index(index), lambda: check_generator(generator), numbers
    )
    dataset, corpus, reader = collect(
        lambda: load_dataset(data), lambda: load_index(index), lambda: make_generator(generator)
    )
    try:
        check_corpus(dataset, corpus)
        asked = dataclasses.replace(dataset, questions=dataset.questions[:limit])
        with progress_bar("answering", len(asked.questions)) as advance:
            observed = observe(
                asked, corpus, reader, budget_tokens=budget_tokens, max_tokens=max_tokens, progress=advance
            )
        model, scores = fit_refusal(
            observed,
            corpus,
            reader,
            seed,
            data=dataset.name,
            data_sha256=asked.content_hash(),
            budget_tokens=budget_tokens,
            max_tokens=max_tokens,
            **environment(),
        )
    finally:
        reader.close()
    model.save(out)
    if json_output:
        output.json(
            {
                "out": str(out),
                "threshold": model.threshold,
                "fitted_on": model.provenance["fitted_on"],
                "brier": model.provenance["brier"],
                "held_out": model.provenance["held_out"],
                "notes": warnings_of(scores),
            }
        )
        return
    count = next(iter(scores.values())).questions
    output.console.print(
        f"{dataset.name}: fitted on {model.provenance['fitted_on']} questions, measured on {count} others; "
        f"reader {model.reader}\n"
    )
    print_scores(output.console, "", list(scores), list(scores.values()))
    for note in warnings_of(scores):
        output.console.print(styled(("note:", "yellow"), f" {note}"), soft_wrap=True)
    output.console.print(
        f"\nrefused above a probability of {model.threshold:.3f}; Brier score {model.provenance['brier']:.3f}"
        f" -> {out}",
        soft_wrap=True,
    )
