"""The optimizer's bench: lab solve, frontier, radius, warmup."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from mio_rag.cli import options as o
from mio_rag.cli.output import Output, kept_rows
from mio_rag.cli.terminal import Table, dim, heading, notes, styled
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, SolverError, collect
from mio_rag.evaluation.ledger import check_folder
from mio_rag.formulations.program import SelectionProgram
from mio_rag.frontier.dataset import FrontierSettings, data_frontier, deciding_measures
from mio_rag.frontier.page import plot_query
from mio_rag.frontier.paths import check_values, query_frontier
from mio_rag.generation import check_generator, reader_spec
from mio_rag.learning.mdp import Plan, model_of, sensitivity, solve_plan, structure, to_json
from mio_rag.measures import Use, evidence_measure, frontier_measures
from mio_rag.pictures import check_figure
from mio_rag.retrieval import Retriever
from mio_rag.retrieval.radius import check_method, measure_radius, write_radii
from mio_rag.solvers.paths import find_conflict
from mio_rag.solvers.registry import check_name
from mio_rag.solvers.registry import solve as run_solver
from mio_rag.solvers.result import SolveOptions
from mio_rag.sources import kind_of
from mio_rag.storage import read_text

lab_app = o.group("The optimizer's bench: programs, other settings, errors of embeddings.")
Record = Mapping[str, Any]


# -- solve ------------------------------------------------------------------------------------------------


@o.command("seed json", app=lab_app, name="solve")
def lab_solve(
    call: o.Call,
    program: Annotated[
        str, o.arg("A selection program (JSON; - for stdin), or a decision process: a TOML file, or mdp.")
    ],
    solver: Annotated[
        str, "auto, branch_and_bound, exhaustive, highs, highs-glover, cpsat, pyomo[:NAME], or a heuristic."
    ] = "auto",
    time_limit: Annotated[float, "Seconds; then the certified gap is reported."] = 10.0,
    relative_gap: Annotated[float, "Stop at this proven relative gap. 0: exact."] = DEFAULTS.gap,
    threads: Annotated[int, "Threads of the solver."] = 1,
    set_: Annotated[
        list[str] | None,
        o.opt("Of a process: horizon, quality, k, discount, grid.", "--set", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Solve a selection program or a decision process.

    \b
      mio-rag lab solve program.json --solver cpsat
      mio-rag lab solve mdp --set horizon=inf --set quality=log
    """
    if program == "mdp" or program.endswith(".toml"):
        _solve_process(call.output, None if program == "mdp" else Path(program), set_)
        return

    def parse() -> SelectionProgram:
        text = read_text(program)
        try:
            return SelectionProgram.from_json(text)
        except InputError as error:
            where = "standard input" if program == "-" else f"'{program}'"
            raise InputError([f"{where}: {problem}" for problem in error.problems]) from error

    parsed, options, _ = collect(
        parse,
        lambda: SolveOptions(time_limit, relative_gap, threads=threads, seed=call.seed),
        lambda: check_name(solver),
    )
    result = run_solver(parsed, solver, options)
    if result.status == "error":
        raise SolverError(result.message)
    told: dict[str, Any] = {**result.to_dict(), "selected": None, "tokens_used": None, "conflict": None}
    lines = [result.certificate()]
    if result.x is not None:
        told |= {"selected": list(result.selected), "tokens_used": parsed.cost(result.x)}
        lines.append(f"selected {told['selected']}, cost {told['tokens_used']:g}")
    if result.status == "infeasible":
        conflict = find_conflict(parsed)
        if conflict is not None:
            told["conflict"] = {**asdict(conflict), "parts": list(conflict.parts)}
            lines.append(conflict.explain())
    call.output.result(told, *lines)


def _solve_process(output: Output, path: Path | None, sets: list[str] | None) -> None:

    given: dict[str, Any] = {}
    for name, text in o.pairs("--set", sets).items():
        try:
            given[name] = float(text) if "." in text or "e" in text else int(text)
        except ValueError:
            given[name] = text
    model = model_of(path, given)
    if "k" in given and model.quality != "exp":
        raise InputError(f"k is the steepness of exp, and the quality is {model.quality}: leave it out")
    start = time.perf_counter()
    plan = solve_plan(model)
    shape, changes = structure(plan), sensitivity(plan)
    told = to_json(plan, shape, changes, time.perf_counter() - start)
    output.result(told, *plan_lines(plan, shape, changes))


