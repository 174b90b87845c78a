"""Files are written whole or not at all; one run at a time works in a folder."""

import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from mio_rag.errors import InputError
from mio_rag.files import is_vacant, locked, replaced, write_atomically


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
        with pytest.raises(InputError, match="is no file"):
            write_atomically(path, "text")
    with pytest.raises(InputError, match="could not be written"):
        write_atomically(tmp_path / "missing" / "file.txt", "text")


def test_a_folder_is_one_runs_until_its_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    hold = "import sys; from pathlib import Path; from mio_rag.files import locked\n"
    hold += "with locked(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another run is at work"), locked(folder):
            pass
        other.kill()
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
    code = "import os, sys; from pathlib import Path; from mio_rag.files import locked, replaced\n"
    code += "with locked(Path(sys.argv[1])), replaced(Path(sys.argv[1], sys.argv[2])) as partial:\n"
    code += "    partial.write_text('half'); os._exit(9)"
    for name in ("run.json", "rows"):
        subprocess.run([sys.executable, "-c", code, str(folder), name], check=False)
    assert len(os.listdir(folder)) == 3
    assert is_vacant(folder)
    for other in (".git", ".notes.partial", "run.json"):
        (folder / other).touch()
        assert not is_vacant(folder)
        (folder / other).unlink()


def test_a_system_without_locks_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.warns(RuntimeWarning, match="has no file locks"), locked(tmp_path):
        pass
