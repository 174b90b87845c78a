"""Options of commands: controllers, policies, workflows, routers, strategies, caches and refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.learning.router_model import RouterSettings, Utility
    from mio_rag.measures import Instruments
    from mio_rag.policies.setup import ControlSettings
    from mio_rag.policy_files import Resolved
    from mio_rag.refusal.model import Refusal
    from mio_rag.retrieval.embedders import Embedder
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.session.cache import AnswerCache, CacheSettings
    from mio_rag.session.models import WorkflowSettings


# -- control ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentOptions:
    """How a controller obtains U, which process it follows, and its limits."""

    uncertainty: str = "tracked"
    """How U is obtained: tracked by the model, or measured by confidence, evidence or complete."""
    mdp_config: Path | None = None
    """TOML file with the decision process."""
    max_steps: int | None = None
    """Maximum actions before the answer. [the horizon]"""
    max_total_tokens: int = 20_000
    """Maximum prompt and answer tokens for one question."""
    max_seconds: float = 120.0
    """Start no action after this many seconds."""
    stop_at: float = 0.05
    """U at which always-reason, always-retrieve and threshold stop."""

    def unused(self, trace: Path | None) -> None:
        """Refuse options that have no effect without a controller."""
        given = [
            f"--{field.name.replace('_', '-')}"
            for field in fields(AgentOptions)
            if getattr(self, field.name) != field.default
        ]
        if named := given + (["--trace"] if trace is not None else []):
            raise InputError(f"{', '.join(named)}: no effect without a controller, for instance mdp")

    def of(
        self,
        controller: str | None,
        trace: Path | None,
        *added: Callable[[ControlSettings], ControlSettings],
    ) -> ControlSettings | None:
        """The settings for a controller, once its name and the file of its trace are found good.

        Parameters
        ----------
        controller : str or None
            None: there is none, and options that are for one are refused.
        added : callable
            Each adds the settings of a further kind of controllers.
        """
        if controller is None:
            self.unused(trace)
            return None
        from mio_rag.policies.make import check_controllers

        def described() -> ControlSettings:
            settings = self.settings()
            for add in added:
                settings = add(settings)
            return settings

        found, _ = collect(described, lambda: _check_trace(trace))
        settings = cast("ControlSettings", found)
        check_controllers([controller], settings, closed_book=False)
        return settings

    def settings(self) -> ControlSettings:
        """The settings that the options describe; the problems of all of them at once."""
        from mio_rag.learning.mdp import model_of
        from mio_rag.policies.setup import ControlSettings
        from mio_rag.session.budget import Limits

        model, _ = collect(
            lambda: model_of(self.mdp_config, {}),
            lambda: ControlSettings(
                gauge=self.uncertainty,
                limits=Limits(self.max_steps or 0, self.max_total_tokens, self.max_seconds),
                stop_at=self.stop_at,
            ),
        )
        steps = self.max_steps if self.max_steps is not None else model.horizon or Limits().steps
        limits = Limits(steps, self.max_total_tokens, self.max_seconds)
        return ControlSettings(model, self.uncertainty, limits, self.stop_at)


@dataclass(frozen=True)
class ControlOptions(AgentOptions):
    """Which controllers an evaluation compares, and on which questions."""

    controllers: str | None = None
    """Comma-separated: mdp, always-reason, always-retrieve, threshold[:X], random, fixed-N; each may end with
    @tracked, @confidence, @evidence or @complete; workflow:NAME, planner[@ALPHA]."""
    corpus: str | None = None
    """Take the passages from here, and only the questions from DATA."""
    closed_book: bool = False
    """Answer without a corpus, from the model alone."""
    keep_choices: bool = False
    """Do not shuffle the options of multiple-choice questions."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the controllers."""
        return tuple(name.strip() for name in (self.controllers or "").split(",") if name.strip())

    def check(self, data: str, generator: str) -> None:
        """Raise `InputError` for what cannot be asked together; nothing is loaded."""
        from mio_rag.corpora.load import check_source

        problems = []
        if self.closed_book and self.corpus is not None:
            problems.append("--closed-book and --corpus exclude each other")
        if self.names and generator == "none":
            problems.append("controllers need a model that answers: give --generator")
        for source in (data, self.corpus):
            try:
                check_source("demo" if source is None else source)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)

    def load(self, data: str, seed: int) -> Dataset:
        """The questions with what they are asked of, their choices shuffled by the seed."""
        from mio_rag.corpora.load import closed_book, load_dataset, shuffle_choices, with_corpus

        if self.closed_book:
            dataset = closed_book(data)
        else:
            dataset = load_dataset(data) if self.corpus is None else with_corpus(data, self.corpus)
        has_choices = any(question.choices for question in dataset.questions)
        return shuffle_choices(dataset, seed) if has_choices and not self.keep_choices else dataset


