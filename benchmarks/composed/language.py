"""What the parts of a policy are worth with language models that answer, word queries and decompose.

Every contender is a policy with one knob, as in `study.py`: none of the five parts, each alone, all but each,
all five, and fixed rivals (workflows, a set of strategies), of which the best is picked afterwards; the
ranking at one of its limits is the fixed tier.
Costs are those of all calls of all models. Routers, a planner and a bandit have learned from other questions;
the bandit goes on learning, each contender's from the same start. One question of each set is asked of all
contenders and all readers before the next, so that whatever is finished is balanced. Replies are kept by
content, and rows as they come: a run goes on anywhere, and one with fewer questions tells of those.

    order        a planner chooses the workflow
    search       a bandit chooses among the question itself and HyDE
    amount       a router allows what is read
    reading      the exact program at the price, instead of a ranking
    repetition   another search, worded by the model, where the price says that it pays

Without the program a router reads by the rule of its tier, from which nothing can be chosen again, so that
"without reading" has no router either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.composed.study import TIERS, Source
from mio_rag.generation import Generator, make_generator
from mio_rag.learning.planner import write_planner
from mio_rag.learning.planner_training import read_table, train_planner
from mio_rag.measures import evidence_found, token_f1
from mio_rag.policies.compose import compose
from mio_rag.policies.setup import Setup
from mio_rag.policy import policy_of
from mio_rag.retrieval.retriever import Retriever
from mio_rag.storage import append_lines
from mio_rag.types import GenerationError, Question

#: What is read at most where that is the knob, and the price of a token where it is, or beside a limit.
_LIMITS, _PRICES = (80.0, 200.0, 450.0), (0.006, 0.002, 0.0005)
_CEILING, _ANSWER = 450, 16
#: What the router chooses among.
LANGUAGE_TIERS = tuple(
    dataclasses.replace(tier, context=int(limit), new_tokens=_ANSWER)
    for tier, limit in zip(TIERS, _LIMITS, strict=True)
)
_STRATEGIES = ["raw", "hyde"]
_LEARN = 102  # a bandit treats the first 100 questions alike
_RANKED = {"by": "ranking"}
_SAID: Mapping[str, dict[str, Any]] = {
    "order": {"order": {"by": "planner", "file": "PLANNER"}},
    "search": {"search": {"by": "bandit", "strategies": _STRATEGIES, "state": "STATE"}},
    "amount": {"amount": {"by": "router", "file": "PROGRAM"}},
    "reading": {},
    "repetition": {"repetition": {"by": "price", "query": "model", "most": 1}},
}
#: Parts of a policy that may decide.
PARTS = tuple(_SAID)
#: Name -> which part it is a fixed choice of, and what its policy says.
_RIVALS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "workflow rewrite-first": ("order", {"order": {"workflow": "rewrite-first"}, "reading": _RANKED}),
    "workflow search-parts": ("order", {"order": {"workflow": "search-parts"}, "reading": _RANKED}),
    "strategies raw, hyde": ("search", {"search": {"strategies": _STRATEGIES}, "reading": _RANKED}),
}


@dataclass(frozen=True)
class Reader:
    """A model that answers, and what it costs.

    Parameters
    ----------
    name : str
    spec : str
        As `make_generator` takes it.
    into, out : float
        Dollars per million tokens.
    asked : int, optional
        Questions of each set that it is asked, where that is fewer than all.
    """

    name: str
    spec: str
    into: float
    out: float
    asked: int | None = None


@dataclass(frozen=True)
class Asked:
    """A contender at one place of its knob, from the least that is spent, with one reader."""

    contender: str
    place: int
    reader: str


def contenders(parts: Sequence[str] = PARTS) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> its knob, and what its policy says.

    Parameters
    ----------
    parts : sequence of str
        Those that are studied, and with them their fixed rivals; all others are as they are without a part.
    """

    def joined(kept: Sequence[str]) -> tuple[str, dict[str, Any]]:
        said: dict[str, Any] = {}
        for part in kept:
            said |= _SAID[part]
        if "reading" in kept:
            return "price", said
        if list(kept) == ["amount"]:
            return "price", {"reading": {"by": "tier"}, "amount": {"by": "router", "file": "RANKING"}}
        said.pop("amount", None)
        return "limit", said | {"reading": _RANKED}

    made = {"none (fused)": joined([])}
    made |= {f"{part} alone": joined([part]) for part in parts}
    made |= {f"without {part}": joined([one for one in parts if one != part]) for part in parts}
    made["all"] = joined(parts)
    return made | {name: ("limit", said) for name, (part, said) in _RIVALS.items() if part in parts}


