"""Commands for one question: select and ask."""

from __future__ import annotations

import dataclasses
import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.sax.saxutils import escape, quoteattr

import typer

from mio_rag.cli import options as o
from mio_rag.cli.chosen import Chosen
from mio_rag.cli.output import Output, open_output
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, choose, collect

if TYPE_CHECKING:
    from collections.abc import Callable

    from mio_rag.allocation.money import Rate
    from mio_rag.generation import Generator
    from mio_rag.policies.setup import Controller
    from mio_rag.retrieval import Retriever
    from mio_rag.selection.result import Selection
    from mio_rag.session.cache import AnswerCache, Hit
    from mio_rag.session.trace import Outcome, Trace


#: Tokens that may be read where tiers or a policy limit them.
_MOST = 1_000_000
_FORMATS = ("text", "markdown", "xml", "json")


# -- select -----------------------------------------------------------------------------------------------


def select(
    path: o.SourcePath,
    question: o.QuestionText,
    budget: o.Budget = None,
    where: o.Where = None,
    units: o.Units = None,
    method: Annotated[str, o.opt("mio, topk, bm25, fused, mmr, topk:K, or your own (--plugin).")] = "mio",
    plugin: o.Plugins = None,
    model: Annotated[str | None, o.opt("Count tokens as this model does. [default: approximate]")] = None,
    policy: o.PolicyName = DEFAULTS.policy,
    set_: o.Sets = None,
    embedder: o.EmbedderName = DEFAULTS.embedder,
    why: o.Why = False,
    proof: Annotated[bool, o.opt("Print the certificate.", "--proof")] = False,
    form: Annotated[str, o.opt("text, markdown, xml or json.", "--format")] = "text",
    no_refresh: o.NoRefresh = False,
    mapped: o.Mapped = False,
    json_output: o.Json = False,
) -> None:
    """Print the passages that answer QUESTION, within a token budget.

    Documents are indexed on first use, and again when they change. The context is printed on stdout, the rest
    on stderr.

    \b
      mio-rag select handbook "What is the full-day allowance in Norway?"
      mio-rag select handbook "Who is on call?" | llm "Answer briefly"
    """
    from mio_rag.cli.show import print_reasons, proof_of
    from mio_rag.cli.show_control import print_searched
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval import Retriever

    output = open_output(json_output or form == "json")
    o.load_plugins(plugin)
    spec = None if model is None else o.reader_spec(model)
    chosen, *_ = collect(
        lambda: Chosen.of(policy, set_, budget=budget, units=units).check(),
        lambda: o.check_question(question),
        lambda: _check_form(form),
        lambda: None if spec is None else check_generator(spec),
    )
    pipeline = _strategies(chosen)
    found = o.opened(output, path, embedder, refresh=not no_refresh, mapped=mapped, where=where)
    o.check_fits(chosen.selector, found.index)
    searched: dict[str, Any] = {}
    allowed = chosen.policy.limits.budget
    with ExitStack() as stack:
        reader = None if spec is None else make_generator(spec)
        if reader is not None:
            stack.callback(reader.close)
        retriever = Retriever.of(found.index, chosen.policy.search.retrieval, reader)
        if pipeline is not None:
            selection, searched = _searched(chosen, pipeline, question, retriever, reader)
        else:
            ranks = "fused" if method == "mio" and chosen.policy.selection.by == "ranking" else method
            pool = retriever.retrieve(question)
            selection = _by_method(ranks, chosen)(pool, allowed, retriever.counter)
    rate = chosen.rate("" if reader is None else reader.name)
    if output.as_json:
        told = selection.to_dict(question=question, why=why, proof=proof)
        told |= {} if rate is None else {"dollars": rate.cost(selection.tokens_used)}
        output.json({**told, **({"search": searched} if searched else {})})
    else:
        if selection.passages:
            output.console.print(context_text(selection, form), soft_wrap=True, markup=False)
        if why:
            print_reasons(output.notes, selection)
            if searched:
                print_searched(output.notes, searched)
        output.say(proof_of(selection, full=proof or why))
        for note in selection.notes:
            output.say(f"note: {note}")
        if rate is not None:
            output.say(rate.explain(selection.tokens_used))
    if not selection.chosen:
        raise typer.Exit(3)


def _check_form(form: str) -> None:
    if form not in _FORMATS:
        raise InputError(f"--format {form} is unknown: {choose(form, _FORMATS)}")


def _strategies(chosen: Chosen) -> str | None:
    """The strategies that a policy searches by; `InputError` for what does more than select."""
    name, policy = chosen.controller, chosen.policy
    if name is not None and name.startswith("strategies:"):
        return name
    if name is not None:
        raise InputError(f"--policy {name} answers questions, and select only reads: use ask")
    if policy.search.by == "bandit":
        return "strategies:bandit"
    return (
        None if policy.search.strategies == ("raw",) else f"strategies:{'+'.join(policy.search.strategies)}"
    )


