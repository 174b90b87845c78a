"""The rows of a question: retrieval, every contender, the reader, and the columns of the ledger.

Each question is retrieved once and charged to each contender. Equal prompts are generated once (generators
are deterministic at temperature 0) and charged to each.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from mio_rag.errors import InfeasibleError, InputError, MioRagError
from mio_rag.evaluation.markup import shortened
from mio_rag.formulations.program import Segments, SelectionProgram
from mio_rag.generation import Generator, Prompt
from mio_rag.generation.base import charged
from mio_rag.generation.protocol import context_budget
from mio_rag.measures import (
    Instruments,
    Reading,
    answer_measures,
    failed_measures,
    pool_measures,
    reading_measures,
    selection_measures,
)
from mio_rag.methods import FITTING
from mio_rag.policy.keys import load_policy, split_name
from mio_rag.pool import Candidates
from mio_rag.refusal.fitting import Scores, squad_scores
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.session.budget import Call, Costs, Prices, Replies, Reply
from mio_rag.solvers.registry import solve
from mio_rag.types import Question

_PARTED = (FITTING, "exact:auto", "exact:sentences")
#: Parts of the costs that every controller's row has; other parts come after them.
PARTS = ("decompose", "retrieve", "select", "reason", "measure", "answer")

_DRAWS = 3  # of random errors
_SHOWN_REST = 8  # unselected passages kept for the report


@cache
def is_parted(name: str) -> bool:
    """Return whether a method may read single sentences; gold is labelled by passages, so not compared."""
    stem, changes = split_name(name)
    units = changes.get("selection.units")
    if units is None and stem.startswith("program:"):
        units = load_policy(stem.partition(":")[2]).selection.settings.get("units", "auto")
    return stem in _PARTED if units is None else units != "passages"


@dataclass(eq=False)
class Task:
    """A question, with what every contender may use.

    replies: the generator's replies to controllers: an equal prompt is asked once, and charged to each.
    error: size of random errors of embeddings, by which stability is measured; 0: it is not.
    """

    question: Question
    retriever: Retriever | None
    generator: Generator | None
    max_tokens: int
    replies: Replies = field(default_factory=dict)
    error: float = 0.0
    seed: int = 0
    _found: Candidates | MioRagError | None = None
    _seconds: float = 0.0

    def pool(self, costs: Costs) -> Candidates:
        """Return the candidates, retrieved once and charged at each call; raises as retrieval, each time."""
        if self.retriever is None:
            raise InputError("there is no corpus to select from: give one, or compare controllers alone")
        if self._found is None:
            start = time.perf_counter()
            try:
                self._found = self.retriever.retrieve(self.question.text)
            except MioRagError as error:
                self._found = error
            self._seconds = time.perf_counter() - start
        costs.add(Call("retrieve", self._seconds, retrieval_calls=1))
        if isinstance(self._found, MioRagError):
            raise self._found
        return self._found

    @cached_property
    def others(self) -> list[Candidates]:
        """The candidates, with random errors of their embeddings."""
        if not self.error:
            return []
        # Seeded by the question, so that a resumed run draws what an uninterrupted one would have drawn.
        rng = np.random.default_rng([self.seed, zlib.crc32(self.question.id.encode("utf-8", "replace"))])
        return [perturbed(self.pool(Costs()), self.error, "l2", rng) for _ in range(_DRAWS)]

    def allowed(self, budget_tokens: int) -> int:
        """Return the budget, or what the reader's context window leaves where that is less."""
        if self.generator is None:
            return budget_tokens
        return context_budget(self.generator, self.question, budget_tokens, max_tokens=self.max_tokens)


def perturbed(pool: Candidates, radius: float, norm: str, rng: np.random.Generator) -> Candidates:
    """Move every passage's embedding by a random error of that size; cosines are those that result."""
    if pool.embeddings is None or pool.query_embedding is None:
        raise InputError("stability needs embeddings of passages and question: do not measure it")
    noise = rng.normal(size=pool.embeddings.shape)
    size = np.linalg.norm(noise, ord={"l2": 2, "l1": 1, "linf": np.inf}[norm], axis=1, keepdims=True)
    moved = pool.embeddings + radius * noise / size
    cosine = moved @ pool.query_embedding.astype(np.float64)
    scores = dict(pool.scores) | ({"dense": cosine} if "dense" in pool.scores else {})
    return replace(pool, embeddings=moved.astype(np.float32), relevance=cosine, scores=scores)