def planner_of(table: Path, sources: Sequence[Source], path: Path) -> tuple[list[str], int]:
    """Train a planner on the questions of a table that nobody is asked here.

    Returns
    -------
    list of str
        Workflows.
    int
        Questions that it learned from.
    """
    read = read_table(table, sources[0].index.embedder, ())
    asked = {question.text for source in sources for question in source.questions}
    texts = read.outcomes.questions
    places = np.array([k for k, text in enumerate(texts) if text not in asked], dtype=np.intp)
    made = train_planner(read, places)
    write_planner(made.planner, path)
    return [workflow.name for workflow in made.planner.tree.workflows], len(places)


def bandit_of(
    sources: Sequence[Source], reader: Reader, replies: Path, path: Path, say: Callable[[str], None]
) -> int:
    """Let a bandit learn from the training questions, set by set in turn; returns how many."""
    stream = islice(_rounds([(source, source.training.questions) for source in sources]), _LEARN)
    done = path.with_suffix(".done")
    if done.is_file():
        return int(done.read_text(encoding="utf-8"))
    path.unlink(missing_ok=True)
    policy = _policy(_SAID["search"], "price", 1, {"STATE": str(path)})
    count = 0
    with closing(_generator(reader, replies)) as generator:
        for source, question in stream:
            setup = Setup(retriever=Retriever(source.index, counter=generator))
            with closing(compose(policy_of(policy, "bandit"), setup)) as controller:
                controller.attempt(question, generator, _CEILING).check()
            count += 1
            if count % 20 == 0:
                say(f"bandit: {count} questions")
    done.write_text(str(count), encoding="utf-8")
    return count


def _rounds(
    sources: Sequence[tuple[Source, Sequence[Question]]],
) -> Iterator[tuple[Source, Question]]:
    """One question of each set, then the next; from the last, so that fewer are the beginning of more."""
    for k in range(1, max((len(questions) for _, questions in sources), default=0) + 1):
        for source, questions in sources:
            if k <= len(questions):
                yield source, questions[-k]


def rows_of_readers(
    sources: Sequence[Source],
    readers: Sequence[Reader],
    every: Mapping[str, tuple[str, dict[str, Any]]],
    files: Mapping[str, Path],
    work: Path,
    say: Callable[[str], None],
) -> dict[Asked, list[dict[str, Any]]]:
    """What every contender answered to the questions of a reader, at every place of its knob.

    Questions come in the same order for all; a reader that is asked fewer has the first of them.

    Parameters
    ----------
    every : mapping
        Contenders.
    files : mapping
        Of what was learned: PROGRAM, RANKING, STATE; PLANNER where there is one.
    """
    asked = [
        Asked(name, place, reader.name)
        for reader in readers
        for name in every
        for place in range(len(_LIMITS))
    ]
    paths = {one: _path(work, one, every[one.contender]) for one in asked}
    kept = {one: _read(path) for one, path in paths.items()}
    by_name = {reader.name: reader for reader in readers}
    stream = list(_rounds([(source, source.questions) for source in sources]))
    own = {reader.name: stream[: _count(reader, sources)] for reader in readers}
    with ExitStack() as stack:
        generators = {
            reader.name: stack.enter_context(closing(_generator(reader, work / "replies.sqlite")))
            for reader in readers
        }
        for count, (source, question) in enumerate(stream, 1):
            for one in asked:
                if question.id in kept[one] or count > len(own[one.reader]):
                    continue
                knob, said = every[one.contender]
                state = paths[one].with_suffix(".sqlite")
                if "state" in said.get("search", {}) and not state.is_file():
                    shutil.copyfile(files["STATE"], state)
                known = {name: str(path) for name, path in files.items()} | {"STATE": str(state)}
                policy = _policy(said, knob, one.place, known)
                row = _row(policy, source, question, generators[one.reader], by_name[one.reader])
                append_lines(paths[one], [json.dumps(row)])
                kept[one][question.id] = row
            say(f"{count} of {len(stream)} questions")
    return {one: [kept[one][question.id] for _, question in own[one.reader]] for one in asked}


