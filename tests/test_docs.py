"""Every code block of the README and of the guide runs, in order, page by page.

The guide has an index of the bundled corpus, the README a folder of documents. Python blocks of a page share
their names; lines of bash blocks that begin with ``mio-rag`` run the command in this process. A block after
``<!-- file: NAME -->`` is written to that file for the blocks below. One after ``<!-- not run: REASON -->``
is left out, and so is a page or a block whose ``<!-- needs: MODULE -->`` names a module that is not there.
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

from mio_rag import methods
from mio_rag.cli.app import app
from mio_rag.policies import make
from mio_rag.retrieval import CorpusIndex

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
README = ROOT / "README.md"
TEXTS = [README, *sorted(PAGES.rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?:not run: (?P<why>[^\n]*)|file: (?P<file>[^\n]*)|needs: (?P<needs>\S+)) -->\n)?"
    r"^```(?P<kind>\w+)\n(?P<code>.*?)^```$",
    re.M | re.S,
)

HANDBOOK = {
    "travel.md": """---
date: 2026-01-15
---
# Business travel

Book trips through the travel desk at least one week ahead.

## Daily allowance

| Country | Full day (EUR) | Half day (EUR) |
|---|---|---|
| Norway | 75 | 50 |
| Portugal | 48 | 32 |
| Japan | 61 | 41 |

The allowance is cut by 20 % when breakfast is included.

## Receipts

Hand in receipts within 30 days. Receipts below 10 EUR are not needed.
""",
    "onboarding.html": """<html><head><title>Onboarding</title></head><body><h1>Onboarding</h1>
<h2>First week</h2><p>Your mentor meets you at the front desk at nine. Bring an identity card.</p>
<table><tr><th>Day</th><th>What</th><th>Who</th></tr>
<tr><td>Monday</td><td>Keys and laptop</td><td>Ada Brandt</td></tr>
<tr><td>Tuesday</td><td>Safety training</td><td>Ikram Bell</td></tr></table>
<h2>Holidays</h2><p>You have 30 days of holiday a year. Unused days expire at the end of March.</p>
</body></html>
""",
    "on-call.md": """# On call

The shift changes on Monday at ten. Whoever is on call answers within 15 minutes.

## Restart the gateway

1. Announce it in the channel.
2. Restart it with `gateway restart`.
""",
    "questions.jsonl": """\
{"id": "1", "question": "Who leads the training?", "gold_sources": ["onboarding.html"]}
{"id": "2", "question": "What is the allowance in Norway?", "gold_sources": ["travel.md"]}
""",
}


class Block(NamedTuple):
    kind: str
    code: str
    line: int
    why: str | None
    file: str | None
    needs: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["kind"], m["code"], text.count("\n", 0, m.start("code")) + 1, m["why"], m["file"], m["needs"])
        for m in BLOCK.finditer(text)
    ]


@pytest.fixture(scope="module")
def index(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "INDEX"
    demo_index.save(folder)
    return folder


def run_shell(code: str) -> str:
    """Run the lines that call mio-rag; return what the last one printed. Continued lines belong together."""
    printed = ""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        assert words[:1] == ["mio-rag"], f"only mio-rag is run here: {line}"
        if words[1:3] == ["index", "demo"]:
            shutil.rmtree("INDEX")  # the page makes its own
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}"
        printed = done.output
    return printed


def handbook(folder: Path) -> None:
    """The folder of documents that the README asks."""
    folder.mkdir()
    for name, text in HANDBOOK.items():
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: p.stem)
def test_every_block_of_a_page_runs(page: Path, index: Path, tmp_path: Path, monkeypatch) -> None:
    wanted = re.match(r"<!-- needs: (\S+) -->", page.read_text(encoding="utf-8"))
    if wanted and importlib.util.find_spec(wanted[1]) is None:
        pytest.skip(f"{wanted[1]} is not there")
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path / "dspy"))
    monkeypatch.setattr(make, "_KINDS", list(make._KINDS))  # what a page registers goes with it
    monkeypatch.setattr(methods, "_OWN", dict(methods._OWN))
    monkeypatch.chdir(tmp_path)
    if page == README:
        handbook(tmp_path / "handbook")
    else:
        shutil.copytree(index, tmp_path / "INDEX")
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path / "cache"))
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        known = ("python", "bash", "toml", "json", "text")
        assert block.kind in known, f"{page.name}:{block.line}: {block.kind}?"
        if block.kind == "text" and page == README:  # what the command above it prints
            assert all(line in printed for line in block.code.splitlines()), printed
        if block.why is not None or block.kind == "text":
            continue
        if block.needs is not None and importlib.util.find_spec(block.needs) is None:
            continue
        if block.kind == "json":
            json.loads(block.code)
        if block.file is not None:
            Path(block.file).write_text(block.code, encoding="utf-8")
        if block.file is not None or block.kind == "json":
            continue
        if block.kind == "toml":  # its first line names the file, which later blocks use
            Path(block.code.splitlines()[0].removeprefix("# ")).write_text(block.code, encoding="utf-8")
            continue
        if block.kind == "bash":
            printed = run_shell(block.code)
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
