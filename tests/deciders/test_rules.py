"""The loop: decisions follow the process, limits bind, traces can be replayed, parts can be replaced."""

import json

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.generation import ExtractiveGenerator, ScriptedGenerator
from mio_rag.learning.mdp import solve_plan
from mio_rag.learning.rules import State, decided, make_policy, open_actions, replay
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.budget import Limits, totals
from mio_rag.session.trace import Outcome, Trace
from mio_rag.types import GenerationError
from tests.session.scripted import CHOICE, COMPARISON, Sure, agent, said


def check_books(outcome: Outcome) -> Trace:
    """The trace adds up, survives the disk, and its decisions come out again."""
    trace = outcome.check().trace
    again = Trace.from_dict(json.loads(json.dumps(trace.to_dict())))
    assert json.loads(json.dumps(again.to_dict())) == json.loads(json.dumps(trace.to_dict()))
    assert replay(again) == []
    assert trace.parts == totals(trace.calls)
    return trace


def actions(trace: Trace) -> list[str]:
    return [one.step.action for one in decided(trace)]


def test_decisions_are_those_of_the_process(river_index: CorpusIndex) -> None:
    trace = check_books(agent("mdp", river_index).attempt(COMPARISON, ScriptedGenerator(said), 60))
    plan = solve_plan(RetrievalMDP())
    steps = decided(trace)
    assert steps
    for k, one in enumerate(steps):
        possible = open_actions([before.step for before in steps[:k]], False)
        q = plan.q_at(k, one.uncertainty)
        assert one.q_values == pytest.approx(q)
        assert q[one.step.action] >= max(q[a] for a in possible) - 1e-9
    assert steps[0].step.action == "retrieve"
    assert steps[0].step.query == COMPARISON.text  # the first query is free
    assert trace.answer == "the Tiber"


def test_tracked_uncertainty_follows_the_model(river_index: CorpusIndex) -> None:
    model = RetrievalMDP(success=1.0)
    trace = check_books(
        agent("fixed-4", river_index, model=model).attempt(COMPARISON, ScriptedGenerator(said), 60)
    )
    level = 1.0
    for one in decided(trace):
        assert one.uncertainty == pytest.approx(level)
        if one.step.action == "reason" and one.step.note:
            level -= 0.08
        elif one.step.action == "retrieve" and one.step.new_ids:
            level -= 0.25
    assert trace.about["uncertainty"] == pytest.approx(level)
    assert actions(trace) == ["retrieve", "reason", "retrieve", "reason"]


def test_what_brings_nothing_is_not_repeated(river_index: CorpusIndex) -> None:
    # It always asks the same and always thinks the same.
    dull = ScriptedGenerator(lambda prompt: "again")
    trace = check_books(agent("threshold", river_index).attempt(COMPARISON, dull, 60))
    assert trace.ended == "stop"
    did = [(one.step.action, one.step.query or one.step.note) for one in decided(trace)]
    assert len(did) == len(set(did)) or did[-1][1] == ""
    assert {"retrieve", "reason"} == set(actions(trace))
    assert len(did) < 10  # it ran dry before the limit
    only = check_books(agent("always-reason", river_index).attempt(COMPARISON, dull, 60))
    thought = decided(only)
    assert [one.step.note for one in thought] == ["again", ""]
    assert thought[1].next_uncertainty == thought[1].uncertainty  # no new note: U stays


@pytest.mark.parametrize("name", ["mdp@evidence", "mdp", "always-retrieve@evidence", "fixed-9", "random"])
def test_a_search_that_was_made_is_no_step(name: str, demo: Dataset, demo_index: CorpusIndex) -> None:
    noticed = 0
    for question in demo.questions[:6]:
        trace = check_books(agent(name, demo_index).attempt(question, ExtractiveGenerator(), 256))
        steps = decided(trace)
        searched = [one.step.query.lower() for one in steps if one.step.action == "retrieve"]
        assert len(searched) == len(set(searched)), trace.question
        noticed += sum(bool(one.step.closed) for one in steps) + bool(trace.about.get("closed"))
    assert noticed  # the model did ask for what had been searched for; its reply was paid, and no step


def test_confidence_is_measured_and_its_draft_is_the_answer(river_index: CorpusIndex) -> None:
    generator = Sure(lambda prompt: 0.97 if prompt.passages else 0.2)
    trace = check_books(agent("mdp@confidence", river_index).attempt(COMPARISON, generator, 60))
    assert trace.about["signal"] == "confidence"
    assert decided(trace)[0].uncertainty == pytest.approx(0.8)
    assert trace.about["uncertainty"] == pytest.approx(0.03)
    assert trace.ended == "stop"
    assert "answer" not in trace.parts  # the draft answered
    assert trace.parts["measure"].lm_calls == len(decided(trace)) + 1
    with pytest.raises(InputError, match="gives no probabilities"):
        agent("mdp@confidence", river_index).attempt(COMPARISON, ExtractiveGenerator(), 60).check()


