"""Answers one request by a session: search, selection within the deadline, reader. Runs in worker threads."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal

from mio_rag.allocation.money import Rate
from mio_rag.context import TokenCounter
from mio_rag.deciders.steps import Order, Price, Search
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InfeasibleError, InputError, MioRagError
from mio_rag.filters import Filter
from mio_rag.generation import Generator
from mio_rag.generation.base import Alone, Streamed
from mio_rag.generation.protocol import content_of, context_budget
from mio_rag.learning.bandit_report import stats
from mio_rag.learning.strategist import Strategist, StrategyLearner
from mio_rag.policy import PRESETS as POLICIES
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.notes import noted
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import PRESETS, Selector
from mio_rag.service.documents import Documents
from mio_rag.service.governed import Governed, Ratings, Serving, policy_report, search_report
from mio_rag.service.keys import FREE, Caller
from mio_rag.service.settings import Split
from mio_rag.session.cache import AnswerCache, digest_of
from mio_rag.session.loop import Session
from mio_rag.session.state import Decider, Result
from mio_rag.session.trace import Outcome
from mio_rag.session.workflow import NAMED
from mio_rag.solvers.result import SolveOptions
from mio_rag.types import Question, is_text

_POOLS = 64  # cached, so that moving a slider does not search again
_SPOKEN = {"extractive": "extract"}  # name of a reader -> as --model has it; requests may say either
_MOST = 1_000_000_000  # tokens: only the request and the key limit them
_LEAST_SECONDS = 0.01  # for a program, even past the deadline: enough for a selection and a bound
_RESERVED = 0.1  # share of the remaining time that is kept for explanations and the response
_PLAN = Order(NAMED["plain"])
_SELECTOR = (
    *("redundancy_weight", "passage_penalty", "radius", "max_passages", "max_per_source", "merge", "units"),
)
_REQUEST = ("budget_tokens", "pool", "more_tokens", "max_tokens", "model", "why", "proof")


class UnknownModelError(InputError):
    """A request names a model that is not served."""


@dataclass(frozen=True)
class Asked:
    """A checked request.

    deadline: by `time.monotonic`.
    changes: settings of the selection program that the request brings.
    budget_tokens, pool, max_tokens: None: as the policy says.
    where: holds next to the filter of the caller's key.
    wrapped: what the reader is asked through, such as a conversation.
    tell: called with each piece of the answer as it is written.
    """

    question: Question
    deadline: float
    changes: Mapping[str, Any] = field(default_factory=dict)
    budget_tokens: int | None = None
    pool: int | None = None
    token_price: float = 0.0
    more_tokens: int | None = None
    max_tokens: int | None = None
    where: Filter = field(default_factory=Filter)
    model: str = ""
    why: bool = False
    proof: bool = False
    caller: Caller = FREE
    wrapped: Callable[[Generator], Generator] | None = None
    tell: Callable[[str], None] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], began: float, caller: Caller = FREE, **more: Any) -> Asked:
        """Return the request of a checked body; `InputError` if the question is empty."""
        text = given["question"]
        if not is_text(text):
            raise InputError("the question is not valid text: send it as UTF-8")
        if not text.strip():
            raise InputError("the question is empty: send a text")
        own = {name: given[name] for name in _SELECTOR if given.get(name) is not None}
        return cls(
            Question("question", text),
            began + given["deadline_seconds"],
            {**PRESETS[given["preset"]], **own},
            token_price=given["token_price"] or 0.0,
            where=Filter(given.get("where")),
            caller=caller,
            **{name: given[name] for name in _REQUEST if given.get(name) is not None},
            **more,
        )

    def ends_at(self) -> float:
        """Return when programs must end, by `time.monotonic`: the rest is for the response."""
        return self.deadline - _RESERVED * (self.deadline - time.monotonic())


class Answering:
    """Answers requests over documents with one or more readers; caches the pools of recent questions.

    Requests run at the same time. A generator that states its `concurrency` is asked by all of them; another
    one gets one request at a time. Parameters as `mio_rag.service.app.create_app`. Only answers whose
    selection is proven optimal are stored: an answer made in haste is not given to a request with more time.

    Raises `InputError` if the policy, the refusal model or what was learned is for another embedder or
    reader, or two of them exclude each other.
    """

    def __init__(
        self,
        documents: Documents,
        readers: Mapping[str, Generator],
        policy: str | None = None,
        rates: Mapping[str, Rate] | None = None,
        cache: AnswerCache | None = None,
        refusing: Refusal | None = None,
        split: Split | None = None,
    ) -> None:
        for name, given in {"cache": cache, "refusal model": refusing}.items():
            if given is not None and (policy is not None or split is not None):
                raise InputError(f"a {name} and a policy exclude each other: leave one of them out")
        self.documents, self.rates, self._refusing = documents, dict(rates or {}), refusing
        self.readers = {
            name: one if hasattr(one, "concurrency") else Alone(one) for name, one in readers.items()
        }
        index = documents.index()
        if refusing is not None:
            for reader in self.readers.values():
                refusing.check_fits(index.embedder.fingerprint, reader.name)
        self.policy = policy or DEFAULTS.policy
        self._governed = {self.policy: Governed(self.policy, index)}
        self.ratings = None if split is None else Ratings(split, self.policy)
        if split is not None:
            self._governed[split.policy] = Governed(split.policy, index)
        self._cache = None if cache is None else (index, cache)  # of these documents
        self._pools: OrderedDict[tuple[Any, ...], tuple[CorpusIndex, Result]] = OrderedDict()
        self._lock = Lock()

    @property
    def units(self) -> Literal["passages", "auto"]:
        """What is selected where neither request nor policy says it: a refusal model judges passages."""
        return "auto" if self._refusing is None else "passages"

    def close(self) -> None:
        """Close readers, state files and models."""
        for reader in self.readers.values():
            reader.close()
        for governed in self._governed.values():
            governed.close()

    # -- models: a reader, by a policy

    def models(self) -> list[str]:
        """Return the names that `model` of a request may have, the default first.

        Presets are offered where the operator has set no policy: its limits must not be evaded.
        """
        return list({chosen: name for name, chosen in reversed(self._models().items())}.values())[::-1]

    def _models(self) -> dict[str, tuple[str, str]]:
        """Name of a model -> policy and reader; the extractive reader has two names."""
        others = [name for name in POLICIES if name != self.policy] if self.policy == DEFAULTS.policy else []
        return {
            name if policy == self.policy else f"{policy}/{name}": (policy, reader)
            for policy in (self.policy, *others)
            for reader in self.readers
            for name in dict.fromkeys((_SPOKEN.get(reader, reader), reader))
        }

    def _chosen(self, model: str, policy: str | None = None) -> tuple[Governed, str]:
        """Return policy and reader of the name of a model; policy: instead of the usual one."""
        known = self._models()
        if model and model not in known:
            raise UnknownModelError(f"the model '{model}' is unknown: choose {', '.join(self.models())}")
        own, reader = known[model] if model else (self.policy, next(iter(self.readers)))
        policy = policy if policy is not None and own == self.policy else own
        with self._lock:
            if policy not in self._governed:
                self._governed[policy] = Governed(policy, self.documents.index())
            return self._governed[policy], reader

    def problems(self, body: Mapping[str, Any], caller: Caller) -> list[str]:
        """Return what is wrong with the filter and the model of a request that does not fit otherwise."""
        found: list[str] = []
        for name, kind, look in (
            ("where", (str, list, dict), lambda one: self.documents.index(Filter(one), caller.where)),
            ("model", str, self._chosen),
        ):
            try:
                if isinstance(body.get(name), kind):
                    look(body[name])
            except InputError as error:
                found += error.problems
        return found

    def rate(self, identity: str, helpful: bool) -> bool:
        """Record a rating of an answer, or of a search; False if it was rated before.

        Raises as `Governed.rate`.
        """
        known = None if self.ratings is None else self.ratings.rate(identity, helpful)
        return self.governed().rate(identity, helpful) if known is None else known

    def governed(self) -> Governed:
        """Return the policy that serves where a request names none."""
        return self._governed[self.policy]

    # -- what a bandit learned

    def stats(self) -> dict[str, Any] | None:
        """What was learned, as `mio_rag.learning.bandit_report.stats`; None if nothing is learned."""
        with self.governed().using() as serving:
            if not isinstance(serving.chooser, Strategist):
                return None
            with serving.chooser.settled() as learned:
                return stats(learned)

    # -- sessions

    def _session(
        self, serving: Serving, asked: Asked, reader: Generator, rate: Rate | None
    ) -> tuple[Session, list[str]]:
        """The session of a policy for one request, and what lowered its budget."""
        own = serving.session
        retriever = copy(own.kit.retriever)
        assert retriever is not None
        retriever.index = index = self.documents.index(asked.where, asked.caller.where)
        retriever.pool = asked.pool or retriever.pool
        retriever.link_hops = retriever.link_hops if index.links is not None else 0
        retriever.counter = reader
        price = max(own.price, asked.token_price, 0.0 if rate is None else rate.token_price)
        given = {"units": self.units, **asked.changes} if self._refusing is not None else asked.changes
        program = serving.policy.selector(price, Selector(options=SolveOptions(time_limit_seconds=None)))
        program = program.replace(**given) if given else program
        learner = own.learner
        if isinstance(learner, StrategyLearner):  # measured by what the request would read
            learner = replace(learner, selector=program)
        seconds = max(_LEAST_SECONDS, asked.deadline - time.monotonic())
        limits = own.limits.replace(seconds=min(own.limits.seconds, seconds))
        budget = min(filter(None, (own.budget, asked.budget_tokens)))
        longest = min(filter(None, (own.max_tokens, asked.max_tokens)))
        if serving.is_default:  # only the request and the limits of the service bound it
            limits = own.limits.replace(tokens=_MOST)
            budget, longest = asked.budget_tokens or budget, asked.max_tokens or longest
        share = asked.caller.share()
        lowered = [f"the policy '{serving.policy.name}' allows no more"] * (
            budget < (asked.budget_tokens or 0)
        )
        lowered += [_SHRUNK] * (share < 1)
        session = replace(
            own,
            kit=replace(own.kit, retriever=retriever, selector=program, deadline=asked.ends_at()),
            price=price,
            priced=lambda selector, price: program.replace(token_price=max(price, program.token_price)),
            limits=limits,
            budget=max(1, int(budget * share)),
            max_tokens=longest,
            learner=learner,
            falls_back=own.falls_back and own.always_asks and asked.tell is None,
        )
        return session, lowered

    def _known(self, key: tuple[Any, ...], session: Session) -> list[Result]:
        """What was found for a question, for the documents as they are."""
        with self._lock:
            of, found = self._pools.get(key, (None, None))
            if found is None or of is not _index(session):
                return []
            self._pools.move_to_end(key)
            return [found]

    def _keep(self, key: tuple[Any, ...], session: Session, outcome: Outcome) -> None:
        if (found := outcome.results.get("retrieve")) is not None:
            with self._lock:
                self._pools[key] = _index(session), found
                while len(self._pools) > _POOLS:
                    self._pools.popitem(last=False)

    # -- selections

    def select(self, asked: Asked) -> dict[str, Any]:
        """Return the response of POST /select.

        Raises `SolverError` if the solver broke; `SpentError` if no tokens are left.
        """
        governed, name = self._chosen(asked.model)
        reader, rate = self.readers[name], self.rates.get(name)
        with governed.using() as serving:
            session, lowered = self._session(serving, asked, reader, rate)
            chooser = serving.chooser
            search: list[Decider] = [] if chooser is None else [Search(chooser)]
            key = (asked.question.text, session.kit.retriever.pool, serving.identity, name)  # type: ignore[union-attr]
            known = self._known(key, session)
            session = replace(session, deciders=(_PLAN, *search, Price()), plan=_PLAN)
            if chooser is None or known:  # nothing is asked, and the question is learned from once
                session = replace(session, account=None, learner=None)
            budget = session.budget or 1
            into = budget + (0 if chooser is None or known else session.limits.tokens)
            held = asked.caller.reserve((into, 0), asked.caller.needed(budget), rate)
            session, lowered = _within(session, held.allowed), lowered + [_SHRUNK] * (held.allowed < budget)
            budget = min(budget, held.allowed)
            outcome = session.select(asked.question, reader, budget, known)
            made, total = outcome.selection, outcome.costs.total()
            read = 0 if made is None else made.tokens_used
            held.settle(read + total.prompt_tokens + total.completion_tokens, _cost(rate, total))
            if made is None:
                _raise(outcome)
            assert made is not None
            self._keep(key, session, outcome)
            data = _shown(asked, made, session, lowered) | search_report(outcome)
            if rate is not None:
                data["dollars"] = rate.cost(made.tokens_used)
            if asked.more_tokens is not None:
                data["more"] = with_more(asked, session.kit.selector, budget, made, reader)
        return data

    # -- answers

    def ask(self, asked: Asked) -> dict[str, Any]:
        """Return the response of POST /ask; an answer that was given before costs no tokens."""
        if self._cache is None or asked.wrapped is not None:
            return self._answer(asked)
        governed, name = self._chosen(asked.model)
        rate, index = self.rates.get(name), self.documents.index()
        of, cache = self._cache  # requests run at the same time: each keeps the answers of its documents
        if of is not index:
            cache = AnswerCache.of(cache.path, index, cache.settings)
            self._cache = index, cache
        question = asked.question.text
        scope = digest_of(
            {
                "program": asked.changes,
                "shown": [asked.why, asked.proof],
                "numbers": [asked.pool, asked.budget_tokens, asked.max_tokens, asked.token_price],
                "where": (asked.caller.where & asked.where).to_dict(),
                "policy": governed.state()["sha256"],
                "price": None if rate is None else rate.token_price,
                "model": content_of(self.readers[name]),
                "refusal": None if self._refusing is None else self._refusing.digest,
            }
        )
        if (hit := cache.get(question, scope)) is not None:
            usage = {**hit.answer["usage"], **({} if rate is None else {"dollars": 0.0})}
            return {**hit.answer, "question": question, "usage": usage, "cached": hit.to_dict()}
        data = self._answer(asked)
        if data["status"] == "optimal" and asked.caller.share() == 1:  # not what a budget has shaped
            cache.put(question, scope, data)
        return {**data, "cached": None}

    def _answer(self, asked: Asked) -> dict[str, Any]:
        """Return a new answer."""
        question = asked.question
        drawn = None if self.ratings is None else self.ratings.draw()
        governed, name = self._chosen(asked.model, drawn)
        reader, rate = self.readers[name], self.rates.get(name)
        if asked.wrapped is not None:
            reader = asked.wrapped(reader)
        with governed.using() as serving:
            session, lowered = self._session(serving, asked, reader, rate)
            if asked.tell is not None and not session.always_asks and self._refusing is None:
                reader = Streamed(reader, asked.tell)
            most = session.budget or 1
            allowed = context_budget(reader, question, most, max_tokens=session.max_tokens, error=InputError)
            lowered += [f"the window of {reader.name} leaves no more"] * (allowed < most)
            session = replace(session, budget=allowed)
            key = (question.text, session.kit.retriever.pool, serving.identity, name)  # type: ignore[union-attr]
            known = self._known(key, session) if serving.is_default else []
            around = (session.least_tokens(question, reader) or 1) - 1
            least, limit = around + 1 + asked.caller.needed(allowed), session.limits.tokens
            held = asked.caller.reserve(session.most_tokens(question, reader), least, rate, limit)
            lowered += [_SHRUNK] * (held.allowed < around + allowed)
            outcome = _within(session, held.allowed).attempt(question, reader, allowed, known=known)
            total = outcome.costs.total()
            held.settle(total.prompt_tokens + total.completion_tokens, _cost(rate, total))
            selection = outcome.selection
            if selection is not None and selection.result.x is None:
                raise InfeasibleError(selection.explain())
            _raise(outcome)
            if serving.is_default:
                self._keep(key, session, outcome)
        assert outcome.reply is not None
        answer = outcome.reply.answer
        usage: dict[str, Any] = {
            "prompt_tokens": total.prompt_tokens,
            "completion_tokens": total.completion_tokens,
            "seconds": outcome.trace.seconds,
        }
        if rate is not None:
            usage["dollars"] = _cost(rate, total)
        if answer.estimated:
            usage["estimated"] = True
        if selection is not None:
            data = _shown(asked, selection, session, lowered)
        else:
            why = next(filter(None, (one.dropped for one in outcome.results.values())), _SEARCHES_NOT)
            note = {"code": "nothing_read", "text": f"Nothing was read: {why}."}
            data = dict(_NOTHING_READ, question=question.text, notes=[note])
        data["answer"] = answer.text
        data["citations"] = [] if selection is None else selection.cited(answer.text)
        if self._refusing is not None and selection is not None:
            verdict = self._refusing.judge(question.text, selection, answer)
            data["refusal"] = verdict.to_dict()
            if verdict.refused:
                data |= {"said": answer.text, "answer": "", "citations": []}
        data |= {"model": answer.generator or reader.name, "usage": usage}
        if self.ratings is not None and drawn is not None and governed is self._governed[drawn]:
            data["split"] = self.ratings.answered(drawn)
        return data if serving.is_default else data | policy_report(outcome)


def _index(session: Session) -> CorpusIndex:
    assert session.kit.retriever is not None
    return session.kit.retriever.index


def _within(session: Session, tokens: int) -> Session:
    """The session with no more tokens than are reserved."""
    limits = session.limits
    return session if tokens >= limits.tokens else replace(session, limits=limits.replace(tokens=tokens))


def _raise(outcome: Outcome) -> None:
    """Raise the error of an outcome; an unforeseen one behind it first, then one of search or selection."""
    if outcome.error is not None:
        behind = [r.error for r in outcome.results.values() if r.error is not None and not r.failed]
        unforeseen = [error for error in behind if not isinstance(error, MioRagError)]
        raise next(iter([*unforeseen, *behind]), outcome.error)


def _cost(rate: Rate | None, total: Any) -> float:
    return 0.0 if rate is None else rate.cost(total.prompt_tokens, total.completion_tokens)


def _shown(asked: Asked, made: Selection, session: Session, lowered: Sequence[str]) -> dict[str, Any]:
    index = _index(session)
    data = noted(made, index).to_dict(question=asked.question.text, why=asked.why, proof=asked.proof)
    if lowered:
        text = f"At most {data['budget']} tokens were read: {'; '.join(dict.fromkeys(lowered))}."
        data["notes"].append({"code": "budget_lowered", "text": text})
    return data


#: Where a workflow answered from memory: no program was solved.
_NOTHING_READ = {
    "version": 1, "question": "", "context": "", "tokens": 0, "budget": None, "counter": "given", "parts": [],
    "read": [], "answerable": None, "units": "passages", "method": None, "status": "none", "gap": None,
    "seconds": 0.0, "left_out": 0,
    "notes": [],
}  # fmt: skip
_SEARCHES_NOT = "the workflow searches for nothing"
_SHRUNK = "the budget of the key is running out"


def with_more(
    asked: Asked, program: Selector, budget: int, now: Selection, counter: TokenCounter
) -> dict[str, Any]:
    """Return what a larger budget would select of the units selected now, and bounds on its gain."""
    decided = program.replace(units="sentences" if now.unit == "sentence" else "passages")
    left = max(_LEAST_SECONDS, asked.ends_at() - time.monotonic())
    timed = program.replace(options=replace(program.options, time_limit_seconds=left))
    # A price of a passage that adapts to the budget would make two programs of it.
    fixed = timed.replace(passage_penalty=decided.penalty(now.pool, now.budget_tokens), units=decided.units)
    then = fixed.choose(now.pool, budget + (asked.more_tokens or 0), counter)
    before, after = now.result, then.result
    gain = low = high = None
    if before.objective is not None and after.objective is not None:
        gain = after.objective - before.objective
        low = None if before.bound is None else max(0.0, after.objective - before.bound)
        high = None if after.bound is None else after.bound - before.objective
    ids = [then.formulation.candidates.ids[i] for i in then.chosen]
    here = [now.candidates.ids[i] for i in now.chosen]
    units = decided.units
    if program.units == "auto":  # passages and their sentences have different values
        units = timed.choose(now.pool, then.budget_tokens, counter).formulation.settings.units
    return {
        "more_tokens": asked.more_tokens,
        "unit_then": "sentence" if units == "sentences" else "passage",
        "tokens_used": then.used,
        "gain": gain,
        "low": low,
        "high": high,
        "added": [name for name in ids if name not in here],
        "removed": [name for name in here if name not in ids],
        "certified": before.is_optimal and after.is_optimal,
    }
