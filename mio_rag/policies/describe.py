"""Who decides what under a policy, in words: for text, JSON and pictures alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mio_rag.policy import Policy
from mio_rag.policy.files import Resolved
from mio_rag.session.trace import share
from mio_rag.session.workflow import searches_within


class Line(NamedTuple):
    """One decision.

    decision: price, order, search, depth, selection or repeat.
    who: who takes it.
    how: its settings, in words.
    kind: fixed: the same for every question. priced: it weighs mu. learned: it has learned, and weighs mu
        where it can.
    """

    decision: str
    who: str
    how: str
    kind: str


def price_in_words(policy: Policy) -> str:
    """mu, and what it means for a passage."""
    price, mu = policy.price, policy.fixed_price
    if mu is None:
        each = f" every {price.per}" if price.per else ""
        expected = f", {price.questions:,} questions expected" if price.questions else ""
        return f"by a pacer: {price.total:,} tokens{each} in total{expected}"
    if mu == 0:
        return "0 a token: whatever helps is read, within the limits"
    said = f"{share(mu, 5).rstrip('0')} a token: a passage of 100 tokens must add {share(100 * mu)}"
    return said + (f", since complete evidence is worth ${price.worth:g}" if price.worth is not None else "")


def described(policy: Policy, states: Resolved) -> list[Line]:
    """Return every decision, in the order in which a question meets them."""
    order, depth = _order(policy, states), _amount(policy, states)
    return [order, _search(policy), depth, _reading(policy), _again(policy)]


def _order(policy: Policy, states: Resolved) -> Line:
    names = [workflow.name for workflow in states.workflows]
    if states.planner is not None:
        listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        again = "" if states.planner.tree.mode == "once" else ", again after every step"
        how = f"chooses among {listed}{again}{_within(policy, states)}"
        return Line("order", f"planner {_file(policy.order.file)}", how, "learned")
    if policy.order.by == "model":
        how = "under a grammar" if policy.order.grammar else "freely; what is no workflow becomes plain"
        return Line("order", "the reader", f"writes the workflow {how}", "fixed")
    steps = ", ".join(node.do for node in states.workflows[0].nodes)
    return Line("order", f"workflow {names[0]}", f"{steps}{_within(policy, states)}", "fixed")


def _within(policy: Policy, states: Resolved) -> str:
    """What holds for sub-questions, where a workflow has any: not all of it is as for the question."""
    if not any(searches_within(node) for workflow in states.workflows for node in workflow.nodes):
        return ""
    search = policy.search
    by = "" if search.strategies == ("raw",) else f"searched for by {', '.join(search.strategies)} and "
    if search.by == "bandit":
        by = "searched for by what the bandit chooses for the question and "
    return f"; sub-questions are {by}read by the program, with neither tier nor further searches"


def _search(policy: Policy) -> Line:
    search = policy.search
    listed, depth = ", ".join(search.strategies), f"{search.pool} candidates"
    if search.by == "bandit":
        return Line("search", f"bandit {_file(search.state)}", f"chooses among {listed}; {depth}", "learned")
    who = "the question as it is" if search.strategies == ("raw",) else f"strategies {listed}"
    return Line("search", who, depth, "fixed")


def _amount(policy: Policy, states: Resolved) -> Line:
    most = f"at most {policy.limits.budget:,} tokens of evidence"
    names = ", ".join(tier.name for tier in states.tiers)
    if states.router is not None:
        sees = "" if states.router.kind == "utility" else "; it keeps its own signal, not the price"
        who = f"router {_file(policy.depth.file)}"
        return Line("depth", who, f"chooses among {names}; {most}{sees}", "learned")
    if states.tiers:
        tier = states.tiers[0]
        said = f"{tier.depth} passages, {tier.context:,} {tier.unit}, {tier.new_tokens} tokens of answer"
        return Line("depth", f"tier {tier.name}", said, "fixed")
    said = f"{most}, {policy.limits.max_tokens} of answer"
    fills = policy.selection.by == "ranking"
    return Line("depth", "the limit" if fills else "the price", said, "fixed" if fills else "priced")


def _reading(policy: Policy) -> Line:
    reading = policy.selection
    if reading.by == "ranking":
        return Line("selection", "ranking", "reciprocal rank fusion, until the limit is reached", "fixed")
    if reading.by == "tier":
        return Line("selection", "the tier's rule", "its order and its compression", "fixed")
    changed = ", ".join(f"{name} {value}" for name, value in reading.settings.items())
    how = f"preset {reading.preset}" + (f", {changed}" if changed else "")
    return Line("selection", "the exact program", how, "priced")


def _again(policy: Policy) -> Line:
    repetition = policy.repeat
    if repetition.by == "never":
        return Line("repeat", "never", "one search", "fixed")
    by = (
        "the question with the best passage read"
        if repetition.query == "feedback"
        else "a query by the reader"
    )
    more = "one more search" if repetition.most == 1 else f"up to {repetition.most} more searches"
    signal = "complete" if repetition.by == "price" else repetition.signal  # a price weighs probabilities
    if repetition.from_start:
        more = "searches and notes from the question on"
    how = f"{more}, by {by}; what is missing is judged by {signal}"
    named = {"price": "the price", "process": "decision process at the price"}
    kind = "priced" if repetition.by in named else "fixed"
    return Line("repeat", named.get(repetition.by, f"rule {repetition.rule}"), how, kind)


def constants(policy: Policy) -> dict[str, Mapping[str, Any]]:
    """Table -> the constants that a policy gives to what has learned or plans."""
    tables = {"search.bandit": policy.search, "repeat.process": policy.repeat}
    found = {name: getattr(table, name.partition(".")[2], None) for name, table in tables.items()}
    return {name: one for name, one in found.items() if isinstance(one, Mapping)}


def _file(path: str | None) -> str:
    return "" if path is None else Path(path).name


def policy_json(policy: Policy, states: Resolved) -> dict[str, Any]:
    """Plain data of `described`, with the settings and all hashes."""
    return {
        "name": policy.name,
        "about": policy.about,
        "sha256": states.sha256,
        "price": price_in_words(policy),
        "token_price": policy.fixed_price,
        "decisions": [line._asdict() for line in described(policy, states)],
        "files": dict(states.hashes),
        "embedders": dict(states.embedders),
        "policy": policy.to_dict(),
    }
