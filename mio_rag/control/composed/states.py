"""What a policy has learned, and whether it fits together: planner, router, tiers, the log of a bandit.

Small files are read here, and nothing else: no index, no model, no question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import TypeVar

from mio_rag.control.composed.parts import READER
from mio_rag.control.composed.policy import FILES, Policy
from mio_rag.control.planner.policy import Planner, read_planner
from mio_rag.control.router.model import Router, read_router
from mio_rag.deciders.workflow import Workflow, find_workflow, workflow_problems
from mio_rag.errors import InputError, choose
from mio_rag.generation import file_of
from mio_rag.generation.hidden import PREFIX
from mio_rag.learning.bandit_log import EventLog
from mio_rag.relevance.complete import Completeness, read
from mio_rag.session.tiers import PUBLISHED, Tier, read_tiers

__all__ = ["States", "read_states"]

_CHUNK = 1 << 23

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class States:
    """What the files of a policy hold.

    Parameters
    ----------
    workflows : tuple of Workflow
        Those that may run.
    tiers : tuple of Tier
        Those that may be read at; none by the price alone.
    completeness : Completeness or None
        Of one's own questions; None: that which ships.
    embedders : mapping of str to str
        Who was learned with which embedder, by fingerprint.
    hashes : mapping of str to str
        File -> SHA-256 of its content; of a bandit, which goes on learning, of what its log is about.
    sha256 : str
        Of the policy with all of these, as `digest`.
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
        """Of a policy with what these files hold, wherever they lie.

        Files that go on, a bandit's log and the count of a total, are no part of it: a run would change it.
        """
        said = {key: value for key, value in policy.to_dict().items() if key not in ("name", "about")}
        for table, key in FILES:
            if file := said[table].get(key):
                said[table][key] = "" if key == "state" else self.hashes[file]
        said["order"]["workflow"] = [workflow.sha256 for workflow in self.workflows]
        return sha256(dumps(said, sort_keys=True).encode()).hexdigest()

    def check(self, embedder: str) -> None:
        """Raise `InputError` for an index with another embedder than something was learned with."""
        problems = [
            f"the {who} was trained with the embedder '{learned}', and the index embeds by '{embedder}': "
            "train it on an index with this embedder"
            for who, learned in self.embedders.items()
            if learned != embedder
        ]
        if problems:
            raise InputError(problems)


def read_states(policy: Policy, closed_book: bool = False) -> States:
    """Open the files of a policy, and hold them against it and against each other.

    Raises
    ------
    InputError
        With everything that is wrong: files that are missing, damaged or not those of the given hashes, tiers
        above the limits, workflows without their models, learned parts of different embedders or strategies.
    """
    problems: list[str] = []
    hashes: dict[str, str] = {}
    embedders: dict[str, str] = {}

    def hashed(file: str | None, expected: str | None) -> None:
        if file is None or not Path(file).is_file():
            return  # whoever reads it says so
        found = hashes[file] = _content(Path(file))
        if expected is not None and found != expected:
            problems.append(f"'{file}' has the content {found[:12]}..., and {expected[:12]}... is wanted")

    hashed(policy.order.file, policy.order.sha256)
    hashed(policy.amount.file, policy.amount.sha256)
    hashed(policy.amount.tiers, None)
    hashed(policy.repetition.calibration, None)
    hashed(policy.order.workflow if policy.order.workflow.endswith(".json") else None, None)
    for model in policy.models.values():
        if model.sha256 is not None:
            hashed(str(file_of(str(model.spec))), model.sha256)

    def opened(read: Callable[[], T], where: str) -> T | None:
        try:
            return read()
        except InputError as error:
            problems.extend(f"{where}: {problem}" for problem in error.problems)
            return None

    planner = router = None
    workflows: tuple[Workflow, ...] = ()
    if policy.order.by == "planner":
        planner = opened(lambda: read_planner(str(policy.order.file)), "order")
        if planner is not None:
            workflows = tuple(planner.tree.workflows)
            problems += _planner_problems(policy, planner)
            if planner.embedder:
                embedders["planner"] = planner.embedder
    else:
        workflow = opened(lambda: find_workflow(policy.order.workflow), "order")
        workflows = () if workflow is None else (workflow,)
    problems += _workflow_problems(policy, workflows)
    tiers: tuple[Tier, ...] = ()
    if policy.amount.by == "router":
        router = opened(lambda: read_router(str(policy.amount.file)), "amount")
        if router is not None:
            tiers, embedders["router"] = router.tiers, router.embedder
    elif policy.amount.by == "tier":
        given = policy.amount.tiers
        every = PUBLISHED if given is None else opened(lambda: read_tiers(Path(given)), "amount") or ()
        tiers = tuple(tier for tier in every if tier.name == policy.amount.tier)
        if every and not tiers:
            meant = choose(policy.amount.tier, [tier.name for tier in every])
            problems.append(f"amount: tier = {policy.amount.tier!r} is unknown: {meant}")
    problems += _tier_problems(policy, tiers)
    own = policy.repetition.calibration
    completeness = None if own is None else opened(lambda: read(own), "repetition")
    if policy.search.by == "bandit":
        about = opened(lambda: _bandit_about(Path(str(policy.search.state))), "search") or {}
        if about:
            embedders["bandit"] = about["embedder"]
            hashes[str(policy.search.state)] = sha256(dumps(about, sort_keys=True).encode()).hexdigest()
            problems += _bandit_problems(policy, about)
    if closed_book and any(node.do == "retrieve" for w in workflows for node in w.nodes):
        problems.append("this policy searches, and a closed-book run has no corpus")
    if len(set(embedders.values())) > 1:
        told = ", ".join(f"{who} with '{embedder}'" for who, embedder in embedders.items())
        problems.append(f"these were learned with different embedders, and no index fits them all: {told}")
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    found = States(workflows, planner, router, tiers, completeness, embedders, hashes)
    return replace(found, sha256=found.digest(policy))