def _by_method(method: str, chosen: Chosen) -> Callable[..., Selection]:
    from mio_rag.methods import make_methods

    if method == "mio":
        return chosen.selector.select
    return make_methods([method], chosen.selector)[0].select


def _searched(
    chosen: Chosen, name: str, question: str, retriever: Retriever, reader: Generator | None
) -> tuple[Selection, dict[str, Any]]:
    """The selection from what strategies find, and which of them found it."""
    from mio_rag.learning.strategist import searched_json
    from mio_rag.policies.make import make_controller
    from mio_rag.policies.setup import Setup
    from mio_rag.session.loop import Session
    from mio_rag.types import Question

    session = make_controller(name, Setup(chosen.control, retriever, chosen.selector))
    assert isinstance(session, Session)
    budget = chosen.policy.limits.budget
    outcome = session.select(Question("question", question), reader, budget).check()
    assert outcome.selection is not None
    return outcome.selection, searched_json(outcome)


def headings(selection: Selection) -> list[str]:
    """Where each text that is read comes from, in a few words."""
    return [
        ", ".join(filter(None, [part["source"], " > ".join(part["section"])])) or part["ids"][0]
        for part in selection.parts
    ]


def context_text(selection: Selection, form: str = "text") -> str:
    """Return a context for a prompt: text, markdown or xml."""
    parts = enumerate(zip(headings(selection), selection.texts, strict=True), 1)
    if form == "xml":
        told = [
            f'<passage n="{n}" source={quoteattr(name)}>\n{escape(text)}\n</passage>'
            for n, (name, text) in parts
        ]
        return "\n".join(["<context>", *told, "</context>"])
    begin = "### [{}] {}\n\n{}" if form == "markdown" else "[{}] {}\n{}"
    return "\n\n".join(begin.format(n, name, text) for n, (name, text) in parts)


# -- ask --------------------------------------------------------------------------------------------------


def ask(
    path: o.SourcePath,
    question: o.QuestionText,
    budget: o.Budget = None,
    where: o.Where = None,
    units: o.Units = None,
    model: o.Model = None,
    answer: o.Answer = None,
    policy: o.PolicyName = DEFAULTS.policy,
    set_: o.Sets = None,
    embedder: o.EmbedderName = DEFAULTS.embedder,
    why: o.Why = False,
    proof: Annotated[bool, o.opt("Print the certificate.", "--proof")] = False,
    show_context: Annotated[bool, o.opt("Print the context below the answer.", "--show-context")] = False,
    trace: Annotated[Path | None, o.opt("Append every decision to this file; see policy replay.")] = None,
    no_refresh: o.NoRefresh = False,
    mapped: o.Mapped = False,
    json_output: o.Json = False,
) -> None:
    """Answer QUESTION from the selected passages.

    The answer is printed on stdout, what was read on stderr.

    \b
      mio-rag ask handbook "..." --model openai:gpt-5-mini
      mio-rag ask handbook "..." --model openai:MODEL@http://localhost:8080/v1
      mio-rag ask handbook "..." --model gguf:model.gguf
    """
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.policies.make import has_tiers
    from mio_rag.refusal.model import Refusal
    from mio_rag.retrieval import Retriever

    output = open_output(json_output)
    spec = o.reader_spec(model)
    chosen, *_ = collect(
        lambda: Chosen.of(policy, set_, budget=budget, answer=answer, units=units).check(),
        lambda: o.check_question(question),
        lambda: check_generator(spec),
        lambda: _check_trace(trace),
    )
    steps = chosen.has_steps or trace is not None
    answers, kept = chosen.policy.answers, chosen.cache()
    if steps and answers.refusal:
        raise InputError("answers.refusal does not go with a policy of several steps: leave one of them out")
    tiers = chosen.controller is not None and has_tiers(chosen.controller)
    if steps and kept is not None and not tiers:
        raise InputError("answers.cache does not go with a policy of several steps: leave one of them out")
    refusing = None if answers.refusal is None else Refusal.load(answers.refusal)
    found = o.opened(output, path, embedder, refresh=not no_refresh, mapped=mapped, where=where)
    index, selector, limits = found.index, chosen.selector, chosen.policy.limits
    o.check_fits(selector, index)
    reader = make_generator(spec)
    try:
        if refusing is not None:
            refusing.check_fits(index.embedder.fingerprint, reader.name)
        rate, cache, scope = chosen.rate(reader.name), None, ""
        if kept is not None:
            cache, scope = _cache(chosen, index, reader, refusing)
            if not why and trace is None and (known := cache.get(question, scope)) is not None:
                _show_known(output, question, known, rate)
                return
        retriever = Retriever.of(index, chosen.policy.search.retrieval, reader)
        if steps:
            session = chosen.session(retriever)
            allowed = limits.budget if chosen.controller and not tiers else _MOST
            outcome = _attempt(session, question, reader, allowed, trace)
            told, selection = _told(outcome, chosen, rate, why=why, proof=proof), outcome.selection
            if cache is not None and selection is not None and outcome.trace.ended == "stop":
                cache.put(question, scope, told)
        else:
            outcome = None
            told, selection = _plainly(
                chosen, question, reader, retriever, rate, refusing, why=why, proof=proof
            )
            if cache is not None:
                cache.put(question, scope, told)
    finally:
        reader.close()
    if output.as_json:
        output.json(told if cache is None else {**told, "cached": None})
    else:
        _print_answer(
            output, told, selection, outcome, rate, full=why or proof, why=why, context=show_context
        )
    if not told["answer"]:
        raise typer.Exit(3)