def _check_trace(trace: Path | None) -> None:
    if trace is not None and (trace.is_dir() or not trace.absolute().parent.is_dir()):
        raise InputError(f"--trace={trace} must be a file, in a folder that exists")


# -- workflow --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """Which models the nodes of workflows may ask beside the reader, and what they cost."""

    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="NAME=SPEC", help="A generator that nodes of workflows may name; repeatable."
        ),
    ] = None
    model_price: Annotated[
        list[str] | None,
        typer.Option(
            "--model-price",
            metavar="NAME=IN,OUT",
            help="Dollars per million tokens into and out of a model, or of 'reader'; repeatable.",
        ),
    ] = None

    def settings(self) -> WorkflowSettings:
        """The settings that the options describe; the problems of all of them at once."""
        from mio_rag.session.models import WorkflowSettings

        problems: list[str] = []
        models = _pairs("--model", self.model or [], problems)
        prices = {}
        for name, text in _pairs("--model-price", self.model_price or [], problems).items():
            try:
                into, out = (float(part) for part in text.split(","))
            except ValueError:
                problems.append(f"--model-price {name}={text} must be two numbers with a comma between them")
                continue
            prices[name] = (into, out)
        try:
            made = WorkflowSettings(models=models, prices=prices)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(problems)
        return made


@dataclass(frozen=True)
class PlannerOptions(ModelOptions):
    """A planner that chooses among workflows, and the models that these may ask."""

    planner: Path | None = None
    """Let a planner choose a workflow: file of `mio-rag plan train`."""
    alpha: float | None = None
    """With --planner: what the cost of a plain answer must be worth, in F1."""

    planner_model: Path | None = None
    """GGUF file of a planner that was trained on hidden states."""

    def kinds(self, names: Sequence[str]) -> dict[str, Any]:
        """Settings of the kinds of controllers that workflows are for.

        Parameters
        ----------
        names : sequence of str
            Of the controllers that are asked.

        Raises
        ------
        InputError
            For options that none of them looks at, and as `settings`.
        """
        stems = {name.partition(":")[0].partition("@")[0] for name in names}
        if self.planner is None and (self.alpha is not None or self.planner_model is not None):
            raise InputError("--alpha, --planner-model: no effect without --planner")
        if not stems & {"workflow", "planner"}:
            if self.model or self.model_price:
                raise InputError("--model, --model-price: no effect without a workflow or a planner")
            return {}
        found: dict[str, Any] = {"workflow": self.settings().to_dict()}
        if self.planner is not None:
            model = None if self.planner_model is None else str(self.planner_model)
            # A run that is resumed with another file of that name must not go on.
            content = self.planner.read_bytes() if self.planner.is_file() else b""
            found["planner"] = {
                "file": str(self.planner),
                "alpha": self.alpha,
                "model": model,
                "sha256": sha256(content).hexdigest(),
            }
        return found

    def adding(self, controller: str | None) -> Callable[[ControlSettings], ControlSettings]:
        """Adds the settings of workflows to those of controllers; see `AgentOptions.of`."""

        def added(settings: ControlSettings) -> ControlSettings:
            kinds = self.kinds([] if controller is None else [controller])
            return replace(settings, kinds={**settings.kinds, **kinds})

        return added


