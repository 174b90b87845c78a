"""Run every method and controller on the same questions, pools, prompts, budgets and reader.

    data set -> retriever -> candidates -> method -> prompt -> generator -> scores -> ledger -> report

`mio_rag.evaluation.rows` makes the rows of a question.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import NEEDS_QUESTIONS, Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.contenders import (
    DEFAULT_METHODS,
    PACED,
    check_methods,
    default_baseline,
    make_contenders,
    resolved,
)
from mio_rag.evaluation.ledger import TRACES, Ledger, environment, now, opened_run, record_of
from mio_rag.evaluation.report import render_report
from mio_rag.evaluation.rows import Pipeline, add_smoothness, warm_up
from mio_rag.evaluation.statistics import compare_rows, lead_table, notes, summarize, summarize_sets
from mio_rag.filters import Filter
from mio_rag.generation import Generator
from mio_rag.measures import Instruments
from mio_rag.methods import digests
from mio_rag.policies.make import check_controllers, controller_files
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.retrieval.settings import RetrievalSettings
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Prices
from mio_rag.solvers.result import SolveOptions
from mio_rag.storage import write_atomically
from mio_rag.types import Question

Progress = Callable[[int, str], None]  # (questions just finished, what happens)


@dataclass(frozen=True)
class EvaluationSettings:
    """What is compared, and how.

    methods: see `mio_rag.methods` and `mio_rag.evaluation.contenders`.
    controllers: see `mio_rag.policies.make`.
    baseline: what the others are compared with; None: fused if present, else topk, else the first.
    limit: use only the first questions of each set.
    max_tokens: longest answer.
    closed_book: there is no corpus: only controllers can run.
    prices: of tokens, for a column of dollars.
    where: the filter that the indexes have, for the record.
    error: size of random errors of embeddings, by which the stability of methods is measured; 0: it is not.
    refusing: when methods report that the passages do not answer. Controllers stop by themselves.
    """

    methods: Sequence[str] = DEFAULT_METHODS
    budgets: Sequence[int] = (256,)
    baseline: str | None = None
    selector: Selector = field(default_factory=lambda: Selector(options=SolveOptions(time_limit_seconds=2.0)))
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    limit: int | None = None
    max_tokens: int = 32
    seed: int = 0
    controllers: Sequence[str] = ()
    control: ControlSettings = field(default_factory=ControlSettings)
    closed_book: bool = False
    prices: Prices | None = None
    refusing: Refusal | None = None
    where: Filter = field(default_factory=Filter)
    error: float = 0.0

    def __post_init__(self) -> None:
        problems = [] if self.budgets else ["no token budget is given"]
        problems += [
            f"budget_tokens={b!r} must be a whole number >= 1"
            for b in self.budgets
            if not isinstance(b, Real) or int(b) != b or b < 1
        ]
        if len(set(self.budgets)) < len(self.budgets):
            problems.append("a token budget is listed twice")
        if self.limit is not None and self.limit < 1:
            problems.append(f"limit={self.limit} must be >= 1")
        if not 0 <= self.error < 2:
            problems.append(f"error={self.error} must be from 0 to below 2: embeddings have length 1")
        if self.max_tokens < 1:
            problems.append(f"max_tokens={self.max_tokens} must be >= 1")
        if not 0 <= self.seed < 2**31:
            problems.append(f"seed={self.seed} must be between 0 and 2^31 - 1")
        if self.baseline is not None and self.baseline not in self.names:
            problems.append(f"baseline '{self.baseline}' is not among the methods {', '.join(self.names)}")
        try:
            if self.methods or not self.names:
                check_methods(self.methods, self.selector)
            check_controllers(list(self.controllers), self.control, self.closed_book)
            if clash := list(digests([name.removeprefix("policy:") for name in self.controllers])):
                raise InputError(f"'{clash[0]}' is a policy, too: register the method by another name")
        except InputError as error:
            problems += error.problems
        if self.refusing is not None and self.controllers:
            problems.append(
                "a refusal model and controllers exclude each other, since these stop by their own "
                f"uncertainty: leave out {', '.join(self.controllers)}"
            )
        if self.closed_book and self.methods:
            problems.append(
                f"methods {', '.join(self.methods)} select from a corpus, which a closed-book run does not "
                "have: compare policies alone, for instance always-reason"
            )
        if problems:
            raise InputError(problems)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that is compared, in the order of the ledger."""
        return (*self.methods, *self.controllers)

    @property
    def reference(self) -> str:
        """The baseline that applies."""
        return self.baseline or default_baseline(self.names)


