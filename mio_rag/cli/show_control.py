"""What people see of controllers, plans, policies, routers, strategies and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from mio_rag.cli.show import Field, print_fields, print_passage
from mio_rag.cli.terminal import Terminal, styled
from mio_rag.learning.rules import decided, open_actions
from mio_rag.policies.describe import described, price_in_words

if TYPE_CHECKING:
    from mio_rag.evaluation.tiers import Labelled
    from mio_rag.learning.bandit_report import Replay
    from mio_rag.learning.mdp import Plan, Segment, Sensitivity, Structure
    from mio_rag.learning.mdp_calibration import Calibration, Estimate
    from mio_rag.learning.outcomes import Outcomes
    from mio_rag.learning.planner_training import Point
    from mio_rag.learning.router_model import Router
    from mio_rag.policy import Policy
    from mio_rag.policy_files import Resolved
    from mio_rag.session.trace import Trace
    from mio_rag.session.workflow import Workflow


# -- control ---------------------------------------------------------------------------------------------

_SHOWN = 6  # segments of a step, before the rest is counted
_WHAT = 120  # characters of what a step searched for: small models write on and on; JSON has all of it


def _cut(text: str) -> str:
    return text if len(text) <= _WHAT else f"{text[:_WHAT].rstrip()} ..."


def _rule(segments: Sequence[Segment]) -> str:
    shown = [f"{s.actions[0]} {s.start:.4g}\u2013{s.end:.4g}" for s in segments[:_SHOWN]]
    more = f", and {len(segments) - _SHOWN} more" if len(segments) > _SHOWN else ""
    return ", ".join(shown) + more


def print_plan(console: Terminal, plan: Plan, shape: Structure, changes: Sequence[Sensitivity]) -> None:
    """The policy step by step, what is odd about it, and what each parameter does to it."""
    table = _table("step", "over U", left=2)
    for step, segments in enumerate(shape.segments):
        table.add_row("every" if plan.model.horizon is None else str(step), _rule(segments))
    console.print(table)
    solution = plan.solution
    console.print(
        f"{solution.method}: values within {solution.error:.2g} of the grid's optimum, "
        f"V(1) = {plan.values()[-1]:.4f}"
        + (f", grid within {plan.grid_error.at_points:.2g}" if plan.grid_error else "")
    )
    _print_notes(console, shape.warnings)
    tied = sum(bool(step) for step in shape.ties)
    if tied:
        console.print(
            f"actions tie somewhere in {tied} of {plan.steps} steps (--json lists where)", style="dim"
        )
    moved = _table("parameter", "times", "policy moved", "value")
    for row in changes:
        name = "1 - discount" if row.parameter == "discount" else row.parameter
        moved.add_row(name, f"{row.factor:g}", f"{row.changed:.1%}", f"{row.value_change:.4f}")
    console.print()
    console.print(moved)


def _print_notes(console: Terminal, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(styled(("note:", "yellow"), f" {note}"), soft_wrap=True)


def _table(*titles: str, left: int = 1) -> Table:
    """A plain table; the first columns hold text, the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        table.add_column(
            title,
            justify="left" if place < left else "right",
            overflow="fold",
        )
    return table


def print_run(console: Terminal, trace: Trace) -> None:
    """What was read, every step with what it brought and cost, and how a question ended."""
    from mio_rag.session.trace import asked_by_model

    found, signal = trace.search.get("found_by", {}), trace.about.get("signal")
    console.print()
    for place, passage in enumerate(trace.passages, 1):
        ranks = found.get(passage["id"])
        said = found_by(ranks) if ranks else ""
        print_passage(
            console, place, passage["title"], passage["id"], passage["tokens"], passage["text"], said
        )
    if trace.passages:
        console.print()
    if "policy" in trace.settings:
        console.print(trace.explain(), soft_wrap=True)
    elif signal is not None:
        _print_process(console, trace)
    else:
        _print_steps(console, trace)
    for strategy, queries in trace.search.get("queries", {}).items():
        if queries:
            console.print(f"{strategy} searched for: {_cut(' | '.join(queries))}")
    _print_notes(console, trace.search.get("notes", ()))
    if trace.search.get("id"):
        console.print(f"id for feedback: {trace.search['id']}", style="dim", soft_wrap=True)
    if trace.fallback is not None:
        console.print(f"answered another way: {trace.fallback}", style="yellow", soft_wrap=True)
    if trace.error is not None:
        console.print(trace.error, style="red", soft_wrap=True)
    asked = asked_by_model(trace)
    each = ", ".join(f"{name} {into} + {out}" for name, (into, out) in asked.items())
    by = f"; prompt and answer tokens by model: {each}" if len(asked) > 1 else ""
    gauge = "" if signal is None else f", U {signal}"
    console.print(f"{trace.spent()}, {trace.seconds:.2f} s; {trace.policy}{gauge}{by}", soft_wrap=True)
    console.print(f"ended: {trace.ended}{'' if signal is None else _end(trace)}")


