"""A planner's decisions are made again from its traces; whatever was changed in them comes out."""

import dataclasses
import json

import pytest
from mio_rag.control.planner.controller import kit_of
from mio_rag.control.planner.planning import PlannerController
from mio_rag.control.planner.trace import PlanTrace

from mio_rag.control.controller import Outcome, Setup
from mio_rag.control.planner.policy import Planner
from mio_rag.control.planner.replay import replay
from mio_rag.control.planner.settings import Models
from mio_rag.control.settings import ControlSettings
from mio_rag.errors import InputError
from mio_rag.retrieval import CorpusIndex, Retriever
from tests.control.planner.synthetic import sure_planner
from tests.control.planner.test_run import Watched, controller
from tests.control.scripted import COMPARISON, SELECTOR

QUALITY = {"plain": 0.2, "verify-or-parts": 0.5, "plain-then-serial": 0.4, "no-retrieval": 0.1}
COST = {"plain": 1.0, "verify-or-parts": 2.0, "plain-then-serial": 3.0, "no-retrieval": 0.3}


def traced(planner: Planner, index: CorpusIndex, alpha: float = 0.1) -> PlanTrace:
    kit = kit_of(Setup(ControlSettings(), Retriever(index, pool=4), SELECTOR), Models({}))
    told = {
        "planner": {"method": planner.method, "mode": planner.tree.mode, "alpha": alpha},
        "workflow": kit.settings.to_dict(),
    }
    found = PlannerController("planner", planner, alpha, kit, None, told).attempt(COMPARISON, Watched(), 60)
    assert isinstance(found, Outcome)
    assert isinstance(found.trace, PlanTrace)
    return PlanTrace.from_dict(json.loads(json.dumps(found.trace.to_dict())))


@pytest.mark.parametrize("mode", ["once", "again"])
@pytest.mark.parametrize("tells", [False, True])
def test_every_decision_comes_out_again(mode: str, tells: bool, river_index: CorpusIndex) -> None:
    planner = sure_planner(QUALITY, COST, mode, tells)
    trace = traced(planner, river_index)
    assert replay(trace, planner) == []
    assert replay(trace) == []
    if tells and mode == "again":
        assert trace.workflow["name"] == "plain"  # what was found has changed its mind
    other = sure_planner({**QUALITY, "no-retrieval": 5.0}, COST, mode, tells)
    assert any("no-retrieval" in said or "answer" in said for said in replay(trace, other))


def test_what_was_changed_in_a_trace_comes_out(river_index: CorpusIndex) -> None:
    planner = sure_planner(QUALITY, COST, "again", tells=True)
    trace = traced(planner, river_index)
    place = next(k for k, step in enumerate(trace.steps) if step.action == "retrieve")
    poor = dataclasses.replace(trace.steps[place], signals={**trace.steps[place].signals, "top": -1.0})
    steps = (*trace.steps[:place], poor, *trace.steps[place + 1 :])
    assert replay(dataclasses.replace(trace, steps=steps), planner)
    named = dataclasses.replace(trace, workflow={**trace.workflow, "name": "verify-or-parts"})
    assert "the planner comes to 'plain', and 'verify-or-parts' was run" in replay(named, planner)
    free = dataclasses.replace(trace, parts={})
    assert any("do not add up" in said for said in replay(free, planner))
    fixed = controller("plain", river_index).attempt(COMPARISON, Watched(), 60).trace
    assert isinstance(fixed, PlanTrace)
    assert replay(fixed) == []
    renamed = dataclasses.replace(fixed.steps[0], node="elsewhere")
    wrong = replay(dataclasses.replace(fixed, steps=(renamed, *fixed.steps[1:])))
    assert wrong == ["node 'elsewhere' ran, and workflow 'plain' has none of that name"]


def test_another_planner_is_refused(river_index: CorpusIndex) -> None:
    planner = sure_planner(QUALITY, COST)
    trace = traced(planner, river_index)
    with pytest.raises(
        InputError, match="of a planner by regression, once; this one is by regression, again"
    ):
        replay(trace, sure_planner(QUALITY, COST, "again"))
    with pytest.raises(InputError, match="looks at embeddings of minilm"):
        replay(trace, dataclasses.replace(planner, embedder="minilm:x"))
    fixed = controller("plain", river_index).attempt(COMPARISON, Watched(), 60).trace
    assert isinstance(fixed, PlanTrace)
    with pytest.raises(InputError, match="nobody chose"):
        replay(fixed, planner)
