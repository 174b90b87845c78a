"""Generate and evaluate: every method on the same questions, pools, prompts, budgets and reader.

    data set -> retriever -> candidates -> method -> prompt -> generator -> scores -> ledger -> report

Only the decision differs between methods; `mio_rag.evaluation.rows` goes the way from question to scores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mio_rag.context import RegexCounter, TokenCounter
from mio_rag.control.controller import Setup
from mio_rag.control.costs import Prices
from mio_rag.control.make import check_controllers, controller_files
from mio_rag.control.settings import ControlSettings
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.ledger import Ledger
from mio_rag.evaluation.make import default_baseline, make_contenders
from mio_rag.evaluation.matched import matched_rows
from mio_rag.evaluation.methods import DEFAULT_METHODS, make_methods
from mio_rag.evaluation.mixture import Mixture, mixture_of
from mio_rag.evaluation.paced import PACED, unpaced
from mio_rag.evaluation.record import TRACES, contents, environment, now, opened_run
from mio_rag.evaluation.rows import Pipeline, warm_up
from mio_rag.evaluation.summary import compare_rows, summarize, summarize_sets
from mio_rag.files import write_atomically
from mio_rag.generation import Generator
from mio_rag.measures import Instruments
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.retrieval.settings import RetrievalSettings
from mio_rag.selection.selector import Selector, check_ids
from mio_rag.solvers.result import SolveOptions
from mio_rag.types import GenerationError

__all__ = [
    "EvaluationResult",
    "EvaluationSettings",
    "Progress",
    "evaluate",
]

_ABORT_AFTER = 5  # consecutive questions that fail entirely: the cause is not the question

Progress = Callable[[int, str], None]  # (questions just finished, what happens)


@dataclass(frozen=True)
class EvaluationSettings:
    """What is compared, and how.

    Parameters
    ----------
    methods : sequence of str
        See `mio_rag.evaluation.methods`.
    budgets : sequence of int
        Token budgets of the context block, each >= 1.
    baseline : str or None
        Method that others are compared with; by default fused if present, else topk, else the first.
    selector : Selector
        Settings of the program.
    retrieval : RetrievalSettings
        How the pools are found.
    limit : int or None
        Only the first so many questions, of each set.
    max_tokens : int
        Longest answer, in tokens, >= 1.
    seed : int
        Of the bootstrap, the permutation tests and the solvers.
    controllers : sequence of str
        Controllers that are compared as well; see `mio_rag.control.make`.
    control : ControlSettings
        Of the controllers.
    closed_book : bool
        There is no corpus: controllers only.
    prices : Prices or None
        What tokens cost: rows then tell dollars.
    refusing : Refusal or None
        When methods say that the passages do not answer. Controllers stop by themselves.
    """

    methods: Sequence[str] = DEFAULT_METHODS
    budgets: Sequence[int] = (256,)
    baseline: str | None = None
    selector: Selector = field(default_factory=lambda: Selector(options=SolveOptions(time_limit_seconds=2.0)))
    mmr_lambda: float = 0.7
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    limit: int | None = None
    max_tokens: int = 32
    seed: int = 0
    controllers: Sequence[str] = ()
    control: ControlSettings = field(default_factory=ControlSettings)
    closed_book: bool = False
    prices: Prices | None = None
    refusing: Refusal | None = None

    def __post_init__(self) -> None:
        problems = []
        if not self.budgets:
            problems.append("no token budget is given")
        problems += [
            f"budget_tokens={b!r} must be a whole number >= 1" for b in self.budgets if int(b) != b or b < 1
        ]
        if len(set(self.budgets)) < len(self.budgets):
            problems.append("a token budget is listed twice")
        if self.limit is not None and self.limit < 1:
            problems.append(f"limit={self.limit} must be >= 1")
        if self.max_tokens < 1:
            problems.append(f"max_tokens={self.max_tokens} must be >= 1")
        if not 0 <= self.seed < 2**31:
            problems.append(f"seed={self.seed} must be between 0 and 2^31 - 1")
        if self.baseline is not None and self.baseline not in self.names:
            problems.append(f"baseline '{self.baseline}' is not among the methods {', '.join(self.names)}")
        try:
            alone = unpaced(self.methods)
            if alone or not self.names:
                make_methods(alone, self.selector, self.mmr_lambda)
            check_controllers(list(self.controllers), self.control, self.closed_book)
        except InputError as error:
            problems += error.problems
        if self.refusing is not None and self.controllers:
            problems.append(
                "a refusal model and controllers exclude each other, since these stop by their own "
                f"uncertainty: leave out {', '.join(self.controllers)}"
            )
        if self.closed_book and self.methods:
            named = "" if self.controllers else " --controllers always-reason"
            problems.append(
                f"methods {', '.join(self.methods)} select from a corpus, which a closed-book run does not "
                f"have: compare controllers alone (--methods none{named})"
            )
        if problems:
            raise InputError(problems)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that is compared, in the order of the ledger."""
        return (*self.methods, *self.controllers)

    @property
    def reference(self) -> str:
        """The baseline that applies: the one that is set, else that of `default_baseline`."""
        return self.baseline or default_baseline(self.names)


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """Rows, their summary, and where they lie."""

    folder: Path
    rows: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    run: dict[str, Any]
    matched: list[dict[str, Any]] = field(default_factory=list)
    by_set: list[dict[str, Any]] = field(default_factory=list)


