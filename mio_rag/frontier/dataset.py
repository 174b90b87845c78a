"""A question set under every setting of a grid and at every price of a token, from questions to files.

Each question's pool is retrieved once and solved along the whole grid, each program started from the one
before. Stability solves pools whose embeddings were moved by a random error of the reference radius: the
share of the selection that stays (Jaccard).
"""

from __future__ import annotations

import itertools
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.allocation.workload import selector_problems, workload_of
from mio_rag.context import RegexCounter, TokenCounter, block_tokens, in_prompt_order, render_context
from mio_rag.corpora.dataset import NEEDS_QUESTIONS, Dataset
from mio_rag.errors import DataError, InputError, MioRagError, SolverError
from mio_rag.evaluation.harness import Progress, check_corpus
from mio_rag.evaluation.ledger import Ledger, environment, opened_run, record_of
from mio_rag.evaluation.rows import answers_of, jaccard, perturbed
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.rows import count_problem
from mio_rag.frontier.page import plot_data, plot_price, render_page
from mio_rag.frontier.paths import check_selector, check_values, dominated, tokens_read
from mio_rag.generation import Generator, build_prompt
from mio_rag.measures import (
    Measure,
    Use,
    answer_measures,
    evidence_found,
    evidence_measure,
    failed_measures,
    frontier_measures,
    measures,
    quick_measures,
)
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.retrieval.settings import RetrievalSettings
from mio_rag.selection.explain import decisions
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Penalty, Selector
from mio_rag.solvers.paths import solve_path
from mio_rag.solvers.result import SolveOptions, SolveResult, Status
from mio_rag.storage import write_atomically
from mio_rag.types import Question

Row = Mapping[str, Any]
_FOLDS = 5


# -- the grid ---------------------------------------------------------------------------------------------


