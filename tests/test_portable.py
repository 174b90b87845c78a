"""Windows has fewer modules and calls: nothing of the package is lost there for want of one."""

import ast
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from mio_rag import InputError
from mio_rag.batch.work import GroupReport, _peak_mb
from mio_rag.files import locked
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.limits import ConnectionLimits, fitted
from mio_rag.service.run import ServiceSettings, check, serve
from tests.sources import tree_of

ROOT = Path(__file__).parents[1]

MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
#: What os, signal, socket, select, time and multiprocessing have on POSIX alone, as far as one would use it.
CALLS = {
    "os": "chown chroot fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid "
    "getpgrp getpriority getuid killpg lchown major minor mkfifo mknod nice openpty posix_fadvise "
    "posix_fallocate posix_spawn pread preadv pwrite pwritev register_at_fork sched_getaffinity "
    "sched_setaffinity sched_yield sendfile setgid setpgid setpriority setsid setuid statvfs sync sysconf "
    "ttyname uname wait wait3 wait4 O_CLOEXEC O_DIRECT O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC",
    "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 alarm pause "
    "pthread_kill pthread_sigmask set_wakeup_fd setitimer siginterrupt sigwait",
    "socket": "AF_UNIX SO_REUSEPORT recv_fds send_fds",
    "select": "epoll kqueue poll",
    "time": "tzset clock_gettime pthread_getcpuclockid",
}


def _sources() -> list[Path]:
    folders = (ROOT / "mio_rag", ROOT / "solvers", ROOT / "formulations")
    return sorted({path.resolve() for folder in folders for path in folder.rglob("*.py")})


def _guarded(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run only where a module or a call is there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any("ImportError" in ast.dump(handler) for handler in node.handlers):
            for statement in node.body:
                yield from ast.walk(statement)
        elif isinstance(node, ast.If | ast.IfExp) and "hasattr" in ast.dump(node.test):
            yield from ast.walk(node)


def _used(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            held = CALLS.get(node.module or "", "").split()
            if node.module in MODULES:
                yield node, str(node.module)
            yield from ((node, f"{node.module}.{a.name}") for a in node.names if a.name in held)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in CALLS.get(node.value.id, "").split():
                yield node, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
            "get_context",
            "set_start_method",
        ):
            given = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if given != ["spawn"]:
                yield node, f"multiprocessing: start method {given}"


def _unguarded(tree: ast.AST) -> list[str]:
    fine = set(map(id, _guarded(tree)))
    return [f"{node.lineno}: {name}" for node, name in _used(tree) if id(node) not in fine]  # type: ignore[attr-defined]


def test_what_only_posix_has_is_used_where_it_is_there() -> None:
    found = {str(path.relative_to(ROOT)): _unguarded(tree_of(path)) for path in _sources()}
    assert {path: uses for path, uses in found.items() if uses} == {}


def test_the_test_above_sees_what_it_should() -> None:
    def said(source: str) -> list[str]:
        return _unguarded(ast.parse(source))

    assert said("import resource") == ["1: resource"]
    assert said("def f():\n    from fcntl import flock") == ["2: fcntl"]
    assert said("import os\nos.fork()") == ["2: os.fork"]
    assert said("from signal import SIGKILL") == ["1: signal.SIGKILL"]
    assert said("get_context('fork')") == []  # a name of one's own
    assert said("multiprocessing.get_context('fork')") == ["1: multiprocessing: start method ['fork']"]
    assert said("try:\n    import fcntl\nexcept ImportError:\n    pass") == []
    assert said("n = os.getuid() if hasattr(os, 'getuid') else 0") == []


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