def evaluate(
    dataset: Dataset | Sequence[Dataset],
    index: CorpusIndex | Sequence[CorpusIndex] | None,
    generator: Generator | None,
    settings: EvaluationSettings,
    out: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    instruments: Instruments | None = None,
) -> EvaluationResult:
    """Run every method on every question; write ledger.parquet and the JSON files.

    summary.json (means), comparisons.json (paired, at equal budgets), matched.json (tokens for equal gold
    recall, where there are several budgets) and run.json (settings); for several sets also by_set.json (means
    of each).

    Parameters
    ----------
    dataset : Dataset or sequence of Dataset
        Several are asked in one stream, spread evenly: what a total of tokens is shared over. Then question
        ids begin with the name of the set, which is also the column "dataset" of the ledger.
    index : CorpusIndex, sequence of CorpusIndex, or None
        One for each set, or one that holds the corpora of all. None only closed book.
    generator : Generator or None
        None evaluates the selection alone.
    out : path
        Folder; new or empty, or an interrupted run with `resume`.
    resume : bool
        Go on where an earlier run stopped. Finished rows are kept, failed ones tried again.
    progress : callable, optional
        Called with (number of questions just finished, text).
    instruments : Instruments, optional
        For the measures that need an embedder, token vectors, a judge or a writer; run.json names them.

    Raises
    ------
    InputError
        If the data has no questions, the folder holds something else, or a resumed run had other settings,
        or more questions, methods or budgets: its rows are never left out.
    GenerationError
        When five questions in a row fail altogether; the rows so far are kept.
    """
    folder = Path(out)
    if (index is None) != settings.closed_book:
        raise InputError("a closed-book run takes no index; every other run needs one")
    if settings.refusing is not None:
        check_refusal(settings.refusing, index, generator)
    if settings.controllers and generator is None:
        raise InputError("controllers need a model that answers: give --generator")
    mixture = mixture_of(dataset, index, settings.limit)
    questions = mixture.questions
    counter = generator or RegexCounter()
    retrievers = _retrievers(mixture, settings, counter)
    if settings.controllers and len(set(map(id, retrievers))) > 1:
        raise InputError(
            "controllers search one index: give one that holds the corpora of all question sets, or compare "
            "methods alone"
        )
    run = _run_record(mixture, generator, settings, instruments)
    asked = [
        (q.id, name, int(budget)) for q in questions for name in settings.names for budget in settings.budgets
    ]
    with opened_run(folder, run, asked, resume) as ledger:
        done = {Ledger.key(row) for row in ledger.rows}
        setup = Setup(settings.control, retrievers[0], settings.selector, settings.max_tokens, settings.seed)
        contenders = make_contenders(
            settings.names,
            setup,
            mmr_lambda=settings.mmr_lambda,
            traces=folder / TRACES,
            questions=len(questions),
            rows=ledger.rows,
        )
        pairs = [(contender, int(budget)) for contender in contenders for budget in settings.budgets]
        pipeline = Pipeline(
            lambda question: retrievers[mixture.set_of[question.id]],
            generator,
            settings.max_tokens,
            settings.prices,
            instruments,
            settings.refusing,
        )
        warm_up(contenders, any(one is not None and one.index.has_places for one in retrievers))
        for one in contenders:
            left = [b for c, b in pairs if c is one and any((q.id, c.name, b) not in done for q in questions)]
            one.prepare(questions, pipeline.task, left)
        started = time.perf_counter()
        failing = 0
        size = min(contender.questions_at_once for contender in contenders)
        for first in range(0, len(questions), size):
            chunk = questions[first : first + size]
            open_pairs = {q.id: [p for p in pairs if (q.id, p[0].name, p[1]) not in done] for q in chunk}
            for rows in pipeline.rows([q for q in chunk if open_pairs[q.id]], open_pairs):
                if mixture.is_mixed:
                    for row in rows:
                        row["dataset"] = mixture.datasets[mixture.set_of[row["question_id"]]].name
                ledger.append(rows)
                failing = failing + 1 if _stuck(rows, len(pairs)) else 0
                if failing >= _ABORT_AFTER:
                    raise GenerationError(
                        f"{failing} questions in a row failed, the last with: {rows[-1]['error']}. What is "
                        f"finished is kept in '{folder}': fix the cause and continue with resume (--resume)"
                    )
            if progress:
                progress(len(chunk), f"{min(first + size, len(questions))} of {len(questions)} questions")
        # In the order of an uninterrupted run: the resampling of the intervals goes by position.
        by_key = {Ledger.key(row): row for row in ledger.rows}
        rows = [by_key[key] for key in asked]
        ledger.rows = rows
        run |= {"finished": now(), "seconds": time.perf_counter() - started}
        summary = summarize(rows, settings.seed)
        comparisons = compare_rows(rows, settings.reference, settings.seed)
        matched = matched_rows(rows, settings.reference, seed=settings.seed)
        ledger.write_parquet()
        by_set = summarize_sets(rows, settings.seed)
        for name, content in (
            ("summary", summary),
            ("comparisons", comparisons),
            ("matched", matched),
            ("run", run),
            *([("by_set", by_set)] if by_set else []),
        ):
            write_atomically(folder / f"{name}.json", json.dumps(content, indent=1, allow_nan=False))
        return EvaluationResult(folder, rows, summary, comparisons, run, matched, by_set)