def _print_steps(console: Terminal, trace: Trace) -> None:
    costs, is_workflow = trace.by_step(), "workflow" in trace.settings
    table = _table("step", "does", "gave", "tokens", "s", left=3)
    for step in trace.steps:
        if "/" in step.id and not is_workflow:
            continue
        spent = costs[step.id]
        gave = (
            (step.output if is_workflow else _cut(step.why))
            if step.dropped is None
            else f"dropped: {step.dropped}"
        )
        does = f"{step.do} by {step.model}" if step.model else step.do
        tokens = spent.prompt_tokens + spent.completion_tokens
        table.add_row(step.id, does, gave, str(tokens or ""), f"{spent.seconds:.2f}")
    console.print(table)


def _print_process(console: Terminal, trace: Trace) -> None:
    """Every action with U before and after, and the worth of the actions."""
    steps, closed_book = decided(trace), bool(trace.settings["closed_book"])
    if not steps:
        return
    table = _table("step", "action", "what", "new", "U", "then", "Q", "s", left=3)
    for k, one in enumerate(steps):
        step = one.step
        possible = open_actions([before.step for before in steps[:k]], closed_book, step.closed)
        table.add_row(
            str(k),
            step.action,
            _cut(step.query or step.note or "(nothing new)"),
            str(len(step.new_ids)) if step.action == "retrieve" else "",
            f"{one.uncertainty:.3f}",
            f"{one.next_uncertainty:.3f}",
            _worth(one.q_values, possible),
            f"{sum(call.seconds for call in one.calls):.2f}",
        )
    console.print(table)


def _end(trace: Trace) -> str:
    """U in the end, and why nothing more was done."""
    steps, closed = [one.step for one in decided(trace)], tuple(trace.about.get("closed") or ())
    possible = open_actions(steps, bool(trace.settings["closed_book"]), closed)
    worth = _worth(trace.about.get("q_values"), possible)
    level = float(trace.about.get("uncertainty", 1.0))
    return f", at U = {level:.3f}" + (f"; {worth}" if worth and trace.ended == "stop" else "")


def _worth(q_values: Mapping[str, float] | None, possible: Sequence[str]) -> str:
    """The worth of each action; in brackets those that could bring nothing new, and were not to be taken."""
    shown = [(action, f"{action} {q:.3f}") for action, q in (q_values or {}).items()]
    return " ".join(text if action in possible else f"({text})" for action, text in shown)


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "\u2013"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f} (too few questions for an interval, n = {estimate.n})"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f}, n = {estimate.n})"


def print_calibration(console: Terminal, found: Calibration, shapes: Mapping[str, Structure]) -> None:
    """Estimates with intervals, for all U and by bins; the assumptions; the first decision before and
    after."""
    console.print(
        f"{found.retrievals} retrievals and {found.reasonings} reasoning steps on {found.questions} "
        f"questions, U by {found.gauge}\n"
    )
    table = _table("U", "p_s", "delta_r", "delta_p", left=4)
    table.add_row(
        "all", _interval(found.success), _interval(found.retrieve_drop), _interval(found.reason_drop)
    )
    for part in found.bins:
        table.add_row(
            f"{part.low:.2f}\u2013{part.high:.2f}",
            _interval(part.success),
            _interval(part.retrieve_drop),
            _interval(part.reason_drop),
        )
    console.print(table)
    console.print(
        f"costs: retrieve {_interval(found.retrieve_cost)}, reason {_interval(found.reason_cost)}\n"
    )
    for check in found.checks:
        said = {None: ("too few data", "dim"), True: ("violated", "red"), False: ("not violated", "")}
        value = "" if check.value is None else f" ({check.value:.2f}, n = {check.n})"
        console.print(styled(f"{check.name}: ", said[check.violated], value))
    _print_notes(console, found.notes)
    console.print()
    rules = _table("process", "first decision over U", left=2)
    for name, shape in shapes.items():
        rules.add_row(name, _rule(shape.segments[0]))
    console.print(rules)
    _print_notes(console, shapes["calibrated"].warnings)


# -- plan ------------------------------------------------------------------------------------------------

_MEASURES = (
    "token_f1",
    "exact_match",
    "evidence",
    "tokens",
    "lm_calls",
    "retrieval_calls",
    "dollars",
    "seconds",
)