def jaccard(one: Iterable[Any], other: Iterable[Any]) -> float:
    """Share of what two selections have together that both have; 1 for two empty ones."""
    first, second = set(one), set(other)
    return len(first & second) / len(first | second) if first | second else 1.0


def add_smoothness(rows: Iterable[dict[str, Any]], questions: Sequence[Question]) -> None:
    """Tell each row of a conversation how much of its selection was that of the question before."""
    before = preceding(questions)
    chosen = {(r["question_id"], r["method"], r["budget_tokens"]): r.get("selected_ids") for r in rows}
    for row in rows:
        last = chosen.get((before.get(row["question_id"]), row["method"], row["budget_tokens"]))
        if last is not None and row.get("selected_ids") is not None:
            row["smoothness"] = jaccard(last, row["selected_ids"])


def preceding(questions: Sequence[Question]) -> dict[str, str]:
    """Return question id -> id of the question before it in its conversation."""
    last: dict[str, str] = {}
    found = {}
    for question in questions:
        if question.conversation in last:
            found[question.id] = last[question.conversation]
        if question.conversation:
            last[question.conversation] = question.id
    return found


@dataclass(eq=False)
class Taken:
    """What a contender did with a question.

    prompt: what the reader is to answer.
    reply: the answer of a contender that answers by itself.
    pool: what all methods choose from.
    columns: those that only this kind of contender has.
    """

    costs: Costs
    selection: Selection | None = None
    prompt: Prompt | None = None
    reply: Reply | None = None
    error: MioRagError | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    pool: Candidates | None = None


