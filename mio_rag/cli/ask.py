"""Commands for one question: select and ask."""

from __future__ import annotations

import hashlib
import html
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.cli import options as o
from mio_rag.errors import InputError, choose

if TYPE_CHECKING:
    from mio_rag.allocation.money import Rate
    from mio_rag.cli.chosen import Chosen
    from mio_rag.generation import Generator
    from mio_rag.retrieval import Retriever
    from mio_rag.selection.result import Selection
    from mio_rag.session.cache import AnswerCache, Hit
    from mio_rag.session.trace import Outcome, Trace

#: Tokens that may be read where tiers or a policy limit them.
_MOST = 1_000_000
_FORMATS = ("text", "markdown", "xml", "json")


# -- select -----------------------------------------------------------------------------------------------


@o.command("path question budget where units plugin policy set embedder why proof no_refresh mapped json")
def select(
    call: o.Call,
    method: Annotated[str, "mio, topk, bm25, fused, mmr, topk:K, or your own (--plugin)."] = "mio",
    model: Annotated[str | None, "Count tokens as this model does. [default: approximate]"] = None,
    form: Annotated[str, o.opt("text, markdown, xml or json.", "--format")] = "text",
) -> None:
    """Print the passages that answer QUESTION, within a token budget.

    Documents are indexed on first use, and again when they change. The context is printed on stdout, the rest
    on stderr.

    \b
      mio-rag select handbook "What is the full-day allowance in Norway?"
      mio-rag select handbook "Who is on call?" | llm "Answer briefly"
    """
    from mio_rag.generation import check_generator, reader_spec
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.notes import noted

    if form == "json" and not call.json:
        call = o.Call({**vars(call), "json": True})
    output, question = call.output, call.question
    spec = None if model is None else reader_spec(model)
    wrong = [] if form in _FORMATS else [f"--format {form} is unknown: {choose(form, _FORMATS)}"]
    chosen, *_ = call.check(
        lambda: o.check_question(question),
        lambda: o.refuse(wrong),
        lambda: None if spec is None else check_generator(spec),
        policy=lambda: call.chosen().check(),
    )
    pipeline = _strategies(chosen)
    found = call.open()
    o.check_fits(chosen.selector, found.index)
    searched: dict[str, Any] = {}
    with call.reader(spec) as reader:
        retriever = Retriever.of(found.index, chosen.policy.search.retrieval, reader)
        if pipeline is not None or (method == "mio" and not chosen.is_plain):
            selection, searched = _searched(chosen, pipeline, question, retriever, reader)
        else:
            pool, budget, selector = (
                retriever.retrieve(question),
                chosen.policy.limits.budget,
                chosen.selector,
            )
            if method != "mio":
                from mio_rag.methods import make_methods

                (selector,) = make_methods([method], selector)
            selection = selector.select(pool, budget, retriever.counter)
    # As text it was reported already what a filter left out.
    selection = noted(selection, found.index, None if output.as_json else ())
    rate = chosen.rate("" if reader is None else reader.name)
    if output.as_json:
        told = selection.to_dict(question=question, why=call.why, proof=call.proof)
        told |= {} if rate is None else {"dollars": rate.cost(selection.tokens_used)}
        output.json({**told, **({"search": searched} if searched else {})})
    else:
        from mio_rag.cli.show import proof_of, reasons_of, searched_lines

        if selection.passages:
            output.text(context_text(selection, form))
        if call.why:
            output.say(*reasons_of(selection, output.notes), *(searched_lines(searched) if searched else ()))
        output.say(proof_of(selection, full=call.proof or call.why), *_noted(selection))
        if rate is not None:
            output.say(rate.explain(selection.tokens_used))
    if not selection.chosen:
        raise typer.Exit(3)


def _noted(selection: Selection | None) -> list[str]:
    return [f"note: {note}" for note in ([] if selection is None else selection.notes)]


def _strategies(chosen: Chosen) -> str | None:
    """Return the strategies that a policy searches by; `InputError` for what does more than select."""
    name, search = chosen.controller, chosen.policy.search
    if name is not None and not name.startswith("strategies:"):
        raise InputError(f"--policy {name} answers questions, and select only reads: use ask")
    if name is not None or search.strategies == ("raw",):
        return name
    return "strategies:bandit" if search.by == "bandit" else f"strategies:{'+'.join(search.strategies)}"


