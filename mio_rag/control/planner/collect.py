"""Run every workflow on every question once: the table of outcomes that policies are learned from.

Rows are kept by question as they are finished, and a later run goes on from there. Question sets take turns,
so that wherever a run ends the table is balanced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.control.controller import Failure, Outcome
from mio_rag.control.outcomes import Outcomes
from mio_rag.control.planner.controller import WorkflowController
from mio_rag.control.planner.money import dollars
from mio_rag.control.planner.run import Kit
from mio_rag.control.planner.settings import WorkflowSettings
from mio_rag.control.planner.trace import PlanStep, PlanTrace
from mio_rag.control.planner.workflow import Workflow
from mio_rag.errors import DataError, InputError
from mio_rag.files import write_atomically
from mio_rag.generation import Generator
from mio_rag.generation.protocol import content_of
from mio_rag.lines import append_lines
from mio_rag.measures import answer_measures, failed_measures
from mio_rag.reading import parse_json, read_text
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.types import Question

__all__ = [
    "MEASURES",
    "Source",
    "collect_outcomes",
    "data_hash",
    "read_collected",
    "read_rows",
    "shuffled",
    "table_of",
]

#: Columns of the table of outcomes.
MEASURES = (
    "token_f1",
    "exact_match",
    "evidence",
    "tokens",
    "prompt_tokens",
    "completion_tokens",
    "lm_calls",
    "retrieval_calls",
    "seconds",
    "dollars",
    "dropped",
    "failed",
)
_ROWS, _ABOUT, _TABLE = "rows.jsonl", "settings.json", "outcomes.parquet"


@dataclass(frozen=True, eq=False)
class Source:
    """A question set, with what its workflows run with.

    Parameters
    ----------
    data_sha256 : str
        Of questions and index, so that rows of different ones never mix.
    """

    name: str
    questions: Sequence[Question]
    kit: Kit
    data_sha256: str = ""


def collect_outcomes(
    folder: Path,
    sources: Sequence[Source],
    workflows: Sequence[Workflow],
    generator: Generator,
    *,
    budget_tokens: int = 256,
    progress: Callable[[str, int, int], None] | None = None,
) -> Outcomes:
    """Answer every question by every workflow, and write the table; what is finished already is kept.

    Parameters
    ----------
    folder : Path
        Takes rows.jsonl, settings.json and outcomes.parquet.
    progress : callable, optional
        Called with a question's id, how many are finished, and of how many.

    Raises
    ------
    InputError
        If the folder holds rows of another run: other workflows, model, budget or data.
    """
    about = {
        "workflows": {workflow.name: workflow.sha256 for workflow in workflows},
        "generator": content_of(generator),
        "budget_tokens": int(budget_tokens),
        "sources": {source.name: source.data_sha256 for source in sources},
        "settings": _plain([source.kit.settings.to_dict() for source in sources[:1]]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(folder, about)
    rows = read_rows(folder) if (folder / _ROWS).exists() else []
    done = {(row["question_id"], row["action"]) for row in rows}
    asked = list(_in_turns(sources))
    for place, (source, question) in enumerate(asked, 1):
        name = f"{source.name}:{question.id}"
        # A write that was cut off may have left some rows of a question.
        if lacking := [w for w in workflows if (name, w.name) not in done]:
            rows = _rows(name, source, question, lacking, generator, budget_tokens)
            append_lines(folder / _ROWS, [json.dumps(row) for row in rows])
        if progress is not None:
            progress(name, place, len(asked))
    table = table_of(read_rows(folder), tuple(w.name for w in workflows), about)
    table.write(folder / _TABLE)
    return table


def _plain(data: Any) -> Any:
    return json.loads(json.dumps(data))


def _check_same(folder: Path, about: Mapping[str, Any]) -> None:
    path = folder / _ABOUT
    if not path.exists():
        write_atomically(path, json.dumps(about, indent=1))
        return
    before = parse_json(read_text(path), str(path))
    if not isinstance(before, dict):
        raise DataError(f"'{path}' is damaged: choose another folder")
    changed = [key for key in about if before.get(key) != _plain(about[key])]
    if changed:
        raise InputError(
            f"'{folder}' holds outcomes of another {', '.join(changed)}: rows of different runs cannot be "
            "mixed; choose another folder"
        )


def _in_turns(sources: Sequence[Source]) -> Iterator[tuple[Source, Question]]:
    for turn in zip_longest(*([(source, q) for q in source.questions] for source in sources)):
        yield from (pair for pair in turn if pair is not None)


def _rows(
    name: str,
    source: Source,
    question: Question,
    workflows: Sequence[Workflow],
    generator: Generator,
    budget_tokens: int,
) -> list[dict[str, Any]]:
    """A row for each workflow; what several have in common is asked once, and charged to each."""
    replies: Any = {}
    rows = []
    for workflow in workflows:
        controller = WorkflowController(f"workflow:{workflow.name}", workflow, source.kit)
        found = controller.attempt(question, generator, budget_tokens, replies)
        rows.append(_row(name, source, question, workflow, found))
    return rows


def _row(
    name: str, source: Source, question: Question, workflow: Workflow, found: Outcome | Failure
) -> dict[str, Any]:
    trace, total = found.trace, found.costs.total()
    assert isinstance(trace, PlanTrace)
    if found.error is None:
        right = answer_measures(question, trace.answer, trace.choice)
    else:
        right = dict(failed_measures(question, selection=False, answer=True))
    f1 = right.get("token_f1")
    return {
        "question_id": name,
        "set": source.name,
        "question": question.text,
        "action": workflow.name,
        "token_f1": right.get("accuracy") if f1 is None else f1,
        "exact_match": right.get("accuracy") if f1 is None else right.get("exact_match"),
        "evidence": _evidence(question, trace.steps),
        "tokens": total.prompt_tokens + total.completion_tokens,
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "lm_calls": total.lm_calls,
        "retrieval_calls": total.retrieval_calls,
        "seconds": total.seconds,
        "dollars": dollars(trace.steps, source.kit.settings),
        "dropped": len(trace.dropped),
        "failed": int(found.error is not None),
        "answer": trace.answer,
        "error": trace.error,
        "fallback": trace.fallback,
        "steps": _top_steps(workflow, trace, source.kit.settings),
    }


def _evidence(question: Question, steps: Sequence[PlanStep]) -> float | None:
    """Share of the gold passages that any step read."""
    gold = set(question.gold_ids)
    return len(gold & {i for step in steps for i in step.selected_ids}) / len(gold) if gold else None


def _top_steps(workflow: Workflow, trace: PlanTrace, settings: WorkflowSettings) -> list[dict[str, Any]]:
    """The workflow's own nodes, each with what it cost with everything inside it."""
    costs = trace.by_node()
    steps = {step.node: step for step in trace.steps}
    told = []
    for node, signature in zip(workflow.nodes, workflow.signatures(), strict=True):
        if (step := steps.get(node.id)) is None:
            continue
        spent = costs[node.id]
        told.append(
            {
                "node": node.id,
                "do": node.do,
                "signature": signature,
                "tokens": spent.prompt_tokens + spent.completion_tokens,
                "dollars": dollars(
                    [s for s in trace.steps if f"{s.node}/".startswith(f"{node.id}/")], settings
                ),
                "retrieval_calls": spent.retrieval_calls,
                "seconds": spent.seconds,
                "signals": step.signals,
                "dropped": step.dropped,
                "gave": step.gave,
            }
        )
    return told


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder that `collect_outcomes` wrote; a line cut short by a kill is passed over.

    Raises
    ------
    InputError
        If there are none.
    """
    path = folder / _ROWS
    rows: list[dict[str, Any]] = []
    lines = read_text(path).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise DataError(f"{path}, line {number} is damaged: {error}") from error
    return rows


def read_collected(folder: Path) -> tuple[Outcomes, list[dict[str, Any]]]:
    """The table of a folder, also of a run that is not finished, and its rows.

    Raises
    ------
    InputError
        If the folder holds none, or no question that every workflow has answered.
    """
    path = folder / _ABOUT
    if not path.is_file():
        raise InputError(f"'{folder}' holds no outcomes: run `mio-rag plan outcomes`")
    about = parse_json(read_text(path), str(path))
    if not isinstance(about, dict) or not isinstance(about.get("workflows"), dict):
        raise DataError(f"'{path}' is damaged: run `mio-rag plan outcomes` in a new folder")
    rows = read_rows(folder)
    outcomes = table_of(rows, tuple(about["workflows"]), about)
    kept = set(outcomes.ids)
    return outcomes, [row for row in rows if row["question_id"] in kept]


def table_of(
    rows: Sequence[Mapping[str, Any]], workflows: Sequence[str], about: Mapping[str, Any]
) -> Outcomes:
    """The table of rows; questions that not every workflow has answered are left out."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        seen.setdefault(row["question_id"], set()).add(row["action"])
    whole = [row for row in rows if seen[row["question_id"]] >= set(workflows)]
    measures = [m for m in MEASURES if any(row.get(m) is not None for row in whole)]
    provenance = {**_plain(about), "rows_sha256": sha256(json.dumps(whole).encode()).hexdigest()}
    return Outcomes.from_rows(whole, measures, actions=list(workflows), provenance=provenance)


def shuffled(
    questions: Sequence[Question], limit: int | None, seed: int, skip: int = 0
) -> tuple[Question, ...]:
    """So many questions, drawn by seed; a smaller number is the beginning of a larger one.

    Parameters
    ----------
    skip : int
        Questions that are passed over first: those of an earlier draw of so many by the same seed.
    """
    order = np.random.default_rng(seed).permutation(len(questions))[skip:]
    return tuple(questions[i] for i in order[:limit])


def data_hash(index: CorpusIndex, questions: Sequence[Question]) -> str:
    """Of what rows depend on: all of the index that decides, and all questions with what is right."""
    digest = sha256(index.digest().encode())
    for q in questions:
        labels = [q.answers, q.gold_ids, q.gold_sources, q.choices, q.type]
        digest.update(json.dumps([q.id, q.text, *labels]).encode() + b"\0")
    return digest.hexdigest()