def check_refusal(
    refusing: Refusal,
    index: CorpusIndex | Sequence[CorpusIndex] | None,
    generator: Generator | None,
) -> None:
    """Raise `InputError` where nobody answers, or embedder or reader are others than those of the fit."""
    if generator is None:
        raise InputError("a refusal model judges answers: give a reader (--generator), or leave it out")
    given = [] if index is None else [index] if isinstance(index, CorpusIndex) else index
    for one in given:
        refusing.check_fits(one.embedder.fingerprint, generator.name)


def _retrievers(
    mixture: Mixture, settings: EvaluationSettings, counter: TokenCounter
) -> list[Retriever | None]:
    """One for each set; the same where sets share an index."""
    made: dict[int, Retriever | None] = {}
    for index in mixture.indexes:
        if id(index) not in made:
            if index is not None:
                check_ids(settings.selector, index.ids)
            made[id(index)] = None if index is None else Retriever.of(index, settings.retrieval, counter)
    return [made[id(index)] for index in mixture.indexes]


def _stuck(rows: Sequence[dict[str, Any]], pairs: int) -> bool:
    """Whether a question failed altogether, for a cause that may befall the next one.

    Where some of its rows are there already, unusable input (a budget below every passage) is the cause of
    these alone.
    """
    return all(
        row["error"] and (len(rows) == pairs or row["error_kind"] not in ("InputError", "InfeasibleError"))
        for row in rows
    )


def _run_record(
    mixture: Mixture,
    generator: Generator | None,
    settings: EvaluationSettings,
    instruments: Instruments | None,
) -> dict[str, Any]:
    embedders = [index.embedder for index in mixture.indexes if index is not None]
    names = ", ".join(dict.fromkeys(embedder.name for embedder in embedders))
    prints = ", ".join(dict.fromkeys(embedder.fingerprint for embedder in embedders))
    questions = len(mixture.questions)
    return {
        "dataset": mixture.name,
        "data_sha256": mixture.content_hash(),
        "questions": questions,
        "passages": mixture.passages,
        "generator": generator.name if generator is not None else None,
        "embedder": names or None,
        "embedder_fingerprint": prints or None,
        **contents(mixture.indexes, generator),
        "pool": settings.retrieval.pool,
        "mode": settings.retrieval.mode,
        "link_hops": settings.retrieval.link_hops,
        "seed": settings.seed,
        "methods": list(settings.names),
        "budgets": [int(b) for b in settings.budgets],
        "baseline": settings.reference,
        "controller_files": controller_files(settings.controllers),
        "settings": {
            "max_tokens": settings.max_tokens,
            "mmr_lambda": settings.mmr_lambda,
            "rerankers": list(settings.retrieval.rerankers) or None,
            "instruments": None if instruments is None else instruments.record(),
            "prices": None if settings.prices is None else dict(settings.prices.dollars),
            **settings.selector.to_dict(),
            "refusal": None if settings.refusing is None else settings.refusing.digest,
            # Its price goes by how many are to come: rows of a shorter run are not its own.
            **({"questions_of_paced": questions} if PACED in settings.methods else {}),
            **({"control": settings.control.to_dict()} if settings.controllers else {}),
        },
        **environment(),
        "started": now(),
    }
