"""The tables of a policy: each way to take a decision, limits, models and answers, as checked settings.

What needs a package further up is imported inside the checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, choose
from mio_rag.settings import Settings

if TYPE_CHECKING:
    from mio_rag.formulations.mdp import RetrievalMDP
    from mio_rag.retrieval.settings import RetrievalSettings
    from mio_rag.selection.selector import Selector

#: The model that answers. A policy gives its price; the command line names the model.
READER = "reader"
#: Settings of the program that may be files, and of answers; named as in `FILES`.
PROGRAM_FILES = ("relevance_model", "uncertainty", "passage_radii")


def _known_strategies(value: tuple[str, ...]) -> tuple[str, ...]:
    if value == ("raw",):
        return value
    from mio_rag.session.search import check_strategies

    return check_strategies(value)


def _known_rule(value: str) -> str:
    from mio_rag.formulations.mdp import RetrievalMDP
    from mio_rag.learning.rules import POLICIES, make_policy

    try:
        make_policy(value, RetrievalMDP())
    except InputError:
        known = ("never", "price", "process", *POLICIES)
        raise InputError(f"{value!r} is unknown: {choose(value, known)}") from None
    return value


def _known_process(value: dict[str, Any]) -> dict[str, Any]:
    from mio_rag.learning.mdp import model_from_mapping

    model_from_mapping(value, "repeat.process")
    return value


def _known_bandit(value: dict[str, Any]) -> dict[str, Any]:
    from mio_rag.learning.bandit import BanditSettings

    if own := [name for name in ("token_price", "seed") if name in value]:
        raise InputError(f"{', '.join(own)}: a bandit has the policy's own; leave it out")
    BanditSettings(**value)
    return value


def _known_training(value: dict[str, Any]) -> dict[str, Any]:
    from mio_rag.learning.router import FitSettings

    FitSettings(**value)
    return value


def _known_tiers(value: str | tuple[Any, ...] | None) -> str | tuple[Any, ...] | None:
    if value is None or isinstance(value, str):
        return value
    from mio_rag.session.tiers import Tier, tiers_of

    return tiers_of([one.to_dict() if isinstance(one, Tier) else one for one in value], "tiers")


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Tiers = Annotated[str | tuple[Any, ...] | None, AfterValidator(_known_tiers)]
Temperature = Annotated[float, Field(ge=0, le=2)]
Strategies = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: tuple(value.split(",")) if isinstance(value, str) else value),
    AfterValidator(_known_strategies),
]


class _Variant(Settings):
    """One way to take a decision. Settings that only other ways have are refused; read, they are None."""

    @model_validator(mode="before")
    @classmethod
    def _effective(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            others = cls._of_others()
            program = "settings" in others and "settings" not in cls.model_fields  # has any name
            useless = [n for n in data if n not in cls.model_fields and (program or n in others)]
            if useless:
                tag = cls.model_fields["by"].default
                raise InputError(f'{", ".join(useless)} has no effect with by = "{tag}": leave it out')
        return data

    @classmethod
    def _of_others(cls) -> set[str]:
        """Return the settings of all ways to take this decision."""
        open_: list[Any] = [next(c for c in cls.__mro__ if _Variant in c.__bases__)]
        for one in open_:
            open_ += one.__subclasses__()
        return {name for one in open_ for name in one.model_fields}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._of_others():
            return None
        return super().__getattr__(name)  # type: ignore[misc]


class _Price(_Variant):
    pass


class FixedPrice(_Price):
    """The same price of a token for every question."""

    by: Literal["fixed"] = "fixed"
    token: Share = 0.0005
    """What one more token must add to the probability that the evidence is complete."""


class DollarPrice(_Price):
    """The reader's price of a token over what complete evidence is worth."""

    by: Literal["dollars"] = "dollars"
    worth: Annotated[float, Field(gt=0)]
    """Dollars that complete evidence is worth."""


class Total(_Price):
    """A total of tokens for all questions together: a pacer sets the price."""

    by: Literal["total"] = "total"
    total: Count
    """Tokens that all questions may spend, into and out of all models."""
    per: Literal["hour", "day"] | None = None
    """How often the total starts anew."""
    questions: Count | None = None
    """How many questions are expected."""
    state: str | None = None
    """SQLite file that keeps the count over restarts and between processes."""

    @model_validator(mode="after")
    def _is_paced(self) -> Self:
        if self.per is None and self.questions is None:
            raise ValueError("a total needs per (day or hour), or questions: how many are expected")
        return self


