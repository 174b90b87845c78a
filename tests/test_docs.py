"""Every code block of the README and of the guide runs, in order, page by page.

The guide has an index of the bundled corpus, the README a folder of documents. Python blocks of a page share
their names; lines of bash blocks that begin with ``mio-rag`` run the command in this process. A block after
``<!-- file: NAME -->`` is written to that file for the blocks below. One after ``<!-- not run: REASON -->``
is left out, and so is a page that ``<!-- needs: MODULE -->`` names a module for which is not there.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.corpora.dataset import Dataset
from mio_rag.policies import make
from mio_rag.retrieval import CorpusIndex

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
README = ROOT / "README.md"
TEXTS = [README, *sorted(PAGES.rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?:not run: (?P<why>[^\n]*)|file: (?P<file>[^\n]*)) -->\n)?"
    r"^```(?P<kind>\w+)\n(?P<code>.*?)^```$",
    re.M | re.S,
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
    file: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["kind"], m["code"], text.count("\n", 0, m.start("code")) + 1, m["why"], m["file"])
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


def documents(folder: Path, data: Dataset) -> None:
    """A folder of Markdown files, such as a reader of the README has: of every source a little."""
    folder.mkdir()
    for source in {p.source for p in data.passages}:
        told = [f"# {p.title}\n\n{p.text}\n" for p in data.passages if p.source == source][:30]
        name = re.sub(r"\W+", "-", source or "other")
        (folder / f"{name}.md").write_text("\n".join(told), encoding="utf-8")


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: p.stem)
def test_every_block_of_a_page_runs(
    page: Path, index: Path, demo: Dataset, tmp_path: Path, monkeypatch
) -> None:
    wanted = re.match(r"<!-- needs: (\S+) -->", page.read_text(encoding="utf-8"))
    for module in filter(None, (wanted and wanted[1], FRAMEWORKS.get(page.stem))):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not there")
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path / "dspy"))
    monkeypatch.setattr(make, "_KINDS", list(make._KINDS))  # what a page registers goes with it
    monkeypatch.chdir(tmp_path)
    if page == README:
        documents(tmp_path / "my-documents", demo)
    else:
        shutil.copytree(index, tmp_path / "INDEX")
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        known = ("python", "bash", "toml", "json", "text")
        assert block.kind in known, f"{page.name}:{block.line}: {block.kind}?"
        if block.why is not None or block.kind == "text":
            continue
        if block.kind == "json":
            json.loads(block.code)
        if block.file is not None:
            Path(block.file).write_text(block.code, encoding="utf-8")
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
    left_out = [b for page in TEXTS for b in blocks(page) if b.why is not None]
    assert all(len(b.why or "") > 10 for b in left_out)
    fences = sum(page.read_text(encoding="utf-8").count("\n```") for page in TEXTS)
    assert fences == 2 * sum(len(blocks(page)) for page in TEXTS)


def test_the_readme_links_to_what_is_there() -> None:
    """Files, and the headings that a link names; the site's own build checks the links of the guide."""
    for target in re.findall(r"\]\(([^)\s]+)\)", README.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, heading = target.partition("#")
        assert (ROOT / name).exists(), target
        if heading:
            text = (ROOT / name).read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.+)$", text, re.M)
            assert heading in {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings}, target


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
