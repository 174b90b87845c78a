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
from mio_rag.generation.protocol import Choice, Prompt
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

#: Makes a controller of what it needs.
Make = Callable[[Setup], Controller]
#: Makes the decisions of a trace again, and returns what comes out differently, in words.
Replay = Callable[[Any], list[str]]

_LIMITS = Limits(steps=4, tokens=6000)
_numbers = attrgetter("seconds", "lm_calls", "retrieval_calls", "prompt_tokens", "completion_tokens")


class _UnplannedError(Exception):
    """An error that no controller expects, and that each must let pass."""


class CountingReader(ExtractiveGenerator):
    """The extractive reader, with a record of its prompts and replies.

    fails_at: from this reply on (counted from 0) it raises `error`.
    """

    def __init__(self, fails_at: float = math.inf, error: Exception | None = None) -> None:
        super().__init__()
        self._fails_at, self._error = fails_at, error or GenerationError("the reader broke")
        self.prompts: list[Prompt] = []
        self.replies: list[Answer] = []
        self.failed = False

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer as the extractive reader does."""
        self.replies.append(answer := self._turn(prompt, super().generate, prompt, max_tokens=max_tokens))
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
        chosen = self._turn(prompt, super().choose_scored, prompt, choices)
        self.replies.append(chosen.answer)
        return chosen

    def _turn(self, prompt: Prompt, reply: Callable[..., T], *args: Any, **options: Any) -> T:
        self.prompts.append(prompt)
        if len(self.prompts) > self._fails_at:
            self.failed = True
            raise self._error
        return reply(*args, **options)


def check_controller(
    make: Make,
    *,
    name: str,
    dataset: Dataset | None = None,
    index: CorpusIndex | None = None,
    questions: int = 6,
    budgets: Sequence[int] = (60, 200),
    limits: Limits = _LIMITS,
    seed: int = 0,
    replay: Replay | None = None,
) -> None:
    """Run a controller on the bundled demo with a reader that needs no model, and check what it must keep.

    Every attempt returns an `Outcome` with a reply or an error. Evidence, steps, tokens and time keep their
    limits. Costs hold all that the reader was asked, and add up by part and over the trace. The same seed
    makes the same trace, in any order of questions and with stored replies. A failing reader gives an error
    with what was spent until then; an unexpected exception is raised, or named in the trace or the error. A
    trace survives JSON and a file, and its decisions can be made again.

    make: ``make(setup) -> controller``, see `mio_rag.policies.setup`. Called anew for every run.
    dataset, index: other questions and passages, given together; default: the demo, indexed by TF-IDF.
    questions: how many of them, >= 1; one more, with options, is made of the first that has an answer.
    budgets: token budgets of the evidence, >= 1.
    replay: makes the decisions of a trace again. Default: that of decision processes, for their traces.

    Raises `AssertionError` with every case that failed, its question and its trace.
    """
    if (dataset is None) != (index is None):
        raise InputError("dataset and index belong together: give both, or neither for the demo")
    if questions < 1 or not budgets or min(budgets) < 1:
        raise InputError(f"questions={questions} and budgets={list(budgets)} must be >= 1")
    if dataset is None or index is None:
        dataset, index = _demo()
    suite = _Suite(make, index, limits, seed, replay)
    runs = [(question, budget) for budget in budgets for question in _asked(dataset, questions)]
    first = {run: suite.ordinary(*run) for run in runs}
    suite.again([(run, before) for run in reversed(runs) if (before := first[run]) is not None])
    suite.limited(runs[0][0], min(budgets), max(budgets))
    suite.failing(runs[0][0], max(budgets))
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
        first, *others = answered
        wrong = dict.fromkeys(q.answers[0] for q in others if q.answers[0] not in first.answers)
        if options := list(wrong)[:2]:
            choices = (*options, first.answers[0])
            chosen = (*chosen, replace(first, id=f"{first.id} with options", choices=choices))
    return chosen


@dataclass
class _Suite:
    """The runs, and what was wrong with them."""

    make: Make
    index: CorpusIndex
    limits: Limits
    seed: int
    replay: Replay | None
    checked: int = 0
    failed: list[str] = field(default_factory=list)

    def controller(self, limits: Limits | None = None) -> Controller:
        settings = ControlSettings(limits=limits or self.limits)
        return self.make(Setup(settings, Retriever(self.index, pool=12), Selector(), seed=self.seed))

    def note(self, what: str, wrong: Sequence[str], trace: Trace | None = None) -> None:
        """Count a case, and keep what is wrong with it."""
        self.checked += 1
        if wrong:
            shown = "" if trace is None else f"\n  {json.dumps(trace.to_dict(), default=str)}"
            self.failed.append(f"{what}: {'; '.join(wrong)}{shown}")

    def attempt(self, what: str, controller: Controller, *asked: Any) -> Outcome | None:
        """Attempt a question; None where it raised or returned something else, which is noted."""
        try:
            found = controller.attempt(*asked)
        except Exception as error:  # a MioRagError makes a failure, and this reader raises no other
            self.note(what, [f"raised {type(error).__name__}: {error}"])
            return None
        if not isinstance(found, Outcome):
            self.note(what, [f"returned a {type(found).__name__}, no Outcome"])
            return None
        return found

    def ordinary(self, question: Question, budget: int) -> dict[str, Any] | None:
        """A run in which nothing is expected to go wrong; its trace as plain data."""
        what = f"question '{question.id}', budget {budget}"
        reader, controller = CountingReader(), self.controller()
        found = self.attempt(what, controller, question, reader, budget)
        if found is None:
            return None
        known = set(self.index.ids)
        evidence = [[p for p in prompt.passages if p.id in known] for prompt in reader.prompts]
        read = [found.selection.passages] if found.selection is not None else []
        used = reader.count([render_context(passages) for passages in [*read, *evidence]])
        wrong = [
            *_reply_problems(controller, question, found),
            *(f"{max(used)} tokens of evidence were read, {budget} are the budget" for _ in [0]
              if max(used, default=0) > budget),
            *_limit_problems(found, self.limits),
            *_cost_problems(found, reader),
            *_trace_problems(found.trace, self.replay),
        ]  # fmt: skip
        if found.trace.budget > budget:
            wrong.append(f"the trace has budget {found.trace.budget}, {budget} was given")
        self.note(what, wrong, found.trace)
        plain: dict[str, Any] = _timeless(found.trace.to_dict())
        return plain

    def again(self, runs: Sequence[tuple[tuple[Question, int], dict[str, Any]]]) -> None:
        """One controller for all questions, in the other order, then with stored replies."""
        controller = self.controller()
        for (question, budget), before in runs:
            reader, replies = CountingReader(), Replies()
            for turn in ("again, after other questions", "again, with remembered replies"):
                what = f"question '{question.id}', budget {budget}, {turn}"
                found = self.attempt(what, controller, question, reader, budget, replies)
                if found is not None:
                    now = _timeless(found.trace.to_dict())
                    differ = [key for key in now if now[key] != before.get(key)]
                    wrong = [f"with the same seed, other {', '.join(differ)} than the first time"]
                    self.note(what, wrong if differ else [], found.trace)

    def limited(self, question: Question, least: int, most: int) -> None:
        """Limits that are reached at once."""
        changes: list[tuple[dict[str, Any], int]] = [({"steps": 0}, most), ({"seconds": 1e-9}, most)]
        for change, budget in (*changes, *(({"tokens": tokens}, least) for tokens in (1, 500, 1000))):
            limits, reader = self.limits.replace(**change), CountingReader()
            what = f"question '{question.id}', {limits}"
            found = self.attempt(what, self.controller(limits), question, reader, budget)
            if found is None:
                continue
            wrong = [*_limit_problems(found, limits), *_trace_problems(found.trace, self.replay)]
            if "tokens" in change:
                wrong += _cost_problems(found, reader)
            taken = [step for step in found.trace.steps if step.dropped is None and step.calls]
            if "seconds" in change and len(taken) > 1:  # the answer alone
                wrong.append(f"{len(taken)} steps were taken after the time limit")
            self.note(what, wrong, found.trace)

    def failing(self, question: Question, budget: int) -> None:
        """A reader that fails at its first, second or third reply, an unplanned error, a budget of 0."""
        for k in range(3):
            what = f"question '{question.id}', a reader that fails at reply {k + 1}"
            reader, controller = CountingReader(fails_at=k), self.controller()
            found = self.attempt(what, controller, question, reader, budget)
            if found is not None:
                wrong = [*_cost_problems(found, reader), *_trace_problems(found.trace, self.replay)]
                if reader.failed and found.error is None and found.trace.answer == "":
                    wrong.append("an empty answer hides the failure")
                self.note(what, [*wrong, *_reply_problems(controller, question, found)], found.trace)
        reader, wrong = CountingReader(fails_at=0, error=_UnplannedError("a bug")), []
        try:
            found = self.controller().attempt(question, reader, budget)
        except _UnplannedError:
            pass
        except Exception as error:
            wrong = [f"raised {type(error).__name__} in its place: {error}"]
        else:
            steps = found.trace.steps if isinstance(found, Outcome) else ()
            texts = [str(getattr(found, "error", None)), *(step.dropped or "" for step in steps)]
            if reader.failed and not any(_UnplannedError.__name__ in why for why in texts):
                wrong = ["it was swallowed"]
        self.note(f"question '{question.id}', an unplanned error", wrong)
        wrong = ["InputError was not raised"]
        try:
            self.controller().attempt(question, CountingReader(), 0)
        except InputError:
            wrong = []
        except Exception as error:
            wrong = [f"raised {type(error).__name__} instead of InputError: {error}"]
        self.note("budget 0", wrong)


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
    if found.reply.choice not in (range(len(question.choices)) if question.choices else (None,)):
        yield f"choice {found.reply.choice} among {len(question.choices)} options"


def _limit_problems(found: Outcome, limits: Limits) -> Iterator[str]:
    """Limits of steps and tokens that were exceeded."""
    asking = [step for step in found.trace.steps if any(call.lm_calls for call in step.calls)]
    if len(asking) - 1 > limits.steps:  # the answer is none
        yield f"{len(asking) - 1} steps asked a model, {limits.steps} are the limit"
    total = found.costs.total()
    if (tokens := total.prompt_tokens + total.completion_tokens) > limits.tokens:
        yield f"{tokens} tokens, {limits.tokens} are the limit"


def _cost_problems(found: Outcome, reader: CountingReader) -> Iterator[str]:
    """Where the costs differ from the reader's record, or do not add up."""
    total, replies = found.costs.total(), reader.replies
    recorded = (
        len(replies), sum(a.prompt_tokens for a in replies), sum(a.completion_tokens for a in replies),
    )  # fmt: skip
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


