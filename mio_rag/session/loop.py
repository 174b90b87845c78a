"""The loop: decide, act, record, until nothing is proposed and nothing runs; then conclude."""

from __future__ import annotations

import queue
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mio_rag.errors import InfeasibleError, InputError, MioRagError, Notice
from mio_rag.generation import Generator
from mio_rag.generation.base import tokens_around
from mio_rag.generation.protocol import CHOICE_TOKENS, window_room
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.session.budget import Budget, Call, Costs, LimitReached, Limits, Models, Replies, Reply, Spent
from mio_rag.session.state import TYPES, Action, Decider, Fact, Learner, Result, State, Value
from mio_rag.session.tools import Equipment, Job, Nothing, Tool, asks, find_tool
from mio_rag.session.trace import Outcome, trace_of
from mio_rag.session.workflow import check_action
from mio_rag.types import GenerationError, Question

_NOTES = 208  # tokens for notes and answers to sub-questions, next to the evidence
_MOST_ACTIONS = 200  # of a question: no decider can go on for ever
_POLL = 0.05  # seconds
_REFERENCE = re.compile(r"#(\d{1,6})\b")


class Account(Protocol):
    """A total over questions, such as `mio_rag.allocation.pacer.Pacer` keeps."""

    def ask(self, tokens: int | None = None, least: int | None = None) -> Any:
        """Reserve tokens for a question: a reservation with `allowed` tokens and a `price`."""

    def spent(self, reservation: Any, tokens: int) -> None:
        """Settle a reservation."""

    def release(self, reservation: Any) -> None:
        """Give a reservation back, of which nothing was spent."""

    def close(self) -> None:
        """Close the file."""


class Plan(Protocol):
    """The decider of the steps."""

    def inner(self, workflow: Any) -> Decider:
        """The decider of a workflow of sub-questions."""

    def described(self, state: State) -> dict[str, Any]:
        """The workflow that was followed, as plain data; empty where there is none."""

    def scores(self, state: State) -> dict[str, float]:
        """What was chosen among -> its score; empty where nothing was chosen."""


class _Unanswered:
    """Begin no step that answers the question."""

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        return tuple(a for a in proposed if not a.final and find_tool(a.do).gives != "answer")


