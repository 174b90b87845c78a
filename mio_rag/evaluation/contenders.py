"""What can be compared, by name: methods, which select from the shared pool, and controllers.

topk           cosine, best first, skipping what does not fit;  topk:K stops after K passages
bm25, fused    the same by BM25 score, by reciprocal rank fusion (also bm25:K, fused:K)
calibrated     the same by the probability of the selector's relevance model (also calibrated:K)
maxsim, cross-encoder, yes-no    the same by a re-ranker's score, where pools have it (also maxsim:K, ...)
mmr            maximal marginal relevance
density        cosine per token
greedy         the program's marginal gains per token
local_search   greedy with add, drop and swap, on the program
exact          the program, to proven optimality (or a certified gap at the time limit)
exact:UNITS    the same, choosing passages or sentences
mio            the same, choosing either depending on the budget, as `select` and `ask` do
allocated      the program under one total, budget times questions, shared with all questions in view
paced          the program under the same total, at one token price, question by question as in a service
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from mio_rag.allocation import allocate
from mio_rag.allocation.pacer import Pacer
from mio_rag.allocation.workload import selector_problems
from mio_rag.context import TokenCounter
from mio_rag.errors import InfeasibleError, InputError, MioRagError, UnsuitableModelError, choose
from mio_rag.evaluation.rows import FITTING, PARTS, Contender, Taken, Task, seconds_column
from mio_rag.generation import build_prompt
from mio_rag.measures import failed_measures
from mio_rag.policies.make import find_kind, make_controller
from mio_rag.policies.setup import Controller, Resuming, Setup
from mio_rag.pool import Candidates
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector, Units
from mio_rag.selection.solving import Choice, concluded
from mio_rag.session.costs import Call, Costs
from mio_rag.session.trace import append_traces
from mio_rag.types import Question

METHODS = ("topk", "bm25", "fused", "mmr", "density", "greedy", "local_search", "exact", FITTING)
#: Compared by default: the usual rankings, and the program.
DEFAULT_METHODS = (FITTING, "exact", "fused", "topk", "bm25", "mmr")
PACED = "paced"
_MOST = 2048  # tokens of one question of "paced", where the budget is not larger
_RANKED = re.compile(r"(topk|bm25|fused|calibrated|maxsim|cross-encoder|yes-no)(?::([1-9]\d*))?")


class Method(Contender):
    """A selector on the pool that all methods share; the reader answers.

    selector: program and solver.
    score: which of `Candidates.scores` serves as relevance; None: the relevance itself.
    """

    def __init__(self, name: str, selector: Selector, score: str | None = None) -> None:
        super().__init__(name, selector.solver)
        self.selector, self.score = selector, score

    def select(self, candidates: Candidates, budget_tokens: int, counter: TokenCounter) -> Selection:
        """Choose from a pool."""
        found = self.selector.select(self.scored(candidates), budget_tokens, counter)
        return dataclasses.replace(found, method=self.name)

    def scored(self, candidates: Candidates) -> Candidates:
        """Return the candidates with the score of this method as their relevance."""
        if self.score is None:
            return candidates
        if self.score not in candidates.scores:
            raise InputError(
                f"method '{self.name}' needs candidates with scores['{self.score}']: a re-ranker's "
                "come with search.rerank"
            )
        return dataclasses.replace(candidates, relevance=candidates.scores[self.score])

    def chosen(self, task: Task, candidates: Candidates, budget_tokens: int) -> Selection:
        """Choose from the pool of a task."""
        assert task.retriever is not None
        return self.select(candidates, task.allowed(budget_tokens), task.retriever.counter)

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Select from the shared pool."""
        taken = Taken(Costs())
        try:
            candidates = task.pool(taken.costs)
            with taken.costs.part("select"):
                taken.selection = self.chosen(task, candidates, budget_tokens)
                if taken.selection.result.x is None:
                    raise InfeasibleError(taken.selection.explain())
                taken.prompt = build_prompt(task.question, taken.selection.passages)
        except MioRagError as error:
            taken.error = error
        return taken


