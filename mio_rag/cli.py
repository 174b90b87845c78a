"""The command ``mio-rag``.

Exit codes: 0 done, 1 a solver or generator failed, 2 wrong usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from mio_rag.errors import GenerationError, InputError, MioRagError, SolverError

if TYPE_CHECKING:
    from mio_rag.console import Output
    from mio_rag.evaluation.harness import EvaluationResult
    from mio_rag.formulations.uncertainty import Norm
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.embedders import Embedder
    from mio_rag.retrieval.retriever import Mode
    from mio_rag.selector import Selector
    from mio_rag.types import Passage


class _Group(TyperGroup):
    """Turns the package's own errors into messages and exit codes, for every command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted: finished work is kept (evaluate goes on with --resume)", err=True)
            raise typer.Exit(130) from None
        except MioRagError as error:
            if ctx.params.get("debug"):
                raise
            (_current or _output(False)).error(error)
            failed = isinstance(error, (GenerationError, SolverError))
            raise typer.Exit(1 if failed else 2) from None


app = typer.Typer(
    name="mio-rag",
    cls=_Group,
    help="Chooses what a language model reads by mixed-integer optimization, and proves the choice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help formatter would double the start-up time
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Budget = Annotated[
    int, typer.Option("--budget-tokens", help="Largest size of the context block, in the reader's tokens.")
]
Redundancy = Annotated[
    float, typer.Option("--redundancy", help="lambda_1: price of similarity between two chosen passages.")
]
Penalty = Annotated[
    float, typer.Option("--passage-penalty", help="lambda_2: what one more passage must be worth.")
]
Price = Annotated[float, typer.Option("--token-price", help="lambda_3: what one more token must be worth.")]
Radius = Annotated[
    float, typer.Option("--radius", help="Embedding uncertainty: how far each embedding may be off.")
]
NormName = Annotated[str, typer.Option("--norm", help="Norm of the radius: l2, l1 or linf.")]
PerSource = Annotated[
    int | None, typer.Option("--max-per-source", help="At most so many passages from one source.")
]
Least = Annotated[int | None, typer.Option("--min-passages", help="At least so many passages.")]
Most = Annotated[int | None, typer.Option("--max-passages", help="At most so many passages.")]
Include = Annotated[
    list[str] | None, typer.Option("--must-include", help="Id of a passage that must be in. Repeatable.")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--must-exclude", help="Id of a passage that must be out. Repeatable.")
]
SolverName = Annotated[
    str,
    typer.Option(
        "--solver",
        help="auto, branch_and_bound, exhaustive, highs, highs-glover, cpsat, pyomo[:NAME], "
        "or a heuristic: topk, density, greedy, mmr, local_search.",
    ),
]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", help="Seconds for one program; then the certified gap is reported.")
]
RelativeGap = Annotated[
    float, typer.Option("--relative-gap", help="Stop at this proven relative gap. 0: exact.")
]
Threads = Annotated[int, typer.Option("--threads", help="Threads of the solver.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of solvers, bootstrap and permutation tests.")]
Pool = Annotated[int, typer.Option("--pool", help="Candidates per question.")]
ModeName = Annotated[str, typer.Option("--retrieval", help="What ranks the pool: fused, dense or bm25.")]
GeneratorSpec = Annotated[
    str, typer.Option("--generator", help="extractive, gguf:PATH, hf:ID, openai:URL#MODEL, scripted:FILE.")
]
EmbedderName = Annotated[
    str, typer.Option("--embedder", help="minilm, tfidf, or a sentence-transformers id or folder.")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Longest answer, in tokens.")]


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


def _selector(
    redundancy: float,
    penalty: float,
    price: float,
    radius: float,
    norm: str,
    per_source: int | None,
    least: int | None,
    most: int | None,
    include: list[str] | None,
    exclude: list[str] | None,
    solver: str,
    time_limit: float,
    relative_gap: float,
    threads: int,
    seed: int,
) -> Selector:
    from mio_rag.console import collect
    from mio_rag.selector import Selector
    from mio_rag.solvers.registry import check_name
    from mio_rag.solvers.result import SolveOptions

    def settings() -> Selector:
        return Selector(
            redundancy_weight=redundancy,
            passage_penalty=penalty,
            token_price=price,
            radius=radius,
            norm=cast("Norm", norm),
            max_per_source=per_source,
            min_passages=least,
            max_passages=most,
            must_include=tuple(include or ()),
            must_exclude=tuple(exclude or ()),
            solver=solver,
        )

    import dataclasses

    made, options, _ = collect(
        settings,
        lambda: SolveOptions(
            time_limit_seconds=time_limit, relative_gap=relative_gap, threads=threads, seed=seed
        ),
        lambda: check_name(solver),
    )
    chosen: Selector = dataclasses.replace(made, options=options)
    return chosen


def _load_index(path: Path) -> CorpusIndex:
    from mio_rag.retrieval import CorpusIndex

    return CorpusIndex.load(path)


def _build_index(passages: tuple[Passage, ...], embedder: Embedder, name: str) -> CorpusIndex:
    from mio_rag.console import progress_bar
    from mio_rag.retrieval import CorpusIndex

    with progress_bar(f"embedding with {embedder.name}", len(passages)) as advance:
        return CorpusIndex.build(passages, embedder, name, advance)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder of the report.")] = Path("mio-rag-demo"),
    embedder: EmbedderName = "minilm",
    generator: GeneratorSpec = "extractive",
    json_output: Json = False,
) -> None:
    """Choose, answer and compare with top-k on the bundled questions; under a minute."""
    from mio_rag.demo import run_demo

    output = _output(json_output)
    result = run_demo(output.console, out, embedder, generator)
    if json_output:
        output.json(_evaluation_json(result))