# -- frontier ---------------------------------------------------------------------------------------------


@o.command("path questions policy set embedder limit resume json", app=lab_app, name="frontier")
def lab_frontier(
    call: o.Call,
    question: Annotated[str | None, o.arg("Without one: a whole question set.", "[QUESTION]")] = None,
    budgets: Annotated[
        str | None, o.opt("Token budgets. [default: 1024; a set: 128,256,512]", "--budget", "-b")
    ] = None,
    up_to: Annotated[int | None, "Of a question: largest budget. [default: twice the budget]"] = None,
    plot: Annotated[Path | None, "Of a question: draw it into this .png, .svg or .pdf file."] = None,
    weights: Annotated[str | None, "Redundancy weights. [default: 0,0.05,0.1,0.2,0.4; 0,0.1]"] = None,
    radii: Annotated[str | None, "Radii of embeddings. [default: 0,0.05,0.1; 0,0.05]"] = None,
    penalties: Annotated[str, "Of a set: passage penalties, adaptive or auto."] = "adaptive,0.05",
    token_prices: Annotated[str, "Of a set: prices of a token that all questions share."] = "",
    reference_radius: Annotated[float, "Of a set: error for measuring robustness."] = 0.05,
    draws: Annotated[int, "Of a set: random errors per question for stability. 0: none."] = 3,
    slack: Annotated[float, "Of a set: evidence to trade for fewer tokens."] = 0.02,
    model: Annotated[str | None, "Of a set: also answer, and score answers."] = None,
    out: Annotated[Path | None, "Of a set: folder of ledger, frontier.json, .png and .html."] = None,
) -> None:
    """Show what other settings would select, each with its certificate.

    With QUESTION: where the selection changes from budget to budget, and what more tokens bring. Without one:
    evidence, tokens, diversity and robustness of every setting on a question set, and a page to browse.
    """
    if question is None and out is None:
        raise InputError("give a QUESTION, or --out FOLDER for a question set")
    at, chosen = collect(
        lambda: o.whole_numbers("--budget", budgets or ("1024" if question is not None else "128,256,512")),
        lambda: call.chosen().whole(),
    )
    search = chosen.policy.search.retrieval
    if question is not None:
        if len(at) > 1:
            raise InputError(f"--budget must be one number for a question, got {budgets}")
        budget = at[0]
        far = [f"--up-to {up_to} is below --budget {budget}: the path ends there"]
        lambdas, radius_list, *_ = collect(
            lambda: _grid("--weights", weights or "0,0.05,0.1,0.2,0.4"),
            lambda: _grid("--radii", radii or "0,0.05,0.1"),
            lambda: o.check_question(question),
            lambda: o.refuse(far if up_to is not None and up_to < budget else []),
            lambda: None if plot is None else check_figure(plot),
            lambda: kind_of(call.path),
        )
        index = call.open().index
        o.check_fits(chosen.selector, index)
        retriever = Retriever.of(index, search)
        with o.progress("tokens settled", up_to or max(2 * budget, budget + 200)) as advance:
            data = query_frontier(
                retriever.retrieve(question), chosen.selector, budget, up_to=up_to, weights=lambdas,
                radii=radius_list, counter=retriever.counter, progress=advance,
            ).to_dict()  # fmt: skip
        if plot is not None:
            plot_query(data, plot)
        call.output.result(data, *query_lines(data), *([] if plot is None else [f"\n{plot}"]))
        return
    assert out is not None
    call.output.kept = kept_rows(out)
    spec = None if model in (None, "none") else reader_spec(model)
    if "selection.radius" in chosen.given:
        raise InputError("selection.radius does not apply to a grid: --radii lists its radii")
    grid: dict[str, Any] = {
        "budgets": at, "reference_radius": reference_radius, "draws": draws, "limit": call.limit,
        "weights": o.numbers("--weights", weights or "0,0.1"),
        "radii": o.numbers("--radii", radii or "0,0.05"),
        "penalties": tuple(
            part if part in ("adaptive", "auto") else o.numbers("--penalties", part)[0]
            for part in map(str.strip, penalties.split(","))
            if part
        ),
        "token_prices": o.numbers("--token-prices", token_prices),
    }  # fmt: skip
    options = replace(chosen.selector.options, relative_gap=0.001)
    settings, *_ = collect(
        lambda: FrontierSettings(
            **grid, selector=chosen.selector.replace(options=options), seed=chosen.seed, retrieval=search,
            max_tokens=chosen.policy.limits.max_tokens,
        ),
        lambda: None if spec is None else check_generator(spec),
        lambda: check_folder(out, call.resume),
        lambda: kind_of(call.path),
    )  # fmt: skip
    dataset, index = call.data()
    o.check_fits(settings.selector, index)
    count = len(dataset.questions[: call.limit])
    with call.reader(spec) as reader, o.progress("questions", count) as advance:
        made = data_frontier(
            dataset, index, settings, out, generator=reader, slack=slack, resume=call.resume,
            progress=advance,
        )  # fmt: skip
    told = {"out": str(out), "run": made.run, "points": made.points, "operating_point": made.chosen}
    call.output.result(
        told if made.price is None else {**told, "price": made.price},
        *frontier_lines(made.points, made.chosen, made.price),
        f"\npage: {out / 'frontier.html'}",
    )


