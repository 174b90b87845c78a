"""Answers one request: pool, selection within the deadline, reader. Runs in worker threads."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mio_rag.allocation.money import Rate
from mio_rag.allocation.pacer import Pacer
from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.generation import Generator, build_prompt
from mio_rag.generation.window import context_budget
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.service.pacing import Held, held_tokens
from mio_rag.service.searching import Found, Searching, Strategies
from mio_rag.solvers.result import SolveOptions
from mio_rag.text import is_text
from mio_rag.types import Passage, Question

__all__ = ["Answering", "Asked"]

_POOLS = 64  # cached, so that moving a slider does not retrieve again
_LEAST_SECONDS = 0.01  # for a program, even past the deadline: enough for a selection and a bound
_SEAM_TOKENS = 8  # that a tokenizer may count more where prompt and passages meet
_PROBE = Passage(id="probe", text="x")  # so that headings and separators are counted
_RESERVED = 0.1  # share of the remaining time that is kept for explanations and the response


class _OneAtATime:
    """A thread-safe counter: fast tokenizers fail when two threads use them at once."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter, self._lock = counter, threading.Lock()
        self.name = counter.name

    def count(self, texts: Sequence[str]) -> list[int]:
        """As the counter counts."""
        with self._lock:
            return self._counter.count(texts)


@dataclass(frozen=True)
class Asked:
    """A checked request.

    Parameters
    ----------
    deadline : float
        By `time.monotonic`.
    """

    question: str
    budget_tokens: int
    pool: int
    deadline: float
    selector: Selector
    more_tokens: int | None = None
    max_tokens: int = 64


