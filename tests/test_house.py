"""The house rules, read from the syntax trees and from fresh interpreters."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import mio_rag

ROOT = Path(__file__).parents[1]

#: A unit may import units of earlier layers, and those of its own.
LAYERS = (
    {"types", "errors", "files", "lines", "pictures", "reading", "entries"},
    {"config", "context", "unit", "corpus", "names", "formulations"},
    {"solvers", "relevance"},
    {
        "selector",
        "explain",
        "many",
        "plain",
        "side",
        "side_pool",
        "clusters",
        "counterpart",
        "attack",
        "conversation",
        "settings",
    },
    {
        "datasets",
        "documents",
        "document_files",
        "public_datasets",
        "question_sets",
        "retrieval",
        "generation",
    },
    {"control"},
    {"evaluation", "ask"},
    {"frontier", "batch", "service"},
    {"adapters"},
    {
        "console",
        "console_frontier",
        "console_mdp",
        "cli",
        "cli_batch",
        "cli_control",
        "cli_documents",
        "cli_frontier",
        "cli_mdp",
        "cli_options",
        "cli_output",
        "cli_relevance",
        "cli_serve",
        "cli_side",
        "cli_solve",
        "cli_tune",
        "demo",
        "interrupt",
        "streams",
        "terminal",
        "__main__",
        "benchmarks",
    },
)
#: What the two mathematical packages may import at most.
CONFINED = {"formulations": {"errors", "reading"}, "solvers": {"errors", "formulations"}}
#: select(embedder=...) is the plain-Python door: it fetches an embedder only if it is asked to.
EXCEPTIONS = {("plain", "retrieval"), ("types", "attack")}

HEAVY = (
    *("torch", "faiss", "ortools", "numba", "transformers", "sentence_transformers", "pandas", "sklearn"),
    *("langchain_core", "llama_index", "haystack", "dspy", "pydantic"),
)


def sources() -> Iterator[tuple[str, Path]]:
    """(unit, file) of every source file."""
    for folder in (ROOT / "mio_rag", ROOT / "formulations", ROOT / "solvers", ROOT / "benchmarks"):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if parts[0] == "mio_rag" and parts[1] in ("formulations", "solvers"):
                continue  # links to the folders at the root
            yield (Path(parts[1]).stem if parts[0] == "mio_rag" else parts[0]), path


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a file imports, wherever it does; not those for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide who imports whom"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imports(node)


def forbidden(unit: str, tree: ast.AST) -> list[str]:
    """Imports of the package that the layer of a unit does not allow."""
    layer = next((k for k, units in enumerate(LAYERS) if unit in units), None)
    assert layer is not None, f"'{unit}' has no layer: add it to LAYERS"
    allowed = CONFINED.get(unit, set().union(*LAYERS[: layer + 1])) | {unit}
    named = [name.split(".") for name in imports(tree) if name.split(".")[0] in ("mio_rag", "benchmarks")]
    targets = [parts[1] if parts[0] == "mio_rag" else parts[0] for parts in named]
    return [
        t for t in targets if not t.startswith("__v") and t not in allowed and (unit, t) not in EXCEPTIONS
    ]


def test_only_later_layers_import_earlier_ones() -> None:
    broken = [
        f"{path.relative_to(ROOT)} imports {target}"
        for unit, path in sources()
        if path != ROOT / "mio_rag" / "__init__.py"
        for target in forbidden(unit, ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("unit", "code", "found"),
    [
        ("solvers", "from mio_rag.types import Passage", ["types"]),
        ("solvers", "def f():\n    import mio_rag.selection.selector", ["selector"]),
        ("formulations", "from mio_rag.solvers import solve", ["solvers"]),
        ("evaluation", "from mio_rag.cli.show.selection import progress_bar", ["console"]),
        ("evaluation", "if TYPE_CHECKING:\n    from mio_rag.cli.app import main", []),
        ("cli", "from mio_rag.types import Passage", []),
    ],
)
def test_the_guard_sees_what_it_should(unit: str, code: str, found: list[str]) -> None:
    assert forbidden(unit, ast.parse(code)) == found


def test_packages_listed_are_the_packages_on_disk() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "packages"
    ]
    folders = [ROOT / "mio_rag", *(p for p in (ROOT / "mio_rag").iterdir() if p.is_dir())]
    with_code = {".".join(f.relative_to(ROOT).parts) for f in folders if any(f.glob("*.py"))}
    marked = {".".join(p.parent.relative_to(ROOT).parts) for f in folders for p in f.glob("__init__.py")}
    assert set(listed) == with_code == marked
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


def test_bare_names_stay_free() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in (
            "",
            "formulations",
            "solvers",
            "relevance",
            "retrieval",
            "evaluation",
            "generation",
            "control",
            "frontier",
            "batch",
            "service",
        )
        for path in sorted((ROOT / "mio_rag" / folder).glob("*.py"))
        if path.stem != "__main__"
    ]
    assert len(names) > 40
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
    assert python(code + "print([n for n in ('solvers', 'formulations') if n in sys.modules])") == "[]"


def test_public_names() -> None:
    assert mio_rag.__all__ == [
            "Answer", "Candidates", "Conversation", "CorpusIndex", "Dataset", "InputError",
            "LinearConstraint", "MioRagError", "Passage", "Question", "Retriever", "Selection",
            "SelectionProgram", "Selector", "SideConstraints", "SolveOptions", "SolveResult", "Status",
            "load_dataset", "make_generator", "select", "solve",
        ]  # fmt: skip
    for name in mio_rag.__all__:
        assert getattr(mio_rag, name).__name__ == name
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


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public classes, functions and methods without a docstring, and the module itself."""
    if not ast.get_docstring(tree):
        yield "the module"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                yield node.name
            for part in node.body if isinstance(node, ast.ClassDef) else []:
                if (
                    isinstance(part, ast.FunctionDef)
                    and not part.name.startswith("_")
                    and not ast.get_docstring(part)
                ):
                    yield f"{node.name}.{part.name}"


def test_everything_public_is_documented() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for _, path in sources()
        for name in undocumented(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()