class Contender:
    """A method or controller that is compared: it takes a question under a token budget.

    name: as the ledger shows it.
    solver: compiled before anything is timed.
    """

    #: How many questions to ask it before the reader answers them together.
    questions_at_once = 4

    def __init__(self, name: str, solver: str) -> None:
        self.name, self.solver = name, solver

    def prepare(
        self, questions: Sequence[Question], task: Callable[[Question], Task], budgets: Sequence[int]
    ) -> None:
        """Look at all questions of a run before any is taken; `budgets`: those with unfinished questions."""

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Select or answer; a `MioRagError` is returned, any other exception is raised."""
        raise NotImplementedError


def warm_up(contenders: Sequence[Contender], shared: bool = False) -> None:
    """Import and compile the solvers; `shared`: also for candidates that share text."""
    trivial = SelectionProgram(np.ones(13), np.zeros((13, 13)), np.ones(13), 1.0)
    programs = [trivial]
    if shared:
        programs.append(replace(trivial, segments=Segments(np.ones(1), np.ones((13, 1), dtype=bool))))
    for solver in {contender.solver for contender in contenders}:
        for program in programs:
            solve(program, solver)


def answers_of(
    generator: Generator, prompts: Iterable[Prompt], max_tokens: int
) -> dict[tuple[str, str], Reply | MioRagError]:
    """Answer each distinct prompt once: choose among choices, write otherwise; keys are (system, user)."""
    distinct = {(prompt.system, prompt.user): prompt for prompt in prompts}
    written = {key: prompt for key, prompt in distinct.items() if not prompt.question.choices}
    found: dict[tuple[str, str], Reply | MioRagError] = {}
    if written:
        generated = generator.generate_many(list(written.values()), max_tokens=max_tokens)
        for key, one in zip(written, generated, strict=True):
            found[key] = one if isinstance(one, MioRagError) else Reply(one)
    for key, prompt in distinct.items():
        if prompt.question.choices:
            try:
                chosen = generator.choose_scored(prompt, prompt.question.choices)
                found[key] = Reply(chosen.answer, chosen.index)
            except MioRagError as error:  # the model failed, or the question has one choice, or a blank one
                found[key] = error
    return found


@dataclass(eq=False)
class Pipeline:
    """Makes the rows of questions.

    retriever_of: question -> the retriever of its corpus; None: there is none.
    prices: for a column of dollars.
    refusing: where it refuses, the answer is blank and the column "said" holds what the reader wrote.
    """

    retriever_of: Callable[[Question], Retriever | None]
    generator: Generator | None
    max_tokens: int
    prices: Prices | None = None
    instruments: Instruments | None = None
    refusing: Refusal | None = None
    error: float = 0.0
    seed: int = 0

    def task(self, question: Question) -> Task:
        """Return the task of a question, the same for every contender."""
        retriever = self.retriever_of(question)
        return Task(question, retriever, self.generator, self.max_tokens, error=self.error, seed=self.seed)

    def rows(
        self, questions: Sequence[Question], open_pairs: Mapping[str, Sequence[tuple[Contender, int]]]
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of each question; the reader answers all questions together."""
        taken: dict[str, list[Taken]] = {}
        for question in questions:
            task = self.task(question)
            taken[question.id] = [one.take(task, budget) for one, budget in open_pairs[question.id]]
        if self.generator is not None:
            self._answer(self.generator, [one for all_ in taken.values() for one in all_])
        for question in questions:
            known: dict[object, object] = {}
            pairs = zip(open_pairs[question.id], taken[question.id], strict=True)
            yield [self._row(question, one, budget, found, known) for (one, budget), found in pairs]

    def _answer(self, generator: Generator, taken: Sequence[Taken]) -> None:
        prompts = [one.prompt for one in taken if one.prompt is not None]
        answers = answers_of(generator, prompts, self.max_tokens)
        for one in taken:
            if one.prompt is None:
                continue
            found = answers[one.prompt.system, one.prompt.user]
            if isinstance(found, MioRagError):
                one.error, said = found, charged(found, generator, one.prompt, self.max_tokens)
            else:
                one.reply, said = found, found.answer
            if said is not None:
                call = Call("answer", said.latency_seconds, 1, 0, said.prompt_tokens, said.completion_tokens)
                one.costs.add(call, model=generator.name)

    def _row(
        self, question: Question, one: Contender, budget: int, taken: Taken, known: dict[object, object]
    ) -> dict[str, Any]:
        selection, reply, error = taken.selection, taken.reply, taken.error
        instruments = self.instruments or Instruments()
        row = {
            "question_id": question.id, "question": question.text, "question_type": question.type,
            "method": one.name, "budget_tokens": budget, "answers": list(question.answers),
            "gold_ids": list(question.gold_ids), "error": None, "error_kind": None,
        }  # fmt: skip
        if selection is not None:
            row |= _selection_columns(question, selection)
        row |= taken.columns
        row |= cost_columns(taken.costs, self.prices, answered=self.generator is not None)
        text = None
        if reply is not None:
            text = reply.answer.text
            if self.refusing is not None and selection is not None and not question.choices:
                verdict = self.refusing.judge(question.text, selection, reply.answer)
                row |= {"said": text, "refused": verdict.refused, "refusal_probability": verdict.probability}
                text = "" if verdict.refused else text
            row |= {"answer": text, **answer_measures(question, text, reply.choice)}
        if selection is not None or reply is not None:
            passages = () if selection is None else tuple(selection.passages)
            row |= reading_measures(question, Reading(instruments, passages, text, known))
        if error is not None:
            # An infeasible selection has its own status; one that was made comes before the failure.
            infeasible = selection is not None and selection.result.x is None
            if not (infeasible and isinstance(error, InfeasibleError)):
                row["status"] = "error"
            row |= {"error": str(error), "error_kind": type(error).__name__}
            answered, given = self.generator is not None, instruments.given
            row |= failed_measures(question, selection=selection is None, answer=answered, instruments=given)
            if selection is None and taken.pool is not None:  # was found, whatever a method made of it
                row |= pool_measures(question, taken.pool)
        return row


