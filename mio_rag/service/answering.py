"""Answers one request by a session: search, selection within the deadline, reader. Runs in worker threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

from mio_rag.allocation.money import Rate
from mio_rag.allocation.pacer import Pacer
from mio_rag.context import TokenCounter
from mio_rag.deciders.order import Order
from mio_rag.deciders.search import Search
from mio_rag.errors import InfeasibleError, InputError, MioRagError
from mio_rag.generation import Generator, build_prompt
from mio_rag.generation.protocol import content_of, context_budget
from mio_rag.learning.bandit_report import stats
from mio_rag.learning.router_model import KEY
from mio_rag.learning.strategist import Strategist, StrategyLearner
from mio_rag.policies.make import in_force, make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.pool import Candidates
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector, Units
from mio_rag.service.governed import Governed, policy_report, search_report
from mio_rag.service.requests import Asked, Held, held_tokens
from mio_rag.service.settings import Planning, Strategies
from mio_rag.session.budget import Limits
from mio_rag.session.cache import AnswerCache, digest_of
from mio_rag.session.loop import Session
from mio_rag.session.search import check_search, make_strategies
from mio_rag.session.state import Action, Result
from mio_rag.session.tools import Equipment
from mio_rag.session.trace import Outcome, Trace
from mio_rag.session.workflow import NAMED
from mio_rag.types import Answer, Passage, Question, is_text

_POOLS = 64  # cached, so that moving a slider does not search again
_SEAM_TOKENS = 8  # that a tokenizer may count more where prompt and passages meet
_PROBE = Passage(id="probe", text="x")  # so that headings and separators are counted
_MOST = 1_000_000_000  # tokens: nothing but the request and the total limits them
_STEP_SHARE = 0.7  # of the time that a request has left, after which a planner begins no step
_PLAN = Order(NAMED["plain"])


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

    Parameters as `mio_rag.service.app.create_app`. Of answers in the cache, only those whose selection is
    proven optimal are stored, so that no answer made in haste is given to somebody who has time.

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
        if refusing is not None:
            for name, given in {"router": routing, "policy": policy, "planner": planning}.items():
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
        kit = Equipment(Retriever(index, counter=self.counter), Selector())
        self._plain = Session("service", (_PLAN,), _PLAN, kit, limits=Limits(tokens=_MOST), always_asks=False)
        self._by_strategies: Session | None = None
        if strategies is not None:
            made = self._made(strategies.controller, strategies.kinds)
            chooser = _chooser(made)
            if chooser is not None:
                check_search(make_strategies(chooser.possible), Retriever(index), generator)
            self._by_strategies = replace(made, limits=Limits(tokens=_MOST))
        self.governed = None if policy is None else Governed(policy, index, generator)
        self._decided: Session | None = None
        if routing is not None:
            self._decided = self._made("routed", {KEY: dict(routing)})
        elif planning is not None and policy is None:
            self._decided = self._made("planner", planning.kinds)
        self._pools: OrderedDict[tuple[str, int, str], Result] = OrderedDict()
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

    def _made(self, name: str, kinds: Mapping[str, Any]) -> Session:
        made = make_controller(name, Setup(ControlSettings(kinds=kinds), Retriever(self.index)))
        assert isinstance(made, Session)
        return made

    def close(self) -> None:
        """Close generator, pacer, state files and models."""
        for each in (self.generator, self.pacer, self._by_strategies, self.governed, self._decided):
            if each is not None:
                each.close()

    # -- what a bandit learned

    @property
    def learns(self) -> bool:
        """Whether ratings are of use; a policy that does not learn may be replaced by one that does."""
        return self.governed is not None or self._bandit() is not None

    def _bandit(self) -> Strategist | None:
        chooser = None if self._by_strategies is None else _chooser(self._by_strategies)
        return chooser if isinstance(chooser, Strategist) else None

    def rate_answer(self, identity: str, helpful: bool) -> bool:
        """Record a rating; False if the question was rated before, `InputError` if it is not known."""
        if self.governed is not None:
            return self.governed.rate(identity, helpful)
        bandit = self._bandit()
        assert bandit is not None
        return bandit.feedback(identity, 1 if helpful else -1)

    def stats(self) -> dict[str, Any] | None:
        """What was learned, as `mio_rag.learning.bandit_report.stats`; None if nothing is learned."""
        with self._searching() as (session, _):
            chooser = _chooser(session)
            if not isinstance(chooser, Strategist):
                return None
            with chooser.settled() as learned:
                return stats(learned)

    # -- search and selection

    @contextmanager
    def _searching(self) -> Iterator[tuple[Session, str]]:
        """What searches: strategies, the policy in force, or the index alone; and a key for its pools."""
        if self.governed is None:
            yield self._by_strategies or self._plain, ""
            return
        with self.governed.using() as serving:
            if serving.chooser is None:
                yield self._plain, serving.sha256
                return
            own = serving.session
            session = Session(
                own.name,
                (_PLAN, Search(serving.chooser)),
                _PLAN,
                self._plain.kit,
                own.price,
                limits=own.limits.replace(seconds=Limits().seconds),
                account=own.account,
                learner=own.learner,
            )
            # A policy's hash does not depend on the log of its bandit, which is used here.
            yield session, f"{serving.sha256} {serving.policy.search.state or ''}"

    def _found(self, asked: Asked) -> Result:
        """The search for a question, from the cache if it was asked recently."""
        if not is_text(asked.question):
            raise InputError("the question is not valid text: send it as UTF-8")
        with self._searching() as (session, owner):
            key = (asked.question, asked.pool, owner)
            with self._lock:
                if key in self._pools:
                    self._pools.move_to_end(key)
                    return self._pools[key]
            if _chooser(session) is None or not asked.question.strip():
                pool = Retriever(self.index, pool=asked.pool, counter=self.counter).retrieve(asked.question)
                result = Result(Action("retrieve", "retrieve"), pool)
            else:
                with self._turn:
                    outcome = self._timed(session, asked).select(
                        Question("question", asked.question), self.generator, asked.budget_tokens
                    )
                result = outcome.results["retrieve"]
                if result.value is None:
                    _raise(outcome)
        with self._lock:
            self._pools[key] = result
            while len(self._pools) > _POOLS:
                self._pools.popitem(last=False)
        return result

    def _timed(self, session: Session, asked: Asked) -> Session:
        """The session with the settings of a request, and with no more time than it has left."""
        retriever = Retriever(self.index, pool=asked.pool, counter=self.counter)
        kit = replace(session.kit, retriever=retriever, selector=asked.selector, deadline=asked.ends_at())
        learner = session.learner
        if isinstance(learner, StrategyLearner):  # measured by what the request would read
            learner = replace(learner, selector=asked.selector)
        return replace(session, kit=kit, learner=learner, max_tokens=asked.max_tokens)

    def _selected(self, asked: Asked, found: Result) -> tuple[Outcome, Selection]:
        """What is read of a pool; the selection may be infeasible."""
        session = self._timed(self._plain, asked)
        outcome = session.select(Question("question", asked.question), None, asked.budget_tokens, [found])
        if outcome.selection is None:
            _raise(outcome)
        assert outcome.selection is not None
        return outcome, outcome.selection

    def select(self, asked: Asked) -> dict[str, Any]:
        """Return the response of POST /select.

        Raises `InputError` if the question is empty; `SolverError` if the solver broke; `SpentError` if no
        tokens are left.
        """
        found = self._found(asked)
        pool = _pool(found)
        with held_tokens(self.pacer, asked.budget_tokens, _least(pool, asked.budget_tokens)) as held:
            asked = self._held_to(asked, held, asked.budget_tokens)
            _, made = self._selected(asked, found)
            held.used = made.tokens_used
        data = {**described(asked, made), **held.report, **self._dollars(made.tokens_used)}
        data |= search_report(found)
        if asked.more_tokens is not None:
            data["more"] = with_more(asked, pool, made, asked.more_tokens, self.counter)
        return data

    # -- answers

    def ask(self, asked: Asked) -> dict[str, Any]:
        """Return the response of POST /ask; an answer that was given before costs no tokens."""
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
        """Return a new answer."""
        question = Question("question", asked.question)
        if self.governed is not None or self._decided is not None:
            return self._by_policy(question, asked)
        with self._turn:
            allowed = context_budget(
                self.generator, question, asked.budget_tokens, max_tokens=asked.max_tokens, error=InputError
            )
            around = self._around(question, asked.max_tokens)
        found = self._found(asked)
        least = around + _least(_pool(found), allowed)
        with held_tokens(self.pacer, around + allowed, least) as held:
            asked = self._held_to(asked, held, allowed, around)
            selected, made = self._selected(asked, found)
            if made.result.x is None:
                raise InfeasibleError(made.explain())
            session = replace(self._timed(self._plain, asked), falls_back=False)
            if held.reservation is not None:
                session = replace(session, limits=Limits(tokens=held.reservation.allowed))
            with self._turn:
                outcome = session.attempt(
                    question, self.generator, asked.budget_tokens, known=list(selected.results.values())
                )
            total = outcome.costs.total()
            used = total.prompt_tokens + total.completion_tokens
            held.used = used if used or outcome.reply is not None else None
            _raise(outcome)
        assert outcome.reply is not None
        answer = outcome.reply.answer
        return {
            **described(asked, made),
            **held.report,
            **self._dollars(answer.prompt_tokens, answer.completion_tokens),
            **search_report(found),
            **self._judged(asked.question, made, answer),
            "generator": answer.generator,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }

    def _by_policy(self, question: Question, asked: Asked) -> dict[str, Any]:
        """As `_answer`; a policy, a router or a planner decides in place of the request's settings."""
        with self._turn:
            if self.governed is not None:
                outcome = self.governed.attempt(question, asked)
                _raise(outcome)
                report = policy_report(outcome)
            else:
                outcome, report = self._by_decided(question, asked)
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

    def _by_decided(self, question: Question, asked: Asked) -> tuple[Outcome, dict[str, Any]]:
        """Answer at the tier of a router, or by the workflow of a planner."""
        session = self._decided
        assert session is not None
        kit = replace(session.kit, selector=asked.selector, deadline=asked.ends_at())
        if session.name == "routed":
            outcome = replace(session, kit=kit).attempt(question, self.generator, _MOST)
            _raise(outcome)
            if outcome.selection is None:
                raise InfeasibleError("no time was left to read anything: give a later deadline")
            return outcome, in_force(outcome, asked.selector)
        left, limits = max(0.05, _STEP_SHARE * asked.seconds_left()), Limits()
        planned = replace(
            session,
            kit=replace(kit, retriever=Retriever(self.index, pool=asked.pool, counter=self.generator)),
            limits=limits.replace(seconds=min(limits.seconds, left)),
            max_tokens=asked.max_tokens,
        )
        outcome = planned.attempt(question, self.generator, asked.budget_tokens)
        _raise(outcome)
        return outcome, {"plan": _plan(outcome.trace)}

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