def _searched(
    chosen: Chosen, name: str | None, question: str, retriever: Retriever, reader: Generator | None
) -> tuple[Selection, dict[str, Any]]:
    """Return the selection from what strategies or a policy find, and which strategies found it."""
    from mio_rag.learning.strategist import searched_json
    from mio_rag.policies.make import make_controller
    from mio_rag.policies.setup import Setup
    from mio_rag.session.loop import Session
    from mio_rag.types import Question

    session = chosen.session(retriever)
    if name is not None:
        session = make_controller(name, Setup(chosen.control, retriever, chosen.selector))
    assert isinstance(session, Session)
    outcome = session.select(Question("question", question), reader, chosen.policy.limits.budget).check()
    assert outcome.selection is not None
    return outcome.selection, searched_json(outcome)


def context_text(selection: Selection, form: str = "text") -> str:
    """Return a context for a prompt: text, markdown or xml."""
    parts = enumerate(zip(selection.labels, selection.texts, strict=True), 1)
    if form == "xml":
        told = [
            f'<passage n="{n}" source="{html.escape(name)}">\n{html.escape(text, quote=False)}\n</passage>'
            for n, (name, text) in parts
        ]
        return "\n".join(["<context>", *told, "</context>"])
    begin = "### [{}] {}\n\n{}" if form == "markdown" else "[{}] {}\n{}"
    return "\n\n".join(begin.format(n, name, text) for n, (name, text) in parts)


# -- ask --------------------------------------------------------------------------------------------------


@o.command(
    "path question budget where units model answer policy set embedder why proof no_refresh mapped json"
)
def ask(
    call: o.Call,
    show_context: Annotated[bool, "Print the context below the answer."] = False,
    trace: Annotated[Path | None, "Append every decision to this file; see policy replay."] = None,
) -> None:
    """Answer QUESTION from the selected passages.

    The answer is printed on stdout, what was read on stderr.

    \b
      mio-rag ask handbook "..." --model openai:gpt-5-mini
      mio-rag ask handbook "..." --model openai:MODEL@http://localhost:8080/v1
      mio-rag ask handbook "..." --model gguf:model.gguf
    """
    from mio_rag.generation import check_generator, reader_spec
    from mio_rag.policies.make import has_tiers
    from mio_rag.refusal.model import Refusal
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.notes import noted
    from mio_rag.session.trace import append_traces
    from mio_rag.types import Question

    output, question, spec = call.output, call.question, reader_spec(call.model)
    lost = trace is not None and (trace.is_dir() or not trace.absolute().parent.is_dir())
    chosen, *_ = call.check(
        lambda: o.check_question(question),
        lambda: check_generator(spec),
        lambda: o.refuse([f"--trace must be a file in a folder that exists, got {trace}"] * lost),
        policy=lambda: call.chosen().check(),
    )
    steps = chosen.has_steps or trace is not None
    answers, kept = chosen.policy.answers, chosen.cache()
    tiers = chosen.controller is not None and has_tiers(chosen.controller)
    for name, given in (("refusal", answers.refusal), ("cache", None if tiers else kept)):
        if steps and given:
            raise InputError(
                f"answers.{name} does not go with a policy of several steps: leave one of them out"
            )
    refusing = None if answers.refusal is None else Refusal.load(answers.refusal)
    index = call.open().index
    o.check_fits(chosen.selector, index)
    outcome: Outcome | None = None
    with call.reader(spec, chosen.policy.limits.timeout) as reader:
        if refusing is not None:
            refusing.check_fits(index.embedder.fingerprint, reader.name)
        rate, cache, scope = chosen.rate(reader.name), None, ""
        if kept is not None:
            cache, scope = _cache(chosen, index, reader, refusing)
            if not call.why and trace is None and (known := cache.get(question, scope)) is not None:
                _show_known(call, known, rate)
                return
        retriever = Retriever.of(index, chosen.policy.search.retrieval, reader)
        if steps:
            allowed = chosen.policy.limits.budget if chosen.controller and not tiers else _MOST
            # Some policies draw by question: each has an id of its own, the same in every run.
            asked = Question(f"question-{hashlib.sha256(question.encode()).hexdigest()[:12]}", question)
            outcome = chosen.session(retriever).attempt(asked, reader, allowed)
            if outcome.selection is not None:
                outcome = replace(outcome, selection=noted(outcome.selection, index, ()))
            if trace is not None:
                append_traces(trace, [outcome.trace])
            told, selection = _outcome_json(call, outcome.check(), chosen, rate), outcome.selection
        else:
            told, selection = _answered(call, chosen, reader, retriever, rate, refusing)
        told["notes"] += [one.to_dict() for one in index.lacking]
        if cache is not None and (outcome is None or (selection and outcome.trace.ended == "stop")):
            cache.put(question, scope, told)
    if output.as_json:
        output.json(told if cache is None else {**told, "cached": None})
    else:
        if spec == "extractive" and not call.model:
            output.say("No --model is named: the answer is a span, quoted by its words (extract).")
        _print_answer(call, told, selection, outcome, rate, show_context)
    if not told["answer"]:
        raise typer.Exit(3)


