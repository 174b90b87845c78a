"""What people see of policies, sessions, processes, planners, routers and bandits: lines and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mio_rag.cli.show import shortened
from mio_rag.cli.terminal import Table, dim, styled

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

_SHOWN = 6  # segments of a step, before the rest is counted
_WHAT = 120  # characters of what a step searched for: small models write on and on; JSON has all of it
_TEXT = 160  # characters of a passage


# -- decision processes ----------------------------------------------------------------------------------


def _rule(segments: Sequence[Segment]) -> str:
    shown = [f"{s.actions[0]} {s.start:.4g}\u2013{s.end:.4g}" for s in segments[:_SHOWN]]
    more = f", and {len(segments) - _SHOWN} more" if len(segments) > _SHOWN else ""
    return ", ".join(shown) + more


def plan_lines(plan: Plan, shape: Structure, changes: Sequence[Sensitivity]) -> Iterator[Any]:
    """The policy step by step, what is odd about it, and what each parameter does to it."""
    endless = plan.model.horizon is None
    steps = (("every" if endless else step, _rule(parts)) for step, parts in enumerate(shape.segments))
    yield Table.rows("step|over U", steps, left=2)
    solved, on_grid = plan.solution, plan.grid_error
    within = f", grid within {on_grid.at_points:.2g}" if on_grid else ""
    yield (
        f"{solved.method}: values within {solved.error:.2g} of the grid's optimum, "
        f"V(1) = {plan.values()[-1]:.4f}{within}"
    )
    yield from _notes(shape.warnings)
    if tied := sum(map(bool, shape.ties)):
        yield f"actions tie somewhere in {tied} of {plan.steps} steps (--json lists where)"
    yield ""
    moved = (
        (one.parameter.replace("discount", "1 - discount"), f"{one.factor:g}", f"{one.changed:.1%}",
         f"{one.value_change:.4f}")
        for one in changes
    )  # fmt: skip
    yield Table.rows("parameter|times|policy moved|value", moved)


def _notes(notes: Sequence[str]) -> Iterator[Any]:
    for note in notes:
        yield styled(("note:", "yellow"), f" {note}")


def calibration_lines(found: Calibration, shapes: Mapping[str, Structure]) -> Iterator[Any]:
    """Estimates with intervals, for all U and by bins; the assumptions; the first decision before, after."""
    yield (
        f"{found.retrievals} retrievals and {found.reasonings} reasoning steps on {found.questions} "
        f"questions, U by {found.gauge}\n"
    )
    parts: list[tuple[str, Any]] = [("all", found)]
    parts += [(f"{part.low:.2f}\u2013{part.high:.2f}", part) for part in found.bins]
    cells = (
        (name, *map(_estimate, (one.success, one.retrieve_drop, one.reason_drop))) for name, one in parts
    )
    yield Table.rows("U|p_s|delta_r|delta_p", cells, left=4)
    yield f"costs: retrieve {_estimate(found.retrieve_cost)}, reason {_estimate(found.reason_cost)}\n"
    for check in found.checks:
        said = {None: ("too few data", "dim"), True: ("violated", "red"), False: ("not violated", "")}
        value = "" if check.value is None else f" ({check.value:.2f}, n = {check.n})"
        yield styled(f"{check.name}: ", said[check.violated], value)
    yield from _notes(found.notes)
    yield ""
    first = ((name, _rule(shape.segments[0])) for name, shape in shapes.items())
    yield Table.rows("process|first decision over U", first, left=2)
    yield from _notes(shapes["calibrated"].warnings)


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "\u2013"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f} (too few questions for an interval, n = {estimate.n})"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f}, n = {estimate.n})"


# -- sessions --------------------------------------------------------------------------------------------


def run_lines(trace: Trace) -> Iterator[Any]:
    """What was read, every step with what it brought and cost, and how a question ended."""
    from mio_rag.session.trace import asked_by_model

    found, signal = trace.search.get("found_by", {}), trace.about.get("signal")
    yield ""
    for place, passage in enumerate(trace.passages, 1):
        name = " ".join(filter(None, [passage["title"], passage["id"]]))
        yield f"{place}. {name}, {passage['tokens']} tokens"
        yield f"   {shortened(passage['text'], _TEXT)}"
        if ranks := found.get(passage["id"]):
            yield dim(f"   found by {_found_by(ranks)}")
    if trace.passages:
        yield ""
    if "policy" in trace.settings:
        yield trace.explain()
    else:
        yield from _step_table(trace) if signal is None else _process_table(trace)
    for strategy, queries in trace.search.get("queries", {}).items():
        if queries:
            yield f"{strategy} searched for: {shortened(' | '.join(queries), _WHAT)}"
    yield from _notes(trace.search.get("notes", ()))
    if trace.search.get("id"):
        yield dim(f"id for feedback: {trace.search['id']}")
    if trace.fallback is not None:
        yield styled((f"answered another way: {trace.fallback}", "yellow"))
    if trace.error is not None:
        yield styled((trace.error, "red"))
    asked = asked_by_model(trace)
    each = ", ".join(f"{name} {into} + {out}" for name, (into, out) in asked.items())
    by = f"; prompt and answer tokens by model: {each}" if len(asked) > 1 else ""
    gauge = "" if signal is None else f", U {signal}"
    yield f"{trace.spent()}, {trace.seconds:.2f} s; {trace.policy}{gauge}{by}"
    yield f"ended: {trace.ended}{'' if signal is None else _end(trace)}"


def _step_table(trace: Trace) -> Iterator[Any]:
    costs, is_workflow, rows = trace.by_step(), "workflow" in trace.settings, []
    for step in trace.steps:
        if "/" in step.id and not is_workflow:
            continue
        spent, gave = costs[step.id], step.output if is_workflow else shortened(step.why, _WHAT)
        gave = gave if step.dropped is None else f"dropped: {step.dropped}"
        does = f"{step.do} by {step.model}" if step.model else step.do
        tokens = spent.prompt_tokens + spent.completion_tokens
        rows.append((step.id, does, gave, tokens or "", f"{spent.seconds:.2f}"))
    yield Table.rows("step|does|gave|tokens|s", rows, left=3)


def _process_table(trace: Trace) -> Iterator[Any]:
    """Every action with U before and after, and the value of the actions."""
    from mio_rag.learning.rules import decided, open_actions

    steps, closed_book = decided(trace), bool(trace.settings["closed_book"])
    rows = []
    for k, one in enumerate(steps):
        step = one.step
        possible = open_actions([before.step for before in steps[:k]], closed_book, step.closed)
        new = len(step.new_ids) if step.action == "retrieve" else ""
        what, spent = (
            shortened(step.query or step.note or "(nothing new)", _WHAT),
            sum(call.seconds for call in one.calls),
        )
        rows.append((k, step.action, what, new, f"{one.uncertainty:.3f}", f"{one.next_uncertainty:.3f}",
                     _values(one.q_values, possible), f"{spent:.2f}"))  # fmt: skip
    if rows:
        yield Table.rows("step|action|what|new|U|then|Q|s", rows, left=3)


def _end(trace: Trace) -> str:
    """U in the end, and why nothing more was done."""
    from mio_rag.learning.rules import decided, open_actions

    steps, closed = [one.step for one in decided(trace)], tuple(trace.about.get("closed") or ())
    possible = open_actions(steps, bool(trace.settings["closed_book"]), closed)
    values = _values(trace.about.get("q_values"), possible)
    level = float(trace.about.get("uncertainty", 1.0))
    return f", at U = {level:.3f}" + (f"; {values}" if values and trace.ended == "stop" else "")


def _values(q_values: Mapping[str, float] | None, possible: Sequence[str]) -> str:
    """The value of each action; in brackets those that could bring nothing new, and were not to be taken."""
    shown = [(action, f"{action} {q:.3f}") for action, q in (q_values or {}).items()]
    return " ".join(text if action in possible else f"({text})" for action, text in shown)


# -- workflows and planners ------------------------------------------------------------------------------

_MEASURES = (
    "token_f1", "exact_match", "evidence", "tokens", "lm_calls", "retrieval_calls", "dollars", "seconds",
)  # fmt: skip


def workflow_table(workflows: Mapping[str, Workflow]) -> Table:
    """All workflows, one a line."""
    rows = ((w.name, ", ".join(_step(one.do, one.settings) for one in w.nodes)) for w in workflows.values())
    return Table.rows("workflow|steps", rows, left=2)


def _step(do: str, settings: Mapping[str, object]) -> str:
    told = [
        str(value) if isinstance(value, str) else f"{name.replace('_', ' ')} {value:g}"
        for name, value in settings.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    ]
    return f"{do} ({', '.join(told)})" if told else do


def planner_table(about: Mapping[str, Any]) -> Table:
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
    return Table.rows(f"planner|{about['method']}, decides {when}", rows, left=2)


def point_lines(points: Sequence[Point]) -> Iterator[Any]:
    """Planner and fixed workflows: quality, cost, and what a mixture of fixed ones has at that cost."""
    rows = (
        (one.name, *(f"{v:.3f}" for v in (one.alpha, one.quality, one.cost, one.reward, one.fixed)),
         f"{one.gain:+.3f}", f"{one.low:+.3f} to {one.high:+.3f}")
        for one in points
    )  # fmt: skip
    yield Table.rows("who|alpha|quality|cost|reward|fixed at cost|gain|95 %", rows)
    for point in points:
        if len(point.shares) > 1:
            told = sorted(point.shares.items(), key=lambda item: -item[1])
            said = ", ".join(f"{name} {share:.0%}" for name, share in told)
            yield dim(f"{point.name} at {point.alpha:g}: {said}")
    planned = [point for point in points if point.name == "planner"]
    better = ", ".join(f"{point.alpha:g}" for point in planned if point.low > 0)
    worse = ", ".join(f"{point.alpha:g}" for point in planned if point.high < 0)
    said = (
        "at no price the planner clearly has more than a mixture of fixed workflows at its cost: use one of "
        "these, or learn from more questions"
    )
    if better:
        said = f"the planner has more than any mixture of fixed workflows at its cost for alpha {better}"
    yield said + (f"; clearly less for alpha {worse}" if worse else "")


def outcome_lines(table: Outcomes) -> Iterator[Any]:
    """Means of every workflow, over the questions of the table."""

    def figure(mean: float) -> str:
        if mean >= 10:
            return f"{mean:.0f}"
        return f"{mean:.3g}" if 0 < mean < 1e-3 else f"{mean:.3f}"  # dollars of little are not none

    shown = [measure for measure in _MEASURES if measure in table.values]
    rows = (
        (name, *(figure(float(np.nanmean(table.values[measure][:, place]))) for measure in shown))
        for place, name in enumerate(table.actions)
    )
    yield Table.rows("|".join(["workflow", *shown]), rows)
    yield dim(f"{len(table)} questions")


# -- policies --------------------------------------------------------------------------------------------


def policy_lines(policy: Policy, states: Resolved) -> Iterator[Any]:
    """Who decides what, the price, the limits, models and files."""
    from mio_rag.policies.describe import described, price_in_words

    yield styled((policy.name, "bold"))
    if policy.about:
        yield policy.about
    most = policy.limits
    ends = f"{most.max_total_tokens:,} tokens, {most.max_steps} steps of a model, {most.timeout:g} s"
    rows = [("price", "one for all", price_in_words(policy))]
    rows += [(line.decision, line.who, line.how) for line in described(policy, states)]
    yield ""
    yield Table.rows("decision|who|how", [*rows, ("limits", "every question", ends)], left=3)
    for name, model in policy.models.items():
        dollars = f"${model.input:g} in, ${model.output:g} out per million tokens" if model.is_priced else ""
        yield f"model {name}: {', '.join(filter(None, [model.spec, dollars]))}"
    for file, digest in states.hashes.items():
        yield dim(f"{file}: {digest[:12]}")
    yield dim(f"content {states.sha256[:12]}")


# -- routers ---------------------------------------------------------------------------------------------


def label_lines(found: Labelled) -> Iterator[Any]:
    """Each tier: how many questions need it, how often it does, and what it costs."""
    table = found.table
    yield (
        f"{len(table)} questions labelled; left out: {found.unlabelled} without gold, "
        f"{found.failed} on which a tier failed"
    )
    needed = np.bincount(table.labels, minlength=len(table.tiers))
    each = zip(table.tiers, needed, table.worked.mean(axis=0), table.costs(), strict=True)
    rows = (
        (tier.name, f"{count} ({count / len(table):.0%})", f"{share:.3f}", f"{cost[0]:.0f}", f"{cost[1]:.2f}")
        for tier, count, share, cost in each
    )
    yield Table.rows("tier|needed by|does for|tokens|seconds", rows)
    if none := found.unanswered:
        does = "reads the evidence of" if table.by == ("evidence",) else "answers"
        rule = table.outcomes.provenance.get("unanswered")
        yield (
            f"no tier {does} {none} ({none / len(table):.0%}) of the questions; which tier these are counted "
            f"under follows the rule '{rule}' (--unanswered)"
        )


def router_lines(router: Router) -> Iterator[Any]:
    """Tiers and their use, then everything that was measured out of fold."""
    said, measures, weak = router.provenance, router.measures, router.correction
    yield f"{router.kind} router of {said.get('questions', '?')} questions, by {router.features}"
    sets = ", ".join(f"{count} {name}" for name, count in said.get("sets", {}).items())
    yield dim(f"labels by {', '.join(said.get('by', []))}; sets: {sets}")
    if weak is not None:
        yield (
            f"searches with no cosine of {weak.below:.3f} are weak: {weak.more} passages more are read; what "
            "follows was measured without them"
        )
    each = zip(router.tiers, router.shares, router.costs, strict=True)
    tiers = (
        (tier.name, tier.depth, f"{tier.context} {tier.unit}", tier.new_tokens, f"{share:.0%}",
         f"{cost[0]:.0f}")
        for tier, share, cost in each
    )  # fmt: skip
    yield Table.rows("tier|depth|context|answer|chosen|tokens", tiers)
    if not measures:
        return
    yield (
        f"\nout of fold: the right tier for {measures['accuracy']:.3f} of the questions (always the most "
        f"frequent: {measures['most_frequent_label']:.3f}); calibration error "
        f"{measures['calibration_error']:.3f}; several tiers plausible for {measures['unsure_share']:.0%}"
    )
    if "confusion" in measures:
        names = [tier.name for tier in router.tiers]
        counts = ((name, *row) for name, row in zip(names, measures["confusion"], strict=True))
        yield Table.rows("|".join(["needed", *(f"chosen:\n{name}" for name in names)]), counts)
        yield ""
    places = {f"tier:{tier.name}": place for place, tier in enumerate(router.tiers)}
    # A file keeps names in alphabetical order: it shows what training showed.
    order = sorted(measures["rows"], key=lambda name: (not name.startswith("router"), places.get(name, 99)))
    rows = {name: measures["rows"][name] for name in order}
    first = ["worked", "prompt_tokens", "tokens_used", "gold_recall"]
    columns = sorted(rows["router"], key=lambda name: first.index(name) if name in first else len(first))
    cells = ((name, *(_number(row.get(column)) for column in columns)) for name, row in rows.items())
    yield Table.rows("|".join(["", *(name.replace("_", " ") for name in columns)]), cells)
    if (found := measures.get("against_mixture")) is None:  # of an earlier release
        return
    verdict = "more" if found["low"] > 0 else "less" if found["high"] < 0 else "not clearly more"
    routed = rows["router"]["worked"]
    yield (
        f"the router does for {routed:.3f}, {verdict} than the best mixture of fixed tiers at its tokens "
        f"({routed - found['mean']:.3f}): {found['mean']:+.3f}, 95 % interval {found['low']:+.3f} to "
        f"{found['high']:+.3f}"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 2 else f"{value:.3f}"


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


# -- strategies and bandits ------------------------------------------------------------------------------


def _found_by(ranks: Mapping[str, int]) -> str:
    said = [f"{name} {rank}" if rank else f"{name} by a link" for name, rank in ranks.items()]
    return ", ".join(said) or "nobody"


def searched_lines(searched: Mapping[str, Any]) -> Iterator[str]:
    """A line for each strategy, then one for each passage that is read: `strategist.searched_json`."""
    strategies, choice = searched["strategies"], searched["choice"]
    yield "\nsearched by:"
    for one in strategies:
        tokens = one["prompt_tokens"] + one["completion_tokens"]
        yield f"  {one['strategy']}: {tokens} tokens; {one['note'] or ' | '.join(one['queries'])}"
    yield "found by (rank):"
    for name, ranks in searched["found_by"].items():
        yield f"  {name}: {_found_by(ranks)}"
    told = {f"{one['strategy']}: {one['note']}" for one in strategies}
    yield from (f"note: {note}" for note in searched["search_notes"] if note not in told)
    for label, key in (("chosen", "why"), ("id for feedback", "id")):
        if choice[key]:
            yield f"{label}: {choice[key]}"


def state_lines(found: Mapping[str, Any]) -> Iterator[Any]:
    """A line for each strategy, the state of the whole, and what was learned."""

    def form(value: float | None, by: str) -> str:
        return "" if value is None else format(value, by)

    rows = (
        (name, one["ran"], form(one["selection_rate"], ".0%"), form(one["share_exploring"], ".0%"),
         "always runs" if one["always"] else form(one["contribution_rate"], ".0%"),
         "" if one["always"] else form(one["contribution"], "+.3f"), form(one["tokens"], ".0f"),
         form(one["seconds"], ".2f"), f"{one['rating']:+.1f}")
        for name, one in found["strategies"].items()
    )  # fmt: skip
    yield Table.rows("strategy|ran|share|exploring|adds in|adds|tokens|seconds|rating", rows)
    yield (
        f"{found['questions']} questions; lately the same set on {found['convergence']:.0%}, entropy of the "
        f"choices {found['entropy_bits']:.2f} bits; expected regret {found['regret']:.3f}; "
        f"{found['changes']} changes found"
    )
    for kind, names in found["probation"].items():
        yield f"on probation for {kind} questions: {', '.join(names)}"
    yield from found["insights"]


def replay_lines(found: Replay) -> Iterator[Any]:
    """What was earned, and the estimates of what the policy would have earned."""
    yield f"{found.questions} questions; earned {found.earned:+.4f} a question, net of costs"
    for one in found.estimates:
        yield (
            f"{found.policy}, {one.name}: {one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}], rests on "
            f"{one.effective:.0f} questions"
        )
    if not found.differs:
        said = "It would have chosen alike on all of them (they may all lie in the cold start): this says "
        yield styled((f"{said}nothing of the policy.", "yellow"))