def _chooser(session: Session) -> Any:
    """What chooses strategies in a session; None: it searches by the question alone."""
    return next((one.chooser for one in session.deciders if isinstance(one, Search)), None)


def _pool(found: Result) -> Candidates:
    assert isinstance(found.value, Candidates)
    return found.value


def _raise(outcome: Outcome) -> None:
    """Raise the error of an outcome, or the unforeseen one behind it: its text may tell of this machine."""
    broken = [r.error for r in outcome.results.values() if r.error and not isinstance(r.error, MioRagError)]
    if outcome.error is not None and broken:
        raise broken[-1]
    outcome.check()


def _least(pool: Candidates, budget: int) -> int:
    """Return the tokens of the smallest passage: with fewer left, nothing could be read."""
    return max(1, min([budget, *map(int, pool.tokens)]))


# -- what responses report --------------------------------------------------------------------------------


def _plan(trace: Trace) -> dict[str, Any]:
    costs = trace.by_step()
    return {
        "workflow": str(trace.workflow.get("name", "")),
        "worth": dict(trace.scores),
        "fallback": trace.fallback,
        "steps": [
            {
                "node": step.id,
                "executor": step.do,
                "gave": step.output,
                "note": step.note,
                "tokens": costs[step.id].prompt_tokens + costs[step.id].completion_tokens,
                "dropped": step.dropped,
            }
            for step in trace.steps
        ],
    }


def described(asked: Asked, made: Selection) -> dict[str, Any]:
    """Return a selection as plain data, with the price that a passage had."""
    return {
        "question": asked.question,
        "redundancy_weight": asked.selector.redundancy_weight,
        "passage_penalty": _decided(asked.selector, made).penalty(made.pool, made.budget_tokens),
        **made.details(),
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
