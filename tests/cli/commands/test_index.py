"""``mio-rag index``: what it writes, and what a full disk leaves."""

from pathlib import Path

from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex
from tests.cli.running import full_disk, here, only_object, refused


def test_index(demo: Dataset, tmp_path: Path) -> None:
    done = here("index", "demo", "--out", tmp_path / "i", "--embedder", "tfidf", "--json")
    assert done.returncode == 0
    told = only_object(done)
    assert {k: told[k] for k in ("index", "passages", "embedder")} == {
        "index": str(tmp_path / "i"), "passages": 205, "embedder": "tfidf",
    }  # fmt: skip
    built = CorpusIndex.load(tmp_path / "i")
    assert built.passages == demo.passages
    assert told["dimensions"] == built.dimensions
    before = (tmp_path / "i" / "manifest.json").read_bytes()
    problems = refused(
        here("index", tmp_path / "absent", "--out", tmp_path / "i", "--embedder", "./absent", "--json")
    )
    assert len(problems) == 3
    assert "is not a folder" in problems[0]
    assert "embedder './absent' is no folder" in problems[1]
    assert "--overwrite" in problems[2]
    assert (tmp_path / "i" / "manifest.json").read_bytes() == before


def test_a_full_disk_leaves_no_half_index(index: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "new", index):
        before = {p.name for p in path.parent.iterdir()}
        with full_disk(20_000):
            done = here("index", "demo", "--out", path, "--embedder", "tfidf", "--overwrite", "--json")
        problems = refused(done)
        assert "could not be written" in problems[0]
        assert {p.name for p in path.parent.iterdir()} == before
    assert len(CorpusIndex.load(index)) == 205
