"""Run a policy over many questions: workers ask, one ledger counts."""

from __future__ import annotations

import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from mio_rag.batch.answering import TOLD, Answering, Job, Rest, Unit, Workers, make_reader
from mio_rag.batch.ask_on_ray import RayTeam, ray_problems, ray_team
from mio_rag.batch.job import Engine, open_parquet
from mio_rag.batch.ledger import Claim, Ledger
from mio_rag.corpora.load import load_questions
from mio_rag.errors import DataError, InputError, StateError
from mio_rag.generation import Generator
from mio_rag.policy import PRESETS, READER, FixedPrice, Policy, Total
from mio_rag.policy_files import Resolved, resolve
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.storage import locked, parse_json, replaced, write_atomically
from mio_rag.types import Question

_SHOWN = 20


def read_questions(source: str | Path) -> tuple[Question, ...]:
    """The questions of a file of lines ``{"id": ..., "question": ...}``, of Parquet, or of a question set.

    A line may have ``choices``; without an id its number is one. Columns of a Parquet file are called alike,
    or ``query_id`` for the id.

    Raises
    ------
    DataError
        With every line that is none, or if there are no questions.
    InputError
        If the source cannot be read.
    """
    path = Path(source)
    name = path.name.lower()
    if path.is_file() and name.endswith((".jsonl", ".jsonl.gz", ".parquet")):
        problems: list[str] = []
        rows = _table(path) if name.endswith(".parquet") else _lines(path, problems)
        found = []
        for number, row in rows:
            try:
                found.append(_question(row, number))
            except InputError as error:
                problems += [f"'{path.name}', line {number + 1}: {problem}" for problem in error.problems]
        if problems:
            more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            raise DataError([*problems[:_SHOWN], *more])
        if not found:
            raise DataError(f"'{path}' has no questions")
        return tuple(found)
    if (path / "manifest.json").is_file() and (path / "passages.jsonl").is_file():
        raise InputError(f"'{source}' is an index, not questions: give the questions first, then the index")
    if path.is_file():
        raise InputError(f"'{source}' is not read: questions come in .jsonl, .jsonl.gz or .parquet files")
    return load_questions(source)


def _lines(path: Path, problems: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines):
                if not line.strip():
                    continue
                try:
                    row = parse_json(line, f"'{path.name}', line {number + 1},")
                except InputError as error:
                    problems += error.problems
                    continue
                yield number, row if isinstance(row, Mapping) else {"question": None}
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error