def _count(reader: Reader, sources: Sequence[Source]) -> int:
    """Questions of all sets that a reader is asked."""
    most = max(len(source.questions) for source in sources) if reader.asked is None else reader.asked
    return sum(min(most, len(source.questions)) for source in sources)


def _generator(reader: Reader, replies: Path) -> Generator:
    if ":" not in reader.spec:  # without a model there is nothing worth keeping
        return make_generator(reader.spec)
    joint = "&" if "?" in reader.spec else "?"
    return make_generator(f"{reader.spec}{joint}replies={replies}")


def _path(work: Path, asked: Asked, said: tuple[str, dict[str, Any]]) -> Path:
    """Where its rows lie; its policy is in the name, since "all" of three parts is not that of five."""
    folder = work / "language" / asked.reader
    folder.mkdir(parents=True, exist_ok=True)
    name = asked.contender.replace(", ", "-").replace(" ", "-").replace("(", "").replace(")", "")
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]
    return folder / f"{name}-{asked.place}-{digest}.jsonl"


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Question -> its row; a line that was cut short does not count."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {row["question"]: row for row in rows}


def _policy(said: Mapping[str, Any], knob: str, place: int, files: Mapping[str, str]) -> dict[str, Any]:
    """A policy as plain data, with the files that stand for their names."""
    data: dict[str, Any] = json.loads(json.dumps(said))
    for part in ("order", "amount", "search"):
        for key in ("file", "state"):
            if key in data.get(part, {}):
                data[part][key] = files[data[part][key]]
    limit = int(_LIMITS[place]) if knob == "limit" else _CEILING
    return {
        **data,
        "price": {"token": _PRICES[place]},
        "limits": {"evidence_tokens": limit, "answer_tokens": _ANSWER, "tokens": 12_000},
    }


def _row(
    policy: Mapping[str, Any], source: Source, question: Question, generator: Generator, reader: Reader
) -> dict[str, Any]:
    """What a policy answered, what it read and what it took."""
    setup = Setup(retriever=Retriever(source.index, counter=generator))
    with closing(compose(policy_of(policy, "contender"), setup)) as controller:
        found = controller.attempt(question, generator, _CEILING)
    if isinstance(found.error, GenerationError):
        raise found.error
    trace, amount = found.trace, found.costs.total()
    recall = 0.0
    if found.selection is not None:
        recall = evidence_found(question, found.selection.candidates, found.selection.chosen)
    return {
        "question": question.id,
        "set": source.name,
        "tokens": float(amount.prompt_tokens + amount.completion_tokens),
        "dollars": (amount.prompt_tokens * reader.into + amount.completion_tokens * reader.out) / 1e6,
        "f1": token_f1(trace.answer, question.answers),
        "recall": float(recall),
        "complete": float(recall >= 1.0),
        "searches": float(amount.retrieval_calls),
        "calls": float(amount.lm_calls),
        "failed": float(found.error is not None),
        "answer": trace.answer,
    }