class Answering:
    """Answers requests over an index with a generator; caches the pools of recent questions.

    Parameters
    ----------
    generator : Generator
        Reads in /ask; its tokenizer counts in both.
    pacer : Pacer, optional
        Sets the price of a token, and what a request may spend.
    rate : Rate, optional
        What the reader's tokens cost.
    strategies : Strategies, optional
        By which is searched; by default for the question itself.
    """

    def __init__(
        self,
        index: CorpusIndex,
        generator: Generator,
        pacer: Pacer | None = None,
        rate: Rate | None = None,
        strategies: Strategies | None = None,
    ) -> None:
        self.index, self.generator, self.pacer, self.rate = index, generator, pacer, rate
        self.counter: TokenCounter = _OneAtATime(generator)
        self.searching = None if strategies is None else Searching(strategies, index, generator, self.counter)
        self._pools: OrderedDict[tuple[str, int], Found] = OrderedDict()
        self._lock = threading.Lock()
        self._embedding, self._reading = threading.Lock(), threading.Lock()

    def found(self, asked: Asked) -> Found:
        """The candidates of a question, from the cache if it was asked recently."""
        question, size = asked.question, asked.pool
        if not is_text(question):
            raise InputError("the question is not valid text: send it as UTF-8")
        key = (question, size)
        with self._lock:
            if key in self._pools:
                self._pools.move_to_end(key)
                return self._pools[key]
        if self.searching is not None and question.strip():
            found = self.searching.find(question, size, asked.selector, asked.budget_tokens, asked.deadline)
        else:
            with self._embedding:
                found = Found(Retriever(self.index, pool=size, counter=self.counter).retrieve(question))
        with self._lock:
            self._pools[key] = found
            while len(self._pools) > _POOLS:
                self._pools.popitem(last=False)
        return found

    def select(self, asked: Asked) -> dict[str, Any]:
        """What POST /select returns.

        Raises
        ------
        InputError
            If the question is empty.
        SolverError
            If the solver broke.
        SpentError
            If no tokens are left.
        """
        found = self.found(asked)
        pool = found.pool
        with held_tokens(self.pacer, asked.budget_tokens, _least(pool, asked.budget_tokens)) as held:
            asked = self._held_to(asked, held, asked.budget_tokens)
            made = _timed(asked).select(pool, asked.budget_tokens, self.counter)
            held.used = made.tokens_used
        data = {**_described(asked, made), **held.said, **self._dollars(made.tokens_used), **_search(found)}
        if asked.more_tokens is not None:
            data["more"] = self._more(asked, pool, made, asked.more_tokens)
        return data

    def ask(self, asked: Asked) -> dict[str, Any]:
        """What POST /ask returns.

        Raises
        ------
        InfeasibleError
            If no selection satisfies the constraints.
        GenerationError
            If the generator fails.
        SpentError
            If no tokens are left for a passage beside the question and its answer.
        """
        question = Question("question", asked.question)
        allowed = context_budget(
            self.generator, question, asked.budget_tokens, max_tokens=asked.max_tokens, error=InputError
        )
        found, around = self.found(asked), self._around(question, asked.max_tokens)
        pool = found.pool
        with held_tokens(self.pacer, around + allowed, around + _least(pool, allowed)) as held:
            asked = self._held_to(asked, held, allowed, around)
            made = _timed(asked).select(pool, asked.budget_tokens, self.counter)
            if made.result.x is None:
                raise InfeasibleError(made.explain())
            prompt = build_prompt(question, made.passages)
            with self._reading:
                if self.pacer is not None:  # counts also where no answer comes
                    held.used = self.generator.prompt_tokens(prompt)
                answer = self.generator.generate(prompt, max_tokens=asked.max_tokens)
            held.used = answer.prompt_tokens + answer.completion_tokens
        return {
            **_described(asked, made),
            **held.said,
            **self._dollars(answer.prompt_tokens, answer.completion_tokens),
            **_search(found),
            "answer": answer.text,
            "generator": answer.generator,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }

    def _held_to(self, asked: Asked, held: Held, budget: int, around: int = 0) -> Asked:
        """The request with a budget, at the highest of the prices that apply to it."""
        prices = [asked.selector.token_price, 0.0 if self.rate is None else self.rate.token_price]
        if held.reservation is not None:
            budget = min(budget, held.reservation.allowed - around)
            prices.append(held.reservation.price)
        return replace(asked, budget_tokens=budget, selector=replace(asked.selector, token_price=max(prices)))

    def _dollars(self, prompt_tokens: int, completion_tokens: int = 0) -> dict[str, float]:
        return {} if self.rate is None else {"dollars": self.rate.cost(prompt_tokens, completion_tokens)}

    def _around(self, question: Question, max_tokens: int) -> int:
        """Tokens of a prompt without its passages, and of the longest answer."""
        if self.pacer is None:
            return 0
        return self.generator.prompt_tokens(build_prompt(question, [_PROBE])) + _SEAM_TOKENS + max_tokens

    def _more(self, asked: Asked, pool: Candidates, now: Selection, more_tokens: int) -> dict[str, Any]:
        """What a larger budget would select, and proven bounds on its gain."""
        then = _timed(asked).choose(pool, asked.budget_tokens + more_tokens, self.counter)
        before, after = now.result, then.result
        gain = low = high = None
        if before.objective is not None and after.objective is not None:
            gain = after.objective - before.objective
            low = None if before.bound is None else max(0.0, after.objective - before.bound)
            high = None if after.bound is None else after.bound - before.objective
        ids = {pool.ids[i] for i in then.chosen}
        return {
            "more_tokens": more_tokens,
            "tokens_used": then.used,
            "gain": gain,
            "low": low,
            "high": high,
            "added": [pool.ids[i] for i in then.chosen if pool.ids[i] not in now.ids],
            "removed": [i for i in now.ids if i not in ids],
            "certified": before.is_optimal and after.is_optimal,
        }


def _search(found: Found) -> dict[str, Any]:
    return {} if found.said is None else {"search": found.said}


def _least(pool: Candidates, budget: int) -> int:
    """Tokens that the smallest passage takes: with fewer left a request would be answered by nothing."""
    return max(1, min([budget, *map(int, pool.tokens)]))


def _timed(asked: Asked) -> Selector:
    """The selector, with the time left until the deadline as its time limit."""
    left = (asked.deadline - time.monotonic()) * (1 - _RESERVED)
    return replace(asked.selector, options=SolveOptions(time_limit_seconds=max(_LEAST_SECONDS, left)))


def _described(asked: Asked, made: Selection) -> dict[str, Any]:
    return {
        "question": asked.question,
        "passage_penalty": asked.selector.penalty(made.candidates),
        **made.to_dict(),
    }
