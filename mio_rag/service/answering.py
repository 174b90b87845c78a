"""Answers one request: pool, selection within the deadline, reader. Runs in worker threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

from mio_rag.allocation.money import Rate
from mio_rag.allocation.pacer import Pacer
from mio_rag.context import TokenCounter
from mio_rag.errors import InfeasibleError, InputError, MioRagError
from mio_rag.generation import Generator, build_prompt
from mio_rag.generation.base import allowance, charged, most_tokens
from mio_rag.generation.protocol import content_of, context_budget
from mio_rag.pool import Candidates
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector, Units
from mio_rag.service.controlled import Controlled, Plans, Tiers
from mio_rag.service.governed import Governed
from mio_rag.service.requests import Asked, Held, held_tokens
from mio_rag.service.searching import Found, searching_of
from mio_rag.service.settings import Planning, Strategies
from mio_rag.session.cache import AnswerCache, digest_of
from mio_rag.types import Answer, Passage, Question, is_text

_POOLS = 64  # cached, so that moving a slider does not retrieve again
_SEAM_TOKENS = 8  # that a tokenizer may count more where prompt and passages meet
_PROBE = Passage(id="probe", text="x")  # so that headings and separators are counted


class _OneAtATime:
    """A counter for several threads, of a generator that may not be safe in them."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter, self.lock = counter, threading.RLock()
        self.name = counter.name

    def count(self, texts: Sequence[str]) -> list[int]:
        """As the counter counts."""
        with self.lock:
            return self._counter.count(texts)


