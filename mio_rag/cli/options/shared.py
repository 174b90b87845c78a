"""The options that commands share, and what they are turned into."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_type_hints

import typer

from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.cli.commands.calibrate import RelevanceOptions
    from mio_rag.cli.options.control import ControlOptions
    from mio_rag.evaluation.harness import EvaluationSettings
    from mio_rag.formulations.uncertainty import Norm
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.embedders import Embedder
    from mio_rag.retrieval.retriever import Mode
    from mio_rag.selection.selector import Selector
    from mio_rag.solvers.result import SolveOptions
    from mio_rag.types import Passage

__all__ = [
    "Budget",
    "ComparisonOptions",
    "EmbedderName",
    "Exclude",
    "GeneratorSpec",
    "Include",
    "Json",
    "MaxTokens",
    "ModeName",
    "Pool",
    "ProgramOptions",
    "SolverOptions",
    "build_index",
    "check_request",
    "evaluation_settings",
    "make_selector",
    "penalty",
    "spread",
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Budget = Annotated[
    int, typer.Option("--budget-tokens", help="Largest size of the context block, in the reader's tokens.")
]
Include = Annotated[
    list[str] | None, typer.Option("--must-include", help="Id of a passage that must be in. Repeatable.")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--must-exclude", help="Id of a passage that must be out. Repeatable.")
]
Pool = Annotated[int, typer.Option("--pool", help="Candidates per question.")]
ModeName = Annotated[str, typer.Option("--retrieval", help="What ranks the pool: fused, dense or bm25.")]
GeneratorSpec = Annotated[
    str, typer.Option("--generator", help="extractive, gguf:PATH, hf:ID, openai:URL#MODEL, scripted:FILE.")
]
EmbedderName = Annotated[
    str, typer.Option("--embedder", help="minilm, tfidf, or a sentence-transformers id or folder.")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Longest answer, in tokens.")]


@dataclass(frozen=True)
class ProgramOptions:
    """What is optimized, and under which counts."""

    redundancy: Annotated[
        float, typer.Option("--redundancy", help="lambda_1: price of similarity between two chosen passages.")
    ] = 0.1
    passage_penalty: Annotated[
        str,
        typer.Option(
            "--passage-penalty",
            help="lambda_2: what one more passage must be worth; auto: the median relevance of the pool.",
        ),
    ] = "auto"
    token_price: Annotated[
        float, typer.Option("--token-price", help="lambda_3: what one more token must be worth.")
    ] = 0.0
    radius: Annotated[
        float | None,
        typer.Option("--radius", help="Embedding uncertainty: how far each embedding may be off. [0]"),
    ] = None
    norm: Annotated[str | None, typer.Option("--norm", help="Norm of the radius: l2, l1 or linf. [l2]")] = (
        None
    )
    max_per_source: Annotated[
        int | None, typer.Option("--max-per-source", help="At most so many passages from one source.")
    ] = None
    min_passages: Annotated[int | None, typer.Option("--min-passages", help="At least so many passages.")] = (
        None
    )
    max_passages: Annotated[int | None, typer.Option("--max-passages", help="At most so many passages.")] = (
        None
    )


@dataclass(frozen=True)
class SolverOptions:
    """Who solves the program, and how far."""

    solver: Annotated[
        str,
        typer.Option(
            "--solver",
            help="auto, branch_and_bound, exhaustive, highs, highs-glover, cpsat, pyomo[:NAME], "
            "or a heuristic: topk, density, greedy, mmr, local_search.",
        ),
    ] = "auto"
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", help="Seconds for one program; then the certified gap is reported."),
    ] = 10.0
    relative_gap: Annotated[
        float, typer.Option("--relative-gap", help="Stop at this proven relative gap. 0: exact.")
    ] = 0.0
    threads: Annotated[int, typer.Option("--threads", help="Threads of the solver.")] = 1
    seed: Annotated[int, typer.Option("--seed", help="Seed of solvers, bootstrap and permutation tests.")] = 0

    def checked(self) -> SolveOptions:
        """The options as solvers take them, once these and the solver's name are found good."""
        from mio_rag.solvers.registry import check_name
        from mio_rag.solvers.result import SolveOptions

        options, _ = collect(
            lambda: SolveOptions(self.time_limit, self.relative_gap, threads=self.threads, seed=self.seed),
            lambda: check_name(self.solver),
        )
        return cast("SolveOptions", options)