@dataclass(frozen=True, eq=False)
class Session:
    """A policy, ready for questions: a row of deciders, and what their actions work with. Thread-safe.

    deciders: asked in this order after every result; plan: the one of them that decides the steps.
    price: of a token, where no `account`, a total over questions, sets it.
    priced: (selector, price) -> the selection program at a price.
    limits: of one question; max_tokens: longest answer; temperatures: of answers, by name of a model.
    budget: largest block of evidence that the policy allows; None: the caller's.
    models: generators that actions name, opened when they are first asked.
    learner: told of every question.
    threads: actions that run in parallel, at most.
    seconds: longest time of an action that sets none itself.
    settings: what decisions depend on, as plain data for traces.
    always_asks: whether anything but the answer may ask a model, so that the whole limit is reserved in the
        account.
    falls_back: whether a failed answer is asked for again, from what was read, then from memory.
    """

    name: str
    deciders: tuple[Decider, ...]
    plan: Plan
    kit: Equipment
    price: float = 0.0
    priced: Callable[[Any, float], Any] | None = None
    limits: Limits = field(default_factory=Limits)
    budget: int | None = None
    max_tokens: int = 32
    temperatures: Mapping[str, float] = field(default_factory=dict)
    models: Models = field(default_factory=lambda: Models({}))
    account: Account | None = None
    learner: Learner | None = None
    threads: int = 4
    seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    always_asks: bool = True
    falls_back: bool = True

    @property
    def retriever(self) -> Retriever | None:
        """Where it searches."""
        return self.kit.retriever

    def attempt(
        self,
        question: Question,
        generator: Generator,
        budget_tokens: int,
        replies: Replies | None = None,
        known: Sequence[Result] = (),
    ) -> Outcome:
        """Answer a question.

        budget_tokens: largest block of evidence, >= 1; less where the policy or the model's window allows
            less.
        replies: what the generator said to other runs on this question. It is not asked for again, but
            charged.
        known: of actions that need not run again, such as those of `select`; they are not charged again.

        Returns: with an error for any `MioRagError` on the way, and the trace and costs until then.
        Raises `InputError` for a budget below 1.
        """
        return _Run(self, question, generator, budget_tokens, replies, known).outcome()

    def select(
        self,
        question: Question,
        generator: Generator | None,
        budget_tokens: int,
        known: Sequence[Result] = (),
    ) -> Outcome:
        """Search and choose what is read, as `attempt` does before it answers.

        generator: asked by searches and other steps; None where none of them asks a model.

        The outcome has no reply. Where no selection satisfies the constraints, it has the selection that says
        why, and an `InfeasibleError`.
        """
        return _Run(self, question, generator, budget_tokens, None, known).outcome(answers=False)

    def most_tokens(self, question: Question, generator: Generator) -> tuple[int, int]:
        """Most tokens that a question can take, into models and out of them.

        Where only answers ask a model: their prompts with all the evidence, and the longest answers, with the
        two that are still asked for where one came to nothing. Otherwise the whole limit, in each direction.
        """
        limit, allowed = self.limits.tokens, self.budget or self.limits.tokens
        if self.always_asks:
            return limit, limit
        asked, longest = self._one_answer(question, generator)
        answers = 3 if self.falls_back else 1
        into = answers * asked + max(1, answers - 1) * allowed
        return min(limit, into), min(limit, answers * longest)

    def least_tokens(self, question: Question, generator: Generator) -> int | None:
        """Tokens with which a question can be asked once, with one token of evidence; None: unknown."""
        return None if self.always_asks else sum(self._one_answer(question, generator)) + 1

    def _one_answer(self, question: Question, generator: Generator) -> tuple[int, int]:
        """Tokens of a prompt without its evidence, at most, and of the longest answer."""
        longest = max(self.max_tokens, CHOICE_TOKENS if question.choices else 0)
        return tokens_around(generator, question), longest

    @property
    def _notes(self) -> int:
        return _NOTES if self.always_asks else 0

    def close(self) -> None:
        """Close the files and models that were opened for it."""
        self.models.close()
        if self.account is not None:
            self.account.close()
        if self.learner is not None and hasattr(self.learner, "close"):
            self.learner.close()

    def take_up(self, spent: Sequence[int]) -> None:
        """Count questions that another process has asked, where only their rows tell of them.

        A total with a file has counted them there.
        """
        if self.account is None or self.settings.get("policy", {}).get("price", {}).get("state") is not None:
            return
        for tokens in spent:
            self.account.spent(self.account.ask(max(1, tokens)), tokens)

    def run(self, state: State, deciders: Sequence[Decider], budget: Budget) -> None:
        """Decide, act and record, until nothing is proposed and nothing runs."""
        ended: queue.SimpleQueue[Result] = queue.SimpleQueue()
        started = 0
        while not state.is_closed:
            began = time.perf_counter()
            proposed: tuple[Action, ...] = ()
            for decider in deciders:
                proposed = decider.decide(state, proposed)
            state.deciding += time.perf_counter() - began
            new = [action for action in proposed if not state.has_started(action.id)]
            new = new[: _MOST_ACTIONS - started]
            started += len(new)
            for action in new:
                check_action(action)
                result = state.running[action.id] = Result(action)
                if len(new) == 1 and len(state.running) == 1 and self._seconds(action) is None:
                    self.act(result, state, budget)
                    ended.put(result)
                else:
                    arguments = (result, state, budget, ended)
                    threading.Thread(target=self._act_and_report, args=arguments, daemon=True).start()
            if not state.running:
                return
            self._record(state, ended)

    def _act_and_report(
        self, result: Result, state: State, budget: Budget, ended: queue.SimpleQueue[Result]
    ) -> None:
        try:
            self.act(result, state, budget)
        except BaseException as error:  # such as SystemExit: it ends a thread, and whoever waits would hang
            result.dropped, result.error = _reason(error), error if isinstance(error, Exception) else None
        finally:
            ended.put(result)

    def _record(self, state: State, ended: queue.SimpleQueue[Result]) -> None:
        """Wait until an action has ended, or has had its time."""
        timed = any(self._seconds(result.action) is not None for result in state.running.values())
        try:
            result = ended.get(timeout=_POLL if timed else None)
            if state.running.get(result.action.id) is result:  # else it was abandoned before it ended
                del state.running[result.action.id]
                state.results[result.action.id] = result
                state.is_closed = state.is_closed or _cannot_decide(result)
        except queue.Empty:
            pass
        for result in list(state.running.values()) if timed else ():
            limit = self._seconds(result.action)
            if limit is None or result.begun is None or time.perf_counter() - result.begun <= limit:
                continue
            _abandon(state, result, f"took longer than {limit:g} s")

    def _seconds(self, action: Action) -> float | None:
        return self.seconds if action.seconds is None else action.seconds

    def act(self, result: Result, state: State, budget: Budget) -> None:
        """Run one tool. Whatever fails drops this action, with a reason; the question goes on."""
        action, tool = result.action, find_tool(result.action.do)
        if not tool.runs_others:  # one that waits for others takes no place among those that run in parallel
            budget.places.acquire()
            held = iter((budget.places.release,))
            result.release = lambda: next(held, lambda: None)()  # once: at the end, or when abandoned
        try:
            if state.is_closed:
                return  # abandoned before it began
            result.begun = time.perf_counter()
            result.branch = branch = budget.branch(action.model)
            result.costs = branch.costs
            values = state.values([i for i in action.inputs if state.has_ended(i)])
            if missing := _missing(tool, values):
                raise Nothing(f"what it needs was dropped: {', '.join(missing)}")
            lost = [r for r in map(state.results.get, action.inputs) if r is not None and r.error is not None]
            if action.final and lost and not values and not self.falls_back:
                raise lost[0].error or AssertionError  # nothing was read, so no model is asked
            if not action.final and action.do not in ("retrieve", "select"):  # they keep limits themselves
                budget.check()
                if _takes_a_step(action):
                    budget.step()
            result.value = tool.run(Job(self.kit, _Solve(self, state, budget), state, result, branch))
        except LimitReached as limit:
            result.dropped = f"limit of {limit}"
        except Nothing as nothing:
            result.dropped = str(nothing)
        except Exception as error:  # a user's own generator or store costs its branch, not the answer
            result.dropped, result.error = _reason(error), error
            result.failed = isinstance(error, GenerationError)
        finally:
            if result.release is not None:
                result.release()


