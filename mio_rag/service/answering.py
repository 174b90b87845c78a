"""Answers one request: pool, selection within the deadline, reader. Runs in worker threads."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

from mio_rag.allocation.money import Rate
from mio_rag.allocation.pacer import Pacer
from mio_rag.answer_cache import AnswerCache, digest_of
from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.control.composed.trace import PolicyTrace
from mio_rag.control.controller import Setup, answered
from mio_rag.control.router.controller import Tiered
from mio_rag.control.router.make import make
from mio_rag.control.router.settings import KEY
from mio_rag.control.settings import ControlSettings
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.generation import Generator, build_prompt
from mio_rag.generation.protocol import content_of
from mio_rag.generation.window import context_budget
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.service.asked import Asked
from mio_rag.service.described import described, with_more
from mio_rag.service.governed import Governed, told, told_search
from mio_rag.service.pacing import Held, held_tokens
from mio_rag.service.planning import Planned, Planning, read_nothing
from mio_rag.service.searching import Found, Strategies, searching_of
from mio_rag.text import is_text
from mio_rag.types import Answer, Passage, Question

__all__ = ["Answering"]

_POOLS = 64  # cached, so that moving a slider does not retrieve again
_SEAM_TOKENS = 8  # that a tokenizer may count more where prompt and passages meet
_PROBE = Passage(id="probe", text="x")  # so that headings and separators are counted
_MOST = 1_000_000  # tokens, where tiers say how much is read


class _OneAtATime:
    """A thread-safe counter: fast tokenizers fail when two threads use them at once."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter, self.lock = counter, threading.Lock()
        self.name = counter.name

    def count(self, texts: Sequence[str]) -> list[int]:
        """As the counter counts."""
        with self.lock:
            return self._counter.count(texts)


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
    cache : AnswerCache, optional
        Answers that were given before. Only those whose selection is proven optimal are kept, so that no
        answer made in haste is given to who has time.
    routing : mapping, optional
        `RouterSettings` as plain data: /ask answers at the tier that the router chooses.
    strategies : Strategies, optional
        By which is searched; by default for the question itself.
    policy : str, optional
        Preset or file: /ask answers as the policy decides.
    refusing : Refusal, optional
        When /ask says that the passages do not answer: the answer is then blank, and what was said beside it.
    planning : Planning, optional
        /ask answers by the workflow that the planner chooses.

    Raises
    ------
    InputError
        If the router, the planner, or what the policy has learned is for another embedder than the index has,
        the refusal model for another embedder or reader, or two of them exclude each other.
    """

    def __init__(
        self,
        index: CorpusIndex,
        generator: Generator,
        pacer: Pacer | None = None,
        rate: Rate | None = None,
        cache: AnswerCache | None = None,
        routing: Mapping[str, Any] | None = None,
        strategies: Strategies | None = None,
        policy: str | None = None,
        refusing: Refusal | None = None,
        planning: Planning | None = None,
    ) -> None:
        if refusing is not None:
            for name, given in (("router", routing), ("policy", policy), ("planner", planning)):
                if given is not None:
                    raise InputError(
                        f"a refusal model and a {name} exclude each other: leave one of them out"
                    )
            refusing.check_fits(index.embedder.fingerprint, generator.name)
        self._refusing = refusing
        self.cache, self._model = cache, "" if cache is None else content_of(generator)
        self.index, self.generator, self.pacer, self.rate = index, generator, pacer, rate
        self._routing = None if routing is None else dict(routing)  # names the router's file by its hash
        self._routed = None if routing is None else _routed(index, routing)
        counter = self.counter = _OneAtATime(generator)
        self._embedding, self._reading = threading.Lock(), threading.Lock()
        self.governed = None if policy is None else Governed(policy, index, generator, counter, self._reading)
        self.searching = None if strategies is None else searching_of(strategies, index, generator, counter)
        self.learning = self.searching if self.governed is None else self.governed
        self._planning = None if planning is None else planning.kinds  # names the planner's file by its hash
        self.planned = None if planning is None else Planned(planning, index, generator)
        self._pools: OrderedDict[tuple[str, int, str], Found] = OrderedDict()
        self._lock = threading.Lock()
        # Whoever decides how much is read, or judges it, was measured with whole passages.
        others = (pacer, routing, strategies, policy, refusing, planning)
        alone = all(other is None for other in others)
        #: What requests choose that do not say it.
        self.units: Literal["passages", "auto"] = "auto" if alone else "passages"

    def found(self, asked: Asked) -> Found:
        """The candidates of a question, from the cache if it was asked recently."""
        question, size = asked.question, asked.pool
        if not is_text(question):
            raise InputError("the question is not valid text: send it as UTF-8")
        governed = self.governed
        with nullcontext((self.searching, "")) if governed is None else governed.searching() as (by, whose):
            key = (question, size, whose)
            with self._lock:
                if key in self._pools:
                    self._pools.move_to_end(key)
                    return self._pools[key]
            if by is not None and question.strip():
                found = by.find(question, size, asked.selector, asked.budget_tokens, asked.deadline)
            else:
                with self._embedding:
                    found = Found(Retriever(self.index, pool=size, counter=self.counter).retrieve(question))
        with self._lock:
            self._pools[key] = found
            while len(self._pools) > _POOLS:
                self._pools.popitem(last=False)
        return found

    def _known(self, asked: Asked, found: Found) -> tuple[Asked, Candidates]:
        """With what ratings say of passages, where a bandit gives that a weight."""
        if self.searching is None:
            return asked, found.pool
        selector, pool = self.searching.valued(asked.selector, found.pool)
        return replace(asked, selector=selector), pool

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
        asked, pool = self._known(asked, found)
        with held_tokens(self.pacer, asked.budget_tokens, _least(pool, asked.budget_tokens)) as held:
            asked = self._held_to(asked, held, asked.budget_tokens)
            made = asked.timed().select(pool, asked.budget_tokens, self.counter)
            held.used = made.tokens_used
        data = {**described(asked, made), **held.said, **self._dollars(made.tokens_used), **_search(found)}
        if asked.more_tokens is not None:
            data["more"] = with_more(asked, pool, made, asked.more_tokens, self.counter)
        return data

    def ask(self, asked: Asked) -> dict[str, Any]:
        """What POST /ask returns; an answer that was given before costs no tokens.

        Raises
        ------
        MioRagError
            As `_answer`.
        """
        if self.cache is None:
            return self._answer(asked)
        scope = digest_of(
            {
                "selector": asked.selector.to_dict(),
                "pool": asked.pool,
                "tokens": [asked.budget_tokens, asked.max_tokens],
                "price": None if self.rate is None else self.rate.token_price,
                "model": self._model,
                "routing": self._routing,
                "refusal": None if self._refusing is None else self._refusing.digest,
                "planning": self._planning,
            }
        )
        known = self.cache.get(asked.question, scope)
        if known is not None:
            told = {**known.answer, "question": asked.question, **self._dollars(0)}
            return {**told, "cached": known.to_dict()}
        told = self._answer(asked)
        if told["status"] == "optimal":
            passing = ("pacing", "dollars")
            self.cache.put(asked.question, scope, {k: v for k, v in told.items() if k not in passing})
        return {**told, "cached": None}

    def _answer(self, asked: Asked) -> dict[str, Any]:
        """A new answer.

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
        if self._routed is not None:
            return self._at_a_tier(self._routed, question, asked)
        if self.governed is not None:
            return self._by_policy(self.governed, question, asked)
        if self.planned is not None:
            return self._by_plan(self.planned, asked)
        allowed = context_budget(
            self.generator, question, asked.budget_tokens, max_tokens=asked.max_tokens, error=InputError
        )
        found, around = self.found(asked), self._around(question, asked.max_tokens)
        asked, pool = self._known(asked, found)
        with held_tokens(self.pacer, around + allowed, around + _least(pool, allowed)) as held:
            asked = self._held_to(asked, held, allowed, around)
            made = asked.timed().select(pool, asked.budget_tokens, self.counter)
            if made.result.x is None:
                raise InfeasibleError(made.explain())
            prompt = build_prompt(question, made.passages)
            with self._reading:
                if not made.chosen:  # without context the model would make something up, and cost tokens
                    answer = Answer("", 0, 0, 0.0, self.generator.name)
                else:
                    if self.pacer is not None:  # counts also where no answer comes
                        held.used = self.generator.prompt_tokens(prompt)
                    answer = self.generator.generate(prompt, max_tokens=asked.max_tokens)
            held.used = answer.prompt_tokens + answer.completion_tokens
        return {
            **described(asked, made),
            **held.said,
            **self._dollars(answer.prompt_tokens, answer.completion_tokens),
            **_search(found),
            **self._judged(asked.question, made, answer),
            "generator": answer.generator,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }

    def _judged(self, question: str, made: Selection, answer: Answer) -> dict[str, Any]:
        """The answer; where a refusal model judges it, with the verdict, and blank if it is refused."""
        if self._refusing is None:
            return {"answer": answer.text}
        verdict = self._refusing.judge(question, made, answer)
        said = {"said": answer.text} if verdict.refused else {}
        return {"answer": "" if verdict.refused else answer.text, "refusal": verdict.to_dict(), **said}

    def _at_a_tier(self, routed: Tiered, question: Question, asked: Asked) -> dict[str, Any]:
        """As `ask`, with tiers in the place of the budget and the longest answer that the request names."""
        timed = replace(routed.setup, selector=asked.timed())
        # The tokenizer belongs to the answer meanwhile: it counts under no lock of its own here.
        with self._embedding, self._reading, self.counter.lock:
            routed = replace(routed, setup=timed)
            found = answered(routed.attempt(question, self.generator, _MOST))
        selection, spent = found.selection, found.costs.total()
        if selection is None:
            raise InfeasibleError("no time was left to read anything: give a later deadline")
        return {
            **described(asked, selection),
            **routed.in_force(found),
            **self._dollars(spent.prompt_tokens, spent.completion_tokens),
            "answer": found.reply.answer.text,
            "generator": self.generator.name,
            "prompt_tokens": spent.prompt_tokens,
            "completion_tokens": spent.completion_tokens,
        }

    def _by_policy(self, governed: Governed, question: Question, asked: Asked) -> dict[str, Any]:
        """As `ask`, with the policy in the place of whatever the request sets."""
        with self._embedding, self._reading, self.counter.lock:
            timed, left = asked.timed(), asked.deadline - time.monotonic()  # others may have taken long
            found = governed.answer(question, timed, left)
            selection = found.selection
            if selection is None:
                selection = governed.nothing_read(question.text, timed)
        trace, spent = found.trace, found.costs.total()
        assert isinstance(trace, PolicyTrace)
        return {
            **described(asked, selection),
            "answer": found.reply.answer.text,
            "generator": self.generator.name,
            "prompt_tokens": spent.prompt_tokens,
            "completion_tokens": spent.completion_tokens,
            **told_search(trace, found.costs),
            "policy": told(trace, str(trace.settings["sha256"])),
        }

    def _by_plan(self, planned: Planned, asked: Asked) -> dict[str, Any]:
        """As `ask`, by the workflow that the planner chooses."""
        with self._embedding, self._reading, self.counter.lock:
            found = planned.answer(
                asked.question,
                asked.pool,
                asked.timed(),
                asked.budget_tokens,
                asked.max_tokens,
                asked.deadline,
            )
        said = (
            {"question": asked.question, **read_nothing(asked.budget_tokens)}
            if found.selection is None
            else described(asked, found.selection)
        )
        return {
            **said,
            **self._dollars(found.prompt_tokens, found.completion_tokens),
            "answer": found.text,
            "generator": self.generator.name,
            "prompt_tokens": found.prompt_tokens,
            "completion_tokens": found.completion_tokens,
            "plan": found.plan,
        }

    def _held_to(self, asked: Asked, held: Held, budget: int, around: int = 0) -> Asked:
        """The request with a budget, at the highest of the prices that apply to it."""
        prices = [asked.selector.token_price, 0.0 if self.rate is None else self.rate.token_price]
        if held.reservation is not None:
            budget = min(budget, held.reservation.allowed - around)
            prices.append(held.reservation.price)
        return replace(asked, budget_tokens=budget, selector=asked.selector.replace(token_price=max(prices)))

    def _dollars(self, prompt_tokens: int, completion_tokens: int = 0) -> dict[str, float]:
        return {} if self.rate is None else {"dollars": self.rate.cost(prompt_tokens, completion_tokens)}

    def _around(self, question: Question, max_tokens: int) -> int:
        """Tokens of a prompt without its passages, and of the longest answer."""
        if self.pacer is None:
            return 0
        return self.generator.prompt_tokens(build_prompt(question, [_PROBE])) + _SEAM_TOKENS + max_tokens


def _routed(index: CorpusIndex, routing: Mapping[str, Any]) -> Tiered:
    made = make("routed", Setup(ControlSettings(kinds={KEY: dict(routing)}), Retriever(index)))
    assert isinstance(made, Tiered)
    return made


def _search(found: Found) -> dict[str, Any]:
    return {} if found.said is None else {"search": found.said}


def _least(pool: Candidates, budget: int) -> int:
    """Tokens that the smallest passage takes: with fewer left a request would be answered by nothing."""
    return max(1, min([budget, *map(int, pool.tokens)]))
