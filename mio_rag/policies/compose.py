"""A policy as a session: a row of deciders for its five decisions, at one price."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mio_rag.allocation.pacer import FIRST_PRICE, Pacer
from mio_rag.deciders.planner import LanguagePlanner, Planner
from mio_rag.deciders.repeat import Repeat, Rule, by_price, by_process, published
from mio_rag.deciders.steps import Depth, OneTier, Order, Price, Search
from mio_rag.errors import InputError
from mio_rag.learning.bandit import BanditSettings
from mio_rag.learning.router_model import Deciding
from mio_rag.learning.rules import make_policy
from mio_rag.learning.strategist import Chooser, Fixed, Strategist, StrategyLearner
from mio_rag.policies.setup import ControlSettings, Kind, Setup
from mio_rag.policy import Policy
from mio_rag.policy.files import Resolved, alpha_of, resolve
from mio_rag.policy.keys import load_policy
from mio_rag.policy.tables import READER
from mio_rag.retrieval.retriever import Retriever
from mio_rag.session.budget import Models
from mio_rag.session.loop import Account, Session
from mio_rag.session.search import SearchSettings, StrategySettings, make_strategies
from mio_rag.session.tools import Equipment, asks


def pacer_of(policy: Policy) -> Pacer | None:
    """The pacer of a policy with a total; None: its price is fixed."""
    price = policy.price
    if price.total is None:
        return None
    path = None if price.state is None else Path(price.state)
    return Pacer(price.total, price.questions, price.per, path=path, most=policy.limits.max_total_tokens)


def compose(
    policy: Policy,
    setup: Setup,
    name: str | None = None,
    states: Resolved | None = None,
    pacer: Account | None = None,
    models: Models | None = None,
) -> Session:
    """The session of a policy.

    setup: its retriever gives the index and the tokenizer, its selector the solver and the time limit; its
        limits lower those of the policy, except where they are the defaults; the policy decides the rest.
    name: as the ledger shows it; by default that of the policy.
    states: what its files hold, where they have been read.
    pacer: keeps the policy's total, where it is not to be opened here.
    models: those of `specs_of`, where they are not to be opened here.

    Raises `InputError` as `resolve`; also for an index that does not fit what was learned, or lacks links
    that a strategy needs.
    """
    found = resolve(policy, closed_book=setup.retriever is None) if states is None else states
    fixed = policy.fixed_price
    retriever: Retriever | None = None
    chooser: Chooser | None = None
    told = {"policy": policy.to_dict(), "sha256": found.sha256, "seed": int(setup.seed)}
    if setup.retriever is not None:
        index = setup.retriever.index
        found.check(index.embedder.fingerprint)
        retriever = Retriever.of(index, policy.search.retrieval, setup.retriever.counter)
        _check_links(policy, retriever)
        if policy.search.by == "bandit":
            price = FIRST_PRICE if fixed is None else fixed
            learning = BanditSettings(**policy.search.bandit, token_price=price, seed=setup.seed)
            path, names, graph = Path(policy.search.state), policy.search.strategies, policy.search.graph
            told["bandit"] = learning.to_dict()
            chooser = Strategist(path, names, learning, index.embedder.fingerprint, graph=graph)
        elif policy.search.strategies != ("raw",):
            chooser = Fixed(policy.search.strategies)
    program = policy.selector(fixed or 0.0, setup.selector)
    kit = Equipment(
        retriever,
        program,
        policy.selection.by,
        SearchSettings(writing=StrategySettings(graph=policy.search.graph)),
        judges=True,
        completeness=found.completeness,
    )
    plan = _plan(policy, found, setup)
    depth = _depth(policy, found)
    repeat = _repeat(policy, setup)
    search = [] if chooser is None else [Search(chooser)]
    longest = max((tier.new_tokens for tier in found.tiers), default=policy.limits.max_tokens)
    return Session(
        name or f"policy:{policy.name}",
        (plan, *search, *repeat, Price(), *depth),
        plan,
        kit,
        0.0 if fixed is None else fixed,
        lambda selector, price: policy.selector(price, setup.selector),
        policy.ends.lowered(setup.settings.limits),
        policy.limits.budget,
        longest,
        policy.temperatures,
        Models(specs_of(policy)) if models is None else models,
        pacer_of(policy) if pacer is None else pacer,
        StrategyLearner(chooser, program) if isinstance(chooser, Strategist) else None,
        settings={**told, **_replayed(policy, setup)},
        always_asks=_asks_more(policy, found, chooser),
    )


def _plan(policy: Policy, found: Resolved, setup: Setup) -> Any:
    if policy.order.by == "model":
        return LanguagePlanner(not policy.order.grammar)
    planner = found.planner
    if planner is None:
        return Order(found.workflows[0])
    encoder = setup.retriever.index.embedder if planner.embedder and setup.retriever is not None else None
    return Planner(planner, lambda price: alpha_of(policy, planner, price), encoder, policy.prices)


def _depth(policy: Policy, found: Resolved) -> list[Depth]:
    if policy.depth.by == "price":
        return []
    by_program = policy.selection.by == "program"
    if found.router is None:
        return [Depth(found.tiers, OneTier(), None, by_program)]
    chooser = Deciding(found.router, None, policy.depth.unsure)
    correction = found.router.correction if policy.depth.correct else None
    return [Depth(found.tiers, chooser, correction, by_program)]


def _repeat(policy: Policy, setup: Setup) -> list[Repeat]:
    again, seed, closed = policy.repeat, setup.seed, setup.retriever is None
    rule: Rule
    if again.by == "never":
        return []
    if again.by == "price":
        rule = by_price
    elif again.by == "process":
        rule = by_process(again.finds, again.most, again.signal)
    else:
        rule = published(make_policy(again.rule, again.model, seed=seed, closed_book=closed))
    given: dict[str, Any] = {"query_tokens": again.query_tokens, "query_temperature": again.query_temperature}
    if again.by == "rule":
        given |= {"model": again.model, "note_tokens": again.note_tokens, "max_notes": again.notes}
        given |= {"from_start": again.from_start, "closed_book": closed}
    return [Repeat(rule, again.signal, again.query, again.finds, again.most, seed=seed, **given)]


def _replayed(policy: Policy, setup: Setup) -> dict[str, Any]:
    """What a trace needs besides, so that the decisions of a rule can be made again."""
    again = policy.repeat
    if again.by != "rule" or not again.from_start:
        return {}
    told = ControlSettings(model=again.model).to_dict()
    told |= {"rule": again.rule, "gauge": again.signal, "closed_book": setup.retriever is None}
    return {name: told[name] for name in ("rule", "gauge", "model", "stop_at", "closed_book")}


def _asks_more(policy: Policy, found: Resolved, chooser: Chooser | None) -> bool:
    """Whether a question may ask a model for anything but its answer."""
    nodes = [node for workflow in found.workflows for node in workflow.nodes if node.do != "answer"]
    steps = any(node.do not in ("retrieve", "select") or asks(node.do, node.settings) for node in nodes)
    repeats = policy.repeat.by != "never" and policy.repeat.query == "model"
    thinks = policy.repeat.by == "rule" or policy.order.by == "model"
    return steps or chooser is not None or repeats or thinks


def specs_of(policy: Policy) -> dict[str, str]:
    """The generators that workflows of a policy may ask besides the reader."""
    return {key: str(model.spec) for key, model in policy.models.items() if key != READER}


def _check_links(policy: Policy, retriever: Retriever) -> None:
    how = StrategySettings(graph=policy.search.graph)
    linked = [one.name for one in make_strategies(policy.search.strategies, how) if one.needs_links]
    if linked and retriever.index.links is None:
        raise InputError(
            f"search: {', '.join(linked)} needs an index with evidence links: build it again with `mio-rag "
            "index DATA --out INDEX --overwrite`, or leave it out"
        )


def _check(name: str, settings: ControlSettings, closed_book: bool) -> None:
    resolve(load_policy(_given(name)), closed_book=closed_book)


def _make(name: str, setup: Setup) -> Session:
    return compose(load_policy(_given(name)), setup, name)


def _given(name: str) -> str:
    stem, _, given = name.partition(":")
    if not given:
        raise InputError(f"controller '{name}' names no policy: for instance {stem}:balanced")
    return given


#: As `mio_rag.policies.make` registers it.
KIND = Kind("policy", _make, _check, rival=False)
