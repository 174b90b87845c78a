"""One question under every rule: what is chosen, what it is worth, and how much of it stays.

Robust and nominal selections are compared twice: at the same budget, and *matched*, where both get the tokens
that the robust one used as their budget. Stability is compared matched alone: a budget that some selection
fills exactly leaves the tail little room to change, and one that it does not fill leaves more, whatever the
rule. Finished questions are lines of a file in the work folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.stability.rules import RELEVANCE, Rule, base_selector, rules
from benchmarks.stability.versions import Versions
from mio_rag.errors import SolverError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.robust import JointProblem
from mio_rag.measures import evidence_found
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel
from mio_rag.retrieval import Retriever
from mio_rag.selection.program import Formulation, joint_problem
from mio_rag.selection.selector import Selector
from mio_rag.selection.solving import solved
from mio_rag.solvers.paths import path_solver
from mio_rag.solvers.result import SolveResult
from mio_rag.types import Question

_FORMAT = 2  # of the rows
#: "relevance|rule|budget" -> figure -> value; and "pool" -> what the pool is like
Row = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    budgets: Sequence[int]
    radii: Sequence[float]
    model: RelevanceModel


class _Chooser:
    """Selections of one pool in all its versions; nominal ones are solved once."""

    def __init__(self, question: Question, pools: Mapping[str, Candidates], selector: Selector) -> None:
        self.pools = {name: selector.valued(pool) for name, pool in pools.items()}
        self.selector, self._known = selector, dict[tuple[str, int], SolveResult]()
        self._question = question

    def nominal(self, version: str, budget: int) -> SolveResult:
        """The nominal program of a version."""
        key = version, budget
        if key not in self._known:
            self._known[key] = _solved(self.selector, self.pools[version], budget)
        return self._known[key]

    def robust(self, version: str, rule: Rule, budget: int) -> SolveResult:
        """A robust counterpart of a version."""
        return _solved(rule.applied(self.selector), self.pools[version], budget)

    def figures(self, chosen: Mapping[str, SolveResult], problem: JointProblem) -> dict[str, float]:
        """What the selection of the own pool is worth, and what stays of it in the other versions."""
        pool, own = self.pools["own"], chosen["own"]
        here = [i for i in own.selected if i < len(pool)]
        x = np.zeros(len(pool), dtype=np.int8)
        x[here] = 1
        low, high = problem.interval(x)
        if low > high + 1e-7 * max(1.0, abs(high)):
            raise SolverError(f"a perturbation reached {high:.9g}, below the certified {low:.9g}")
        found = {
            "tokens": float(pool.tokens[here].sum()),
            "passages": float(len(here)),
            "recall": self._recall(here),
            "value": problem.objective(np.array(here, dtype=np.int64)),
            "certified": low,
            "reached": high,
            "gap": own.gap or 0.0,
            "stopped": float(any(result.limit is not None for result in chosen.values())),
        }
        for version, result in chosen.items():
            if version != "own":
                there = set(result.selected)
                both = there | set(here)
                found[f"jaccard {version}"] = len(there & set(here)) / len(both) if both else 1.0
                found[f"recall {version}"] = self._recall(sorted(there))
        return found

    def _recall(self, chosen: Sequence[int]) -> float:
        return evidence_found(self._question, self.pools["own"], chosen)


def _solved(selector: Selector, pool: Candidates, budget: int) -> SolveResult:
    """What `Selector.select` solves, without explanations. An empty selection where nothing fits."""
    run, spent = path_solver(selector.solver, selector.options), 0.0

    def solve(program: SelectionProgram) -> SolveResult:
        nonlocal spent
        answer = run(program, spent)
        spent += answer.wall_seconds
        return answer

    result = solved(Formulation(selector, pool), budget, solve).result
    if result.x is None:
        raise SolverError(f"a program of the study has no selection: {result.message}")
    return result


def question_row(question: Question, pools: Mapping[str, Candidates], plan: Plan) -> Row:
    """Every rule at every budget."""
    before, after = (np.asarray(pools[v].embeddings, dtype=np.float64) for v in ("own", "pq"))
    off = np.linalg.norm(before - after, axis=1)
    row: Row = {"pool": {"passages": float(off.size), "pq error": float(np.median(off))}}
    for relevance in RELEVANCE:
        chooser = _Chooser(question, pools, base_selector(relevance, plan.model))
        own = chooser.pools["own"]
        for rule in rules(plan.radii, relevance):
            for budget in plan.budgets:
                problem = joint_problem(chooser.selector, own, budget, rule.ball)
                at_budget = {"own": chooser.robust("own", rule, budget)}
                robust = chooser.figures(at_budget, problem)
                # Nothing chosen: as little as there is, so that a program can be asked at all.
                tokens = int(robust["tokens"]) or int(own.tokens.min())
                compared = {
                    "robust": robust,
                    "nominal": chooser.figures({"own": chooser.nominal("own", budget)}, problem),
                    "robust matched": chooser.figures(
                        {v: chooser.robust(v, rule, tokens) for v in pools}, problem
                    ),
                    "nominal matched": chooser.figures(
                        {v: chooser.nominal(v, tokens) for v in pools}, problem
                    ),
                }
                bound = at_budget["own"].bound
                for name, figures in compared.items():
                    if (
                        rule.counterpart == "joint"
                        and bound is not None
                        and figures["certified"] > bound + 1e-7
                    ):
                        raise SolverError(f"{rule.name}: the {name} selection beats the proven bound {bound}")
                row[f"{relevance}|{rule.name}|{budget}"] = {
                    f"{name}: {key}": round(value, 9)
                    for name, figures in compared.items()
                    for key, value in figures.items()
                }
    return row


def _digest(plan: Plan, label: str) -> str:
    settings = _FORMAT, [base_selector(r, plan.model) for r in RELEVANCE], plan.budgets, plan.radii, label
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]


def read_rows(path: Path) -> dict[str, Row]:
    """Finished questions by id; a last line that an interruption cut is left out."""
    found: dict[str, Row] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            found[entry["id"]] = entry["row"]
    return found


def run_questions(
    folder: Path,
    name: str,
    questions: Sequence[Question],
    retriever: Retriever,
    versions: Callable[[], Versions],
    plan: Plan,
    label: str,
    advance: Callable[[int], None],
    finished_only: bool = False,
) -> list[Row]:
    """Rows of the questions in their order; those that the work folder holds are not computed again."""
    path = folder / f"{name}-{_digest(plan, label)}.jsonl"
    known = read_rows(path)
    missing = [q for q in questions if q.id not in known]
    advance(len(questions) - len(missing))
    if missing and not finished_only:
        folder.mkdir(parents=True, exist_ok=True)
        made = versions()
        retriever.index.embedder.encode([q.text for q in missing])  # in batches, into the cache
        with path.open("a", encoding="utf-8") as file:
            if path.stat().st_size and not path.read_text(encoding="utf-8").endswith("\n"):
                file.write("\n")
            for question in missing:
                pool = retriever.retrieve(question.text)
                row = question_row(question, {"own": pool} | made.of(question, pool), plan)
                file.write(json.dumps({"id": question.id, "row": row}) + "\n")
                file.flush()
                known[question.id] = row
                advance(1)
    return [known[q.id] for q in questions if q.id in known]
