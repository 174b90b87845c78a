"""What the parts of a policy are worth with a language model that answers, words queries and decomposes.

Every contender is a policy with one knob, as in `study.py`: none of the five parts, each alone, all but each,
all five, and fixed rivals (workflows, a tier, a set of strategies), of which the best is picked afterwards.
Costs are those of all calls of all models. Routers and a planner have learned from other questions; a bandit
learns while it is asked. Replies are kept by content, and rows as they come, so that a run goes on anywhere.

    order        a planner chooses the workflow
    search       a bandit chooses among the question itself, HyDE and Query2Doc
    amount       a router allows what is read
    reading      the exact program at the price, instead of a ranking
    repetition   another search, worded by the model, where the price says that it pays

Without the program a router reads by the rule of its tier, from which nothing can be chosen again, so that
"without reading" has no router either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.composed.study import Source
from benchmarks.composed.summary import at_total
from mio_rag.control.composed.controller import Composed, compose
from mio_rag.control.composed.policy import policy_of
from mio_rag.control.composed.trace import PolicyTrace
from mio_rag.control.controller import Failure, Setup
from mio_rag.control.planner.policy import write_planner
from mio_rag.control.planner.train import read_table, train_planner
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.generation import Generator, make_generator
from mio_rag.lines import append_lines
from mio_rag.measures import evidence_found, token_f1
from mio_rag.retrieval.retriever import Retriever
from mio_rag.types import GenerationError, Question

__all__ = ["Asked", "Reader", "contenders", "planner_of", "rows_of_reader", "table_of", "told_of"]

_LIMITS, _PRICES = (160.0, 480.0, 1280.0), (0.004, 0.001, 0.0002)
_CEILING, _ANSWER = 2048, 24  # the largest tier of the routers
_RANKED = {"by": "ranking"}
_PARTS: Mapping[str, dict[str, Any]] = {
    "order": {"order": {"by": "planner", "file": "PLANNER"}},
    "search": {"search": {"by": "bandit", "strategies": ["raw", "hyde", "query2doc"], "state": "STATE"}},
    "amount": {"amount": {"by": "router", "file": "PROGRAM"}},
    "reading": {},
    "repetition": {"repetition": {"by": "price", "query": "model", "most": 1}},
}
_RIVALS: Mapping[str, dict[str, Any]] = {
    "workflow rewrite-first": {"order": {"workflow": "rewrite-first"}, "reading": _RANKED},
    "workflow search-parts": {"order": {"workflow": "search-parts"}, "reading": _RANKED},
    "strategies raw, hyde": {"search": {"strategies": ["raw", "hyde"]}, "reading": _RANKED},
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
    """

    name: str
    spec: str
    into: float
    out: float


@dataclass(frozen=True)
class Asked:
    """A contender at one value of its knob, with one reader."""

    contender: str
    knob: str
    value: float
    reader: str


