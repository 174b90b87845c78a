"""How one input ended: with a result whose claims hold, with an error of the package's own, or badly."""

from __future__ import annotations

import math
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from benchmarks.fuzz.odd import Hostile
from mio_rag import errors
from mio_rag.errors import InputError, MioRagError, MissingExtraError

#: CPU time that one input may take; the machine may be busy, so that wall time says little.
CPU_SECONDS = 10.0

_ROOT = Path(errors.__file__).resolve().parents[1]
_OURS = [str(_ROOT / name) + "/" for name in ("mio_rag", "solvers", "formulations")]
_SHOWN = 400


class Wrong(Exception):
    """A result that claims what does not hold, or an ending that is none.

    what: the same for all inputs that fail in the same way; detail: of this input.
    """

    def __init__(self, what: str, detail: object = "") -> None:
        self.what, self.detail = what, str(detail)
        super().__init__(f"{what}: {self.detail}" if self.detail else what)


class _Slow(BaseException):
    """Too much CPU time. No Exception: the product catches those of a row, and goes on."""


@dataclass(frozen=True)
class Fault:
    """A bad ending.

    place: file and line of the product that raised, or what does not hold; inputs are grouped by it.
    error: type of the exception.
    """

    place: str
    error: str
    message: str

    def to_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return asdict(self)


class Kind(Protocol):
    """A kind of input. What it draws is plain data, so that it can be shown."""

    def __init__(self, folder: Path) -> None:
        """`folder` is there, empty, and its own."""
        ...

    def draw(self, rng: Any) -> Any:
        """One input."""
        ...

    def run(self, given: Any) -> str:
        """Run it; return how it ended in a word. `Wrong` if badly; `ending` judges what else is raised."""
        ...


def ending(kind: Kind, given: Any) -> str | Fault:
    """Run one input: the word for a good ending, or what was bad about it."""
    seen: list[Fault] = []

    def noted(message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, RuntimeWarning):
            seen.append(_fault(traceback.walk_stack(sys._getframe(1)), category.__name__, str(message), True))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = noted
        try:
            with _watched():
                word = kind.run(given)
        except MioRagError as error:
            return seen[0] if seen else _refused(error)
        except Wrong as error:
            return Fault(error.what, "Wrong", _short(error.detail))
        except Hostile:  # the caller's own exception, passed on as it is
            return seen[0] if seen else "their own exception"
        except (Exception, _Slow) as error:
            kind_of = "takes too long" if isinstance(error, _Slow) else type(error).__name__
            return _fault(traceback.walk_tb(error.__traceback__), kind_of, str(error))
    return seen[0] if seen else word


def _refused(error: MioRagError) -> str | Fault:
    problems = error.problems if isinstance(error, InputError) else (str(error),)
    bad = None
    if isinstance(error, MissingExtraError):
        bad = "asks for a package that is installed, or should be"
    elif not problems or not all(isinstance(p, str) and p.strip() for p in problems):
        bad = "an error without a message"
    elif any("Traceback (most" in p for p in problems):
        bad = "a traceback as message"
    if bad is None:
        return "refused"
    return _fault(traceback.walk_tb(error.__traceback__), f"{type(error).__name__}, {bad}", str(error))


def _fault(frames: Any, error: str, message: str, inner_first: bool = False) -> Fault:
    """Named by the innermost line of the product; failing that, of the fuzzer."""
    lines = [(frame.f_code.co_filename, line) for frame, line in frames]
    return Fault(_place(lines[::-1] if inner_first else lines), error, _short(message))


def _place(lines: list[tuple[str, int]]) -> str:
    """Of lines from the outermost to the innermost."""
    known = [
        (str(Path(file).resolve()), line)
        for file, line in lines
        if not file.startswith("<") and Path(file).name != "warnings.py"
    ]
    ours = [(file, line) for file, line in known if file.startswith(tuple(_OURS))]
    for file, line in (ours or known)[-1:]:
        path = Path(file)
        shown = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else Path(*path.parts[-2:])
        return f"{shown.as_posix()}:{line}"
    return "nowhere"


def _short(text: str) -> str:
    shown = text.encode("ascii", "backslashreplace").decode()
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]} ... ({len(shown)} characters)"


@contextmanager
def _watched() -> Iterator[None]:
    """Ends the block with `_Slow` when it takes too much CPU time."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Slow(f"more than {CPU_SECONDS:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def strict(what: str, data: Any) -> None:
    """Raise `Wrong` where data hold what JSON does not: NaN, infinities, objects."""
    todo = [data]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            todo += value
        elif value is not None and not isinstance(value, (str, int, float)):
            raise Wrong(f"{what}: {type(value).__name__} is no JSON", repr(value))
        elif isinstance(value, float) and not math.isfinite(value):
            raise Wrong(f"{what}: a number that JSON does not have", value)