def _cache(chosen: Chosen, index: Any, reader: Generator, refusing: Any) -> tuple[AnswerCache, str]:
    """Return where answers are kept, and what an answer depends on besides the question."""
    from mio_rag.generation.protocol import content_of
    from mio_rag.session.cache import AnswerCache, digest_of

    policy, name = chosen.policy, chosen.controller
    scope = digest_of(
        {
            "policy": policy.content(),
            "selector": chosen.selector.to_dict(),
            "model": content_of(reader),
            "refusal": None if refusing is None else asdict(refusing),
            "controller": None if name is None else [name, chosen.control.to_dict()],
        }
    )
    assert policy.answers.cache is not None
    return AnswerCache.of(policy.answers.cache, index, chosen.cache()), scope


def _answered(
    call: o.Call, chosen: Chosen, reader: Generator, retriever: Retriever, rate: Rate | None, refusing: Any
) -> tuple[dict[str, Any], Selection]:
    """Answer by one search, one program and one call of the model; as plain data."""
    from mio_rag.retrieval.notes import noted
    from mio_rag.session.ask import answer_from

    limits = chosen.policy.limits
    selection, answer = answer_from(
        retriever, call.question, reader, chosen.selector, budget_tokens=limits.budget,
        max_tokens=limits.max_tokens,
    )  # fmt: skip
    selection = noted(selection, retriever.index, ())
    into, out = answer.prompt_tokens, answer.completion_tokens
    usage = {"prompt_tokens": into, "completion_tokens": out, "seconds": answer.latency_seconds}
    usage |= {"estimated": True} if answer.estimated else {}
    told = {
        **selection.to_dict(question=call.question, why=call.why, proof=call.proof),
        "answer": answer.text,
        "citations": selection.cited(answer.text),
        "model": answer.generator,
        "usage": usage if rate is None else {**usage, "dollars": rate.cost(into, out)},
    }
    if refusing is not None:
        verdict = refusing.judge(call.question, selection, answer)
        told["refusal"] = verdict.to_dict()
        if verdict.refused:
            told |= {"said": answer.text, "answer": "", "citations": []}
    return told, selection


def _outcome_json(call: o.Call, outcome: Outcome, chosen: Chosen, rate: Rate | None) -> dict[str, Any]:
    """Return what came of a question that was answered step by step, as plain data."""
    from mio_rag.policies.make import in_force

    trace, selection = outcome.trace, outcome.selection
    told: dict[str, Any] = {
        "version": 1, "question": trace.question, "context": "", "tokens": 0, "budget": None, "parts": [],
        "answerable": None, "method": None, "status": "none", "gap": None, "seconds": 0.0, "notes": [],
    }  # fmt: skip
    if selection is not None:
        told = selection.to_dict(question=trace.question, why=call.why, proof=call.proof)
    if "tiers" in trace.settings:
        tier = in_force(outcome, chosen.selector)
        told |= {
            "budget": tier["budget_tokens"],
            "tier": {"name": tier["tier"], "context": tier["context"], "unit": tier["context_unit"]},
        }
    sums = {"prompt_tokens": "prompt_tokens", "completion_tokens": "completion_tokens",
            "model_calls": "lm_calls", "searches": "retrieval_calls"}  # fmt: skip
    usage = {name: sum(getattr(one, of) for one in trace.calls) for name, of in sums.items()}
    return {
        **told,
        "answer": trace.answer,
        "citations": [] if selection is None else selection.cited(trace.answer),
        "model": trace.generator,
        "usage": {**usage, "seconds": trace.seconds, **_paid(trace, rate, chosen)},
        **({"trace": trace.to_dict()} if call.why else {}),
    }