def _exactly(value: float) -> str:
    """Write a number so that no other one is written alike."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    redundancy_weight: float
    radius: float
    passage_penalty: Penalty
    budget_tokens: int

    @property
    def name(self) -> str:
        """Return all but the budget, as the ledger names it."""
        penalty = self.passage_penalty
        shown = penalty if isinstance(penalty, str) else _exactly(penalty)
        return f"lambda_1={_exactly(self.redundancy_weight)} rho={_exactly(self.radius)} lambda_2={shown}"


@dataclass(frozen=True)
class FrontierSettings:
    """The grid, and how its points are measured.

    weights, radii, penalties: lambda_1, rho and lambda_2 (also "adaptive", "auto").
    selector: all other settings. Its own weights and the reference radius make the reference program that
        measures the guaranteed value.
    reference_radius: the embedding error of guaranteed value and stability.
    draws: pools with random errors for each question. 0: stability is not measured.
    token_prices: of `price_curve`. Empty: no curve.
    """

    budgets: Sequence[int] = (128, 256, 512)
    weights: Sequence[float] = (0.0, 0.1)
    radii: Sequence[float] = (0.0, 0.05)
    penalties: Sequence[Penalty] = ("adaptive", 0.05)
    selector: Selector = field(
        default_factory=lambda: Selector(options=SolveOptions(time_limit_seconds=2.0, relative_gap=1e-3))
    )
    reference_radius: float = 0.05
    draws: int = 3
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    limit: int | None = None
    max_tokens: int = 32
    seed: int = 0
    token_prices: Sequence[float] = ()

    def __post_init__(self) -> None:
        fixed = [p for p in self.penalties if not isinstance(p, str)]
        checked = {"weights": self.weights, "radii": self.radii, "passage penalties": fixed or [0.0],
                   "reference_radius": [self.reference_radius]}  # fmt: skip
        if self.token_prices:
            checked["token_prices"] = self.token_prices
        problems = [problem for name, values in checked.items() for problem in check_values(name, values)]
        problems += check_selector(self.selector)
        problems += selector_problems(self.selector) if self.token_prices else []
        problems += [] if self.penalties else ["no passage penalty is given"]
        problems += [] if self.budgets else ["no token budget is given"]
        counts = [("budget_tokens", b, 1) for b in self.budgets] + [("draws", self.draws, 0)]
        counts += [("limit", self.limit, 1)] if self.limit is not None else []
        for name, count, least in [*counts, ("max_tokens", self.max_tokens, 1)]:
            low = f"{name}={count} must be >= {least}"
            problems += filter(None, [count_problem(name, count) or (low if count < least else None)])
        if len(set(self.budgets)) < len(self.budgets) or len(set(self.penalties)) < len(self.penalties):
            problems.append("a token budget or passage penalty is listed twice")
        if not 0 <= self.seed < 2**31:
            problems.append(f"seed={self.seed} must be between 0 and 2^31 - 1")
        if problems:
            raise InputError(problems)

    @property
    def grid(self) -> tuple[Setting, ...]:
        """Return every setting; neighbours differ in their budget first."""
        return tuple(
            Setting(float(w), float(r), p, int(b))
            for w, r, p, b in itertools.product(self.weights, self.radii, self.penalties, self.budgets)
        )


# -- rows of a question -----------------------------------------------------------------------------------


def _question_rows(
    question: Question, retriever: Retriever, settings: FrontierSettings
) -> list[tuple[dict[str, Any], Selection]]:
    """Return one row and selection for each setting of the grid; `SolverError` if the solver broke."""
    selector, grid, counter = settings.selector.whole(), settings.grid, retriever.counter
    nominal = retriever.retrieve(question.text)
    # Seeded by the question, so that a resumed run draws what an uninterrupted one would have drawn.
    rng = np.random.default_rng([settings.seed, zlib.crc32(question.id.encode("utf-8", "replace"))])
    others = [
        perturbed(nominal, settings.reference_radius, selector.norm, rng) for _ in range(settings.draws)
    ]

    def along(pool: Candidates) -> list[tuple[SelectionProgram, SolveResult]]:
        programs = [
            selector.replace(
                redundancy_weight=s.redundancy_weight, radius=s.radius, passage_penalty=s.passage_penalty
            ).program(pool, s.budget_tokens, counter)
            for s in grid
        ]
        results = list(solve_path(programs, selector.solver, selector.options))
        if broken := [result.message for result in results if result.status is Status.ERROR]:
            raise SolverError(broken[0])
        return list(zip(programs, results, strict=True))

    pool = selector.valued(nominal)
    elsewhere = [along(selector.valued(other)) for other in others]
    worst = selector.replace(radius=settings.reference_radius)
    reference = worst.program(pool, max(settings.budgets), counter)
    is_merged = selector.merge and pool.spans is not None
    found = []
    for k, (setting, (program, result)) in enumerate(zip(grid, along(pool), strict=True)):
        chosen = in_prompt_order(pool, result.selected, selector.prompt_order)
        used = tokens_read(pool, chosen, selector, counter)
        why = partial(decisions, pool, program, result, robust=setting.radius > 0, is_merged=is_merged)
        selection = Selection(
            pool, chosen, used, setting.budget_tokens, result, program, why, is_merged=is_merged
        )
        overlaps = [jaccard(result.selected, other[k][1].selected) for other in elsewhere]
        row = {
            "question_id": question.id, "method": setting.name, "budget_tokens": setting.budget_tokens,
            "status": result.status.value, "gap": result.gap, "tokens_used": used,
            "passages_selected": len(chosen), "selected_ids": list(selection.ids),
            "relevance": [round(float(pool.relevance[i]), 4) for i in chosen],
            **quick_measures(question, selection),
            "guaranteed": reference.objective(np.zeros(len(pool)) if result.x is None else result.x),
            "stability": float(np.mean(overlaps)) if overlaps else None,
            "solve_seconds": result.wall_seconds, "error": None,
        }  # fmt: skip
        found.append((json.loads(json.dumps(row)), selection))
    return found


def _answer(
    generator: Generator,
    question: Question,
    found: Sequence[tuple[dict[str, Any], Selection]],
    max_tokens: int,
) -> None:
    """Answer each distinct prompt once, and score the answer in every row of that prompt."""
    prompts = [build_prompt(question, selection.passages) for _, selection in found]
    replies = answers_of(generator, prompts, max_tokens)
    for (row, selection), prompt in zip(found, prompts, strict=True):
        # What the reader's tokenizer counts for the block as a whole, not the sum over its passages.
        block = render_context(selection.passages)
        row["tokens_used"] = generator.count([block])[0] if block else 0
        row["over_budget"] = row["tokens_used"] > row["budget_tokens"]
        reply = replies[prompt.system, prompt.user]
        if isinstance(reply, MioRagError):
            row |= {"error": str(reply), **failed_measures(question, selection=False, answer=True)}
        else:
            text = reply.answer.text
            row |= {"answer": text, **answer_measures(question, text, reply.choice)}


# -- prices -----------------------------------------------------------------------------------------------


def price_curve(
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    selector: Selector,
    token_prices: Sequence[float],
    budgets: Sequence[int],
    seed: int = 0,
    counter: TokenCounter | None = None,
) -> dict[str, Any]:
    """Compute what questions spend and find at each price of a token, and under each budget.

    token_prices: no question takes more than the largest budget.
    counter: the reader's tokenizer: shared text is then paid once, and tokens are those of what is read.

    Keys: ceiling; prices: token_price, tokens, evidence and everything (the share of questions with all of
    it; both None without labels), and gap: how much more any allocation of the same tokens could be worth,
    as a share; budgets: budget_tokens and the same figures.
    """
    ceiling, selector = max(budgets), selector.whole()
    labelled = [k for k, q in enumerate(questions) if q.gold_ids or (q.gold_sources and pools[k].sources)]

    def figures(chosen: Sequence[Sequence[int]], tokens: Sequence[float]) -> dict[str, Any]:
        found = [evidence_found(questions[k], pools[k], chosen[k]) for k in labelled]
        return {
            "tokens": mean_interval(list(map(float, tokens)), seed),
            "evidence": mean_interval(found, seed) if found else None,
            "everything": mean_interval([float(f == 1) for f in found], seed) if found else None,
        }

    workload = workload_of(pools, selector, ceilings=ceiling, counter=counter)
    prices = []
    for price in sorted(map(float, token_prices)):
        totals, decided = workload.at(price), workload.decisions(price)
        chosen = [
            [] if one.x is None else np.flatnonzero(one.x[: len(pool)]).tolist()
            for one, pool in zip(decided, pools, strict=True)
        ]
        read = [one.tokens for one in decided]
        if counter is not None:
            read = [
                block_tokens(pool, own, counter, selector.merge and pool.spans is not None)
                for pool, own in zip(pools, chosen, strict=True)
            ]
        missing = totals.bound(totals.tokens) - totals.value
        gap = missing / abs(totals.value) if totals.value and math.isfinite(missing) else None
        prices.append({"token_price": price, **figures(chosen, read), "gap": gap})
    alike = []
    for budget in sorted(budgets):
        choices = [selector.choose(pool, budget, counter) for pool in pools]
        same = figures([list(c.chosen) for c in choices], [c.used for c in choices])
        alike.append({"budget_tokens": int(budget), **same})
    return {"ceiling": int(ceiling), "prices": prices, "budgets": alike}


# -- points -----------------------------------------------------------------------------------------------


def deciding_measures(points: Sequence[Row]) -> list[Measure]:
    """Return the measures that, with tokens, decide whether a certified setting is on the frontier."""
    evidence = evidence_measure(p["measures"] for p in points)
    return [
        measure
        for measure in frontier_measures(Use.DOMINANCE)
        if (measure is evidence or measure.frontier.use < Use.EVIDENCE)
        and any(measure.name in p["measures"] for p in points)
    ]


def summarize_grid(rows: Sequence[Row], settings: FrontierSettings) -> list[dict[str, Any]]:
    """Return one point for each setting.

    Keys: the setting; n questions, failed (no answer), proven (share of the selections that are optimal, or
    proven not to exist), certified (all of them); measures; front: measures in which no other certified point
    is as good for as few tokens; dominated: whether another certified point is as good in tokens and
    `deciding_measures`, and better in one; None where the point is not certified.
    """
    groups = _groups(rows)
    costs = [m for m in measures("cost") if m.frontier.use >= Use.POINT]
    names = [measure.name for measure in (*frontier_measures(Use.POINT), *costs)]
    points = []
    for setting in settings.grid:
        group = groups[setting.name, setting.budget_tokens]
        proven = [row["status"] in ("optimal", "infeasible") for row in group]
        found = {}
        for name in names:
            if values := [float(row[name]) for row in group if row.get(name) is not None]:
                found[name] = mean_interval(values, settings.seed) | {"n": len(values)}
        points.append({
            "name": setting.name, **asdict(setting), "n": len(group),
            "failed": sum(bool(row["error"]) for row in group),
            "over_budget": sum(bool(row.get("over_budget")) for row in group),
            "infeasible": sum(row["status"] == "infeasible" for row in group),
            "proven": float(np.mean(proven)), "certified": all(proven),
            "measures": found, "front": [], "dominated": None,
        })  # fmt: skip
    _mark(points, [point for point in points if point["certified"]])
    return points


def _groups(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], int(row["budget_tokens"])), []).append(row)
    return groups


def _mark(points: list[dict[str, Any]], proven: list[dict[str, Any]]) -> None:
    """Write `front` and `dominated` into the points that are proven."""
    if not proven:
        return

    def values(name: str) -> NDArray[np.float64]:
        return np.array([p["measures"].get(name, {}).get("mean", np.nan) for p in proven])

    tokens = -values("tokens_used")
    for measure in frontier_measures(Use.POINT):
        column = measure.sign * values(measure.name)
        if measure.sign and not np.isnan(column).all():
            beaten = dominated(np.column_stack([tokens, column])) | np.isnan(column)
            for point in itertools.compress(proven, ~beaten):
                point["front"].append(measure.name)
    columns = [measure.sign * values(measure.name) for measure in deciding_measures(points)]
    for point, out in zip(proven, dominated(np.column_stack([tokens, *columns])), strict=True):
        point["dominated"] = bool(out)


def operating_point(
    rows: Sequence[Row], points: Sequence[Row], settings: FrontierSettings, slack: float = 0.02
) -> dict[str, Any] | None:
    """Choose the certified setting with the fewest mean tokens whose evidence is within `slack` of the best.

    Five-fold cross-validation over questions measures the rule (held_out; None for fewer than five labelled
    questions); figures of the chosen point itself are optimistic. None without labels or a certified point.
    """
    evidence = evidence_measure(p["measures"] for p in points)
    allowed = [(p["name"], int(p["budget_tokens"])) for p in points if p["certified"]]
    if evidence is None or not allowed:
        return None
    name, groups = evidence.name, _groups(rows)
    # Every setting has the same questions, in the same order.
    labelled = [k for k, row in enumerate(groups[allowed[0]]) if row.get(name) is not None]
    gain, cost = (
        np.array([[float(groups[key][k][column]) for k in labelled] for key in allowed])
        for column in (name, "tokens_used")
    )

    def pick(part: NDArray[np.bool_]) -> int:
        means, tokens = gain[:, part].mean(axis=1), cost[:, part].mean(axis=1)
        return int(np.argmin(np.where(means >= means.max() - slack - 1e-12, tokens, np.inf)))

    n = len(labelled)
    best = pick(np.ones(n, dtype=bool))
    found: dict[str, Any] = {
        "rule": f"fewest mean tokens with evidence found within {slack:g} of the best certified setting",
        "name": allowed[best][0],
        "budget_tokens": allowed[best][1],
        "coverage": name,
        "held_out": None,
        "picks": [],
    }
    if n < _FOLDS:
        return found
    fold = np.random.default_rng(settings.seed).permutation(n) % _FOLDS
    chosen = np.array([pick(fold != f) for f in range(_FOLDS)])
    at = chosen[fold], np.arange(n)
    found["held_out"] = {
        name: mean_interval(gain[at].tolist(), settings.seed),
        "tokens_used": mean_interval(cost[at].tolist(), settings.seed),
        "n": n,
    }
    found["picks"] = [
        {"name": allowed[k][0], "budget_tokens": allowed[k][1], "folds": int((chosen == k).sum())}
        for k in dict.fromkeys(chosen.tolist())
    ]
    return found


# -- the run ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FrontierResult:
    """The folder, the points, the operating point, the record of the run, and the curve over prices."""

    folder: Path
    points: list[dict[str, Any]]
    chosen: dict[str, Any] | None
    run: dict[str, Any]
    price: dict[str, Any] | None = None


def data_frontier(
    dataset: Dataset,
    index: CorpusIndex,
    settings: FrontierSettings,
    out: str | Path,
    *,
    generator: Generator | None = None,
    slack: float = 0.02,
    resume: bool = False,
    progress: Progress | None = None,
) -> FrontierResult:
    """Measure every setting on every question; write frontier.json, frontier.png and frontier.html.

    Where the settings have token prices, also price.png.

    out, resume, progress, and what is raised: see `mio_rag.evaluation.harness.evaluate`.
    generator: answers from every selection and counts the tokens; answers are then scored too.
    slack: see `operating_point`.
    """
    questions = dataset.questions[: settings.limit]
    if not questions:
        raise DataError(f"'{dataset.name}' has no questions: {NEEDS_QUESTIONS}")
    check_corpus(dataset, index)
    # `opened_run` compares this before rows are added to those of an earlier run. Prices are no rows.
    aside = ("seed", "limit", "token_prices", "retrieval")
    kept = {name: value for name, value in asdict(settings).items() if name not in aside}
    kept |= {"rerankers": list(settings.retrieval.rerankers) or None, "selector": settings.selector.to_dict()}
    record = record_of([dataset], [index], generator, settings.retrieval) | {
        "kind": "frontier", "questions": len(questions), "seed": settings.seed,
        "settings": {"kind": "frontier", **kept},
    }  # fmt: skip
    run: dict[str, Any] = json.loads(json.dumps({**record, **environment()}))
    folder = Path(out)
    retriever = Retriever.of(index, settings.retrieval, generator or RegexCounter())
    keys = {q.id: [(q.id, s.name, s.budget_tokens) for s in settings.grid] for q in questions}
    asked = [key for own in keys.values() for key in own]
    with opened_run(folder, run, asked, resume) as ledger:
        done = {Ledger.key(row) for row in ledger.rows}

        def made() -> Iterator[list[dict[str, Any]]]:
            for count, question in enumerate(questions, start=1):
                if not done.issuperset(keys[question.id]):
                    found = _question_rows(question, retriever, settings)
                    if generator is not None:
                        _answer(generator, question, found, settings.max_tokens)
                    yield [row for row, _ in found if Ledger.key(row) not in done]
                if progress:
                    progress(1, f"{count} of {len(questions)} questions")

        ledger.fill(made(), lambda rows: all(row["error"] for row in rows))
        rows = ledger.sort(asked)
        points = summarize_grid(rows, settings)
        chosen = operating_point(rows, points, settings, slack)
        data: dict[str, Any] = {"run": run, "points": points, "operating_point": chosen}
        if settings.token_prices:
            pools = retriever.retrieve_many([question.text for question in questions])
            selector, prices = settings.selector, settings.token_prices
            data["price"] = price_curve(
                questions, pools, selector, prices, settings.budgets, settings.seed, retriever.counter
            )
            plot_price(data["price"], f"{dataset.name}: {len(questions)} questions", folder / "price.png")
        write_atomically(folder / "frontier.json", json.dumps(data, indent=1, allow_nan=False))
        plot_data(data, folder / "frontier.png")
        picture = (folder / "price.png").read_bytes() if "price" in data else None
        deciding = ", ".join(measure.title for measure in deciding_measures(points))
        page = render_page(data, rows, dataset, questions, deciding, picture)
        write_atomically(folder / "frontier.html", page)
        return FrontierResult(folder, points, chosen, run, data.get("price"))