class _Order(_Variant):
    pass


class WorkflowOrder(_Order):
    """The same workflow for every question."""

    by: Literal["workflow"] = "workflow"
    workflow: str = "plain"
    """Name of a workflow, or its JSON file."""


class PlannerOrder(_Order):
    """A planner chooses the workflow, once or again after every step, as it was trained."""

    by: Literal["planner"] = "planner"
    file: str
    """File of `mio-rag policy fit planner`."""
    sha256: Sha256 | None = None
    """SHA-256 of the file; another content is refused."""
    alpha: Annotated[float, Field(ge=0)] | None = None
    """Price of a cost of 1, in quality; by default what the price of a token makes it."""
    model: str | None = None
    """GGUF file of a planner that was trained on hidden states."""


class ModelOrder(_Order):
    """The reader writes the workflow before it answers."""

    by: Literal["model"] = "model"
    grammar: bool = True
    """It writes under a grammar that allows nothing else (gguf models). Without one, what is no workflow
    becomes plain, and is counted."""


class _Search(_Variant):
    strategies: Strategies = ("raw",)
    """Names of search strategies."""
    pool: Count = DEFAULTS.pool
    """Candidates of a search."""
    ranking: Literal["fused", "dense", "bm25"] = "fused"
    """What ranks the candidates."""
    link_hops: Annotated[int, Field(ge=0, le=3)] | None = None
    """Links in a row that are followed out of the candidates; by default 1 where the index has links."""
    graph: str | None = None
    """CSV file of your own graph for the strategy grounded: the columns name, neighbour and, if links differ,
    weight. By default the evidence links of the index."""
    rerank: tuple[str, ...] = ()
    """Re-rankers: maxsim, cross-encoder:ID_OR_PATH or yes-no:MODEL. Rankings use their scores, and so do
    relevance models that were fitted with them."""

    @property
    def retrieval(self) -> RetrievalSettings:
        """These settings, as a `Retriever` takes them."""
        from mio_rag.retrieval.settings import RetrievalSettings

        return RetrievalSettings(self.pool, self.ranking, self.link_hops, self.rerank)

    @model_validator(mode="after")
    def _has_rerankers(self) -> Self:
        if self.rerank:
            self.retrieval  # noqa: B018  (raises for names that are unknown)
        return self


class StrategySearch(_Search):
    """All named strategies for every question."""

    by: Literal["strategies"] = "strategies"


class BanditSearch(_Search):
    """A bandit chooses among the strategies, and learns which pay."""

    by: Literal["bandit"] = "bandit"
    state: str
    """SQLite file of what it has learned."""
    bandit: Annotated[dict[str, Any], AfterValidator(_known_bandit)] = Field(default_factory=dict)
    """How it learns and chooses: settings of `mio_rag.learning.bandit.BanditSettings`."""

    @model_validator(mode="after")
    def _has_a_choice(self) -> Self:
        problems = []
        always = self.bandit.get("base", ("raw",))
        if missing := [name for name in always if name not in self.strategies]:
            problems.append(f"a bandit adds to what always runs: name {', '.join(missing)}, too")
        if len(self.strategies) < 2:
            problems.append("a bandit needs strategies to choose among, besides raw")
        if problems:
            raise InputError(problems)
        return self


class _Depth(_Variant):
    pass


class PriceDepth(_Depth):
    """As much as is worth the price."""

    by: Literal["price"] = "price"


class TierDepth(_Depth):
    """The same tier for every question."""

    by: Literal["tier"] = "tier"
    tier: str
    """Name of the tier."""
    tiers: Tiers = None
    """Tiers, or their TOML file; by default the published ones."""
    compress: Literal["sentences", "program", "none"] | None = None
    """Instead of the tiers' own way to shorten passages; none: whole, however long."""


