"""What a reader makes of each selection: EM and token F1 at one budget, where nothing was fitted.

Questions go round the sets, one of each in turn, so that a run that ends early has as many of every set. All
conditions of a question are answered before the next one, identical prompts once; rows lie in one ledger a
set, and a run goes on where it stopped. Tokens are the reader's own.

    baseline   the ranking with the largest gold recall at this budget on all reported questions
    mmr        maximal marginal relevance
    ours       links and benefit, the set's own weights where it has labels (else the shipped ones)
    sparing    the same with a passage penalty of 0.05
    default    the same with the shipped weights
    ends, document     ours in the other two prompt orders
    gold       the gold passages whatever they cost: what this reader can reach at all
    closed     no passages: what this reader knows
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.relevance.methods import FEW_TOKENS, LINK_BENEFIT
from mio_rag.context import render_context
from mio_rag.errors import InputError, MioRagError
from mio_rag.evaluation.contenders import Method, make_methods
from mio_rag.evaluation.ledger import Ledger
from mio_rag.generation import Generator, Prompt, build_prompt
from mio_rag.measures import answer_measures, failed_measures, quick_measures
from mio_rag.relevance import RelevanceModel
from mio_rag.retrieval import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.storage import write_atomically
from mio_rag.types import GenerationError, Passage, Question

CONDITIONS = ("baseline", "mmr", "ours", "gold", "sparing", "default", "ends", "document", "closed")
_ABORT_AFTER = 5

#: The method that decides, and how far links expand its pool; a method of None is the reference of that name.
Condition = tuple[Method | None, int]


def conditions(
    wanted: Sequence[str], baseline: str, models: Mapping[str, RelevanceModel], time_limit: float
) -> dict[str, Condition]:
    """The wanted ones, by name.

    Parameters
    ----------
    baseline : str
        A ranking of `mio_rag.evaluation.contenders`.
    models : mapping
        "default", and "links" where the set has weights of its own.

    Raises
    ------
    InputError
        For names that are none of `CONDITIONS`.
    """
    unknown = [name for name in wanted if name not in CONDITIONS]
    if unknown:
        raise InputError(f"conditions {', '.join(unknown)} are unknown: choose from {', '.join(CONDITIONS)}")
    options = SolveOptions(time_limit_seconds=time_limit, relative_gap=1e-3)
    plain = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, options=options)
    rank, mmr = (make_methods([name], plain)[0] for name in (baseline, "mmr"))
    default = plain.replace(link_benefit=LINK_BENEFIT, relevance_model=models["default"])
    ours = default.replace(relevance_model=models.get("links", models["default"]))
    found: dict[str, Condition] = {
        "baseline": (rank, 0),
        "mmr": (mmr, 0),
        "ours": (Method("ours", ours), 1),
        "sparing": (Method("sparing", ours.replace(passage_penalty=FEW_TOKENS)), 1),
        "default": (Method("default", default), 1),
        "ends": (Method("ends", ours.replace(prompt_order="document")), 1),
        "document": (Method("document", ours.replace(prompt_order="document")), 1),
        "gold": (None, 0),
        "closed": (None, 0),
    }
    return {name: found[name] for name in wanted}


@dataclass(frozen=True, eq=False)
class Readings:
    """One set of a run: its questions in a fixed order, what retrieves, what decides, and its ledger."""

    name: str
    questions: Sequence[Question]
    retrievers: Mapping[int, Retriever]
    passages: Mapping[str, Passage]
    conditions: Mapping[str, Condition]
    ledger: Ledger
    baseline: str


def open_ledger(folder: Path, identity: Mapping[str, Any]) -> Ledger:
    """The ledger in a folder, new or gone on with.

    Raises
    ------
    InputError
        If the folder holds rows made with other settings.
    """
    record = folder / "run.json"
    text = json.dumps(identity, indent=1, sort_keys=True)
    if record.is_file() and record.read_text(encoding="utf-8") != text:
        raise InputError(
            f"'{folder}' holds answers made with other settings: use the same, or another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(record, text)
    ledger = Ledger(folder)
    ledger.recover()
    return ledger


def answer_all(
    sets: Sequence[Readings],
    generator: Generator,
    *,
    count: int,
    budget_tokens: int,
    max_tokens: int,
    progress: Callable[[str], None],
) -> None:
    """Answer `count` questions of each set under every condition that has no row yet.

    Raises
    ------
    GenerationError
        When five questions in a row get no answer; what is finished is kept.
    """
    failing, started = 0, time.perf_counter()
    for turn in range(count):
        for one in sets:
            if turn >= len(one.questions):
                continue
            question = one.questions[turn]
            done = {row["method"] for row in one.ledger.rows if row["question_id"] == question.id}
            missing = [name for name in one.conditions if name not in done]
            rows = _rows(one, question, missing, generator, budget_tokens, max_tokens)
            one.ledger.append(rows)
            if rows:
                failing = failing + 1 if all(row["error"] for row in rows) else 0
            if failing >= _ABORT_AFTER:
                raise GenerationError(f"{failing} questions in a row failed: {rows[-1]['error']}")
        progress(f"{turn + 1} of {count} questions a set, {time.perf_counter() - started:.0f} s")


def _rows(
    one: Readings,
    question: Question,
    names: Sequence[str],
    generator: Generator,
    budget_tokens: int,
    max_tokens: int,
) -> list[dict[str, Any]]:
    """The rows of one question."""
    rows, prompts = [], []
    pools = {
        hops: one.retrievers[hops].retrieve(question.text) for hops in {one.conditions[n][1] for n in names}
    }
    for name in names:
        method, hops = one.conditions[name]
        row: dict[str, Any] = {
            "question_id": question.id,
            "method": name,
            "budget_tokens": budget_tokens,
            "error": None,
            "error_kind": None,
        }
        read: Sequence[Passage] = ()
        try:
            if method is not None:
                selection = method.select(pools[hops], budget_tokens, generator)
                read = selection.passages
                found = quick_measures(question, selection)
                row |= {n: v for n, v in found.items() if v is not None and n != "diversity"}
                row |= {"status": selection.result.status.value}
            elif name == "gold":
                if not question.gold_ids:
                    continue  # only the document is known
                read = [one.passages[i] for i in question.gold_ids]
        except InputError as error:  # nothing fits: the reader gets nothing to read
            row |= {"note": str(error), **failed_measures(question, selection=True, answer=False)}
        row["tokens_used"] = generator.count([render_context(read)])[0] if read else 0
        row["passages_selected"] = len(read)
        row["selected_ids"] = [p.id for p in read]
        rows.append(row)
        prompts.append(build_prompt(question, read))
    _answer(question, rows, prompts, generator, max_tokens)
    return rows


def _answer(
    question: Question,
    rows: Sequence[dict[str, Any]],
    prompts: Sequence[Prompt],
    generator: Generator,
    max_tokens: int,
) -> None:
    """Each distinct prompt once."""
    distinct = {prompt.user: prompt for prompt in prompts}
    said = generator.generate_many(list(distinct.values()), max_tokens=max_tokens) if distinct else []
    answers = dict(zip(distinct, said, strict=True))
    for row, prompt in zip(rows, prompts, strict=True):
        answer = answers[prompt.user]
        if isinstance(answer, MioRagError):
            row |= {"error": str(answer), "error_kind": type(answer).__name__}
            row |= failed_measures(question, selection=False, answer=True)
        else:
            row |= {
                "answer": answer.text,
                "prompt_tokens": answer.prompt_tokens,
                "completion_tokens": answer.completion_tokens,
                "generate_seconds": answer.latency_seconds,
                **answer_measures(question, answer.text),
            }