@app.command()
def index(
    data: Annotated[
        str, typer.Argument(help="Folder with corpus.jsonl[.gz], folder of .txt/.md/.pdf, 'demo' or hf:NAME.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the index; must not exist.")],
    embedder: EmbedderName = "minilm",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that exists.")] = False,
    json_output: Json = False,
) -> None:
    """Embed a corpus and write a searchable index."""
    import time

    from mio_rag.console import collect
    from mio_rag.datasets import load_dataset
    from mio_rag.retrieval.embedders import make_embedder
    from mio_rag.retrieval.index import check_target

    output = _output(json_output)
    dataset, model, _ = collect(
        lambda: load_dataset(data), lambda: make_embedder(embedder), lambda: check_target(out, overwrite)
    )
    start = time.perf_counter()
    built = _build_index(dataset.passages, model, dataset.name)
    built.save(out, overwrite=overwrite)
    seconds = time.perf_counter() - start
    if json_output:
        output.json(
            {
                "index": str(out),
                "passages": len(built),
                "dimensions": built.dimensions,
                "embedder": embedder,
                "seconds": seconds,
            }
        )
        return
    output.console.print(
        f"{len(built)} passages, {built.dimensions} dimensions by {embedder}, {seconds:.1f} s -> {out}",
        markup=False,
    )


@app.command()
def select(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    budget_tokens: Budget = 256,
    redundancy: Redundancy = 0.1,
    passage_penalty: Penalty = 0.02,
    token_price: Price = 0.0,
    radius: Radius = 0.0,
    norm: NormName = "l2",
    max_per_source: PerSource = None,
    min_passages: Least = None,
    max_passages: Most = None,
    must_include: Include = None,
    must_exclude: Exclude = None,
    solver: SolverName = "auto",
    time_limit: TimeLimit = 10.0,
    relative_gap: RelativeGap = 0.0,
    threads: Threads = 1,
    seed: Seed = 0,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    json_output: Json = False,
) -> None:
    """Choose passages for a question, with reasons and the proof.

    Tokens are counted by an approximation here, since no model reads the passages; `ask` counts as its model
    does.
    """
    from mio_rag.console import collect, print_selection
    from mio_rag.retrieval import Retriever

    output = _output(json_output)
    selector, corpus, _ = collect(
        lambda: _selector(
            redundancy,
            passage_penalty,
            token_price,
            radius,
            norm,
            max_per_source,
            min_passages,
            max_passages,
            must_include,
            must_exclude,
            solver,
            time_limit,
            relative_gap,
            threads,
            seed,
        ),
        lambda: _load_index(index),
        lambda: _check(question, budget_tokens, pool, retrieval),
    )
    retriever = Retriever(corpus, pool=pool, mode=cast("Mode", retrieval))
    selection = selector.select(retriever.retrieve(question), budget_tokens, retriever.counter)
    if json_output:
        output.json({"question": question, **selection.to_dict()})
        return
    print_selection(output.console, selection)


def _check(question: str, budget_tokens: int, pool: int, retrieval: str, max_tokens: int = 1) -> None:
    from mio_rag.retrieval.retriever import pool_problems

    problems = ["the question is empty"] if not question.strip() else []
    least = {"--budget-tokens": budget_tokens, "--max-tokens": max_tokens}
    problems += [f"{name}={value} must be >= 1" for name, value in least.items() if value < 1]
    problems += pool_problems(pool, retrieval)
    if problems:
        raise InputError(problems)


