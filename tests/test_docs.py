"""Every code block of the guide runs, in order, page by page, on one index of the bundled corpus.

Python blocks of a page share their names; lines of bash blocks that begin with ``mio-rag`` run the command in
this process. A block after ``<!-- not run: REASON -->`` is left out, and so is a page that
``<!-- needs: MODULE -->`` names a module for which is not there.
"""

import importlib.util
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.retrieval import CorpusIndex

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]*) -->\n)?^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.M | re.S
)
FRAMEWORKS = {
    "langchain": "langchain_classic",
    "llama-index": "llama_index",
    "haystack": "haystack",
    "dspy": "dspy",
}


class Block(NamedTuple):
    kind: str
    code: str
    line: int
    why: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["kind"], m["code"], text.count("\n", 0, m.start("code")) + 1, m["why"])
        for m in BLOCK.finditer(text)
    ]


@pytest.fixture(scope="module")
def index(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "INDEX"
    demo_index.save(folder)
    return folder


def run_shell(code: str) -> None:
    """The lines that call mio-rag; continued lines belong together."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        assert words[:1] == ["mio-rag"], f"only mio-rag is run here: {line}"
        if words[1:3] == ["index", "demo"]:
            shutil.rmtree("INDEX")  # the page makes its own
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}"


@pytest.mark.parametrize("page", sorted(PAGES.rglob("*.md")), ids=lambda p: p.stem)
def test_every_block_of_a_page_runs(page: Path, index: Path, tmp_path: Path, monkeypatch) -> None:
    wanted = re.match(r"<!-- needs: (\S+) -->", page.read_text(encoding="utf-8"))
    for module in filter(None, (wanted and wanted[1], FRAMEWORKS.get(page.stem))):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not there")
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path / "dspy"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(index, tmp_path / "INDEX")
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        assert block.kind in ("python", "bash", "toml", "text"), f"{page.name}:{block.line}: {block.kind}?"
        if block.why is not None or block.kind == "text":
            continue
        if block.kind == "toml":  # its first line names the file, which later blocks use
            Path(block.code.splitlines()[0].removeprefix("# ")).write_text(block.code, encoding="utf-8")
            continue
        if block.kind == "bash":
            run_shell(block.code)
            continue
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)
    assert os.listdir(tmp_path)


def test_blocks_that_are_not_run_say_why() -> None:
    left_out = [b for page in PAGES.rglob("*.md") for b in blocks(page) if b.why is not None]
    assert all(len(b.why or "") > 10 for b in left_out)
    fences = sum(page.read_text(encoding="utf-8").count("\n```") for page in PAGES.rglob("*.md"))
    assert fences == 2 * sum(len(blocks(page)) for page in PAGES.rglob("*.md"))


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "docs" / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site"))
    build(config)
    pages = {p.relative_to(PAGES).with_suffix(".html") for p in PAGES.rglob("*.md")}
    assert all((tmp_path / "site" / page).is_file() for page in pages)
    reference = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    assert "redundancy_weight" in reference
    assert "SelectionPostprocessor" in reference
    for path in (tmp_path / "site").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))', text)
        assert loaded == [], f"{path.name} loads {loaded}"
