"""What the head of a GGUF file says of the model in it, without loading the model."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["trained_context"]

# By number of the type: how `struct` reads it. 8 is a string, 9 an array.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_LONGEST = 1 << 16  # bytes of a name


def trained_context(path: Path) -> int | None:
    """Tokens of the window that a model was trained for; None where the file does not say, or not legibly.

    Notes
    -----
    Names and values stand at the beginning of the file, those of the model's shape before the vocabulary
    (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Whether the file is sound is not checked.
    """
    try:
        with path.open("rb") as stream:
            return _found(stream)
    except (OSError, OverflowError, ValueError, struct.error):
        return None


def _found(stream: BinaryIO) -> int | None:
    stream.seek(4)
    version, _, count = _read(stream, "IQQ")
    if version not in _VERSIONS:
        return None
    known: dict[str, Any] = {}
    for _ in range(count):
        key = _text(stream)
        (kind,) = _read(stream, "I")
        if kind in _NUMBERS:
            (known[key],) = _read(stream, _NUMBERS[kind])
        elif kind == _STRING and key == "general.architecture":
            known[key] = _text(stream)
        else:
            _skip(stream, kind)
        window = known.get(f"{known.get('general.architecture')}.context_length")
        if window is not None:
            return window if isinstance(window, int) and window >= 1 else None
    return None


def _read(stream: BinaryIO, form: str) -> tuple[Any, ...]:
    layout = struct.Struct(f"<{form}")
    return layout.unpack(stream.read(layout.size))


def _text(stream: BinaryIO) -> str:
    (length,) = _read(stream, "Q")
    if length > _LONGEST:
        raise ValueError(f"a name of {length} bytes")
    return stream.read(length).decode()


def _skip(stream: BinaryIO, kind: int) -> None:
    if kind in _NUMBERS:
        stream.seek(struct.calcsize(f"<{_NUMBERS[kind]}"), os.SEEK_CUR)
    elif kind == _STRING:
        (length,) = _read(stream, "Q")
        stream.seek(length, os.SEEK_CUR)
    elif kind == _ARRAY:
        inner, length = _read(stream, "IQ")
        if inner in _NUMBERS:
            stream.seek(length * struct.calcsize(f"<{_NUMBERS[inner]}"), os.SEEK_CUR)
        elif inner == _STRING:
            for _ in range(length):
                _skip(stream, inner)
        else:
            raise ValueError(f"an array of type {inner}")
    else:
        raise ValueError(f"a value of type {kind}")
