"""The files that a policy names: opened, checked against it and each other, and hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mio_rag.errors import InputError, choose
from mio_rag.policy.policy import FILES, Policy
from mio_rag.policy.tables import READER, StrategySearch, WorkflowOrder

if TYPE_CHECKING:
    from mio_rag.learning.planner import Planner
    from mio_rag.learning.router_model import Router
    from mio_rag.relevance.complete import Completeness
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.selection.selector import Selector
    from mio_rag.session.tiers import Tier
    from mio_rag.session.workflow import Workflow

T = TypeVar("T")
_WHOLE = 10**6  # characters or tokens: all passages of a tier


@dataclass(frozen=True, eq=False)
class Resolved:
    """What the files of a policy hold.

    workflows: those that may run.
    tiers: those that may be read at; none by the price alone.
    completeness: fitted on your own questions; None: the one that ships.
    embedders: what was learned with which embedder, by fingerprint.
    hashes: file -> SHA-256 of its content; of a bandit, which goes on learning, of what its log is about.
    sha256: of the policy with all of these, as `digest`.
    """

    workflows: tuple[Workflow, ...]
    planner: Planner | None = None
    router: Router | None = None
    tiers: tuple[Tier, ...] = ()
    completeness: Completeness | None = None
    embedders: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""

    def digest(self, policy: Policy) -> str:
        """Return the hash of a policy with what these files hold, wherever they lie.

        A bandit's log and the count of a total change in every run, so they are no part of it.
        """
        said = policy.content()
        for table, key in FILES:
            if isinstance(file := said[table].get(key), str) and file:
                said[table][key] = "" if key == "state" else self.hashes[file]
        for key, file in policy.selection.files.items() if policy.selection.by == "program" else ():
            said["selection"]["settings"][key] = self.hashes[file]
        said["order"]["workflow"] = [workflow.sha256 for workflow in self.workflows]
        return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def check(self, embedder: str) -> None:
        """Raise `InputError` for an index with another embedder than something was learned with."""
        problems = [
            f"the {what} was trained with the embedder '{learned}', and the index embeds by '{embedder}': "
            "train it on an index with this embedder"
            for what, learned in self.embedders.items()
            if learned != embedder
        ]
        if problems:
            raise InputError(problems)


def resolve(policy: Policy, index: CorpusIndex | None = None, *, closed_book: bool = False) -> Resolved:
    """Open the files of a policy, and check them against it and against each other. No model is loaded.

    index: whose embedder must be the one of everything learned.
    closed_book: whether there is nothing to search.

    Raises `InputError` with everything that is wrong: files that are missing, damaged or not those of the
    given hashes, tiers above the limits, workflows without their models, learned parts of different embedders
    or strategies.
    """
    from mio_rag.generation import file_of
    from mio_rag.learning.planner import read_planner
    from mio_rag.learning.router_model import read_router
    from mio_rag.relevance.complete import read
    from mio_rag.session.search import Names
    from mio_rag.session.tiers import PUBLISHED, read_tiers
    from mio_rag.session.workflow import find_workflow

    problems: list[str] = []
    hashes: dict[str, str] = {}
    embedders: dict[str, str] = {}
    order, depth, search, calibration = policy.order, policy.depth, policy.search, policy.repeat.calibration

    def hashed(file: str | None, expected: str | None = None) -> None:
        if file is None or not Path(file).is_file():
            return  # reading it reports that
        with Path(file).open("rb") as content:
            found = hashes[file] = hashlib.file_digest(content, "sha256").hexdigest()
        if expected is not None and found != expected:
            problems.append(f"'{file}' has the content {found[:12]}..., and {expected[:12]}... is wanted")

    def opened(read: Callable[[], T], where: str) -> T | None:
        try:
            return read()
        except InputError as error:
            problems.extend(f"{where}: {problem}" for problem in error.problems)
            return None

    hashed(order.file, order.sha256)
    hashed(depth.file, depth.sha256)
    program = policy.selection.files.values() if policy.selection.by == "program" else ()
    ladder = depth.tiers if isinstance(depth.tiers, str) else None
    process = policy.repeat.process if isinstance(policy.repeat.process, str) else None
    for file in (ladder, calibration, process, search.graph, *program):
        hashed(file)
    for model in policy.models.values():
        if model.sha256 is not None and (model.spec or "").startswith("gguf:"):
            hashed(str(file_of(str(model.spec))), model.sha256)
    planner = router = None
    workflows: tuple[Workflow, ...] = ()
    if order.by == "planner":
        planner = opened(lambda: read_planner(order.file), "order")
        if planner is not None:
            workflows = tuple(planner.tree.workflows)
            problems += _planner_problems(policy, planner)
            if planner.embedder:
                embedders["planner"] = planner.embedder
    elif order.by == "workflow":
        hashed(order.workflow if order.workflow.endswith(".json") else None)
        workflow = opened(lambda: find_workflow(order.workflow), "order")
        workflows = () if workflow is None else (workflow,)
    problems += _model_problems(policy, workflows)
    every: Any = depth.tiers if ladder is None else None
    if ladder is not None:
        every = opened(lambda: read_tiers(Path(ladder)), "depth") or ()
    tiers: tuple[Tier, ...] = ()
    if depth.by == "router":
        router = opened(lambda: read_router(depth.file), "depth")
        if router is not None:
            tiers, embedders["router"] = router.tiers, router.embedder
            if every and every != tiers:
                problems.append(
                    f"depth: '{depth.file}' was trained on other tiers than the policy names: train it with "
                    "`mio-rag policy fit router --policy` and this policy"
                )
    elif depth.by == "tier":
        every = PUBLISHED if every is None else every
        tiers = tuple(tier for tier in every if tier.name == depth.tier)
        if every and not tiers:
            meant = choose(depth.tier, [tier.name for tier in every])
            problems.append(f"depth: tier = {depth.tier!r} is unknown: {meant}")
    if depth.compress is not None:
        size = {"context": _WHOLE} if depth.compress == "none" else {}
        tiers = tuple(tier.replace(compress=depth.compress, **size) for tier in tiers)
    if (graph := search.graph) is not None:
        opened(lambda: Names.of_graph(graph), "search")
    problems += _tier_problems(policy, tiers)
    completeness = None if calibration is None else opened(lambda: read(calibration), "repeat")
    if search.by == "bandit" and Path(search.state).is_file():
        about = opened(lambda: _bandit_about(Path(search.state)), "search")
        if about:
            embedders["bandit"] = about["embedder"]
            hashes[search.state] = sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
            learned = {*about["strategies"].split("+"), *filter(None, about["base"].split("+"))}
            if learned != set(search.strategies):
                problems.append(
                    f"search: '{search.state}' was learned on the strategies {', '.join(sorted(learned))}, "
                    f"and the policy names {', '.join(sorted(search.strategies))}: name the same, or another "
                    "file"
                )
    if closed_book and (order.by == "model" or _searches(workflows)):
        problems.append("this policy searches, and there are no documents: ours/argo-alone needs none")
    if len(set(embedders.values())) > 1:
        told = ", ".join(f"{what} with '{embedder}'" for what, embedder in embedders.items())
        problems.append(f"these were learned with different embedders, and no index fits them all: {told}")
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    found = Resolved(workflows, planner, router, tiers, completeness, embedders, hashes)
    if index is not None:
        found.check(index.embedder.fingerprint)
    return replace(found, sha256=found.digest(policy))


def _searches(workflows: tuple[Workflow, ...]) -> bool:
    return any(node.do == "retrieve" for workflow in workflows for node in workflow.nodes)


def _planner_problems(policy: Policy, planner: Planner) -> list[str]:
    from mio_rag.generation.gguf import PREFIX

    problems, reader = [], policy.models.get(READER)
    if planner.embedder.startswith(PREFIX):
        problems.append(
            "order: this planner looks at the hidden state of a model, which a policy does not open: train "
            "it with --embedder minilm, or on the index"
        )
    priced = reader is not None and reader.is_priced
    if planner.cost == "dollars" and not priced:
        problems.append("order: this planner counts dollars: give [models.reader] input and output")
    price = policy.fixed_price
    if planner.alphas and price is None and policy.order.alpha is None:
        problems.append(
            "order: this planner was trained for some prices, and a total moves the price: train one by "
            "regression, which decides at any"
        )
    elif planner.alphas and price is not None and (planner.cost == "tokens" or priced):
        try:
            planner.checked_alpha(alpha_of(policy, planner, price))
        except InputError as error:
            problems += [f"order: at {price:g} a token: {problem}" for problem in error.problems]
    return problems


def alpha_of(policy: Policy, planner: Planner, price: float) -> float:
    """Return what a planner's unit of cost must be worth at a price of a token."""
    if policy.order.alpha is not None:
        return float(policy.order.alpha)
    if planner.cost == "tokens":
        return price * planner.unit / (planner.weights.tokens or 1.0)
    into, _ = policy.prices.dollars[READER]
    return price * planner.unit * 1e6 / into if into else 0.0


