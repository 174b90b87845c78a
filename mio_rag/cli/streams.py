"""stdout and stderr: streams that take every character, and that may be closed or full."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata
from typing import Any

from mio_rag.errors import MioRagError

__all__ = ["OutputError", "prepare_streams", "silence"]

_HANDLER = "mio_rag.plain_characters"
#: What stands for characters that a stream cannot take; one column wide where tables hold them.
_PLAIN = {
    "\u2713": "+", "\u00b7": "-", "\u2022": "*", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\u2014": "-",
    "\u2212": "-", "\u2192": ">", "\u2026": "...", "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"',
    "\u2264": "<=", "\u2265": ">=", "\u00d7": "x", "\u00b1": "+-", "\u00a0": " ", "\u2009": " ",
    "\u202f": " ",
}  # fmt: skip


class OutputError(MioRagError):
    """The output could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output could not be written: {error.strerror or error}")


def prepare_streams() -> None:
    """Let stdout and stderr take every character: plain ones stand for those that their encoding lacks.

    A way that the environment chose (``PYTHONIOENCODING=ascii:xmlcharrefreplace``) stays.

    Raises
    ------
    OutputError
        If stdout is closed.
    """
    if sys.stdout is None:
        raise OutputError(OSError(errno.EBADF, "stdout is closed"))
    codecs.register_error(_HANDLER, _plain)
    for stream, defaults in (
        (sys.stdout, ("strict", "surrogateescape")),
        (sys.stderr, ("strict", "surrogateescape", "backslashreplace")),
    ):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in defaults:
            stream.reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain_character, error.object[error.start : error.end])), error.end


def _plain_character(character: str) -> str:
    if character in _PLAIN:
        return _PLAIN[character]
    base, *marks = list(unicodedata.normalize("NFD", character))
    if unicodedata.combining(base):
        return ""
    if base.isascii() and all(map(unicodedata.combining, marks)):
        return base
    return "??" if unicodedata.east_asian_width(character) in "WF" else "?"


def silence(stream: Any) -> None:
    """Send what a stream still holds to nowhere, so that Python does not fail on it once more at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):  # no real descriptor, which holds nothing back
        return
