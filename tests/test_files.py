"""Files are written whole or not at all; one run at a time works in a folder."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import filelock
import pytest

from mio_rag import storage as files
from mio_rag.errors import InputError
from mio_rag.storage import (
    claimed,
    is_vacant,
    known_sha256_of,
    locked,
    replaced,
    replaced_folder,
    sha256_of,
    sweep,
    write_atomically,
)


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


def test_a_link_goes_on_pointing_to_what_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    write_atomically(tmp_path / "kept" / "real.txt", "old")
    for name, target in (("link.txt", "kept/real.txt"), ("dangling.txt", "kept/later.txt")):
        (tmp_path / name).symlink_to(target)
        write_atomically(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_text() == "new"
    assert sorted(os.listdir(tmp_path / "kept")) == ["later.txt", "real.txt"]


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
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


def test_a_lock_is_held_by_one_however_fast_it_changes_hands(tmp_path: Path) -> None:
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

    threads = [Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], inside[0]) == (1, 0)
    assert taken[0] >= 6


def test_what_a_kill_leaves_is_not_in_the_way_and_all_else_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert is_vacant(folder)
    with (
        elsewhere("locked(path)", folder),
        elsewhere("claimed(path)", folder / "a.toml"),
        elsewhere("replaced(path)", folder / "run.json", folder / "rows"),
    ):
        pass
    assert len(os.listdir(folder)) == 4
    assert is_vacant(folder)
    for other in (".git", ".notes.partial", "run.json"):
        (folder / other).touch()
        assert not is_vacant(folder)
        (folder / other).unlink()


def test_what_a_killed_writer_left_goes_when_the_next_one_comes(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("report.json", "rows", "page.tar-x", "line\nbreak.png")]
    with elsewhere("replaced(path)", *files):
        pass
    with elsewhere("replaced_folder(path)", tmp_path / "index.v1"):
        pass
    assert len(os.listdir(tmp_path)) == 5
    for path in files:
        write_atomically(path, "whole")
    with replaced_folder(tmp_path / "index.v1") as work:
        (work / "content").write_text("whole")
    assert sorted(os.listdir(tmp_path)) == sorted([*(path.name for path in files), "index.v1"])
    # A run sweeps its whole folder, whatever it comes to write.
    with elsewhere("replaced(path)", *files), elsewhere("replaced_folder(path)", tmp_path / "index.v1"):
        pass
    (tmp_path / ".notes.partial").touch()  # somebody's own
    with locked(tmp_path):
        left = {".lock", ".notes.partial", "index.v1", *(path.name for path in files)}
        assert set(os.listdir(tmp_path)) == left


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

    threads = [Thread(target=work, args=(k,)) for k in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system, or a disk, without file locks."""

    def fail(handle: int, **options: object) -> bool:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(filelock, "lock_descriptor", fail)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_nothing_is_swept(tmp_path: Path) -> None:
    (tmp_path / f".rows.{'0f' * 16}.partial").touch()
    write_atomically(tmp_path / "rows", "whole")
    with replaced_folder(tmp_path / "index"):
        sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [f".rows.{'0f' * 16}.partial", "index", "rows"]


@pytest.mark.usefixtures("no_locks")
def test_a_system_without_locks_is_told_of(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="has no file locks"), locked(tmp_path):
        pass


def test_where_locks_stop_writers_runs_hold_them_and_partial_files_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows: a partial file is written and renamed by its name, which its own lock would stop."""
    monkeypatch.setattr(files, "_LOCKS_BIND_OTHERS", True)
    taken: list[int] = []
    real = filelock.lock_descriptor

    def lock(handle: int, **options: object) -> bool:
        taken.append(handle)
        return real(handle, blocking=False)

    monkeypatch.setattr(filelock, "lock_descriptor", lock)
    left = tmp_path / f".rows.{'0f' * 16}.partial"
    left.touch()
    write_atomically(tmp_path / "rows", "whole")
    with replaced_folder(tmp_path / "index") as work:
        (work / "content").touch()
    assert not taken
    busy = pytest.raises(InputError, match="another run is at work")
    with locked(tmp_path), busy, locked(tmp_path):
        pass
    assert len(taken) == 2
    assert sorted(os.listdir(tmp_path)) == [left.name, "index", "rows"]


def test_other_programs_see_the_lock_of_a_run(tmp_path: Path) -> None:
    other = filelock.FileLock(tmp_path / ".lock", timeout=0)
    with locked(tmp_path), pytest.raises(filelock.Timeout):
        other.acquire()
    with other, pytest.raises(InputError, match="another run is at work"), locked(tmp_path):
        pass


def test_the_digest_of_a_large_file_is_remembered_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reads = tmp_path / "model", []

    def counted(file: Path) -> str:
        reads.append(file)
        return sha256_of(file)

    monkeypatch.setattr(files, "sha256_of", counted)
    path.write_bytes(b"one")
    one = sha256_of(path)
    # Written just now: a change in the same tick of the clock would leave its time as it is.
    assert [known_sha256_of(path) for _ in range(2)] == [one, one]
    assert len(reads) == 2
    later = time.time_ns() + 60_000_000_000
    monkeypatch.setattr(files.time, "time_ns", lambda: later)
    assert [known_sha256_of(path) for _ in range(2)] == [one, one]
    assert len(reads) == 3
    past = path.stat().st_mtime_ns
    path.write_bytes(b"two")
    os.utime(path, ns=(past, past))  # of the same length and time, and yet another
    assert known_sha256_of(path) == sha256_of(path) != one
    os.replace(path, tmp_path / "old")
    path.write_bytes(b"one")
    assert known_sha256_of(path) == one
