"""Run a workflow on one question: branches side by side, within limits, with the books kept whatever fails.

A node that raises, takes too long or comes to nothing is dropped: what depends on it runs without it where it
can, and is dropped where it cannot. An answer is still given: the last one that was made, else one from what
was read, else one from memory.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mio_rag.control.costs import Costs, Spent
from mio_rag.control.meter import LimitReached, Limits, Replies, Reply
from mio_rag.control.planner.named import find_workflow
from mio_rag.control.planner.settings import Models, WorkflowSettings
from mio_rag.control.planner.shared_limits import BranchMeter, SharedLimits
from mio_rag.control.planner.trace import PlanStep
from mio_rag.control.planner.work import Work
from mio_rag.control.planner.workflow import Node, Workflow
from mio_rag.control.steps.executors import EXECUTORS, TYPES, Job, Nothing, Taken, Value, asks
from mio_rag.control.steps.wording import Fact
from mio_rag.generation import Generator, build_prompt
from mio_rag.generation.protocol import CHOICE_TOKENS
from mio_rag.generation.window import window_room
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import GenerationError, Question

__all__ = ["Kit", "Run"]

_NOTES = 208  # tokens for answers to sub-questions, beside the evidence
_POLL = 0.05  # seconds


@dataclass(frozen=True, eq=False)
class Kit:
    """What workflows run with.

    Parameters
    ----------
    strategies : tuple of str
        By which 'retrieve' searches where a workflow does not say so itself; none: for the question as it is.
    """

    retriever: Retriever | None
    selector: Selector
    models: Models
    settings: WorkflowSettings
    limits: Limits
    max_tokens: int
    strategies: tuple[str, ...] = ()

    def settings_of(self, node: Node) -> Mapping[str, Any]:
        """The settings of a node, with what holds where it says nothing."""
        if node.do != "retrieve" or self.strategies in ((), ("raw",)) or "strategies" in node.settings:
            return node.settings
        return {**node.settings, "strategies": list(self.strategies)}


@dataclass(eq=False)
class Run:
    """One question on its way; steps, costs and what was read can be told at any time.

    Parameters
    ----------
    reader : Generator
        Asked by nodes that name no model.
    """

    kit: Kit
    question: Question
    reader: Generator
    budget_tokens: int
    replies: Replies
    works: list[Work] = field(default_factory=list)
    fallback: str | None = None
    opening: list[Spent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._shared: SharedLimits | None = None
        self._opening = threading.Lock()
        self._places = threading.BoundedSemaphore(self.kit.settings.threads)

    @property
    def shared(self) -> SharedLimits:
        """What may be spent; the window is shared out between evidence, notes and answer."""
        with self._opening:  # branches may ask for it at once
            if self._shared is None:
                self._shared = self._opened()
        return self._shared

    def _opened(self) -> SharedLimits:
        room = window_room(self.reader, self.question, max_tokens=self.kit.max_tokens)
        if room is not None:
            self.budget_tokens = min(self.budget_tokens, max(1, room - min(_NOTES, room // 2)))
        longest = max(self.kit.max_tokens, CHOICE_TOKENS if self.question.choices else 0)
        asked = self.reader.prompt_tokens(build_prompt(self.question))
        reserve = asked + self.budget_tokens + _NOTES + longest
        try:
            return SharedLimits(self.kit.limits, reserve)
        except LimitReached as limit:
            raise GenerationError(
                f"limit tokens={self.kit.limits.tokens} is below the {reserve} that the answer alone may "
                "take: raise it, or lower the token budget"
            ) from limit

    def workflow(self, workflow: Workflow) -> Reply:
        """Run a workflow to its answer.

        Raises
        ------
        MioRagError
            If there is no answer at all, in no way.
        """
        works = _works(workflow, "")
        self.works += works.values()
        self._graph(workflow, works, self.question, (), outermost=True)
        return self.concluded(works[workflow.answer])

    def concluded(self, last: Work | None) -> Reply:
        """The answer of a node, or where it has none the next best."""
        if last is not None and isinstance(last.value, Reply):
            return last.value if _says(last.value) else self._said_elsewhere(last, last.value)
        self.fallback = "no node came to an answer" if last is None else f"{last.path}: {last.dropped}"
        for work in reversed(self.works):
            if isinstance(work.value, Reply):
                return work.value
        return self._fallback_answer()

    def _said_elsewhere(self, last: Work, nothing: Reply) -> Reply:
        """What a node said before, or else the reader says, where the last node said nothing."""
        drafts = [work.value for work in self.works if isinstance(work.value, Reply) and _says(work.value)]
        found: Reply | None = drafts[-1] if drafts else None
        if found is None and last.node.model is not None:  # the reader itself would say the same again
            self.fallback = f"{last.path}: the answer is empty"
            try:
                found = self._fallback_answer()
            except GenerationError:
                found = None
        if found is None or not _says(found):
            self.fallback = None
            return nothing
        self.fallback = f"{last.path}: the answer is empty"
        return found

    def _fallback_answer(self) -> Reply:
        """One more answer, from what was read, else from memory, with the tokens set aside for it."""
        read = [work.value for work in self.works if isinstance(work.value, Selection)]
        error: Exception = GenerationError(f"there is no answer ({self.fallback})")
        for k, value in enumerate([*read[-1:], None]):
            work = Work(Node("fallback", "answer"), "fallback" if k == 0 else f"fallback-{k + 1}")
            self.works.append(work)
            taken = Taken(() if value is None else (value,))
            self._do(work, taken, self.question, (), final=True)
            if isinstance(work.value, Reply):
                return work.value
            error = GenerationError(f"there is no answer ({self.fallback}): {work.dropped}")
        raise error

    def _graph(
        self,
        workflow: Workflow,
        works: dict[str, Work],
        question: Question,
        known: tuple[Fact, ...],
        *,
        outermost: bool = False,
    ) -> None:
        """Run the nodes of a workflow, those that wait for nothing side by side."""
        waiting, running = list(workflow.nodes), list[Work]()
        done: queue.SimpleQueue[Work] = queue.SimpleQueue()
        while waiting or running:
            ready = [n for n in waiting if all(works[name].ended for name in (*n.takes, *n.after))]
            waiting = [node for node in waiting if node not in ready]
            for node in ready:
                work, final = works[node.id], outermost and node.id == workflow.answer
                taken = Taken([v for name in node.takes if (v := works[name].value) is not None])
                act = partial(self._do, work, taken, question, known, final=final)
                if len(ready) == 1 and not running and self._seconds(node) is None:
                    act()
                else:
                    running.append(work)
                    threading.Thread(target=_reporting, args=(act, work, done), daemon=True).start()
            if running:
                self._wait(running, done)

    def _wait(self, running: list[Work], done: queue.SimpleQueue[Work]) -> None:
        """Until a node has ended, or has had its time; both leave the list."""
        try:
            running.remove(done.get(timeout=_POLL if any(map(self._timed, running)) else None))
        except queue.Empty:
            pass
        except ValueError:
            return  # it was given up before it ended
        for work in [w for w in running if w.begun is not None and self._timed(w)]:
            limit = self._seconds(work.node)
            if limit is not None and time.perf_counter() - (work.begun or 0.0) > limit and not work.ended:
                work.give_up(f"took longer than {limit:g} s")
                running.remove(work)

    def _seconds(self, node: Node) -> float | None:
        return self.kit.settings.seconds if node.seconds is None else node.seconds

    def _timed(self, work: Work) -> bool:
        return self._seconds(work.node) is not None

    def node(self, node: Node, path: str, values: Sequence[Value | None], *, final: bool) -> Work:
        """Run one node on what it takes; for policies that decide step by step."""
        work = Work(node, path)
        self.works.append(work)
        act = partial(
            self._do, work, Taken([v for v in values if v is not None]), self.question, (), final=final
        )
        if self._seconds(node) is None:
            act()
            return work
        done: queue.SimpleQueue[Work] = queue.SimpleQueue()
        running = [work]
        threading.Thread(target=_reporting, args=(act, work, done), daemon=True).start()
        while running:
            self._wait(running, done)
        return work

    def _do(
        self, work: Work, taken: Taken, question: Question, known: tuple[Fact, ...], *, final: bool
    ) -> None:
        """Run a node; whatever goes wrong drops it, with its reason."""
        node, executor = work.node, EXECUTORS[work.node.do]
        settings = self.kit.settings_of(node)
        try:
            if not executor.runs_others:
                self._places.acquire()
                work.release = self._places.release
            if work.ended:  # given up before it began
                return
            work.begun = time.perf_counter()
            needed = [kind for kind, (least, _) in executor.takes.items() if least]
            if missing := [kind for kind in needed if not taken.every(TYPES[kind])]:
                raise Nothing(f"what it needs was dropped: {', '.join(missing)}")
            generator = self.reader if node.model is None else self.kit.models.get(node.model)
            work.meter = BranchMeter(generator, self.shared, self.replies)
            if asks(node.do, settings) and not final:
                self.shared.check()
                self.shared.step()
            job = Job(
                question,
                self.budget_tokens,
                work.meter,
                self.kit.selector,
                self.kit.retriever,
                self.kit.max_tokens,
                settings,
                known,
                final,
                partial(self._solve, work, question, known),
                work.notes,
            )
            work.end(executor.run(job, taken))
        except LimitReached as limit:
            work.end(None, f"limit of {limit}")
        except Nothing as nothing:
            work.end(None, str(nothing))
        except Exception as error:  # an executor of whatever origin costs its branch, not the answer
            work.end(None, f"{type(error).__name__}: {error}", error)
        finally:
            work.end(None, "given up")

    def _solve(
        self,
        work: Work,
        question: Question,
        known: tuple[Fact, ...],
        given: Any,
        texts: Sequence[str],
        serial: bool,
    ) -> list[tuple[str, Reply | None]]:
        """Answer sub-questions by another workflow: one after another, or side by side."""
        workflow = given if isinstance(given, Workflow) else find_workflow(str(given))

        def begin(place: int) -> dict[str, Work]:
            works = _works(workflow, f"{work.path}/{place}")
            work.inner += works.values()
            return works

        def answer(place: int, text: str, before: tuple[Fact, ...], works: dict[str, Work]) -> Reply | None:
            part = question if text == question.text else Question(f"{question.id}/{place}", text)
            if not work.ended:
                self._graph(workflow, works, part, before)
            value = works[workflow.answer].value
            return value if isinstance(value, Reply) else None

        told: list[tuple[str, Reply | None]] = []
        if serial or len(texts) == 1:
            facts: list[Fact] = []
            for place, text in enumerate(texts, 1):
                filled = _filled(text, facts)
                reply = answer(place, filled, (*known, *facts), begin(place))
                told.append((filled, reply))
                facts.append(Fact(filled, "unknown" if reply is None else reply.answer.text))
            return told
        replies: list[Reply | None] = [None] * len(texts)

        def branch(k: int, works: dict[str, Work]) -> None:
            replies[k] = answer(k + 1, texts[k], known, works)

        threads = [
            threading.Thread(target=branch, args=(k, begin(k + 1)), daemon=True) for k in range(len(texts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return list(zip(texts, replies, strict=True))

    def steps(self) -> tuple[PlanStep, ...]:
        """Everything that was done so far."""
        told = [step for work in self.works if work.begun is not None for step in work.steps()]
        return tuple(replace(step, step=place) for place, step in enumerate(told))

    def costs(self) -> Costs:
        """Everything that was spent so far."""
        costs = Costs()
        costs.spent = [*self.opening, *(one for work in self.works for one in work.spent())]
        return costs

    def selection(self) -> Selection | None:
        """What was read last, for the question itself where anything was."""
        for works in (self.works, list(_all(self.works))):
            read = [work.value for work in works if isinstance(work.value, Selection)]
            if read:
                return read[-1]
        return None


def _says(reply: Reply) -> bool:
    return reply.choice is not None or bool(reply.answer.text.strip())


def _works(workflow: Workflow, above: str) -> dict[str, Work]:
    """Nodes of a workflow, before they run."""
    return {node.id: Work(node, f"{above}/{node.id}" if above else node.id) for node in workflow.nodes}


def _all(works: Sequence[Work]) -> Iterator[Work]:
    for work in works:
        yield work
        yield from _all(work.inner)


def _reporting(act: Callable[[], None], work: Work, done: queue.SimpleQueue[Work]) -> None:
    act()
    done.put(work)


def _filled(text: str, facts: Sequence[Fact]) -> str:
    """A sub-question with the answers to earlier ones where it names them: #1, #2, ..."""

    def answer(found: re.Match[str]) -> str:
        place = int(found[1])
        return facts[place - 1].answer if 1 <= place <= len(facts) else found[0]

    return re.sub(r"#(\d{1,6})\b", answer, text)
