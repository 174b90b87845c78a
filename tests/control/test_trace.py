"""Traces: written, read back, replayed; what no agent writes is refused."""

import dataclasses
import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mio_rag.control.mdp.trace import ProcessTrace

from mio_rag.control.mdp.replay import replay
from mio_rag.errors import DataError, InputError
from mio_rag.generation import ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.budget import Limits
from mio_rag.session.trace import append_traces, read_traces
from tests.control.scripted import COMPARISON, Sure, agent, said


def test_a_tampered_trace_is_found_out(river_index: CorpusIndex) -> None:
    trace = agent("mdp", river_index).run(COMPARISON, ScriptedGenerator(said), 60).trace
    first = trace.steps[0]

    def told(**changes: Any) -> str:
        steps = (dataclasses.replace(first, **changes), *trace.steps[1:])
        return " ".join(replay(dataclasses.replace(trace, steps=steps)))

    assert "the controller says retrieve" in told(action="reason")
    assert "the model says" in told(next_uncertainty=0.33)
    assert "Q was" in told(q_values={**first.q_values, "stop": 0.5})
    assert "do not add up" in told(calls=first.calls[:1])
    last = trace.last_q_values
    assert last is not None
    for other in (None, {**last, "stop": last["stop"] + 0.01}):
        assert "the end: Q was" in " ".join(replay(dataclasses.replace(trace, last_q_values=other)))


def test_traces_that_a_limit_ended_are_replayed(river_index: CorpusIndex) -> None:
    ends = set()
    for tokens in range(368, 900, 25):
        for name in ("mdp", "mdp@confidence", "random"):
            limited = agent(name, river_index, limits=Limits(tokens=tokens, steps=2))
            trace = limited.run(COMPARISON, Sure(lambda prompt: 0.5), 60).trace
            ends.add((trace.ended, trace.last_q_values is None))
            assert replay(trace) == []
    assert len(ends) > 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["steps"][0].update(uncertainty=math.nan), "uncertainty is nan"),
        (lambda t: t["steps"][0].update(next_uncertainty=1.7), "next_uncertainty is 1.7"),
        (lambda t: t.update(uncertainty="low"), "'low', not in"),
        (lambda t: t["steps"][0].update(action="ponder"), "'ponder'"),
        (lambda t: t["steps"][0]["calls"][0].update(seconds=-1.0), "numbers >= 0"),
        (lambda t: t.update(settings={}), "no model"),
        (lambda t: t.update(settings=None), "no model"),
        (lambda t: t["settings"].update(seed="x"), "seed is 'x'"),
    ],
)
def test_what_no_agent_writes_is_no_trace(
    change: Callable[[Any], None], message: str, river_index: CorpusIndex, tmp_path: Path
) -> None:
    trace = agent("mdp", river_index).run(COMPARISON, ScriptedGenerator(said), 60).trace
    data = json.loads(json.dumps(trace.to_dict()))
    change(data)
    (tmp_path / "traces.jsonl").write_text("\n" + json.dumps(data) + "\n")
    with pytest.raises(DataError, match="line 2: this is not a trace") as found:
        read_traces(tmp_path, ProcessTrace)
    assert message in str(found.value)


def test_runs_with_other_settings_are_other_runs(river_index: CorpusIndex, tmp_path: Path) -> None:
    for seed, question in ((3, COMPARISON), (4, COMPARISON), (4, dataclasses.replace(COMPARISON, text="?"))):
        one = dataclasses.replace(agent("random", river_index), seed=seed)
        for _ in range(2):
            trace = one.run(question, ScriptedGenerator(said), 60).trace
            append_traces(tmp_path / "traces.jsonl", [trace])
    assert len(read_traces(tmp_path, ProcessTrace)) == 3


def test_adding_a_trace_does_not_read_those_before(river_index: CorpusIndex, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    trace = agent("fixed-1", river_index).run(COMPARISON, ScriptedGenerator(said), 60).trace
    file.write_bytes(b"\n" * 16_000_000)
    tracemalloc.start()
    try:
        append_traces(file, [trace])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert file.read_bytes().lstrip(b"\n").count(b"\n") == 1


def test_trace_files_survive_interruption(river_index: CorpusIndex, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    trace = agent("fixed-1", river_index).run(COMPARISON, ScriptedGenerator(said), 60).trace
    append_traces(file, [trace])
    with file.open("a") as cut:
        cut.write('{"version": 1, "quest')
    append_traces(file, [dataclasses.replace(trace, answer="later")])
    assert [t.answer for t in read_traces(tmp_path, ProcessTrace)] == ["later"]
    file.write_text('{"version": 9}\n')
    with pytest.raises(DataError, match=r"line 1: version 9"):
        read_traces(file, ProcessTrace)
    for text in ("", '\n  \n{"vers'):
        file.write_text(text)
        with pytest.raises(InputError, match="holds no traces"):
            read_traces(file, ProcessTrace)
    file.unlink()
    append_traces(file, [trace])
    with file.open("a") as other:
        other.write("a note to myself\n")
    with pytest.raises(DataError, match=r"line 2 is not valid JSON: column 1"):
        read_traces(file, ProcessTrace)