class Answering:
    """Answers requests over an index with a generator; caches the pools of recent questions.

    Requests run at the same time. A generator that states its `concurrency` is asked by all of them; another
    one gets one request at a time.

    Raises `InputError` if the router, the planner, or what the policy has learned is for another embedder
    than the index has, the refusal model for another embedder or reader, or two of them exclude each other.
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
        if cache is not None and policy is not None:
            raise InputError("a cache and a policy exclude each other: leave one of them out")
        deciding = {"router": routing, "policy": policy, "planner": planning}
        if refusing is not None:
            for name, given in deciding.items():
                if given is not None:
                    raise InputError(
                        f"a refusal model and a {name} exclude each other: leave one of them out"
                    )
            refusing.check_fits(index.embedder.fingerprint, generator.name)
        self.index, self.generator, self.pacer, self.rate = index, generator, pacer, rate
        self.cache, self._refusing = cache, refusing
        self.counter: TokenCounter = generator
        self._turn: Any = nullcontext()
        if not hasattr(generator, "concurrency"):
            self.counter = counter = _OneAtATime(generator)
            self._turn = counter.lock
        self.governed = None if policy is None else Governed(policy, index, generator)
        self._controlled: Controlled | None = self.governed
        if routing is not None:
            self._controlled = Tiers(routing, index, generator)
        elif policy is None and planning is not None:
            self._controlled = Plans(planning, index, generator)
        made = None if strategies is None else searching_of(strategies, index, generator)
        self.searching = made
        self.learning = made if self.governed is None else self.governed
        self._pools: OrderedDict[tuple[str, int, str], Found] = OrderedDict()
        self._lock = threading.Lock()
        # Parts of the scope of a stored answer; files of routers and planners are named by their hash.
        self._scope = {
            "price": None if rate is None else rate.token_price,
            "model": "" if cache is None else content_of(generator),
            "routing": None if routing is None else dict(routing),
            "refusal": None if refusing is None else refusing.digest,
            "planning": None if planning is None else planning.kinds,
        }
        # What decides how much is read, or judges it, was measured with whole passages.
        alone = all(each is None for each in (pacer, routing, strategies, policy, refusing, planning))
        #: Default of `units`.
        self.units: Literal["passages", "auto"] = "auto" if alone else "passages"

    def close(self) -> None:
        """Close generator, pacer, state files and models."""
        for each in (self.generator, self.pacer, self.searching, self._controlled):
            if each is not None:
                each.close()

    def _found(self, asked: Asked) -> Found:
        """Return the candidates of a question, from the cache if it was asked recently."""
        question, size = asked.question, asked.pool
        if not is_text(question):
            raise InputError("the question is not valid text: send it as UTF-8")
        governed = self.governed
        with nullcontext((self.searching, "")) if governed is None else governed.searching() as (by, owner):
            key = (question, size, owner)
            with self._lock:
                if key in self._pools:
                    self._pools.move_to_end(key)
                    return self._pools[key]
            if by is not None and question.strip():
                with self._turn:
                    found = by.find(question, size, asked.selector, asked.budget_tokens, asked.deadline)
            else:
                found = Found(Retriever(self.index, pool=size, counter=self.counter).retrieve(question))
        with self._lock:
            self._pools[key] = found
            while len(self._pools) > _POOLS:
                self._pools.popitem(last=False)
        return found

    def select(self, asked: Asked) -> dict[str, Any]:
        """Return the response of POST /select.

        Raises
        ------
        InputError
            If the question is empty.
        SolverError
            If the solver broke.
        SpentError
            If no tokens are left.
        """
        found = self._found(asked)
        pool = found.pool
        with held_tokens(self.pacer, asked.budget_tokens, _least(pool, asked.budget_tokens)) as held:
            asked = self._held_to(asked, held, asked.budget_tokens)
            made = asked.timed().select(pool, asked.budget_tokens, self.counter)
            held.used = made.tokens_used
        data = {**described(asked, made), **held.report, **self._dollars(made.tokens_used), **found.report}
        if asked.more_tokens is not None:
            data["more"] = with_more(asked, pool, made, asked.more_tokens, self.counter)
        return data

    def ask(self, asked: Asked) -> dict[str, Any]:
        """Return the response of POST /ask; an answer that was given before costs no tokens.

        Raises `MioRagError` as `_answer`.
        """
        if self.cache is None:
            return self._answer(asked)
        scope = digest_of(
            {
                "selector": asked.selector.to_dict(),
                "pool": asked.pool,
                "tokens": [asked.budget_tokens, asked.max_tokens],
                **self._scope,
            }
        )
        hit = self.cache.get(asked.question, scope)
        if hit is not None:
            return {**hit.answer, "question": asked.question, **self._dollars(0), "cached": hit.to_dict()}
        data = self._answer(asked)
        if data["status"] == "optimal" and self.pacer is None:  # not what a total's price or rest has shaped
            passing = ("pacing", "dollars")
            self.cache.put(asked.question, scope, {k: v for k, v in data.items() if k not in passing})
        return {**data, "cached": None}

    def _answer(self, asked: Asked) -> dict[str, Any]:
        """Return a new answer.

        Raises `InfeasibleError` if no selection satisfies the constraints; `GenerationError` if the generator
        fails; `SpentError` if no tokens are left for a passage, the question and its answer.
        """
        question = Question("question", asked.question)
        if self._controlled is not None:
            return self._by_controller(self._controlled, question, asked)
        with self._turn:
            allowed = context_budget(
                self.generator, question, asked.budget_tokens, max_tokens=asked.max_tokens, error=InputError
            )
            around = self._around(question, asked.max_tokens)
        found = self._found(asked)
        pool = found.pool
        with held_tokens(self.pacer, around + allowed, around + _least(pool, allowed)) as held:
            asked = self._held_to(asked, held, allowed, around)
            made = asked.timed().select(pool, asked.budget_tokens, self.counter)
            if made.result.x is None:
                raise InfeasibleError(made.explain())
            prompt = build_prompt(question, made.passages)
            if not made.chosen:  # without context the model would make something up, and cost tokens
                answer = Answer("", 0, 0, 0.0, self.generator.name)
            else:
                with self._turn:
                    try:
                        with allowance(held.again):
                            answer = self.generator.generate(prompt, max_tokens=asked.max_tokens)
                    except MioRagError as error:  # what it may have cost counts also without an answer
                        lost = charged(error, self.generator, prompt, asked.max_tokens)
                        if lost is not None:
                            held.used = lost.prompt_tokens + lost.completion_tokens
                        raise
                    except Exception:  # unforeseen: it may have been charged
                        held.used = most_tokens(self.generator, prompt) + asked.max_tokens
                        raise
            held.used = answer.prompt_tokens + answer.completion_tokens
        return {
            **described(asked, made),
            **held.report,
            **self._dollars(answer.prompt_tokens, answer.completion_tokens),
            **found.report,
            **self._judged(asked.question, made, answer),
            "generator": answer.generator,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }

    def _by_controller(self, controlled: Controlled, question: Question, asked: Asked) -> dict[str, Any]:
        """As `_answer`; a router, a policy or a planner decides in place of the request's settings."""
        with self._turn:
            outcome, report = controlled.answer(question, asked)
        assert outcome.reply is not None
        total, selection = outcome.costs.total(), outcome.selection
        return {
            **(nothing_read(asked) if selection is None else described(asked, selection)),
            **self._dollars(total.prompt_tokens, total.completion_tokens),
            "answer": outcome.reply.answer.text,
            "generator": self.generator.name,
            "prompt_tokens": total.prompt_tokens,
            "completion_tokens": total.completion_tokens,
            **report,
        }

    def _judged(self, question: str, made: Selection, answer: Answer) -> dict[str, Any]:
        """Return the answer, blank if a refusal model refuses it, with the verdict."""
        if self._refusing is None:
            return {"answer": answer.text}
        verdict = self._refusing.judge(question, made, answer)
        reply = {"said": answer.text} if verdict.refused else {}
        return {"answer": "" if verdict.refused else answer.text, "refusal": verdict.to_dict(), **reply}

    def _held_to(self, asked: Asked, held: Held, budget: int, around: int = 0) -> Asked:
        """Return the request with a budget, at the highest of the prices that apply to it."""
        prices = [asked.selector.token_price, 0.0 if self.rate is None else self.rate.token_price]
        if held.reservation is not None:
            budget = min(budget, held.reservation.allowed - around)
            prices.append(held.reservation.price)
        return replace(asked, budget_tokens=budget, selector=asked.selector.replace(token_price=max(prices)))

    def _dollars(self, prompt_tokens: int, completion_tokens: int = 0) -> dict[str, float]:
        return {} if self.rate is None else {"dollars": self.rate.cost(prompt_tokens, completion_tokens)}

    def _around(self, question: Question, max_tokens: int) -> int:
        """Return the tokens of a prompt without its passages, and of the longest answer."""
        if self.pacer is None:
            return 0
        return self.generator.prompt_tokens(build_prompt(question, [_PROBE])) + _SEAM_TOKENS + max_tokens


