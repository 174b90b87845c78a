"""Policies by name, each a row of deciders over one `Session`.

mdp, threshold:X, ...    rules of the decision process; any may end with @SIGNAL
tier:NAME                every question at one tier
routed                   a router chooses the tier
random-tier              drawn, with the shares that the router gave to the tiers in training, else all alike
oracle-tier              the cheapest tier whose answer is right, charged as if that had been known: a bound
strategies:A+B           search by these strategies; strategies:bandit: a bandit chooses them
workflow:NAME            one workflow for every question
planner, planner@ALPHA   a learned planner chooses the workflow
planner-lm               the model writes the workflow; planner-lm:free: without a grammar
policy:NAME              a preset or a TOML file that names every decision
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.deciders.planner import LanguagePlanner, Planner
from mio_rag.deciders.repeat import Repeat, published
from mio_rag.deciders.steps import Depth, OneTier, Order, RandomTier, Search, TierChooser
from mio_rag.errors import InputError, choose
from mio_rag.generation import Generator
from mio_rag.generation.gguf import PREFIX, HiddenStates
from mio_rag.learning.bandit import KIND as STRATEGIES_KEY
from mio_rag.learning.bandit import StrategyOptions
from mio_rag.learning.planner import Planner as LearnedPlanner
from mio_rag.learning.planner import read_planner
from mio_rag.learning.router import answer_worked, labels
from mio_rag.learning.router_model import Correction, Deciding, Router, RouterSettings, read_router
from mio_rag.learning.rules import POLICIES, Policy, make_policy, split_name
from mio_rag.learning.strategist import Chooser, Fixed, Strategist, StrategyLearner
from mio_rag.policies.compose import KIND as POLICY_KIND
from mio_rag.policies.setup import Controller, ControlSettings, Kind, Setup
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Models, Prices, Replies
from mio_rag.session.loop import Session
from mio_rag.session.tiers import Tier, TierReader
from mio_rag.session.tools import Equipment
from mio_rag.session.trace import Outcome
from mio_rag.session.workflow import (
    NAMED,
    Workflow,
    WorkflowSettings,
    chain,
    find_workflow,
    inner_hashes,
    misfits,
    workflow_problems,
    workflow_settings,
)
from mio_rag.settings import Settings
from mio_rag.types import Question

_OPEN = chain("open", "answer")


def _session(name: str, setup: Setup, plan: Any, *others: Any, **given: Any) -> Session:
    """A session without a price of its own, under the limits of a setup; given: further fields of it."""
    usual: dict[str, Any] = {
        "kit": Equipment(setup.retriever, setup.selector),
        "limits": setup.settings.limits,
        "max_tokens": setup.max_tokens,
        "models": Models({}),
        "threads": WorkflowSettings().threads,
        "seconds": WorkflowSettings().seconds,
        "always_asks": True,
    }
    return Session(name, (plan, *others), plan, **usual | given)


def _told(setup: Setup) -> dict[str, Any]:
    return {
        "limits": setup.settings.to_dict()["limits"],
        "seed": int(setup.seed),
        "closed_book": setup.retriever is None,
        "max_tokens": int(setup.max_tokens),
    }


# Rules of the decision process


def _rule(name: str, given: ControlSettings, closed_book: bool, seed: int = 0) -> tuple[Policy, str]:
    """The rule of a name, and how U is known."""
    rule, signal = split_name(name, given.gauge)
    return make_policy(rule, given.model, stop_at=given.stop_at, seed=seed, closed_book=closed_book), signal


def _make_rule(name: str, setup: Setup) -> Session:
    settings, seed, closed_book = setup.settings, setup.seed, setup.retriever is None
    rule, signal = _rule(name, settings, closed_book, seed)
    repeat = Repeat(
        published(rule), signal, "model", most=None, from_start=True, closed_book=closed_book, seed=seed,
        model=settings.model, note_tokens=settings.note_tokens, max_notes=settings.kept_notes,
    )  # fmt: skip
    return _session(name, setup, Order(_OPEN), repeat, settings={**settings.to_dict(), **_told(setup)})


# Tiers


def has_tiers(name: str) -> bool:
    """Whether a policy of that name reads as much as its tiers say."""
    return any(kind.covers(name) for kind in _TIER_KINDS)


def _tiered(kinds: Mapping[str, Any]) -> tuple[RouterSettings, Router | None, tuple[Tier, ...]]:
    """Return the settings, the router and the tiers: those of the router where there is one."""
    given = RouterSettings.of(kinds)
    router = None if given.router is None else read_router(given.router)
    return given, router, given.tiers if router is None else router.tiers


def _check_tier(name: str, settings: ControlSettings, closed_book: bool) -> None:
    stem, colon, _ = name.partition(":")
    if closed_book:
        raise InputError(f"controller '{name}' needs a corpus: leave it out, or give one")
    given, _, tiers = _tiered(settings.kinds)
    names = [f"tier:{one.name}" for one in tiers]
    if stem == "tier" and name not in names:
        raise InputError(f"controller '{name}' names no tier: {choose(name, names)}")
    if stem != "tier" and (colon or "@" in name):
        raise InputError(f"controller '{name}' is unknown: write '{stem.partition('@')[0]}' alone")
    if stem == "routed" and given.router is None:
        raise InputError(
            "controller 'routed' needs a router: set depth.file, a file of `mio-rag policy fit router`"
        )


def _make_tier(name: str, setup: Setup) -> Controller:
    retriever = setup.retriever
    assert retriever is not None
    given, router, tiers = _tiered(setup.settings.kinds)
    if router is not None:
        router.check(retriever.index.embedder.fingerprint)
    in_use = [one.to_dict() for one in tiers]
    settings = {**given.to_dict(), "tiers": in_use, "seed": int(setup.seed)}
    stem, _, tier = name.partition(":")

    def at(tiers: Sequence[Tier], by: TierChooser, correction: Correction | None = None) -> Session:
        for one in tiers:
            TierReader(one, retriever, setup.selector)  # raises if the search is too shallow for it
        depth, longest = Depth(tuple(tiers), by, correction), max(one.new_tokens for one in tiers)
        plan = Order(NAMED["plain"])
        return _session(name, setup, plan, depth, settings=settings, max_tokens=longest, always_asks=False)

    if stem == "tier":
        return at([one for one in tiers if one.name == tier], OneTier())
    if stem == "random-tier":
        shares = tuple(1 / len(tiers) for _ in tiers) if router is None else router.shares
        return at(tiers, RandomTier(shares, setup.seed))
    if stem == "oracle-tier":
        return Oracle(name, [at([one], OneTier()) for one in tiers])
    assert router is not None
    return at(tiers, Deciding(router, given.token_price, given.unsure), router.correction)


@dataclass(frozen=True, eq=False)
class Oracle:
    """Goes up the tiers until an answer is right, and is charged for that tier alone: a bound.

    Where no tier is right it takes the one that the published rule names (`mio_rag.learning.router.labels`).

    rungs: one for each tier, in the order of their cost.
    """

    name: str
    rungs: Sequence[Session]

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome:
        """As `Session.attempt`.

        Raises `InputError` if no right answer of the question is known.
        """
        answer_worked(question, "", None)
        known: Replies = {} if replies is None else replies
        tried: list[Outcome] = []
        for rung in self.rungs:
            found = rung.attempt(question, generator, budget_tokens, known)
            tried.append(found)
            reply = found.reply
            if reply is not None and answer_worked(question, reply.answer.text, reply.choice):
                return found
        none = np.zeros((1, len(tried)))
        return tried[int(labels(none, [len(question.gold_ids) > 1])[0])]


def in_force(outcome: Outcome, selector: Selector) -> dict[str, Any]:
    """What decided how much a tier read, as plain data; empty where nothing was read at a tier.

    A budget, redundancy and the price of a passage count only where the program chose: None elsewhere.
    """
    selection, name = outcome.selection, outcome.trace.about.get("tier")
    if selection is None or name is None:
        return {}
    tier = next(one for one in outcome.trace.settings["tiers"] if one["name"] == name)
    budget, by_program = selection.budget_tokens, tier.get("token_price") is not None
    return {
        "tier": name,
        "context": tier["context"],
        "context_unit": tier["unit"],
        "budget_tokens": budget if by_program else None,
        "redundancy_weight": selector.redundancy_weight if by_program else None,
        "passage_penalty": selector.penalty(selection.pool, budget) if by_program else None,
    }


# Strategies


def _strategies(name: str, settings: ControlSettings) -> tuple[tuple[str, ...] | None, StrategyOptions]:
    """The strategies that a name lists, None where a bandit chooses; and the options."""
    listed = name.partition(":")[2].strip()
    options = StrategyOptions.from_dict(settings.kinds.get(STRATEGIES_KEY, {}), STRATEGIES_KEY)
    return None if listed == "bandit" else tuple(listed.split("+")), options


def _check_strategies(name: str, settings: ControlSettings, closed_book: bool) -> None:
    if closed_book:
        raise InputError("strategies search in a corpus, and a closed-book run has none")
    names, options = _strategies(name, settings)
    if names is not None:
        Fixed(names)
    elif options.state is None:
        raise InputError("the bandit needs a file for what it learns: set search.state")


def _make_strategies(name: str, setup: Setup) -> Session:
    assert setup.retriever is not None
    names, options = _strategies(name, setup.settings)
    chooser: Chooser
    if names is None:
        fingerprint = setup.retriever.index.embedder.fingerprint
        state, graph = Path(str(options.state)), options.search.writing.graph
        chooser = Strategist(state, options.possible, options.bandit, fingerprint, graph=graph)
    else:
        chooser = Fixed(names)
    kit = Equipment(setup.retriever, setup.selector, search=options.search)
    learner = StrategyLearner(chooser, setup.selector) if isinstance(chooser, Strategist) else None
    settings = {"max_tokens": setup.max_tokens, **options.to_dict()}
    plan = Order(NAMED["plain"])
    return _session(name, setup, plan, Search(chooser), settings=settings, kit=kit, learner=learner)


# Workflows and planners


def _workflow(name: str) -> Workflow:
    given = name.partition(":")[2]
    if not given:
        raise InputError(f"controller '{name}' names no workflow: for instance workflow:plain")
    return find_workflow(given)


def _check_workflows(
    workflows: Sequence[Workflow], kinds: Mapping[str, Any], closed_book: bool, more: Sequence[str] = ()
) -> None:
    """Raise `InputError` for what is wrong with workflows, and for further problems."""
    given = workflow_settings(kinds)
    models, prices = tuple(given.models), tuple(given.prices)
    how: Mapping[str, Any] = {"models": models, "prices": prices, "depth": given.depth}
    problems = [p for one in workflows for p in workflow_problems(one, closed_book=closed_book, **how)]
    if problems or more:
        raise InputError(list(dict.fromkeys([*problems, *more])))


def _check_index(workflows: Sequence[Workflow], setup: Setup) -> None:
    """Raise `InputError` for workflows that need what an index lacks."""
    retriever = setup.retriever
    if retriever is not None and (problems := misfits(workflows, retriever.index, setup.selector)):
        raise InputError(problems)


def _planned(name: str, setup: Setup, plan: Any, models: Models | None = None, **told: Any) -> Session:
    """A session that runs workflows; by default models are opened as the settings say."""
    given = workflow_settings(setup.settings.kinds)
    return _session(
        name,
        setup,
        plan,
        settings={**_told(setup), "workflow": given.to_dict(), **told},
        models=Models(given.models) if models is None else models,
        threads=given.threads,
        seconds=given.seconds,
    )


def _check_workflow(name: str, settings: ControlSettings, closed_book: bool) -> None:
    _check_workflows([_workflow(name)], settings.kinds, closed_book)


def _workflow_files(name: str) -> dict[str, str]:
    """Digests of workflow:NAME and of all that it runs within, by name."""
    workflow = _workflow(name)
    return {workflow.name: workflow.sha256, **inner_hashes([workflow])}


def workflow_session(name: str, workflow: Workflow, setup: Setup, models: Models | None = None) -> Session:
    """Return one workflow for every question; by default models are opened as the settings say."""
    return _planned(name, setup, Order(workflow), models)


def _make_workflow(name: str, setup: Setup) -> Session:
    workflow = _workflow(name)
    _check_index([workflow], setup)
    return workflow_session(name, workflow, setup)


@functools.lru_cache(maxsize=4)
def _read_planner(path: str, changed: int) -> LearnedPlanner:
    return read_planner(path)


_hidden = functools.lru_cache(maxsize=2)(HiddenStates)


class PlannerSettings(Settings):
    """A learned planner."""

    file: str
    """Made by `mio-rag policy fit planner`."""
    alpha: float | None = None
    """Price of a cost of 1, in quality. [that of the training]"""
    model: str | None = None
    """File of the model whose hidden state it looks at."""
    sha256: str = ""
    """Digest of the file, as runs record it."""


def _planner(name: str, settings: ControlSettings) -> tuple[LearnedPlanner, float, str | None]:
    """Planner, price and model: of the name "planner@ALPHA" or of the settings."""
    if not settings.kinds.get("planner"):
        raise InputError(
            f"controller '{name}' needs a file: set order.file, made by `mio-rag policy fit planner`"
        )
    given = PlannerSettings.from_dict(settings.kinds["planner"], "planner")
    path = Path(given.file)
    planner = _read_planner(str(path), path.stat().st_mtime_ns if path.is_file() else 0)
    _, at, text = name.partition("@")
    try:
        alpha = float(text) if at else given.alpha
    except ValueError as error:
        raise InputError(f"controller '{name}': '{text}' is no price; for instance planner@.1") from error
    return planner, planner.checked_alpha(alpha), given.model


def _check_planner(name: str, settings: ControlSettings, closed_book: bool) -> None:
    if name.partition("@")[0] != "planner":
        raise InputError(f"controller '{name}' is unknown: say planner, or planner@ALPHA")
    planner, _, model = _planner(name, settings)
    problems = list[str]()
    hidden = planner.embedder.startswith(PREFIX)
    if hidden and model is None:
        problems.append("this planner looks at the hidden state of a model: set order.model, its file")
    if closed_book and planner.embedder and not hidden:
        problems.append("this planner looks at a question's embedding, which comes from an index: give one")
    if planner.cost == "dollars" and "reader" not in workflow_settings(settings.kinds).prices:
        problems.append("this planner counts dollars: set models.reader.input and models.reader.output")
    _check_workflows(planner.tree.workflows, settings.kinds, closed_book, problems)


def _make_planner(name: str, setup: Setup) -> Session:
    planner, alpha, model = _planner(name, setup.settings)
    _check_index(planner.tree.workflows, setup)
    encoder: Any = None
    if planner.embedder.startswith(PREFIX):
        encoder = _hidden(str(model))
    elif planner.embedder and setup.retriever is not None:
        encoder = setup.retriever.index.embedder
    if encoder is not None and encoder.fingerprint != planner.embedder:
        raise InputError(
            f"the planner was trained with the embedder {planner.embedder}, here is {encoder.fingerprint}: "
            "train one for this"
        )
    prices = Prices(workflow_settings(setup.settings.kinds).prices)
    told = {"method": planner.method, "mode": planner.tree.mode, "alpha": alpha}
    return _planned(name, setup, Planner(planner, lambda price: alpha, encoder, prices), planner=told)


def _check_language(name: str, settings: ControlSettings, closed_book: bool) -> None:
    if name not in ("planner-lm", "planner-lm:free"):
        raise InputError(f"controller '{name}' is unknown: say planner-lm, or planner-lm:free")
    workflow_settings(settings.kinds)
    if closed_book:
        raise InputError(f"'{name}' plans searches, but there is no corpus: give an index")


def _make_language(name: str, setup: Setup) -> Session:
    return _planned(name, setup, LanguagePlanner(name.endswith(":free")))


_TIER_KINDS = (
    Kind("tier", _make_tier, _check_tier),
    Kind("routed", _make_tier, _check_tier, rival=False),
    Kind("random-tier", _make_tier, _check_tier),
    Kind("oracle-tier", _make_tier, _check_tier),
)

#: In the order in which messages list them.
_KINDS: list[Kind] = [
    *(Kind(name, _make_rule, _rule, rival=name != "mdp") for name in POLICIES),
    *_TIER_KINDS,
    Kind("strategies", _make_strategies, _check_strategies, rival=False),
    Kind("workflow", _make_workflow, _check_workflow, files=_workflow_files),
    Kind("planner", _make_planner, _check_planner, rival=False),
    Kind("planner-lm", _make_language, _check_language),
    POLICY_KIND,
]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def register(kind: Kind) -> None:
    """Make a kind of controller known by its name, everywhere that controllers are named.

    Raises `InputError` if the name is taken, or could not be typed.
    """
    if not _NAME.fullmatch(str(kind.name)):
        raise InputError(
            f"controller name {kind.name!r} must be letters, digits, '-' and '_', beginning with a letter: "
            "what stands behind ':' or '@' belongs to the kind"
        )
    if any(kind.name == known.name or known.covers(kind.name) for known in _KINDS):
        raise InputError(f"a controller '{kind.name}' is known already: choose another name")
    _KINDS.append(kind)


def find_kind(name: str) -> Kind | None:
    """Return the kind of a controller of that name; None: there is none."""
    return next((kind for kind in _KINDS if kind.covers(name)), None)


def kind_names() -> list[str]:
    """Return the names of all kinds."""
    return [kind.name for kind in _KINDS]


def _kind(name: str) -> Kind:
    if (kind := find_kind(name)) is None:
        advice = f"{choose(name, kind_names())} (for instance fixed-3, threshold:.4)"
        raise InputError(f"controller '{name}' is unknown: {advice}")
    return kind


def make_controller(name: str, setup: Setup) -> Controller:
    """Return the controller of that name; `InputError` if it is unknown, or makes no sense."""
    kind = _kind(name)
    kind.check(name, setup.settings, setup.retriever is None)
    return kind.make(name, setup)


def check_controllers(names: Sequence[str], settings: ControlSettings, closed_book: bool) -> None:
    """Raise `InputError` with everything that is wrong with these names; nothing is loaded."""
    problems = [f"controller '{n}' is listed twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    for name in dict.fromkeys(names):
        try:
            _kind(name).check(name, settings, closed_book)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)


def controller_files(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return digests of the files that names of controllers refer to, by name."""
    found = {name: dict(_kind(name).files(name)) for name in names}
    return {name: files for name, files in found.items() if files}