class RouterDepth(_Depth):
    """A router chooses the tier."""

    by: Literal["router"] = "router"
    file: str
    """File of `mio-rag policy fit router`."""
    sha256: Sha256 | None = None
    """SHA-256 of the file; another content is refused."""
    unsure: Literal["stay", "up"] = "stay"
    """Where several tiers are plausible: stay, or go one tier up."""
    correct: bool = True
    """Whether more is read where the search is weak, if the router has learned when that is so."""
    compress: Literal["sentences", "program", "none"] | None = None
    """Instead of the tiers' own way to shorten passages; none: whole, however long."""
    tiers: Tiers = None
    """Tiers that it chooses among, or their TOML file. [those of its file]"""
    training: Annotated[dict[str, Any], AfterValidator(_known_training)] = Field(default_factory=dict)
    """How `policy fit router` trains it: settings of `mio_rag.learning.router.FitSettings`."""


class _Selection(_Variant):
    pass


class ProgramSelection(_Selection):
    """The exact selection program at the price. Its own settings may stand directly in the table."""

    by: Literal["program"] = "program"
    preset: str = "default"
    """Settings to begin with: default, frugal, thorough, or raw (relevance as it is)."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the program by name, as in `Selector.preset`."""

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("settings", {}), Mapping):
            return data
        more = {name: value for name, value in data.items() if name not in cls.model_fields}
        own = {name: value for name, value in data.items() if name in cls.model_fields}
        return {**own, "settings": {**dict(data.get("settings", {})), **more}}

    @model_validator(mode="after")
    def _is_a_program(self) -> Self:
        if self.preset == "default" and not self.settings:
            return self
        from mio_rag.selection.selector import PRESETS as PROGRAMS

        problems, preset = [], self.preset
        if preset not in PROGRAMS:
            problems.append(f"preset = {preset!r} is unknown: {choose(preset, PROGRAMS)}")
        if "token_price" in self.settings:
            problems.append("token_price is the policy's own price: give it as price.token")
        try:
            self.program(preset if preset in PROGRAMS else "default")
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(problems)
        return self

    def program(self, preset: str | None = None) -> Selector:
        """Return the program, with the contents of the files that its settings name."""
        from mio_rag.selection.selector import Selector

        own = {name: opened(name, value) for name, value in self.settings.items() if name != "token_price"}
        return Selector.preset(preset or self.preset, **own)

    @property
    def files(self) -> dict[str, str]:
        """Setting -> file that it names."""
        named = {name: self.settings[name] for name in PROGRAM_FILES if name in self.settings}
        return {name: value for name, value in named.items() if is_file_name(value)}


def is_file_name(value: Any) -> bool:
    """Return whether a setting of the program names a file."""
    return isinstance(value, str) and Path(value).suffix in (".json", ".npz")


def opened(name: str, value: Any) -> Any:
    """Return what a setting of the program stands for: a shipped model, or the content of a file."""
    if name not in PROGRAM_FILES or not isinstance(value, str) or value == "auto":
        return value
    if name == "relevance_model":
        from mio_rag.relevance.model import load_model

        return load_model(value)
    if name == "passage_radii":
        from mio_rag.retrieval.radius import read_radii

        return read_radii(Path(value))
    from mio_rag.storage import read_json

    return read_json(value)


class RankingSelection(_Selection):
    """The best by reciprocal rank fusion, until the limit on evidence is reached."""

    by: Literal["ranking"] = "ranking"


class TierSelection(_Selection):
    """By the tier's own rule."""

    by: Literal["tier"] = "tier"


class _Repeat(_Variant):
    calibration: str | None = None
    """File of `mio-rag policy fit completeness`: how likely the evidence is complete."""


class Never(_Repeat):
    """One search."""

    by: Literal["never"] = "never"


class _Again(_Repeat):
    query: Literal["feedback", "model"] = "feedback"
    """Who words the next search: the model, or feedback (question and best passage read, at no tokens)."""
    finds: Share = 0.15
    """Share of the missing probability that another search is expected to add."""
    most: Count = 2
    """Searches besides the first."""
    query_tokens: Count = 32
    """Longest query that the model writes."""
    query_temperature: Temperature = 0.0
    """Of sampling it; 0: the likeliest words."""


class ByGain(_Again):
    """Search again while what that is expected to add is worth the price of what it takes."""

    by: Literal["price"] = "price"
    signal: ClassVar[str] = "complete"


class Process(_Again):
    """The decision process with the price times its tokens as the costs of actions."""

    by: Literal["process"] = "process"
    signal: Literal["complete", "evidence", "tracked"] = "complete"
    """How the uncertainty is measured."""