@app.command()
def ask(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    generator: GeneratorSpec = "extractive",
    budget_tokens: Budget = 256,
    redundancy: Redundancy = 0.1,
    passage_penalty: Penalty = 0.02,
    token_price: Price = 0.0,
    radius: Radius = 0.0,
    norm: NormName = "l2",
    max_per_source: PerSource = None,
    min_passages: Least = None,
    max_passages: Most = None,
    must_include: Include = None,
    must_exclude: Exclude = None,
    solver: SolverName = "auto",
    time_limit: TimeLimit = 10.0,
    relative_gap: RelativeGap = 0.0,
    threads: Threads = 1,
    seed: Seed = 0,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    max_tokens: MaxTokens = 64,
    json_output: Json = False,
) -> None:
    """Choose passages, let a model answer from them, and show what it read."""
    from mio_rag.ask import ask as answer_question
    from mio_rag.console import collect, print_selection
    from mio_rag.generation import make_generator

    output = _output(json_output)
    selector, corpus, reader, _ = collect(
        lambda: _selector(
            redundancy,
            passage_penalty,
            token_price,
            radius,
            norm,
            max_per_source,
            min_passages,
            max_passages,
            must_include,
            must_exclude,
            solver,
            time_limit,
            relative_gap,
            threads,
            seed,
        ),
        lambda: _load_index(index),
        lambda: make_generator(generator),
        lambda: _check(question, budget_tokens, pool, retrieval, max_tokens),
    )
    try:
        selection, answer = answer_question(
            corpus,
            question,
            reader,
            selector,
            budget_tokens=budget_tokens,
            pool=pool,
            mode=cast("Mode", retrieval),
            max_tokens=max_tokens,
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
    output.console.print(answer.text or "(no answer)", style="bold", markup=False)
    output.console.print(
        f"{answer.generator}: {answer.prompt_tokens} prompt and {answer.completion_tokens} answer tokens, "
        f"{answer.latency_seconds:.2f} s\n",
        style="dim",
        markup=False,
    )
    print_selection(output.console, selection)


@app.command()
def evaluate(
    data: Annotated[str, typer.Argument(help="Folder with corpus and questions, 'demo' or hf:NAME.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of ledger, summary and report.")],
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="Comma-separated: topk, topk:K, bm25, fused, mmr, density, greedy, local_search, exact.",
        ),
    ] = "topk,mmr,exact",
    budget_tokens: Annotated[
        str, typer.Option("--budget-tokens", help="Comma-separated token budgets.")
    ] = "256",
    generator: Annotated[
        str, typer.Option("--generator", help="As in ask, or none: evaluate the selection alone.")
    ] = "extractive",
    index: Annotated[
        Path | None, typer.Option("--index", help="Index of this corpus; otherwise one is built.")
    ] = None,
    embedder: Annotated[
        str | None, typer.Option("--embedder", help="Embedder of the index that is built. [minilm]")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first so many questions.")] = None,
    baseline: Annotated[str | None, typer.Option("--baseline", help="Method to compare with. [topk]")] = None,
    mmr_lambda: Annotated[
        float, typer.Option("--mmr-lambda", help="Weight of relevance in mmr, in (0, 1].")
    ] = 0.7,
    redundancy: Redundancy = 0.1,
    passage_penalty: Penalty = 0.02,
    token_price: Price = 0.0,
    radius: Radius = 0.0,
    norm: NormName = "l2",
    max_per_source: PerSource = None,
    min_passages: Least = None,
    max_passages: Most = None,
    solver: SolverName = "auto",
    time_limit: TimeLimit = 2.0,
    relative_gap: RelativeGap = 0.0,
    threads: Threads = 1,
    seed: Seed = 0,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    max_tokens: MaxTokens = 32,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    json_output: Json = False,
) -> None:
    """Compare methods on a question set: same pool, prompt, budget and reader for all."""
    from mio_rag.console import collect, print_summary, progress_bar
    from mio_rag.datasets import load_dataset
    from mio_rag.evaluation.harness import EvaluationSettings, check_folder
    from mio_rag.evaluation.methods import make_methods
    from mio_rag.evaluation.run import evaluate_and_report
    from mio_rag.generation import make_generator
    from mio_rag.retrieval.embedders import make_embedder
    from mio_rag.selector import Selector

    output = _output(json_output)

    names = tuple(m.strip() for m in methods.split(",") if m.strip())

    def settings() -> EvaluationSettings:
        chosen, budgets, _ = collect(
            lambda: _selector(
                redundancy,
                passage_penalty,
                token_price,
                radius,
                norm,
                max_per_source,
                min_passages,
                max_passages,
                None,
                None,
                solver,
                time_limit,
                relative_gap,
                threads,
                seed,
            ),
            lambda: _budgets(budget_tokens),
            lambda: make_methods(list(names), Selector(), mmr_lambda),
        )
        return EvaluationSettings(
            methods=names,
            budgets=budgets,
            baseline=baseline,
            selector=chosen,
            mmr_lambda=mmr_lambda,
            pool=pool,
            mode=cast("Mode", retrieval),
            limit=limit,
            max_tokens=max_tokens,
            seed=seed,
        )

    def one_index() -> None:
        if index is not None and embedder is not None:
            raise InputError("--index and --embedder exclude each other: the index brings its embedder")

    made, dataset, reader, given, model, *_ = collect(
        settings,
        lambda: load_dataset(data),
        lambda: None if generator == "none" else make_generator(generator),
        lambda: None if index is None else _load_index(index),
        lambda: None if index is not None else make_embedder(embedder or "minilm"),
        one_index,
        lambda: check_folder(out, resume),
    )
    try:
        corpus = given or _build_index(dataset.passages, model, dataset.name)
        with progress_bar("evaluating", len(dataset.questions[: made.limit])) as advance:
            result = evaluate_and_report(dataset, corpus, reader, made, out, resume=resume, progress=advance)
    finally:
        if reader is not None:
            reader.close()
    if json_output:
        output.json(_evaluation_json(result))
        return
    run = result.run
    output.console.print(
        f"{run['dataset']}: {run['questions']} questions, {run['passages']} passages, embedder "
        f"{run['embedder']}, "
        f"reader {run['generator'] or 'none'}, pool {run['pool']}, {run['seconds']:.0f} s\n",
        markup=False,
    )
    print_summary(output.console, result.summary)
    output.console.print(f"\nreport: {result.folder / 'report.html'}", markup=False, soft_wrap=True)