def named_planner(names: Sequence[str]) -> tuple[str, ...]:
    """The controllers with the planner, unless it is among them at prices of its own."""
    asked = any(name.partition("@")[0] == "planner" for name in names)
    return tuple(names) if asked else (*names, "planner")


def named_workflow(controller: str | None, workflow: str) -> str:
    """The controller that follows a workflow.

    Raises
    ------
    InputError
        If another controller is asked for.
    """
    return _alone(controller, f"workflow:{workflow}")


def only_planner(controller: str | None) -> str:
    """The controller that is a planner; errors as `named_workflow`."""
    return _alone(controller, "planner")


def _alone(controller: str | None, name: str) -> str:
    if controller is not None:
        raise InputError("--workflow, --planner and --controller exclude each other: each is a controller")
    return name


def _pairs(option: str, given: list[str], problems: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            problems.append(f"{option} {text}: give NAME=VALUE")
        elif name in found:
            problems.append(f"{option} names '{name}' twice")
        else:
            found[name.strip()] = value.strip()
    return found


# -- policy ----------------------------------------------------------------------------------------------

#: What may stand beside a policy; strategies and routers are refused in words of their own.
_BESIDE = {
    "index", "question", "generator", "policy", "trace", "mapped", "config", "explain", "json_output", "seed",
    "strategies", "router",
}  # fmt: skip
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="FILE|PRESET",
        help="Let a policy decide everything, also how much is read: a TOML file, or frugal, balanced, "
        "thorough.",
    ),
]


def only_policy(controller: str | None, policy: str, context: typer.Context, searches: bool) -> str:
    """The controller that runs a policy.

    Parameters
    ----------
    searches : bool
        Whether strategies or a router are named on the command line.

    Raises
    ------
    InputError
        If another controller is asked for, or anything on the command line that its file decides; with
        everything that is wrong with the file, too.
    """
    problems = []
    if controller is not None:
        problems.append("--policy and another controller exclude each other: a policy decides everything")
    if searches:
        problems.append("--policy excludes --strategies and --router: name them in the policy's own file")
    check_beside(policy, context, _BESIDE, problems)
    return f"policy:{policy}"


def check_beside(
    policy: str, context: typer.Context, beside: Collection[str], problems: Sequence[str] = ()
) -> None:
    """Raise `InputError` for options on the command line that a policy's file decides.

    Parameters
    ----------
    beside : collection of str
        Names of parameters that may stand beside it.
    problems : sequence of str
        What is known to be wrong already.

    Raises
    ------
    InputError
        With these, the options, and where there is any of both, everything that is wrong with the file.
    """
    given = [
        max(one.opts, key=len)
        for one in context.command.params
        if one.name not in beside and _on_command_line(context, one.name or "")
    ]
    found = list(problems)
    if given:
        shown = f"`mio-rag policy show {policy} --toml`"
        found.append(f"--policy excludes {', '.join(given)}: its file decides that; {shown} prints it")
    if found:
        try:
            _states(policy)
        except InputError as error:
            found += error.problems
        raise InputError(found)


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _states(name: str) -> Resolved:
    from mio_rag.policy import read_policy
    from mio_rag.policy_files import resolve

    return resolve(read_policy(name))


def kinds_of(names: Sequence[str]) -> dict[str, Any]:
    """What policies hold, by the hash of it: a run that is resumed with other contents must not go on.

    Parameters
    ----------
    names : sequence of str
        Presets and files.

    Raises
    ------
    InputError
        With everything that is wrong with any of them.
    """
    found = collect(*((lambda name=name: _states(name)) for name in names))
    return {"policy": {name: states.sha256 for name, states in zip(names, found, strict=True)}}


