"""Every tier on every question, through the harness: the table that routers learn from.

Without a language model, tiers are held against the gold evidence. The reader is then one that says nothing,
and tokens are counted approximately.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from mio_rag.control.router.features import look
from mio_rag.control.router.settings import KEY, RouterSettings
from mio_rag.control.router.tier import PUBLISHED, Tier
from mio_rag.control.router.worked import BY, UNANSWERED, By, Unanswered, labels, row_worked
from mio_rag.control.settings import ControlSettings
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError, choose
from mio_rag.evaluation.harness import EvaluationSettings, Progress, evaluate
from mio_rag.evaluation.record import environment
from mio_rag.generation import Generator, Prompt, ScriptedGenerator
from mio_rag.generation.prompts import LETTERS
from mio_rag.learning.outcomes import Outcomes
from mio_rag.learning.router import LABEL, WORKED, Table
from mio_rag.measures import Instruments, measures
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.retrieval.settings import RetrievalSettings
from mio_rag.selection.selector import Selector

__all__ = ["LabelSettings", "Labelled", "label_questions", "silent"]

#: Columns of the ledger that the table keeps beside every measure, where any row has them.
_COSTS = (
    "prompt_tokens",
    "completion_tokens",
    "lm_calls",
    "retrieval_calls",
    "total_seconds",
    "peak_memory_mb",
)
_SECONDS = ("retrieve_seconds", "rerank_seconds", "compress_seconds", "generate_seconds")

_UNBOUNDED = 1_000_000  # tokens: what is read is for the tiers to say


@dataclass(frozen=True)
class LabelSettings:
    """How questions are labelled.

    Parameters
    ----------
    by : str
        "answers" or "evidence"; see `mio_rag.control.router.worked.row_worked`.
    unanswered : str
        Which tier a question needs that none answers: "published", "cheapest" or "dearest".
    selector : Selector
        The program of tiers with a price of tokens.
    limit : int or None
        Only the first so many questions.
    """

    tiers: tuple[Tier, ...] = PUBLISHED
    by: By = "answers"
    unanswered: Unanswered = "published"
    selector: Selector = dataclasses.field(default_factory=Selector)
    retrieval: RetrievalSettings = dataclasses.field(default_factory=RetrievalSettings)
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        if self.by not in BY:
            problems.append(f"by={self.by!r} is unknown: {choose(self.by, BY)}")
        if self.unanswered not in UNANSWERED:
            problems.append(
                f"unanswered={self.unanswered!r} is unknown: {choose(self.unanswered, UNANSWERED)}"
            )
        if self.limit is not None and self.limit < 1:
            problems.append(f"limit={self.limit} must be >= 1")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, eq=False)
class Labelled:
    """The table, and what is not in it.

    Parameters
    ----------
    unlabelled : int
        Questions without gold answers, or evidence: nothing can be held against them.
    failed : int
        Questions of which a tier failed; a further run tries them again.
    """

    table: Table
    unlabelled: int
    failed: int

    @property
    def unanswered(self) -> int:
        """Questions of the table that no tier does for: their labels follow a rule."""
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
    """Run every tier on every question, and label each with the cheapest tier that does.

    Parameters
    ----------
    generator : Generator or None
        None: only by evidence.
    work : Path
        Folder of the run's ledger and traces; an interrupted run is continued.
    progress : callable, optional
        Called with (number of questions just finished, text).
    instruments : Instruments, optional
        For the measures that need some; they are columns of the table as well.

    Raises
    ------
    InputError
        If answers are wanted without a generator, or the folder holds another run.
    DataError
        If no question can be labelled.
    """
    if generator is None and settings.by == "answers":
        raise InputError("labels by answers need a model that answers: give --generator, or --by evidence")
    reader = generator or ScriptedGenerator(silent)
    names = [f"tier:{tier.name}" for tier in settings.tiers]
    evaluation = EvaluationSettings(
        methods=(),
        budgets=(_UNBOUNDED,),
        selector=settings.selector,
        retrieval=settings.retrieval,
        limit=settings.limit,
        seed=settings.seed,
        controllers=tuple(names),
        control=ControlSettings(kinds={KEY: RouterSettings(settings.tiers).to_dict()}),
    )
    found = evaluate(
        dataset,
        index,
        reader,
        evaluation,
        work,
        resume=(work / "run.json").is_file(),
        progress=progress,
        instruments=instruments,
    )
    rows, unlabelled, failed = _labelled(found.rows, settings.by)
    if not rows:
        raise DataError(
            f"none of {len(found.rows) // len(names)} questions of '{dataset.name}' can be labelled by "
            f"{settings.by}: {unlabelled} lack what is needed for that, of {failed} a tier failed"
        )
    about = {
        "tiers": [tier.to_dict() for tier in settings.tiers],
        "by": settings.by,
        "unanswered": settings.unanswered,
        "dataset": dataset.name,
        "data_sha256": dataset.content_hash(),
        "generator": None if generator is None else generator.name,
        "embedder": index.embedder.fingerprint,
        "seed": settings.seed,
        **environment(),
    }
    # A reader that says nothing is no worse for it.
    told = [m.name for m in measures() if generator is not None or m.of not in ("answer", "choice")]
    known = dict.fromkeys([*told, *_COSTS, *_SECONDS])
    present = [name for name in known if any(row.get(name) is not None for row in rows)]
    rows = [{**row, "set": dataset.name, "action": row["method"].partition(":")[2]} for row in rows]
    outcomes = Outcomes.from_rows(
        rows, [*present, WORKED], actions=[tier.name for tier in settings.tiers], provenance=about
    )
    hops = {question.id: len(question.gold_ids) > 1 for question in dataset.questions}
    chosen = labels(outcomes.of(WORKED), [hops[i] for i in outcomes.ids], settings.unanswered)
    one_hot = np.eye(len(settings.tiers))[chosen]
    outcomes = dataclasses.replace(outcomes, values={**outcomes.values, LABEL: one_hot})
    retriever = Retriever.of(index, settings.retrieval, reader)
    seen = tuple(look(retriever.retrieve(text)) for text in outcomes.questions)
    table = Table(outcomes, settings.tiers, seen, index.embedder.fingerprint)
    return Labelled(table, unlabelled, failed)


def silent(prompt: Prompt) -> str:
    """What a reader that says nothing replies: of options it must name one."""
    return LETTERS[0] if prompt.question.choices else ""


def _labelled(rows: Sequence[dict[str, Any]], by: By) -> tuple[list[dict[str, Any]], int, int]:
    """Rows of questions whose every row is labelled, with the column `worked`; how many were left out."""
    failed = {row["question_id"] for row in rows if row["error"]}
    values = [row_worked(row, by) for row in rows]
    without = {row["question_id"] for row, v in zip(rows, values, strict=True) if v is None} - failed
    kept = [
        {**row, WORKED: cast("float", value)}
        for row, value in zip(rows, values, strict=True)
        if row["question_id"] not in failed | without
    ]
    return kept, len(without), len(failed)
