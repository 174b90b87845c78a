"""``mio-rag index``: what it writes, what it reports, and what a full disk leaves."""

from pathlib import Path

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex
from tests.cli.running import full_disk, here, only_object, refused


def test_index(demo: Dataset, tmp_path: Path) -> None:
    asked = ("index", "demo", "--out", tmp_path / "i", "--embedder", "tfidf")
    told = only_object(here(*asked, "--json"))
    assert (told["index"], told["passages"], told["embedder"]) == (str(tmp_path / "i"), 205, "tfidf")
    built = CorpusIndex.load(tmp_path / "i")
    assert built.passages == demo.passages
    assert told["dimensions"] == built.dimensions
    before = (tmp_path / "i" / "manifest.json").read_bytes()
    assert here(*asked).stdout.startswith("Nothing changed.\nStored in ")
    assert "--overwrite" in refused(here("index", Path(__file__).parent, *asked[2:]))[0]
    for wrong, said in ((("--embedder", "./absent"), "is no folder"), (("--vectors", "7bit"), "7bit")):
        assert said in refused(here("index", "demo", "--out", tmp_path / "x", *wrong))[0]
    assert (tmp_path / "i" / "manifest.json").read_bytes() == before


def test_an_index_is_refreshed_checked_listed_and_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "a.md").write_text("# Travel\n\nThe allowance in Norway is 75 EUR.\n")
    (folder / "b.png").write_bytes(b"x")
    (folder / "b.txt").write_bytes(b"")
    asked = ("index", folder, "--embedder", "tfidf")
    assert "added     a.md" in here(*asked, "--check").stdout
    shown = here(*asked).stdout
    assert "Read 1 file. Indexed 1 passage" in shown
    assert "not read  b.png: .png files are not read" in shown
    (folder / "c.bin").write_bytes(b"x")
    again = here(*asked).stdout
    assert again.startswith("Nothing changed.")
    for line in ("b.png: .png files are not read", "b.txt: is empty", "c.bin: .bin files are not read"):
        assert f"not read  {line}" in again
    (folder / "c.bin").unlink()
    assert [one["path"] for one in only_object(here(*asked, "--json"))["left_out"]] == ["b.png", "b.txt"]
    assert "c.bin" not in here(*asked, "--check").stdout
    (folder / "a.md").write_text("# Travel\n\nThe allowance in Norway is 77 EUR.\n")
    assert only_object(here(*asked, "--check", "--json"))["changed"] == ["a.md"]
    assert only_object(here(*asked, "--json"))["changed"] == ["a.md"]
    assert str(folder) in here("index", "--list").stdout
    (folder / "a.md").unlink()
    (folder / "b.png").unlink()
    (folder / "b.txt").unlink()
    folder.rmdir()
    assert here("index", "--prune").stdout.startswith("removed ")
    assert here("index", "--list").stdout == "no cached indexes\n"


def test_a_full_disk_leaves_no_half_index(index: Path, tmp_path: Path) -> None:
    copy = CorpusIndex.load(index).save(tmp_path / "old")
    for path in (tmp_path / "new", copy):
        before = {p.name for p in path.parent.iterdir()}
        with full_disk(20_000):
            done = here("index", "demo", "--out", path, "--embedder", "tfidf", "--overwrite", "--json")
        assert "could not be written" in refused(done)[0]
        assert {p.name for p in path.parent.iterdir()} == before
    assert len(CorpusIndex.load(copy)) == 205
