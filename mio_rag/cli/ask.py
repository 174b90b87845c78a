"""Commands for one question: select, ask, demo, solve, warmup."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.cli.control_options import (
    AgentOptions,
    CacheOptions,
    PlannerOptions,
    PolicyOption,
    RefusalFile,
    RouterOptions,
    StrategyChoice,
    named_workflow,
    only_planner,
    only_policy,
    read_refusal,
)
from mio_rag.cli.options import (
    Budget,
    ConfigFile,
    EmbedderName,
    Exclude,
    Explain,
    GeneratorSpec,
    Include,
    Json,
    Mapped,
    MaxTokens,
    ModeName,
    MoneyOptions,
    Pool,
    ProgramOptions,
    RelevanceOptions,
    SideOptions,
    SolverOptions,
    at_rate,
    check_request,
    check_weights,
    fitting,
    load_index,
    make_selector,
    spread,
)
from mio_rag.cli.output import Output, open_output
from mio_rag.errors import InputError, SolverError, collect

if TYPE_CHECKING:
    from mio_rag.allocation.money import Rate
    from mio_rag.cli.terminal import Terminal
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.evaluation.harness import EvaluationResult, EvaluationSettings
    from mio_rag.generation import Generator
    from mio_rag.policies.setup import ControlSettings
    from mio_rag.retrieval import CorpusIndex, Retriever
    from mio_rag.selection.result import Selection
    from mio_rag.selection.selector import Selector
    from mio_rag.session.cache import Hit
    from mio_rag.session.trace import Outcome, Trace


# -- select ----------------------------------------------------------------------------------------------


@spread
def select(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    budget_tokens: Budget = 256,
    *,
    program: ProgramOptions,
    must_include: Include = None,
    must_exclude: Exclude = None,
    evidence: RelevanceOptions,
    side: SideOptions,
    solving: SolverOptions,
    money: MoneyOptions,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    search: StrategyChoice,
    generator: Annotated[
        str | None, typer.Option("--generator", help="With --strategies: the model that they ask, as in ask.")
    ] = None,
    config: ConfigFile = None,
    explain: Explain = False,
    json_output: Json = False,
) -> None:
    """Choose passages for a question, and prove the choice. With --explain also say why.

    Where passages that are wanted do not fit, single sentences are chosen. Tokens are counted by an
    approximation; `ask` uses the tokenizer of its model.
    """
    from mio_rag.generation import check_generator
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.selector import check_ids

    output = open_output(json_output)
    if generator is not None and search.strategies is None:
        raise InputError("--generator: select asks no model without --strategies; to answer, use ask")
    program = fitting(program, decided=search.controller is not None)
    selector, _, _, found, prices, *_ = collect(
        lambda: side.applied(
            lambda: evidence.applied(
                lambda: make_selector(program, solving, must_include or (), must_exclude or ())
            ),
            program,
        ),
        lambda: check_index(index),
        lambda: check_request(question, budget_tokens),
        lambda: evidence.retrieval(pool, retrieval),
        lambda: money.money(program),
        search.check,
        lambda: None if generator is None else check_generator(generator),
    )
    rate = None if prices is None else prices.rate()
    selector = at_rate(selector, rate)
    corpus = load_index(index)
    check_ids(selector, corpus.ids)
    check_weights(selector, corpus)
    retriever = Retriever.of(corpus, found)
    searched: dict[str, Any] = {}
    if search.controller is None:
        selection = selector.select(retriever.retrieve(question), budget_tokens, retriever.counter)
    else:
        selection, searched = _searched(search, question, retriever, selector, budget_tokens, generator)
    if json_output:
        cost = {} if rate is None else {"dollars": rate.cost(selection.tokens_used)}
        output.json({"question": question, **cost, **selection.to_dict(), **searched})
        return
    from mio_rag.cli.show import print_selection
    from mio_rag.cli.show_control import print_searched

    print_selection(output.console, selection, explain=explain)
    if searched:
        print_searched(output.console, searched)
    if rate is not None:
        output.console.print(rate.explain(selection.tokens_used))


def _searched(
    search: StrategyChoice,
    question: str,
    retriever: Retriever,
    selector: Selector,
    budget_tokens: int,
    generator: str | None,
) -> tuple[Selection, dict[str, Any]]:
    """The selection from what strategies find, and who found it."""
    from mio_rag.generation import make_generator
    from mio_rag.learning.strategist import searched_json
    from mio_rag.policies.make import make_controller
    from mio_rag.policies.setup import ControlSettings, Setup
    from mio_rag.session.loop import Session
    from mio_rag.types import Question

    assert search.controller is not None
    reader = None if generator is None else make_generator(generator)
    try:
        settings = search.added(ControlSettings())
        session = make_controller(search.controller, Setup(settings, retriever, selector))
        assert isinstance(session, Session)
        outcome = session.select(Question("question", question), reader, budget_tokens).check()
    finally:
        if reader is not None:
            reader.close()
    assert outcome.selection is not None
    return outcome.selection, searched_json(outcome)


# -- ask -------------------------------------------------------------------------------------------------

#: Tokens that may be read where tiers say how much is.
_MOST = 1_000_000


@spread
def ask(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    generator: GeneratorSpec = "extractive",
    budget_tokens: Budget = 256,
    *,
    program: ProgramOptions,
    must_include: Include = None,
    must_exclude: Exclude = None,
    evidence: RelevanceOptions,
    side: SideOptions,
    solving: SolverOptions,
    money: MoneyOptions,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    max_tokens: MaxTokens = 64,
    controller: Annotated[
        str | None,
        typer.Option("--controller", help="Let an agent retrieve, reason and stop: mdp, or a baseline."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="Of an agent, a workflow, a planner or a policy: append its trace to this file."
        ),
    ] = None,
    workflow: Annotated[
        str | None,
        typer.Option("--workflow", help="Follow a workflow: a name of `mio-rag plan show`, or a JSON file."),
    ] = None,
    planning: PlannerOptions,
    policy: PolicyOption = None,
    agent: AgentOptions,
    caching: CacheOptions,
    refusal: RefusalFile = None,
    routing: RouterOptions,
    search: StrategyChoice,
    mapped: Mapped = False,
    config: ConfigFile = None,
    explain: Explain = False,
    json_output: Json = False,
) -> None:
    """Choose passages and let a model answer from them. Shows the answer and what was read.

    Where passages that are wanted do not fit, single sentences of them are read.
    """
    import dataclasses

    from mio_rag.ask import ask as answer_question
    from mio_rag.cli.show import print_answer, print_selection, print_verdict
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.generation.protocol import content_of
    from mio_rag.policies.make import has_tiers
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.selector import check_ids
    from mio_rag.session.cache import digest_of

    output = open_output(json_output)
    if workflow is not None:
        controller = named_workflow(controller, workflow)
    if planning.planner is not None:
        controller = only_planner(controller)
    if policy is not None:
        searches = search.controller is not None or routing.router is not None
        controller = only_policy(controller, policy, context, searches)
    if controller is not None and search.controller is not None:
        raise InputError("--strategies and another controller exclude each other: each decides how to search")
    controller = controller or search.controller
    if controller is None and routing.router is not None:
        controller = "routed"
    routing.check([controller] if controller else [])
    program = fitting(program, decided=controller is not None or refusal is not None)
    selector, control, _, _, _, found, prices, keeping, refusing, *_ = collect(
        lambda: side.applied(
            lambda: evidence.applied(
                lambda: make_selector(program, solving, must_include or (), must_exclude or ())
            ),
            program,
        ),
        lambda: agent.of(controller, trace, routing.applied, search.added, planning.adding(controller)),
        lambda: check_index(index),
        lambda: check_generator(generator),
        lambda: check_request(question, budget_tokens, max_tokens),
        lambda: evidence.retrieval(pool, retrieval),
        lambda: money.money(program),
        lambda: caching.checked(None if controller and has_tiers(controller) else controller),
        lambda: None if refusal is None else read_refusal(refusal, [controller] if controller else []),
        search.check,
        lambda: planning.kinds([]) if controller is None else None,
    )
    corpus, reader = collect(lambda: load_index(index, mapped), lambda: make_generator(generator))
    try:
        rate = None if prices is None else prices.rate(reader.name)
        selector = at_rate(selector, rate)
        check_ids(selector, corpus.ids)
        check_weights(selector, corpus)
        if refusing is not None:
            refusing.check_fits(corpus.embedder.fingerprint, reader.name)
        cache = None if keeping is None else caching.open(corpus, keeping)
        scope = ""
        if cache is not None:
            scope = digest_of(
                {
                    "selector": selector.to_dict(),
                    "retrieval": [found.pool, found.mode, found.link_hops, list(found.rerankers)],
                    "tokens": [budget_tokens, max_tokens],
                    "model": content_of(reader),
                    "refusal": None if refusing is None else dataclasses.asdict(refusing),
                    "controller": None if controller is None else [controller, control.to_dict()],
                    "seed": solving.seed,
                }
            )
        if (
            cache is not None
            and not explain
            and trace is None
            and (known := cache.get(question, scope)) is not None
        ):
            _show_known(output, question, known, rate)
            return
        if controller is not None:
            _ask_agent(
                output,
                controller,
                question,
                reader,
                Retriever.of(corpus, found, reader),
                selector,
                control,
                budget_tokens=_MOST if policy or has_tiers(controller) else budget_tokens,
                max_tokens=max_tokens,
                seed=solving.seed,
                trace=trace,
                explain=explain,
                rate=rate,
                keep=None if cache is None else lambda told: cache.put(question, scope, told),
            )
            return
        selection, answer = answer_question(
            corpus,
            question,
            reader,
            selector,
            budget_tokens=budget_tokens,
            pool=found.pool,
            mode=found.mode,
            max_tokens=max_tokens,
            link_hops=found.link_hops,
            rerankers=found.rerankers,
        )
    finally:
        reader.close()
    told = {
        "question": question,
        "answer": answer.text,
        "generator": answer.generator,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        **_dollars(rate, answer.prompt_tokens, answer.completion_tokens),
        "generate_seconds": answer.latency_seconds,
        **selection.to_dict(),
    }
    verdict = None if refusing is None else refusing.judge(question, selection, answer)
    if verdict is not None:
        told["refusal"] = verdict.to_dict()
        if verdict.refused:
            told["said"], told["answer"] = answer.text, ""
    if cache is not None:
        cache.put(question, scope, told)
    if json_output:
        output.json(told if cache is None else {**told, "cached": None})
        return
    if verdict is None:
        print_answer(output.console, answer)
    else:
        print_verdict(output.console, verdict, answer)
    output.console.print("read:", style="dim")
    print_selection(output.console, selection, explain=explain)
    _print_dollars(output, rate, answer.prompt_tokens, answer.completion_tokens)


def _show_known(output: Output, question: str, known: Hit, rate: Rate | None) -> None:
    """Show an answer that was given before."""
    from mio_rag.cli.show import print_known

    if output.as_json:
        told = {name: value for name, value in known.answer.items() if name != "dollars"}
        output.json({**told, "question": question, **_dollars(rate, 0, 0), "cached": known.to_dict()})
        return
    print_known(output.console, known)
    _print_dollars(output, rate, 0, 0)


def _dollars(rate: Rate | None, prompt_tokens: int, completion_tokens: int) -> dict[str, float]:
    return {} if rate is None else {"dollars": rate.cost(prompt_tokens, completion_tokens)}


def _print_dollars(output: Output, rate: Rate | None, prompt_tokens: int, completion_tokens: int) -> None:
    if rate is not None:
        output.console.print(rate.explain(prompt_tokens, completion_tokens))


def _ask_agent(
    output: Output,
    controller: str,
    question: str,
    generator: Generator,
    retriever: Retriever,
    selector: Selector,
    settings: ControlSettings,
    *,
    budget_tokens: int,
    max_tokens: int,
    seed: int,
    trace: Path | None,
    explain: bool,
    rate: Rate | None,
    keep: Callable[[dict[str, Any]], None] | None,
) -> None:
    """Answer one question through an agent, and show how."""
    import hashlib

    from mio_rag.cli.show import print_selection
    from mio_rag.cli.show_control import print_outcome, print_policy_run, print_workflow_run
    from mio_rag.policies.make import in_force as what_decided
    from mio_rag.policies.make import make_controller
    from mio_rag.policies.setup import Setup
    from mio_rag.session.trace import append_traces
    from mio_rag.types import Question

    agent = make_controller(controller, Setup(settings, retriever, selector, max_tokens, seed))
    # Luck is drawn by question: each has an id of its own, the same in every run.
    name = f"question-{hashlib.sha256(question.encode()).hexdigest()[:12]}"
    found = agent.attempt(Question(name, question), generator, budget_tokens)
    if trace is not None:
        append_traces(trace, [found.trace])
    outcome = found.check()
    in_force = what_decided(outcome, selector) if "tiers" in outcome.trace.settings else {}
    told, room = _outcome_json(outcome, in_force), None
    if in_force and in_force["budget_tokens"] is None:
        room = f"the tier {in_force['tier']} reads up to {in_force['context']:,} {in_force['context_unit']}"
    if keep is not None and outcome.selection is not None and outcome.trace.ended == "stop":
        keep(told)
    paid, said = _paid(outcome.trace, rate, settings)
    if output.as_json:
        output.json({**told, **paid, **({} if keep is None else {"cached": None})})
    else:
        if "policy" in outcome.trace.settings:
            print_policy_run(output.console, outcome.trace)
        elif "workflow" in outcome.trace.settings:
            print_workflow_run(output.console, outcome.trace)
        else:
            print_outcome(output.console, outcome.trace)
        if explain and outcome.selection is not None:
            output.console.print("\nread in the end:", style="dim")
            print_selection(output.console, outcome.selection, explain=True, room=room)
        if said:
            output.console.print(said)


def _paid(trace: Trace, rate: Rate | None, settings: ControlSettings) -> tuple[dict[str, Any], str]:
    """Tokens and dollars by model, for JSON and in words; no dollars where one has no price."""
    from mio_rag.allocation.money import dollars
    from mio_rag.session.costs import Prices
    from mio_rag.session.models import workflow_settings
    from mio_rag.session.trace import asked_by_model

    into, out = (sum(getattr(call, f"{k}_tokens") for call in trace.calls) for k in ("prompt", "completion"))
    asked = asked_by_model(trace)
    told: dict[str, Any] = {}
    if len(asked) > 1:
        each = {
            name: dict(zip(("prompt_tokens", "completion_tokens"), both, strict=True))
            for name, both in asked.items()
        }
        told = {"models": each}
    elif rate is not None:
        return {"dollars": rate.cost(into, out)}, rate.explain(into, out)
    given = dict(workflow_settings(settings.kinds).prices)
    if rate is not None:
        given["reader"] = (rate.into, rate.out)
    if not given:
        return told, ""
    prices = Prices(given)
    costs = {name: prices.of(name, *tokens) for name, tokens in asked.items()}
    known = {name: cost for name, cost in costs.items() if cost is not None}
    if len(known) < len(costs):
        lacking = ", ".join(f"'{name}'" for name in costs if name not in known)
        why = f"no dollars: {lacking} has no price; give --model-price NAME=IN,OUT"
        return {**told, "dollars": None}, why
    parts = ", ".join(f"{dollars(known[name])} {name}" for name in sorted(known, key=lambda n: n == "reader"))
    total, who = sum(known.values()), "" if rate is None else f", which is {rate.model}"
    return {**told, "dollars": total}, f"{dollars(total)} for these tokens ({parts}{who})"


def _outcome_json(outcome: Outcome, in_force: dict[str, Any]) -> dict[str, Any]:
    """Plain data of an outcome: the answer, the selection, what decided its size, and the whole trace."""
    selection = {} if outcome.selection is None else outcome.selection.to_dict()
    trace = outcome.trace
    return {
        "question": trace.question,
        "answer": trace.answer,
        "generator": trace.generator,
        "prompt_tokens": sum(call.prompt_tokens for call in trace.calls),
        "completion_tokens": sum(call.completion_tokens for call in trace.calls),
        "lm_calls": sum(call.lm_calls for call in trace.calls),
        "retrieval_calls": sum(call.retrieval_calls for call in trace.calls),
        **selection,
        **in_force,
        "trace": trace.to_dict(),
    }


# -- demo ------------------------------------------------------------------------------------------------

_SHOWN_QUESTION = "q-04"  # one on which the methods differ; the table of means follows it
_BUDGETS = (256, 512)
# All that a demo writes: a folder with anything else is not removed.
_FILES = {
    "run.json",
    "rows.jsonl",
    "summary.json",
    "comparisons.json",
    "matched.json",
    "ledger.parquet",
    "report.html",
}


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder of the report.")] = Path("mio-rag-demo"),
    embedder: EmbedderName = "minilm",
    generator: GeneratorSpec = "extractive",
    json_output: Json = False,
) -> None:
    """Choose, answer, and compare with fused top-k. On the bundled questions; under a minute."""
    from mio_rag.cli.show import evaluation_json

    output = open_output(json_output)
    result = run_demo(output.console, out, embedder, generator)
    if json_output:
        output.json(evaluation_json(result))


def run_demo(console: Terminal, out: Path, embedder: str, generator_spec: str) -> EvaluationResult:
    """Run the demo and write its report to `out`.

    Parameters
    ----------
    out : Path
        A new folder, or one of an earlier demo, which is replaced.
    """
    from mio_rag.cli.show import print_summary
    from mio_rag.cli.terminal import progress_bar, styled
    from mio_rag.corpora.load import load_dataset
    from mio_rag.evaluation.harness import EvaluationSettings, evaluate_and_report
    from mio_rag.evaluation.statistics import part_read
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.embedders import check_embedder
    from mio_rag.selection.selector import Selector
    from mio_rag.solvers.result import SolveOptions

    if out.exists() and not _is_earlier_demo(out):
        raise InputError(f"'{out}' exists and holds no earlier demo: choose another folder with --out")
    collect(lambda: check_embedder(embedder), lambda: check_generator(generator_spec))
    dataset = load_dataset("demo")
    selector = Selector(options=SolveOptions(time_limit_seconds=5.0))
    settings = EvaluationSettings(
        methods=("fused", "mmr", "exact", "exact:auto"),
        budgets=_BUDGETS,
        selector=selector,
        max_tokens=32,
    )
    with closing(make_generator(generator_spec)) as generator:
        with progress_bar(f"embedding with {embedder}", len(dataset.passages)) as advance:
            index = CorpusIndex.build(dataset.passages, embedder, dataset.name, advance)
        _show_one(console, dataset, index, generator, settings)
        _clear(out)
        with progress_bar("evaluating", len(dataset.questions)) as advance:
            result = evaluate_and_report(dataset, index, generator, settings, out, progress=advance)
    console.print(
        styled(
            (f"\n{len(dataset.questions)} questions over {len(dataset.passages)} passages", "bold"),
            (
                f"   embedder {index.embedder.name}, reader {generator.name}, "
                f"pool {settings.retrieval.pool}; means, intervals are in the report\n",
                "dim",
            ),
        )
    )
    print_summary(console, result.summary, result.comparisons, result.run["baseline"])
    console.print(f"\nnote: {part_read(result.run)}", style="yellow", soft_wrap=True)
    console.print(f"\nreport: {result.folder / 'report.html'}", soft_wrap=True)
    console.print(
        "to ask your own questions on a page: mio-rag index demo --out INDEX, then mio-rag serve INDEX"
    )
    return result


def _show_one(
    console: Terminal,
    dataset: Dataset,
    index: CorpusIndex,
    generator: Generator,
    settings: EvaluationSettings,
) -> None:
    """One question in full: what the program chooses and why, and what fused top-k would have read."""
    from mio_rag.cli.show import print_selection
    from mio_rag.cli.terminal import styled
    from mio_rag.evaluation.contenders import make_methods
    from mio_rag.retrieval import Retriever

    question = next(q for q in dataset.questions if q.id == _SHOWN_QUESTION)
    candidates = Retriever.of(index, settings.retrieval, generator).retrieve(question.text)
    fused, exact = (
        method.select(candidates, _BUDGETS[0], generator)
        for method in make_methods(["fused", "exact"], settings.selector)
    )
    console.print(
        styled(
            (f"\n{question.text}", "bold"),
            (f"   budget {_BUDGETS[0]} tokens, pool of {len(candidates)}\n", "dim"),
        )
    )
    print_selection(console, exact, explain=True, show_rest=3)
    for name, selection in (("chosen above", exact), ("fused top-k", fused)):
        held = sum(i in question.gold_ids for i in selection.ids)
        console.print(
            styled(
                f"{name}: {held} of {len(question.gold_ids)} evidence passages in "
                f"{selection.tokens_used} tokens ",
                (f"({', '.join(selection.ids)})", "dim"),
            )
        )


def _is_earlier_demo(folder: Path) -> bool:
    """Whether a folder holds a demo, which may have been killed at any moment, and nothing else."""
    from mio_rag.storage import is_leftover, is_vacant, read_json

    try:
        if is_vacant(folder):
            return True
        run = read_json(folder / "run.json")
        others = {p.name for p in folder.iterdir() if not is_leftover(p.name)} - _FILES
        return bool(run["dataset"] == "demo") and not others
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _clear(folder: Path) -> None:
    """Remove an earlier demo, unless it is still at work."""
    from mio_rag.storage import locked

    if not folder.exists():
        return
    with locked(folder):
        try:
            for name in [*sorted(_FILES - {"run.json"}), "run.json"]:  # by the last one a demo is known
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"'{folder}' cannot be written: {error}") from error


# -- solve -----------------------------------------------------------------------------------------------


@spread
def solve(
    program: Annotated[
        str,
        typer.Argument(
            help="JSON file: linear, pairwise, costs, budget, rows, fixed, segments; - for stdin."
        ),
    ],
    *,
    solving: SolverOptions,
    json_output: Json = False,
) -> None:
    """Solve one selection program given as JSON."""
    from mio_rag.cli.show import print_result
    from mio_rag.formulations.program import SelectionProgram
    from mio_rag.solvers.paths import find_conflict
    from mio_rag.solvers.registry import solve as run_solver
    from mio_rag.storage import read_text

    output = open_output(json_output)

    def parse() -> SelectionProgram:
        text = read_text(program)
        try:
            return SelectionProgram.from_json(text)
        except InputError as error:
            where = "standard input" if program == "-" else f"'{program}'"
            raise InputError([f"{where}: {problem}" for problem in error.problems]) from error

    parsed, options = collect(parse, solving.checked)
    result = run_solver(parsed, solving.solver, options)
    if result.status == "error":
        raise SolverError(result.message)
    used = None if result.x is None else parsed.cost(result.x)
    infeasible = result.status == "infeasible"
    conflict = find_conflict(parsed, [f"item {i}" for i in range(parsed.n)]) if infeasible else None
    if json_output:
        selected = None if result.x is None else list(result.selected)
        named = conflict and {**asdict(conflict), "parts": list(conflict.parts)}
        output.json({**result.to_dict(), "selected": selected, "tokens_used": used, "conflict": named})
    else:
        print_result(output.console, result, used)
        if conflict is not None:
            output.console.print(conflict.explain(), soft_wrap=True)


def warmup(json_output: Json = False) -> None:
    """Compile the kernels in advance (needed once per machine)."""
    from mio_rag.solvers.branch_and_bound import warmup as compile_kernel
    from mio_rag.solvers.mdp import warmup as compile_processes

    output = open_output(json_output)
    seconds = compile_kernel() + compile_processes()
    if json_output:
        output.json({"seconds": seconds})
    else:
        output.console.print(f"the kernels are ready ({seconds:.1f} s)")