def _check_trace(trace: Path | None) -> None:
    if trace is not None and (trace.is_dir() or not trace.absolute().parent.is_dir()):
        raise InputError(f"--trace must be a file in a folder that exists, got {trace}")


def _cache(chosen: Chosen, index: Any, reader: Generator, refusing: Any) -> tuple[AnswerCache, str]:
    """Where answers are kept, and what an answer depends on besides the question."""
    from mio_rag.generation.protocol import content_of
    from mio_rag.session.cache import AnswerCache, digest_of

    policy = chosen.policy
    scope = digest_of(
        {
            "policy": policy.content(),
            "selector": chosen.selector.to_dict(),
            "model": content_of(reader),
            "refusal": None if refusing is None else dataclasses.asdict(refusing),
            "controller": None
            if chosen.controller is None
            else [chosen.controller, chosen.control.to_dict()],
        }
    )
    assert policy.answers.cache is not None
    return AnswerCache.of(policy.answers.cache, index, chosen.cache()), scope


def _plainly(
    chosen: Chosen, question: str, reader: Generator, retriever: Retriever, rate: Rate | None, refusing: Any,
    **shown: bool,
) -> tuple[dict[str, Any], Selection]:  # fmt: skip
    """One search, one program, one call of the model; as plain data."""
    from mio_rag.ask import answer_from

    limits = chosen.policy.limits
    selection, answer = answer_from(
        retriever,
        question,
        reader,
        chosen.selector,
        budget_tokens=limits.budget,
        max_tokens=limits.max_tokens,
    )
    usage = {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "seconds": answer.latency_seconds,
    }
    if rate is not None:
        usage["dollars"] = rate.cost(answer.prompt_tokens, answer.completion_tokens)
    told = {
        **selection.to_dict(question=question, **shown),
        "answer": answer.text,
        "citations": selection.cited(answer.text),
        "model": answer.generator,
        "usage": usage,
    }
    if refusing is not None:
        verdict = refusing.judge(question, selection, answer)
        told["refusal"] = verdict.to_dict()
        if verdict.refused:
            told |= {"said": answer.text, "answer": "", "citations": []}
    return told, selection


def _told(outcome: Outcome, chosen: Chosen, rate: Rate | None, *, why: bool, proof: bool) -> dict[str, Any]:
    """What came of a question that was answered step by step, as plain data."""
    from mio_rag.policies.make import in_force

    trace, selection = outcome.trace, outcome.selection
    told: dict[str, Any] = {
        "version": 1, "question": trace.question, "context": "", "tokens": 0, "budget": None, "parts": [],
        "answerable": None, "method": None, "status": "none", "gap": None, "seconds": 0.0, "notes": [],
    }  # fmt: skip
    if selection is not None:
        told = selection.to_dict(question=trace.question, why=why, proof=proof)
    if "tiers" in trace.settings:
        tier = in_force(outcome, chosen.selector)
        told |= {
            "budget": tier["budget_tokens"],
            "tier": {"name": tier["tier"], "context": tier["context"], "unit": tier["context_unit"]},
        }
    usage = {
        "prompt_tokens": sum(call.prompt_tokens for call in trace.calls),
        "completion_tokens": sum(call.completion_tokens for call in trace.calls),
        "model_calls": sum(call.lm_calls for call in trace.calls),
        "searches": sum(call.retrieval_calls for call in trace.calls),
        "seconds": trace.seconds,
        **_paid(trace, rate, chosen),
    }
    return {
        **told,
        "answer": trace.answer,
        "citations": [] if selection is None else selection.cited(trace.answer),
        "model": trace.generator,
        "usage": usage,
        **({"trace": trace.to_dict()} if why else {}),
    }


