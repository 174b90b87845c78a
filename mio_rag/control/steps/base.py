"""The parts of the agent, each behind a protocol: writing queries, finding passages, reasoning, answering.

Each can be replaced by any object with its one method. The prompts of the built-in parts are in
``prompts/*.txt``; the answer uses the same prompt as the rest of the package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.context import SEPARATOR, render_context
from mio_rag.control.memory import Memory, Meter, Reply
from mio_rag.errors import InfeasibleError
from mio_rag.generation import Prompt, build_prompt
from mio_rag.generation.prompts import LETTERS
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.text import clean

__all__ = [
    "AnswerSynthesizer",
    "EvidenceFinder",
    "LmDecomposer",
    "LmReasoner",
    "LmSynthesizer",
    "Parts",
    "QueryDecomposer",
    "Reasoner",
    "SelectingFinder",
    "merge_pools",
]

_FIELD = re.compile(r"\{(context|question|history|uncertainty)\}")
_QUERY_TOKENS = 32
_LONGEST_QUERY = 200  # characters


class QueryDecomposer(Protocol):
    """Says what to search for next."""

    def next_query(self, memory: Memory, uncertainty: float, meter: Meter) -> str:
        """A query from the question, the history and U."""
        ...


class EvidenceFinder(Protocol):
    """Searches, and decides what is read of all that was found."""

    def find(self, memory: Memory, query: str, meter: Meter) -> tuple[str, ...]:
        """Take pool and selection of the memory forward; the ids that are read now and were not before."""
        ...


class Reasoner(Protocol):
    """Thinks one step further."""

    def reason(self, memory: Memory, meter: Meter) -> str:
        """A note: one more fact or conclusion."""
        ...


class AnswerSynthesizer(Protocol):
    """Answers from what was read and noted."""

    def prompt(self, memory: Memory) -> Prompt:
        """What the model is asked in the end."""
        ...

    def answer(self, memory: Memory, meter: Meter) -> Reply:
        """The answer, or the choice."""
        ...


@dataclass(frozen=True)
class Parts:
    """The four parts of an agent; without a finder it answers from what the model knows."""

    decomposer: QueryDecomposer
    finder: EvidenceFinder | None
    reasoner: Reasoner
    synthesizer: AnswerSynthesizer


@cache
def _template(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def _prompt(memory: Memory, name: str, kept_notes: int, history: str, uncertainty: float = 1.0) -> Prompt:
    """A prompt from the files; one pass over the template, so that braces in texts are never looked at."""
    read = memory.passages(0)
    question = memory.question
    options = [f"{a}. {clean(c)}" for a, c in zip(LETTERS, question.choices, strict=False)]
    fields = {
        "context": f"Passages:\n\n{render_context(read)}{SEPARATOR}" if read else "",
        "question": "\n".join([clean(question.text).strip(), *options]),
        "history": history,
        "uncertainty": f"{uncertainty:.2f}",
    }
    user = _FIELD.sub(lambda match: fields[match.group(1)], _template(f"{name}_user"))
    # Without the options: a generator that is given them would choose one instead of writing.
    return Prompt(
        replace(question, choices=()), memory.passages(kept_notes), _template(f"{name}_system"), user
    )


def _listed(title: str, items: list[str]) -> str:
    return "".join([f"{title}:\n", *(f"- {clean(item)}\n" for item in items)]) if items else ""


@dataclass(frozen=True)
class LmDecomposer:
    """Asks the model for the next query; the first one is the question itself, which costs nothing.

    A reply that is empty, or was searched for already, is replaced by the question together with the last
    note.
    """

    kept_notes: int = 4

    def next_query(self, memory: Memory, uncertainty: float, meter: Meter) -> str:
        """A query from the question, the history and U."""
        if not memory.queries:
            return memory.question.text
        history = _listed("Earlier queries", memory.queries)
        history += _listed("Notes", memory.last_notes(self.kept_notes))
        prompt = _prompt(memory, "decompose", self.kept_notes, history, uncertainty)
        said = meter.generate("decompose", prompt, _QUERY_TOKENS).text
        query = said.strip().split("\n", 1)[0].strip(" \"'`-*")[:_LONGEST_QUERY]
        if not re.search(r"\w", query) or query.lower() in {q.lower() for q in memory.queries}:
            query = " ".join([memory.question.text, *memory.notes[-1:]])
        return query


@dataclass(frozen=True)
class LmReasoner:
    """Asks the model for one more sentence."""

    note_tokens: int = 48
    kept_notes: int = 4

    def reason(self, memory: Memory, meter: Meter) -> str:
        """A note; a reply that is empty or repeats a note is none."""
        history = _listed("Notes so far", memory.last_notes(self.kept_notes))
        prompt = _prompt(memory, "reason", self.kept_notes, history)
        said = " ".join(meter.generate("reason", prompt, self.note_tokens).text.split())
        return "" if said in memory.notes else said


@dataclass(frozen=True)
class LmSynthesizer:
    """Asks the model for the answer; a draft from exactly this state is the answer already."""

    max_tokens: int = 32
    kept_notes: int = 4

    def prompt(self, memory: Memory) -> Prompt:
        """Evidence and notes, with the prompt that every method of the package uses."""
        return build_prompt(memory.question, memory.passages(self.kept_notes))

    def answer(self, memory: Memory, meter: Meter) -> Reply:
        """The answer, or the choice."""
        if memory.draft is not None:
            return memory.draft
        prompt = self.prompt(memory)
        if memory.question.choices:
            return meter.choose("answer", prompt, final=True)
        return Reply(meter.generate("answer", prompt, self.max_tokens, final=True))


@dataclass(frozen=True, eq=False)
class SelectingFinder:
    """Retrieve for the query, then select by the program from everything found so far.

    A passage has its best relevance over all queries. The merged pool keeps as many of the best passages as
    one query returns, and all passages that were read already.
    """

    retriever: Retriever
    selector: Selector

    def find(self, memory: Memory, query: str, meter: Meter) -> tuple[str, ...]:
        """Take pool and selection of the memory forward; the ids that are read now and were not before."""
        before = set() if memory.selection is None else set(memory.selection.ids)
        with meter.timed("retrieve", retrieval_calls=1):
            found = self.retriever.retrieve(query)
        with meter.timed("select"):
            pool = (
                found if memory.pool is None else merge_pools(memory.pool, found, self.retriever.pool, before)
            )
            selection = self.selector.select(pool, memory.budget_tokens, self.retriever.counter)
        if selection.result.x is None:
            raise InfeasibleError(selection.explain())
        memory.pool, memory.selection = pool, selection
        return tuple(i for i in selection.ids if i not in before)


def merge_pools(one: Candidates, other: Candidates, size: int, keep: set[str]) -> Candidates:
    """Two pools of one index as one, best first: the `size` most relevant passages, and those to keep.

    Relevance and scores are the larger of the two, on their own scale (a logit may well be below 0); scores
    that only one pool has are left out, since 0 would be a score like any other. Question and query embedding
    are those of the first pool. Links are known within each pool, and 0 between passages that were never in
    one pool.
    """
    rows: dict[str, tuple[Candidates, int]] = {}
    relevance: dict[str, float] = {}
    scores: dict[str, dict[str, float]] = {name: {} for name in one.scores if name in other.scores}
    for pool in (one, other):
        for i, passage in enumerate(pool.ids):
            rows.setdefault(passage, (pool, i))
            relevance[passage] = max(float(pool.relevance[i]), relevance.get(passage, -np.inf))
            for name, column in scores.items():
                column[passage] = max(float(pool.scores[name][i]), column.get(passage, -np.inf))
    best = sorted(rows, key=lambda passage: -relevance[passage])
    ids = [p for place, p in enumerate(best) if place < size or p in keep]
    taken = [rows[p] for p in ids]
    embedded = one.embeddings is not None and other.embeddings is not None
    return Candidates(
        ids=ids,
        texts=[pool.texts[i] for pool, i in taken],
        relevance=np.array([relevance[p] for p in ids]),
        tokens=np.array([pool.tokens[i] for pool, i in taken]),
        embeddings=np.array([pool.embeddings[i] for pool, i in taken if pool.embeddings is not None])
        if embedded
        else None,
        query_embedding=one.query_embedding,
        titles=[pool.passage(i).title for pool, i in taken],
        sources=None
        if one.sources is None or other.sources is None
        else [pool.passage(i).source for pool, i in taken],
        scores={name: np.array([column[p] for p in ids]) for name, column in scores.items()},
        question=one.question,
        links=_merged_links((one, other), ids),
        positions=None
        if one.positions is None or other.positions is None
        else np.array([pool.positions[i] for pool, i in taken if pool.positions is not None]),
    )


def _merged_links(pools: tuple[Candidates, Candidates], ids: list[str]) -> NDArray[np.float32] | None:
    """Links among these passages, as far as a pool holds both; None where a pool has none."""
    place = {passage: k for k, passage in enumerate(ids)}
    links = np.zeros((len(ids), len(ids)), dtype=np.float32)
    for pool in pools:
        if pool.links is None:
            return None
        rows = [i for i, passage in enumerate(pool.ids) if passage in place]
        at = [place[pool.ids[i]] for i in rows]
        links[np.ix_(at, at)] = np.maximum(links[np.ix_(at, at)], pool.links[np.ix_(rows, rows)])
    return links
