"""Whatever fails on the way: what was done and spent until then is on record; faults are seen."""

import json
from collections.abc import Callable

import pytest

from mio_rag.errors import InputError
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.budget import totals
from mio_rag.session.trace import Outcome, Trace
from mio_rag.types import Answer, GenerationError
from tests.session.scripted import COMPARISON, agent, said


class Failing(ScriptedGenerator):
    """Says what it is told to, until its n-th call fails; keeps what it said."""

    def __init__(self, calls: int, error: BaseException, answers: Callable[[Prompt], str] = said) -> None:
        super().__init__(answers)
        self.left, self.error, self.given = calls, error, list[Answer]()

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        if self.left == 0:
            raise self.error
        self.left -= 1
        self.given.append(super()._generate(prompt, max_tokens))
        return self.given[-1]


def check(found: Outcome, given: list[Answer]) -> Trace:
    """It failed; its costs are those of the generator; the trace comes back."""
    assert found.error is not None
    trace = found.trace
    assert trace.ended == "error"
    assert trace.error == f"{type(found.error).__name__}: {found.error}"
    assert (trace.answer, trace.choice) == ("", None)
    assert sum(call.lm_calls for call in trace.calls) == len(given)
    assert sum(call.prompt_tokens for call in trace.calls) == sum(answer.prompt_tokens for answer in given)
    assert sum(call.completion_tokens for call in trace.calls) == sum(a.completion_tokens for a in given)
    assert trace.parts == totals(trace.calls)
    again = Trace.from_dict(json.loads(json.dumps(trace.to_dict())))
    assert again == trace
    return trace


@pytest.mark.parametrize("calls", range(5))
def test_a_step_that_fails_is_dropped_and_the_question_goes_on(calls: int, river_index: CorpusIndex) -> None:
    class Once(Failing):
        def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
            if self.left == 0:
                self.left = -1
                raise self.error
            self.left -= 1
            self.given.append(ScriptedGenerator._generate(self, prompt, max_tokens))
            return self.given[-1]

    model = Once(calls, GenerationError("out of order"))
    found = agent("fixed-4", river_index).attempt(COMPARISON, model, 60).check()
    assert found.trace.answer == "the Tiber"
    dropped = [step.do for step in found.trace.dropped]
    # Two thoughts, a query and the answer; a dropped step ends the loop.
    assert dropped == [["reason"], ["search_again"], ["reason"], ["answer"], []][calls]
    assert sum(call.lm_calls for call in found.trace.calls) == len(model.given)
    assert any(step.failed for step in found.trace.steps) == (calls < 4)


def test_a_model_that_never_answers_is_a_failure_with_its_costs(river_index: CorpusIndex) -> None:
    model = Failing(1, GenerationError("out of order"))
    found = agent("fixed-2", river_index).attempt(COMPARISON, model, 60)
    trace = check(found, model.given)
    assert found.selection is not None
    assert [p["id"] for p in trace.passages] == list(found.selection.ids)
    with pytest.raises(GenerationError, match="out of order"):
        found.check()


def test_a_model_that_cannot_be_measured_is_asked_no_further(river_index: CorpusIndex) -> None:
    model = Failing(99, GenerationError("never"))
    found = agent("fixed-2@confidence", river_index).attempt(COMPARISON, model, 60)
    check(found, model.given)
    assert isinstance(found.error, InputError)
    assert len(model.given) == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("calls", [0, 3])
def test_interrupts_are_passed_on(calls: int, kind: type[BaseException], river_index: CorpusIndex) -> None:
    with pytest.raises(kind):
        agent("fixed-4", river_index).attempt(COMPARISON, Failing(calls, kind()), 60)
