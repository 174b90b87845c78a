"""Traces: what was changed in one is found out, files survive interruptions."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mio_rag.errors import DataError, InputError
from mio_rag.generation import ScriptedGenerator
from mio_rag.learning.rules import replay
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.budget import Limits
from mio_rag.session.trace import Trace, append_traces, read_traces
from tests.session.scripted import COMPARISON, agent, said


@pytest.fixture(scope="module")
def trace(river_index: CorpusIndex) -> Trace:
    return agent("fixed-3", river_index).attempt(COMPARISON, ScriptedGenerator(said), 60).check().trace


def changed(trace: Trace, place: int, **about: Any) -> Trace:
    step = dataclasses.replace(trace.steps[place], about={**trace.steps[place].about, **about})
    return dataclasses.replace(trace, steps=(*trace.steps[:place], step, *trace.steps[place + 1 :]))


def test_a_tampered_trace_is_found_out(trace: Trace) -> None:
    assert replay(trace) == []
    assert any("U became 0.3" in wrong for wrong in replay(changed(trace, 1, uncertainty=0.3)))
    other = dataclasses.replace(trace.steps[1], do="search_again", output="x")
    steps = (trace.steps[0], other, *trace.steps[2:])
    assert any("was chosen" in wrong for wrong in replay(dataclasses.replace(trace, steps=steps)))
    assert any("do not add up" in wrong for wrong in replay(dataclasses.replace(trace, parts={})))
    ended = dataclasses.replace(trace, ended="stop", about={**trace.about, "q_values": {"stop": 1.0}})
    assert any("the end: Q was" in wrong for wrong in replay(ended))


@pytest.mark.parametrize(
    "limits", [Limits(steps=0), Limits(steps=2), Limits(tokens=460), Limits(seconds=1e-9)]
)
def test_traces_that_a_limit_ended_are_replayed(limits: Limits, river_index: CorpusIndex) -> None:
    found = agent("fixed-6", river_index, limits=limits).attempt(COMPARISON, ScriptedGenerator(said), 60)
    assert found.trace.ended != "stop"
    assert replay(found.trace) == []


@pytest.mark.parametrize(
    ("spoil", "said_of_it"),
    [
        (lambda data: data.update(version=3), "version 3"),
        (lambda data: data.update(nonsense=1), "not a trace"),
        (lambda data: data["steps"][0]["about"].update(uncertainty=1.7), r"an uncertainty is not in"),
        (lambda data: data.update(complete=2.0), "complete must be <= 1, got 2.0"),
        (lambda data: data["steps"][0]["calls"][0].update(seconds=-1.0), r"calls\[0\].seconds must be >= 0"),
    ],
)
def test_what_no_session_writes_is_no_trace(
    spoil: Callable[[Any], None], said_of_it: str, trace: Trace
) -> None:
    data = json.loads(json.dumps(trace.to_dict()))
    spoil(data)
    with pytest.raises(DataError, match=said_of_it):
        Trace.from_dict(data)


def test_files_survive_an_interruption_and_keep_runs_apart(trace: Trace, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    other = dataclasses.replace(trace, settings={**trace.settings, "seed": 7})
    append_traces(file, [trace, other, trace])  # of runs that were repeated alike the last
    with file.open("a", encoding="utf-8") as written:
        written.write(json.dumps(trace.to_dict())[:40])
    assert read_traces(file) == [trace, other]
    assert read_traces(tmp_path, ("signal",), "a decision process") == [trace, other]
    with pytest.raises(InputError, match="holds no traces of workflows, only of fixed-3"):
        read_traces(file, ("planner",), "workflows")
    file.write_text('{"version": 2}\n{"a": 1}\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 1"):
        read_traces(file)
