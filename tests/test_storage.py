"""Files are written whole or not at all; one run works in a folder; what others wrote is read strictly."""

import errno
import io
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import filelock
import pytest

from mio_rag import storage
from mio_rag.corpora.load import load_questions
from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.generation import ScriptedGenerator
from mio_rag.learning.mdp import read_model
from mio_rag.policy import Policy
from mio_rag.relevance.model import load_model
from mio_rag.session.trace import Trace, read_traces
from mio_rag.storage import (
    append_lines,
    claimed,
    is_vacant,
    known_sha256_of,
    locked,
    parse_json,
    parse_toml,
    read_json,
    read_text,
    replaced,
    replaced_folder,
    sha256_of,
    sweep,
    write_atomically,
)

LEFT = f".rows.{'0f' * 16}.partial"  # as a killed writer of "rows" leaves it


@contextmanager
def elsewhere(what: str, *paths: Path) -> Iterator[None]:
    """Another process inside a context of `mio_rag.storage`, which is killed in the end."""
    code = "import os, sys; from pathlib import Path; from mio_rag.storage import *\n"
    code += "for path in map(Path, sys.argv[1:]):\n"
    code += f"    context = {what}; made = context.__enter__(); globals()[str(path)] = context\n"
    code += "    if made and made.is_dir(): (made / 'half').write_text('half')\n"
    code += "    elif made: made.write_text('half')\n"
    code += "print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield
        other.kill()


def in_threads(*jobs: Callable[[], object]) -> None:
    threads = [Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_atomically(path, "old")

    def write_half(error: Exception) -> None:
        with replaced(path) as partial:
            partial.write_text("half")
            assert partial.suffix == ".json"
            raise error

    with pytest.raises(ZeroDivisionError):
        write_half(ZeroDivisionError())
    with pytest.raises(InputError, match=r"report.json' could not be written: no space"):
        write_half(OSError("no space left on device"))
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["report.json"])


def test_links_are_followed_and_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    write_atomically(tmp_path / "kept" / "real.txt", "old")
    for name, target in (("link.txt", "kept/real.txt"), ("dangling.txt", "kept/later.txt")):
        (tmp_path / name).symlink_to(target)
        write_atomically(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_text() == "new"
    assert sorted(os.listdir(tmp_path / "kept")) == ["later.txt", "real.txt"]
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="is not a file"):
            write_atomically(path, "text")
    with pytest.raises(InputError, match="could not be written"):
        write_atomically(tmp_path / "missing" / "file.txt", "text")


def test_a_folder_is_one_runs_until_its_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    busy = pytest.raises(InputError, match=r"another run is at work in .*choose a folder")
    with elsewhere("locked(path)", folder), busy, locked(folder):
        pass
    with locked(folder):
        pass
    assert os.listdir(folder) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"), locked(tmp_path / "file"):
        pass
    other = filelock.FileLock(tmp_path / ".lock", timeout=0)  # other programs see the lock
    with locked(tmp_path), pytest.raises(filelock.Timeout):
        other.acquire()
    with other, pytest.raises(InputError, match="another run is at work"), locked(tmp_path):
        pass


def test_one_run_at_a_time_works_on_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tuned.toml"
    with elsewhere("claimed(path)", path):
        (tmp_path / "link.toml").symlink_to(path)
        for name in (path, tmp_path / "link.toml"):
            with pytest.raises(InputError, match=r"another run is at work on .*another file"), claimed(name):
                pass
        with claimed(path.with_name("other.toml")), locked(path.parent):
            pass
    with claimed(path):
        pass
    assert os.listdir(path.parent) == []


def test_a_lock_has_one_holder_however_fast_it_changes_hands(tmp_path: Path) -> None:
    inside, most, taken = [0], [0], [0]

    def work() -> None:
        for _ in range(100):
            try:
                with locked(tmp_path):
                    inside[0] += 1
                    time.sleep(0.0002)  # the others may try
                    most[0] = max(most[0], inside[0])
                    taken[0] += 1
                    inside[0] -= 1
            except InputError:
                continue

    in_threads(*[work] * 6)
    assert (most[0], inside[0]) == (1, 0)
    assert taken[0] >= 6


