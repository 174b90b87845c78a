"""Executors: the steps that a workflow is made of, each with what it takes and what it gives.

What flows between them has a type: a question, several questions, a pool of passages, passages to read, facts
(answers to sub-questions) or an answer. `mio_rag.control.planner.workflow` checks that they fit together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mio_rag.candidates import Candidates
from mio_rag.control.meter import Meter, Reply
from mio_rag.control.steps.pools import merge_pools
from mio_rag.control.steps.setting_checks import number, one_of, workflow_problem
from mio_rag.control.steps.side_by_side import asks_a_model, listed, strategies_problem, strategy_pools
from mio_rag.control.steps.wording import Fact, fact_passage, short_prompt
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.generation import Prompt, build_prompt
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import Answer, Question

__all__ = [
    "EXECUTORS",
    "TYPES",
    "Executor",
    "Facts",
    "Job",
    "Nothing",
    "Queries",
    "Taken",
    "Value",
    "asks",
]

_QUERY_TOKENS = 32
_PART_TOKENS = 24  # of one sub-question
_LONGEST_QUERY = 200  # characters
_REFERENCE = re.compile(r"#(\d)")


class Nothing(InfeasibleError):
    """An executor came to no result."""


@dataclass(frozen=True)
class Queries:
    """Sub-questions; in a series, later ones name the answers to earlier ones as #1, #2, ..."""

    texts: tuple[str, ...]
    serial: bool = False


@dataclass(frozen=True)
class Facts:
    """Answers to sub-questions, in order."""

    found: tuple[Fact, ...]


#: What flows along an edge; the question that a workflow answers is at hand everywhere.
Value = str | Queries | Candidates | Selection | Facts | Reply

TYPES: Mapping[str, type[Any]] = {
    "question": str,
    "questions": Queries,
    "pool": Candidates,
    "passages": Selection,
    "facts": Facts,
    "answer": Reply,
}


@dataclass(frozen=True)
class Taken:
    """What came in, by type, in the order of the edges."""

    values: Sequence[Value] = ()

    def every(self, kind: type[Any]) -> list[Any]:
        """All values of a type."""
        return [value for value in self.values if isinstance(value, kind)]

    def last(self, kind: type[Any]) -> Any:
        """The last value of a type; None: there is none."""
        return next(iter(reversed(self.every(kind))), None)