@dataclass(frozen=True, eq=False)
class Report:
    """The rows of a run, their summary, and the folder that holds them; None where nothing was kept."""

    folder: Path | None
    rows: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    run: dict[str, Any]
    by_set: list[dict[str, Any]] = field(default_factory=list)

    def table(self) -> str:
        """Return what was found and read, with differences from the baseline, as text; notes below."""
        entries = sorted(self.summary, key=lambda entry: entry["budget_tokens"])
        columns = lead_table(entries, self.comparisons, self.run["baseline"])
        depth = max(one.title.count("\n") for one in columns)
        grid = []
        for column in columns:
            head = column.title.split("\n")
            cells = [*[""] * (depth + 1 - len(head)), *head, *column.cells]
            width = max(map(len, cells))
            grid.append([cell.ljust(width) if column.left else cell.rjust(width) for cell in cells])
        lines = ["  ".join(row).rstrip() for row in zip(*grid, strict=True)]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])

    @property
    def notes(self) -> list[str]:
        """What a reader of the table must know."""
        return notes(self.rows, self.summary, self.comparisons, self.run)


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
) -> Report:
    """Run every method on every question; write ledger.parquet and the JSON files.

    summary.json (means), comparisons.json (paired, at equal budgets) and run.json (settings); for several
    sets also by_set.json (means of each).

    dataset: several are mixed evenly into one stream, over which a total of tokens is shared. Question ids
        then begin with the name of the set, which is also the column "dataset" of the ledger.
    index: one for each set, or one that holds the corpora of all. None only closed book.
    generator: None evaluates the selection alone.
    out: folder; new or empty, or an interrupted run with `resume`: finished rows are kept, failed ones are
        tried again.
    instruments: for the measures that need some; run.json names them.

    Raises `InputError` if the data has no questions, the folder holds something else, or a resumed run had
    other settings, or more questions, methods or budgets; `GenerationError` when five questions in a row fail
    altogether. The rows so far are kept.
    """
    folder = Path(out)
    if (index is None) != settings.closed_book:
        raise InputError("a closed-book run takes no index; every other run needs one")
    if settings.refusing is not None:
        if generator is None:
            raise InputError("a refusal model judges answers: give a reader (--model), or leave it out")
        for one in () if index is None else [index] if isinstance(index, CorpusIndex) else index:
            settings.refusing.check_fits(one.embedder.fingerprint, generator.name)
    if settings.controllers and generator is None:
        raise InputError("controllers need a model that answers: give --model")
    mixture = mixture_of(dataset, index, settings.limit)
    questions, names, budgets = mixture.questions, settings.names, [int(b) for b in settings.budgets]
    retrievers = _retrievers(mixture, settings, generator)
    if settings.controllers and len(set(map(id, retrievers))) > 1:
        raise InputError(
            "controllers search one index: give one that holds the corpora of all question sets, or compare "
            "methods alone"
        )
    run = _run_record(mixture, generator, settings, instruments)
    asked = [(q.id, name, budget) for q in questions for name in names for budget in budgets]
    with opened_run(folder, run, asked, resume) as ledger:
        done = {Ledger.key(row) for row in ledger.rows}
        contenders = make_contenders(
            names,
            Setup(settings.control, retrievers[0], settings.selector, settings.max_tokens, settings.seed),
            traces=folder / TRACES,
            questions=len(questions),
            rows=ledger.rows,
        )
        run["resolved"] = resolved(contenders)
        ledger.record = dict(run)
        pairs = [(contender, budget) for contender in contenders for budget in budgets]
        pipeline = Pipeline(
            lambda question: retrievers[mixture.set_of[question.id]], generator, settings.max_tokens,
            settings.prices, instruments, settings.refusing, settings.error, settings.seed,
        )  # fmt: skip
        warm_up(contenders, any(one is not None and one.index.has_places for one in retrievers))
        for contender in contenders:
            left = [b for b in budgets if any((q.id, contender.name, b) not in done for q in questions)]
            contender.prepare(questions, pipeline.task, left)
        started = time.perf_counter()
        size = min(contender.questions_at_once for contender in contenders)

        def found() -> Iterator[list[dict[str, Any]]]:
            for first in range(0, len(questions), size):
                chunk = questions[first : first + size]
                open_pairs = {q.id: [p for p in pairs if (q.id, p[0].name, p[1]) not in done] for q in chunk}
                for rows in pipeline.rows([q for q in chunk if open_pairs[q.id]], open_pairs):
                    if len(mixture.datasets) > 1:
                        for row in rows:
                            row["dataset"] = mixture.datasets[mixture.set_of[row["question_id"]]].name
                    yield rows
                if progress:
                    count = min(first + size, len(questions))
                    progress(len(chunk), f"{count} of {len(questions)} questions")

        ledger.fill(found(), lambda rows: _is_stuck(rows, len(pairs)))
        rows = ledger.sort(asked)
        add_smoothness(rows, questions)
        run |= {"finished": now(), "seconds": time.perf_counter() - started}
        ledger.write_parquet()
        run |= environment()  # methods and readers load packages on first use
        seed, baseline = settings.seed, settings.reference
        summary, by_set = summarize(rows, seed), summarize_sets(rows, seed)
        comparisons = compare_rows(rows, baseline, seed)
        files = {"summary": summary, "comparisons": comparisons, "run": run}
        for name, content in (files | ({"by_set": by_set} if by_set else {})).items():
            write_atomically(folder / f"{name}.json", json.dumps(content, indent=1, allow_nan=False))
        return Report(folder, rows, summary, comparisons, run, by_set)