class Allocated(Method):
    """The program under one total for all questions.

    Under a budget of B it may spend B times the number of questions, so that a row may have more than B. All
    questions are retrieved before the first is answered; the seconds of the allocation are charged to each
    question alike.
    """

    def __init__(self, name: str, selector: Selector) -> None:
        super().__init__(name, selector)
        self._choices: dict[tuple[int, str], Choice] = {}
        self._seconds: dict[int, float] = {}

    def prepare(
        self, questions: Sequence[Question], task: Callable[[Question], Task], budgets: Sequence[int]
    ) -> None:
        """Share each total among all questions; one without a pool gets nothing.

        Raises `MioRagError` if the totals cannot be shared.
        """
        most = max(budgets, default=0) * len(questions)
        laid: list[tuple[Task, Candidates, int]] = []
        for question in questions if budgets else ():
            one = task(question)
            try:
                laid.append((one, one.pool(Costs()), max(1, one.allowed(most))))
            except MioRagError:  # reported where the question is taken
                continue
        if not laid:
            return
        assert laid[0][0].retriever is not None
        for budget in budgets:
            began = time.perf_counter()
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

    def select(self, candidates: Candidates, budget_tokens: int, counter: TokenCounter) -> Selection:
        """Raise `InputError`: a total has no meaning for one question."""
        raise InputError(
            f"method '{self.name}' shares one total among all questions: use 'exact' for a single one"
        )

    def chosen(self, task: Task, candidates: Candidates, budget_tokens: int) -> Selection:
        """Return the share of a question that `prepare` has seen."""
        choice = self._choices.get((budget_tokens, task.question.id))
        if choice is None:
            raise InputError(
                f"method '{self.name}' was not prepared for question '{task.question.id}' at "
                f"{budget_tokens} tokens: call prepare with all questions first"
            )
        return concluded(choice)

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Return the share of a question; its part of the allocation's seconds counts as selection."""
        taken = super().take(task, budget_tokens)
        if taken.selection is not None:
            taken.costs.add(Call("select", self._seconds[budget_tokens]))
        return taken


