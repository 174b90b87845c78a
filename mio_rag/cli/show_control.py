"""What people see of controllers, plans, policies, routers, strategies and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mio_rag.cli.show import print_passage, print_rows
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
    steps = (
        ("every" if plan.model.horizon is None else step, _rule(parts))
        for step, parts in enumerate(shape.segments)
    )
    print_rows(console, "step|over U", steps, left=2)
    solved, on_grid = plan.solution, plan.grid_error
    within = f", grid within {on_grid.at_points:.2g}" if on_grid else ""
    console.print(
        f"{solved.method}: values within {solved.error:.2g} of the grid's optimum, "
        f"V(1) = {plan.values()[-1]:.4f}{within}"
    )
    _print_notes(console, shape.warnings)
    if tied := sum(map(bool, shape.ties)):
        console.print(f"actions tie somewhere in {tied} of {plan.steps} steps (--json lists where)")
    console.print()
    names = {"discount": "1 - discount"}
    moved = (
        (names.get(one.parameter, one.parameter), f"{one.factor:g}", f"{one.changed:.1%}",
         f"{one.value_change:.4f}")
        for one in changes
    )  # fmt: skip
    print_rows(console, "parameter|times|policy moved|value", moved)


def _print_notes(console: Terminal, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(styled(("note:", "yellow"), f" {note}"), soft_wrap=True)


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
    costs, is_workflow, rows = trace.by_step(), "workflow" in trace.settings, []
    for step in trace.steps:
        if "/" in step.id and not is_workflow:
            continue
        spent, gave = costs[step.id], step.output if is_workflow else _cut(step.why)
        gave = gave if step.dropped is None else f"dropped: {step.dropped}"
        does = f"{step.do} by {step.model}" if step.model else step.do
        tokens = spent.prompt_tokens + spent.completion_tokens
        rows.append((step.id, does, gave, tokens or "", f"{spent.seconds:.2f}"))
    print_rows(console, "step|does|gave|tokens|s", rows, left=3)


def _print_process(console: Terminal, trace: Trace) -> None:
    """Every action with U before and after, and the worth of the actions."""
    steps, closed_book = decided(trace), bool(trace.settings["closed_book"])
    rows = []
    for k, one in enumerate(steps):
        step = one.step
        possible = open_actions([before.step for before in steps[:k]], closed_book, step.closed)
        new = len(step.new_ids) if step.action == "retrieve" else ""
        spent = sum(call.seconds for call in one.calls)
        what = _cut(step.query or step.note or "(nothing new)")
        rows.append((k, step.action, what, new, f"{one.uncertainty:.3f}", f"{one.next_uncertainty:.3f}",
                     _worth(one.q_values, possible), f"{spent:.2f}"))  # fmt: skip
    if rows:
        print_rows(console, "step|action|what|new|U|then|Q|s", rows, left=3)


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
    """Estimates with intervals, for all U and by bins; the assumptions; the first decision before, after."""
    console.print(
        f"{found.retrievals} retrievals and {found.reasonings} reasoning steps on {found.questions} "
        f"questions, U by {found.gauge}\n"
    )
    rows: list[tuple[str, Any]] = [
        ("all", found),
        *((f"{part.low:.2f}\u2013{part.high:.2f}", part) for part in found.bins),
    ]
    cells = ((name, *map(_interval, (one.success, one.retrieve_drop, one.reason_drop))) for name, one in rows)
    print_rows(console, "U|p_s|delta_r|delta_p", cells, left=4)
    console.print(
        f"costs: retrieve {_interval(found.retrieve_cost)}, reason {_interval(found.reason_cost)}\n"
    )
    for check in found.checks:
        said = {None: ("too few data", "dim"), True: ("violated", "red"), False: ("not violated", "")}
        value = "" if check.value is None else f" ({check.value:.2f}, n = {check.n})"
        console.print(styled(f"{check.name}: ", said[check.violated], value))
    _print_notes(console, found.notes)
    console.print()
    first = ((name, _rule(shape.segments[0])) for name, shape in shapes.items())
    print_rows(console, "process|first decision over U", first, left=2)
    _print_notes(console, shapes["calibrated"].warnings)


# -- plan ------------------------------------------------------------------------------------------------

_MEASURES = (
    "token_f1", "exact_match", "evidence", "tokens", "lm_calls", "retrieval_calls", "dollars", "seconds",
)  # fmt: skip


def print_named(console: Terminal, workflows: Mapping[str, Workflow]) -> None:
    """All workflows, one a line."""
    rows = ((w.name, ", ".join(_step(one.do, one.settings) for one in w.nodes)) for w in workflows.values())
    print_rows(console, "workflow|steps", rows, left=2)


def print_planner(console: Terminal, about: Mapping[str, Any]) -> None:
    """What a planner decides, at which prices, and what it learned from."""
    when = "before the first step" if about["mode"] == "once" else "before every step"
    asked, by = about.get("questions", "?"), about.get("generator", "?")
    rows = (
        ("chooses from", ", ".join(about["workflows"])),
        ("alphas", ", ".join(f"{alpha:g}" for alpha in about["alphas"]) or "any"),
        ("a cost of 1", f"{about['unit']:.4g} {about['cost']}"),
        ("questions are embedded by", about["embedder"] or "nothing"),
        ("learned from", f"{asked} questions, answered by {by}"),
    )
    print_rows(console, f"planner|{about['method']}, decides {when}", rows, left=2)


def _step(do: str, settings: Mapping[str, object]) -> str:
    told = [
        str(value) if isinstance(value, str) else f"{name.replace('_', ' ')} {value:g}"
        for name, value in settings.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    ]
    return f"{do} ({', '.join(told)})" if told else do


def print_points(console: Terminal, points: Sequence[Point]) -> None:
    """Policies and fixed workflows: quality, cost, and what a mixture of fixed ones has at that cost."""
    rows = (
        (one.name, *(f"{v:.3f}" for v in (one.alpha, one.quality, one.cost, one.reward, one.fixed)),
         f"{one.gain:+.3f}", f"{one.low:+.3f} to {one.high:+.3f}")
        for one in points
    )  # fmt: skip
    print_rows(console, "who|alpha|quality|cost|reward|fixed at cost|gain|95 %", rows)
    for point in points:
        if len(point.shares) > 1:
            told = sorted(point.shares.items(), key=lambda item: -item[1])
            said = ", ".join(f"{name} {share:.0%}" for name, share in told)
            console.print(f"{point.name} at {point.alpha:g}: {said}", style="dim", soft_wrap=True)
    console.print(_verdict(points), soft_wrap=not console.is_terminal)


def _verdict(points: Sequence[Point]) -> str:
    """Where the planner is worth having, by the intervals."""
    planned = [point for point in points if point.name == "planner"]
    better = ", ".join(f"{point.alpha:g}" for point in planned if point.low > 0)
    worse = ", ".join(f"{point.alpha:g}" for point in planned if point.high < 0)
    said = (
        "at no price the planner clearly has more than a mixture of fixed workflows at its cost: use one of "
        "these, or learn from more questions"
    )
    if better:
        said = f"the planner has more than any mixture of fixed workflows at its cost for alpha {better}"
    return said + (f"; clearly less for alpha {worse}" if worse else "")


def _figure(mean: float) -> str:
    """Three digits behind the point; none of large numbers, more of dollars."""
    if mean >= 10:
        return f"{mean:.0f}"
    return f"{mean:.3g}" if 0 < mean < 1e-3 else f"{mean:.3f}"


def print_table(console: Terminal, table: Outcomes) -> None:
    """Means of every workflow, over the questions of the table."""
    shown = [measure for measure in _MEASURES if measure in table.values]
    rows = (
        (name, *(_figure(float(np.nanmean(table.values[measure][:, place]))) for measure in shown))
        for place, name in enumerate(table.actions)
    )
    print_rows(console, "|".join(["workflow", *shown]), rows)
    console.print(f"{len(table)} questions", style="dim")


# -- policy ----------------------------------------------------------------------------------------------


def print_presets(console: Terminal, presets: Mapping[str, str]) -> None:
    """The policies that ship, one a line."""
    print_rows(console, "policy|what it is for", presets.items(), left=2)


def print_policy(console: Terminal, policy: Policy, states: Resolved) -> None:
    """Who decides what, the price, the limits, models and files."""
    console.print(policy.name, style="bold")
    if policy.about:
        console.print(policy.about, soft_wrap=True, markup=False)
    most = policy.limits
    ends = f"{most.max_total_tokens:,} tokens, {most.max_steps} steps of a model, {most.timeout:g} s"
    rows = [("price", "one for all", price_in_words(policy))]
    rows += [(line.decision, line.who, line.how) for line in described(policy, states)]
    console.print()
    print_rows(console, "decision|who|how", [*rows, ("limits", "every question", ends)], left=3)
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
    each = zip(table.tiers, needed, table.worked.mean(axis=0), table.costs(), strict=True)
    rows = (
        (tier.name, f"{count} ({count / len(table):.0%})", f"{share:.3f}", f"{cost[0]:.0f}", f"{cost[1]:.2f}")
        for tier, count, share, cost in each
    )
    print_rows(console, "tier|needed by|does for|tokens|seconds", rows)
    if none := found.unanswered:
        does = "reads the evidence of" if table.by == ("evidence",) else "answers"
        rule = table.outcomes.provenance.get("unanswered")
        console.print(
            f"no tier {does} {none} ({none / len(table):.0%}) of the questions; which tier these are counted "
            f"under follows the rule '{rule}' (--unanswered)"
        )


def print_router(console: Terminal, router: Router) -> None:
    """Tiers and their use, then everything that was measured out of fold."""
    said, measures, weak = router.provenance, router.measures, router.correction
    console.print(f"{router.kind} router of {said.get('questions', '?')} questions, by {router.features}")
    sets = ", ".join(f"{count} {name}" for name, count in said.get("sets", {}).items())
    console.print(f"labels by {', '.join(said.get('by', []))}; sets: {sets}", style="dim")
    if weak is not None:
        console.print(
            f"searches with no cosine of {weak.below:.3f} are weak: {weak.more} passages more are read; what "
            "follows was measured without them"
        )
    each = zip(router.tiers, router.shares, router.costs, strict=True)
    tiers = (
        (tier.name, tier.depth, f"{tier.context} {tier.unit}", tier.new_tokens, f"{share:.0%}",
         f"{cost[0]:.0f}")
        for tier, share, cost in each
    )  # fmt: skip
    print_rows(console, "tier|depth|context|answer|chosen|tokens", tiers)
    if not measures:
        return
    console.print(
        f"\nout of fold: the right tier for {measures['accuracy']:.3f} of the questions (always the most "
        f"frequent: {measures['most_frequent_label']:.3f}); calibration error "
        f"{measures['calibration_error']:.3f}; several tiers plausible for {measures['unsure_share']:.0%}"
    )
    if "confusion" in measures:
        names = [tier.name for tier in router.tiers]
        counts = ((name, *row) for name, row in zip(names, measures["confusion"], strict=True))
        print_rows(console, "|".join(["needed", *(f"chosen:\n{name}" for name in names)]), counts)
        console.print()
    places = {f"tier:{tier.name}": place for place, tier in enumerate(router.tiers)}
    # A file keeps names in alphabetical order: it shows what training showed.
    order = sorted(measures["rows"], key=lambda name: (not name.startswith("router"), places.get(name, 99)))
    rows = {name: measures["rows"][name] for name in order}
    first = ["worked", "prompt_tokens", "tokens_used", "gold_recall"]
    columns = sorted(rows["router"], key=lambda name: first.index(name) if name in first else len(first))
    cells = ((name, *(_number(row.get(column)) for column in columns)) for name, row in rows.items())
    print_rows(console, "|".join(["", *(name.replace("_", " ") for name in columns)]), cells)
    if (found := measures.get("against_mixture")) is None:  # of an earlier release
        return
    verdict = "more" if found["low"] > 0 else "less" if found["high"] < 0 else "not clearly more"
    routed = rows["router"]["worked"]
    console.print(
        f"the router does for {routed:.3f}, {verdict} than the best mixture of fixed tiers at its tokens "
        f"({routed - found['mean']:.3f}): {found['mean']:+.3f}, 95 % interval {found['low']:+.3f} to "
        f"{found['high']:+.3f}"
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 2 else f"{value:.3f}"


def router_json(router: Router) -> dict[str, Any]:
    """Plain data: all but the arrays."""
    names = ("kind", "features", "embedder", "plausible", "confidence")
    return {
        **{name: getattr(router, name) for name in names},
        "tiers": [tier.to_dict() for tier in router.tiers],
        "shares": list(router.shares),
        "costs": router.costs.tolist(),
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
    """A line for each strategy, then one for each passage that is read: `strategist.searched_json`."""
    strategies, choice = searched["strategies"], searched["choice"]
    lines = ["", "searched by:"]
    for one in strategies:
        tokens = one["prompt_tokens"] + one["completion_tokens"]
        lines.append(f"  {one['strategy']}: {tokens} tokens; {one['note'] or ' | '.join(one['queries'])}")
    lines.append("found by (rank):")
    lines += [f"  {name}: {found_by(ranks)}" for name, ranks in searched["found_by"].items()]
    told = {f"{one['strategy']}: {one['note']}" for one in strategies}
    lines += [f"note: {note}" for note in searched["search_notes"] if note not in told]  # it stands above
    lines += [f"chosen: {choice['why']}"] if choice["why"] else []
    lines += [f"id for feedback: {choice['id']}"] if choice["id"] else []
    for line in lines:
        console.print(line, soft_wrap=True)


def print_stats(console: Terminal, found: Mapping[str, Any]) -> None:
    """A line for each strategy, the state of the whole, and what was learned."""
    rows = (
        (name, one["ran"], _form(one["selection_rate"], ".0%"), _form(one["share_exploring"], ".0%"),
         "always runs" if one["always"] else _form(one["contribution_rate"], ".0%"),
         "" if one["always"] else _form(one["contribution"], "+.3f"), _form(one["tokens"], ".0f"),
         _form(one["seconds"], ".2f"), f"{one['rating']:+.1f}")
        for name, one in found["strategies"].items()
    )  # fmt: skip
    print_rows(console, "strategy|ran|share|exploring|adds in|adds|tokens|seconds|rating", rows)
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


def _form(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
