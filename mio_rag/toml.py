"""Plain data as TOML; `mio_rag.reading` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tomli_w

from mio_rag.errors import InputError
from mio_rag.text import is_text

__all__ = ["toml_text"]


def toml_text(data: Mapping[str, Any]) -> str:
    """Plain data as TOML; numpy scalars and arrays are written as what they hold, None is left out.

    Raises
    ------
    InputError
        For a text that holds half of a surrogate pair: no TOML file can.
    """
    text = tomli_w.dumps(_plain(data))
    if not is_text(text):
        raise InputError(f"{text[:200]!r} holds characters that are no text, and cannot be written as TOML")
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
