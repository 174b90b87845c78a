"""The package from outside: light to import, its public names, whole when it is built."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mio_rag

ROOT = Path(__file__).parents[1]

HEAVY = (
    *(
        "torch",
        "onnxruntime",
        "faiss",
        "ortools",
        "numba",
        "transformers",
        "sentence_transformers",
        "pandas",
        "sklearn",
    ),
    *("langchain_core", "llama_index", "haystack", "dspy"),
)


def test_packages_listed_are_the_packages_on_disk() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "mio_rag").rglob("*.py")}
    linked = {"mio_rag.formulations", "mio_rag.solvers"}
    assert set(config["tool"]["setuptools"]["packages"]) == {".".join(f.parts) for f in folders} | linked
    for name in ("solvers", "formulations"):
        assert (ROOT / "mio_rag" / name).resolve() == ROOT / name


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["mio_rag", "mio_rag.cli.app", "mio_rag.adapters.core"])
def test_importing_is_light(module: str) -> None:
    loaded = python(f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded == "[]"


def test_public_names() -> None:
    assert mio_rag.__all__ == [
            "Answer", "Candidates", "Conversation", "CorpusIndex", "Dataset", "InputError",
            "LinearConstraint", "MioRagError", "Passage", "Pool", "Question", "Retriever", "Selection",
            "SelectionProgram", "Selector", "SideConstraints", "SolveOptions", "SolveResult", "Status",
            "load_dataset", "make_generator", "select", "solve",
        ]  # fmt: skip
    for name in mio_rag.__all__:
        assert getattr(mio_rag, name).__name__ == {"Candidates": "Pool"}.get(name, name)
    assert set(mio_rag.__all__) <= set(dir(mio_rag))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mio_rag.nonsense  # noqa: B018


@pytest.mark.parametrize("order", [("highspy", "ortools"), ("ortools", "highspy")])
def test_highs_and_ortools_share_a_process(order: tuple[str, str]) -> None:
    pytest.importorskip("ortools")
    modules = ["ortools.sat.python.cp_model" if name == "ortools" else name for name in order]
    code = "\n".join(
        [
            *(f"import {m}" for m in modules),
            "import numpy as np",
            "from mio_rag import SelectionProgram, solve",
            "p = np.array([[0, 3, 0], [3, 0, 0], [0, 0, 0.0]])",
            "program = SelectionProgram(np.array([5.0, 4.0, 3.0]), p, np.array([2, 2, 2]), 4)",
            "for name in ('highs', 'cpsat'):",
            "    result = solve(program, name)",
            "    print(result.status.value, result.selected, round(result.objective, 6))",
        ]
    )
    # 5 + 3 beats 5 + 4 - 3.
    assert python(code).splitlines() == ["optimal (0, 2) 8.0"] * 2