def test_leftovers_of_killed_writers_are_swept_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert is_vacant(run)
    with (
        elsewhere("locked(path)", run),
        elsewhere("claimed(path)", run / "a.toml"),
        elsewhere("replaced(path)", run / "run.json", run / "rows"),
    ):
        pass
    assert len(os.listdir(run)) == 4
    assert is_vacant(run)
    for other in (".git", ".notes.partial", "run.json"):
        (run / other).touch()
        assert not is_vacant(run)
        (run / other).unlink()
    folder = tmp_path / "folder"
    folder.mkdir()
    files = [folder / name for name in ("report.json", "rows", "page.tar-x", "line\nbreak.png")]
    with elsewhere("replaced(path)", *files), elsewhere("replaced_folder(path)", folder / "index.v1"):
        pass
    assert len(os.listdir(folder)) == 5
    for path in files:
        write_atomically(path, "whole")
    with replaced_folder(folder / "index.v1") as work:
        (work / "content").write_text("whole")
    whole = {"index.v1", *(path.name for path in files)}
    assert set(os.listdir(folder)) == whole
    # A run sweeps its whole folder, whatever it writes.
    with elsewhere("replaced(path)", *files), elsewhere("replaced_folder(path)", folder / "index.v1"):
        pass
    (folder / ".notes.partial").touch()
    with locked(folder):
        assert set(os.listdir(folder)) == whole | {".lock", ".notes.partial"}


def test_what_is_being_written_is_never_swept(tmp_path: Path) -> None:
    path, folder = tmp_path / "report.json", tmp_path / "index"
    with elsewhere("replaced(path)", path), elsewhere("replaced_folder(path)", folder):
        theirs = set(os.listdir(tmp_path))
        assert len(theirs) == 2
        with replaced(path) as partial:
            for other in (path, tmp_path / "new.json"):
                write_atomically(other, "whole")
            with replaced_folder(folder) as work, replaced_folder(folder):
                sweep(tmp_path)
                with locked(tmp_path):
                    assert partial.exists()
                    assert work.exists()
            partial.write_text("later")
        assert path.read_text() == "later"
        assert set(os.listdir(tmp_path)) == theirs | {"report.json", "new.json", "index"}