@dataclass(frozen=True)
class PoliciesOption:
    """Which policies are compared."""

    policies: str | None = None
    """Comma-separated policies to compare, as policy:NAME: presets or TOML files. Each reads at most
    --budget-tokens."""

    @property
    def names(self) -> tuple[str, ...]:
        """Presets and files."""
        return tuple(name.strip() for name in (self.policies or "").split(",") if name.strip())

    @property
    def controllers(self) -> tuple[str, ...]:
        """As the ledger names them."""
        return tuple(f"policy:{name}" for name in self.names)

    def added(self, settings: ControlSettings) -> ControlSettings:
        """The settings of controllers, with what the policies hold."""
        if not self.names:
            return settings
        return replace(settings, kinds={**settings.kinds, **kinds_of(self.names)})


# -- router ----------------------------------------------------------------------------------------------


def read_utility(text: str | None) -> Utility:
    """The utility as it is written: alpha, beta, gamma, delta; later ones may be left out."""
    from mio_rag.learning.router_model import Utility

    if text is None:
        return Utility()
    try:
        given = [float(part) for part in text.split(",")]
        return Utility(*given)
    except (ValueError, TypeError) as error:
        problems = error.problems if isinstance(error, InputError) else ["give up to four numbers"]
        raise InputError(
            [f"--utility={text!r}: {p}; for instance 1,0.0005 (alpha, beta a token)" for p in problems]
        ) from error


@dataclass(frozen=True)
class RouterOptions:
    """Who chooses the tier of a question, and among which."""

    router: Path | None = None
    """Router that chooses the tier; a file of `mio-rag route train`."""
    tiers: Path | None = None
    """TOML file of tiers, without a router. [the three published ones]"""
    utility: str | None = None
    """Of a router that knows utilities: alpha, beta a token, gamma a second, delta a megabyte.
    [1,0.0005,0,0]"""
    unsure: str = "stay"
    """Where several tiers are plausible: stay, or up a tier."""

    @property
    def given(self) -> bool:
        """Whether any of them was given."""
        return any(getattr(self, field.name) != field.default for field in fields(RouterOptions))

    def check(self, names: Sequence[str]) -> None:
        """Refuse options that have no effect, since none of these controllers has tiers."""
        from mio_rag.policies.make import has_tiers

        if not any(map(has_tiers, names)):
            self.unused()

    def unused(self) -> None:
        """Refuse options that have no effect where nothing has tiers."""
        given = [
            f"--{field.name}" for field in fields(RouterOptions) if getattr(self, field.name) != field.default
        ]
        if given:
            raise InputError(
                f"{', '.join(given)}: no effect without a controller that has tiers, for instance routed"
            )

    def settings(self) -> RouterSettings:
        """What the options describe; the problems of all of them at once."""
        from mio_rag.learning.router_model import RouterSettings, read_router
        from mio_rag.session.tiers import PUBLISHED, read_tiers

        tiers, utility, router, _ = collect(
            lambda: PUBLISHED if self.tiers is None else read_tiers(self.tiers),
            lambda: read_utility(self.utility),
            lambda: None if self.router is None else read_router(str(self.router)),
            lambda: RouterSettings(unsure=self.unsure),
        )
        if router is not None and self.tiers is not None and tiers != router.tiers:
            raise InputError(
                f"--tiers={self.tiers} holds {len(tiers)} tiers, and the router chooses among "
                f"{len(router.tiers)} of its own, {', '.join(t.name for t in router.tiers)}: leave out "
                "--tiers"
            )
        path = None if self.router is None else str(self.router)
        return RouterSettings(tiers if router is None else router.tiers, path, utility, self.unsure)

    def applied(self, settings: ControlSettings) -> ControlSettings:
        """The settings of controllers with those of tiers and routers, where any were given."""
        from mio_rag.learning.router_model import KEY

        if not self.given:
            return settings
        kinds = {**settings.kinds, KEY: self.settings().to_dict()}
        return dataclasses.replace(settings, kinds=kinds)