def print_named(console: Terminal, workflows: Mapping[str, Workflow]) -> None:
    """All workflows, one a line."""
    lines = _table("workflow", "steps", left=2)
    for workflow in workflows.values():
        lines.add_row(workflow.name, ", ".join(_step(node.do, node.settings) for node in workflow.nodes))
    console.print(lines)


def print_planner(console: Terminal, about: Mapping[str, Any]) -> None:
    """What a planner decides, at which prices, and what it learned from."""
    span = ", ".join(f"{alpha:g}" for alpha in about["alphas"]) or "any"
    when = "before the first step" if about["mode"] == "once" else "before every step"
    lines = _table("planner", f"{about['method']}, decides {when}", left=2)
    for name, said in (
        ("chooses from", ", ".join(about["workflows"])),
        ("alphas", span),
        ("a cost of 1", f"{about['unit']:.4g} {about['cost']}"),
        ("questions are embedded by", about["embedder"] or "nothing"),
        (
            "learned from",
            f"{about.get('questions', '?')} questions, answered by {about.get('generator', '?')}",
        ),
    ):
        lines.add_row(name, said)
    console.print(lines)


def _step(do: str, settings: Mapping[str, object]) -> str:
    told = [
        str(value) if isinstance(value, str) else f"{name.replace('_', ' ')} {value:g}"
        for name, value in settings.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    ]
    return f"{do} ({', '.join(told)})" if told else do


def print_points(console: Terminal, points: Sequence[Point]) -> None:
    """Policies and fixed workflows: quality, cost, and what a mixture of fixed ones has at that cost."""
    lines = _table("who", "alpha", "quality", "cost", "reward", "fixed at cost", "gain", "95 %")
    for point in points:
        lines.add_row(
            point.name,
            *(f"{value:.3f}" for value in (point.alpha, point.quality, point.cost, point.reward)),
            f"{point.fixed:.3f}",
            f"{point.gain:+.3f}",
            f"{point.low:+.3f} to {point.high:+.3f}",
        )
    console.print(lines)
    for point in points:
        if len(point.shares) > 1:
            told = sorted(point.shares.items(), key=lambda item: -item[1])
            said = ", ".join(f"{name} {share:.0%}" for name, share in told)
            console.print(f"{point.name} at {point.alpha:g}: {said}", style="dim", soft_wrap=True)
    console.print(_verdict(points), soft_wrap=not console.is_terminal)


def _verdict(points: Sequence[Point]) -> str:
    """Where the planner is worth having, by the intervals."""
    planned = [point for point in points if point.name == "planner"]
    better = [f"{point.alpha:g}" for point in planned if point.low > 0]
    worse = [f"{point.alpha:g}" for point in planned if point.high < 0]
    if better:
        said = (
            "the planner has more than any mixture of fixed workflows at its cost for alpha "
            f"{', '.join(better)}"
        )
    else:
        said = (
            "at no price the planner clearly has more than a mixture of fixed workflows at its cost: "
            "use one of these, or learn from more questions"
        )
    return said + (f"; clearly less for alpha {', '.join(worse)}" if worse else "")


def _figure(mean: float) -> str:
    """Three digits behind the point; none of large numbers, more of dollars."""
    if mean >= 10:
        return f"{mean:.0f}"
    return f"{mean:.3g}" if 0 < mean < 1e-3 else f"{mean:.3f}"


def print_table(console: Terminal, table: Outcomes) -> None:
    """Means of every workflow, over the questions of the table."""
    shown = [measure for measure in _MEASURES if measure in table.values]
    lines = _table("workflow", *shown)
    for place, name in enumerate(table.actions):
        means = [float(np.nanmean(table.values[measure][:, place])) for measure in shown]
        lines.add_row(name, *map(_figure, means))
    console.print(lines)
    console.print(f"{len(table)} questions", style="dim")


# -- policy ----------------------------------------------------------------------------------------------


def print_presets(console: Terminal, presets: Mapping[str, str]) -> None:
    """The policies that ship, one a line."""
    lines = _table("policy", "what it is for", left=2)
    for name, said in presets.items():
        lines.add_row(name, said)
    console.print(lines)


