"""Commands that measure: evaluate, frontier, measures."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.cli.control_options import (
    ControlOptions,
    MeasuringOptions,
    PlannerOptions,
    PoliciesOption,
    RefusalFile,
    RouterOptions,
    StrategyChoice,
    named_planner,
    read_refusal,
)
from mio_rag.cli.options import (
    Budget,
    ConfigFile,
    Exclude,
    Include,
    Json,
    MaxTokens,
    ModeName,
    MoneyOptions,
    Pool,
    ProgramOptions,
    RelevanceOptions,
    SideOptions,
    SolverOptions,
    at_rate,
    build_index,
    check_request,
    check_weights,
    load_embedder,
    load_index,
    make_selector,
    numbers,
    penalty,
    spread,
    whole_numbers,
)
from mio_rag.cli.output import kept_rows, open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.allocation.money import Money
    from mio_rag.evaluation.harness import EvaluationSettings


# -- evaluate --------------------------------------------------------------------------------------------

#: Methods that choose by the program, as ask does.
_PROGRAMS = {"exact", "greedy", "local_search"}


@dataclass(frozen=True)
class ComparisonOptions:
    """What an evaluation compares, on which index, and who reads."""

    methods: str = "fused,topk,bm25,mmr,exact"
    """Comma-separated: topk, topk:K, bm25, fused, mmr, density, greedy, local_search, exact; exact:auto: by
    the room there is, as ask reads; paced: one price for all, budget times questions in total; allocated: the
    same total, shared with all questions in view; with a relevance model also calibrated, with --rerank also
    maxsim, cross-encoder, yes-no; none: controllers alone. Controllers may stand here too, for instance
    tier:NAME, routed, random-tier, oracle-tier."""
    budget_tokens: str = "256"
    """Comma-separated token budgets."""
    generator: str = "extractive"
    """As in ask, or none: evaluate the selection alone."""
    index: str | None = None
    """Index of this corpus; default: build one. Of several sets: one that holds all corpora, or
    comma-separated, one for each."""
    embedder: str | None = None
    """Embedder of the index that is built. [minilm]"""
    limit: int | None = None
    """Use only the first N questions, of each set."""
    baseline: str | None = None
    """Method to compare with. [fused, or topk]"""
    mmr_lambda: float = 0.7
    """Weight of relevance in mmr, in (0, 1]."""

    def split(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The methods, and the controllers that stand among them."""
        from mio_rag.policies.make import find_kind

        given = tuple(name.strip() for name in self.methods.split(",") if name.strip())
        named = tuple(name for name in given if find_kind(name) is not None)
        return tuple(name for name in given if name not in named), named

    def budgets(self) -> tuple[int, ...]:
        """The token budgets."""
        try:
            return tuple(int(part) for part in self.budget_tokens.split(",") if part.strip())
        except ValueError as error:
            raise InputError(
                f"--budget-tokens={self.budget_tokens!r} must be whole numbers separated by commas, "
                "for instance 128,256"
            ) from error

    def indexes(self) -> list[Path]:
        """Folders of indexes that are given."""
        return [] if self.index is None else [Path(part) for part in listed(self.index)]

    def check_index(self) -> None:
        """Raise `InputError` where index and embedder contradict each other, or an index cannot be one."""
        from mio_rag.retrieval.index import check_index

        if self.index is not None and self.embedder is not None:
            raise InputError("--index and --embedder exclude each other: an index has its embedder")
        collect(*(partial(check_index, folder) for folder in self.indexes()))


def listed(text: str) -> list[str]:
    """The parts of a comma-separated argument; the whole where something has that very name."""
    if Path(text).exists():
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()] or [text]


_FOR_MANY = SolverOptions(time_limit=2.0)


"""An evaluation solves many programs, so the time limit of each is shorter."""