def _paid(trace: Trace, rate: Rate | None, chosen: Chosen) -> dict[str, Any]:
    """Return tokens and dollars by model; no dollars where one has no price."""
    from mio_rag.session.trace import asked_by_model

    asked = asked_by_model(trace)
    if len(asked) <= 1:
        into, out = (sum(getattr(c, f"{k}_tokens") for c in trace.calls) for k in ("prompt", "completion"))
        return {} if rate is None else {"dollars": rate.cost(into, out)}
    prices = chosen.policy.prices
    models: dict[str, Any] = {
        name: {"prompt_tokens": into, "completion_tokens": out} for name, (into, out) in asked.items()
    }
    if not prices.dollars:
        return {"models": models}
    costs = {name: prices.of(name, *tokens) for name, tokens in asked.items()}
    for name, cost in costs.items():
        models[name]["dollars"] = cost
    known = [cost for cost in costs.values() if cost is not None]
    return {"models": models, "dollars": sum(known) if len(known) == len(costs) else None}


def _cost_in_words(usage: dict[str, Any], rate: Rate | None) -> list[str]:
    """Say what was paid, and to which model."""
    from mio_rag.allocation.money import dollars

    if "models" not in usage:
        return [] if rate is None else [rate.explain(usage["prompt_tokens"], usage["completion_tokens"])]
    if "dollars" not in usage:
        return []
    costs = {name: model["dollars"] for name, model in usage["models"].items()}
    if lacking := ", ".join(f"'{name}'" for name, cost in costs.items() if cost is None):
        return [f"no dollars: {lacking} has no price; set models.NAME.input and models.NAME.output"]
    parts = ", ".join(f"{dollars(costs[name])} {name}" for name in sorted(costs, key=lambda n: n == "reader"))
    who = "" if rate is None else f", which is {rate.model}"
    return [f"{dollars(usage['dollars'])} for these tokens ({parts}{who})"]


def _print_answer(
    call: o.Call, told: dict[str, Any], selection: Selection | None, outcome: Outcome | None,
    rate: Rate | None, show_context: bool,
) -> None:  # fmt: skip
    """Print the answer or a refusal on stdout; what was read, and what it took, on stderr."""
    from mio_rag.cli.show import proof_of, reasons_of, run_lines

    output, refusal, usage = call.output, told.get("refusal"), told["usage"]
    if refusal is not None and refusal["refused"]:
        output.say(
            f"These passages probably do not answer the question ({refusal['probability']:.0%}).",
            f"{told['model']} would have said: {told['said'] or '(no answer)'}",
        )
    elif told["answer"]:
        output.text(told["answer"])
    full = call.why or call.proof
    if selection is not None and selection.passages:
        if show_context:
            output.text(f"\n{context_text(selection)}")
        elif outcome is None:
            output.say("", *(f"[{n}] {name}" for n, name in enumerate(selection.labels, 1)))
    if outcome is not None:
        output.say(*run_lines(outcome.trace))
    if call.why and selection is not None:
        output.say(*reasons_of(selection, output.notes))
    if selection is not None and (full or outcome is None):
        room, tier = None, told.get("tier")
        if tier and told["budget"] is None:
            room = f"the tier {tier['name']} reads up to {tier['context']:,} {tier['unit']}"
        output.say(proof_of(selection, full=full, room=room))
    if outcome is None:
        into, out = usage["prompt_tokens"], usage["completion_tokens"]
        output.say(
            *_noted(selection),
            f"{told['model']}: {into} prompt and {out} answer tokens"
            f"{', estimated' * ('estimated' in usage)}, {usage['seconds']:.2f} s",
        )
    output.say(*_cost_in_words(usage, rate))


def _show_known(call: o.Call, known: Hit, rate: Rate | None) -> None:
    """Print an answer that was given before."""
    from mio_rag.cli.show import known_lines

    usage = {**known.answer["usage"], **({} if rate is None else {"dollars": 0.0})}
    if call.json:
        told = {**known.answer, "question": call.question, "usage": usage, "cached": known.to_dict()}
        call.output.json(told)
    else:
        if known.answer["answer"]:
            call.output.text(known.answer["answer"])
        call.output.say(*known_lines(known))
    if not known.answer["answer"]:
        raise typer.Exit(3)