def _trace_problems(trace: Trace, replay: Replay | None) -> Iterator[str]:
    """Where a trace does not add up, does not survive JSON, or cannot be made again."""
    yield from wrong_totals(trace)
    try:
        line = json.dumps(trace.to_dict(), allow_nan=False)
        back, common = (kind.from_dict(json.loads(line)) for kind in (type(trace), Trace))
        with tempfile.TemporaryDirectory(prefix="mio-rag-trace-") as folder:
            file = Path(folder) / "traces.jsonl"
            append_traces(file, [trace])
            (filed,) = read_traces(file)
    except (MioRagError, TypeError, ValueError) as error:
        yield f"the trace cannot be written and read back: {type(error).__name__}: {error}"
        return
    if not back == filed == trace:
        yield "the trace comes back from JSON as another one"
    if common.question_id != trace.question_id or common.calls != trace.calls:
        yield "the trace, read as that of any controller, is another one"
    # The settings show the kind: what the trace says it decided by may be wrong, or missing.
    is_process = "signal" in back.about or {"model", "stop_at"} <= back.settings.keys()
    try:
        wrong = replay(back) if replay is not None else replay_process(back) if is_process else []
    except Exception as error:  # the trace is wrong in a way that the replay does not foresee
        wrong = [f"{type(error).__name__}: {error}"]
    yield from (f"made again, {one}" for one in wrong)


def _timeless(data: Any) -> Any:
    """Plain data without what a clock measured."""
    if isinstance(data, dict):
        timed = ("seconds", "latency_seconds")
        return {key: _timeless(value) for key, value in data.items() if key not in timed}
    return [_timeless(value) for value in data] if isinstance(data, (list, tuple)) else data