def contenders(planner: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> its knob, and what its policy says; without a planner the order is fixed.

    Parameters
    ----------
    planner : bool
        Whether there is one.
    """
    parts = [part for part in _PARTS if planner or part != "order"]

    def joined(kept: Sequence[str]) -> tuple[str, dict[str, Any]]:
        said: dict[str, Any] = {}
        for part in kept:
            said |= _PARTS[part]
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
    made |= {name: ("limit", said) for name, said in _RIVALS.items()}
    made["tier medium"] = (
        "once", {"reading": {"by": "tier"}, "amount": {"by": "tier", "tier": "medium"}}
    )  # fmt: skip
    return made


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


def rows_of_reader(
    sources: Sequence[Source],
    reader: Reader,
    files: Mapping[str, Path],
    work: Path,
    say: Callable[[str], None],
) -> dict[Asked, list[dict[str, Any]]]:
    """What every contender answered to every question, at every value of its knob.

    Parameters
    ----------
    files : mapping
        Of what was learned: PLANNER, PROGRAM, RANKING.
    """
    found: dict[Asked, list[dict[str, Any]]] = {}
    folder = work / "language" / reader.name
    folder.mkdir(parents=True, exist_ok=True)
    stream = [(source, question) for source in sources for question in source.questions]
    joint = "&" if "?" in reader.spec else "?"
    with closing(make_generator(f"{reader.spec}{joint}replies={work / 'replies.sqlite'}")) as generator:
        for name, (knob, said) in contenders("PLANNER" in files).items():
            values = {"limit": _LIMITS, "price": _PRICES, "once": (0.0,)}[knob]
            for value in values:
                asked = Asked(name, knob, value, reader.name)
                path = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{value:g}.jsonl"
                files_here = {**files, "STATE": path.with_suffix(".sqlite")}
                policy = _policy(said, knob, value, {k: str(v) for k, v in files_here.items()})
                found[asked] = _asked(policy, stream, generator, reader, path)
                say(f"{reader.name}: {name} at {value:g}")
    return found


def _policy(said: Mapping[str, Any], knob: str, value: float, files: Mapping[str, str]) -> dict[str, Any]:
    """A policy as plain data, with the files that stand for their names."""
    data: dict[str, Any] = json.loads(json.dumps(said))
    for part in ("order", "amount", "search"):
        for key in ("file", "state"):
            if key in data.get(part, {}):
                data[part][key] = files[data[part][key]]
    limit = int(value) if knob == "limit" else _CEILING
    price = value if knob == "price" else 0.001
    return {
        **data,
        "price": {"token": price},
        "limits": {"evidence_tokens": limit, "answer_tokens": _ANSWER, "tokens": 12_000},
    }


def _asked(
    policy: Mapping[str, Any],
    stream: Sequence[tuple[Source, Question]],
    generator: Generator,
    reader: Reader,
    path: Path,
) -> list[dict[str, Any]]:
    """The rows of a policy, one for each question; those of the file are kept."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    kept = [json.loads(line) for line in lines if line.endswith("}")]
    opened: dict[str, Composed] = {}
    try:
        for source, question in stream[len(kept) :]:
            if source.name not in opened:
                for one in opened.values():  # a bandit's log has one writer of an index
                    one.close()
                setup = Setup(retriever=Retriever(source.index, counter=generator))
                opened = {source.name: compose(policy_of(policy, path.stem), setup)}
            found = opened[source.name].attempt(question, generator, _CEILING)
            if isinstance(found, Failure) and isinstance(found.error, GenerationError):
                raise found.error
            trace, amount = found.trace, found.costs.total()
            assert isinstance(trace, PolicyTrace)
            recall = 0.0
            if found.selection is not None:
                recall = evidence_found(question, found.selection.candidates, found.selection.chosen)
            dollars = (amount.prompt_tokens * reader.into + amount.completion_tokens * reader.out) / 1e6
            row = {
                "question": question.id,
                "set": source.name,
                "tokens": float(amount.prompt_tokens + amount.completion_tokens),
                "dollars": dollars,
                "f1": token_f1(trace.answer, question.answers),
                "recall": float(recall),
                "complete": float(recall >= 1.0),
                "searches": float(amount.retrieval_calls),
                "calls": float(amount.lm_calls),
            }
            append_lines(path, [json.dumps(row)])
            kept.append(row)
    finally:
        for one in opened.values():
            one.close()
    return kept


def told_of(rows: Mapping[Asked, Sequence[Mapping[str, Any]]], readers: Sequence[Reader]) -> dict[str, Any]:
    """Every contender at three totals of tokens, reader by reader; and of dollars, over all readers."""
    told: dict[str, Any] = {
        reader.name: _totals({a: r for a, r in rows.items() if a.reader == reader.name}, "tokens")
        for reader in readers
    }
    if len(readers) > 1:
        told["dollars, whichever reader"] = _totals(rows, "dollars")
    return told


def _totals(rows: Mapping[Asked, Sequence[Mapping[str, Any]]], cost: str) -> dict[str, Any]:
    """At what the plain contender spends at each of its limits, in the mean."""
    by_name: dict[str, list[Asked]] = {}
    for asked in rows:
        by_name.setdefault(asked.contender, []).append(asked)
    plain = by_name["none (fused)"]
    totals = sorted(float(np.mean([row[cost] for row in rows[asked]])) for asked in plain)
    told = {}
    for total in dict.fromkeys(totals[:: max(1, len(totals) // 3)][:3]):
        at = {name: at_total(rows, mine, total, cost, ("f1", "complete")) for name, mine in by_name.items()}
        base = at["none (fused)"]
        assert base is not None
        here: dict[str, Any] = {}
        for name, columns in at.items():
            here[name] = None
            if columns is not None:
                here[name] = {m: float(column.mean()) for m, column in columns.items()}
                for measure in ("f1", "complete"):
                    for other in ("none (fused)", "all"):
                        against = at[other]
                        if name != other and against is not None:
                            off = (columns[measure] - against[measure]).tolist()
                            here[name][f"{measure} beside {other}"] = mean_interval(off)
        told[f"{total:.6g}"] = here
    return told


def table_of(told: Mapping[str, Any]) -> str:
    """The summary as text."""
    lines = []
    for who, totals in told.items():
        for total, here in totals.items():
            unit = "dollars" if who.startswith("dollars") else "tokens"
            lines.append(f"{who}: {total} {unit} a question")
            lines.append(f"{'':24}{'F1':>7}{'all evidence':>14}{unit:>10}  F1 beside fused (points)")
            for name, one in here.items():
                if one is None:
                    lines.append(f"{name:24}  spends more than that at every setting")
                    continue
                beside = one.get("f1 beside none (fused)")
                said = ""
                if beside is not None:
                    mean, low, high = (100 * beside[key] for key in ("mean", "low", "high"))
                    said = f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
                lines.append(f"{name:24}{one['f1']:7.3f}{one['complete']:14.3f}{one[unit]:10.4g}  {said}")
            lines.append("")
    return "\n".join(lines)