def _budgets(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(
            f"--budget-tokens={text!r} must be whole numbers separated by commas, for instance 128,256"
        ) from error


def _evaluation_json(result: EvaluationResult) -> dict[str, Any]:
    return {
        "out": str(result.folder),
        "run": result.run,
        "summary": result.summary,
        "comparisons": result.comparisons,
    }


@app.command()
def solve(
    program: Annotated[
        str, typer.Argument(help="JSON file with linear, pairwise, costs, budget, rows, fixed; - for stdin.")
    ],
    solver: SolverName = "auto",
    time_limit: TimeLimit = 10.0,
    relative_gap: RelativeGap = 0.0,
    threads: Threads = 1,
    seed: Seed = 0,
    json_output: Json = False,
) -> None:
    """Solve one selection program given as JSON."""
    from mio_rag.console import collect, print_result
    from mio_rag.formulations.program import SelectionProgram
    from mio_rag.solvers.registry import check_name
    from mio_rag.solvers.registry import solve as run_solver
    from mio_rag.solvers.result import SolveOptions

    output = _output(json_output)
    parsed, options, _ = collect(
        lambda: SelectionProgram.from_json(_read(program)),
        lambda: SolveOptions(
            time_limit_seconds=time_limit, relative_gap=relative_gap, threads=threads, seed=seed
        ),
        lambda: check_name(solver),
    )
    result = run_solver(parsed, solver, options)
    if result.status == "error":
        raise SolverError(result.message)
    used = None if result.x is None else parsed.cost(result.x)
    if json_output:
        selected = None if result.x is None else list(result.selected)
        output.json({**result.to_dict(), "selected": selected, "tokens_used": used})
    else:
        print_result(output.console, result, used)


@app.command()
def warmup(json_output: Json = False) -> None:
    """Compile the exact kernel ahead of its first use (once for this machine)."""
    from mio_rag.solvers.branch_and_bound import warmup as compile_kernel

    output = _output(json_output)
    seconds = compile_kernel()
    if json_output:
        output.json({"seconds": seconds})
    else:
        output.console.print(f"the exact kernel is ready ({seconds:.1f} s)")


def _read(source: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{source}' cannot be read: {error}") from error


_current: Output | None = None


def _output(as_json: bool) -> Output:
    """The output of this command; kept so that an error goes the same way."""
    global _current
    from mio_rag.console import Output

    _current = Output(as_json)
    return _current


def main() -> None:
    """Run the command line."""
    app()