def _grid(option: str, text: str) -> tuple[float, ...]:
    found = o.numbers(option, text)
    o.refuse(check_values(option, found))
    return found


# -- radius -----------------------------------------------------------------------------------------------


@o.command("path embedder limit seed json", app=lab_app, name="radius", limit=1000)
def lab_radius(
    call: o.Call,
    method: Annotated[
        str, "sq8, pq:M or pq:MxBITS (compression), chunks, encoder (--other) or paraphrases (--file)."
    ] = "sq8",
    other: Annotated[str | None, "Second embedder of --method encoder."] = None,
    file: Annotated[
        Path | None, o.opt('JSON lines {"texts": ["...", "..."]}: texts that mean the same.', "--file")
    ] = None,
    quantile: Annotated[float, "Share of the errors that the radius must cover."] = 0.9,
    out: Annotated[Path | None, "File (.npz) of radii, for selection.passage_radii."] = None,
) -> None:
    """Measure the error of embeddings, for selection.radius.

    --limit is the number of passages to embed for chunks and encoder.
    """
    limit = call.limit or 0
    collect(
        lambda: kind_of(call.path),
        lambda: check_method(method, other, file, quantile, limit, out),
        lambda: o.at_least(limit=(limit, 1)),
    )
    index = call.open().index
    with o.progress(f"measuring by {method}", limit) as advance:
        found = measure_radius(
            index, method, other=other, file=file, limit=limit, seed=call.seed, progress=advance
        )
    told = {"index": call.path, **found.to_dict(quantile)}
    radius = told["radius"]
    lines = [
        f"{found.errors.size} errors by {found.method}: median {told['median']:.4f}, "
        f"{quantile:.0%} within {radius:.4f}, largest {told['largest']:.4f}",
        f"use --set selection.radius={radius:.4f}  ({found.meaning})",
    ]
    if out is not None:
        told["not_measured"] = rest = write_radii(out, found, index.ids, radius)
        if rest:
            lines.append(f"not measured: {rest} of {len(index)} passages; {out} gives them {radius:.4f}")
    call.output.result(told, *lines)


@o.command("json", app=lab_app, name="warmup")
def lab_warmup(call: o.Call) -> None:
    """Compile the kernels in advance (needed once per machine)."""
    from mio_rag.solvers import branch_and_bound, mdp  # here: they load the compiler

    seconds = branch_and_bound.warmup() + mdp.warmup()
    call.output.result({"seconds": seconds}, f"the kernels are ready ({seconds:.1f} s)")


# -- tables of a frontier ---------------------------------------------------------------------------------


