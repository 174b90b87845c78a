"""Question -> rows: each question goes through retrieval, every method, and the reader.

Retrieval is done once a question and charged to each method; identical prompts are generated once (generators
are deterministic at temperature 0) and charged to each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.control.costs import Replies
from mio_rag.control.mdp.agent import Failure
from mio_rag.errors import InfeasibleError, MioRagError
from mio_rag.evaluation.controlled import Controlled, outcome_row
from mio_rag.evaluation.methods import Method
from mio_rag.formulations.program import SelectionProgram
from mio_rag.generation import Generator, Prompt, build_prompt
from mio_rag.generation.window import context_budget
from mio_rag.measures import answer_measures, failed_measures, selection_measures
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.solvers.registry import solve
from mio_rag.types import Answer, GenerationError, Question

__all__ = ["Road", "choose_option", "warm_up"]

_SHOWN_REST = 8  # unselected passages kept for the drill-down
_EXCERPT = 400


@dataclass
class _Work:
    """One row on its way: what was selected, and what goes to the generator."""

    question: Question
    method: Method | Controlled
    budget: int
    row: dict[str, Any] = field(init=False)
    selection: Selection | None = None
    prompt: Prompt | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.row = {
            "question_id": self.question.id,
            "question": self.question.text,
            "question_type": self.question.type,
            "method": self.method.name,
            "budget_tokens": self.budget,
            "answers": list(self.question.answers),
            "gold_ids": list(self.question.gold_ids),
            "retrieval_calls": 1,
            "lm_calls": 0,
            "error": None,
            "error_kind": None,
        }

    def fail(self, error: MioRagError, *, answered: bool) -> None:
        """Mark the row as failed; `answered`: whether a reader should have answered."""
        zeros = failed_measures(self.question, selection=self.selection is None, answer=answered)
        said = isinstance(error, InfeasibleError) and isinstance(self.method, Method)
        if not said:  # the solver said a status; an agent's selection is that of an earlier step
            self.row["status"] = "error"
        self.row |= {"error": str(error), "error_kind": type(error).__name__, **zeros}


def warm_up(methods: Sequence[Method | Controlled]) -> None:
    """Import and compile the solvers before anything is timed."""
    trivial = SelectionProgram(np.ones(13), np.zeros((13, 13)), np.ones(13), 1.0)
    for solver in {method.selector.solver for method in methods}:
        solve(trivial, solver)


class Road:
    """Question -> rows, for a chunk of questions at a time."""

    def __init__(self, retriever: Retriever | None, generator: Generator | None, max_tokens: int) -> None:
        self.retriever, self.generator, self.max_tokens = retriever, generator, max_tokens

    def rows(
        self, questions: Sequence[Question], open_pairs: dict[str, list[tuple[Method | Controlled, int]]]
    ) -> Iterator[list[dict[str, Any]]]:
        """The rows of each question, question by question."""
        selecting = {q.id: [(m, b) for m, b in open_pairs[q.id] if isinstance(m, Method)] for q in questions}
        works = [work for q in questions for work in self._select(q, selecting[q.id])]
        if self.generator is not None:
            self._generate(self.generator, works)
        for work in works:
            work.row["total_seconds"] = sum(work.seconds.values())
            work.row.update({f"{stage}_seconds": s for stage, s in work.seconds.items()})
        for question in questions:
            rows = [work.row for work in works if work.question is question]
            replies: Replies = {}  # the same prompt is asked once, and charged to every controller
            for method, budget in open_pairs[question.id]:
                if isinstance(method, Controlled):
                    rows.append(self._controlled(question, method, budget, replies))
            yield rows

    def _controlled(
        self, question: Question, method: Controlled, budget: int, replies: Replies
    ) -> dict[str, Any]:
        """The row of a question that an agent answers."""
        assert self.generator is not None
        work = _Work(question, method, budget)
        outcome = method.run(question, self.generator, budget, replies)
        work.selection = outcome.selection
        if work.selection is not None:
            work.row |= _described(question, work.selection)
        work.row |= outcome_row(question, outcome)
        if isinstance(outcome, Failure):
            work.fail(outcome.error, answered=True)
        return work.row

    def _select(self, question: Question, pairs: Sequence[tuple[Method, int]]) -> list[_Work]:
        """Retrieve once, and decide by every method."""
        if self.retriever is None or not pairs:
            return []
        start = time.perf_counter()
        found: Candidates | MioRagError
        try:
            found = self.retriever.retrieve(question.text)
        except MioRagError as error:
            found = error
        seconds = time.perf_counter() - start
        works = [_Work(question, method, budget) for method, budget in pairs]
        for work in works:
            work.seconds["retrieve"] = seconds
            if isinstance(found, MioRagError):
                work.fail(found, answered=self.generator is not None)
            else:
                self._decide(work, found, self.retriever.counter)
        return works

    def _decide(self, work: _Work, candidates: Candidates, counter: TokenCounter) -> None:
        start = time.perf_counter()
        failure: MioRagError | None = None
        try:
            allowed = self._allowed(work.question, work.budget)
            assert isinstance(work.method, Method)
            work.selection = work.method.select(candidates, allowed, counter)
            if work.selection.result.x is None:
                raise InfeasibleError(work.selection.explain())
            work.prompt = build_prompt(work.question, work.selection.passages)
        except MioRagError as error:
            failure = error
        work.seconds["select"] = time.perf_counter() - start
        if work.selection is not None:
            work.row |= _described(work.question, work.selection)
        if failure is not None:
            work.fail(failure, answered=self.generator is not None)

    def _allowed(self, question: Question, budget: int) -> int:
        """The budget, or what the model's window leaves for the context where that is less."""
        if self.generator is None:
            return budget
        return context_budget(self.generator, question, budget, max_tokens=self.max_tokens)

    def _generate(self, generator: Generator, works: Sequence[_Work]) -> None:
        """Answer each distinct prompt once; a question with choices by choosing, any other by writing."""
        waiting = [(work, work.prompt) for work in works if work.prompt is not None]
        prompts = {_key(prompt): prompt for _, prompt in waiting}
        written = [p for p in prompts.values() if not p.question.choices]
        generated = generator.generate_many(written, max_tokens=self.max_tokens) if written else []
        answers: dict[tuple[str, str], Answer | MioRagError] = dict(
            zip(map(_key, written), generated, strict=True)
        )
        choices: dict[tuple[str, str], int] = {}
        for key, prompt in prompts.items():
            if prompt.question.choices:
                answers[key], choices[key] = choose_option(generator, prompt)
        for work, prompt in waiting:
            answer = answers[_key(prompt)]
            if isinstance(answer, MioRagError):
                work.fail(answer, answered=True)
                said = answer.spent if isinstance(answer, GenerationError) else None
            else:
                said = answer
                work.row["answer"] = answer.text
                work.row |= answer_measures(work.question, answer.text, choices.get(_key(prompt)))
            if said is not None:
                work.seconds["generate"] = said.latency_seconds
                work.row |= {
                    "prompt_tokens": said.prompt_tokens,
                    "completion_tokens": said.completion_tokens,
                    "lm_calls": 1,
                }