# -- strategies ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StrategyChoice:
    """By which strategies is searched, and what a bandit among them goes by."""

    strategies: str | None = None
    """Search by these, side by side: raw, hyde, query2doc, grounded, multi-query, separated by commas; all;
    or bandit, which learns what each is worth."""
    strategy_state: Path | None = None
    """With bandit: SQLite file of what is learned; made if missing."""
    strategy_price: float | None = None
    """With bandit: what a token of the model must add, in passages that are certainly needed. [0.0001]"""
    strategy_deadline: float | None = None
    """Seconds after which a strategy is left out. [30]"""

    @property
    def controller(self) -> str | None:
        """The name of the controller that searches so; None without --strategies."""
        if self.strategies is None:
            return None
        return "strategies:" + "+".join(part.strip() for part in self.strategies.split(","))

    @property
    def learns(self) -> bool:
        """Whether a bandit chooses."""
        return self.strategies is not None and self.strategies.strip() == "bandit"

    def kinds(self) -> dict[str, Any]:
        """Settings for `ControlSettings.kinds`; nothing where nothing is said."""
        search = {} if self.strategy_deadline is None else {"deadline_seconds": self.strategy_deadline}
        bandit = {} if self.strategy_price is None else {"token_price": self.strategy_price}
        state = {} if self.strategy_state is None else {"state": str(self.strategy_state)}
        given = {**state, **({"search": search} if search else {}), **({"bandit": bandit} if bandit else {})}
        return {"strategies": given} if given else {}

    def added(self, settings: ControlSettings) -> ControlSettings:
        """The settings of controllers, with those of these strategies."""
        return replace(settings, kinds={**settings.kinds, **self.kinds()})

    def check(self) -> None:
        """Raise `InputError` with everything that is wrong; nothing is loaded."""
        given = [
            f"--{f.name.replace('_', '-')}"
            for f in fields(StrategyChoice)
            if getattr(self, f.name) is not None and f.name != "strategies"
        ]
        if self.strategies is None:
            if given:
                raise InputError(f"{', '.join(given)}: no effect without --strategies")
            return
        if not self.learns and "bandit" in [part.strip() for part in self.strategies.split(",")]:
            raise InputError("--strategies bandit chooses among all strategies: name no others beside it")
        from mio_rag.policies.make import check_controllers
        from mio_rag.policies.setup import ControlSettings

        only_bandit = [name for name in given if name != "--strategy-deadline"]
        if not self.learns and only_bandit:
            raise InputError(f"{', '.join(only_bandit)}: no effect without --strategies bandit")
        assert self.controller is not None
        check_controllers([self.controller], self.added(ControlSettings()), closed_book=False)


# -- cache -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheOptions:
    """Where answers are kept, how many, and how long."""

    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="FILE",
            help="Keep answers in this file, and give them again to the same question under the same "
            "settings.",
        ),
    ] = None
    cache_entries: int = 10_000
    """With --cache: keep so many answers."""
    cache_days: float = 30.0
    """With --cache: give no answer that is older."""

    def checked(self, controller: str | None = None) -> CacheSettings | None:
        """The settings; None without a file.

        Raises
        ------
        InputError
            For what is out of range, has no effect, or goes with no controller.
        """
        if self.cache is None:
            given = [f for f in fields(self) if getattr(self, f.name) != f.default]
            if given:
                named = ", ".join(f"--{f.name.replace('_', '-')}" for f in given)
                raise InputError(f"{named}: no effect without --cache FILE")
            return None
        if controller is not None:
            raise InputError(
                f"--cache and the controller {controller} exclude each other: answers of agents are not kept"
            )
        from mio_rag.session.cache import CacheSettings

        return CacheSettings(self.cache_entries, self.cache_days)

    def open(self, index: CorpusIndex, settings: CacheSettings) -> AnswerCache:
        """The cache for an index.

        Raises
        ------
        InputError
            If the file is something else.
        """
        from mio_rag.session.cache import AnswerCache

        assert self.cache is not None
        return AnswerCache.of(self.cache, index, settings)