def _least(pool: Candidates, budget: int) -> int:
    """Return the tokens of the smallest passage: with fewer left, nothing could be read."""
    return max(1, min([budget, *map(int, pool.tokens)]))


# -- what responses report of a selection -----------------------------------------------------------------


def described(asked: Asked, made: Selection) -> dict[str, Any]:
    """Return a selection as plain data, with the price that a passage had."""
    return {
        "question": asked.question,
        "redundancy_weight": asked.selector.redundancy_weight,
        "passage_penalty": _decided(asked.selector, made).penalty(made.pool, made.budget_tokens),
        **made.to_dict(),
    }


def nothing_read(asked: Asked) -> dict[str, Any]:
    """Return the same where a workflow answered from memory: no program was solved."""
    why = "the workflow searches for nothing"
    unknown = (
        *("objective", "bound", "gap", "limit", "nodes", "worst_case", "conflict", "budget_tokens"),
        *("certified_tokens", "certified_budget", "redundancy_weight", "passage_penalty"),
    )
    return {
        "question": asked.question,
        "status": "none",
        **dict.fromkeys(unknown),
        "solver": "none",
        "version": "",
        "wall_seconds": 0.0,
        "message": "",
        "unit": "passage",
        "tokens_used": 0,
        "selected_ids": [],
        "relevance_source": {"kind": "given", "why": why},
        "notes": [f"Nothing was read: {why}."],
        "passages": [],
        "read": [],
    }


def with_more(
    asked: Asked, pool: Candidates, now: Selection, more_tokens: int, counter: TokenCounter
) -> dict[str, Any]:
    """Return what a larger budget would select of the units selected now, and bounds on its gain."""
    # A price of a passage that adapts to the budget would make two programs of it.
    decided = _decided(asked.selector, now)
    penalty = decided.penalty(now.pool, now.budget_tokens)
    priced = asked.timed().replace(passage_penalty=penalty, units=decided.units)
    then = priced.choose(pool, asked.budget_tokens + more_tokens, counter)
    before, after = now.result, then.result
    gain = low = high = None
    if before.objective is not None and after.objective is not None:
        gain = after.objective - before.objective
        low = None if before.bound is None else max(0.0, after.objective - before.bound)
        high = None if after.bound is None else after.bound - before.objective
    ids = [then.formulation.candidates.ids[i] for i in then.chosen]
    here = [now.candidates.ids[i] for i in now.chosen]
    units: Units = decided.units
    if asked.selector.units == "auto":  # passages and their sentences have different values
        units = asked.timed().choose(pool, then.budget_tokens, counter).formulation.settings.units
    return {
        "more_tokens": more_tokens,
        "unit_then": "sentence" if units == "sentences" else "passage",
        "tokens_used": then.used,
        "gain": gain,
        "low": low,
        "high": high,
        "added": [name for name in ids if name not in here],
        "removed": [name for name in here if name not in ids],
        "certified": before.is_optimal and after.is_optimal,
    }


def _decided(selector: Selector, made: Selection) -> Selector:
    """Return the settings with the units that were selected, if they leave it open."""
    return selector.replace(units="sentences" if made.unit == "sentence" else "passages")