def _print_answer(
    output: Output, told: dict[str, Any], selection: Selection | None, outcome: Outcome | None,
    rate: Rate | None, *, full: bool, why: bool, context: bool,
) -> None:  # fmt: skip
    """The answer or a refusal on stdout; what was read, and what it took, on stderr."""
    from mio_rag.cli.show import print_reasons, proof_of
    from mio_rag.cli.show_control import print_run

    refusal, usage = told.get("refusal"), told["usage"]
    if refusal is not None and refusal["refused"]:
        output.say(f"These passages probably do not answer the question ({refusal['probability']:.0%}).")
        output.say(f"{told['model']} would have said: {told['said'] or '(no answer)'}")
    elif told["answer"]:
        output.console.print(told["answer"], soft_wrap=True, markup=False)
    read = selection is not None and bool(selection.passages)
    if context and read:
        assert selection is not None
        output.console.print(f"\n{context_text(selection)}", soft_wrap=True, markup=False)
    elif read and outcome is None:
        assert selection is not None
        output.say("")
        for n, name in enumerate(headings(selection), 1):
            output.say(f"[{n}] {name}")
    if outcome is not None:
        print_run(output.notes, outcome.trace)
    if why and selection is not None:
        print_reasons(output.notes, selection)
    if selection is not None and (full or outcome is None):
        tier = told.get("tier")
        room = None
        if tier and told["budget"] is None:
            room = f"the tier {tier['name']} reads up to {tier['context']:,} {tier['unit']}"
        output.say(proof_of(selection, full=full, room=room))
    if outcome is not None:
        if said := _cost_in_words(usage, rate):
            output.say(said)
        return
    for note in selection.notes if selection is not None else ():
        output.say(f"note: {note}")
    output.say(
        f"{told['model']}: {usage['prompt_tokens']} prompt and {usage['completion_tokens']} answer tokens, "
        f"{usage['seconds']:.2f} s"
    )
    if rate is not None:
        output.say(rate.explain(usage["prompt_tokens"], usage["completion_tokens"]))


def _show_known(output: Output, question: str, known: Hit, rate: Rate | None) -> None:
    """An answer that was given before."""
    if output.as_json:
        usage = {**known.answer["usage"], **({} if rate is None else {"dollars": 0.0})}
        output.json({**known.answer, "question": question, "usage": usage, "cached": known.to_dict()})
    else:
        from mio_rag.cli.show import known_lines

        if known.answer["answer"]:
            output.console.print(known.answer["answer"], soft_wrap=True, markup=False)
        for line in known_lines(known):
            output.say(line)
    if not known.answer["answer"]:
        raise typer.Exit(3)


def _attempt(
    session: Controller, question: str, reader: Generator, budget: int, trace: Path | None
) -> Outcome:
    """Answer step by step, and keep the trace."""
    from mio_rag.session.trace import append_traces
    from mio_rag.types import Question

    # Some policies draw by question: each has an id of its own, the same in every run.
    name = f"question-{hashlib.sha256(question.encode()).hexdigest()[:12]}"
    found = session.attempt(Question(name, question), reader, budget)
    if trace is not None:
        append_traces(trace, [found.trace])
    return found.check()


def _paid(trace: Trace, rate: Rate | None, chosen: Chosen) -> dict[str, Any]:
    """Tokens and dollars by model; no dollars where one has no price."""
    from mio_rag.session.costs import Prices
    from mio_rag.session.trace import asked_by_model

    asked = asked_by_model(trace)
    if len(asked) <= 1:
        into, out = (sum(getattr(c, f"{k}_tokens") for c in trace.calls) for k in ("prompt", "completion"))
        return {} if rate is None else {"dollars": rate.cost(into, out)}
    given = dict(chosen.policy.prices.dollars)
    costs = {name: Prices(given).of(name, *tokens) for name, tokens in asked.items()} if given else {}
    told: dict[str, Any] = {
        "models": {
            name: {"prompt_tokens": into, "completion_tokens": out}
            | ({"dollars": costs[name]} if given else {})
            for name, (into, out) in asked.items()
        }
    }
    if given:
        known = [cost for cost in costs.values() if cost is not None]
        told["dollars"] = sum(known) if len(known) == len(costs) else None
    return told


def _cost_in_words(usage: dict[str, Any], rate: Rate | None) -> str:
    """What was paid, and to which model."""
    from mio_rag.allocation.money import dollars

    if "models" not in usage:
        return "" if rate is None else rate.explain(usage["prompt_tokens"], usage["completion_tokens"])
    if "dollars" not in usage:
        return ""
    costs = {name: model["dollars"] for name, model in usage["models"].items()}
    if lacking := ", ".join(f"'{name}'" for name, cost in costs.items() if cost is None):
        return f"no dollars: {lacking} has no price; set models.NAME.input and models.NAME.output"
    parts = ", ".join(f"{dollars(costs[name])} {name}" for name in sorted(costs, key=lambda n: n == "reader"))
    who = "" if rate is None else f", which is {rate.model}"
    return f"{dollars(usage['dollars'])} for these tokens ({parts}{who})"