def evaluate_and_report(
    dataset: Dataset | Sequence[Dataset],
    index: CorpusIndex | Sequence[CorpusIndex] | None,
    generator: Generator | None,
    settings: EvaluationSettings,
    out: str | Path,
    **options: Any,
) -> Report:
    """`evaluate`, and write ``report.html`` to the folder; the options are those of `evaluate`."""
    result = evaluate(dataset, index, generator, settings, out, **options)
    page = render_report(result.rows, result.summary, result.comparisons, result.run)
    write_atomically(Path(out) / "report.html", page)
    return result


def _retrievers(
    mixture: Mixture, settings: EvaluationSettings, generator: Generator | None
) -> list[Retriever | None]:
    """Return one retriever for each set; the same where sets share an index."""
    made: dict[int, Retriever | None] = {id(None): None}
    for index in mixture.indexes:
        if index is not None and id(index) not in made:
            settings.selector.check_ids(index.ids)
            made[id(index)] = Retriever.of(index, settings.retrieval, generator or RegexCounter())
    return [made[id(index)] for index in mixture.indexes]


def _is_stuck(rows: Sequence[dict[str, Any]], pairs: int) -> bool:
    """Return whether a question failed altogether, for a cause that may affect the next one.

    Where some of its rows were there already, unusable input (a budget below every passage) is no such cause.
    """
    return all(
        row["error"] and (len(rows) == pairs or row["error_kind"] not in ("InputError", "InfeasibleError"))
        for row in rows
    )


def _control(settings: EvaluationSettings) -> dict[str, Any]:
    """What of the control settings holds: policies have processes and rules of their own, and keep limits."""
    told = settings.control.to_dict()
    own = all(name.startswith("policy:") for name in settings.controllers)
    return {"limits": told["limits"], "kinds": told["kinds"]} if own else told


def _run_record(
    mixture: Mixture,
    generator: Generator | None,
    settings: EvaluationSettings,
    instruments: Instruments | None,
) -> dict[str, Any]:
    questions = len(mixture.questions)
    return {
        **record_of(mixture.datasets, mixture.indexes, generator, settings.retrieval),
        "questions": questions,
        "seed": settings.seed,
        "methods": list(settings.names),
        "budgets": [int(b) for b in settings.budgets],
        "baseline": settings.reference,
        "controller_files": controller_files(settings.controllers),
        "settings": {
            "max_tokens": settings.max_tokens,
            "rerankers": list(settings.retrieval.rerankers) or None,
            "instruments": None if instruments is None else instruments.record(),
            "prices": None if settings.prices is None else dict(settings.prices.dollars),
            **settings.selector.to_dict(),
            "refusal": None if settings.refusing is None else settings.refusing.digest,
            # Its price depends on the number of questions: rows of a shorter run cannot be used.
            **({"questions_of_paced": questions} if PACED in settings.methods else {}),
            **({"error": settings.error} if settings.error else {}),
            "where": [" ".join(map(str, one)) for one in settings.where.conditions] or None,
            **({"own_methods": own} if (own := digests(settings.methods)) else {}),
            **({"control": _control(settings)} if settings.controllers else {}),
        },
        **environment(),
        "started": now(),
    }