def _model_problems(policy: Policy, workflows: tuple[Workflow, ...]) -> list[str]:
    from mio_rag.session.workflow import workflow_problems

    asked = sorted({name for workflow in workflows for name in workflow.models})
    problems = [
        f"order: {problem}"
        for workflow in workflows
        for problem in workflow_problems(workflow, models=asked, prices=asked)
    ]
    for name in asked:
        model = policy.models.get(name)
        if model is None:
            problems.append(f"order: a workflow asks model '{name}': give [models.{name}] with its spec")
        elif not model.is_priced:
            problems.append(
                f"order: tokens of different models do not add up: give [models.{name}] input and output, "
                "dollars per million tokens"
            )
    reader = policy.models.get(READER)
    if asked and (reader is None or not reader.is_priced):
        problems.append(
            f"order: {', '.join(asked)} is asked besides the reader, and tokens of different models do not "
            "add up: give [models.reader] input and output"
        )
    return problems


def _tier_problems(policy: Policy, tiers: tuple[Tier, ...]) -> list[str]:
    problems, by_program = [], policy.selection.by == "program"
    for tier in tiers:
        where = f"depth: tier '{tier.name}'"
        if tier.unit == "tokens" and tier.context > policy.limits.budget:
            problems.append(
                f"{where} may read {tier.context} tokens, above limits.budget = {policy.limits.budget}: "
                "raise that, or leave the tier out"
            )
        if tier.unit != "tokens" and by_program:
            problems.append(
                f"{where} counts in characters, and the program counts tokens: set selection.by = "
                '"tier", or write tiers with unit = "tokens"'
            )
        if by_program and (tier.rerank or tier.compress != "none"):
            problems.append(
                f"{where} re-ranks or compresses, and the program reads whole passages by its own order: set "
                'selection.by = "tier", or write tiers with compress = "none" and without rerank'
            )
        if tier.depth > policy.search.pool:
            problems.append(
                f"{where} reads {tier.depth} passages, and a search brings {policy.search.pool}: raise "
                "search.pool"
            )
    return problems


