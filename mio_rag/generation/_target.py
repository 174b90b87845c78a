"""Specifications of an endpoint: ``URL#MODEL[?OPTIONS]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from mio_rag.errors import InputError

__all__ = ["parse_target"]

_OPTIONS: Mapping[str, type] = {
    "tokenizer": str,
    "window": int,
    "concurrency": int,
    "timeout_seconds": float,
    "retries": int,
    "logprobs": bool,
    "seed": int,
}


def parse_target(target: str) -> tuple[str, str, dict[str, Any]]:
    """Address, model and options of ``URL#MODEL[?OPTIONS]``.

    The options, parted by ``&``, are parameters of `OpenAIGenerator`: ``tokenizer``, ``window``,
    ``concurrency``, ``timeout_seconds``, ``retries``, ``logprobs`` (1 or 0) and ``seed``. For instance
    ``http://127.0.0.1:8080/v1#name?tokenizer=PATH&window=8192``.

    Raises
    ------
    InputError
        If no model is named, or an option is unknown or malformed.
    """
    url, _, rest = target.partition("#")
    model, _, query = rest.partition("?")
    if not model:
        raise InputError(f"openai:{target}: no model is named: write openai:URL#MODEL")
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        kind = _OPTIONS.get(name)
        if kind is None:
            raise InputError(f"openai:{target} has no option '{name}': it has {', '.join(_OPTIONS)}")
        try:
            options[name] = bool(int(value)) if kind is bool else kind(value)
        except ValueError as error:
            raise InputError(f"openai:{target}: {name}={value!r} is not of type {kind.__name__}") from error
    return url, model, options
