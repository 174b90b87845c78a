"""``mio-rag evaluate``: methods and controllers compared on a question set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.cli.options.config import ConfigFile
from mio_rag.cli.options.control import ControlOptions
from mio_rag.cli.options.money import MoneyOptions, at_rate
from mio_rag.cli.options.relevance import RelevanceOptions, check_weights
from mio_rag.cli.options.shared import (
    Json,
    MaxTokens,
    ModeName,
    Pool,
    ProgramOptions,
    SolverOptions,
    build_index,
    load_embedder,
    load_index,
    make_selector,
    spread,
)
from mio_rag.cli.options.side import SideOptions
from mio_rag.cli.options.workflow import PlannerOptions, named_planner
from mio_rag.cli.output import Output, kept_rows, open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.allocation.money import Money
    from mio_rag.evaluation.harness import EvaluationSettings

__all__ = ["evaluate"]


@dataclass(frozen=True)
class ComparisonOptions:
    """What an evaluation compares, on which index, and who reads."""

    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="Comma-separated: topk, topk:K, bm25, fused, mmr, density, greedy, local_search, exact; "
            "paced: one price for all, budget times questions in total; allocated: the same total, shared "
            "with all questions in view; with a relevance model also calibrated, with --rerank also maxsim, "
            "cross-encoder, yes-no; none: controllers alone.",
        ),
    ] = "fused,topk,bm25,mmr,exact"
    budget_tokens: Annotated[str, typer.Option("--budget-tokens", help="Comma-separated token budgets.")] = (
        "256"
    )
    generator: Annotated[
        str, typer.Option("--generator", help="As in ask, or none: evaluate the selection alone.")
    ] = "extractive"
    index: Annotated[
        Path | None, typer.Option("--index", help="Index of this corpus; default: build one.")
    ] = None
    embedder: Annotated[
        str | None, typer.Option("--embedder", help="Embedder of the index that is built. [minilm]")
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Method to compare with. [fused, or topk]")
    ] = None
    mmr_lambda: Annotated[
        float, typer.Option("--mmr-lambda", help="Weight of relevance in mmr, in (0, 1].")
    ] = 0.7

    def budgets(self) -> tuple[int, ...]:
        """The token budgets."""
        try:
            return tuple(int(part) for part in self.budget_tokens.split(",") if part.strip())
        except ValueError as error:
            raise InputError(
                f"--budget-tokens={self.budget_tokens!r} must be whole numbers separated by commas, "
                "for instance 128,256"
            ) from error

    def check_index(self) -> None:
        """Raise `InputError` where index and embedder contradict each other."""
        if self.index is not None and self.embedder is not None:
            raise InputError("--index and --embedder exclude each other: an index has its embedder")


_FOR_MANY = SolverOptions(time_limit=2.0)
"""An evaluation solves many programs, so the time limit of each is shorter."""


@spread
def evaluate(
    data: Annotated[str, typer.Argument(help="Folder with corpus and questions, 'demo' or hf:NAME.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of ledger, summary and report.")],
    *,
    comparison: ComparisonOptions,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    side: SideOptions,
    solving: SolverOptions = _FOR_MANY,
    money: MoneyOptions,
    control: ControlOptions,
    planning: PlannerOptions,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    max_tokens: MaxTokens = 32,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Print every measure, with 95 % intervals.")
    ] = False,
    config: ConfigFile = None,
    json_output: Json = False,
) -> None:
    """Compare methods on a question set: same pool, prompt, budget and reader for all."""
    from mio_rag.cli.progress import progress_bar
    from mio_rag.cli.show.evaluation import evaluation_json, print_failures, print_run, print_summary
    from mio_rag.cli.show.selection import print_left_out
    from mio_rag.evaluation.record import check_folder
    from mio_rag.evaluation.run import evaluate_and_report
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval.embedders import check_embedder
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output, kept_rows(out))
    if planning.planner is not None:
        control = dataclasses.replace(control, controllers=",".join(named_planner(control.names)))
    if not control.names:
        control.unused(None)
    embedder = comparison.embedder or "minilm"
    settings, prices, *_ = collect(
        lambda: side.in_settings(
            _settings(comparison, program, evidence, solving, pool, retrieval, max_tokens, control, planning),
            program,
        ),
        lambda: money.money(program),
        lambda: control.check(data, comparison.generator),
        lambda: None if comparison.generator == "none" else check_generator(comparison.generator),
        lambda: check_embedder(embedder) if comparison.index is None else check_index(comparison.index),
        comparison.check_index,
        lambda: check_folder(out, resume),
    )
    dataset, reader, corpus, model = collect(
        lambda: control.load(data, solving.seed),
        lambda: None if comparison.generator == "none" else make_generator(comparison.generator),
        lambda: None if comparison.index is None else load_index(comparison.index),
        lambda: None if comparison.index is not None or control.closed_book else load_embedder(embedder),
    )
    print_left_out(output.console, dataset.left_out)
    try:
        if prices is not None:
            settings = _priced(settings, prices, None if reader is None else reader.name)
        if corpus is None and not control.closed_book:
            corpus = build_index(dataset.passages, model, dataset.name)
        if corpus is not None:
            check_weights(settings.selector, corpus)
        with progress_bar("evaluating", len(dataset.questions[: settings.limit])) as advance:
            result = evaluate_and_report(
                dataset, corpus, reader, settings, out, resume=resume, progress=advance
            )
    finally:
        if reader is not None:
            reader.close()
    if json_output:
        output.json(evaluation_json(result))
        return
    print_run(output.console, result.run)
    print_summary(output.console, result.summary, result.comparisons, result.run["baseline"], details=details)
    if not details:
        said = "every measure, with intervals: --details, summary.json and the report"
        output.console.print(said, style="dim")
    if control.names:
        _show_profile(output, result.rows)
    print_failures(output.console, result.rows)
    output.console.print(f"\nreport: {result.folder / 'report.html'}", soft_wrap=True)
    if all(row["error"] for row in result.rows):
        raise typer.Exit(1)


def _settings(
    comparison: ComparisonOptions,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    solving: SolverOptions,
    pool: int,
    retrieval: str,
    max_tokens: int,
    control: ControlOptions,
    planning: PlannerOptions,
) -> EvaluationSettings:
    """What the options ask an evaluation to do; the problems of all of them at once."""
    from mio_rag.evaluation.harness import EvaluationSettings
    from mio_rag.evaluation.methods import make_methods
    from mio_rag.evaluation.paced import unpaced
    from mio_rag.selection.selector import Selector

    methods = tuple(name.strip() for name in comparison.methods.split(",") if name.strip())
    if methods == ("none",) and control.names:
        methods = ()
    selector, budgets, agents, kinds, _, found, _ = collect(
        lambda: evidence.applied(lambda: make_selector(program, solving)),
        comparison.budgets,
        control.settings,
        lambda: planning.kinds(control.names),
        lambda: EvaluationSettings(limit=comparison.limit, max_tokens=max_tokens, seed=solving.seed),
        lambda: evidence.retrieval(pool, retrieval),
        # "calibrated" is checked with the model, further down.
        lambda: make_methods(
            [name for name in unpaced(methods) if not name.startswith("calibrated")] or ["exact"],
            Selector(),
            comparison.mmr_lambda,
        ),
    )
    return EvaluationSettings(
        methods=methods,
        budgets=budgets,
        baseline=comparison.baseline,
        selector=selector,
        mmr_lambda=comparison.mmr_lambda,
        retrieval=found,
        limit=comparison.limit,
        max_tokens=max_tokens,
        seed=solving.seed,
        controllers=control.names,
        control=dataclasses.replace(agents, kinds=kinds) if kinds else agents,
        closed_book=control.closed_book,
    )


def _priced(settings: EvaluationSettings, money: Money, reader: str | None) -> EvaluationSettings:
    """The settings with the price of a token that follows from money, and dollars where somebody reads."""
    from mio_rag.control.costs import Prices

    rate = money.rate(reader)
    return dataclasses.replace(
        settings,
        selector=at_rate(settings.selector, rate),
        prices=None if reader is None else Prices({reader: (rate.into, rate.out)}),
    )


def _show_profile(output: Output, rows: list[dict[str, Any]]) -> None:
    """Where the time of an evaluation went."""
    from mio_rag.cli.show.control import print_profile
    from mio_rag.evaluation.profile import profile

    print_profile(output.console, profile(rows))
