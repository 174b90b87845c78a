"""The options that commands share, and what they are turned into."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.formulations.uncertainty import Norm
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.embedders import Embedder
    from mio_rag.selection.selector import NearDuplicates, Penalty, Selector, Units
    from mio_rag.solvers.result import SolveOptions
    from mio_rag.types import Passage

__all__ = [
    "Budget",
    "EmbedderName",
    "Exclude",
    "Explain",
    "GeneratorSpec",
    "Include",
    "Json",
    "Mapped",
    "MaxTokens",
    "ModeName",
    "Pool",
    "ProgramOptions",
    "SolverOptions",
    "build_index",
    "check_request",
    "fitting",
    "load_embedder",
    "load_index",
    "make_selector",
    "numbers",
    "penalty",
    "spread",
    "whole_numbers",
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Also say why each passage is in or out, and what it is worth.")
]
Budget = Annotated[
    int, typer.Option("--budget-tokens", help="Maximum size of the context, in tokens of the reader.")
]
Include = Annotated[
    list[str] | None, typer.Option("--must-include", help="Id of a passage that must be chosen. Repeatable.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--must-exclude", help="Id of a passage that must not be chosen. Repeatable."),
]
Pool = Annotated[int, typer.Option("--pool", help="Candidates per question.")]
ModeName = Annotated[str, typer.Option("--retrieval", help="Ranking of the pool: fused, dense or bm25.")]
GeneratorSpec = Annotated[
    str, typer.Option("--generator", help="extractive, gguf:PATH, hf:ID, openai:URL#MODEL, scripted:FILE.")
]
EmbedderName = Annotated[
    str, typer.Option("--embedder", help="minilm, tfidf, or a sentence-transformers id or folder.")
]
Mapped = Annotated[
    bool,
    typer.Option(
        "--mapped", help="Leave vectors, texts and the lexical index on disk: less memory, slower searches."
    ),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Maximum length of the answer, in tokens.")]


@dataclass(frozen=True)
class ProgramOptions:
    """What is optimized, and under which counts."""

    preset: Annotated[
        str,
        typer.Option("--preset", help="Settings to start from: default, frugal, thorough or raw."),
    ] = "default"
    redundancy: Annotated[
        float | None,
        typer.Option(
            "--redundancy", help="lambda_1: price of similarity between two chosen passages. [by preset: 0]"
        ),
    ] = None
    passage_penalty: Annotated[
        str | None,
        typer.Option(
            "--passage-penalty",
            help="lambda_2: price of each passage; adaptive: by the best that fits; auto: its median. "
            "[by preset: adaptive]",
        ),
    ] = None
    token_price: Annotated[
        float | None, typer.Option("--token-price", help="lambda_3: price of each token. [0]")
    ] = None
    radius: Annotated[
        float | None,
        typer.Option("--radius", help="Embedding uncertainty: how far each embedding may be off. [0]"),
    ] = None
    norm: Annotated[str | None, typer.Option("--norm", help="Norm of the radius: l2, l1 or linf. [l2]")] = (
        None
    )
    max_per_source: Annotated[
        int | None, typer.Option("--max-per-source", help="Maximum passages from one source.")
    ] = None
    min_passages: Annotated[
        int | None, typer.Option("--min-passages", help="Minimum number of passages.")
    ] = None
    max_passages: Annotated[
        int | None, typer.Option("--max-passages", help="Maximum number of passages.")
    ] = None
    merge: Annotated[
        bool,
        typer.Option("--merge/--no-merge", help="Read passages of one document as one text, overlaps once."),
    ] = True
    near_duplicates: Annotated[
        str, typer.Option("--near-duplicates", help="Of near-duplicates, read at most one, or all.")
    ] = "one"
    units: Annotated[
        str | None,
        typer.Option(
            "--units",
            help="What is chosen: passages, sentences, or auto (by the room there is). [select, ask: auto, "
            "unless a controller or a refusal model decides; else passages]",
        ),
    ] = None
    shared_text: Annotated[
        float | None,
        typer.Option(
            "--shared-text",
            help="How far text that two passages share counts once in value, too. 1: fully. [0]",
        ),
    ] = None


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
        typer.Option(
            "--time-limit", help="Time limit of one program in seconds; then the certified gap is reported."
        ),
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


def numbers(name: str, text: str) -> tuple[float, ...]:
    """The numbers of a comma-separated option."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(
            f"{name}={text!r} must be numbers separated by commas, for instance 0,0.1"
        ) from error


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a comma-separated option."""
    found = numbers(name, text)
    if any(value % 1 != 0 for value in found):
        raise InputError(f"{name}={text!r} must be whole numbers separated by commas, for instance 128,256")
    return tuple(int(value) for value in found)


def penalty(text: str) -> Penalty:
    """A passage penalty as it is written on the command line."""
    if text.strip() in ("adaptive", "auto"):
        return cast("Penalty", text.strip())
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"--passage-penalty={text!r} must be a number >= 0, adaptive or auto") from error


def make_selector(
    program: ProgramOptions, solving: SolverOptions, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Selector:
    """The selector that the options describe; the problems of all of them at once."""
    from mio_rag.selection.selector import Selector

    prices: dict[str, Any] = {
        "redundancy_weight": program.redundancy,
        "passage_penalty": None if program.passage_penalty is None else penalty(program.passage_penalty),
        "token_price": program.token_price,
        "shared_text_weight": program.shared_text,
    }
    selector, options = collect(
        lambda: Selector.preset(
            program.preset,
            **{name: price for name, price in prices.items() if price is not None},
            radius=program.radius or 0.0,
            norm=cast("Norm", program.norm or "l2"),
            max_per_source=program.max_per_source,
            min_passages=program.min_passages,
            max_passages=program.max_passages,
            merge=program.merge,
            near_duplicates=cast("NearDuplicates", program.near_duplicates),
            units=cast("Units", program.units or "passages"),
            must_include=tuple(include),
            must_exclude=tuple(exclude),
            solver=solving.solver,
        ),
        solving.checked,
    )
    return cast("Selector", selector.replace(options=options))


def fitting(program: ProgramOptions, decided: bool) -> ProgramOptions:
    """The options of a command that reads by itself: sentences where the budget has little room.

    Parameters
    ----------
    decided : bool
        Whether something that was fitted on whole passages decides what is read: then these are the default.
    """
    return program if program.units or decided else dataclasses.replace(program, units="auto")


def check_request(question: str, budget_tokens: int, max_tokens: int = 1) -> None:
    """Raise `InputError` with everything that is wrong with what a command was asked."""
    problems = ["the question is empty"] if not question.strip() else []
    least = {"--budget-tokens": budget_tokens, "--max-tokens": max_tokens}
    problems += [f"{name}={value} must be >= 1" for name, value in least.items() if value < 1]
    if problems:
        raise InputError(problems)


def load_index(folder: Path, mapped: bool = False) -> CorpusIndex:
    """The index in a folder; says that it is loading where that takes longer than a moment.

    Parameters
    ----------
    mapped : bool
        As in `CorpusIndex.load`.
    """
    from mio_rag.cli.progress import said_if_slow
    from mio_rag.retrieval import CorpusIndex

    with said_if_slow("loading the index and its embedder"):
        return CorpusIndex.load(folder, mapped=mapped)


def load_embedder(name: str) -> Embedder:
    """The embedder of a name; says that it is loading where that takes longer than a moment."""
    from mio_rag.cli.progress import said_if_slow
    from mio_rag.retrieval.embedders import make_embedder

    with said_if_slow("loading the embedder"):
        return make_embedder(name)


def build_index(
    passages: tuple[Passage, ...],
    embedder: Embedder,
    name: str,
    name_of: Callable[[Passage], str] | None = None,
    vectors: str = "exact",
    sentences: bool = False,
) -> CorpusIndex:
    """A new index, with a progress bar while it is built."""
    from mio_rag.cli.progress import progress_bar
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.sentences import sentence_spans

    texts = len(passages)
    if sentences:
        texts += sum(len(sentence_spans(passage.text, wrapped=True)) for passage in passages)
    with progress_bar(f"embedding with {embedder.name}", texts) as advance:
        return CorpusIndex.build(passages, embedder, name, advance, name_of, vectors, sentences)
