"""Generators: what reads the selected passages and answers. Each counts tokens as its own model does.

with make_generator("gguf:model.gguf") as generator:
    answer = generator.generate(build_prompt(question, selection.passages))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError
from mio_rag.generation.base import BaseGenerator
from mio_rag.generation.extractive import FunctionGenerator, ScriptedGenerator
from mio_rag.generation.protocol import Generator, Prompt, build_prompt

if TYPE_CHECKING:
    from mio_rag.generation.extractive import ExtractiveGenerator
    from mio_rag.generation.gguf import GGUFGenerator
    from mio_rag.generation.huggingface import HuggingFaceGenerator
    from mio_rag.generation.openai import OpenAIGenerator

__all__ = [
    "BaseGenerator",
    "ExtractiveGenerator",
    "GGUFGenerator",
    "Generator",
    "HuggingFaceGenerator",
    "OpenAIGenerator",
    "Prompt",
    "ScriptedGenerator",
    "as_generator",
    "build_prompt",
    "make_generator",
    "reader_spec",
]

# The back ends are imported when they are first named: their imports would triple the time of this one.
_BACK_ENDS = {
    "ExtractiveGenerator": "extractive",
    "GGUFGenerator": "gguf",
    "HuggingFaceGenerator": "huggingface",
    "OpenAIGenerator": "openai",
}
#: Kind -> options that may stand behind a "?", with their types.
_OPTIONS: Mapping[str, Mapping[str, type]] = {
    "gguf": {"n_ctx": int, "threads": int, "slots": int, "seed": int, "replies": str},
    "openai": {
        "tokenizer": str, "window": int, "concurrency": int, "timeout_seconds": float, "retries": int,
        "logprobs": bool, "seed": int, "replies": str,
    },
}  # fmt: skip
_EXTRACT = "extract"  # how people name the extractive reader
_FORMS = (
    "'extract', 'gguf:PATH', 'hf:ID_OR_PATH', 'openai:MODEL[@URL]' (options after '?', for instance "
    "'gguf:model.gguf?slots=6&replies=replies.sqlite' or "
    "'openai:name@http://127.0.0.1:8080/v1?tokenizer=PATH&window=8192') or 'scripted:FILE.json'"
)


def reader_spec(model: str | None, default: str | None = None) -> str:
    """Return a model as `make_generator` takes it.

    model: as --model: extract, or openai:NAME[@URL] with OPENAI_BASE_URL as default of the URL.
    default: where neither the option nor MIO_RAG_MODEL names one.
    """
    spec = (model or os.environ.get("MIO_RAG_MODEL") or default or DEFAULTS.model).strip()
    return "extractive" if spec == _EXTRACT else _with_address(spec)


def _with_address(spec: str) -> str:
    """openai:NAME[@URL][?OPTIONS] as openai:URL#NAME[?OPTIONS]; other specifications as they are."""
    if not spec.startswith("openai:") or "#" in spec:
        return spec
    name, at, url = spec.removeprefix("openai:").partition("@")
    name, mark, query = name.partition("?")
    if at and "?" in url:
        url, mark, query = url.partition("?")
    if not name or "://" in name:
        return spec
    address = url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    return f"openai:{address}#{name}{mark}{query}"


def make_generator(spec: str, **options: Any) -> Generator:
    """The generator that a specification names.

    spec: ``extract`` (or ``extractive``), ``gguf:PATH[?OPTIONS]``, ``hf:ID_OR_PATH``,
        ``openai:MODEL[@URL][?OPTIONS]`` or ``scripted:FILE.json`` (an object of question id or text ->
        answer). Options, parted by ``&``, are parameters of the back end; ``replies=FILE`` stores replies.
    **options: keyword parameters of the back end's class. They replace options inside the specification.

    Raises `InputError` for a specification of another form, an option that the back end does not have, or a
    missing file; `MissingExtraError` if the back end's package is not installed; `GenerationError` if the
    model cannot be loaded.
    """
    make, arguments, options, replies = _resolved(spec, options)
    generator: Generator = make(*arguments, **options)
    if replies is None:
        return generator
    from mio_rag.generation.replies import RememberingGenerator

    try:
        return RememberingGenerator(generator, replies)
    except InputError:
        generator.close()
        raise


