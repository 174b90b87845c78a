"""The example scripts, as they stand."""

import os
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NEEDED = {
    "langchain_rag": "langchain_core",
    "llama_index_rag": "llama_index.core",
    "haystack_rag": "haystack",
    "dspy_rag": "dspy",
}


def test_every_example_is_run() -> None:
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(NEEDED)


@pytest.mark.parametrize("name", NEEDED)
def test_an_example_chooses_both_bridges(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(NEEDED[name])
    assert os.environ["HAYSTACK_TELEMETRY_ENABLED"] == "False"
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "Menai Suspension Bridge" in shown
    assert "Clifton Suspension Bridge" in shown
    assert "optimal: objective" in shown
    if name == "langchain_rag":  # a real, if simple, reader answers
        assert shown.strip().endswith("-> Menai Suspension Bridge")