class Rule(_Again):
    """A rule with constants of its own: mdp, always-retrieve, threshold:.4, ..."""

    by: Literal["rule"] = "rule"
    rule: Annotated[str, AfterValidator(_known_rule)]
    """Name of the rule."""
    signal: Literal["complete", "evidence", "tracked"] = "complete"
    """How the uncertainty is measured."""
    process: str | Annotated[dict[str, Any], AfterValidator(_known_process)] | None = None
    """The decision process: a TOML file, as `mio-rag policy fit process` writes it, or a table of its
    settings."""
    from_start: bool = False
    """Decide from the question on, before anything is read; order.workflow is then no-retrieval."""
    note_tokens: Count = 48
    """Longest note of a reasoning step."""
    notes: Annotated[int, Field(ge=0)] = 4
    """How many of the last notes the model sees."""

    @property
    def model(self) -> RetrievalMDP:
        """The decision process."""
        from mio_rag.learning.mdp import model_from_mapping, model_of

        if isinstance(self.process, Mapping):
            return model_from_mapping(self.process, "repeat.process")
        return model_of(None if self.process is None else Path(self.process), {})


class Model(Settings):
    """A generator and what it costs."""

    input: Annotated[float, Field(ge=0)] | None = None
    """Dollars per million tokens into it."""
    output: Annotated[float, Field(ge=0)] | None = None
    """Dollars per million tokens out of it."""
    temperature: Temperature = 0.0
    """Of sampling its answers; 0: the likeliest words."""
    spec: str | None = None
    """As `mio_rag.generation.make_generator` takes it. The reader has none: the command line names it."""
    sha256: Sha256 | None = None
    """SHA-256 of the file that a spec "gguf:FILE" names."""

    @property
    def is_priced(self) -> bool:
        """Whether it has a price."""
        return self.input is not None and self.output is not None

    def problems(self, name: str) -> list[str]:
        """Return what is wrong with it, as the model of that name in the table of models."""
        from mio_rag.generation import check_generator

        where, problems = f".{name}", []
        if (self.input is None) != (self.output is None):
            problems.append(f"{where}: give both input and output, dollars per million tokens")
        if name == READER and self.spec is not None:
            problems.append(f"{where}: spec = {self.spec!r}: --model names the reader; leave it out")
        elif name != READER and self.spec is None:
            problems.append(f'{where}: give spec, for instance "openai:gpt-4o-mini"')
        elif self.spec is not None:
            try:
                check_generator(self.spec)
            except InputError as error:
                problems += [f"{where}: {problem}" for problem in error.problems]
        if self.sha256 is not None and not (self.spec or "").startswith("gguf:"):
            problems.append(f'{where}: sha256 is for a model in a file, spec = "gguf:FILE"')
        return problems


def known_models(models: dict[str, Model]) -> dict[str, Model]:
    """Return models that suit their names; `InputError` with everything that is wrong."""
    if problems := [problem for name, model in models.items() for problem in model.problems(name)]:
        raise InputError(problems)
    return models


class Limits(Settings):
    """Limits of one question. Every decision obeys them."""

    budget: Count = DEFAULTS.budget
    """Largest block of passages in one prompt, in tokens."""
    max_tokens: Count = DEFAULTS.answer
    """Longest answer; a tier has its own."""
    max_total_tokens: Count = 20_000
    """Tokens into and out of all models."""
    max_steps: Annotated[int, Field(ge=0)] = 10
    """Actions that ask a model before the answer."""
    timeout: Annotated[float, Field(gt=0)] = 120.0
    """Ask no model but for the answer, and search no more, after these seconds; of `ask`, an endpoint has no
    longer for one reply."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        least = self.budget + self.max_tokens
        if self.max_total_tokens < least:
            raise ValueError(
                f"max_total_tokens must be >= budget + max_tokens ({least}), got {self.max_total_tokens}"
            )
        return self


class Answers(Settings):
    """What becomes of an answer."""

    refusal: str | None = None
    """File of `mio-rag policy fit refusal`: refuse to answer where the passages probably do not."""
    cache: str | None = None
    """SQLite file that keeps answers, and gives them again to the same question."""
    cache_entries: Count = 10_000
    """Answers that are kept."""
    cache_days: Annotated[float, Field(gt=0)] = 30.0
    """Age of the oldest answer that is given again."""
