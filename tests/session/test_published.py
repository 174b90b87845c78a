"""What the published agents need: a process from the start, its token limits and temperatures, free plans."""

from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.learning.mdp import solve_plan
from mio_rag.learning.rules import decided, replay
from mio_rag.policy import policy_of
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.trace import Outcome
from mio_rag.types import Answer
from tests.session.scripted import COMPARISON, agent, said
from tests.session.test_policies import composed

START: dict[str, Any] = {"by": "mdp", "from_start": True, "signal": "tracked", "query": "model"}


class Watching(ScriptedGenerator):
    """Notes longest reply and temperature of every prompt."""

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        self.seen = [*getattr(self, "seen", []), (prompt.system.split()[1], max_tokens, prompt.temperature)]
        return super()._generate(prompt, max_tokens)


def policy(index: CorpusIndex, reader: ScriptedGenerator, **tables: Any) -> Outcome:
    data = {"price": {"token": 0.0}, "order": {"workflow": "no-retrieval"}, "repeat": START, **tables}
    session = composed(data, index)
    return session.attempt(COMPARISON, reader, 60).check()


def test_a_process_from_the_start_decides_as_the_rule_of_that_name(river_index: CorpusIndex) -> None:
    process = {"horizon": 4, "success": 1.0}
    found = policy(river_index, ScriptedGenerator(said), repeat={**START, "process": process}).trace
    model = RetrievalMDP(**process)
    same = agent("mdp", river_index, model=model).attempt(COMPARISON, ScriptedGenerator(said), 60).trace
    assert [one.step.action for one in decided(found)] == [one.step.action for one in decided(same)]
    assert [one.uncertainty for one in decided(found)] == [one.uncertainty for one in decided(same)]
    assert decided(found)[0].q_values == pytest.approx(solve_plan(model).q_at(0, 1.0))
    assert replay(found) == []


def test_queries_notes_and_answers_have_limits_and_temperatures_of_their_own(
    river_index: CorpusIndex,
) -> None:
    reader = Watching(said)
    repeat = {
        **START, "by": "fixed-4", "query_tokens": 11, "query_temperature": 0.4, "note_tokens": 12, "notes": 1
    }  # fmt: skip
    reader_model = {"models": {"reader": {"temperature": 0.7}}, "limits": {"max_tokens": 13}}
    policy(river_index, reader, repeat=repeat, **reader_model)
    assert set(reader.seen) == {("write", 11, 0.4), ("think", 12, 0.0), ("answer", 13, 0.7)}
    assert policy_of(reader_model, "x").is_plain is False  # the short way knows no temperature


def test_the_published_process_is_solved_to_its_error_in_its_sweeps() -> None:
    exact = solve_plan(RetrievalMDP(horizon=None), bounded=False)
    rough = solve_plan(RetrievalMDP(horizon=None, epsilon=0.5, iterations=1000), bounded=False)
    cut = solve_plan(RetrievalMDP(horizon=None, iterations=3), bounded=False)
    assert (exact.solution.method, rough.solution.method) == ("one_pass", "value_iteration")
    assert abs(rough.values() - exact.values()).max() <= rough.solution.error <= 0.5
    assert (cut.solution.converged, cut.solution.sweeps) == (False, 3)
    with pytest.raises(InputError, match="iterations has no effect with a horizon"):
        RetrievalMDP(iterations=3)


def test_the_reader_writes_the_workflow_and_what_is_none_becomes_plain(river_index: CorpusIndex) -> None:
    for plan, name, failed in (("answer", "answer", False), ("dance", "plain", True)):

        def planned(prompt: Prompt, plan: str = plan) -> str:
            return plan if prompt.system.startswith("You plan") else said(prompt)

        order = {"by": "model", "grammar": False}
        found = policy(river_index, ScriptedGenerator(planned), order=order, repeat={"by": "never"}).trace
        assert found.workflow["name"] == name
        assert (found.fallback is not None) is failed
        assert found.columns()["invalid_plans"] == failed
