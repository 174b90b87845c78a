"""The command ``mio-rag``.

Exit codes: 0 done; 1 a solver or generator failed, nothing could be answered, or the output could not be
written; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli.commands.batch import select_batch
from mio_rag.cli.commands.calibrate import RelevanceOptions, calibrate, doubt_embedder
from mio_rag.cli.commands.frontier import frontier_app
from mio_rag.cli.commands.index import index
from mio_rag.cli.commands.mdp import mdp_app
from mio_rag.cli.commands.measures import measures
from mio_rag.cli.commands.serve import serve
from mio_rag.cli.commands.solve import solve, warmup
from mio_rag.cli.commands.tune import ConfigFile, tune
from mio_rag.cli.options.control import AgentOptions, ControlOptions, ask_agent, show_profile
from mio_rag.cli.options.shared import (
    Budget,
    ComparisonOptions,
    EmbedderName,
    Exclude,
    GeneratorSpec,
    Include,
    Json,
    MaxTokens,
    ModeName,
    Pool,
    ProgramOptions,
    SolverOptions,
    build_index,
    check_request,
    evaluation_settings,
    make_selector,
    spread,
)
from mio_rag.cli.options.side import SideOptions, radius
from mio_rag.cli.output import ReportingGroup, kept_rows, open_output
from mio_rag.errors import collect

if TYPE_CHECKING:
    from mio_rag.evaluation.harness import EvaluationResult
    from mio_rag.retrieval.retriever import Mode


app = typer.Typer(
    name="mio-rag",
    cls=ReportingGroup,
    help="Chooses what a language model reads by mixed-integer optimization, and proves the choice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help formatter would double the start-up time
)
app.add_typer(frontier_app, name="frontier")
app.add_typer(mdp_app, name="mdp")


def _version(wanted: bool) -> None:
    if wanted:
        from mio_rag import __version__

        typer.echo(f"mio-rag {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder of the report.")] = Path("mio-rag-demo"),
    embedder: EmbedderName = "minilm",
    generator: GeneratorSpec = "extractive",
    json_output: Json = False,
) -> None:
    """Choose, answer and compare with top-k on the bundled questions; under a minute."""
    from mio_rag.cli.commands.demo import run_demo

    output = open_output(json_output)
    result = run_demo(output.console, out, embedder, generator)
    if json_output:
        output.json(_evaluation_json(result))


app.command()(index)


@app.command()
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
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    config: ConfigFile = None,
    json_output: Json = False,
) -> None:
    """Choose passages for a question, with reasons and the proof.

    Tokens are counted by an approximation here, since no model reads the passages; `ask` counts as its model
    does.
    """
    from mio_rag.cli.show.selection import print_selection
    from mio_rag.retrieval import CorpusIndex, Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.ids import check_ids

    output = open_output(json_output)
    selector, *_ = collect(
        lambda: side.applied(
            lambda: evidence.applied(
                lambda: make_selector(program, solving, must_include or (), must_exclude or ())
            ),
            program,
        ),
        lambda: check_index(index),
        lambda: check_request(question, budget_tokens, pool, retrieval),
    )
    corpus = CorpusIndex.load(index)
    check_ids(selector, corpus.ids)
    doubt_embedder(selector, corpus)
    retriever = Retriever(corpus, pool=pool, mode=cast("Mode", retrieval), **evidence.retrieval())
    selection = selector.select(retriever.retrieve(question), budget_tokens, retriever.counter)
    if json_output:
        output.json({"question": question, **selection.to_dict()})
        return
    print_selection(output.console, selection)


@app.command()
@spread
def ask(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    generator: GeneratorSpec = "extractive",
    budget_tokens: Budget = 256,
    *,
    program: ProgramOptions,
    must_include: Include = None,
    must_exclude: Exclude = None,
    evidence: RelevanceOptions,
    side: SideOptions,
    solving: SolverOptions,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    max_tokens: MaxTokens = 64,
    controller: Annotated[
        str | None,
        typer.Option("--controller", help="Let an agent retrieve, reason and stop: mdp, or a baseline."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="With --controller: append its trace to this file.")
    ] = None,
    agent: AgentOptions,
    config: ConfigFile = None,
    json_output: Json = False,
) -> None:
    """Choose passages, let a model answer from them, and show what it read."""
    from mio_rag.ask import ask as answer_question
    from mio_rag.cli.show.selection import print_answer, print_selection
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval import CorpusIndex, Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.ids import check_ids

    output = open_output(json_output)
    selector, control, *_ = collect(
        lambda: side.applied(
            lambda: evidence.applied(
                lambda: make_selector(program, solving, must_include or (), must_exclude or ())
            ),
            program,
        ),
        lambda: agent.of(controller, trace),
        lambda: check_index(index),
        lambda: check_generator(generator),
        lambda: check_request(question, budget_tokens, pool, retrieval, max_tokens),
    )
    corpus, reader = collect(lambda: CorpusIndex.load(index), lambda: make_generator(generator))
    try:
        check_ids(selector, corpus.ids)
        doubt_embedder(selector, corpus)
        if controller is not None:
            ask_agent(
                output,
                controller,
                question,
                reader,
                Retriever(
                    corpus,
                    pool=pool,
                    mode=cast("Mode", retrieval),
                    counter=reader,
                    **evidence.retrieval(),
                ),
                selector,
                control,
                budget_tokens=budget_tokens,
                max_tokens=max_tokens,
                seed=solving.seed,
                trace=trace,
            )
            return
        selection, answer = answer_question(
            corpus,
            question,
            reader,
            selector,
            budget_tokens=budget_tokens,
            pool=pool,
            mode=cast("Mode", retrieval),
            max_tokens=max_tokens,
            **evidence.retrieval(),
        )
    finally:
        reader.close()
    if json_output:
        output.json(
            {
                "question": question,
                "answer": answer.text,
                "generator": answer.generator,
                "prompt_tokens": answer.prompt_tokens,
                "completion_tokens": answer.completion_tokens,
                "generate_seconds": answer.latency_seconds,
                **selection.to_dict(),
            }
        )
        return
    print_answer(output.console, answer)
    print_selection(output.console, selection)


_FOR_MANY = SolverOptions(time_limit=2.0)
"""An evaluation solves many programs, and waits less for each."""


@app.command()
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
    control: ControlOptions,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    max_tokens: MaxTokens = 32,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    config: ConfigFile = None,
    json_output: Json = False,
) -> None:
    """Compare methods on a question set: same pool, prompt, budget and reader for all."""
    from mio_rag.cli.progress import progress_bar
    from mio_rag.cli.show.evaluation import print_failures, print_run, print_summary
    from mio_rag.cli.show.selection import print_left_out
    from mio_rag.evaluation.record import check_folder
    from mio_rag.evaluation.run import evaluate_and_report
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.embedders import check_embedder, make_embedder
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output, kept_rows(out))
    if not control.names:
        control.unused(None)
    embedder = comparison.embedder or "minilm"
    settings, *_ = collect(
        lambda: side.in_settings(
            evaluation_settings(comparison, program, evidence, solving, pool, retrieval, max_tokens, control),
            program,
        ),
        lambda: control.check(data, comparison.generator),
        lambda: None if comparison.generator == "none" else check_generator(comparison.generator),
        lambda: check_embedder(embedder) if comparison.index is None else check_index(comparison.index),
        comparison.check_index,
        lambda: check_folder(out, resume),
    )
    dataset, reader, corpus, model = collect(
        lambda: control.load(data, solving.seed),
        lambda: None if comparison.generator == "none" else make_generator(comparison.generator),
        lambda: None if comparison.index is None else CorpusIndex.load(comparison.index),
        lambda: None if comparison.index is not None or control.closed_book else make_embedder(embedder),
    )
    print_left_out(output.console, dataset.left_out)
    try:
        if corpus is None and not control.closed_book:
            corpus = build_index(dataset.passages, model, dataset.name)
        if corpus is not None:
            doubt_embedder(settings.selector, corpus)
        with progress_bar("evaluating", len(dataset.questions[: settings.limit])) as advance:
            result = evaluate_and_report(
                dataset, corpus, reader, settings, out, resume=resume, progress=advance
            )
    finally:
        if reader is not None:
            reader.close()
    if json_output:
        output.json(_evaluation_json(result))
        return
    print_run(output.console, result.run)
    print_summary(output.console, result.summary)
    if control.names:
        show_profile(output, result.rows)
    print_failures(output.console, result.rows)
    output.console.print(f"\nreport: {result.folder / 'report.html'}", soft_wrap=True)
    if all(row["error"] for row in result.rows):
        raise typer.Exit(1)


def _evaluation_json(result: EvaluationResult) -> dict[str, Any]:
    return {
        "out": str(result.folder),
        "run": result.run,
        "summary": result.summary,
        "comparisons": result.comparisons,
    }


app.command()(calibrate)
app.command(name="select-batch")(select_batch)
app.command()(serve)
app.command()(tune)
app.command()(radius)
app.command()(solve)
app.command()(measures)
app.command()(warmup)


def main() -> None:
    """Run the command line."""
    app()