def test_writers_and_sweepers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    problems: list[Exception] = []

    def work(own: int) -> None:
        try:
            for turn in range(60):
                write_atomically(tmp_path / "shared", f"{own} {turn}")
                write_atomically(tmp_path / f"own{own}", str(turn))
                assert (tmp_path / f"own{own}").read_text() == str(turn)
                sweep(tmp_path)
        except Exception as error:
            problems.append(error)

    in_threads(*(lambda own=k: work(own) for k in range(5)))
    assert problems == []
    assert sorted(os.listdir(tmp_path)) == [*(f"own{k}" for k in range(5)), "shared"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "index"
    for content in ("old", "new"):
        with replaced_folder(folder) as work:
            (work / content).write_text(content)
    assert os.listdir(folder) == ["new"]

    def write_half(error: Exception) -> None:
        with replaced_folder(folder) as work:
            (work / "half").write_text("half")
            raise error

    with pytest.raises(ZeroDivisionError):
        write_half(ZeroDivisionError())
    with pytest.raises(InputError, match=r"index' could not be written: no space"):
        write_half(OSError("no space left on device"))
    # Killed between the two renamings: the old one is kept until there is a new one.
    os.rename(folder, folder.with_name(f".index.{'0f' * 16}.old"))
    with pytest.raises(InputError, match="could not be written"):
        write_half(OSError())
    assert os.listdir(folder.parent) == [f".index.{'0f' * 16}.old"]
    with replaced_folder(folder) as work:
        (work / "newest").touch()
    assert os.listdir(folder.parent) == ["index"]


@pytest.mark.parametrize("system", ["windows", "no locks"])
def test_where_locks_bind_others_or_are_missing_nothing_is_swept(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows a partial file is written and renamed by its name, which its own lock would stop."""
    taken: list[int] = []
    real = filelock.lock_descriptor

    def lock(handle: int, **options: object) -> bool:
        if system == "no locks":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        taken.append(handle)
        return real(handle, blocking=False)

    monkeypatch.setattr(storage, "_LOCKS_BIND_OTHERS", system == "windows")
    monkeypatch.setattr(filelock, "lock_descriptor", lock)
    (tmp_path / LEFT).touch()
    write_atomically(tmp_path / "rows", "whole")
    with replaced_folder(tmp_path / "index") as work:
        (work / "content").touch()
        sweep(tmp_path)
    assert not taken
    if system == "no locks":
        with pytest.warns(RuntimeWarning, match="has no file locks"), locked(tmp_path):
            pass
    else:
        busy = pytest.raises(InputError, match="another run is at work")
        with locked(tmp_path), busy, locked(tmp_path):
            pass
        assert len(taken) == 2
    assert sorted(os.listdir(tmp_path)) == [LEFT, "index", "rows"]


def test_the_digest_of_a_large_file_is_remembered_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reads = tmp_path / "model", []

    def counted(file: Path) -> str:
        reads.append(file)
        return sha256_of(file)

    monkeypatch.setattr(storage, "sha256_of", counted)
    path.write_bytes(b"one")
    one = sha256_of(path)
    # Written just now: a change in the same tick of the clock would leave its time as it is.
    assert [known_sha256_of(path) for _ in range(2)] == [one, one]
    assert len(reads) == 2
    later = time.time_ns() + 60_000_000_000
    monkeypatch.setattr(storage.time, "time_ns", lambda: later)
    assert [known_sha256_of(path) for _ in range(2)] == [one, one]
    assert len(reads) == 3
    past = path.stat().st_mtime_ns
    path.write_bytes(b"two")
    os.utime(path, ns=(past, past))  # of the same length and time, and yet another
    assert known_sha256_of(path) == sha256_of(path) != one
    os.replace(path, tmp_path / "old")
    path.write_bytes(b"one")
    assert known_sha256_of(path) == one


def test_lines_are_added_without_reading_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    append_lines(path, [])
    assert not path.exists()
    with path.open("wb") as file:
        file.truncate(64_000_000)  # takes no room on the disk; ends like a line that was cut short
    tracemalloc.start()
    try:
        append_lines(path, ["one", "Zwei \u00e4"])
        append_lines(path, ["three"])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1_000_000
    with path.open("rb") as file:
        file.seek(64_000_000)
        assert file.read().decode() == "\none\nZwei \u00e4\nthree\n"
    with pytest.raises(InputError, match=r"nowhere.t\.jsonl' could not be written"):
        append_lines(tmp_path / "nowhere" / "t.jsonl", ["x"])


def test_writers_of_lines_take_turns(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "shared.jsonl"
    second = Thread(target=append_lines, args=(path, ["second" * 5000]))
    with path.open("ab", buffering=0) as first:  # has written half of its line
        fcntl.flock(first, fcntl.LOCK_EX)
        first.write(b"first" * 1000)
        second.start()
        second.join(timeout=0.2)
        first.write(b"first" * 1000 + b"\n")
    second.join()
    assert path.read_text().splitlines() == ["first" * 2000, "second" * 5000]
    in_threads(*(lambda k=k: append_lines(path, [str(k) * 20_000]) for k in range(8)))
    assert sorted(path.read_text().splitlines()[2:]) == [str(k) * 20_000 for k in range(8)]


DEEP = "[" * 5000 + "]" * 5000
BAD_TOML = [
    (f"a = {DEEP}", "nested more than 64 levels deep"),
    ("a = 1" + "0" * 400, "larger than any"),
    ("a = " + "9" * 5000, "thousands of digits"),
    ("a = nan", "nan is not allowed"),
    ("a = 1e999", "1e999 is larger than any"),
    ("a = 1\na = 2", "Cannot overwrite a value"),
]


def test_what_is_fine_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"a": [1, -2.5, 1e300, None, True], "b": "\U0001f600 \u2028 \\ud800", "c": {}, "d": 10**300}
    path = tmp_path / "file.json"
    for ascii_only in (True, False):
        path.write_text("\ufeff" + json.dumps(value, ensure_ascii=ascii_only), encoding="utf-8")
        assert read_json(path) == value
        assert parse_json(path.read_bytes(), "the text") == value
    deepest = "[" * 64 + "1" + "]" * 64
    assert json.dumps(parse_json(deepest, "the text")) == deepest
    assert parse_toml("\ufeffa = inf\nb = [1, 2.5]\n", "the text") == {"a": float("inf"), "b": [1, 2.5]}
    assert parse_json(r'["\ud800", Infinity]', "the text", own=True) == ["\ud800", float("inf")]
    assert json.dumps(parse_json('{"e100": [0, 0.0, -1]}', "the text")) == '{"e100": [0, 0.0, -1]}'
    stdin = io.TextIOWrapper(io.BytesIO('\ufeff["é"]'.encode()), encoding="cp1252")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert read_json("-") == ["é"]  # whatever the terminal speaks
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="stdin cannot be read: it is closed"):
        read_text("-")


DOORS = {
    "program": lambda path: SelectionProgram.from_json(path.read_text()),
    "script": ScriptedGenerator.from_file,
    "relevance": load_model,
    "traces": lambda path: read_traces(path, Trace),
    "questions": lambda path: load_questions(path.rename(path.with_name("questions.jsonl")).parent),
    "policy": Policy.load,
    "process": read_model,
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_reads_strictly(tmp_path: Path, door: str) -> None:
    texts = ['{"a": "", "a": ""}', '{"a": ' + DEEP + "}", '{"a": 1' + "0" * 400 + "}"]
    if door in ("policy", "process"):
        texts = [text for text, _ in BAD_TOML]
    messages = "given twice|overwrite|nested more than|larger than any|thousands|nan is not"
    for text in texts:
        path = tmp_path / "file"
        path.write_text(text)
        with pytest.raises(InputError, match=messages):
            DOORS[door](path)