# -- refusal ---------------------------------------------------------------------------------------------

RefusalFile = Annotated[
    Path | None,
    typer.Option(
        "--refusal",
        metavar="FILE",
        help="Say 'not in these passages' where that is likely, by a model from `mio-rag unanswerable`.",
    ),
]


def read_refusal(path: Path, controllers: Sequence[str]) -> Refusal:
    """The model of a file.

    Raises
    ------
    InputError
        If controllers answer, or the file is no such model.
    """
    if controllers:
        raise InputError(
            "--refusal and --controller exclude each other: agents stop by their own uncertainty"
        )
    from mio_rag.refusal.model import Refusal

    return Refusal.load(path)


# -- measuring -------------------------------------------------------------------------------------------

_OF_INDEX = "index"


@dataclass(frozen=True)
class MeasuringOptions:
    """What an evaluation measures beside what needs no model."""

    judge: str | None = None
    """Measure faithfulness and context recall by this judge: words, embedding, nli:MODEL or yes-no:GENERATOR
    (also answer relevance)."""
    cosine: str | None = None
    """Measure cosines of answers by this embedder: index (that of the index), minilm, or a
    sentence-transformers id or folder."""
    bert_score: str | None = None
    """Measure BERTScore by this encoder: minilm, or an id or folder; MODEL@LAYER takes that layer. [the
    last]"""

    def check(self, closed_book: bool, answered: bool) -> None:
        """Raise `InputError` for what plainly cannot be measured; nothing is loaded."""
        from mio_rag.measures.judges import check_judge
        from mio_rag.retrieval.embedders import check_embedder

        problems = []
        if self.cosine == _OF_INDEX and closed_book:
            problems.append("--cosine=index: a closed-book run has no index; name an embedder")
        if self.cosine == "tfidf":
            problems.append(
                "--cosine=tfidf: it is fitted to a corpus; give --cosine index for that of an index"
            )
        given = {"--cosine": self.cosine, "--bert-score": self.bert_score}
        if not answered:
            problems += [
                f"{name}={value}: without a reader there are no answers to measure; give --generator"
                for name, value in given.items()
                if value is not None
            ]
        try:
            collect(
                lambda: None if self.judge is None else check_judge(self.judge),
                lambda: (
                    None if self.cosine in (None, _OF_INDEX, "tfidf") else check_embedder(self.cosine or "")
                ),
                self._encoder,
            )
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(problems)

    def _encoder(self) -> tuple[str, int | None]:
        """Model and layer of BERTScore."""
        model, at, layer = (self.bert_score or "").rpartition("@")
        if at and not layer.isdecimal():
            raise InputError(f"--bert-score={self.bert_score}: '{layer}' behind @ is no number of a layer")
        return (model, int(layer)) if at else (layer, None)

    def load(self) -> Instruments:
        """The instruments, without the embedder of the index."""
        from mio_rag.measures import Instruments
        from mio_rag.measures.instruments import TokenVectors
        from mio_rag.measures.judges import YesNoJudge, make_judge
        from mio_rag.retrieval.embedders import make_embedder

        tokens, judge, embedder = collect(
            lambda: None if self.bert_score is None else TokenVectors(*self._encoder()),
            lambda: None if self.judge is None else make_judge(self.judge),
            lambda: None if self.cosine in (None, _OF_INDEX) else make_embedder(self.cosine or ""),
        )
        writer = judge.writer if isinstance(judge, YesNoJudge) else None
        return Instruments(embedder, tokens, judge, writer)

    def of_index(self, instruments: Instruments, embedder: Embedder) -> Instruments:
        """The instruments with the embedder of the index, where that is asked for."""
        return replace(instruments, embedder=embedder) if self.cosine == _OF_INDEX else instruments