@spread
def evaluate(
    data: Annotated[
        str,
        typer.Argument(
            help="Folder with corpus and questions, 'demo', hf:NAME, FORMAT:PATH; several with commas "
            "between them."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of ledger, summary and report.", show_default="evaluation, or -2, -3"
        ),
    ] = None,
    *,
    comparison: ComparisonOptions,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    side: SideOptions,
    solving: SolverOptions = _FOR_MANY,
    money: MoneyOptions,
    control: ControlOptions,
    measuring: MeasuringOptions,
    routing: RouterOptions,
    search: StrategyChoice,
    planning: PlannerOptions,
    compared: PoliciesOption,
    refusal: RefusalFile = None,
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
    """Compare methods on a question set. All get the same pool, budget and reader."""
    from mio_rag.cli.show import (
        evaluation_json,
        print_failures,
        print_left_out,
        print_run,
        print_scores,
        print_sets,
        print_summary,
    )
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.context import RegexCounter
    from mio_rag.evaluation.harness import evaluate_and_report
    from mio_rag.evaluation.ledger import check_folder, free_folder
    from mio_rag.evaluation.rows import FITTING, refusal_scores
    from mio_rag.evaluation.statistics import part_read, read_otherwise
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval.embedders import check_embedder

    out = free_folder(Path("evaluation"), resume) if out is None else out
    output = open_output(json_output, kept_rows(out))
    _, among = comparison.split()
    chosen = [*control.names, *among, *([] if search.controller is None else [search.controller])]
    if planning.planner is not None:
        chosen = [*named_planner(chosen)]
    chosen += compared.controllers
    if len(chosen) > len(control.names):
        control = dataclasses.replace(control, controllers=",".join(dict.fromkeys(chosen)))
    if not control.names:
        control.unused(None)
    sources = listed(data)
    routing.check(control.names)
    embedder = comparison.embedder or "minilm"
    settings, prices, *_ = collect(
        lambda: side.in_settings(
            _settings(
                comparison,
                program,
                evidence,
                solving,
                pool,
                retrieval,
                max_tokens,
                control,
                routing,
                search,
                planning,
                compared,
            ),
            program,
        ),
        lambda: money.money(program),
        *(partial(control.check, source, comparison.generator) for source in sources),
        search.check,
        lambda: None if refusal is None else read_refusal(refusal, control.names),
        lambda: None if comparison.generator == "none" else check_generator(comparison.generator),
        lambda: check_embedder(embedder) if comparison.index is None else None,
        comparison.check_index,
        lambda: check_folder(out, resume),
        lambda: measuring.check(control.closed_book, comparison.generator != "none"),
    )
    if refusal is not None:
        settings = dataclasses.replace(settings, refusing=read_refusal(refusal, ()))
    datasets, reader, corpora, model, instruments = collect(
        lambda: collect(*(partial(control.load, source, solving.seed) for source in sources)),
        lambda: None if comparison.generator == "none" else make_generator(comparison.generator),
        lambda: [load_index(folder) for folder in comparison.indexes()],
        lambda: None if comparison.index is not None or control.closed_book else load_embedder(embedder),
        measuring.load,
    )
    for dataset in datasets:
        print_left_out(output.console, dataset.left_out)
    try:
        if prices is not None:
            settings = _priced(settings, prices, None if reader is None else reader.name)
        if not corpora and model is not None:
            # One that is fitted to its corpus cannot serve two.
            models = [
                load_embedder(embedder) if k and hasattr(model, "fit") else model
                for k in range(len(datasets))
            ]
            corpora = [
                build_index(one.passages, by, one.name) for one, by in zip(datasets, models, strict=True)
            ]
        for corpus in corpora:
            check_weights(settings.selector, corpus)
        if corpora:
            instruments = measuring.of_index(instruments, corpora[0].embedder)
        otherwise = ""
        if (
            program.units is None
            and _PROGRAMS.intersection(settings.methods)
            and FITTING not in settings.methods
        ):
            otherwise = read_otherwise(settings.selector, settings.budgets, corpora, reader or RegexCounter())
        questions = sum(len(one.questions[: settings.limit]) for one in datasets)
        with progress_bar("evaluating", questions) as advance:
            result = evaluate_and_report(
                datasets,
                corpora or None,
                reader,
                settings,
                out,
                resume=resume,
                progress=advance,
                instruments=instruments,
            )
    finally:
        if reader is not None:
            reader.close()
    refused = {} if settings.refusing is None else refusal_scores(result.rows, settings.refusing.threshold)
    if json_output:
        told = [{"method": m, "budget_tokens": b, **s.to_dict()} for (m, b), s in refused.items()]
        output.json({**evaluation_json(result), **({"refusal": told} if told else {})})
        return
    print_run(output.console, result.run)
    print_summary(output.console, result.summary, result.comparisons, result.run["baseline"], details=details)
    if told_in_part := part_read(result.run) or otherwise:
        output.console.print(f"\nnote: {told_in_part}", style="yellow", soft_wrap=True)
    print_sets(output.console, result.by_set)
    if refused:
        output.console.print("\nunanswerable questions: HasAns and NoAns as by SQuAD 2.0\n")
        several = len({budget for _, budget in refused}) > 1
        names = [f"{m} @{b}" if several else m for m, b in refused]
        print_scores(output.console, "method", names, list(refused.values()))
    if not details:
        said = "every measure, with intervals: --details, summary.json and the report"
        output.console.print(said, style="dim")
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
    routing: RouterOptions,
    search: StrategyChoice,
    planning: PlannerOptions,
    compared: PoliciesOption,
) -> EvaluationSettings:
    """What the options ask an evaluation to do; the problems of all of them at once."""
    from mio_rag.evaluation.contenders import make_methods, unpaced
    from mio_rag.evaluation.harness import EvaluationSettings
    from mio_rag.selection.selector import Selector

    methods, _ = comparison.split()
    if methods == ("none",) and control.names:
        methods = ()

    def known() -> None:
        if methods == ("none",):
            raise InputError(
                "--methods none compares controllers alone, and no controller is named: add "
                "--controllers, for instance --controllers always-reason"
            )
        # "calibrated" is checked with the model, further down.
        ranked = [name for name in unpaced(methods) if not name.startswith("calibrated")]
        make_methods(ranked or ["exact"], Selector(), comparison.mmr_lambda)

    selector, budgets, agents, kinds, _, found, _ = collect(
        lambda: evidence.applied(lambda: make_selector(program, solving)),
        comparison.budgets,
        lambda: compared.added(search.added(routing.applied(control.settings()))),
        lambda: planning.kinds(control.names),
        lambda: EvaluationSettings(limit=comparison.limit, max_tokens=max_tokens, seed=solving.seed),
        lambda: evidence.retrieval(pool, retrieval),
        known,
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
        control=dataclasses.replace(agents, kinds={**agents.kinds, **kinds}),
        closed_book=control.closed_book,
    )


