"""The exception tree.

    MioRagError
    +-- InputError (also ValueError)        what the caller gave cannot be used; `.problems` lists them all
    |   +-- DataError                       a file or data set is malformed (names the file and line)
    |   +-- IndexFormatError                an index on disk is damaged, foreign or of another version
    |   +-- UnsuitableModelError            the model cannot do what the settings ask of it
    +-- MissingExtraError (also ImportError) an optional package is missing; its message says how to get it
    +-- SpentError                          a total of tokens is spent; `.retry_after`: when there are more
    +-- StateError (also RuntimeError)      a shared file can no longer be read or written
    +-- InfeasibleError                     no selection satisfies the constraints, and one is needed
    +-- SolverError (also RuntimeError)     a solver cannot take the program, or broke while solving it
    +-- StoreError (also RuntimeError)      a vector store failed
    +-- GenerationError (also RuntimeError) a generator could not answer (`mio_rag.types`)

Infeasibility is a status of a result, not an exception, until something has to be read or answered. What goes
on without something that is missing or broken warns by `Notice`.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


class MioRagError(Exception):
    """Base of every error that mio-rag raises on purpose."""


class Notice(UserWarning, RuntimeWarning):  # both: who filters warnings may know either
    """A warning of mio-rag itself, worded for the person who runs it: commands print it as a note."""


class InputError(MioRagError, ValueError):
    """Input that cannot be used; `problems` has one sentence each: what was given, what holds, how to fix
    it.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("; ".join(self.problems))


class DataError(InputError):
    """A data file or data set is malformed."""


class IndexFormatError(InputError):
    """An index on disk is damaged, foreign, or written by another version of the format."""


class UnsuitableModelError(InputError):
    """The model cannot do what the settings ask of it, whatever the question is."""


class MissingExtraError(MioRagError, ImportError):
    """An optional dependency is not installed."""


class SpentError(MioRagError):
    """A total of tokens is spent; `retry_after`: seconds until there are tokens again, None if never."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StateError(MioRagError, RuntimeError):
    """A file that holds a shared state can no longer be read or written: a full disk, a lock that stays."""


class InfeasibleError(MioRagError):
    """There is no selection to answer from; the message says what was asked for together."""


class StoreError(MioRagError, RuntimeError):
    """A vector store failed."""


class SolverError(MioRagError, RuntimeError):
    """A solver is unknown, unavailable, cannot take this program, or broke."""


def choose(name: object, known: Iterable[str], *, more: str = "") -> str:
    """Return what to choose in place of an unknown name, for the end of a message.

    "did you mean 'exact'?", or without a similar name "choose topk, exact" and `more`, in words, or "there is
    none".
    """
    names = list(known)
    if not names:
        return "there is none"
    near = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean '{near[0]}'?" if near else f"choose {', '.join(names)}{more}"


def refuse(problems: Sequence[str]) -> None:
    """Raise `InputError` if there are problems."""
    if problems:
        raise InputError(problems)


def collect(*steps: Callable[[], Any]) -> list[Any]:
    """Run independent checks; raise the problems of all that failed on their input as one InputError."""
    results: list[Any] = []
    failures: list[InputError] = []
    for step in steps:
        try:
            results.append(step())
        except InputError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise InputError(list(dict.fromkeys(p for error in failures for p in error.problems)))
    return results


@contextmanager
def optional(module: str, extra: str, purpose: str) -> Iterator[None]:
    """Wrap imports of an optional module: where it is not installed, the error says how to install it; see
    `require`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{purpose} needs the package '{module.split('.')[0]}', which is not installed: {install(extra)}"
        ) from error


def install(extra: str) -> str:
    """Return the command that installs an extra: from the checkout, where the package runs from one."""
    checkout, part = Path(__file__).resolve().parents[1], f"[{extra}]" if extra else ""
    if (checkout / "constraints.txt").is_file():
        return f"pip install -c constraints.txt -e \".{part}\" in '{checkout}'"
    return f'pip install "mio-rag{part}"'


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional module, or say exactly how to install it.

    module, extra: import name, for instance ``"faiss"``, and the extra of mio-rag that brings it,
        ``"retrieval"``.
    purpose: what needs it, for the message.

    Raises `MissingExtraError` if the module is not installed. If it is installed and fails to import, its own
    error is raised.
    """
    with optional(module, extra, purpose):
        return importlib.import_module(module)


class OutputError(MioRagError):
    """The output could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output could not be written: {error.strerror or error}")