def print_policy(console: Terminal, policy: Policy, states: Resolved) -> None:
    """Who decides what, the price, the limits, models and files."""
    console.print(policy.name, style="bold")
    if policy.about:
        console.print(policy.about, soft_wrap=True, markup=False)
    lines = _table("decision", "who", "how", left=3)
    lines.add_row("price", "one for all", price_in_words(policy))
    for line in described(policy, states):
        lines.add_row(line.decision, line.who, line.how)
    limits = policy.limits
    lines.add_row(
        "limits",
        "every question",
        f"{limits.max_total_tokens:,} tokens, {limits.max_steps} steps of a model, {limits.timeout:g} s",
    )
    console.print()
    console.print(lines)
    for name, model in policy.models.items():
        dollars = f"${model.input:g} in, ${model.output:g} out per million tokens" if model.is_priced else ""
        console.print(f"model {name}: {', '.join(filter(None, [model.spec, dollars]))}", soft_wrap=True)
    for file, digest in states.hashes.items():
        console.print(f"{file}: {digest[:12]}", style="dim", soft_wrap=True)
    console.print(f"content {states.sha256[:12]}", style="dim")


# -- router ----------------------------------------------------------------------------------------------


def print_labels(console: Terminal, found: Labelled) -> None:
    """Each tier: how many questions need it, how often it does, and what it costs."""
    table = found.table
    console.print(
        f"{len(table)} questions labelled; left out: {found.unlabelled} without gold, "
        f"{found.failed} on which a tier failed"
    )
    needed = np.bincount(table.labels, minlength=len(table.tiers))
    costs = table.costs()
    print_fields(
        console,
        [Field("tier", [tier.name for tier in table.tiers], "left")],
        [
            Field("needed by", [f"{count} ({count / len(table):.0%})" for count in needed]),
            Field("does for", [f"{share:.3f}" for share in table.worked.mean(axis=0)]),
            Field("tokens", [f"{tokens:.0f}" for tokens in costs[:, 0]]),
            Field("seconds", [f"{seconds:.2f}" for seconds in costs[:, 1]]),
        ],
    )
    if none := found.unanswered:
        does = "reads the evidence of" if table.by == ("evidence",) else "answers"
        rule = table.outcomes.provenance.get("unanswered")
        console.print(
            f"no tier {does} {none} ({none / len(table):.0%}) of the questions; which tier these are counted "
            f"under follows the rule '{rule}' (--unanswered)"
        )


def print_router(console: Terminal, router: Router) -> None:
    """Tiers and their use, then everything that was measured out of fold."""
    said, measures = router.provenance, router.measures
    console.print(f"{router.kind} router of {said.get('questions', '?')} questions, by {router.features}")
    console.print(
        f"labels by {', '.join(said.get('by', []))}; sets: "
        + ", ".join(f"{count} {name}" for name, count in said.get("sets", {}).items()),
        style="dim",
    )
    if router.correction is not None:
        console.print(
            f"searches with no cosine of {router.correction.below:.3f} are weak: {router.correction.more} "
            "passages more are read; what follows was measured without them"
        )
    print_fields(
        console,
        [Field("tier", [tier.name for tier in router.tiers], "left")],
        [
            Field("depth", [str(tier.depth) for tier in router.tiers]),
            Field("context", [f"{tier.context} {tier.unit}" for tier in router.tiers]),
            Field("answer", [str(tier.new_tokens) for tier in router.tiers]),
            Field("chosen", [f"{share:.0%}" for share in router.shares]),
            Field("tokens", [f"{tokens:.0f}" for tokens in router.costs[:, 0]]),
        ],
    )
    if not measures:
        return
    console.print(
        f"\nout of fold: the right tier for {measures['accuracy']:.3f} of the questions (always the most "
        f"frequent: {measures['most_frequent_label']:.3f}); calibration error "
        f"{measures['calibration_error']:.3f}; several tiers plausible for {measures['unsure_share']:.0%}"
    )
    places = {f"tier:{tier.name}": place for place, tier in enumerate(router.tiers)}
    # A file keeps names in alphabetical order: it shows what training showed.
    order = sorted(measures["rows"], key=lambda name: (not name.startswith("router"), places.get(name, 99)))
    rows = {name: measures["rows"][name] for name in order}
    first = ["worked", "prompt_tokens", "tokens_used", "gold_recall"]
    columns = sorted(rows["router"], key=lambda name: first.index(name) if name in first else len(first))
    if "confusion" in measures:
        _print_confusion(console, [tier.name for tier in router.tiers], measures["confusion"])
    print_fields(
        console,
        [Field("", list(rows), "left")],
        [
            Field(name.replace("_", " "), [_number(row.get(name)) for row in rows.values()])
            for name in columns
        ],
    )
    if (found := measures.get("against_mixture")) is None:  # of an earlier release
        return
    verdict = (
        "more than" if found["low"] > 0 else "less than" if found["high"] < 0 else "not clearly more than"
    )
    routed = rows["router"]["worked"]
    console.print(
        f"the router does for {routed:.3f}, {verdict} the best mixture of fixed tiers at its tokens "
        f"({routed - found['mean']:.3f}): {found['mean']:+.3f}, 95 % interval {found['low']:+.3f} to "
        f"{found['high']:+.3f}"
    )