def _priced(settings: EvaluationSettings, money: Money, reader: str | None) -> EvaluationSettings:
    """The settings with the price of a token that follows from money, and dollars where somebody reads."""
    from mio_rag.session.costs import Prices

    rate = money.rate(reader)
    return dataclasses.replace(
        settings,
        selector=at_rate(settings.selector, rate),
        prices=None if reader is None else Prices({reader: (rate.into, rate.out)}),
    )


# -- frontier --------------------------------------------------------------------------------------------

frontier_app = typer.Typer(
    help="The selections of other settings, each with its certificate.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Weights = Annotated[str, typer.Option("--weights", help="Comma-separated redundancy weights (lambda_1).")]
Radii = Annotated[str, typer.Option("--radii", help="Comma-separated radii (rho) of the grid.")]


def grid(name: str, text: str) -> tuple[float, ...]:
    """The numbers of a comma-separated option that spans a grid."""
    from mio_rag.frontier.query import check_values

    found = numbers(name, text)
    if problems := check_values(name, found):
        raise InputError(problems)
    return found


@frontier_app.command()
@spread
def query(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    budget_tokens: Budget = 256,
    up_to: Annotated[
        int | None, typer.Option("--up-to", help="Largest budget of the path. [twice the budget]")
    ] = None,
    weights: Weights = "0,0.05,0.1,0.2,0.4",
    radii: Radii = "0,0.05,0.1",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw it into this .png, .svg or .pdf file.")
    ] = None,
    *,
    program: ProgramOptions,
    must_include: Include = None,
    must_exclude: Exclude = None,
    evidence: RelevanceOptions,
    solving: SolverOptions,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    json_output: Json = False,
) -> None:
    """One question, at every budget. Where the selection changes, the gain from more tokens, other penalties.

    Tokens are counted by an approximation, as in `select`.
    """
    from mio_rag.cli.show import print_query
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.frontier.plot import plot_query
    from mio_rag.frontier.query import query_frontier
    from mio_rag.pictures import check_figure
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.selector import check_ids

    output = open_output(json_output)
    selector, lambdas, radius_list, _, _, pools, *_ = collect(
        lambda: evidence.applied(
            lambda: make_selector(program, solving, must_include or (), must_exclude or ())
        ),
        lambda: grid("--weights", weights),
        lambda: grid("--radii", radii),
        lambda: check_index(index),
        lambda: check_request(question, budget_tokens),
        lambda: evidence.retrieval(pool, retrieval),
        lambda: _check_reach(up_to, budget_tokens),
        lambda: None if plot is None else check_figure(plot),
    )
    corpus = load_index(index)
    check_ids(selector, corpus.ids)
    check_weights(selector, corpus)
    retriever = Retriever.of(corpus, pools)
    candidates = retriever.retrieve(question)
    with progress_bar("tokens settled", up_to or max(2 * budget_tokens, budget_tokens + 200)) as advance:
        found = query_frontier(
            candidates,
            selector,
            budget_tokens,
            up_to=up_to,
            weights=lambdas,
            radii=radius_list,
            counter=retriever.counter,
            progress=advance,
        )
    data = found.to_dict()
    if plot is not None:
        plot_query(data, plot)
    if json_output:
        output.json(data)
        return
    print_query(output.console, data)
    if plot is not None:
        output.console.print(f"\n{plot}", soft_wrap=True)