@dataclass(frozen=True)
class ComparisonOptions:
    """What an evaluation compares, on which index, and who reads."""

    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="Comma-separated: topk, topk:K, bm25, fused, mmr, density, greedy, local_search, exact; "
            "with a relevance model also calibrated, with --rerank also maxsim, cross-encoder, yes-no; none: "
            "controllers alone.",
        ),
    ] = "topk,mmr,exact"
    budget_tokens: Annotated[str, typer.Option("--budget-tokens", help="Comma-separated token budgets.")] = (
        "256"
    )
    generator: Annotated[
        str, typer.Option("--generator", help="As in ask, or none: evaluate the selection alone.")
    ] = "extractive"
    index: Annotated[
        Path | None, typer.Option("--index", help="Index of this corpus; otherwise one is built.")
    ] = None
    embedder: Annotated[
        str | None, typer.Option("--embedder", help="Embedder of the index that is built. [minilm]")
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first so many questions.")] = None
    baseline: Annotated[str | None, typer.Option("--baseline", help="Method to compare with. [topk]")] = None
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
            raise InputError("--index and --embedder exclude each other: the index brings its embedder")


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Make every parameter that is a dataclass the options that its fields are annotated as.

    The command must take it by keyword. A default of the parameter gives the options their defaults;
    without one these are the defaults of the fields.
    """
    shown: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if not (isinstance(group, type) and dataclasses.is_dataclass(group)):
            shown.append(parameter)
            continue
        defaults = group() if parameter.default is parameter.empty else parameter.default
        options = get_type_hints(group, include_extras=True)
        groups[parameter.name] = (group, list(options))
        shown += [
            inspect.Parameter(name, parameter.kind, default=getattr(defaults, name), annotation=option)
            for name, option in options.items()
        ]

    @functools.wraps(command)
    def with_groups(**given: Any) -> None:
        for name, (group, options) in groups.items():
            given[name] = group(**{option: given.pop(option) for option in options})
        command(**given)

    with_groups.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return with_groups


def penalty(text: str) -> float | Literal["auto"]:
    """A passage penalty as it is written on the command line."""
    if text.strip() == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"--passage-penalty={text!r} must be a number >= 0, or auto") from error


def make_selector(
    program: ProgramOptions, solving: SolverOptions, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Selector:
    """The selector that the options describe; the problems of all of them at once."""
    from mio_rag.selection.selector import Selector

    selector, options = collect(
        lambda: Selector(
            redundancy_weight=program.redundancy,
            passage_penalty=penalty(program.passage_penalty),
            token_price=program.token_price,
            radius=program.radius or 0.0,
            norm=cast("Norm", program.norm or "l2"),
            max_per_source=program.max_per_source,
            min_passages=program.min_passages,
            max_passages=program.max_passages,
            must_include=tuple(include),
            must_exclude=tuple(exclude),
            solver=solving.solver,
        ),
        solving.checked,
    )
    return cast("Selector", dataclasses.replace(selector, options=options))


def evaluation_settings(
    comparison: ComparisonOptions,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    solving: SolverOptions,
    pool: int,
    retrieval: str,
    max_tokens: int,
    control: ControlOptions,
) -> EvaluationSettings:
    """What the options ask an evaluation to do; the problems of all of them at once."""
    from mio_rag.evaluation.harness import EvaluationSettings
    from mio_rag.evaluation.methods import make_methods
    from mio_rag.selection.selector import Selector

    methods = tuple(name.strip() for name in comparison.methods.split(",") if name.strip())
    if methods == ("none",) and control.names:
        methods = ()
    selector, budgets, agents, *_ = collect(
        lambda: evidence.applied(lambda: make_selector(program, solving)),
        comparison.budgets,
        control.settings,
        lambda: EvaluationSettings(
            limit=comparison.limit, max_tokens=max_tokens, pool=pool, seed=solving.seed
        ),
        # "calibrated" is checked with the model, further down.
        lambda: make_methods(
            [name for name in methods if not name.startswith("calibrated")] or ["exact"],
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
        pool=pool,
        mode=cast("Mode", retrieval),
        **evidence.retrieval(),
        limit=comparison.limit,
        max_tokens=max_tokens,
        seed=solving.seed,
        controllers=control.names,
        control=agents,
        closed_book=control.closed_book,
    )


def check_request(question: str, budget_tokens: int, pool: int, retrieval: str, max_tokens: int = 1) -> None:
    """Raise `InputError` with everything that is wrong with what a command was asked."""
    from mio_rag.retrieval.retriever import pool_problems

    problems = ["the question is empty"] if not question.strip() else []
    least = {"--budget-tokens": budget_tokens, "--max-tokens": max_tokens}
    problems += [f"{name}={value} must be >= 1" for name, value in least.items() if value < 1]
    problems += pool_problems(pool, retrieval)
    if problems:
        raise InputError(problems)


def build_index(
    passages: tuple[Passage, ...],
    embedder: Embedder,
    name: str,
    name_of: Callable[[Passage], str] | None = None,
) -> CorpusIndex:
    """A new index, with a progress bar while it is built."""
    from mio_rag.cli.progress import progress_bar
    from mio_rag.retrieval import CorpusIndex

    with progress_bar(f"embedding with {embedder.name}", len(passages)) as advance:
        return CorpusIndex.build(passages, embedder, name, advance, name_of)