class Paced(Method):
    """The program at a token price that a pacer sets, with one pacer for each budget.

    questions: of the run; the total is the budget times this number.
    rows: rows of an interrupted run, in their order: their tokens count as spent.
    """

    def __init__(self, selector: Selector, questions: int, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(PACED, selector)
        self._questions = questions
        self._pacers: dict[int, Pacer] = {}
        for row in rows:
            if row["method"] == PACED and not row["error"]:
                pacer = self._pacer(int(row["budget_tokens"]))
                pacer.spent(pacer.ask(), int(row["tokens_used"]))

    def chosen(self, task: Task, candidates: Candidates, budget_tokens: int) -> Selection:
        """Select at the price of the moment."""
        assert task.retriever is not None
        most = task.allowed(max(_MOST, budget_tokens))
        return self._pacer(budget_tokens).select(candidates, self.selector, task.retriever.counter, most)

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


def _ranking(selector: Selector) -> Selector:
    """Return the selector with nothing but its constraints, without those that may be broken at a price."""
    side, priced = selector.side, selector.side.prices
    if "clusters" in priced:
        side = side.replace(cover=None, per_cluster=1, prices={})
    if "conflicts" in priced:
        side = side.replace(conflicts=(), versions={}, max_similarity=None)
    if "needs" in priced:
        side = side.replace(needs={})
    counts: dict[str, Any] = {}
    if "passages" in priced:
        counts |= {"min_passages": None, "max_passages": None}
    if "sources" in priced:
        counts["max_per_source"] = None
    return selector.replace(
        side=side.replace(prices={}, change_price=0.0),
        **counts,
        redundancy_weight=0.0,
        passage_penalty=0.0,
        token_price=0.0,
        radius=0.0,
        uncertainty=None,
        passage_radii={},
        counterpart="termwise",
        relevance_model="given",
        link_benefit=0.0,
        shared_text_weight=0.0,
        near_duplicates="all",
        units="passages",
    )


def make_methods(names: Sequence[str], selector: Selector, mmr_lambda: float = 0.7) -> list[Method]:
    """Return the methods of the given names, "paced" excepted.

    selector: settings of the program for "exact", "greedy" and "local_search"; only "exact" uses its solver.
        Its constraints bind every method; those that may be broken at a price, and the price of changes,
        count for these three alone.
    mmr_lambda: in (0, 1]: weight of relevance against redundancy in "mmr". 1 is top-k.

    Raises `InputError` for unknown or repeated names, with all of them.
    """
    problems = [f"method '{n}' is listed twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    if not 0 < mmr_lambda <= 1:
        problems.append(f"mmr_lambda={mmr_lambda!r} must be in (0, 1]")
    if not names:
        problems.append(f"no method is given: choose from {', '.join(METHODS)}, topk:K")
    plain = _ranking(selector)
    methods: list[Method] = []
    for name in names:
        try:
            if ranked := _RANKED.fullmatch(name):
                methods.append(_ranked(name, ranked[1], ranked[2], plain, selector))
            elif name == "mmr" and 0 < mmr_lambda <= 1:
                # lambda rel - (1 - lambda) max sim orders like rel - (1 - lambda) / lambda max sim
                weight = (1 - mmr_lambda) / mmr_lambda
                methods.append(Method(name, plain.replace(redundancy_weight=weight, solver="mmr")))
            elif name == "density":
                methods.append(Method(name, plain.replace(solver="density")))
            elif name in ("greedy", "local_search"):
                methods.append(Method(name, selector.replace(solver=name)))
            elif name == "exact":
                methods.append(Method(name, selector))
            elif name == FITTING:
                methods.append(Method(name, selector.replace(units="auto")))
            elif name.startswith("exact:"):
                units = cast("Units", name.removeprefix("exact:"))
                methods.append(Method(name, selector.replace(units=units)))
            elif name == "allocated":
                if found := selector_problems(selector):
                    raise InputError(found)
                methods.append(Allocated(name, selector))
            elif name != "mmr":
                known = [*METHODS, "allocated", "calibrated", PACED]
                choice = choose(name, known, more=", topk:K, bm25:K, fused:K, exact:UNITS")
                problems.append(f"method '{name}' is unknown: {choice}")
        except InputError as error:
            problems += [f"method '{name}': {problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    return methods


def _ranked(name: str, score: str, most: str | None, plain: Selector, selector: Selector) -> Method:
    """A ranking by a score that stops after `most` passages."""
    model = selector.relevance_model if score == "calibrated" else "given"
    if score == "calibrated" and model == "given":
        raise InputError("it needs probabilities; leave relevance at auto, or give a model")
    limits = [k for k in (int(most) if most else None, plain.max_passages) if k is not None]
    rank = plain.replace(solver="topk", max_passages=min(limits, default=None), relevance_model=model)
    return Method(name, rank, None if score in ("topk", "calibrated") else score)


def unpaced(names: Sequence[str]) -> list[str]:
    """Return the names without "paced"; `InputError` if it is listed twice."""
    if names.count(PACED) > 1:
        raise InputError(f"method '{PACED}' is listed twice")
    return [name for name in names if name != PACED]


def make_contenders(
    names: Sequence[str],
    setup: Setup,
    *,
    mmr_lambda: float = 0.7,
    traces: Path | None = None,
    questions: int = 1,
    rows: Iterable[Mapping[str, Any]] = (),
) -> list[Contender]:
    """Return methods and controllers of these names, in their order.

    names: see the head of this module, and `mio_rag.policies.make`.
    setup: what controllers are made of; methods use its selector.
    traces: file for the traces of controllers.
    questions: of the run.
    rows: rows that the run has already; what they spent is spent.

    Raises `InputError` for unknown names.
    """
    ranked = unpaced([name for name in names if find_kind(name) is None])
    methods = {m.name: m for m in (make_methods(ranked, setup.selector, mmr_lambda) if ranked else [])}
    kept = list(rows)

    def made(name: str) -> Contender:
        if name in methods:
            return methods[name]
        if name == PACED:
            return Paced(setup.selector, questions, kept)
        controller = make_controller(name, setup)
        if isinstance(controller, Resuming):
            spent = [r for r in kept if r["method"] == name and not r["error"]]
            controller.take_up([int(r["prompt_tokens"]) + int(r["completion_tokens"]) for r in spent])
        return Controlled(controller, setup.selector.solver, traces)

    return [made(name) for name in names]


def default_baseline(names: Sequence[str]) -> str:
    """Return fused, else topk, else the first that the package does not propose, else the first."""
    kinds = {name: find_kind(name) for name in names}
    rivals = [name for name, kind in kinds.items() if kind is None or kind.rival]
    return [*(name for name in ("fused", "topk") if name in names), *rivals, *names][0]