def as_generator(reader: str | Generator | Callable[[str, int], str]) -> Generator:
    """Return what answers: a specification, a generator, or any function (prompt, max_tokens) -> text."""
    if isinstance(reader, str):
        return make_generator(reader_spec(reader))
    return reader if isinstance(reader, Generator) else FunctionGenerator(reader)


def check_generator(spec: str) -> None:
    """Raise `InputError` where a specification plainly names no generator; nothing is loaded or started."""
    make, arguments, *_ = _resolved(spec, {})
    if spec.strip().startswith("gguf:"):
        from mio_rag.generation.gguf import model_file

        model_file(*arguments)
    elif spec.strip().startswith("scripted:"):
        make(*arguments)  # reads a short file


def model_name(spec: str) -> str:
    """What a model is called in requests: the last part of its specification, without options."""
    _, arguments, *_ = _resolved(spec, {})
    return Path(arguments[0]).name if len(arguments) == 1 else arguments[-1] if arguments else "extractive"


def file_of(spec: str) -> Path:
    """The file of ``gguf:PATH[?OPTIONS]``, which may not be there."""
    return Path(_resolved(spec, {})[1][0]).expanduser()


def _resolved(spec: str, options: dict[str, Any]) -> tuple[Any, tuple[str, ...], dict[str, Any], Any]:
    """What makes the generator of a specification: a function, its arguments and options; then `replies`."""
    kind, colon, target = _with_address(spec.strip()).partition(":")
    arguments: tuple[str, ...] = (target,)
    query, make = "", None
    if kind in (_EXTRACT, "extractive") and not colon:
        make, arguments = _back_end("ExtractiveGenerator"), ()
    elif kind == "gguf" and target:
        make = _back_end("GGUFGenerator")
        if not Path(target).expanduser().is_file():  # the name of a file may hold a "?"
            path, _, query = target.partition("?")
            arguments = (path,)
    elif kind == "hf" and target:
        make = _back_end("HuggingFaceGenerator")
    elif kind == "openai" and target:
        url, _, rest = target.partition("#")
        model, _, query = rest.partition("?")
        if not model:
            raise InputError(f"{spec}: no model is named: write openai:MODEL@URL")
        make, arguments = _back_end("OpenAIGenerator"), (url, model)
    elif kind == "scripted" and target:
        make = ScriptedGenerator.from_file
    if make is None:
        kind = "gguf" if spec.endswith(".gguf") else "hf" if "/" in spec else "openai"
        near = get_close_matches(spec, [_EXTRACT]) or (
            [] if colon or not spec.strip() else [f"{kind}:{spec}"]
        )
        hint = f"did you mean '{near[0]}'? G" if near else "g"
        raise InputError(f"generator '{spec}' is not known: {hint}ive {_FORMS}")
    options = _options(spec, query, kind) | options
    replies = options.pop("replies", None)
    try:
        signature(make).bind(*arguments, **options)
    except TypeError as error:
        # A misspelt option must not pass as a default, nor end in a TypeError from deep inside.
        known = [name for name, p in signature(make).parameters.items() if p.default is not p.empty]
        raise InputError(f"generator '{spec}': {error}; its options are {', '.join(known)}") from error
    return make, arguments, options, replies


def _options(spec: str, query: str, kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        known = _OPTIONS[kind]
        if name not in known:
            raise InputError(f"{spec} has no option '{name}': it has {', '.join(known)}")
        try:
            options[name] = bool(int(value)) if known[name] is bool else known[name](value)
        except ValueError as error:
            raise InputError(f"{spec}: {name}={value!r} is not of type {known[name].__name__}") from error
    if options.get("replies") == "":
        raise InputError(f"{spec}: replies is empty: give the path of a file")
    return options


def _back_end(name: str) -> Any:
    return getattr(import_module(f"mio_rag.generation.{_BACK_ENDS[name]}"), name)


def __getattr__(name: str) -> Any:
    if name in _BACK_ENDS:
        return _back_end(name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
