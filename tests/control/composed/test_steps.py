"""What counts as a step: whatever asks a model, also while searching."""

from mio_rag.control.composed.trace import PolicyTrace

from mio_rag.retrieval import CorpusIndex
from tests.control.composed.test_controller import asked, composed


def test_strategies_that_ask_a_model_are_steps(river_index: CorpusIndex) -> None:
    for steps in (0, 1):
        data = {"search": {"strategies": ["raw", "hyde"]}, "limits": {"steps": steps}}
        found = asked(composed(data, river_index))
        assert found.selection is not None
        assert found.selection.chosen
        assert found.costs.total().lm_calls == steps + 1  # beside the answer
        trace = found.trace
        assert isinstance(trace, PolicyTrace)
        assert (trace.search["notes"] == []) is bool(steps)
        assert "hyde: left out, the limit of 0 steps" in trace.search["notes"] or steps
