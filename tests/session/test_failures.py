"""Whatever fails on the way: what was done and spent until then is on record; faults are seen."""

import json
import math
import time
from collections.abc import Callable

import pytest

from mio_rag.errors import InputError
from mio_rag.evaluation.rows import cost_columns
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.budget import Budget, Call, Costs, LimitReached, Limits, Prices, totals
from mio_rag.session.trace import Outcome, Trace
from mio_rag.types import Answer, GenerationError, Question
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


def test_what_fails_before_the_first_call_has_an_empty_trace() -> None:
    tight = agent("fixed-2", None, limits=Limits(tokens=30))
    trace = check(tight.attempt(COMPARISON, ScriptedGenerator(said), 60), [])
    assert trace.steps == ()
    narrow = ScriptedGenerator(said, window=20)
    assert "no room" in str(check(agent("fixed-2", None).attempt(COMPARISON, narrow, 60), []).error)
    with pytest.raises(InputError, match="budget_tokens=0"):
        tight.attempt(COMPARISON, ScriptedGenerator(said), 0)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("calls", [0, 3])
def test_interrupts_are_passed_on(calls: int, kind: type[BaseException], river_index: CorpusIndex) -> None:
    with pytest.raises(kind):
        agent("fixed-4", river_index).attempt(COMPARISON, Failing(calls, kind()), 60)


def nested(failing: bool) -> Costs:
    costs = Costs()

    def walk() -> None:
        with costs.part("plan"):
            time.sleep(0.02)
            with costs.part("retrieve", retrieval_calls=1):
                time.sleep(0.05)
                costs.add(Call("rewrite", 4.0, 1, 0, 30, 5), model="small", waited=0.03)
                if failing:
                    raise ZeroDivisionError
            costs.add(Call("answer", 1.0, 1, 0, 100, 20), model="large")

    if failing:
        with pytest.raises(ZeroDivisionError):
            walk()
    else:
        walk()
    return costs


@pytest.mark.parametrize("failing", [False, True])
def test_parts_add_up_and_roll_up_even_where_one_fails(failing: bool) -> None:
    costs = nested(failing)
    parts, total = costs.by_part(), costs.total()
    assert total.seconds == pytest.approx(sum(amount.seconds for amount in parts.values()))
    assert total.prompt_tokens == (30 if failing else 130)
    assert (total.lm_calls, total.retrieval_calls) == (1 if failing else 2, 1)
    # A reply that was kept counts with what it took then; only the wait for it is no time of the part.
    assert parts["rewrite"].seconds == 4.0
    assert 0.019 <= parts["retrieve"].seconds < 4
    assert 0.019 <= parts["plan"].seconds < 4
    assert totals(costs.calls)["retrieve"].retrieval_calls == 1
    columns = cost_columns(costs, Prices({"small": (1, 2), "large": (10, 30)}), answered=True)
    dollars = (30 + 2 * 5 + (0 if failing else 10 * 100 + 30 * 20)) / 1e6
    assert columns["dollars"] == pytest.approx(dollars)


def test_money_is_not_guessed() -> None:
    prices = Prices({"large": (10, 30)})
    assert prices.of("small", 1, 0) is None
    assert prices.of("small", 0, 0) == 0
    assert nested(False).total().dollars(prices) is None
    assert Costs().total().dollars(prices) == 0
    wrong = {"a": (1,), "b": (1, -1), "c": ("x", 1), "d": (1, math.inf), "e": (math.nan, 1)}
    with pytest.raises(InputError) as found:
        Prices(wrong)  # type: ignore[arg-type]
    assert len({problem.split("]")[0].split(" ")[0] for problem in found.value.problems}) >= 5


def test_models_share_the_limit_and_keep_their_replies_apart() -> None:
    one, other = ScriptedGenerator({"q": "yes"}), ScriptedGenerator({"q": "no"})
    budget = Budget(one, Limits(tokens=60), models=lambda name: other)
    prompt = Prompt(Question("q", "why"), (), "s", "u " * 15)
    first, second = budget.branch(), budget.branch("other")
    assert first.generate("a", prompt, 10).text == "yes"
    assert second.generate("b", prompt, 10).text == "no"  # the same prompt, another model
    assert first.tokens == second.tokens
    for branch in (first, second):
        with pytest.raises(LimitReached):
            branch.generate("a", prompt, 40)
