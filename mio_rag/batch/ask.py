"""Run a policy over many questions: workers answer, one ledger counts."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from mio_rag.batch.answering import TOLD, Answering, Job, Rest, Unit, Workers
from mio_rag.batch.job import Engine, open_parquet
from mio_rag.batch.ledger import Ledger
from mio_rag.batch.on_ray import RayTeam, check_ray, ray_team
from mio_rag.corpora.load import load_questions
from mio_rag.corpora.published import json_lines
from mio_rag.errors import DataError, InputError, StateError, collect
from mio_rag.generation import Generator
from mio_rag.policy import PRESETS, Policy
from mio_rag.policy.files import Resolved, resolve
from mio_rag.policy.tables import READER, FixedPrice, Total
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.settings import Settings
from mio_rag.storage import locked, replaced, write_atomically
from mio_rag.types import Question

_SHOWN = 20  # problems of a file
_MOST_DOLLARS = 1e9  # a ledger counts billionths in 64 bits
_UNREAD_PER_ANSWER = 20  # with more than that, another pass is not worth it


def read_questions(source: str | Path) -> tuple[Question, ...]:
    """Read questions from lines ``{"id": ..., "question": ...}``, Parquet, CSV, or a question set.

    A line may have ``choices``; without an id its number is one. Columns of a Parquet file have these names,
    or ``query_id`` for the id.

    Raises `DataError` with every invalid line, or if there are no questions; `InputError` if the source
    cannot be read.
    """
    path = Path(source)
    name = path.name.lower()
    if not path.is_file() or not name.endswith((".jsonl", ".jsonl.gz", ".parquet")):
        if (path / "manifest.json").is_file() and (path / "passages.jsonl").is_file():
            raise InputError(
                f"'{source}' is an index, not questions: give the questions first, then the index"
            )
        if not path.exists() and path.suffix and ":" not in name:
            raise InputError(f"'{source}' does not exist: give a .jsonl, .csv or .parquet file of questions")
        if path.is_file() and not name.endswith((".csv", ".csv.gz")):
            raise InputError(f"'{source}' is not read: questions come in .jsonl, .csv or .parquet files")
        return load_questions(source)
    problems: list[str] = []
    found = []
    for number, (place, row) in enumerate(_table(path) if name.endswith(".parquet") else json_lines(path)):
        try:
            if isinstance(row, InputError):
                raise row
            found.append(_question(row, number))
        except InputError as error:
            problems += [f"'{place}': {problem}" for problem in error.problems]
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise DataError([*problems[:_SHOWN], *more])
    if not found:
        raise DataError(f"'{path}' has no questions")
    return tuple(found)


def _table(path: Path) -> Iterator[tuple[str, Any]]:
    with open_parquet(path) as file:
        held = file.schema_arrow.names
        names = [name for name in ("id", "query_id", "question", "choices") if name in held]
        if "question" not in names:
            raise InputError(f"'{path.name}' has no column question: it has {', '.join(held)}")
        rows = (row for batch in file.iter_batches(1024, columns=names) for row in batch.to_pylist())
        yield from ((f"{path.name}, row {number}", row) for number, row in enumerate(rows, 1))


def _question(row: Any, number: int) -> Question:
    row = row if isinstance(row, Mapping) else {}
    text, choices = row.get("question"), row.get("choices") or ()
    identity = row.get("id", row.get("query_id"))
    if not isinstance(text, str):
        raise InputError(f"question is {text!r:.60}: give text")
    if not isinstance(choices, (list, tuple)) or not all(isinstance(choice, str) for choice in choices):
        raise InputError(f"choices are {choices!r:.60}: give a list of texts")
    if identity is not None and not isinstance(identity, (str, int)):
        raise InputError(f"id is {identity!r:.60}: give text")
    return Question(str(number if identity is None else identity), text, choices=tuple(choices))


class AskSettings(Settings):
    """Settings of `ask_many`, checked before anything is made."""

    total_tokens: Annotated[int, Field(ge=1)] | None = None
    total_dollars: Annotated[float, Field(gt=0, le=_MOST_DOLLARS)] | None = None
    engine: Engine = "local"
    workers: Annotated[int, Field(ge=1, le=1000)] = 2
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 4
    retries: Annotated[int, Field(ge=0, le=100)] = 5

    @model_validator(mode="after")
    def _has_one_total(self) -> Self:
        if self.total_tokens is not None and self.total_dollars is not None:
            raise ValueError("total_tokens and total_dollars exclude each other: give one of them")
        return self


@dataclass(frozen=True)
class AskedSummary:
    """The result of a batch of questions.

    questions, answered, failed, unread, left: of the input. The next run asks `failed` and `unread` again: of
        the latter nothing was worth reading at the price, so that no model was asked. `left` were not asked,
        since the total is spent or does not allow what is worth reading, or since the run was interrupted.
    done_before: answered when this run began.
    spent, lost: tokens or dollars, on answers, and on calls that never reported their cost.
    unit: tokens or dollars.
    total: what may be spent, if there is a limit.
    needs: what one of the questions that were not asked may cost at the least, where less than that is left.
    """

    out: Path
    questions: int
    answered: int
    failed: int
    unread: int
    left: int
    done_before: int
    spent: float
    lost: float
    unit: str
    total: float | None
    seconds: float
    needs: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**asdict(self), "out": str(self.out)}


def ask_many(
    questions: Sequence[Question],
    index: CorpusIndex | str | Path,
    generator: Generator | str,
    policy: Policy,
    out: str | Path,
    *,
    total_tokens: int | None = None,
    total_dollars: float | None = None,
    engine: Engine = "local",
    workers: int = 2,
    concurrency: int = 4,
    retries: int = 5,
    stop: threading.Event | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AskedSummary:
    """Answer every question under a policy; resume an interrupted run.

    index: Ray takes the folder, since every worker opens it.
    generator: the reader, or its name for `mio_rag.generation.make_generator`; Ray takes the name. A named
        one repeats no requests itself, and its replies are cached next to the ledger where it identifies its
        model (gguf:, openai:), so that what was paid for is not asked for again. A given one should do the
        same.
    out: folder of ``ledger.sqlite``, ``answers.jsonl`` and ``summary.json``, on this machine; one run at a
        time.
    total_tokens: that all questions together may take, in all runs; default: the policy's own total, where it
        has one without a file of its own. The policy's pacer then sets the price.
    total_dollars: the same in money, by the prices of the policy's models; the price is the policy's own.
    engine: "local": threads of this process; "ray": actors of the cluster of RAY_ADDRESS, or of one that is
        started on this machine.
    workers: actors of a cluster, >= 1; each opens index and generator.
    concurrency: questions in progress at a time, >= 1.
    retries: repetitions of a call that failed, >= 0.
    stop: once it is set, questions in progress are finished, and none is begun.
    progress: called with (questions just finished, all).

    Raises `InputError` for a policy, a total, an engine or a folder that do not fit, all problems at once;
    `GenerationError` when 20 questions in a row fail, with what is finished kept; `SolverError` if a cluster
    cannot be started.
    """
    began, folder = time.perf_counter(), Path(out)
    dollars = total_dollars is not None
    collect(
        lambda: AskSettings(
            total_tokens=total_tokens, total_dollars=total_dollars, engine=engine, workers=workers,
            concurrency=concurrency, retries=retries,
        ),
        lambda: _check_policy(policy, len(questions), total_tokens, total_dollars),
        lambda: check_ray(index, generator, policy) if engine == "ray" else None,
    )  # fmt: skip
    if not dollars and total_tokens is None and policy.price.state is None:
        total_tokens = policy.price.total
    if total_tokens is not None:
        policy = policy.replace(price=Total(total=total_tokens, questions=len(questions)))
    unit = Unit(policy.prices, dollars)
    given = total_dollars if dollars else total_tokens
    total = None if given is None else unit.given(given)
    states, stopped = resolve(policy), stop or threading.Event()
    with locked(folder), ExitStack() as opened:
        ledger = Ledger(folder / "ledger.sqlite")
        opened.callback(ledger.close)
        ledger.begin(_about(policy, states, questions, unit), len(questions))
        account = ledger.account()
        before = account.states.get("answered", 0)
        price, asked = ledger.last_price(), len(questions) - before
        again = True
        while again:
            known, spent = account.states.get("answered", 0), account.spent
            rest = None
            if total_tokens is not None:
                rest = Rest(total_tokens - spent - account.lost, asked, price)
            job = Job(folder.resolve(), policy, states, unit, retries, total, rest)
            with ExitStack() as opened_here:
                team: RayTeam | Answering
                if engine == "ray":
                    made = ray_team(str(index), str(generator), job, workers, concurrency)
                    team = opened_here.enter_context(made)
                else:
                    lose = partial(ledger.lose, total=total)
                    replies = job.folder / "replies.sqlite"
                    team = Answering(index, generator, job, lose, job.pacer(), replies)
                    opened_here.callback(team.close)
                ledger.confirm(team.about)
                run = Workers(ledger, team, questions, total, stopped, progress)
                run.report(before if known == before else 0)
                run.work(concurrency)
            account = ledger.account()
            # What the price of a total left unread is asked again with the rest of it, while that pays. The
            # rest is shared by as many questions as it suffices for.
            unread = account.states.get("unread", 0) + run.crowded
            more = account.states.get("answered", 0) - known
            # A price of an earlier run may be that of a smaller total: it does not decide alone.
            pays = unread > 0 and (price is not None or unread <= _UNREAD_PER_ANSWER * more)
            again = total_tokens is not None and not stopped.is_set() and pays
            if again and total_tokens is not None:
                mean = max(1, (account.spent - spent) // more if more else account.spent // max(1, known))
                left = total_tokens - account.spent - account.lost
                price, asked = None, max(1, min(unread, left // mean))
                ledger.reopen()
        counts = {state: account.states.get(state, 0) for state in ("answered", "failed", "unread")}
        summary = AskedSummary(
            folder,
            len(questions),
            **counts,
            left=len(questions) - sum(counts.values()),
            done_before=before,
            spent=unit.told(account.spent),
            lost=unit.told(account.lost),
            unit=unit.name,
            total=given,
            seconds=time.perf_counter() - began,
            needs=None if run.short is None else unit.told(run.short),
        )
        _export(ledger, questions, summary)
    if run.failure is not None:
        raise run.failure
    return summary


def _about(policy: Policy, states: Resolved, questions: Sequence[Question], unit: Unit) -> dict[str, str]:
    """What the answers depend on; a total may be raised."""
    paced = policy.price.total is not None
    digest = hashlib.sha256()
    for question in questions:
        digest.update(json.dumps([question.id, question.text, list(question.choices)]).encode())
    return {
        "policy": states.digest(policy.replace(price=FixedPrice(token=0.0)) if paced else policy),
        "questions": digest.hexdigest(),
        "unit": unit.name,
    }


def _check_policy(policy: Policy, count: int, total_tokens: int | None, total_dollars: float | None) -> None:
    """Raise `InputError` for a total that does not go with a policy."""
    problems = [] if count else ["there are no questions"]
    price = policy.price
    begins_anew = price.total is not None and price.state is None and total_tokens is None
    if begins_anew and (total_dollars is not None or price.per is not None):
        problems.append(
            "the policy's own total would begin anew with every run: give it price.state, a file, or "
            "leave it out"
        )
    if total_tokens is not None and count:
        try:
            policy.replace(price=Total(total=total_tokens, questions=count))
        except InputError as error:
            problems += error.problems
    if total_dollars is not None:
        problems += [
            f"the price of {name} cannot be counted: give at most {_MOST_DOLLARS:g} dollars per million"
            for name, pair in policy.prices.dollars.items()
            if max(pair) > _MOST_DOLLARS
        ]
        if names := dict.fromkeys(n for n in (READER, *policy.models) if n not in policy.prices.dollars):
            tables = ", ".join(f"[models.{name}]" for name in names)
            begin = f"; `mio-rag policy new {policy.name} > FILE` prints a file to begin with"
            problems.append(
                f"a total in dollars needs the price of {', '.join(names)}: give {tables} input and output"
                f"{begin if policy.name in PRESETS else ''}"
            )
    if problems:
        raise InputError(problems)


def _export(ledger: Ledger, questions: Sequence[Question], summary: AskedSummary) -> None:
    """Write all questions in order, as lines of JSON with the same keys, and the summary."""
    path = summary.out / "answers.jsonl"
    try:
        with replaced(path) as partial, partial.open("w", encoding="utf-8", errors="replace") as file:
            for number, (row, question) in enumerate(zip(ledger.rows(), questions, strict=True)):
                line = {"row": number, "query_id": question.id, "question": question.text, **row}
                line |= {key: row.get(key) for key in TOLD}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        write_atomically(summary.out / "summary.json", json.dumps(summary.to_dict(), indent=1))
    except OSError as error:
        raise StateError(
            f"'{path}' cannot be written ({error}). Every answer is kept in '{ledger.path}': free some "
            "space, and run the same again"
        ) from error