def _table(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with open_parquet(path) as file:
        names = [n for n in ("id", "query_id", "question", "choices") if n in file.schema_arrow.names]
        if "question" not in names:
            raise InputError(
                f"'{path.name}' has no column question: it has {', '.join(file.schema_arrow.names)}"
            )
        number = 0
        for batch in file.iter_batches(1024, columns=names):
            for row in batch.to_pylist():
                yield number, row
                number += 1


def _question(row: Mapping[str, Any], number: int) -> Question:
    text, choices = row.get("question"), row.get("choices") or ()
    identity = row.get("id", row.get("query_id"))
    if not isinstance(text, str):
        raise InputError(f"question is {text!r:.60}: give text")
    if not isinstance(choices, (list, tuple)) or not all(isinstance(choice, str) for choice in choices):
        raise InputError(f"choices are {choices!r:.60}: give a list of texts")
    if identity is not None and not isinstance(identity, (str, int)):
        raise InputError(f"id is {identity!r:.60}: give text")
    return Question(str(number) if identity is None else str(identity), text, choices=tuple(choices))


_MOST_DOLLARS = 1e9  # in billionths, a ledger counts them in 64 bits
_WORTH_IT = 20  # unread questions for each that the last pass answered


@dataclass(frozen=True)
class AskedSummary:
    """What a batch of questions has come to.

    Parameters
    ----------
    questions, answered, failed, unread, left : int
        Of the input; `failed` and `unread` are asked again by the next run: of the latter nothing was worth
        reading at the price, so that no model was asked. `left` were not asked since the total is spent, or
        has no room for what is worth reading, or since the run was interrupted.
    done_before : int
        Answered when this run began.
    spent, lost : float
        Tokens or dollars: on answers; on calls that never told what they took.
    unit : str
        tokens or dollars.
    total : float or None
        What may be spent.
    needs : float or None
        What one of the questions that were not asked may cost at the least, where less than that is left.
    lower : str or None
        The limit of the policy by which `needs` can be lowered; None where it is what is worth reading.
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
    lower: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
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
    """Answer every question under a policy; resumes an interrupted run.

    Parameters
    ----------
    questions : sequence of Question
    index : CorpusIndex or path
        Ray takes the folder, since every worker opens it.
    generator : Generator or str
        The reader, or how `mio_rag.generation.make_generator` names it; Ray takes the name. One that is named
        repeats no requests itself, and its replies are kept beside the ledger where it identifies its model
        (gguf:, openai:), so that what was paid for is not asked for again. A given one should do likewise.
    out : path
        Folder of the ledger and the answers, on this machine; one run at a time.
    total_tokens : int, optional
        That all questions together may take, in all runs; by default the policy's own total, where it has one
        without a file of its own. The policy's pacer then sets the price.
    total_dollars : float, optional
        Likewise in money, by the prices of the policy's models; the price is the policy's own.
    engine : {"local", "ray"}
        Threads of this process, or actors of a cluster: the one that RAY_ADDRESS names, else one that is
        started on this machine.
    workers : int
        Actors of a cluster, >= 1; each opens index and generator.
    concurrency : int
        Questions under way at a time, >= 1.
    retries : int
        Repetitions of a call that failed, >= 0.
    stop : Event, optional
        Once it is set, what is under way is finished, and nothing more is begun.
    progress : callable, optional
        Called with (questions just finished, all).

    Returns
    -------
    AskedSummary
        Also in ``summary.json``; the answers are in ``answers.jsonl``.

    Raises
    ------
    InputError
        For a policy, a total, an engine or a folder that do not fit, all problems at once.
    GenerationError
        When 20 questions in a row fail; what is finished is kept.
    SolverError
        If a cluster cannot be started.
    """
    began, folder = time.perf_counter(), Path(out)
    dollars = total_dollars is not None
    problems = _setting_problems(total_tokens, total_dollars, engine, workers, concurrency, retries)
    problems += _problems(policy, len(questions), total_tokens, total_dollars)
    if engine == "ray":
        problems += _ray_problems(index, generator, policy)
    if problems:
        raise InputError(problems)
    if not dollars and total_tokens is None and policy.price.state is None:
        total_tokens = policy.price.total
    if total_tokens is not None:
        policy = policy.replace(price=Total(total=total_tokens, questions=len(questions)))
    unit = Unit(policy.prices, dollars)
    given = total_dollars if dollars else total_tokens
    total = None if given is None else unit.given(given)
    states = resolve(policy)
    with locked(folder), ExitStack() as opened:
        ledger = Ledger(folder / "ledger.sqlite")
        opened.callback(ledger.close)
        ledger.begin(_about(policy, states, questions, unit), questions)
        account = ledger.account()
        before = account.states.get("answered", 0)
        price, asked = ledger.last_price(), len(questions) - before
        stopped = stop or threading.Event()
        again = True
        while again:
            known, spent = account.states.get("answered", 0), account.spent
            rest = None
            if total_tokens is not None:
                left = total_tokens - spent - account.lost
                rest = Rest(left, asked, price)
            job = Job(folder.resolve(), policy, states, unit, retries, total, rest)
            with ExitStack() as opened_here:
                team: RayTeam | Answering
                if engine == "ray":
                    made = ray_team(str(index), str(generator), job, workers, concurrency)
                    team = opened_here.enter_context(made)
                else:
                    team = opened_here.enter_context(_here(index, generator, job, ledger))
                ledger.confirm(team.about)
                run = Workers(ledger, team, total, stopped, progress, len(questions))
                run.tell(before if known == before else 0)
                run.work(concurrency)
            account = ledger.account()
            # What the price of a total left unread is asked again with what is left of it, while that pays;
            # it is shared by as many as it suffices for.
            unread = account.states.get("unread", 0) + run.crowded
            more = account.states.get("answered", 0) - known
            # The price of an earlier run may be that of a smaller total, so it does not have the last word.
            pays = unread > 0 and (price is not None or unread <= _WORTH_IT * more)
            again = total_tokens is not None and not stopped.is_set() and pays
            if again and total_tokens is not None:
                mean = max(1, (account.spent - spent) // more if more else account.spent // max(1, known))
                left = total_tokens - account.spent - account.lost
                price, asked = None, max(1, min(unread, left // mean))
                ledger.reopen()
        answered, failed, unread = (
            account.states.get(state, 0) for state in ("answered", "failed", "unread")
        )
        summary = AskedSummary(
            folder,
            len(questions),
            answered,
            failed,
            unread,
            len(questions) - answered - failed - unread,
            before,
            unit.told(account.spent),
            unit.told(account.lost),
            unit.name,
            given,
            time.perf_counter() - began,
            None if run.short is None else unit.told(run.short[0]),
            None if run.short is None or run.short[1] else _lower(policy, unit, run.short[0]),
        )
        _export(ledger, summary)
    if run.failure is not None:
        raise run.failure
    return summary


@contextmanager
def _here(
    index: CorpusIndex | str | Path, generator: Generator | str, job: Job, ledger: Ledger
) -> Iterator[Answering]:
    """Who answers in this process."""
    with ExitStack() as opened:
        corpus = index if isinstance(index, CorpusIndex) else CorpusIndex.load(index)
        reader = generator
        if isinstance(reader, str):
            reader = make_reader(reader, job.folder / "replies.sqlite")
            opened.callback(reader.close)

        def lose(claim: Claim, cost: int) -> bool:
            return ledger.lose(claim, cost, job.total)

        def make(spec: str) -> Generator:
            return make_reader(spec, job.folder / "replies.sqlite")

        made = Answering(corpus, reader, job, lose, job.pacer(), make)
        opened.callback(made.close)
        yield made


def _about(policy: Policy, states: Resolved, questions: Sequence[Question], unit: Unit) -> dict[str, str]:
    """What the answers depend on; a total may be raised."""
    paced = policy.price.total is not None
    return {
        "policy": states.digest(policy.replace(price=FixedPrice(token=0.0)) if paced else policy),
        "questions": _digest(questions),
        "unit": unit.name,
    }


def _lower(policy: Policy, unit: Unit, held: int) -> str:
    """The limit that decides what is held for a question."""
    if held == unit.most(policy.limits.max_total_tokens, policy.limits.max_total_tokens):
        return "limits.max_total_tokens"
    return "limits.budget" if unit.dollars else "limits.max_tokens"  # tokens: evidence shrinks


def check_settings(
    total_tokens: int | None,
    total_dollars: float | None,
    engine: str,
    workers: int,
    concurrency: int,
    retries: int,
) -> None:
    """Raise `InputError` for everything that is wrong with the settings of `ask_many` alone."""
    problems = _setting_problems(total_tokens, total_dollars, engine, workers, concurrency, retries)
    if problems:
        raise InputError(problems)


def _setting_problems(
    total_tokens: int | None,
    total_dollars: float | None,
    engine: str,
    workers: int,
    concurrency: int,
    retries: int,
) -> list[str]:
    problems = []
    if not (1 <= concurrency <= 1000 and 0 <= retries <= 100):
        problems.append(
            f"concurrency={concurrency} must be from 1 to 1000, and retries={retries} from 0 to 100"
        )
    if total_tokens is not None and total_dollars is not None:
        problems.append("a total in tokens and one in dollars exclude each other: give one of them")
    if total_dollars is not None and not 0 < total_dollars <= _MOST_DOLLARS:
        problems.append(
            f"a total of {total_dollars!r} dollars cannot be counted: give a number above 0, at most "
            f"{_MOST_DOLLARS:g}"
        )
    if engine not in get_args(Engine):
        problems.append(f"engine={engine!r} is unknown: choose local or ray")
    elif engine == "ray" and not 1 <= workers <= 1000:
        problems.append(f"workers={workers} must be from 1 to 1000")
    return problems


def _problems(policy: Policy, count: int, total_tokens: int | None, total_dollars: float | None) -> list[str]:
    """What is wrong with a total under a policy."""
    problems = []
    if not count:
        problems.append("there are no questions")
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
        dear = [name for name, pair in policy.prices.dollars.items() if max(pair) > _MOST_DOLLARS]
        problems += [
            f"the price of {name} cannot be counted: give at most {_MOST_DOLLARS:g} dollars per million"
            for name in dear
        ]
        unpriced = [n for n in (READER, *policy.models) if n not in policy.prices.dollars]
        if unpriced:
            names = list(dict.fromkeys(unpriced))
            tables = ", ".join(f"[models.{name}]" for name in names)
            begin = f"; `mio-rag policy show {policy.name} --toml > FILE` prints a file to begin with"
            problems.append(
                f"a total in dollars needs the price of {', '.join(names)}: give {tables} input and output"
                f"{begin if policy.name in PRESETS else ''}"
            )
    return problems


def _ray_problems(index: object, generator: object, policy: Policy) -> list[str]:
    problems = ray_problems(policy)
    if isinstance(index, CorpusIndex):
        problems.append(
            "engine='ray' takes the folder of an index, since every worker opens it: give its path"
        )
    if not isinstance(generator, str):
        problems.append(
            "engine='ray' takes the name of a generator, since every worker opens it, for instance "
            "openai:http://host/v1#MODEL"
        )
    return problems


def _digest(questions: Sequence[Question]) -> str:
    import hashlib

    digest = hashlib.sha256()
    for question in questions:
        digest.update(json.dumps([question.id, question.text, list(question.choices)]).encode())
    return digest.hexdigest()


def _export(ledger: Ledger, summary: AskedSummary) -> None:
    """Write all questions in order, as lines of JSON with the same keys, and the summary."""
    path = summary.out / "answers.jsonl"
    try:
        with replaced(path) as partial, partial.open("w", encoding="utf-8", errors="replace") as file:
            for row in ledger.rows():
                line = {**row, **{key: row.get(key) for key in TOLD}}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        write_atomically(summary.out / "summary.json", json.dumps(summary.to_dict(), indent=1))
    except OSError as error:
        raise StateError(
            f"'{path}' cannot be written ({error}). Every answer is kept in '{ledger.path}': make room, and "
            "run the same again"
        ) from error