def test_evidence_is_measured_from_what_is_read(river_index: CorpusIndex) -> None:
    outcome = agent("always-retrieve@evidence", river_index).attempt(COMPARISON, ScriptedGenerator(said), 60)
    trace = check_books(outcome)
    assert outcome.selection is not None
    pool = outcome.selection.candidates
    strongest = max(pool.relevance[i] for i in outcome.selection.chosen)
    assert trace.about["uncertainty"] == pytest.approx(1 - min(1, strongest))
    assert decided(trace)[0].uncertainty == 1.0


def test_closed_book_never_retrieves_and_is_sure_of_a_choice_by_its_letter() -> None:
    trace = check_books(agent("mdp@confidence", None).attempt(CHOICE, Sure(lambda prompt: 0.99), 60))
    assert (trace.choice, trace.answer, decided(trace)) == (1, "The Tiber", [])
    assert trace.about["uncertainty"] == pytest.approx(0.015)  # 1 where all three are equally probable
    for name in ("mdp", "threshold", "random", "fixed-3", "always-reason"):
        trace = check_books(agent(name, None).attempt(CHOICE, ScriptedGenerator(said), 60))
        assert set(actions(trace)) <= {"reason"}
        assert trace.choice == 1
        assert all(call.retrieval_calls == 0 for call in trace.calls)
    with pytest.raises(InputError, match="needs a corpus"):
        agent("always-retrieve", None)


@pytest.mark.parametrize(
    "name", ["mdp", "always-reason", "always-retrieve", "threshold", "random", "fixed-9"]
)
def test_every_limit_binds_every_controller(name: str, river_index: CorpusIndex) -> None:
    for steps in (0, 1, 3):
        trace = check_books(
            agent(name, river_index, limits=Limits(steps=steps)).attempt(
                COMPARISON, ScriptedGenerator(said), 60
            )
        )
        assert len(decided(trace)) <= steps
        assert trace.answer == "the Tiber"
    enough = Limits(tokens=20_000)
    free = agent(name, river_index, limits=enough).attempt(COMPARISON, ScriptedGenerator(said), 60).trace
    for tokens in (420, 500, 700, 1000):
        outcome = agent(name, river_index, limits=Limits(tokens=tokens)).attempt(
            COMPARISON, ScriptedGenerator(said), 60
        )
        trace = check_books(outcome)
        spent = sum(call.prompt_tokens + call.completion_tokens for call in trace.calls)
        assert spent <= tokens
        assert trace.answer == "the Tiber"
        assert len(decided(trace)) <= len(decided(free))
        assert trace.ended == "stop" or trace.ended.endswith(("tokens", "steps"))
    late = agent(name, river_index, limits=Limits(seconds=1e-9)).attempt(
        COMPARISON, ScriptedGenerator(said), 60
    )
    assert decided(late.trace) == []
    with pytest.raises(GenerationError, match="is below the"):
        agent(name, river_index, limits=Limits(tokens=30)).attempt(
            COMPARISON, ScriptedGenerator(said), 60
        ).check()


def test_controllers_by_hand() -> None:
    def act(
        name: str, u: float, step: int = 0, possible: tuple[str, ...] = ("stop", "reason", "retrieve")
    ) -> str:
        return make_policy(name, RetrievalMDP()).decide(State("q", step, u, possible)).action

    assert [act("threshold", u) for u in (0.05, 0.49, 0.5)] == ["stop", "reason", "retrieve"]
    assert act("threshold:.3", 0.3) == "retrieve"
    assert act("threshold", 0.9, possible=("stop", "reason")) == "reason"
    assert act("always-retrieve", 0.9, possible=("stop", "reason")) == "stop"
    assert [act("fixed-3", 0.0, k) for k in range(4)] == ["retrieve", "reason", "retrieve", "stop"]
    assert act("mdp", 0.02) == "stop"
    drawn = {act("random", 0.5, k) for k in range(30)}
    assert drawn == {"stop", "reason", "retrieve"}
    assert act("random", 0.5, 3) == act("random", 0.5, 3)
    published = make_policy("mdp", RetrievalMDP(horizon=None))
    assert published.decide(State("q", 50, 0.0)).action == "stop"
    assert published.decide(State("q", 50, 0.1)).action == "reason"
    for name in ("mdp@luck", "best", "fixed-x", "threshold:2"):
        with pytest.raises(InputError):
            agent(name, None)
