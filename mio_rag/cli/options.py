"""Options of commands: what is optimized, how relevance is made, who solves, and settings from a file."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from mio_rag.errors import InputError, choose, collect

if TYPE_CHECKING:
    from mio_rag.allocation.money import Money, Rate
    from mio_rag.context import PromptOrder
    from mio_rag.evaluation.harness import EvaluationSettings
    from mio_rag.formulations.uncertainty import Norm, UncertaintySet
    from mio_rag.relevance.model import Relevance
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.embedders import Embedder
    from mio_rag.retrieval.settings import Mode, RetrievalSettings
    from mio_rag.selection.constraints import SideConstraints
    from mio_rag.selection.selector import Counterpart, NearDuplicates, Penalty, Selector, Units
    from mio_rag.solvers.result import SolveOptions
    from mio_rag.types import Passage


# -- shared ----------------------------------------------------------------------------------------------

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

    preset: str = "default"
    """Settings to start from: default, frugal, thorough or raw."""
    redundancy: float | None = None
    """lambda_1: price of similarity between two chosen passages. [by preset: 0]"""
    passage_penalty: str | None = None
    """lambda_2: price of each passage; adaptive: by the best that fits; auto: its median. [by preset:
    adaptive]"""
    token_price: float | None = None
    """lambda_3: price of each token. [0]"""
    radius: float | None = None
    """Embedding uncertainty: how far each embedding may be off. [0]"""
    norm: str | None = None
    """Norm of the radius: l2, l1 or linf. [l2]"""
    max_per_source: int | None = None
    """Maximum passages from one source."""
    min_passages: int | None = None
    """Minimum number of passages."""
    max_passages: int | None = None
    """Maximum number of passages."""
    merge: bool = True
    """Read passages of one document as one text, overlaps once."""
    near_duplicates: str = "one"
    """Of near-duplicates, read at most one, or all."""
    units: str | None = None
    """What is chosen: passages, sentences, or auto (by the room there is). [select, ask: auto, unless a
    controller or a refusal model decides; else passages]"""
    shared_text: float | None = None
    """How far text that two passages share counts once in value, too. 1: fully. [0]"""


@dataclass(frozen=True)
class SolverOptions:
    """Who solves the program, and how far."""

    solver: str = "auto"
    """auto, branch_and_bound, exhaustive, highs, highs-glover, cpsat, pyomo[:NAME], or a heuristic: topk,
    density, greedy, mmr, local_search."""
    time_limit: float = 10.0
    """Time limit of one program in seconds; then the certified gap is reported."""
    relative_gap: float = 0.0
    """Stop at this proven relative gap. 0: exact."""
    threads: int = 1
    """Threads of the solver."""
    seed: int = 0
    """Seed of solvers, bootstrap and permutation tests."""

    def checked(self) -> SolveOptions:
        """The options as solvers take them, once these and the solver's name are found good."""
        from mio_rag.solvers.registry import check_name
        from mio_rag.solvers.result import SolveOptions

        options, _ = collect(
            lambda: SolveOptions(self.time_limit, self.relative_gap, threads=self.threads, seed=self.seed),
            lambda: check_name(self.solver),
        )
        return cast("SolveOptions", options)


