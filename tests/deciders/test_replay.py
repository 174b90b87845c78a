"""A planner's decisions are made again from its traces; whatever was changed in them comes out."""

import dataclasses
import json
import tempfile
from pathlib import Path

import pytest

from mio_rag.learning.planner import Planner, replay, write_planner
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.session.trace import Trace
from tests.learning.files import sure_planner
from tests.session.scripted import COMPARISON, SELECTOR
from tests.session.test_loop import Watched, controller

QUALITY = {"plain": 0.2, "verify-or-parts": 0.5, "plain-then-serial": 0.4, "no-retrieval": 0.1}
COST = {"plain": 1.0, "verify-or-parts": 2.0, "plain-then-serial": 3.0, "no-retrieval": 0.3}


def traced(planner: Planner, index: CorpusIndex, alpha: float = 0.1) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "planner.safetensors"
        write_planner(planner, file)
        control = ControlSettings(kinds={"planner": {"file": str(file), "alpha": alpha}})
        session = make_controller("planner", Setup(control, Retriever(index, pool=4), SELECTOR))
        found = session.attempt(COMPARISON, Watched(), 60).check()
    return Trace.from_dict(json.loads(json.dumps(found.trace.to_dict())))


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
    place = next(k for k, step in enumerate(trace.steps) if step.do == "retrieve")
    poor = dataclasses.replace(trace.steps[place], signals={**trace.steps[place].signals, "top": -1.0})
    steps = (*trace.steps[:place], poor, *trace.steps[place + 1 :])
    assert replay(dataclasses.replace(trace, steps=steps), planner)
    named = dataclasses.replace(trace, workflow={**trace.workflow, "name": "verify-or-parts"})
    assert "the planner comes to 'plain', and 'verify-or-parts' was run" in replay(named, planner)
    free = dataclasses.replace(trace, parts={})
    assert any("do not add up" in said for said in replay(free, planner))
    fixed = controller("plain", river_index).attempt(COMPARISON, Watched(), 60).trace
    assert isinstance(fixed, Trace)
    assert replay(fixed) == []
    renamed = dataclasses.replace(fixed.steps[0], id="elsewhere")
    wrong = replay(dataclasses.replace(fixed, steps=(renamed, *fixed.steps[1:])))
    assert wrong == ["step 'elsewhere' did retrieve, which is none of workflow 'plain'"]