def _content(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _planner_problems(policy: Policy, planner: Planner) -> list[str]:
    problems = []
    if planner.embedder.startswith(PREFIX):
        problems.append(
            "order: this planner looks at the hidden state of a model, which a policy does not open: train "
            "it with --embedder minilm, or on the index"
        )
    reader = policy.models.get(READER)
    priced = reader is not None and reader.is_priced
    if planner.cost == "dollars" and not priced:
        problems.append("order: this planner counts dollars: give [models.reader] input and output")
    mu = policy.fixed_price
    if planner.alphas and mu is None:
        problems.append(
            "order: this planner was trained for some prices, and a total moves the price: train one by "
            "regression, which decides at any"
        )
    elif planner.alphas and mu is not None and (planner.cost == "tokens" or priced):
        try:
            planner.checked_alpha(alpha_of(policy, planner, mu))
        except InputError as error:
            problems += [f"order: at {mu:g} a token: {problem}" for problem in error.problems]
    return problems


def alpha_of(policy: Policy, planner: Planner, mu: float) -> float:
    """What a planner's unit of cost must be worth at a price of a token."""
    if planner.cost == "tokens":
        return mu * planner.unit
    into, _ = policy.prices.dollars[READER]
    return mu * planner.unit * 1e6 / into if into else 0.0


def _workflow_problems(policy: Policy, workflows: tuple[Workflow, ...]) -> list[str]:
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
            f"order: {', '.join(asked)} is asked beside the reader, and tokens of different models do not "
            "add up: give [models.reader] input and output"
        )
    return problems


def _tier_problems(policy: Policy, tiers: tuple[Tier, ...]) -> list[str]:
    problems = []
    for tier in tiers:
        where = f"amount: tier '{tier.name}'"
        if tier.unit == "tokens" and tier.context > policy.limits.evidence_tokens:
            problems.append(
                f"{where} may read {tier.context} tokens, above limits.evidence_tokens = "
                f"{policy.limits.evidence_tokens}: raise that, or leave the tier out"
            )
        if tier.unit != "tokens" and policy.reading.by == "program":
            problems.append(
                f'{where} counts in characters, and the program counts tokens: read by = "tier", or write '
                'tiers with unit = "tokens"'
            )
        if policy.reading.by == "program" and (tier.rerank or tier.compress != "none"):
            problems.append(
                f"{where} re-ranks or compresses, and the program reads whole passages by its own order: "
                'read by = "tier", or write tiers with compress = "none" and without rerank'
            )
        if tier.depth > policy.search.pool:
            problems.append(
                f"{where} reads {tier.depth} passages, and a search brings {policy.search.pool}: raise "
                "search.pool"
            )
    return problems


def _bandit_about(path: Path) -> dict[str, str]:
    """What the log of a bandit says of itself; nothing where there is none yet."""
    if not path.is_file():
        return {}
    log = EventLog(path)
    try:
        return dict(log.about)
    finally:
        log.close()


def _bandit_problems(policy: Policy, about: Mapping[str, str]) -> list[str]:
    learned = {*about["strategies"].split("+"), *filter(None, about["base"].split("+"))}
    wanted = set(policy.search.strategies)
    if learned == wanted:
        return []
    return [
        f"search: '{policy.search.state}' was learned on the strategies {', '.join(sorted(learned))}, and "
        f"the policy names {', '.join(sorted(wanted))}: name the same, or another file"
    ]
