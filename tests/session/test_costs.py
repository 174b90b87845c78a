"""Costs nest, add up, and are counted where a part fails."""

import time

import pytest

from mio_rag.evaluation.rows import cost_columns
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.session.budget import Budget, Call, Costs, LimitReached, Limits, Prices, totals
from mio_rag.types import Question


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