def query_lines(data: Mapping[str, Any]) -> Iterator[Any]:
    """The paths of a question as three short tables."""
    passages, budget = data["passages"], data["budget"]

    def names(positions: Iterable[int], sign: str = "") -> list[str]:
        return [f"{sign}{passages[i]['id']}" for i in positions]

    steps = budget["steps"]
    if not steps:
        yield "no selection satisfies the constraints at any of these budgets"
        return
    proof = "every step proven" if budget["certified"] else "steps marked ? are not proven"
    yield f"{len(steps)} selections up to {steps[-1]['until']} tokens, {proof}"
    rows: list[tuple[object, ...]] = []
    for before, step in zip([None, *steps], steps, strict=False):
        was, now = set(before["selected"]) if before else set(), step["selected"]
        changes = names((i for i in now if i not in was), "+") + names(sorted(was - set(now)), "-")
        price = before["next_price"] if before else None
        mark = "" if step["certified"] else " ?"
        rows.append((f"{step['tokens']}{mark}", len(now), f"{step['value']:.4f}",
                     "" if price is None else f"{price:.5f}", " ".join(changes)))  # fmt: skip
    yield Table.rows("tokens|passages|value|per token|what changes", rows, left=5)
    for gain in budget["buys"]:
        changes = names(gain["added"], "+") + names(gain["removed"], "-")
        yield (
            f"+{gain['more_tokens']} tokens above {gain['budget_tokens']} buy {gain['gain']:.4f}"
            f" ({', '.join(changes) or 'the same passages'})"
        )
    yield f"\nat {data['budget_tokens']} tokens:"
    rows = []
    for piece in data["penalty"]["pieces"]:
        high = "and above" if piece["high"] is None else f"to {piece['high']:.4f}"
        span = f"{piece['low']:.4f} {high}{'' if piece['certified'] else ' ?'}"
        rows.append(
            (span, piece["passages"], piece["tokens"], ", ".join(names(piece["selected"])) or "nothing")
        )
    yield Table.rows("passage penalty|passages|tokens|chosen", rows, left=4)
    rows = []
    for row, weights in alike(data["grid"]).items():
        for radii in dict.fromkeys(weights.values()):  # weights that choose it at the same radii share a line
            listed = ", ".join(f"{weight:g}" for weight, at in weights.items() if at == radii)
            rows.append((*row[:-1], listed, ", ".join(f"{radius:g}" for radius in radii)))
    yield Table.rows("tokens|relevance|redundancy|guaranteed||lambda_1|rho", rows, left=7)
    yield "guaranteed: the value that is left when every embedding is off by the largest rho of the table"


def alike(grid: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], dict[float, tuple[float, ...]]]:
    """What a row says, and the passages behind it -> the settings that choose them: weight -> radii."""
    found: dict[tuple[str, ...], dict[float, tuple[float, ...]]] = {}
    for p in grid:
        state = "frontier" if p["frontier"] else "dominated" if p["certified"] else p["status"]
        figures = (f"{p[k]:.4f}" for k in ("relevance", "redundancy", "guaranteed"))
        row = (str(p["tokens"]), *figures, state, str(sorted(p["selected"])))
        weights = found.setdefault(row, {})
        weights[p["redundancy_weight"]] = (*weights.get(p["redundancy_weight"], ()), p["radius"])
    return found


