"""Windows has fewer modules and calls: nothing of the package is lost there for want of one."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from mio_rag import InputError
from mio_rag.batch.work import GroupReport, _peak_mb
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.run import check, serve
from mio_rag.service.settings import ConnectionLimits, ServiceSettings, fitted
from mio_rag.storage import locked

ROOT = Path(__file__).parents[1]

MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}


def test_every_module_can_be_imported_without_what_only_posix_has_and_bare_names_stay_free() -> None:
    names = [
        ".".join(path.relative_to(ROOT / "mio_rag").with_suffix("").parts)
        for path in sorted((ROOT / "mio_rag").rglob("*.py"))
    ]
    program = f"""
import builtins, gc, importlib, json, sys
gc.disable()  # loading makes objects, and next to no garbage
missing, there = {sorted(MODULES)!r}, builtins.__import__
def find(name, globals=None, *rest, **more):
    # Other packages know what system they are on; this one is told that it is on another.
    if name in missing and str((globals or {{}}).get("__name__")).startswith("mio_rag"):
        raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
    return there(name, globals, *rest, **more)
builtins.__import__ = find
for name in {names!r}:
    if name != "__main__":
        importlib.import_module(f"mio_rag.{{name}}".removesuffix(".__init__"))
print(json.dumps([len({names!r}), [n for n in ("solvers", "formulations") if n in sys.modules]]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    count, bare = json.loads(done.stdout)
    assert count > 100
    assert bare == []


def test_without_the_module_resource_what_it_says_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (_peak_mb(tmp_path / "none") or 0) > 1  # as on a Mac
    monkeypatch.setitem(sys.modules, "resource", None)
    assert _peak_mb(tmp_path / "none") is None
    assert GroupReport(0).peak_mb is None
    many = ConnectionLimits(max_connections=10**6)
    assert fitted(many) is many


def test_without_file_locks_a_second_run_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(handle: int, **options: object) -> bool:  # as filelock does where Python has no such locks
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(filelock, "lock_descriptor", fail)
    with pytest.warns(RuntimeWarning, match="no file locks"), locked(tmp_path / "run"):
        pass


def test_one_process_serves_where_sockets_cannot_be_shared(
    monkeypatch: pytest.MonkeyPatch, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    index = str(demo_index.save(tmp_path / "index"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with monkeypatch.context() as without:
        without.delattr(socket, "AF_UNIX")
        with pytest.raises(InputError, match="workers=2: on this system a service is one process"):
            check(ServiceSettings(index, port=port, workers=2), None, without_key=False)
        check(ServiceSettings(index, port=port), None, without_key=False)
    monkeypatch.delattr(socket, "fromfd")
    answered: list[int] = []

    def end() -> None:
        answered.append(port)
        signal.raise_signal(signal.SIGINT)

    serve(ServiceSettings(index, port=port), ready=end)  # returns once interrupted
    assert answered == [port]
