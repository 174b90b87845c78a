"""Question -> rows: each question goes through retrieval, every contender, and the reader.

Retrieval is done once a question and charged to each method; identical prompts are generated once (generators
are deterministic at temperature 0) and charged to each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mio_rag.control.costs import Call, Prices
from mio_rag.control.meter import Reply
from mio_rag.errors import InfeasibleError, MioRagError
from mio_rag.evaluation.contender import Contender, Taken, Task
from mio_rag.evaluation.expenses import cost_columns
from mio_rag.formulations.program import Segments, SelectionProgram
from mio_rag.generation import Generator, Prompt
from mio_rag.measures import (
    Instruments,
    Reading,
    answer_measures,
    failed_measures,
    reading_measures,
    selection_measures,
)
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.solvers.registry import solve
from mio_rag.types import Answer, GenerationError, Question

__all__ = ["Pipeline", "answer_by_choice", "warm_up"]

_SHOWN_REST = 8  # unselected passages kept for the drill-down
_EXCERPT = 400


@dataclass
class _Work:
    """One row on its way."""

    question: Question
    contender: Contender
    budget: int
    taken: Taken


def warm_up(contenders: Sequence[Contender], shared: bool = False) -> None:
    """Import and compile the solvers before anything is timed.

    Parameters
    ----------
    shared : bool
        Whether candidates may share text, for which the exact kernel has parts of its own.
    """
    trivial = SelectionProgram(np.ones(13), np.zeros((13, 13)), np.ones(13), 1.0)
    programs = [trivial]
    if shared:
        programs.append(replace(trivial, segments=Segments(np.ones(1), np.ones((13, 1), dtype=bool))))
    for solver in {contender.solver for contender in contenders}:
        for program in programs:
            solve(program, solver)


class Pipeline:
    """Question -> rows, for a chunk of questions at a time.

    Parameters
    ----------
    retriever_of : callable
        Question -> the retriever of its corpus; None: there is none.
    prices : Prices, optional
        What tokens cost, for a column of dollars.
    instruments : Instruments, optional
        For the measures that need some.
    refusing : Refusal, optional
        Where it refuses, the answer is blank: what was said stands in the column "said".
    """

    def __init__(
        self,
        retriever_of: Callable[[Question], Retriever | None],
        generator: Generator | None,
        max_tokens: int,
        prices: Prices | None = None,
        instruments: Instruments | None = None,
        refusing: Refusal | None = None,
    ) -> None:
        self.refusing = refusing
        self._retriever_of, self.generator, self.max_tokens = retriever_of, generator, max_tokens
        self.prices, self.instruments = prices, instruments or Instruments()

    def task(self, question: Question) -> Task:
        """The question as a task for every contender."""
        return Task(question, self._retriever_of(question), self.generator, self.max_tokens)

    def rows(
        self, questions: Sequence[Question], open_pairs: Mapping[str, Sequence[tuple[Contender, int]]]
    ) -> Iterator[list[dict[str, Any]]]:
        """The rows of each question, question by question."""
        works = [work for question in questions for work in self._taken(question, open_pairs[question.id])]
        if self.generator is not None:
            self._generate(self.generator, works)
        for question in questions:
            known: dict[object, object] = {}
            yield [self._row(work, known) for work in works if work.question is question]

    def _taken(self, question: Question, pairs: Sequence[tuple[Contender, int]]) -> list[_Work]:
        """What each contender makes of a question; all get the same task."""
        task = self.task(question)
        return [_Work(question, one, budget, one.take(task, budget)) for one, budget in pairs]

    def _generate(self, generator: Generator, works: Sequence[_Work]) -> None:
        """Answer each distinct prompt once; a question with choices by choosing, any other by writing."""
        waiting = [(work.taken, work.taken.prompt) for work in works if work.taken.prompt is not None]
        prompts = {_key(prompt): prompt for _, prompt in waiting}
        written = [p for p in prompts.values() if not p.question.choices]
        generated = generator.generate_many(written, max_tokens=self.max_tokens) if written else []
        answers: dict[tuple[str, str], Answer | MioRagError] = dict(
            zip(map(_key, written), generated, strict=True)
        )
        places: dict[tuple[str, str], int] = {}
        for key, prompt in prompts.items():
            if prompt.question.choices:
                answers[key], places[key] = answer_by_choice(generator, prompt)
        for taken, prompt in waiting:
            answer = answers[_key(prompt)]
            if isinstance(answer, MioRagError):
                taken.error = answer
                said = answer.spent if isinstance(answer, GenerationError) else None
            else:
                said = answer
                taken.reply = Reply(answer, places.get(_key(prompt)))
            if said is not None:
                call = Call("answer", said.latency_seconds, 1, 0, said.prompt_tokens, said.completion_tokens)
                taken.costs.add(call, model=generator.name)

    def _row(self, work: _Work, known: dict[object, object]) -> dict[str, Any]:
        question, taken = work.question, work.taken
        row = {
            "question_id": question.id,
            "question": question.text,
            "question_type": question.type,
            "method": work.contender.name,
            "budget_tokens": work.budget,
            "answers": list(question.answers),
            "gold_ids": list(question.gold_ids),
            "error": None,
            "error_kind": None,
        }
        if taken.selection is not None:
            row |= _described(question, taken.selection)
        row |= taken.columns
        row |= cost_columns(taken.costs, self.prices, answered=self.generator is not None)
        text = None
        if taken.reply is not None:
            text, judged = self._said(question, taken, taken.reply)
            row |= {"answer": text, **judged, **answer_measures(question, text, taken.reply.choice)}
        if taken.selection is not None or taken.reply is not None:
            row |= self._read(question, taken, text, known)
        if taken.error is not None:
            row |= self._failed(taken, taken.error, question)
        return row

    def _said(self, question: Question, taken: Taken, reply: Reply) -> tuple[str, dict[str, Any]]:
        """The answer, blank where it is refused, and what speaks for that; a choice is never refused."""
        if self.refusing is None or taken.selection is None or question.choices:
            return reply.answer.text, {}
        verdict = self.refusing.judge(question.text, taken.selection, reply.answer)
        told = {
            "said": reply.answer.text,
            "refused": verdict.refused,
            "refusal_probability": verdict.probability,
        }
        return "" if verdict.refused else reply.answer.text, told

    def _read(
        self, question: Question, taken: Taken, answer: str | None, known: dict[object, object]
    ) -> dict[str, float | None]:
        """What takes instruments."""
        passages = () if taken.selection is None else taken.selection.passages
        return reading_measures(question, Reading(self.instruments, tuple(passages), answer, known))

    def _failed(self, taken: Taken, error: MioRagError, question: Question) -> dict[str, Any]:
        """What a row says of a failure."""
        # A selection that was found infeasible says so itself; one with a decision came before the failure.
        found = taken.selection is not None and taken.selection.result.x is None
        status = {} if found and isinstance(error, InfeasibleError) else {"status": "error"}
        zeros = failed_measures(
            question,
            selection=taken.selection is None,
            answer=self.generator is not None,
            instruments=self.instruments.given,
        )
        return {**status, "error": str(error), "error_kind": type(error).__name__, **zeros}


def _key(prompt: Prompt) -> tuple[str, str]:
    """What the reader sees of a prompt."""
    return prompt.system, prompt.user


def answer_by_choice(generator: Generator, prompt: Prompt) -> tuple[Answer | MioRagError, int]:
    """The choice as an answer, and its position: -1 after a failure."""
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
        "passages_selected": len(selection.ids),
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
        **_merged(selection),
    }


def _merged(selection: Selection) -> dict[str, Any]:
    """The texts that several passages are read as, where there are any."""
    read = [
        {"text": block.passage.text, "parts": [asdict(part) for part in block.parts]}
        for block in selection.blocks
        if len(block.parts) > 1
    ]
    return {"read": read} if read else {}


def _decisions(question: Question, selection: Selection) -> list[dict[str, Any]]:
    """What the drill-down shows: the chosen passages, missed gold, the best of the rest."""
    chosen = set(selection.chosen)
    rest = [i for i in range(len(selection.candidates)) if i not in chosen]
    gold = [i for i in rest if selection.candidates.passage_ids[i] in question.gold_ids]
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
                "gold": selection.candidates.passage_ids[i] in question.gold_ids,
                "reason": decision.reason,
                "redundant_with": decision.redundant_with,
                "text": text,
            }
        )
    return rows