def frontier_lines(
    points: Sequence[Record], chosen: Record | None, prices: Record | None = None
) -> Iterator[Any]:
    """The settings on the frontier, by tokens; the operating point, and one price for all questions."""
    evidence = evidence_measure(p["measures"] for p in points)
    shown = [p for p in points if p["dominated"] is False]
    shown.sort(key=lambda p: p["measures"]["tokens_used"]["mean"])
    open_points = sum(not p["certified"] for p in points)
    yield (
        f"{len(points)} settings, {len(shown)} on the frontier, {len(points) - len(shown) - open_points} "
        f"dominated, {open_points} not certified"
    )
    deciding = ", ".join(["tokens", *(measure.title for measure in deciding_measures(points))])
    mark = "; *: finds the most evidence for its tokens" if evidence else ""
    yield dim(
        f"on the frontier: no other certified setting is as good in {deciding} and better in one of "
        f"them{mark}"
    )
    yield ""
    columns: list[tuple[str, Sequence[Any]]] = [
        (title, [f"{p[name]:g}" if isinstance(p[name], float) else str(p[name]) for p in shown])
        for title, name in (("redundancy\nweight", "redundancy_weight"), ("radius", "radius"),
                            ("passage\npenalty", "passage_penalty"), ("budget", "budget_tokens"))
    ]  # fmt: skip
    columns.append(("tokens\nread", [f"{p['measures']['tokens_used']['mean']:.0f}" for p in shown]))
    if evidence is not None:
        values = [p["measures"].get(evidence.name) for p in shown]
        marks = ["*" if evidence.name in p["front"] else " " for p in shown]
        found = [f"{_share(value)} {mark}" for value, mark in zip(values, marks, strict=True)]
        columns += [("evidence\nfound  ", found), ("95 % interval", list(map(_interval, values)))]
    for measure in frontier_measures(Use.CONSOLE):
        if measure.frontier.use < Use.EVIDENCE and any(measure.name in p["measures"] for p in points):
            form = measure.form if measure.kind == "count" else "{:.3f}"
            means = (p["measures"].get(measure.name) for p in shown)
            cells = ["" if mean is None else form.format(mean["mean"]) for mean in means]
            columns.append((heading(measure.title), cells))
    yield Table(columns, left=0, keys=4)
    yield ""
    if chosen is None:
        yield "no operating point: there are no labels, or no setting is certified"
    else:
        yield f"operating point: {chosen['name']}, budget {chosen['budget_tokens']} ({chosen['rule']})"
        if held := chosen["held_out"]:
            value = held[chosen["coverage"]]
            yield (
                f"the rule on held-out questions: evidence found {_share(value)} ({_interval(value)}) at "
                f"{held['tokens_used']['mean']:.0f} tokens"
            )
    if prices is not None:
        yield styled(("\none price of a token for all questions", "bold"))
        at = prices["prices"]
        columns = [("price", [f"{p['token_price']:g}" for p in at])]
        columns.append(("tokens\nread", [f"{p['tokens']['mean']:.0f}" for p in at]))
        if any(p["evidence"] is not None for p in at):
            columns.append(("evidence\nfound", [_share(p["evidence"]) for p in at]))
            columns.append(("95 % interval", [_interval(p["evidence"]) for p in at]))
        yield Table(columns, left=0, keys=1)
        yield dim(f"each reads at most {prices['ceiling']} tokens; price.png compares prices with budgets")


def _share(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{100 * value['mean']:.1f} %"


def _interval(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{100 * value['low']:.1f} to {100 * value['high']:.1f}"


# -- decision processes ----------------------------------------------------------------------------------


def rule_text(segments: Sequence[Mapping[str, Any]]) -> str:
    """Where each action is taken, over U; the first six segments."""
    shown = [f"{s['action']} {s['from']:.4g}\u2013{s['to']:.4g}" for s in segments[:6]]
    more = f", and {len(segments) - 6} more" if len(segments) > 6 else ""
    return ", ".join(shown) + more


def plan_lines(plan: Plan, shape: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """The policy step by step, what is odd about it, and what each parameter does to it."""
    endless = plan.model.horizon is None
    steps = (("every" if endless else step, rule_text(parts)) for step, parts in enumerate(shape["segments"]))
    yield Table.rows("step|over U", steps, left=2)
    solved, on_grid = plan.solution, plan.grid_error
    within = f", grid within {on_grid.at_points:.2g}" if on_grid else ""
    yield (
        f"{solved.method}: values within {solved.error:.2g} of the grid's optimum, "
        f"V(1) = {plan.values()[-1]:.4f}{within}"
    )
    yield from notes(shape["warnings"])
    if tied := sum(map(bool, shape["ties"])):
        yield f"actions tie somewhere in {tied} of {plan.steps} steps (--json lists where)"
    yield ""
    moved = (
        (one["parameter"].replace("discount", "1 - discount"), f"{one['factor']:g}",
         f"{one['changed']:.1%}", f"{one['value_change']:.4f}")
        for one in changes
    )  # fmt: skip
    yield Table.rows("parameter|times|policy moved|value", moved)