# The question sets of a run ---------------------------------------------------------------------------------


class Mixture(NamedTuple):
    """Question sets that are asked in one stream.

    indexes: one for each set; the same object where they share one. None: closed book.
    questions: spread evenly over the stream; of several sets with ids "set:id".
    set_of: question id -> position of its set.
    """

    datasets: tuple[Dataset, ...]
    indexes: tuple[CorpusIndex | None, ...]
    questions: tuple[Question, ...]
    set_of: Mapping[str, int]


def mixture_of(
    datasets: Dataset | Sequence[Dataset],
    indexes: CorpusIndex | Sequence[CorpusIndex] | None,
    limit: int | None = None,
) -> Mixture:
    """Combine question sets with their indexes: one for each, or one that holds the corpora of all."""
    sets = (datasets,) if isinstance(datasets, Dataset) else tuple(datasets)
    found: tuple[CorpusIndex | None, ...]
    found = (indexes,) if indexes is None or isinstance(indexes, CorpusIndex) else tuple(indexes)
    if not sets:
        raise InputError("no question set is given: name one at least")
    names = [dataset.name for dataset in sets]
    problems = [
        f"two question sets are called '{name}': rename one of the folders"
        for name, count in Counter(names).items()
        if count > 1
    ]
    if len(found) not in (1, len(sets)):
        problems.append(
            f"{len(sets)} question sets and {len(found)} indexes: give one index for all, or one for each"
        )
    fitted = [id(one.embedder) for one in found if one is not None and hasattr(one.embedder, "fit")]
    if len(set(fitted)) < len(fitted) and len(set(map(id, found))) == len(found):
        problems.append(
            "two indexes share an embedder that was fitted to the corpus of one of them: make one for each"
        )
    if problems:
        raise InputError(problems)
    spread: list[tuple[float, int, Question]] = []
    for place, dataset in enumerate(sets):
        if not dataset.questions:
            raise DataError(f"'{dataset.name}' has no questions to evaluate: {NEEDS_QUESTIONS}")
        chosen = dataset.questions[:limit]
        for k, question in enumerate(chosen):
            named = question if len(sets) == 1 else replace(question, id=f"{dataset.name}:{question.id}")
            spread.append(((k + 0.5) / len(chosen), place, named))
    spread.sort(key=lambda one: one[:2])  # any tenth of the stream has a tenth of each set
    set_of = {question.id: place for _, place, question in spread}
    if len(set_of) < len(spread):
        raise InputError(
            f"questions of {', '.join(names)} cannot be told apart by 'set:id': rename a folder that has a "
            "colon"
        )
    own = len(found) == len(sets)
    for part, index in zip(sets, found, strict=True) if own else [(sets, found[0])]:
        check_corpus(part, index)
    questions = tuple(question for *_, question in spread)
    return Mixture(sets, found if own else found * len(sets), questions, set_of)


def check_corpus(datasets: Dataset | Sequence[Dataset], index: CorpusIndex | None) -> None:
    """Raise `InputError` unless the index holds exactly the corpora of these sets; None holds nothing."""
    sets = (datasets,) if isinstance(datasets, Dataset) else tuple(datasets)
    # Whole passages are compared: many corpora number them from 0.
    wanted = {passage for dataset in sets for passage in dataset.passages}
    differing = {p.id for p in wanted ^ set(index.passages if index else ())}
    if differing:
        names = ", ".join(f"'{dataset.name}'" for dataset in sets)
        raise InputError(
            f"the index does not hold the corpus of {names} ({len(differing)} passages differ, "
            f"for instance '{min(differing)}'): build it from the same data"
        )