def _key(prompt: Prompt) -> tuple[str, str]:
    """What the reader sees of a prompt."""
    return prompt.system, prompt.user


def choose_option(generator: Generator, prompt: Prompt) -> tuple[Answer | MioRagError, int]:
    """The chosen option as an answer, and its position: -1 after a failure."""
    try:
        chosen = generator.choose_scored(prompt, prompt.question.choices)
    except MioRagError as error:  # the model failed, or the question has one choice, or a blank one
        return error, -1
    return chosen.answer, chosen.index


def _described(question: Question, selection: Selection) -> dict[str, Any]:
    """What a row says of a selection."""
    result = selection.result
    return {
        "selected_ids": list(selection.ids),
        "passages_selected": len(selection.chosen),
        "pool_size": len(selection.candidates),
        "tokens_used": selection.tokens_used,
        "status": result.status.value,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "solver": result.solver,
        "solve_seconds": result.wall_seconds,
        **selection_measures(question, selection),
        "decisions": _decisions(question, selection),
    }


def _decisions(question: Question, selection: Selection) -> list[dict[str, Any]]:
    """What the drill-down shows: the chosen passages, missed gold, the best of the rest."""
    chosen = set(selection.chosen)
    rest = [i for i in range(len(selection.candidates)) if i not in chosen]
    gold = [i for i in rest if selection.candidates.ids[i] in question.gold_ids]
    best = sorted(rest, key=lambda i: -selection.decisions[i].value)[:_SHOWN_REST]
    rows = []
    for i in [*selection.chosen, *dict.fromkeys([*gold, *best])]:
        decision, passage = selection.decisions[i], selection.candidates.passage(i)
        text = passage.text if len(passage.text) <= _EXCERPT else passage.text[: _EXCERPT - 1] + "\u2026"
        rows.append(
            {
                "id": decision.id,
                "title": passage.title,
                "source": passage.source,
                "tokens": decision.tokens,
                "relevance": decision.relevance,
                "value": decision.value,
                "selected": decision.selected,
                "gold": decision.id in question.gold_ids,
                "reason": decision.reason,
                "redundant_with": decision.redundant_with,
                "text": text,
            }
        )
    return rows
