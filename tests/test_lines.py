"""Lines are added to files without reading them, whole, whoever else writes."""

import tracemalloc
from pathlib import Path
from threading import Thread

import pytest

from mio_rag.errors import InputError
from mio_rag.storage import append_lines


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
    others = [Thread(target=append_lines, args=(path, [str(k) * 20_000])) for k in range(8)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    assert sorted(path.read_text().splitlines()[2:]) == [str(k) * 20_000 for k in range(8)]


def test_lines_that_cannot_be_added_say_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.t\.jsonl' could not be written"):
        append_lines(tmp_path / "nowhere" / "t.jsonl", ["x"])
