"""Whether to search again: decided exactly, and told by the numbers that decided."""

import re

import numpy as np
import pytest

from mio_rag.corpora.load import Dataset
from mio_rag.deciders.repeat import Looked, by_price, by_process
from mio_rag.generation import ScriptedGenerator
from mio_rag.learning.rules import State
from mio_rag.policies.compose import compose
from mio_rag.policies.setup import Setup
from mio_rag.policy import policy_of
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.session.trace import Trace

_OPEN = ("stop", "retrieve")
_SUM = re.compile(r"(?:expected|bring) \+(\S+) (?:at U = (\S+) \((\w+)\) )?for (\d+) tokens at (\S+?)[,;]")


def told(why: str) -> tuple[float, float]:
    """Gain and cost, as a reader takes them from a sentence."""
    found = _SUM.search(f"{why};")
    assert found is not None, why
    return float(found[1]), int(found[4]) * float(found[5])


def best_number(finds: float, doubt: float, cost: float, left: int) -> int:
    """How many searches are best, the fewest of equals: all numbers tried."""
    worth = [doubt - doubt * (1 - finds) ** k - k * cost for k in range(left + 1)]
    return next(k for k, value in enumerate(worth) if value >= max(worth) - 1e-12)


def test_the_process_is_the_best_of_all_numbers_of_searches() -> None:
    rng = np.random.default_rng(3)
    acted = set()
    for _ in range(500):
        most, doubt, finds = int(rng.integers(1, 5)), float(rng.random()), float(rng.random())
        step, price = int(rng.integers(1, most + 1)), float(rng.choice([0.0, 0.0002, 0.0005, 0.001]))
        looked, state = (
            Looked(finds * doubt, int(rng.integers(20, 400)), price),
            State("q", step, doubt, _OPEN),
        )
        decision = by_process(finds, most)(state, looked)
        best = best_number(finds, doubt, looked.cost, most + 1 - step)
        assert (decision.action == "retrieve") == (best > 0)
        assert decision.action == by_price(state, looked).action  # of the same U
        assert decision.q_values is not None
        if best:
            worth = doubt - doubt * (1 - finds) ** best - best * looked.cost
            assert decision.q_values["retrieve"] == pytest.approx(worth)
        acted.add((decision.action, best))
    assert {("stop", 0), ("retrieve", 1), ("retrieve", 3)} <= acted


@pytest.mark.parametrize("by", ["price", "process"])
@pytest.mark.parametrize("signal", ["complete", "evidence", "tracked"])
def test_a_sentence_never_contradicts_its_decision(by: str, signal: str) -> None:
    rule = by_price if by == "price" else by_process(0.15, 2, signal)
    rng = np.random.default_rng(5)
    actions = set()
    for _ in range(500):
        doubt, missing = rng.random(2)
        state, looked = (
            State("q", 1, float(doubt), _OPEN),
            Looked(0.15 * missing, int(rng.integers(20, 300)), 5e-4),
        )
        if signal == "complete":
            looked = Looked(0.15 * float(doubt), looked.tokens, looked.price)
        decision = rule(state, looked)
        gain, cost = told(decision.why)
        assert (gain > cost) == (decision.action == "retrieve")
        actions.add(decision.action)
    assert actions == {"stop", "retrieve"}


@pytest.mark.parametrize("signal", ["complete", "evidence", "tracked"])
def test_traces_tell_what_decided(signal: str, river_index: CorpusIndex, rivers: Dataset) -> None:
    sums = 0
    for token in (0.0004, 0.001, 0.002):
        data = {
            "price": {"token": token},
            "search": {"pool": 4},
            "repeat": {"by": "process", "signal": signal, "finds": 0.15, "most": 3},
        }
        controller = compose(policy_of(data, "tried"), Setup(retriever=Retriever(river_index, pool=4)))
        for question in rivers.questions:
            reader = ScriptedGenerator(lambda _: "Tiber")
            trace = controller.attempt(question, reader, 1000).check().trace
            assert isinstance(trace, Trace)
            for step in trace.steps:
                if " tokens at " in step.why and step.why.startswith(("retrieved again", "stopped")):
                    gain, cost = told(step.why)
                    assert (gain > cost) == step.why.startswith("retrieved again"), step.why
                    assert (f"({signal})" in step.why) == (signal != "complete")
                    sums += 1
    assert sums


def test_the_price_of_a_total_falls_where_nothing_was_worth_it(
    river_index: CorpusIndex, rivers: Dataset
) -> None:
    policy = {"price": {"total": 10_000, "questions": 10}, "selection": {"passage_penalty": 1.0}}
    made = compose(policy_of(policy, "dear"), Setup(retriever=Retriever(river_index)))
    try:
        reader, prices = ScriptedGenerator(lambda prompt: "yes"), []
        for _ in range(3):
            trace = made.attempt(rivers.questions[0], reader, 200).trace
            assert isinstance(trace, Trace)
            assert not trace.passages
            prices.append(trace.token_price)
    finally:
        made.close()
    assert prices[0] > prices[1] > prices[2] > 0
