"""The suite for controllers: `check_controller`, and the reader that it uses."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from mio_rag.context import render_context
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation.extractive import ExtractiveGenerator
from mio_rag.generation.prompts import Prompt
from mio_rag.generation.protocol import Choice
from mio_rag.learning.rules import replay as replay_process
from mio_rag.policies.setup import Controller, ControlSettings, Setup
from mio_rag.retrieval.embedders import TfidfEmbedder
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits, Replies
from mio_rag.session.trace import Outcome, Trace, append_traces, read_traces, wrong_totals
from mio_rag.types import Answer, GenerationError, Question

T = TypeVar("T")

#: A controller from what it is made of.
Make = Callable[[Setup], Controller]
#: Makes the decisions of a trace again, and returns what comes out differently, in words.
Replay = Callable[[Any], list[str]]

_SECONDS = frozenset(("seconds", "latency_seconds"))


class _UnplannedError(Exception):
    """An error that no controller expects, and that each must let pass."""


class CountingReader(ExtractiveGenerator):
    """The extractive reader, with a record of its prompts and replies; from reply `fails_at` on (counted
    from 0), it raises `error`.
    """

    def __init__(self, fails_at: int | None = None, error: Exception | None = None) -> None:
        super().__init__()
        self._fails_at, self._error = fails_at, error or GenerationError("set to fail")
        self.prompts: list[Prompt] = []
        self.replies: list[Answer] = []
        self.failed = False

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer as the extractive reader does."""
        answer = self._turn(
            prompt, lambda: super(CountingReader, self).generate(prompt, max_tokens=max_tokens)
        )
        self.replies.append(answer)
        return answer

    def generate_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int = 64
    ) -> list[Answer | GenerationError]:
        """Answer one prompt after another."""
        replies: list[Answer | GenerationError] = []
        for prompt in prompts:
            try:
                replies.append(self.generate(prompt, max_tokens=max_tokens))
            except GenerationError as error:
                replies.append(error)
        return replies

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """Choose as the extractive reader does."""
        chosen = self._turn(prompt, lambda: super(CountingReader, self).choose_scored(prompt, choices))
        self.replies.append(chosen.answer)
        return chosen

    def _turn(self, prompt: Prompt, reply: Callable[[], T]) -> T:
        self.prompts.append(prompt)
        if self._fails_at is not None and len(self.prompts) > self._fails_at:
            self.failed = True
            raise self._error
        return reply()


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
    """Run a controller on the bundled demo with a reader that needs no model, and check what it must keep.

    In a test of a controller::

        from mio_rag.testing import check_controller

        def test_promises():
            check_controller(lambda setup: MyController("mine", setup), name="mine")

    Checked is that every attempt returns an `Outcome` with a reply or an error; that evidence, steps, tokens
    and time keep their limits; that costs hold all that the reader was asked, and add up by part and over the
    trace; that the same seed makes the same trace, in any order of questions and with remembered replies;
    that a failing reader gives an error with what was spent until then; that an unexpected exception is
    raised, or named in the trace or the error; that a trace survives JSON and a file, and that its decisions
    can be made again.

    `AssertionError` lists every case that failed, with its question and trace.

    make: ``make(setup) -> controller``, see `mio_rag.policies.setup`. Called anew for every run.
    dataset, index: other questions and passages, given together; by default the bundled demo, indexed by
        TF-IDF.
    questions: how many of them, >= 1; one more, with options, is made of the first that has an answer.
    budgets: token budgets of the evidence, >= 1.
    replay: for traces of the controller's own kind: makes the decisions again. Those of a decision process
        have one; of other kinds, without it, only the sums are checked.
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


@cache
def _demo() -> tuple[Dataset, CorpusIndex]:
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


@dataclass
class _Suite:
    """The runs, and what was wrong with them."""

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
        runs = [(question, budget) for budget in self.budgets for question in self.questions]
        first = {run: self._ordinary(*run) for run in runs}
        self._again(runs, first)
        self._limited()
        self._failing()

    def _controller(self, limits: Limits | None = None) -> Controller:
        settings = ControlSettings(limits=limits or self.limits)
        return self.make(Setup(settings, Retriever(self.index, pool=12), Selector(), seed=self.seed))

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
        """One attempt; None where it raised or returned something else, which is noted."""
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
        """A run in which nothing is expected to go wrong; its trace as plain data."""
        what = f"question '{question.id}', budget {budget}"
        reader, controller = CountingReader(), self._controller()
        found = self._attempt(what, controller, question, budget, reader)
        if found is None:
            return None
        wrong = [
            *_reply_problems(controller, question, found),
            *self._budget_problems(found, budget, reader),
            *_limit_problems(found, self.limits),
            *_cost_problems(found, reader),
            *_trace_problems(found.trace, self.replay),
        ]
        self._note(what, wrong, found.trace)
        plain: dict[str, Any] = _timeless(found.trace.to_dict())
        return plain

    def _budget_problems(self, found: Outcome, budget: int, reader: CountingReader) -> Iterator[str]:
        if found.selection is not None:
            used = reader.count([render_context(found.selection.passages)])[0]
            if used > budget:
                yield f"{used} tokens of evidence were selected, {budget} are the budget"
        if found.trace.budget > budget:
            yield f"the trace has budget {found.trace.budget}, {budget} was given"
        known = set(self.index.ids)
        for prompt in reader.prompts:
            read = reader.count([render_context(p for p in prompt.passages if p.id in known)])[0]
            if read > budget:
                yield f"a prompt held {read} tokens of evidence, {budget} are the budget"
                return

    def _again(
        self, runs: Sequence[tuple[Question, int]], first: dict[tuple[Question, int], dict[str, Any] | None]
    ) -> None:
        """One controller for all questions, in the other order, then with remembered replies."""
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
                    now = _timeless(found.trace.to_dict())
                    differ = [key for key in now if now[key] != before.get(key)]
                    wrong = [f"with the same seed, other {', '.join(differ)} than the first time"]
                    self._note(what, wrong if differ else [], found.trace)

    def _limited(self) -> None:
        """Limits that are reached at once."""
        question = self.questions[0]
        changes: list[dict[str, Any]] = [{"steps": 0}, {"seconds": 1e-9}]
        changes += [{"tokens": tokens} for tokens in (1, 500, 1000)]
        for change in changes:
            limits, reader = self.limits.replace(**change), CountingReader()
            budget = min(self.budgets) if "tokens" in change else max(self.budgets)
            what = f"question '{question.id}', {limits}"
            found = self._attempt(what, self._controller(limits), question, budget, reader)
            if found is None:
                continue
            wrong = [*_limit_problems(found, limits), *_trace_problems(found.trace, self.replay)]
            if "tokens" in change:
                wrong += _cost_problems(found, reader)
            taken = [step for step in found.trace.steps if step.dropped is None and step.calls]
            if len(taken) > 1 and limits.seconds < 1:  # the answer alone
                wrong.append(f"{len(taken)} steps were taken after the time limit")
            self._note(what, wrong, found.trace)

    def _failing(self) -> None:
        """A reader that fails at its first, second or third reply, an unplanned error, a budget of 0."""
        question, budget = self.questions[0], max(self.budgets)
        for k in range(3):
            what = f"question '{question.id}', a reader that fails at reply {k + 1}"
            reader = CountingReader(fails_at=k, error=GenerationError("the reader broke"))
            found = self._attempt(what, self._controller(), question, budget, reader)
            if found is not None:
                wrong = [*_cost_problems(found, reader), *_trace_problems(found.trace, self.replay)]
                if reader.failed and found.error is None and found.trace.answer == "":
                    wrong.append("an empty answer hides the failure")
                wrong += _reply_problems(self._controller(), question, found)
                self._note(what, wrong, found.trace)
        what = f"question '{question.id}', an unplanned error"
        reader = CountingReader(fails_at=0, error=_UnplannedError("a bug"))
        wrong = []
        try:
            found = self._controller().attempt(question, reader, budget)
        except _UnplannedError:
            pass
        except Exception as error:
            wrong = [f"raised {type(error).__name__} in its place: {error}"]
        else:
            dropped = [step.dropped or "" for step in found.trace.steps] if isinstance(found, Outcome) else []
            texts = (*dropped, str(getattr(found, "error", None)))
            if reader.failed and not any(_UnplannedError.__name__ in why for why in texts):
                wrong = ["it was swallowed"]
        self._note(what, wrong)
        wrong = ["InputError was not raised"]
        try:
            self._controller().attempt(question, CountingReader(), 0)
        except InputError:
            wrong = []
        except Exception as error:
            wrong = [f"raised {type(error).__name__} instead of InputError: {error}"]
        self._note("budget 0", wrong)


def _reply_problems(controller: Controller, question: Question, found: Outcome) -> Iterator[str]:
    """Where an outcome contradicts itself, its trace, or the question."""
    trace = found.trace
    if not controller.name or trace.policy != controller.name:
        yield f"the trace names '{trace.policy}', the controller '{controller.name}'"
    if (trace.question_id, trace.question) != (question.id, question.text):
        yield "the trace is of another question"
    if found.error is not None or found.reply is None:
        if not isinstance(found.error, MioRagError):
            yield f"a failure by {type(found.error).__name__}, which is no MioRagError"
        if trace.ended != "error" or str(found.error) not in str(trace.error):
            yield f"it failed by '{found.error}', and the trace has {trace.ended!r}, {trace.error!r}"
        if trace.answer or trace.choice is not None:
            yield "a failure with an answer"
        return
    if trace.ended == "error" or trace.error is not None:
        yield f"an answer, and the trace has {trace.ended!r}, {trace.error!r}"
    if (trace.answer, trace.choice) != (found.reply.answer.text, found.reply.choice):
        yield f"the trace has {(trace.answer, trace.choice)}, the reply is another"
    if question.choices and found.reply.choice not in range(len(question.choices)):
        yield f"choice {found.reply.choice} among {len(question.choices)} options"
    if not question.choices and found.reply.choice is not None:
        yield f"choice {found.reply.choice} of a question without options"


def _limit_problems(found: Outcome, limits: Limits) -> Iterator[str]:
    """Limits of steps and tokens that were exceeded."""
    asking = [step for step in found.trace.steps if any(call.lm_calls for call in step.calls)]
    if len(asking) - 1 > limits.steps:  # the answer is none
        yield f"{len(asking) - 1} steps asked a model, {limits.steps} are the limit"
    total = found.costs.total()
    if total.prompt_tokens + total.completion_tokens > limits.tokens:
        yield f"{total.prompt_tokens + total.completion_tokens} tokens, {limits.tokens} are the limit"


def _cost_problems(found: Outcome, reader: CountingReader) -> Iterator[str]:
    """Where the costs differ from the reader's record, or do not add up."""
    total = found.costs.total()
    tokens_in = sum(answer.prompt_tokens for answer in reader.replies)
    tokens_out = sum(answer.completion_tokens for answer in reader.replies)
    recorded = (len(reader.replies), tokens_in, tokens_out)
    charged = (total.lm_calls, total.prompt_tokens, total.completion_tokens)
    # A prompt that comes up twice is asked once and counted twice.
    more = any(a > b for a, b in zip(recorded, charged, strict=True))
    if more or (recorded[0] == charged[0] and recorded != charged):
        yield f"the reader gave (replies, tokens in, tokens out) {recorded}, and the costs have {charged}"
    parts, calls = list(found.costs.by_part().values()), found.trace.calls
    for label, numbers in (("by part", map(_numbers, parts)), ("in the trace", map(_numbers, calls))):
        summed = [math.fsum(column) for column in zip(*numbers, strict=True)] or [0.0] * 5
        if any(abs(a - b) > 1e-6 for a, b in zip(summed, _numbers(total), strict=True)):
            yield f"costs {label} add up to {summed}, and are {list(_numbers(total))} in all"
    if not all(math.isfinite(call.seconds) and call.seconds >= 0 for call in found.costs.calls):
        yield "seconds that are negative or not finite"


