"""What is wrong with one attempt of a controller: its reply, its limits, its costs, its trace."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mio_rag.errors import MioRagError
from mio_rag.learning.rules import replay as replay_process
from mio_rag.policies.setup import Controller
from mio_rag.session.budget import Limits
from mio_rag.session.costs import Amount, Call
from mio_rag.session.trace import Outcome, Trace, append_traces, read_traces, wrong_totals
from mio_rag.testing.readers import CountingReader
from mio_rag.types import Question

#: Makes the decisions of a trace again: what comes out differently, in words; nothing, if all is well.
Replay = Callable[[Any], list[str]]

_SECONDS = frozenset(("seconds", "latency_seconds"))


def reply_problems(controller: Controller, question: Question, found: Outcome) -> Iterator[str]:
    """Where what came back contradicts itself, its trace, or the question."""
    trace = found.trace
    if not controller.name or trace.policy != controller.name:
        yield f"the trace names '{trace.policy}', the controller '{controller.name}'"
    if (trace.question_id, trace.question) != (question.id, question.text):
        yield "the trace is of another question"
    if found.error is not None or found.reply is None:
        if not isinstance(found.error, MioRagError):
            yield f"a failure by {type(found.error).__name__}, which is no MioRagError"
        if trace.ended != "error" or str(found.error) not in str(trace.error):
            yield f"it failed by '{found.error}', and the trace says {trace.ended!r}, {trace.error!r}"
        if trace.answer or trace.choice is not None:
            yield "a failure with an answer"
        return
    if trace.ended == "error" or trace.error is not None:
        yield f"an answer, and the trace says {trace.ended!r}, {trace.error!r}"
    if (trace.answer, trace.choice) != (found.reply.answer.text, found.reply.choice):
        yield f"the trace says {(trace.answer, trace.choice)}, the reply is another"
    if question.choices and found.reply.choice not in range(len(question.choices)):
        yield f"choice {found.reply.choice} among {len(question.choices)} options"
    if not question.choices and found.reply.choice is not None:
        yield f"choice {found.reply.choice} of a question without options"


def limit_problems(found: Outcome, limits: Limits) -> Iterator[str]:
    """Limits that were passed; that of time binds only what begins."""
    asking = [step for step in found.trace.steps if any(call.lm_calls for call in step.calls)]
    if len(asking) - 1 > limits.steps:  # the answer is none
        yield f"{len(asking) - 1} steps asked a model, {limits.steps} are the limit"
    total = found.costs.total()
    if total.prompt_tokens + total.completion_tokens > limits.tokens:
        yield f"{total.prompt_tokens + total.completion_tokens} tokens, {limits.tokens} are the limit"


def cost_problems(found: Outcome, reader: CountingReader) -> Iterator[str]:
    """Where the record of costs is not what the reader saw, or does not add up."""
    total = found.costs.total()
    into = sum(answer.prompt_tokens for answer in reader.said)
    out = sum(answer.completion_tokens for answer in reader.said)
    asked, told = (
        (len(reader.said), into, out),
        (total.lm_calls, total.prompt_tokens, total.completion_tokens),
    )
    # A prompt that comes up twice is asked once and counted twice.
    if any(a > b for a, b in zip(asked, told, strict=True)) or (asked[0] == told[0] and asked != told):
        yield f"the reader gave (replies, tokens in, tokens out) {asked}, and the costs say {told}"
    parts = list(found.costs.by_part().values())
    for label, numbers in (
        ("by part", [_numbers(part) for part in parts]),
        ("in the trace", [_of_call(call) for call in found.trace.calls]),
    ):
        summed = [math.fsum(column) for column in zip(*numbers, strict=True)] or [0.0] * 5
        if any(abs(a - b) > 1e-6 for a, b in zip(summed, _numbers(total), strict=True)):
            yield f"costs {label} add up to {summed}, and are {list(_numbers(total))} in all"
    if not all(math.isfinite(call.seconds) and call.seconds >= 0 for call in found.costs.calls):
        yield "seconds that are none"


def _numbers(amount: Amount) -> tuple[float, ...]:
    return (
        amount.seconds,
        amount.lm_calls,
        amount.retrieval_calls,
        amount.prompt_tokens,
        amount.completion_tokens,
    )


def _of_call(call: Call) -> tuple[float, ...]:
    return call.seconds, call.lm_calls, call.retrieval_calls, call.prompt_tokens, call.completion_tokens


def trace_problems(trace: Trace, replay: Replay | None) -> Iterator[str]:
    """Where a trace does not add up, comes back as another one, or cannot be made again."""
    yield from trace.problems()
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
    yield from _made_again(back, replay)


def _made_again(trace: Trace, replay: Replay | None) -> list[str]:
    try:
        if replay is not None:
            wrong = replay(trace)
        else:
            # The settings tell the kind: what the trace says it decided by may be wrong, or missing.
            is_process = "signal" in trace.about or {"model", "stop_at"} <= trace.settings.keys()
            wrong = replay_process(trace) if is_process else []
    except Exception as error:  # of a trace that is wrong in a way which the replay does not foresee
        wrong = [f"{type(error).__name__}: {error}"]
    return [f"made again, {one}" for one in wrong]


def timeless(data: Any) -> Any:
    """Plain data without what a clock said."""
    if isinstance(data, dict):
        return {key: timeless(value) for key, value in data.items() if key not in _SECONDS}
    if isinstance(data, (list, tuple)):
        return [timeless(value) for value in data]
    return data