def options_of(group: type[Any]) -> dict[str, Any]:
    """Return the option that each field of a data class or of `Settings` is.

    It is named like the field and described by the docstring below that, unless the field's annotation holds
    an option of its own. A list may be given as a repeated option.
    """
    from mio_rag.settings import field_help

    texts, made = field_help(group), {}
    for name, kind in get_type_hints(group, include_extras=True).items():
        if get_origin(kind) is Annotated and any(isinstance(part, OptionInfo) for part in kind.__metadata__):
            made[name] = kind
        else:
            flag = f"--{name.replace('_', '-')}"
            if kind is bool and getattr(group, name, False):
                flag = f"{flag}/--no-{name.replace('_', '-')}"
            made[name] = Annotated[kind, typer.Option(flag, help=texts.get(name))]
    return made


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Make every parameter that is a group of options the options of its fields; see `options_of`.

    The command must take it by keyword. A default of the parameter gives the options their defaults;
    without one these are the defaults of the fields.
    """
    shown: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if not (
            isinstance(group, type) and (dataclasses.is_dataclass(group) or hasattr(group, "model_fields"))
        ):
            shown.append(parameter)
            continue
        defaults = group() if parameter.default is parameter.empty else parameter.default
        options = options_of(group)
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
    from mio_rag.cli.terminal import said_if_slow
    from mio_rag.retrieval import CorpusIndex

    with said_if_slow("loading the index and its embedder"):
        return CorpusIndex.load(folder, mapped=mapped)


def load_embedder(name: str) -> Embedder:
    """The embedder of a name; says that it is loading where that takes longer than a moment."""
    from mio_rag.cli.terminal import said_if_slow
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
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.retrieval import CorpusIndex

    texts = CorpusIndex.texts_to_embed(passages, sentences or None)
    with progress_bar(f"embedding with {embedder.name}", texts) as advance:
        return CorpusIndex.build(passages, embedder, name, advance, name_of, vectors, sentences or None)


# -- side ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SideOptions:
    """Constraints besides budget and counts, and embedding uncertainty."""

    max_source_share: float | None = None
    """Maximum share of the chosen passages from one source."""
    cover: str | None = None
    """At least one passage from every topic: kmeans:K or agglomerative:SIMILARITY."""
    max_similarity: float | None = None
    """Never choose two passages that are more similar."""
    conflict: list[str] | None = None
    """ID,ID: never choose both. Repeatable."""
    needs: list[str] | None = None
    """ID,ID: choose the first only with the second. Repeatable."""
    previous: list[str] | None = None
    """Id in the previous selection. Repeatable."""
    max_changes: int | None = None
    """Maximum changes from the previous selection."""
    change_price: float | None = None
    """Price of a change from the previous selection, in units of relevance. [0]"""
    soft: list[str] | None = None
    """KIND:PRICE per violation; passages, sources, clusters, conflicts or needs. Repeatable."""
    counterpart: str | None = None
    """Robust counterpart: termwise, or joint (tighter, slower). [termwise]"""
    uncertainty_set: str | None = None
    """JSON file of an uncertainty set, instead of --radius."""
    radii: Path | None = None
    """File from `mio-rag radius --out`: a radius for each passage."""
    deviations: int | None = None
    """With joint: maximum number of chosen passages that deviate at once."""

    def applied(
        self, make: Callable[[], Selector], program: ProgramOptions, pool_radii: bool = False
    ) -> Selector:
        """The selector that `make` gives, with these settings; the problems of all of them at once.

        Parameters
        ----------
        program : ProgramOptions
            What else was given.
        pool_radii : bool
            Whether pools may bring radii of their own.
        """

        from mio_rag.formulations import DeviationBudget, NormBall

        made, side, given, radii, _ = collect(
            make, self._side, self._set, self._radii, lambda: self._check(program, pool_radii)
        )
        selector = cast("Selector", made)
        if self.deviations is not None:
            given = DeviationBudget(given or NormBall(selector.radius, selector.norm), self.deviations)
            selector = selector.replace(radius=0.0)
        return selector.replace(
            side=cast("SideConstraints", side),
            uncertainty=cast("UncertaintySet | None", given),
            passage_radii=cast("dict[str, float]", radii),
            counterpart=cast("Counterpart", self.counterpart or "termwise"),
        )

    def in_settings(self, settings: EvaluationSettings, program: ProgramOptions) -> EvaluationSettings:
        """The settings of an evaluation, with these of its selector."""
        import dataclasses

        return dataclasses.replace(settings, selector=self.applied(lambda: settings.selector, program))

    def _check(self, program: ProgramOptions, pool_radii: bool) -> None:
        """Raise `InputError` for every option without effect."""
        problems = []
        ball = bool(program.radius) or self.radii is not None or pool_radii
        if not ball and self.uncertainty_set is None:
            how = "give --radius, --radii or --uncertainty-set, or leave it out"
            if self.deviations is not None:
                problems.append(f"--deviations={self.deviations}: no embedding can deviate; {how}")
            if self.counterpart is not None:
                problems.append(f"--counterpart={self.counterpart}: no embedding can deviate; {how}")
        elif self.deviations is not None and self.counterpart != "joint":
            problems.append(
                f"--deviations={self.deviations} needs --counterpart joint: termwise has every one deviate"
            )
        if program.norm is not None and self.uncertainty_set is not None:
            problems.append("--norm and --uncertainty-set exclude each other: the set has its own shape")
        elif program.norm is not None and not ball:
            problems.append(f"--norm={program.norm} is the norm of a radius: give --radius or --radii too")
        if program.radius and self.radii is not None:
            problems.append("--radius and --radii exclude each other: the file has a radius for each passage")
        changes = {"--max-changes": self.max_changes, "--change-price": self.change_price}
        given = [name for name, value in changes.items() if value is not None]
        if given and not self.previous:
            problems.append(
                f"{' and '.join(given)} compare with a previous selection: give --previous once for each id"
            )
        if self.previous and not given:
            problems.append("--previous has no effect alone: give --max-changes or --change-price")
        asked = {
            "passages": (program.min_passages, program.max_passages, "--min-passages or --max-passages"),
            "sources": (program.max_per_source, None, "--max-per-source"),
            "conflicts": (self.conflict, self.max_similarity, "--conflict or --max-similarity"),
            "needs": (self.needs, None, "--needs"),
        }
        kinds = [text.rpartition(":")[0] for text in self.soft or ()]
        problems += [
            f"--soft {kind} is given twice" for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1
        ]
        problems += [
            f"--soft {kind}: no such constraint is set; give {asked[kind][2]} too"
            for kind in dict.fromkeys(kinds)
            if kind in asked and asked[kind][:2] in ((None, None), ([], None))
        ]
        if problems:
            raise InputError(problems)

    def _side(self) -> SideConstraints:
        from mio_rag.selection.constraints import SideConstraints

        prices = {}
        for text in self.soft or ():
            kind, _, price = text.rpartition(":")
            try:
                prices[kind] = float(price)
            except ValueError as error:
                raise InputError(f"--soft={text!r} must be KIND:PRICE, for instance clusters:0.05") from error
        needs: dict[str, list[str]] = {}
        for child, parent in _pairs("--needs", self.needs):
            needs.setdefault(child, []).append(parent)
        return SideConstraints(
            max_source_share=self.max_source_share,
            cover=self.cover,
            previous=None if not self.previous else tuple(self.previous),
            max_changes=self.max_changes,
            change_price=0.0 if self.change_price is None else self.change_price,
            max_similarity=self.max_similarity,
            conflicts=_pairs("--conflict", self.conflict),
            needs=needs,
            prices=cast("dict[Any, float]", prices),
        )

    def _radii(self) -> dict[str, float]:
        from mio_rag.retrieval.radius import read_radii

        return {} if self.radii is None else read_radii(self.radii)

    def _set(self) -> UncertaintySet | None:
        from mio_rag.formulations import uncertainty_from_dict
        from mio_rag.storage import read_json

        return (
            None if self.uncertainty_set is None else uncertainty_from_dict(read_json(self.uncertainty_set))
        )


def _pairs(option: str, given: list[str] | None) -> list[tuple[str, str]]:
    """ID,ID as pairs; the last comma counts, since ids may hold some."""
    pairs = []
    for text in given or ():
        first, comma, second = text.rpartition(",")
        if not (comma and first and second):
            raise InputError(f"{option}={text!r} must be two ids with a comma between them")
        pairs.append((first.strip(), second.strip()))
    return pairs


# -- relevance -------------------------------------------------------------------------------------------

Rerank = Annotated[
    list[str] | None,
    typer.Option(
        "--rerank",
        help="Re-rank the pool: maxsim, cross-encoder:ID_OR_PATH or yes-no:GENERATOR. The score is "
        "used by rankings, and by relevance models that were fitted with it. Repeatable.",
    ),
]


@dataclass(frozen=True)
class RelevanceOptions:
    """What relevance means, and what links between passages are worth."""

    relevance: str | None = None
    """auto (probabilities by what the pool brings), given (as retrieved), or a file from `mio-rag calibrate`.
    [by preset: auto]"""
    link_hops: int | None = None
    """Extend the pool along evidence links, up to N hops. 0: do not. [1 where there are links]"""
    link_benefit: float | None = None
    """Benefit of choosing passages that a link or a short document relates. [by preset: 0.2]"""
    redundancy_by_relevance: bool = False
    """Weight similarity by the relevance of both passages."""
    prompt_order: str = "best_first"
    """best_first or document."""
    rerank: Rerank = None

    def retrieval(self, pool: int, mode: str) -> RetrievalSettings:
        """How pools are found: by these, and by what the options --pool and --retrieval say.

        Raises
        ------
        InputError
            With what is out of range.
        """
        from mio_rag.retrieval.settings import RetrievalSettings

        return RetrievalSettings(pool, cast("Mode", mode), self.link_hops, tuple(self.rerank or ()))

    def applied(self, make: Callable[[], Selector]) -> Selector:
        """The selector that `make` gives, with these settings; the problems of both at once."""
        from mio_rag.selection.selector import Selector

        selector, model, *_ = collect(make, self.model, self.check)
        made = cast("Selector", selector)
        if self.relevance is not None and made.relevance_model == "given":
            Selector.preset("raw", relevance_model="auto")  # says why not
        return made.replace(
            relevance_model=made.relevance_model if self.relevance is None else model,
            link_benefit=made.link_benefit if self.link_benefit is None else self.link_benefit,
            redundancy_by_relevance=self.redundancy_by_relevance,
            prompt_order=cast("PromptOrder", self.prompt_order),
        )

    def model(self) -> Relevance:
        """What --relevance names.

        Raises
        ------
        DataError
            If it names a file that is no relevance model.
        """
        from mio_rag.relevance.model import load_model

        return "auto" if self.relevance in (None, "auto") else load_model(self.relevance)

    def check(self) -> None:
        """Raise `InputError` with what is out of range."""
        from mio_rag.retrieval.settings import RetrievalSettings
        from mio_rag.selection.selector import Selector

        RetrievalSettings(link_hops=self.link_hops, rerankers=tuple(self.rerank or ()))
        Selector(link_benefit=self.link_benefit or 0.0, prompt_order=cast("PromptOrder", self.prompt_order))


def check_weights(selector: Selector, index: CorpusIndex) -> None:
    """Refuse a relevance model that was fitted on another embedder than the index's, before anything is done.

    Raises
    ------
    InputError
        If it was.
    """
    from mio_rag.relevance.model import RelevanceModel

    model = selector.relevance_model
    misfit = isinstance(model, RelevanceModel) and model.misfit(index.embedder.fingerprint)
    if misfit:
        raise InputError(misfit)


# -- money -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MoneyOptions:
    """Prices of tokens in dollars."""

    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices",
            metavar="FILE",
            help='TOML file: a table ["MODEL"] with input and output, dollars per million tokens.',
        ),
    ] = None
    worth: float | None = None
    """Dollars that a needed passage is worth; with --prices it gives the price of a token."""
    price_model: str | None = None
    """Whose prices count. [the reader's]"""

    def money(self, program: ProgramOptions | None = None) -> Money | None:
        """What the options say; None where there are no prices.

        Parameters
        ----------
        program : ProgramOptions, optional
            What else may set the price of a token.

        Raises
        ------
        InputError
            For a worth or a model without prices, two prices of a token, and a file that holds none.
        """
        from mio_rag.allocation.money import read_money

        problems = []
        if self.prices is None:
            given = {"--worth": self.worth, "--price-model": self.price_model}
            problems = [f"{n} needs --prices: give the file" for n, v in given.items() if v is not None]
        if self.worth is not None and program is not None and program.token_price is not None:
            problems.append("--worth and --token-price both set the price of a token: give one of them")
        if problems:
            raise InputError(problems)
        return None if self.prices is None else read_money(self.prices, self.worth, self.price_model)


def at_rate(selector: Selector, rate: Rate | None) -> Selector:
    """The selector with the price of a token that follows from its worth, where that is given."""
    if rate is None or rate.worth is None:
        return selector
    return selector.replace(token_price=rate.token_price)


# -- config ----------------------------------------------------------------------------------------------

_NAMED_RELEVANCE = ("auto", "given", "cosine", "default", "minilm", "tfidf", "ranks", "scores")
#: Of the options that are settings of a service, those that name files and folders.
_PATHS = ("prices", "pacer_state", "curve", "api_key_file", "cache", "router", "tiers", "strategy_state")


def kept_options(
    program: ProgramOptions, evidence: RelevanceOptions, pool: int, retrieval: str, model: str | None = None
) -> dict[str, Any]:
    """What a file holds of the options that a search for others leaves as they are.

    Parameters
    ----------
    model : str, optional
        File of a relevance model that was fitted meanwhile, beside the configuration.
    """
    # A file without it would start from the default, whatever the preset was.
    relevance = model or evidence.relevance or ("given" if program.preset == "raw" else None)
    if model is None and relevance is not None and relevance not in _NAMED_RELEVANCE:
        relevance = str(Path(relevance).resolve())
    return {
        "max_per_source": program.max_per_source,
        "min_passages": program.min_passages,
        "max_passages": program.max_passages,
        "merge": None if program.merge else False,
        "near_duplicates": None if program.near_duplicates == "one" else program.near_duplicates,
        # Said even so: it is what was measured, and select and ask would choose by the room there is.
        "units": program.units or "passages",
        "shared_text": program.shared_text,
        "relevance": relevance,
        "link_hops": evidence.link_hops,
        "rerank": list(evidence.rerank) if evidence.rerank else None,
        "prompt_order": evidence.prompt_order,
        "pool": pool,
        "retrieval": retrieval,
    }


def config_text(options: Mapping[str, Any], measured: Mapping[str, Any], comment: str) -> str:
    """The file for these options; None is left out.

    Parameters
    ----------
    options, measured : mapping of str to bool, int, float, str or a list of these
    comment : str
        Lines for people, put at the top.

    Raises
    ------
    InputError
        As `mio_rag.toml.toml_text`.
    """
    from mio_rag.settings import toml_text

    body = toml_text({**options, "measured": measured})
    lines = ["".join(c if c.isprintable() else " " for c in line) for line in comment.splitlines()]
    return "".join(f"# {line}\n" for line in lines) + body


def read_config(
    path: Path, known: Collection[str], paths: Collection[str] = ("prices",), *, passages: bool = False
) -> dict[str, Any]:
    """The options of a file; paths, also that of a relevance model, are taken from where the file lies.

    Parameters
    ----------
    known, paths : collection of str
        Names that options may have, and those of them that are paths.
    passages : bool
        Whether a file that was measured, and names no units, means those it was measured with.

    Raises
    ------
    InputError
        If the file cannot be read, or holds something else.
    """
    from mio_rag.storage import read_toml

    data = read_toml(path)
    measured = data.pop("measured", None) is not None
    problems = [
        f"'{path}': option '{name}' is unknown: {choose(name, sorted(known))}"
        for name in data
        if name not in known
    ]
    problems += [
        f"'{path}': {name} must be a value or a list of values, not a table"
        for name, value in data.items()
        if isinstance(value, dict)
    ]
    if problems:
        raise InputError(problems)
    if measured and passages:
        data.setdefault("units", "passages")
    relevance = data.get("relevance")
    if isinstance(relevance, str) and relevance not in _NAMED_RELEVANCE:
        data["relevance"] = str(path.parent / relevance)
    held = {name: str(path.parent / data[name]) for name in paths if isinstance(data.get(name), str)}
    return {**data, **held}


def _known() -> set[str]:
    """Options that a file may set."""
    groups = (ProgramOptions, RelevanceOptions, SideOptions, SolverOptions, MoneyOptions)
    return {f.name for group in groups for f in dataclasses.fields(group)} | {
        "budget_tokens",
        "pool",
        "retrieval",
    }


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Make the options of a file the defaults of a command, before its other options are looked at."""
    if path is not None:
        context.default_map = {**(context.default_map or {}), **read_config(path, _known(), passages=True)}
    return path


def _read_own(context: typer.Context, path: Path | None) -> Path | None:
    """Likewise for a command that takes any of its own options from a file; paths begin where that lies."""
    if path is None:
        return None
    own = {str(p.name) for p in context.command.params if p.param_type_name == "option"} - {"config"}
    data = read_config(path, own | _known(), _PATHS)
    if strangers := [name for name in data if name not in own]:
        raise InputError(
            f"'{path}': {', '.join(strangers)} is for select, ask and evaluate, and each request to a "
            "service brings its own: leave it out"
        )
    context.default_map = {**(context.default_map or {}), **data}
    return path


#: For a command whose options are settings of its own, such as those of a service.
OwnConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read_own,
        is_eager=True,
        help="Take options from this TOML file (tokens_per_day = 2000000); those given here win.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read,
        is_eager=True,
        help="Take options from this TOML file, as `mio-rag tune` writes it; those given here win.",
    ),
]