_numbers = attrgetter("seconds", "lm_calls", "retrieval_calls", "prompt_tokens", "completion_tokens")


def _trace_problems(trace: Trace, replay: Replay | None) -> Iterator[str]:
    """Where a trace does not add up, does not survive JSON, or cannot be made again."""
    yield from wrong_totals(trace)
    try:
        line = json.dumps(trace.to_dict(), allow_nan=False)
        back = type(trace).from_dict(json.loads(line))
        with tempfile.TemporaryDirectory(prefix="mio-rag-trace-") as folder:
            file = Path(folder) / "traces.jsonl"
            append_traces(file, [trace])
            (filed,) = read_traces(file)
        common = Trace.from_dict(json.loads(line))
    except (MioRagError, TypeError, ValueError) as error:
        yield f"the trace cannot be written and read back: {type(error).__name__}: {error}"
        return
    if not back == filed == trace:
        yield "the trace comes back from JSON as another one"
    if common.question_id != trace.question_id or common.calls != trace.calls:
        yield "the trace, read as that of any controller, is another one"
    try:
        if replay is not None:
            wrong = replay(back)
        else:
            # The settings tell the kind: what the trace says it decided by may be wrong, or missing.
            is_process = "signal" in back.about or {"model", "stop_at"} <= back.settings.keys()
            wrong = replay_process(back) if is_process else []
    except Exception as error:  # the trace is wrong in a way that the replay does not foresee
        wrong = [f"{type(error).__name__}: {error}"]
    yield from (f"made again, {one}" for one in wrong)


def _timeless(data: Any) -> Any:
    """Plain data without what a clock measured."""
    if isinstance(data, dict):
        return {key: _timeless(value) for key, value in data.items() if key not in _SECONDS}
    return [_timeless(value) for value in data] if isinstance(data, (list, tuple)) else data