def _check_reach(up_to: int | None, budget_tokens: int) -> None:
    if up_to is not None and up_to < budget_tokens:
        raise InputError(f"--up-to={up_to} is below --budget-tokens={budget_tokens}: the path ends there")


def _check_radius(program: ProgramOptions) -> None:
    if program.radius is not None:
        raise InputError(
            f"--radius={program.radius:g} does not apply to a grid: --radii lists its radii, and selections "
            "are measured under --reference-radius"
        )


def _check_embedder(index: Path | None, embedder: str | None) -> None:
    if index is not None and embedder is not None:
        raise InputError("--index and --embedder exclude each other: an index has its embedder")


_FOR_MANY_of_frontier = SolverOptions(time_limit=2.0, relative_gap=0.001)


"""A grid over a data set solves many programs, so a small gap is accepted."""


@frontier_app.command()
@spread
def data(
    data: Annotated[
        str, typer.Argument(help="Folder with corpus and questions, 'demo', hf:NAME, FORMAT:PATH.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of ledger, frontier.json, .png and .html.")],
    index: Annotated[
        Path | None, typer.Option("--index", help="Index of this corpus; default: build one.")
    ] = None,
    embedder: Annotated[
        str | None, typer.Option("--embedder", help="Embedder of the index that is built. [minilm]")
    ] = None,
    budget_tokens: Annotated[str, typer.Option("--budget-tokens", help="Comma-separated token budgets.")] = (
        "128,256,512"
    ),
    weights: Weights = "0,0.1",
    radii: Radii = "0,0.05",
    penalties: Annotated[
        str, typer.Option("--penalties", help="Comma-separated passage penalties, adaptive or auto.")
    ] = "adaptive,0.05",
    token_prices: Annotated[
        str,
        typer.Option(
            "--token-prices",
            help="Comma-separated prices of a token (lambda_3): what questions find at one price for all, "
            "beside the budgets. [none]",
        ),
    ] = "",
    reference_radius: Annotated[
        float, typer.Option("--reference-radius", help="Embedding error for measuring robustness.")
    ] = 0.05,
    draws: Annotated[
        int, typer.Option("--draws", help="Random errors per question for stability. 0: not measured.")
    ] = 3,
    slack: Annotated[
        float,
        typer.Option("--slack", help="Evidence found that the operating point may trade for fewer tokens."),
    ] = 0.02,
    generator: Annotated[
        str, typer.Option("--generator", help="As in ask: answers are scored too. none: selection alone.")
    ] = "none",
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None,
    *,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    solving: SolverOptions = _FOR_MANY_of_frontier,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    max_tokens: MaxTokens = 32,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    json_output: Json = False,
) -> None:
    """A data set, with every setting. Evidence found, diversity, robustness and tokens; and a page to browse.

    --redundancy, --passage-penalty and --reference-radius define the program in which the guaranteed value of
    every selection is measured; the settings of the grid are separate.
    """
    from mio_rag.cli.show import print_points, print_prices
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.ledger import check_folder
    from mio_rag.frontier.dataset import FrontierSettings
    from mio_rag.frontier.run import data_frontier
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval.embedders import check_embedder
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output, kept_rows(out))
    settings, pools, *_ = collect(
        lambda: FrontierSettings(
            budgets=whole_numbers("--budget-tokens", budget_tokens),
            weights=numbers("--weights", weights),
            radii=numbers("--radii", radii),
            penalties=tuple(penalty(part) for part in penalties.split(",") if part.strip()),
            selector=evidence.applied(lambda: make_selector(program, solving)),
            reference_radius=reference_radius,
            draws=draws,
            limit=limit,
            max_tokens=max_tokens,
            seed=solving.seed,
            token_prices=numbers("--token-prices", token_prices),
        ),
        lambda: evidence.retrieval(pool, retrieval),
        lambda: check_source(data),
        lambda: None if generator == "none" else check_generator(generator),
        lambda: check_embedder(embedder or "minilm") if index is None else check_index(index),
        lambda: _check_embedder(index, embedder),
        lambda: check_folder(out, resume),
        lambda: _check_radius(program),
    )
    settings = dataclasses.replace(settings, retrieval=pools)
    dataset, reader, corpus, model = collect(
        lambda: load_dataset(data),
        lambda: None if generator == "none" else make_generator(generator),
        lambda: None if index is None else load_index(index),
        lambda: None if index is not None else load_embedder(embedder or "minilm"),
    )
    try:
        corpus = corpus or build_index(dataset.passages, model, dataset.name)
        check_weights(settings.selector, corpus)
        with progress_bar("questions", len(dataset.questions[:limit])) as advance:
            found = data_frontier(
                dataset,
                corpus,
                settings,
                out,
                generator=reader,
                slack=slack,
                resume=resume,
                progress=advance,
            )
    finally:
        if reader is not None:
            reader.close()
    if json_output:
        output.json(
            {
                "out": str(out),
                "run": found.run,
                "points": found.points,
                "operating_point": found.chosen,
                **({} if found.price is None else {"price": found.price}),
            }
        )
        return
    print_points(output.console, found.points, found.chosen)
    if found.price is not None:
        print_prices(output.console, found.price)
    output.console.print(f"\npage: {out / 'frontier.html'}", soft_wrap=True)


# -- measures --------------------------------------------------------------------------------------------


def measures(json_output: Json = False) -> None:
    """List the measures of results and reports. With meaning, direction, unit and source."""
    from mio_rag.cli.show import print_measures
    from mio_rag.measures import measures as all_measures

    output = open_output(json_output)
    found = all_measures()
    if not json_output:
        print_measures(output.console, found)
        return
    fields = ("name", "label", "meaning", "of", "better", "unit", "source")
    output.json({"measures": [{field: getattr(measure, field) for field in fields} for measure in found]})