def _cannot_decide(result: Result) -> bool:
    """Whether the model cannot do what the policy decides by: nothing more is asked."""
    return result.action.do in ("draft", "write_workflow") and isinstance(result.error, InputError)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _takes_a_step(action: Action) -> bool:
    """Whether an action counts as one that asks a model; a search counts when its strategies do."""
    if action.do == "search_again":
        return bool(action.settings["query"] == "model" and action.settings.get("asks", True))
    return asks(action.do, action.settings)


def _abandon(state: State, result: Result, why: str) -> None:
    """Nothing of an action is used any longer, and the call that it waits for is charged in full."""
    costs = Costs()
    costs.spent = [*result.costs.spent, *(result.branch.unfinished() if result.branch else ())]
    if not costs.spent and result.begun is not None:
        costs.spent = [Spent(Call(result.action.do, time.perf_counter() - result.begun))]
    late = Result(result.action, None, costs, dict(result.facts), why, children=list(result.children))
    for child in late.children:
        child.is_closed = True
        for inner in list(child.running.values()):
            _abandon(child, inner, why)
    state.running.pop(result.action.id, None)
    state.results[result.action.id] = late
    if result.release is not None:
        result.release()


def _missing(tool: Tool, values: Sequence[Value]) -> list[str]:
    """Types that a tool needs and has none of."""
    needed = [kind for kind, (least, _) in tool.takes.items() if least]
    return [kind for kind in needed if not any(isinstance(value, TYPES[kind]) for value in values)]


