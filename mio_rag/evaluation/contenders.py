"""What is compared, by name: methods, which select from the shared pool, and controllers.

Names of `mio_rag.methods`, kinds of `mio_rag.policies.make`, and these:

program:POLICY the program of a policy, on the pool that all methods share
allocated      the program under one total, budget times questions, shared with all questions in view
paced          the program under the same total, at one token price, question by question as in a service

A method or policy may have settings of its own behind its name: exact[radius=0.1].
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from mio_rag.allocation import allocate
from mio_rag.allocation.pacer import Pacer
from mio_rag.allocation.workload import selector_problems
from mio_rag.errors import (
    InfeasibleError,
    InputError,
    MioRagError,
    UnsuitableModelError,
    collect,
    refuse,
)
from mio_rag.evaluation.rows import (
    PARTS,
    Contender,
    Taken,
    Task,
    jaccard,
    preceding,
    seconds_column,
)
from mio_rag.generation import build_prompt
from mio_rag.measures import failed_measures
from mio_rag.methods import FITTING, Method, make_methods
from mio_rag.policies.make import find_kind, make_controller
from mio_rag.policies.setup import Controller, Setup
from mio_rag.policy.keys import changed, load_policy, split_name
from mio_rag.pool import Pool
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.selection.solving import Choice, concluded
from mio_rag.session.budget import Call, Costs
from mio_rag.session.trace import append_traces
from mio_rag.types import Question

#: Compared by default: the program, the usual rankings, and one that decides how much to read.
DEFAULT_METHODS = (FITTING, "fused", "topk", "bm25", "mmr", "adaptive-k")
ALLOCATED, PACED = "allocated", "paced"
#: Methods of a whole run.
TOTALS = (ALLOCATED, PACED)
_PROPOSED = (FITTING, "exact", "program", *TOTALS)
_MOST = 2048  # tokens of one question of "paced", where the budget is not larger


class Selecting(Contender):
    """A method on the pool that all methods share; the reader answers."""

    def __init__(self, method: Method, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(method.name, method.selector.solver)
        self.method, self.selector = method, method.selector
        self._before: dict[str, str] = {}
        self._read = {(r["question_id"], r["budget_tokens"]): r.get("selected_ids") for r in rows}

    def prepare(
        self, questions: Sequence[Question], task: Callable[[Question], Task], budgets: Sequence[int]
    ) -> None:
        """See which questions follow each other in a conversation."""
        self._before = preceding(questions)

    def chosen(self, task: Task, pool: Pool, budget_tokens: int) -> Selection:
        """Choose from the pool of a task."""
        found = self._of(pool, task, budget_tokens)
        self._read[task.question.id, budget_tokens] = found.ids
        return found

    def _of(self, pool: Pool, task: Task, budget_tokens: int) -> Selection:
        """Choose; with a price of changes, by what was read for the question before."""
        assert task.retriever is not None
        method, side = self.method, self.selector.side
        if side.max_changes is not None or side.change_price:
            previous = self._read.get((self._before.get(task.question.id, ""), budget_tokens))
            free = {"max_changes": None, "change_price": 0.0}
            side = side.replace(**(free if previous is None else {"previous": tuple(previous)}))
            method = replace(method, selector=method.selector.replace(side=side))
        return method.select(pool, task.allowed(budget_tokens), task.retriever.counter)

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Select from the shared pool."""
        taken = Taken(Costs())
        try:
            pool = taken.pool = task.pool(taken.costs)
            with taken.costs.part("select"):
                taken.selection = self.chosen(task, pool, budget_tokens)
                if taken.selection.result.x is None:
                    raise InfeasibleError(taken.selection.explain())
            if task.error and not self.method.score:  # other scores do not come from the embeddings alone
                again = [self._of(one, task, budget_tokens) for one in task.others]
                overlaps = [jaccard(taken.selection.ids, one.ids) for one in again]
                taken.columns["stability"] = sum(overlaps) / len(overlaps)
            with taken.costs.part("select"):
                taken.prompt = build_prompt(task.question, taken.selection.passages)
        except MioRagError as error:
            taken.error = error
        return taken