def _print_confusion(console: Terminal, tiers: list[str], confusion: list[list[int]]) -> None:
    """How many questions that need a tier are given which."""
    print_fields(
        console,
        [Field("needed", tiers, "left")],
        [
            Field(f"chosen:\n{name}", [str(row[place]) for row in confusion])
            for place, name in enumerate(tiers)
        ],
    )
    console.print()


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 2 else f"{value:.3f}"


def router_json(router: Router) -> dict[str, Any]:
    """Plain data: all but the arrays."""
    return {
        "kind": router.kind,
        "features": router.features,
        "embedder": router.embedder,
        "tiers": [tier.to_dict() for tier in router.tiers],
        "shares": list(router.shares),
        "costs": router.costs.tolist(),
        "plausible": router.plausible,
        "confidence": router.confidence,
        "correction": None if router.correction is None else dict(vars(router.correction)),
        "measures": dict(router.measures),
        "provenance": dict(router.provenance),
    }


# -- strategies ------------------------------------------------------------------------------------------


def found_by(ranks: Mapping[str, int]) -> str:
    """Who found a passage, at which rank, in words."""
    said = [f"{name} {rank}" if rank else f"{name} by a link" for name, rank in ranks.items()]
    return ", ".join(said) or "nobody"


def print_searched(console: Terminal, searched: Mapping[str, Any]) -> None:
    """A line for each strategy, then one for each passage that is read.

    Parameters
    ----------
    searched : mapping
        As `mio_rag.learning.strategist.searched_json` gives it.
    """
    console.print("\nsearched by:", style="dim")
    for one in searched["strategies"]:
        tokens = one["prompt_tokens"] + one["completion_tokens"]
        said = one["note"] or " | ".join(one["queries"])
        console.print(f"  {one['strategy']}: {tokens} tokens; {said}", soft_wrap=True)
    console.print("found by (rank):", style="dim")
    for identity, ranks in searched["found_by"].items():
        console.print(f"  {identity}: {found_by(ranks)}", soft_wrap=True)
    told = {f"{one['strategy']}: {one['note']}" for one in searched["strategies"]}
    for note in searched["search_notes"]:
        if note not in told:  # what a strategy says of itself stands beside it
            console.print(f"note: {note}", soft_wrap=True)
    choice = searched["choice"]
    if choice["why"]:
        console.print(f"chosen: {choice['why']}", style="dim", soft_wrap=True)
    if choice["id"]:
        console.print(f"id for feedback: {choice['id']}", style="dim", soft_wrap=True)


def print_stats(console: Terminal, found: Mapping[str, Any]) -> None:
    """A line for each strategy, the state of the whole, and what was learned."""
    table = _table("strategy", "ran", "share", "exploring", "adds in", "adds", "tokens", "seconds", "rating")
    for name, each in found["strategies"].items():
        table.add_row(
            name,
            str(each["ran"]),
            _share(each["selection_rate"]),
            _share(each["share_exploring"]),
            "always runs" if each["always"] else _share(each["contribution_rate"]),
            "" if each["always"] else _form(each["contribution"], "+.3f"),
            _form(each["tokens"], ".0f"),
            _form(each["seconds"], ".2f"),
            f"{each['rating']:+.1f}",
        )
    console.print(table)
    console.print(
        f"{found['questions']} questions; lately the same set on {found['convergence']:.0%}, entropy of the "
        f"choices {found['entropy_bits']:.2f} bits; expected regret {found['regret']:.3f}; "
        f"{found['changes']} changes found",
        soft_wrap=True,
    )
    for kind, names in found["probation"].items():
        console.print(f"on probation for {kind} questions: {', '.join(names)}", soft_wrap=True)
    for said in found["insights"]:
        console.print(said, soft_wrap=True)


def print_replay(console: Terminal, found: Replay) -> None:
    """What was earned, and the estimates of what the policy would have earned."""
    console.print(f"{found.questions} questions; earned {found.earned:+.4f} a question, net of costs")
    for one in found.estimates:
        console.print(
            f"{found.policy}, {one.name}: {one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}], rests on "
            f"{one.effective:.0f} questions",
            soft_wrap=True,
        )
    if not found.differs:
        console.print(
            "It would have chosen alike on all of them (they may all lie in the cold start): this says "
            "nothing of the policy.",
            style="yellow",
            soft_wrap=True,
        )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _form(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
