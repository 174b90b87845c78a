"""Run every tier on every question: the table that routers learn from.

Without a language model, tiers are judged by the gold evidence; the reader then says nothing, and tokens are
counted approximately.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError, choose
from mio_rag.evaluation.harness import EvaluationSettings, Progress, evaluate
from mio_rag.evaluation.ledger import environment
from mio_rag.generation import Generator, Prompt, ScriptedGenerator
from mio_rag.generation.protocol import LETTERS
from mio_rag.learning.outcomes import Outcomes
from mio_rag.learning.router import (
    BY,
    LABEL,
    UNANSWERED,
    WORKED,
    By,
    Table,
    Unanswered,
    labels,
    row_worked,
    seen_arrays,
)
from mio_rag.learning.router_model import KEY, SEARCH, RouterSettings, look
from mio_rag.measures import Instruments, measures
from mio_rag.policies.setup import ControlSettings
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.retrieval.settings import RetrievalSettings
from mio_rag.selection.selector import Selector
from mio_rag.session.tiers import PUBLISHED, Tier

#: Columns of the ledger that the table has besides every measure, where any row has them.
_COSTS = (
    "prompt_tokens", "completion_tokens", "lm_calls", "retrieval_calls", "total_seconds", "peak_memory_mb",
    "retrieve_seconds", "rerank_seconds", "compress_seconds", "generate_seconds",
)  # fmt: skip
_UNBOUNDED = 1_000_000  # tokens: the tiers have limits of their own


@dataclass(frozen=True)
class LabelSettings:
    """How questions are labelled: see `mio_rag.learning.router.row_worked` and `labels`.

    selector: the program of tiers with a price of tokens.
    """

    tiers: tuple[Tier, ...] = PUBLISHED
    by: By = "answers"
    unanswered: Unanswered = "published"
    selector: Selector = field(default_factory=Selector)
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value!r} is unknown: {choose(value, known)}"
            for name, value, known in (("by", self.by, BY), ("unanswered", self.unanswered, UNANSWERED))
            if value not in known
        ]
        if self.limit is not None and self.limit < 1:
            problems.append(f"limit={self.limit} must be >= 1")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, eq=False)
class Labelled:
    """The table, and what is not in it.

    unlabelled: questions without gold answers, or evidence.
    failed: questions on which a tier failed; a further run tries them again.
    """

    table: Table
    unlabelled: int
    failed: int

    @property
    def unanswered(self) -> int:
        """Questions of the table that no tier answers; their labels follow a rule."""
        return int((~self.table.worked.any(axis=1)).sum())


def label_questions(
    dataset: Dataset,
    index: CorpusIndex,
    generator: Generator | None,
    settings: LabelSettings,
    work: Path,
    progress: Progress | None = None,
    instruments: Instruments | None = None,
) -> Labelled:
    """Run every tier on every question, and label each with the cheapest tier that answers it.

    work: folder of the run's ledger and traces; an interrupted run is continued.
    instruments: for the measures that need some; they are columns of the table as well.

    Raises `DataError` if no question can be labelled.
    """
    if generator is None and settings.by == "answers":
        raise InputError("labels by answers need a model that answers: give --model, or --by evidence")
    reader = generator or ScriptedGenerator(silent)
    names = tuple(f"tier:{tier.name}" for tier in settings.tiers)
    evaluation = EvaluationSettings(
        methods=(),
        budgets=(_UNBOUNDED,),
        selector=settings.selector,
        retrieval=settings.retrieval,
        limit=settings.limit,
        seed=settings.seed,
        controllers=names,
        control=ControlSettings(kinds={KEY: RouterSettings(tiers=settings.tiers).to_dict()}),
    )
    resume = (work / "run.json").is_file()
    found = evaluate(
        dataset, index, reader, evaluation, work, resume=resume, progress=progress, instruments=instruments
    )
    rows, unlabelled, failed = _labelled(found.rows, settings.by)
    if not rows:
        raise DataError(
            f"none of {len(found.rows) // len(names)} questions of '{dataset.name}' can be labelled by "
            f"{settings.by}: {unlabelled} lack gold answers or evidence, and a tier failed on {failed}"
        )
    about = {
        "tiers": [tier.to_dict() for tier in settings.tiers], "by": settings.by,
        "unanswered": settings.unanswered, "dataset": dataset.name, "data_sha256": dataset.content_hash(),
        "generator": None if generator is None else generator.name,
        "embedder": index.embedder.fingerprint, "search": list(SEARCH), "seed": settings.seed,
        **environment(),
    }  # fmt: skip
    # Answers of a reader that says nothing are not judged.
    judged = [m.name for m in measures() if generator is not None or m.of not in ("answer", "choice")]
    present = [
        name for name in dict.fromkeys([*judged, *_COSTS]) if any(row.get(name) is not None for row in rows)
    ]
    rows = [{**row, "set": dataset.name, "action": row["method"].partition(":")[2]} for row in rows]
    outcomes = Outcomes.from_rows(
        rows, [*present, WORKED], actions=[tier.name for tier in settings.tiers], provenance=about
    )
    hops = {question.id: len(question.gold_ids) > 1 for question in dataset.questions}
    chosen = labels(outcomes.of(WORKED), [hops[i] for i in outcomes.ids], settings.unanswered)
    one_hot = np.eye(len(settings.tiers))[chosen]
    retriever = Retriever.of(index, settings.retrieval, reader)
    seen = seen_arrays([look(retriever.retrieve(text)) for text in outcomes.questions])
    values = {**outcomes.values, LABEL: one_hot}
    return Labelled(Table(dataclasses.replace(outcomes, values=values, arrays=seen)), unlabelled, failed)


def silent(prompt: Prompt) -> str:
    """Return the reply of a reader that says nothing: the first choice, where there are choices."""
    return LETTERS[0] if prompt.question.choices else ""


def _labelled(rows: Sequence[dict[str, Any]], by: By) -> tuple[list[dict[str, Any]], int, int]:
    """Return the rows of questions whose every row is labelled; how many are not, and how many failed."""
    failed = {row["question_id"] for row in rows if row["error"]}
    judged = [{**row, WORKED: row_worked(row, by)} for row in rows]
    without = {row["question_id"] for row in judged if row[WORKED] is None} - failed
    kept = [row for row in judged if row["question_id"] not in failed | without]
    return kept, len(without), len(failed)