class Allocated(Selecting):
    """The program under one total for all questions.

    Under a budget of B it may spend B times the number of questions, so that a row may have more than B. All
    questions are retrieved before the first is answered; the seconds of the allocation are charged to each
    question alike.
    """

    def __init__(self, selector: Selector) -> None:
        super().__init__(Method(ALLOCATED, selector))
        self._choices: dict[tuple[int, str], Choice] = {}
        self._seconds: dict[int, float] = {}

    def prepare(
        self, questions: Sequence[Question], task: Callable[[Question], Task], budgets: Sequence[int]
    ) -> None:
        """Share each total among all questions; one without a pool gets nothing.

        Raises `MioRagError` if the totals cannot be shared.
        """
        most = max(budgets, default=0) * len(questions)
        laid: list[tuple[Task, Pool, int]] = []
        for question in questions if budgets else ():
            one = task(question)
            with suppress(MioRagError):  # reported where the question is taken
                laid.append((one, one.pool(Costs()), max(1, one.allowed(most))))
        for budget in budgets if laid else ():
            began = time.perf_counter()
            assert laid[0][0].retriever is not None
            found = allocate(
                [pool for _, pool, _ in laid],
                budget * len(questions),
                selector=self.selector,
                ceilings=[ceiling for *_, ceiling in laid],
                counter=laid[0][0].retriever.counter,
            )
            for (one, *_), choice in zip(laid, found.choices, strict=True):
                self._choices[budget, one.question.id] = choice
            self._seconds[budget] = (time.perf_counter() - began) / len(questions)

    def chosen(self, task: Task, pool: Pool, budget_tokens: int) -> Selection:
        """Return the share of a question that `prepare` has seen."""
        return concluded(self._choices[budget_tokens, task.question.id])

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Return the share of a question; its part of the allocation's seconds counts as selection."""
        taken = super().take(task, budget_tokens)
        if taken.selection is not None:
            taken.costs.add(Call("select", self._seconds[budget_tokens]))
        return taken


