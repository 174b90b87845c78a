"""Specifications with options: ``URL#MODEL[?OPTIONS]`` of an endpoint, ``PATH[?OPTIONS]`` of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from mio_rag.errors import InputError

__all__ = ["parse_file", "parse_target"]

_OPTIONS: Mapping[str, type] = {
    "tokenizer": str,
    "window": int,
    "concurrency": int,
    "timeout_seconds": float,
    "retries": int,
    "logprobs": bool,
    "seed": int,
    "replies": str,
}
_FILE_OPTIONS: Mapping[str, type] = {
    "n_ctx": int,
    "threads": int,
    "slots": int,
    "seed": int,
    "replies": str,
}


def parse_target(target: str) -> tuple[str, str, dict[str, Any]]:
    """Address, model and options of ``URL#MODEL[?OPTIONS]``.

    The options, parted by ``&``, are parameters of `OpenAIGenerator`: ``tokenizer``, ``window``,
    ``concurrency``, ``timeout_seconds``, ``retries``, ``logprobs`` (1 or 0) and ``seed``; and ``replies``, a
    file that remembers what was said. For instance
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
    return url, model, _options(f"openai:{target}", query, _OPTIONS)


def parse_file(target: str) -> tuple[str, dict[str, Any]]:
    """Path and options of ``PATH[?OPTIONS]``; a file whose name holds a "?" is found as well.

    The options, parted by ``&``, are parameters of `GGUFGenerator` (``n_ctx``, ``threads``, ``slots``,
    ``seed``), and ``replies``, a file that remembers what was said.

    Raises
    ------
    InputError
        If an option is unknown or malformed.
    """
    path, mark, query = target.partition("?")
    if not mark or Path(target).expanduser().is_file():
        return target, {}
    return path, _options(f"gguf:{target}", query, _FILE_OPTIONS)


def _options(spec: str, query: str, known: Mapping[str, type]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        kind = known.get(name)
        if kind is None:
            raise InputError(f"{spec} has no option '{name}': it has {', '.join(known)}")
        try:
            options[name] = bool(int(value)) if kind is bool else kind(value)
        except ValueError as error:
            raise InputError(f"{spec}: {name}={value!r} is not of type {kind.__name__}") from error
    if options.get("replies") == "":
        raise InputError(f"{spec}: replies is empty: give the path of a file")
    return options
