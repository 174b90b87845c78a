"""``mio-rag demo``: a report, and what it does not overwrite."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mio_rag.cli.ask import run_demo
from mio_rag.corpora import load
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.storage import locked
from tests.cli.running import here, only_object


def test_demo(demo: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = here("demo", "--out", tmp_path / "demo", "--embedder", "tfidf", "--json")
    assert done.returncode == 0, done.stderr
    told = only_object(done)
    assert told["run"]["questions"] == 90
    assert {(e["method"], e["budget_tokens"]) for e in told["summary"]} == {
        (m, b) for m in ("fused", "mmr", "exact", "exact:auto") for b in (256, 512)
    }
    assert all(entry["n"] == 90 for entry in told["summary"])
    assert "report:" in done.stderr
    # Ten questions do for what follows; one of them is shown.
    few = replace(demo, questions=demo.questions[:10])
    monkeypatch.setattr(load, "_load_layout", lambda folder, name: few)
    # An earlier demo is replaced, whatever killed it, but not under the hands of one that is at work, and
    # nothing that somebody put beside it.
    for name in (".lock", f".report.{'0f' * 16}.partial.html"):
        (tmp_path / "demo" / name).touch()
    with locked(tmp_path / "demo"), pytest.raises(InputError, match="another run is at work"):
        run_demo(Console(quiet=True), tmp_path / "demo", "tfidf", "extractive")
    assert (tmp_path / "demo" / "report.html").is_file()
    (tmp_path / "demo" / ".lock").touch()
    run_demo(Console(quiet=True), tmp_path / "demo", "tfidf", "extractive")
    assert not list((tmp_path / "demo").glob(".*"))
    (tmp_path / "demo" / "notes.txt").write_text("keep me")
    with pytest.raises(InputError, match="holds no earlier demo"):
        run_demo(Console(quiet=True), tmp_path / "demo", "tfidf", "extractive")
    assert (tmp_path / "demo" / "notes.txt").read_text() == "keep me"