class Paced(Selecting):
    """The program at a token price that a pacer sets, with one pacer for each budget.

    questions: of the run; the total is the budget times this number.
    rows: rows of an interrupted run, in their order: their tokens count as spent.
    """

    def __init__(self, selector: Selector, questions: int, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(Method(PACED, selector))
        self._questions = questions
        self._pacers: dict[int, Pacer] = {}
        for row in rows:
            if row["method"] == PACED and not row["error"]:
                pacer = self._pacer(int(row["budget_tokens"]))
                pacer.spent(pacer.ask(), int(row["tokens_used"]))

    def chosen(self, task: Task, pool: Pool, budget_tokens: int) -> Selection:
        """Select at the price of the moment."""
        assert task.retriever is not None
        most = task.allowed(max(_MOST, budget_tokens))
        return self._pacer(budget_tokens).select(pool, self.selector, task.retriever.counter, most)

    def _pacer(self, budget: int) -> Pacer:
        if budget not in self._pacers:
            self._pacers[budget] = Pacer(budget * self._questions, self._questions, most=max(_MOST, budget))
        return self._pacers[budget]


class Controlled(Contender):
    """A controller: it answers by itself, one question at a time.

    Tokens, calls and seconds of its row are those of all steps; ``tokens_used`` is the evidence read last.

    traces: file that gets a line for every question.
    """

    questions_at_once = 1

    def __init__(self, controller: Controller, solver: str, traces: Path | None) -> None:
        super().__init__(controller.name, solver)
        self.controller, self.traces = controller, traces

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Answer the question and write its trace.

        Raises `InputError` if the trace cannot be written, or the model does not suit the controller: every
        other question would fail alike.
        """
        if task.generator is None:
            raise InputError("controllers need a model that answers: give --model")
        found = self.controller.attempt(task.question, task.generator, budget_tokens, task.replies)
        if isinstance(found.error, UnsuitableModelError):
            raise found.error
        if self.traces is not None:
            append_traces(self.traces, [found.trace])
        columns = dict.fromkeys(map(seconds_column, PARTS), 0.0) | found.trace.columns()
        if found.selection is None:
            columns |= {"selected_ids": [], "tokens_used": 0, "passages_selected": 0}
            columns |= failed_measures(task.question, selection=True, answer=False)
        return Taken(found.costs, found.selection, None, found.reply, found.error, columns)


def resolved(contenders: Sequence[Contender]) -> dict[str, dict[str, Any]]:
    """Return what each contender runs with, by name: policy or program with all constants, and a hash."""
    found: dict[str, dict[str, Any]] = {}
    for one in contenders:
        told: dict[str, Any] = {}
        if isinstance(one, Selecting):
            told = one.selector.to_dict()
        elif isinstance(one, Controlled):
            told = dict(getattr(one.controller, "settings", {}))
        text = json.dumps(told, sort_keys=True, default=str)
        found[one.name] = {"sha256": sha256(text.encode()).hexdigest(), **json.loads(text)}
    return found


def check_methods(names: Sequence[str], selector: Selector) -> None:
    """Raise `InputError` for methods that are unknown, repeated, or cannot work with these settings."""
    problems = [f"method '{name}' is listed twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    if ALLOCATED in names:
        problems += [f"method '{ALLOCATED}': {problem}" for problem in selector_problems(selector)]
    rest = [name for name in dict.fromkeys(names) if name not in TOTALS]
    if not names:
        make_methods([], selector)
    collect(lambda: refuse(problems), *(lambda n=name: method_of(n, selector, selector) for name in rest))


def method_of(name: str, selector: Selector, whole: Selector) -> Method:
    """Return a method with the settings of its name; `InputError` if there is none, or they do not fit it.

    whole: the selector with whole passages where it leaves units open.
    """
    stem, changes = split_name(name)
    kind, _, policy = stem.partition(":")
    if kind == "program":
        found = load_policy(policy + name[len(stem) :])
        if found.selection.by != "program":
            raise InputError(f"{name}: selection is by {found.selection.by}, which is no program")
        return Method(name, found.selector(found.fixed_price or 0.0, selector))
    base = selector if stem == FITTING else whole
    return replace(make_methods([stem], changed(base, stem, changes) if changes else base)[0], name=name)


def make_contenders(
    names: Sequence[str],
    setup: Setup,
    *,
    traces: Path | None = None,
    questions: int = 1,
    rows: Iterable[Mapping[str, Any]] = (),
) -> list[Contender]:
    """Return methods and controllers of these names, in their order.

    setup: what controllers are made of; methods use its selector. Where that leaves units open, "mio" and
        totals choose them: the others were fitted on whole passages, or rank them.
    traces: file for the traces of controllers.
    questions: of the run.
    rows: rows that the run has already; what they spent is spent.

    Raises `InputError` for unknown names.
    """
    named = [name for name in names if find_kind(name) is None]
    if named:
        check_methods(named, setup.selector)
    kept, whole = list(rows), replace(setup, selector=setup.selector.whole())

    def made(name: str) -> Contender:
        if name == PACED:
            return Paced(setup.selector, questions, kept)
        if name == ALLOCATED:
            return Allocated(setup.selector)
        if name in named:
            mine = [r for r in kept if r["method"] == name and not r["error"]]
            return Selecting(method_of(name, setup.selector, whole.selector), mine)
        controller = make_controller(name, whole)
        if take_up := getattr(controller, "take_up", None):  # its price depends on what was spent
            spent = [r for r in kept if r["method"] == name and not r["error"]]
            take_up([int(r["prompt_tokens"]) + int(r["completion_tokens"]) for r in spent])
        return Controlled(controller, setup.selector.solver, traces)

    return [made(name) for name in names]


def default_baseline(names: Sequence[str]) -> str:
    """Return fused, else topk, else the first that the package does not propose, else the first."""
    kinds = {name: find_kind(name) for name in names if re.split(r"[:\[]", name)[0] not in _PROPOSED}
    rivals = [name for name, kind in kinds.items() if kind is None or kind.rival]
    return [*(name for name in ("fused", "topk") if name in names), *rivals, *names][0]