@dataclass(frozen=True, eq=False)
class Job:
    """One use of an executor.

    Parameters
    ----------
    question : Question
        What the workflow answers.
    known : tuple of Fact
        Answers to earlier sub-questions, where the workflow answers one.
    settings : mapping
        The executor's own, by name; see `Executor.settings`.
    meter : Meter
        Asks the model, and counts.
    retriever : Retriever or None
        None: there is nothing to search in.
    final : bool
        Whether this makes the answer to what was asked: its tokens are set aside.
    solve : callable
        (workflow, questions, serial) -> what was asked and answered, one a question: runs another workflow.
    notes : list of str
        Takes what there is to say of the work, for traces.
    """

    question: Question
    budget_tokens: int
    meter: Meter
    selector: Selector
    retriever: Retriever | None = None
    max_tokens: int = 32
    settings: Mapping[str, Any] = field(default_factory=dict)
    known: tuple[Fact, ...] = ()
    final: bool = False
    solve: Callable[[Any, Sequence[str], bool], list[tuple[str, Reply | None]]] | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Executor:
    """A kind of step.

    Parameters
    ----------
    name : str
        As workflows say it.
    does : str
        One sentence.
    takes : mapping of str to (int, int)
        Type -> how many at least and at most; others are refused.
    gives : str
        A type.
    asks : bool
        Whether it asks a language model.
    settings : mapping of str to callable
        Name of a setting -> what is wrong with a value, in words; None: nothing is.
    """

    name: str
    does: str
    takes: Mapping[str, tuple[int, int]]
    gives: str
    run: Callable[[Job, Taken], Value]
    asks: bool = True
    settings: Mapping[str, Callable[[Any], str | None]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # settings that must be given
    runs_others: bool = False  # whether it runs a workflow, and waits for it


def asks(do: str, settings: Mapping[str, Any]) -> bool:
    """Whether an executor with these settings asks a language model."""
    return EXECUTORS[do].asks or asks_a_model(settings)


def _line(said: str) -> str:
    first = next((line for line in said.splitlines() if re.search(r"\w", line)), "")
    return first.strip(" \"'`-*")[:_LONGEST_QUERY]


def _asked(taken: Taken, job: Job) -> str:
    return str(taken.last(str) or job.question.text)


def _facts(taken: Taken, job: Job) -> tuple[Fact, ...]:
    return (*job.known, *(fact for facts in taken.every(Facts) for fact in facts.found))


def _rewrite(job: Job, taken: Taken) -> Value:
    prompt = short_prompt("rewrite", job.question, _asked(taken, job), _facts(taken, job))
    query = _line(job.meter.generate("rewrite", prompt, _QUERY_TOKENS).text)
    if not query:
        raise Nothing("the rewritten question is empty")
    return query


def _decompose(job: Job, taken: Taken) -> Value:
    serial, most = job.settings.get("order") == "serial", int(job.settings.get("most", 3))
    name = "split_serial" if serial else "split_parallel"
    prompt = short_prompt(name, job.question, _asked(taken, job), _facts(taken, job), most=str(most))
    said = job.meter.generate("decompose", prompt, _PART_TOKENS * most).text
    lines = [
        re.sub(r"^\W*\d+[.):]\s*", "", line).strip(" \"'`-*")[:_LONGEST_QUERY] for line in said.splitlines()
    ]
    kept = list(dict.fromkeys(line for line in lines if re.search(r"\w", line)))[:most]
    if not kept:
        raise Nothing("no sub-question was written")
    return Queries(tuple(kept), serial)


def _each(job: Job, taken: Taken) -> Value:
    assert job.solve is not None
    queries = taken.last(Queries)
    told = job.solve(job.settings.get("workflow"), queries.texts, queries.serial)
    found = [Fact(query, reply.answer.text) for query, reply in told if reply is not None]
    if not found:
        raise Nothing("no sub-question was answered")
    return Facts(tuple(found))


def _retrieve(job: Job, taken: Taken) -> Value:
    retriever = job.retriever
    if retriever is None:
        raise InputError("there is no corpus to search: use a workflow without 'retrieve', or give an index")
    if "mode" in job.settings or "pool" in job.settings:
        retriever = Retriever(
            retriever.index,
            pool=job.settings.get("pool", retriever.pool),
            mode=job.settings.get("mode", retriever.mode),
            counter=retriever.counter,
            link_hops=retriever.link_hops,
            rerankers=retriever.rerankers,
        )
    given = [text for value in taken.every(Queries) for text in value.texts] + taken.every(str)
    queries = dict.fromkeys(_REFERENCE.sub("", query) for query in given or [job.question.text])
    if "strategies" in job.settings:
        asked = [Question(job.question.id, query) for query in queries]
        names, deadline = listed(job.settings["strategies"]), job.settings.get("deadline")
        pools, notes = strategy_pools(retriever, job.meter, asked, names, deadline)
        job.notes.extend(notes)
        return _merged(pools)
    pools = []
    for query in queries:
        with job.meter.timed("retrieve", retrieval_calls=1):
            pools.append(retriever.retrieve(query))
    return _merged(pools)


def _merged(pools: Sequence[Candidates]) -> Candidates:
    found = pools[0]
    for other in pools[1:]:
        found = merge_pools(found, other, max(len(found), len(other)), set())
    if not len(found):
        raise Nothing("nothing was found")
    return found


def _select(job: Job, taken: Taken) -> Value:
    assert job.retriever is not None
    selector, budget = job.selector, job.budget_tokens
    if "token_price" in job.settings:
        selector = selector.replace(token_price=float(job.settings["token_price"]))
    if "share" in job.settings:
        budget = max(1, int(budget * job.settings["share"]))
    units = job.settings.get("units", selector.units)
    with job.meter.timed("select"):
        pool = _merged(taken.every(Candidates))
        selection = selector.replace(units=units).select(pool, budget, job.retriever.counter)
    if selection.result.x is None:
        raise InfeasibleError(selection.explain())
    return selection


def _reply(part: str, job: Job, prompt: Prompt) -> Reply:
    if prompt.question.choices:
        reply = job.meter.choose(part, prompt, final=job.final)
    else:
        reply = Reply(job.meter.generate(part, prompt, job.max_tokens, final=job.final))
    if not reply.answer.text.strip() and not job.final:
        raise Nothing("the answer is empty")
    return reply


def _answer(job: Job, taken: Taken) -> Value:
    read, facts = taken.last(Selection), _facts(taken, job)
    passages = () if read is None else read.passages
    if read is not None and not (passages or facts or job.question.choices):
        # As `mio_rag.ask.ask` does: without what was looked for, a model would answer from memory.
        if not job.final:
            raise Nothing("nothing was worth reading")
        return Reply(Answer("", 0, 0, 0.0, job.meter.generator.name))
    return _reply("answer", job, build_prompt(job.question, (*passages, *fact_passage(facts))))


def _summarise(job: Job, taken: Taken) -> Value:
    read = taken.last(Selection)
    passages = () if read is None else read.passages
    facts = _facts(taken, job)
    if (guess := taken.last(Reply)) is not None:
        facts = (*facts, Fact("A first answer to the whole question", guess.answer.text))
    if job.question.choices:
        return _reply("summarise", job, build_prompt(job.question, (*passages, *fact_passage(facts))))
    prompt = short_prompt("summarise", job.question, job.question.text, facts, passages)
    return _reply("summarise", job, prompt)


def _verify(job: Job, taken: Taken) -> Value:
    read, given = taken.last(Selection), taken.last(Reply)
    passages = () if read is None else read.passages
    facts = _facts(taken, job)
    prompt = short_prompt(
        "verify", job.question, job.question.text, facts, passages, answer=given.answer.text
    )
    said = job.meter.generate("verify", prompt, 4).text.strip().lower()
    if said.startswith("yes") or "otherwise" not in job.settings:
        return Reply(given.answer, given.choice, given.probability if said.startswith("yes") else 0.0)
    assert job.solve is not None
    _, other = job.solve(job.settings["otherwise"], [job.question.text], False)[0]
    return given if other is None else other


_ANY = 8
_FACTS = {"facts": (0, _ANY)}

EXECUTORS: Mapping[str, Executor] = {
    executor.name: executor
    for executor in (
        Executor(
            "rewrite",
            "Asks the question in words that a search engine understands.",
            {"question": (0, 1), **_FACTS},
            "question",
            _rewrite,
        ),
        Executor(
            "decompose",
            "Breaks the question into simpler ones.",
            {"question": (0, 1), **_FACTS},
            "questions",
            _decompose,
            settings={"order": one_of("serial", "parallel"), "most": number(1, 8, whole=True)},
        ),
        Executor(
            "each",
            "Answers every sub-question by a workflow of its own.",
            {"questions": (1, 1)},
            "facts",
            _each,
            asks=False,
            settings={"workflow": workflow_problem},
            needs=("workflow",),
            runs_others=True,
        ),
        Executor(
            "retrieve",
            "Searches for the question, or for every question that it is given.",
            {"question": (0, _ANY), "questions": (0, _ANY)},
            "pool",
            _retrieve,
            asks=False,
            settings={
                "mode": one_of("fused", "dense", "bm25"),
                "pool": number(1, 10_000, whole=True),
                "strategies": strategies_problem,
                "deadline": number(1e-3, 1e6),
            },
        ),
        Executor(
            "select",
            "Chooses what is read, by the exact program.",
            {"pool": (1, _ANY)},
            "passages",
            _select,
            asks=False,
            settings={
                "token_price": number(0, 1),
                "share": number(0.01, 1),
                "units": one_of("passages", "sentences", "auto"),
            },
        ),
        Executor(
            "answer",
            "Answers from what was read and from facts, or from memory.",
            {"passages": (0, 1), **_FACTS},
            "answer",
            _answer,
        ),
        Executor(
            "summarise",
            "Answers from the answers to sub-questions.",
            {"facts": (1, _ANY), "passages": (0, 1), "answer": (0, 1)},
            "answer",
            _summarise,
        ),
        Executor(
            "verify",
            "Checks an answer against what was read; otherwise another workflow answers.",
            {"answer": (1, 1), "passages": (0, 1), **_FACTS},
            "answer",
            _verify,
            settings={"otherwise": workflow_problem},
            runs_others=True,
        ),
    )
}
