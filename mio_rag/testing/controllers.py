"""The suite for controllers: `check_controller`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from mio_rag.context import render_context
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.policies.setup import Controller, ControlSettings, Setup
from mio_rag.retrieval.embedders import TfidfEmbedder
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits, Replies
from mio_rag.session.trace import Outcome, Trace
from mio_rag.testing.attempts import (
    Replay,
    cost_problems,
    limit_problems,
    reply_problems,
    timeless,
    trace_problems,
)
from mio_rag.testing.readers import CountingReader
from mio_rag.types import GenerationError, Question

#: A controller from what it is made of.
Make = Callable[[Setup], Controller]


class _Unplanned(Exception):
    """What nobody has a row for: a controller must let it pass."""


def check_controller(
    make: Make,
    *,
    name: str,
    dataset: Dataset | None = None,
    index: CorpusIndex | None = None,
    questions: int = 6,
    budgets: Sequence[int] = (60, 200),
    limits: Limits = Limits(steps=4, tokens=6000),  # noqa: B008  # frozen
    seed: int = 0,
    replay: Replay | None = None,
) -> None:
    """Run a controller on the bundled demo with a reader that needs no model, and hold it to its promises.

    In a test of a controller::

        from mio_rag.testing import check_controller

        def test_promises():
            check_controller(lambda setup: MyController("mine", setup), name="mine")

    Checked is that every attempt returns an `Outcome` with a reply or an error; that evidence never exceeds
    the budget, nor steps and tokens their limits; that nothing is begun once the time is over; that costs
    hold all that the reader was asked, and add up by part and over the trace; that the same seed makes the
    same trace, whatever was asked before, and whether replies are remembered or not; that a reader that fails
    gives an error with what was spent until then; that an unexpected exception is raised, or named in the
    trace or the error; that a trace comes back from JSON and from a file as it was, and that its decisions
    can be made again.

    Parameters
    ----------
    make : callable
        ``make(setup) -> controller``, see `mio_rag.policies.setup`. Called anew for every run.
    name : str
        What the controller is called in the report.
    dataset, index : optional
        Other questions and passages, given together; by default the bundled demo, indexed by TF-IDF.
    questions : int
        How many of them, >= 1; one more, with options, is made of the first that has an answer.
    budgets : sequence of int
        Token budgets of the evidence, >= 1.
    limits : Limits
        What its runs are held to.
    seed : int
        Of whatever is drawn.
    replay : callable, optional
        For traces of the controller's own kind: makes the decisions again. Those of a decision process have
        one; of other kinds, without it, only the sums are checked.

    Raises
    ------
    AssertionError
        Listing every case that failed, with its question, and its trace as JSON where there is one.
    InputError
        For a parameter out of range.
    MissingExtraError
        Without the extra ``retrieval``, which the index of the demo needs.
    """
    if (dataset is None) != (index is None):
        raise InputError("dataset and index belong together: give both, or neither for the demo")
    if questions < 1 or not budgets or min(budgets) < 1:
        raise InputError(f"questions={questions} and budgets={list(budgets)} must be >= 1")
    if dataset is None or index is None:
        dataset, index = _demo()
    suite = _Suite(make, index, _asked(dataset, questions), tuple(budgets), limits, seed, replay)
    suite.run()
    if suite.failed:
        listed = "\n".join(f"{k}. {text}" for k, text in enumerate(suite.failed, start=1))
        raise AssertionError(
            f"controller '{name}' fails {len(suite.failed)} of {suite.checked} cases:\n{listed}"
        )


@cache  # for all controllers that are checked by one process
def _demo() -> tuple[Dataset, CorpusIndex]:
    """The bundled set, and its index."""
    dataset = load_dataset("demo")
    return dataset, CorpusIndex.build(dataset.passages, TfidfEmbedder(dimensions=60), dataset.name)


def _asked(dataset: Dataset, count: int) -> tuple[Question, ...]:
    """The first questions, and one with options."""
    chosen = dataset.questions[:count]
    answered = [q for q in dataset.questions if q.answers and not q.choices]
    if answered:
        first = answered[0]
        others = dict.fromkeys(q.answers[0] for q in answered[1:] if q.answers[0] not in first.answers)
        options = (*list(others)[:2], first.answers[0])
        if len(options) > 1:
            chosen = (*chosen, replace(first, id=f"{first.id} with options", choices=options))
    return chosen


@dataclass(eq=False)
class _Suite:
    """Runs, and what was wrong with them."""

    make: Make
    index: CorpusIndex
    questions: tuple[Question, ...]
    budgets: tuple[int, ...]
    limits: Limits
    seed: int
    replay: Replay | None
    checked: int = 0
    failed: list[str] = field(default_factory=list)

    def run(self) -> None:
        """All cases."""
        runs = [(question, budget) for budget in self.budgets for question in self.questions]
        first = {run: self._ordinary(*run) for run in runs}
        self._again(runs, first)
        self._limited()
        self._failing()
        self._refusing()

    def _controller(self, limits: Limits | None = None) -> Controller:
        settings = ControlSettings(limits=limits or self.limits)
        retriever = Retriever(self.index, pool=12)
        return self.make(Setup(settings, retriever, Selector(), seed=self.seed))

    def _note(self, what: str, wrong: Sequence[str], trace: Trace | None = None) -> None:
        """Count a case, and keep what is wrong with it."""
        self.checked += 1
        if wrong:
            shown = "" if trace is None else f"\n  {json.dumps(trace.to_dict(), default=str)}"
            self.failed.append(f"{what}: {'; '.join(wrong)}{shown}")

    def _attempt(
        self,
        what: str,
        controller: Controller,
        question: Question,
        budget: int,
        reader: CountingReader,
        replies: Replies | None = None,
    ) -> Outcome | None:
        """One attempt; None where it raised, or returned something else, which is noted."""
        try:
            found = controller.attempt(question, reader, budget, replies)
        except Exception as error:  # a MioRagError makes a failure, and this reader raises no other
            self._note(what, [f"raised {type(error).__name__}: {error}"])
            return None
        if not isinstance(found, Outcome):
            self._note(what, [f"returned a {type(found).__name__}, no Outcome"])
            return None
        return found

    def _ordinary(self, question: Question, budget: int) -> dict[str, Any] | None:
        """A run from which nothing is expected to go wrong: all that holds of every run."""
        what = f"question '{question.id}', budget {budget}"
        reader, controller = CountingReader(), self._controller()
        found = self._attempt(what, controller, question, budget, reader)
        if found is None:
            return None
        wrong = [
            *reply_problems(controller, question, found),
            *self._budget_problems(found, budget, reader),
            *limit_problems(found, self.limits),
            *cost_problems(found, reader),
            *trace_problems(found.trace, self.replay),
        ]
        self._note(what, wrong, found.trace)
        plain: dict[str, Any] = timeless(found.trace.to_dict())
        return plain

    def _budget_problems(self, found: Outcome, budget: int, reader: CountingReader) -> Iterator[str]:
        if found.selection is not None:
            used = reader.count([render_context(found.selection.passages)])[0]
            if used > budget:
                yield f"{used} tokens of evidence were selected, {budget} are the budget"
        if found.trace.budget > budget:
            yield f"the trace says budget {found.trace.budget}, {budget} was given"
        known = set(self.index.ids)
        for prompt in reader.prompts:
            read = reader.count([render_context(p for p in prompt.passages if p.id in known)])[0]
            if read > budget:
                yield f"a prompt held {read} tokens of evidence, {budget} are the budget"
                return

    def _again(
        self, runs: Sequence[tuple[Question, int]], first: dict[tuple[Question, int], dict[str, Any] | None]
    ) -> None:
        """One controller for all questions, in the other order, then with replies that are remembered."""
        controller = self._controller()
        for question, budget in reversed(runs):
            before = first[question, budget]
            if before is None:
                continue
            reader, replies = CountingReader(), Replies()
            for turn in ("again, after other questions", "again, with remembered replies"):
                what = f"question '{question.id}', budget {budget}, {turn}"
                found = self._attempt(what, controller, question, budget, reader, replies)
                if found is not None:
                    now = timeless(found.trace.to_dict())
                    differ = [key for key in now if now[key] != before.get(key)]
                    said = f"with the same seed, other {', '.join(differ)} than the first time"
                    self._note(what, [said] if differ else [], found.trace)

    def _limited(self) -> None:
        """Limits that come at once."""
        question, budget = self.questions[0], max(self.budgets)
        for limits in (replace(self.limits, steps=0), replace(self.limits, seconds=1e-9)):
            what = f"question '{question.id}', {limits}"
            found = self._attempt(what, self._controller(limits), question, budget, CountingReader())
            if found is not None:
                wrong = [*limit_problems(found, limits), *trace_problems(found.trace, self.replay)]
                taken = [step for step in found.trace.steps if step.dropped is None and step.calls]
                if len(taken) > 1 and limits.seconds < 1:  # the answer alone
                    wrong.append(f"{len(taken)} steps were taken")
                self._note(what, wrong, found.trace)
        for tokens in (1, 500, 1000):
            limits = replace(self.limits, tokens=tokens)
            what = f"question '{question.id}', {limits}"
            reader = CountingReader()
            found = self._attempt(what, self._controller(limits), question, min(self.budgets), reader)
            if found is not None:
                wrong = [
                    *limit_problems(found, limits),
                    *cost_problems(found, reader),
                    *trace_problems(found.trace, self.replay),
                ]
                self._note(what, wrong, found.trace)

    def _failing(self) -> None:
        """A reader that breaks at its first, second or third reply."""
        question, budget = self.questions[0], max(self.budgets)
        for k in range(3):
            what = f"question '{question.id}', a reader that fails at reply {k + 1}"
            reader = CountingReader(fails_at=k, error=GenerationError("the reader broke"))
            found = self._attempt(what, self._controller(), question, budget, reader)
            if found is not None:
                wrong = [*cost_problems(found, reader), *trace_problems(found.trace, self.replay)]
                if reader.failed and found.error is None and found.trace.answer == "":
                    wrong.append("an empty answer hides the failure")
                wrong += reply_problems(self._controller(), question, found)
                self._note(what, wrong, found.trace)
        what = f"question '{question.id}', an error that nobody planned"
        reader = CountingReader(fails_at=0, error=_Unplanned("a bug"))
        try:
            found = self._controller().attempt(question, reader, budget)
        except _Unplanned:
            self._note(what, [])
        except Exception as error:
            self._note(what, [f"raised {type(error).__name__} in its place: {error}"])
        else:
            dropped = [step.dropped or "" for step in found.trace.steps] if isinstance(found, Outcome) else []
            told = any(_Unplanned.__name__ in why for why in (*dropped, str(getattr(found, "error", None))))
            self._note(what, ["it was swallowed"] if reader.failed and not told else [])

    def _refusing(self) -> None:
        """A budget that is none."""
        what = "budget 0"
        try:
            self._controller().attempt(self.questions[0], CountingReader(), 0)
        except InputError:
            self._note(what, [])
        except Exception as error:
            self._note(what, [f"raised {type(error).__name__} instead of InputError: {error}"])
        else:
            self._note(what, ["InputError was not raised"])
