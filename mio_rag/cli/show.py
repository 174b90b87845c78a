"""What people see of selections, of answers that were given before, and of sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mio_rag.cli.terminal import Table, Terminal, dim, notes, printable, styled
from mio_rag.formulations.numbers import plural

if TYPE_CHECKING:
    from mio_rag.selection.result import Selection
    from mio_rag.session.cache import Hit
    from mio_rag.session.trace import Trace

_WHAT = 120  # characters of what a step searched for: small models write on and on; JSON has all of it


# -- selection -------------------------------------------------------------------------------------------


def reasons_of(selection: Selection, console: Terminal) -> Iterator[Any]:
    """Why each passage is chosen, and why the best of the rest are not: as many as a terminal holds."""
    chosen = set(selection.chosen)
    rest = [i for i in range(len(selection.candidates)) if i not in chosen]
    rest.sort(key=lambda i: -selection.decisions[i].value)
    room = max(8, (console.height - 10) // 2) if console.is_terminal else 60
    shown = selection.chosen[: room - 3]
    others = rest[: min(8, room - len(shown))]
    for title, rows in (("selected:", shown), ("left out, most valuable first:", others)):
        if rows:
            yield dim(f"\n{title}")
        for i in rows:
            one = selection.decisions[i]
            name = f" - {one.id}, {plural(one.tokens, 'token')}: "
            width = max(24, min(console.width, 110) - len(name))
            yield f"{name}{shortened(selection.candidates.texts[i], width)}"
            yield dim(f"   {one.reason}")
    if more := len(chosen) - len(shown) + len(rest) - len(others):
        yield dim(f"   and {more} more; --why --json lists everything")
    yield ""


def shortened(text: str, width: int) -> str:
    """How a text begins, on one line."""
    text = " ".join(printable(text).split())
    return text if len(text) <= width else f"{text[: width - 4].rstrip()} ..."


def proof_of(selection: Selection, *, full: bool = False, room: str | None = None) -> str:
    """How much is read, and what is proven about the choice.

    full: also the whole certificate, and where relevance comes from.
    room: what limits how much is read, where that is no budget of tokens.
    """
    result, source = selection.result, selection.relevance_source
    if result.x is None:
        return selection.explain()
    what = plural(len(selection.chosen), selection.unit)
    used = f"Used {selection.tokens_used:,} of {plural(selection.budget_tokens, 'token')}, {what}"
    if room is not None:
        used = f"Used {plural(selection.tokens_used, 'token')} ({room}), {what}"
    if selection.is_ranking:
        ranked = result.solver if selection.method == "mio" else selection.method
        return f"{used}: ranked by {ranked}, which proves nothing."
    lines = [f"{used}: {_proof(selection)}."]
    if full:
        lines.append(result.certificate())
        if selection.counts_parts is not None:
            lines.append(f"the certificate is for choices {selection.counts_parts}")
        lines += [f"relevance: {source.why}"] if source is not None else []
    if source is not None and source.unused:
        lines.append(
            f"{' and '.join(source.unused)} changed nothing: no model that was fitted with it gives "
            "relevance (`mio-rag policy fit relevance`)"
        )
    lines += [selection.worst_case.explain()] if selection.worst_case else []
    return "\n".join(lines)


def _proof(selection: Selection) -> str:
    result = selection.result
    if result.is_optimal and not selection.chosen:
        return "proven: nothing that is allowed and fits is worth its price"
    if result.is_optimal:
        within = f" to within {result.gap:.2%}" if result.gap and result.gap > 1e-4 else ""
        return f"proven optimal{within} by the estimated relevance"
    why = "; ".join(filter(None, [result.limit and f"the {result.limit} limit came first", result.message]))
    most = ""
    if result.gap is not None:  # what is not proven never reads as nothing
        most = f": the best choice is worth at most {max(result.gap, 1e-4):.2%} more"
    return f"not proven optimal{most}" + (f" ({why})" if why else "")


def known_lines(known: Hit) -> list[str]:
    """When an answer was given before, and what was read for it."""
    told, ago = known.answer, f"{plural(round(known.age_seconds), 'second')} ago"
    for unit, size in (("minutes", 60), ("hours", 3600), ("days", 86400)):
        if known.age_seconds >= 2 * size:
            ago = f"{known.age_seconds / size:.0f} {unit} ago"
    places = ((", ".join(p["ids"]), " > ".join(p["section"]) or p["source"]) for p in told["parts"])
    read = ", ".join(f"{ids} ({place})" for ids, place in places)
    refused = ["Refused before."] if told.get("refusal", {}).get("refused") else []
    when = f"cached: {told['model']} answered the same question {ago}; nothing was asked now"
    return [*refused, when, f"read then: {read or 'nothing'}"]


# -- sessions --------------------------------------------------------------------------------------------


def run_lines(trace: Trace) -> Iterator[Any]:
    """What was read, every step with what it brought and cost, and how a question ended."""
    from mio_rag.session.trace import asked_by_model

    found, signal = trace.search.get("found_by", {}), trace.about.get("signal")
    yield ""
    for place, passage in enumerate(trace.passages, 1):
        name = " ".join(filter(None, [passage["title"], passage["id"]]))
        yield f"{place}. {name}, {passage['tokens']} tokens"
        yield f"   {shortened(passage['text'], 160)}"
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
    yield from notes(trace.search.get("notes", ()))
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
        what = shortened(step.query or step.note or "(nothing new)", _WHAT)
        spent = sum(call.seconds for call in one.calls)
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