def _bandit_about(path: Path) -> dict[str, str]:
    """Return what the log of a bandit is about."""
    from mio_rag.learning.bandit_log import EventLog

    log = EventLog(path)
    try:
        return dict(log.about)
    finally:
        log.close()


# -- allocations ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocating:
    """An allocation as a policy wants it: one total over candidates that were found before.

    selector: without a price of a token, which the total decides.
    total_tokens: of evidence, of all questions together.
    ceiling: most tokens of a question.
    unused: what of the policy has no effect, and why.
    """

    selector: Selector
    total_tokens: int
    ceiling: int
    unused: tuple[str, ...]


def allocating(policy: Policy, base: Selector, total_tokens: int | None = None) -> Allocating:
    """Read a policy as that of an allocation.

    base: whose solver and time limit are taken.
    total_tokens: instead of the policy's price.

    Raises `InputError` with everything that an allocation cannot keep.
    """
    problems = [
        f'{table}: by = "{getattr(policy, table).by}" {why}: set by = "{usual}"'
        for table, usual, why in (
            ("depth", "price", "decides for each question alone, and an allocation shares one total"),
            ("selection", "program", "does not look at a price, by which an allocation shares a total"),
            ("repeat", "never", "searches again, and an allocation has what was found"),
        )
        if getattr(policy, table).by != usual
    ]
    total = policy.price.total if total_tokens is None else total_tokens
    if total is None:
        problems.append("price: an allocation needs a total: give [price] total, or --total-tokens")
    elif total_tokens is None and policy.price.per is not None:
        problems.append(
            f"price: a total every {policy.price.per} is for questions as they come: give "
            "--total-tokens for these"
        )
    if problems:
        raise InputError(problems)
    unused = [
        ("price: the total of this allocation replaces it", total_tokens is not None),
        ("price.state: an allocation has all questions, and needs no pacer",
         total_tokens is None and policy.price.state is not None),
        ("order: nothing is answered", policy.order != WorkflowOrder()),
        ("search: candidates were found before", policy.search != StrategySearch()),
        (f"models {', '.join(policy.models)}: no model is asked", bool(policy.models)),
        ("limits except budget: nothing is answered", True),
    ]  # fmt: skip
    told = tuple(text for text, holds in unused if holds)
    return Allocating(policy.selector(0.0, base), int(total), policy.limits.budget, told)