@dataclass(frozen=True)
class _Solve:
    """Answers sub-questions, each by a loop of its own, from the same budget; as `tools.Solve`."""

    session: Session
    state: State
    budget: Budget

    def __call__(
        self, job: Job, workflow: Any, texts: Sequence[str], serial: bool
    ) -> list[tuple[str, Reply | None]]:
        order: Any = self.session.plan.inner(workflow)
        deciders = [order, *(d for d in self.session.deciders if getattr(d, "serves_parts", False))]
        known = self.state.known

        def answer(place: int, text: str, known: tuple[Fact, ...]) -> Reply | None:
            asked = self.state.question
            part = asked if text == asked.text else Question(f"{asked.id}/{place}", text)
            own: dict[str, Any] = {"results": {}, "running": {}, "is_closed": False, "parent": self.state}
            child = replace(self.state, question=part, known=known, **own)
            job.result.children.append(child)
            self.session.run(child, deciders, self.budget)
            found = child.results.get(order.workflow.answer)
            return found.value if found is not None and isinstance(found.value, Reply) else None

        if serial or len(texts) == 1:
            pairs: list[tuple[str, Reply | None]] = []
            facts: list[Fact] = []
            for place, text in enumerate(texts, 1):
                filled = _filled(text, facts) if serial else text
                reply = answer(place, filled, (*known, *facts))
                pairs.append((filled, reply))
                facts.append(Fact(filled, "unknown" if reply is None else reply.answer.text))
            return pairs
        replies: list[Reply | None] = [None] * len(texts)
        broken: list[BaseException] = []

        def branch(k: int) -> None:
            try:
                replies[k] = answer(k + 1, texts[k], known)
            except BaseException as error:  # for the thread that waits
                broken.append(error)

        threads = [threading.Thread(target=branch, args=(k,), daemon=True) for k in range(len(texts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if broken:
            raise broken[0]
        job.result.children.sort(key=lambda child: texts.index(child.question.text))
        return list(zip(texts, replies, strict=True))


def _filled(text: str, facts: Sequence[Fact]) -> str:
    """A sub-question with the answers to earlier ones where it names them: #1, #2, ..."""

    def answer(found: re.Match[str]) -> str:
        place = int(found[1])
        return facts[place - 1].answer if 1 <= place <= len(facts) else found[0]

    return _REFERENCE.sub(answer, text)


class _Run:
    """One question from the reservation to the outcome."""

    def __init__(
        self,
        session: Session,
        question: Question,
        reader: Any,  # a generator, or None where nothing asks one
        budget_tokens: int,
        replies: Replies | None,
        known: Sequence[Result],
    ) -> None:
        if isinstance(budget_tokens, bool) or not budget_tokens >= 1:
            raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
        self.session, self.question, self.reader, self.replies = session, question, reader, replies
        self.began = time.perf_counter()
        allowed = int(budget_tokens) if session.budget is None else min(int(budget_tokens), session.budget)
        self.state = State(
            id=uuid.uuid4().hex,
            question=question,
            limits=session.limits,
            price=session.price,
            budget=allowed,
            allowed=session.budget or allowed,
            max_tokens=session.max_tokens,
            temperatures=session.temperatures,
            retriever=session.retriever,
            results={r.action.id: Result(r.action, r.value, facts=dict(r.facts)) for r in known},
        )
        self.around = 0  # tokens of the question and its answer, without the evidence
        self.fallback: str | None = None
        self.problems: dict[str, str] = {}
        self.opening = Costs()

    def outcome(self, answers: bool = True) -> Outcome:
        """Answer, or select alone, whatever fails on the way."""
        session, state, learner = self.session, self.state, self.session.learner
        reply: Reply | None = None
        error: MioRagError | None = None
        try:
            if answers:
                self.around = sum(session._one_answer(self.question, self.reader)) + session._notes
            with nullcontext() if session.account is None else self._reserved(session.account):
                if answers:
                    reply = self._answer()
                else:
                    self._select()
        except MioRagError as failure:
            error, reply = failure, None
        if learner is not None and error is None:
            with self.opening.part("learn"):
                self._afterwards("not_learned", lambda: learner.learn(state))
        self.opening.add(Call("decide", state.deciding))
        costs = self._costs()
        trace = trace_of(
            state,
            costs,
            reply=reply,
            error=error,
            scores=session.plan.scores(state),
            fallback=self.fallback,
            more=self.problems,
            policy=session.name,
            budget=state.budget,
            settings=dict(session.settings),
            generator="" if self.reader is None else self.reader.name,
            opening=self.opening.calls,
            seconds=time.perf_counter() - self.began,
            workflow=session.plan.described(state),
        )
        infeasible = [r.facts["infeasible"] for r in state.results.values() if "infeasible" in r.facts]
        selection = state.read_for(reply) or next(iter(infeasible), None)
        return Outcome(reply, selection, trace, costs, error, state.results)

    def _afterwards(self, what: str, act: Callable[[], None]) -> None:
        """Do what follows an answer: where it fails, the trace and a warning tell, and the answer stays."""
        try:
            act()
        except Exception as error:
            self.problems[what] = _reason(error)
            warnings.warn(f"question '{self.question.id}', {what}: {_reason(error)}", Notice, stacklevel=2)

    def _costs(self) -> Costs:
        """Everything that was spent so far."""
        costs = Costs()
        costs.spent = list(self.opening.spent)
        states = [self.state]
        for state in states:  # with those of sub-questions, which are added on the way
            for result in [*state.results.values(), *state.running.values()]:
                costs.spent += result.costs.spent
                states += result.children
        return costs

    @contextmanager
    def _reserved(self, account: Account) -> Iterator[None]:
        """Reserve what the question may spend, at the price of the moment; settle it in the end."""
        session, state = self.session, self.state
        most = session.limits.tokens
        if not session.always_asks:
            most = min(most, self.around + state.budget)
        held = account.ask(most, min(most, self.around + 1))
        state.budget = max(1, min(state.budget, held.allowed - self.around))
        state.price = held.price
        state.limits = session.limits.replace(tokens=held.allowed)
        if session.priced is not None:
            priced = session.priced(session.kit.selector, held.price)
            self.session = replace(session, kit=replace(session.kit, selector=priced))
        is_done = False
        try:
            yield
            is_done = True
        finally:
            total = self._costs().total()
            spent = total.prompt_tokens + total.completion_tokens
            # Where nothing was worth its price, nothing is spent, and the price falls.
            # A reservation that is not settled counts in full when it expires: the total stays kept.
            if total.lm_calls or spent or is_done:
                self._afterwards("not_settled", lambda: account.spent(held, spent))
            else:
                self._afterwards("not_settled", lambda: account.release(held))

    def _budget(self, reserve: int) -> Budget:
        session = self.session
        return Budget(
            self.reader, self.state.limits, reserve, models=session.models.get, threads=session.threads,
            replies=self.replies,
        )  # fmt: skip

    def _select(self) -> None:
        session, state = self.session, self.state
        session.run(state, (*session.deciders, _Unanswered()), self._budget(0))
        if state.selection is None:
            failed = [result for result in state.results.values() if result.dropped is not None]
            if failed and failed[0].error is not None:
                raise failed[0].error
            raise InfeasibleError(failed[0].dropped or "" if failed else "nothing was selected")

    def _answer(self) -> Reply:
        session, state = self.session, self.state
        room = window_room(self.reader, self.question, max_tokens=session.max_tokens)
        if room is not None:
            state.budget = min(state.budget, max(1, room - min(session._notes, room // 2)))
        # A block that leaves no tokens for the answer cannot be read: less is.
        state.budget = max(1, min(state.budget, state.limits.tokens - self.around))
        try:
            budget = self._budget(self.around + state.budget)
        except LimitReached as limit:
            raise GenerationError(
                f"limit tokens={state.limits.tokens} is below the {self.around + 1} that the answer alone "
                "may take: raise it"
            ) from limit
        session.run(state, session.deciders, budget)
        return self._conclude(budget)

    def _conclude(self, budget: Budget) -> Reply:
        """The final reply, else the last draft, else an answer from what was read, else from memory."""
        state = self.state
        for result in state.results.values():
            if result.error is not None and _cannot_decide(result):
                raise result.error
        final = next((r for r in reversed(state.results.values()) if r.action.final), None)
        drafts = [r.value for r in state.results.values() if isinstance(r.value, Reply)]
        if final is not None and isinstance(final.value, Reply):
            if not final.value.is_empty:
                return final.value
            self.fallback = f"{final.action.id}: the answer is empty"
            other = next((reply for reply in reversed(drafts) if not reply.is_empty), None)
            if other is None and final.action.model is not None:  # the reader would say the same again
                try:
                    other = self._fallback_answer(budget, final)
                except GenerationError:
                    other = None
            if other is not None and not other.is_empty:
                return other
            self.fallback = None
            return final.value
        self.fallback = (
            "no step came to an answer" if final is None else f"{final.action.id}: {final.dropped}"
        )
        if self.session.falls_back:
            return drafts[-1] if drafts else self._fallback_answer(budget, final)
        error = None if final is None else final.error
        if isinstance(error, MioRagError):
            raise error
        if final is not None and state.limit_reached is not None and error is None:
            raise GenerationError(
                f"the answer would go beyond the limit of {state.limit_reached} of this question: read "
                "less (budget_tokens), ask for a shorter answer (max_tokens), or raise the limit"
            )
        raise GenerationError(self.fallback) from error

    def _fallback_answer(self, budget: Budget, final: Result | None) -> Reply:
        """One more answer, from what was to be read, else what was, else memory, with the reserved tokens."""
        state = self.state
        source = None if final is None else state.source_of(final)
        read = [r.action.id for r in state.results.values() if isinstance(r.value, Selection)]
        if source is not None and source.action.id in read:
            read.append(source.action.id)
        for k, inputs in enumerate([*((id,) for id in read[-1:]), ()]):
            action = Action("fallback" if k == 0 else f"fallback-{k + 1}", "answer", inputs, final=True)
            result = state.results[action.id] = Result(action)
            self.session.act(result, state, budget)
            if isinstance(result.value, Reply):
                return result.value
        raise GenerationError(f"there is no answer ({self.fallback}): {result.dropped}") from result.error