def _selection_columns(question: Question, selection: Selection) -> dict[str, Any]:
    result = selection.result
    merged = [
        {"text": block.passage.text, "parts": [part.to_dict() for part in block.parts]}
        for block in selection.blocks
        if len(block.parts) > 1
    ]
    return {
        "selected_ids": list(selection.ids), "passages_selected": len(selection.ids),
        "pool_size": len(selection.candidates), "tokens_used": selection.tokens_used,
        **_certificate(selection), "solver": result.solver, "solve_seconds": result.wall_seconds,
        **selection_measures(question, selection), "decisions": _decisions(question, selection),
        **({"read": merged} if merged else {}),
    }  # fmt: skip


def _certificate(selection: Selection) -> dict[str, Any]:
    """Status, objective, bound and gap; a ranking has none: those of its solver are of its own score."""
    result = selection.result
    if selection.is_ranking and result.x is not None:
        return {"status": "ranked", "objective": None, "bound": None, "gap": None}
    told = {name: getattr(result, name) for name in ("objective", "bound", "gap")}
    return {"status": result.status.value, **told}


def _decisions(question: Question, selection: Selection) -> list[dict[str, Any]]:
    """The passages that the report shows: the chosen ones, missed gold, the best of the rest."""
    pool, chosen, decisions = selection.candidates, set(selection.chosen), selection.decisions
    gold = [i for i, name in enumerate(pool.passage_ids) if name in question.gold_ids]
    rest = [i for i in range(len(pool)) if i not in chosen]
    best = sorted(rest, key=lambda i: -decisions[i].value)[:_SHOWN_REST]
    rows = []
    for i in dict.fromkeys([*selection.chosen, *gold, *best]):
        passage = pool.passage(i)
        names = ("id", "tokens", "relevance", "value", "selected", "reason", "redundant_with")
        own = {name: getattr(decisions[i], name) for name in names}
        text = shortened(passage.text)
        rows.append(own | {"title": passage.title, "source": passage.source, "gold": i in gold, "text": text})
    return rows


# Columns of costs and refusals ------------------------------------------------------------------------------


def seconds_column(part: str) -> str:
    """Return the column with the seconds of a part; `InputError` if it would hold other seconds."""
    if part in ("total", "solve", "generate"):
        raise InputError(f"a part of a controller cannot be named '{part}': choose another name")
    return "generate_seconds" if part == "answer" else f"{part}_seconds"


def cost_columns(costs: Costs, prices: Prices | None, *, answered: bool) -> dict[str, Any]:
    """Return calls, tokens, seconds by part, memory and, with prices, dollars; tokens only with a reader."""
    total = costs.total()
    columns: dict[str, Any] = {"retrieval_calls": total.retrieval_calls, "lm_calls": total.lm_calls}
    if answered:
        columns |= {"prompt_tokens": total.prompt_tokens, "completion_tokens": total.completion_tokens}
    columns |= {seconds_column(part): amount.seconds for part, amount in costs.by_part().items()}
    columns |= {"total_seconds": total.seconds, "peak_memory_mb": total.peak_memory_mb}
    if prices is not None:
        columns["dollars"] = total.dollars(prices)
    return columns


def reading_column(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the column of the tokens that were read: of the context; with controllers, of all prompts."""
    return "prompt_tokens" if any(record.get("steps") is not None for record in records) else "tokens_used"


def refusal_scores(rows: Iterable[Mapping[str, Any]], threshold: float) -> dict[tuple[str, int], Scores]:
    """Return the scores of SQuAD 2.0 for each method and budget, of rows that a refusal model judged.

    Rows that failed count as refused; questions that may have an answer and name none are left out.
    """
    parts: dict[tuple[str, int], tuple[list[Any], list[str], list[float]]] = {}
    for row in rows:
        failed = bool(row.get("error"))
        judged = failed or "refusal_probability" in row
        if not judged or not (row["answers"] or row["question_type"] == "unanswerable"):
            continue
        keys, said, chances = parts.setdefault((row["method"], row["budget_tokens"]), ([], [], []))
        keys.append(row["answers"])
        said.append("" if failed else row["said"])
        chances.append(1.0 if failed else row["refusal_probability"])
    return {name: squad_scores(*found, threshold) for name, found in parts.items()}
