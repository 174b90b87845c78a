"""What a path or name opens, when it is indexed, and what the cache holds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest

from mio_rag.errors import IndexFormatError, InputError
from mio_rag.sources import Building, cached_indexes, changes_of, kind_of, open_source, prune

WORDS = Building("tfidf")


@pytest.fixture
def handbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "travel.md").write_text("# Travel\n\nThe allowance in Norway is 75 EUR a day.\n")
    (folder / "safety.txt").write_text("Ikram Bell leads the safety training on Tuesday.")
    return folder


def test_every_kind_of_source_opens(handbook: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "The Tiber flows"}\n{"id": "k", "text": "The Arno flows"}\n'
    )
    (tmp_path / "set").mkdir()
    shutil.copy(tmp_path / "rows.jsonl", tmp_path / "set" / "corpus.jsonl")
    (tmp_path / "set" / "corpus.jsonl").write_text('{"id": "k", "text": "The Arno flows"}\n')
    for source, kind, ids in (
        (handbook, "documents", ("safety.txt#0", "travel.md#0")),
        (handbook / "travel.md", "file", ("travel.md#0",)),
        (tmp_path / "rows.jsonl", "passages", ("rows-1", "k")),
        (tmp_path / "set", "layout", ("k",)),
    ):
        found = open_source(source, WORDS)
        assert (kind_of(source), tuple(found.index.ids), found.built) == (kind, ids, True)
        assert not open_source(source, WORDS).built
        assert tuple(open_source(found.folder).index.ids) == ids
    assert kind_of("demo") == "set"
    assert len(open_source("demo", WORDS).index) == 205


def test_documents_are_read_again_only_where_they_changed(handbook: Path) -> None:
    folder = open_source(handbook, WORDS).folder
    os.utime(handbook / "travel.md", (1, 1))
    assert not open_source(handbook, WORDS).built
    (handbook / "travel.md").write_text("# Travel\n\nThe allowance in Norway is 77 EUR a day.\n")
    (handbook / "new.md").write_text("# Holidays\n\nThirty days of holiday a year.\n")
    (handbook / "safety.txt").unlink()
    found = changes_of(handbook, WORDS).changes
    assert (found.changed, found.added, found.removed) == (("travel.md",), ("new.md",), ("safety.txt",))
    assert "75" in open_source(handbook, WORDS, refresh=False).index.passages[1].text
    again = open_source(handbook, WORDS)
    assert again.built
    assert again.folder == folder
    assert any("77" in passage.text for passage in again.index.passages)


def test_a_change_whose_time_was_set_back_is_noticed(handbook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mio_rag.sources._YOUNG", 0)  # else files are hashed for some seconds in any case
    file = handbook / "travel.md"
    open_source(handbook, WORDS)
    time, text = file.stat().st_mtime_ns, file.read_text()
    sleep(0.02)  # times of files are coarse
    file.write_text(text.replace("75", "76"))
    os.utime(file, ns=(time, time))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (len(text.encode()), time)
    assert any("76" in passage.text for passage in open_source(handbook, WORDS).index.passages)


def test_an_index_of_changed_documents_says_so(handbook: Path, tmp_path: Path) -> None:
    out = tmp_path / "INDEX"
    open_source(handbook, WORDS, out=out)
    assert open_source(out).notes == ()
    (handbook / "safety.txt").write_text("Somebody else leads the safety training.")
    (note,) = open_source(out).notes
    assert note == (
        f"{handbook} changed since {out} was built (safety.txt): run mio-rag index {handbook} --out {out}"
    )
    assert open_source(handbook, WORDS, out=out).built
    with pytest.raises(InputError, match="exists already"):
        open_source(handbook / "travel.md", WORDS, out=out)
    shutil.rmtree(handbook)
    assert len(open_source(out).index) == 2


def test_a_damaged_cache_is_built_again(handbook: Path) -> None:
    folder = open_source(handbook, WORDS).folder
    (folder / "passages.jsonl").write_text("{")
    assert open_source(handbook, WORDS).built
    (folder / "source.json").write_text(json.dumps({"source": str(handbook)}))
    assert open_source(handbook, WORDS).built


def test_an_index_that_cannot_be_read_is_built_again_by_overwrite(handbook: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    open_source(handbook, WORDS, out=out)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "version": 1}))
    with pytest.raises(IndexFormatError):
        open_source(handbook, WORDS, out=out)
    assert open_source(handbook, WORDS, out=out, overwrite=True).built
    assert not open_source(handbook, WORDS, out=out).built


def test_indexes_of_what_is_gone_are_removed(handbook: Path, tmp_path: Path) -> None:
    open_source(handbook, WORDS)
    open_source(handbook, Building("tfidf", sentences=True))
    assert len({one["index"] for one in cached_indexes()}) == 2
    assert prune() == []
    shutil.rmtree(handbook)
    assert len(prune()) == 2
    assert os.listdir(tmp_path / "cache" / "indexes") == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("handbok", "handbok does not exist. Did you mean handbook?"),
        ("nothing", "nothing does not exist: give a folder or file of documents"),
        ("hf:nothing", "'hf:nothing' is unknown"),
    ],
)
def test_what_is_not_there(
    handbook: Path, name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        open_source(name)
    assert said in str(caught.value)


#: Index a folder; be killed before the n-th renaming, or write to a full disk.
WRITER = """
import os, resource, signal, sys
from pathlib import Path
from mio_rag import MioRagError
from mio_rag.sources import Building, open_source
documents, out, kill = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
renamed = []
def hook(event, given):
    if event == "os.rename":
        renamed.append(given)
        if str(len(renamed)) == kill:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
if kill == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    open_source(documents, Building(embedder="tfidf"), out=out)
except MioRagError as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="limits and signals of POSIX")
def test_an_index_outlives_kills_and_full_disks(tmp_path: Path) -> None:
    documents, out = tmp_path / "documents", tmp_path / "INDEX"
    documents.mkdir()
    how = Building(embedder="tfidf")
    for n, kill in enumerate(("1", "none", "1", "2", "3", "full")):
        text = "\n\n".join(f"Tower {k} is {k * 7 + n} metres tall." for k in range(99))
        (documents / "towers.md").write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", WRITER, documents, out, kill], capture_output=True, text=True, check=False
        )
        assert ("could not be written" in done.stdout and "File too large" in done.stdout) == (kill == "full")
        if kill == "full":
            assert f"{7 * 98 + n - 1} metres" in open_source(out).index.passages[-1].text  # the old one
        passages = open_source(documents, how, out=out).index.passages
        assert f"{7 * 98 + n} metres" in passages[-1].text
        assert [one.name for one in out.parent.iterdir() if one.name.startswith(".INDEX")] == []


def test_questions_beside_documents_are_not_read(handbook: Path) -> None:
    (handbook / "questions.jsonl").write_text('{"question": ')
    assert len(open_source(handbook, WORDS).index) == 2
    (handbook / "corpus.jsonl").write_text('{"id": "k", "text": "The Arno flows"}\n')
    assert tuple(open_source(handbook, WORDS).index.ids) == ("k",)
