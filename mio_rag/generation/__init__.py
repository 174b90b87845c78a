"""Generators: what reads the selected passages and answers.

    from mio_rag.generation import build_prompt, make_generator

    with make_generator("gguf:model.gguf") as generator:
        answer = generator.generate(build_prompt(question, selection.passages))

Five back ends meet one protocol, `Generator`: `ExtractiveGenerator` (no weights), `GGUFGenerator` (llama.cpp in
this process), `HuggingFaceGenerator` (transformers), `OpenAIGenerator` (any compatible endpoint) and
`ScriptedGenerator` (tests). Each counts tokens as its own model does.
"""

from __future__ import annotations

import inspect
from typing import Any

from mio_rag.errors import InputError
from mio_rag.generation.base import BaseGenerator, Generator
from mio_rag.generation.extractive import ExtractiveGenerator
from mio_rag.generation.gguf import GGUFGenerator
from mio_rag.generation.huggingface import HuggingFaceGenerator
from mio_rag.generation.openai import OpenAIGenerator
from mio_rag.generation.prompts import SEPARATOR, Prompt, build_prompt, render_context, render_passage
from mio_rag.generation.scripted import ScriptedGenerator
from mio_rag.generation.tokens import RegexCounter, TokenCounter

__all__ = [
    "SEPARATOR",
    "BaseGenerator",
    "ExtractiveGenerator",
    "GGUFGenerator",
    "Generator",
    "HuggingFaceGenerator",
    "OpenAIGenerator",
    "Prompt",
    "RegexCounter",
    "ScriptedGenerator",
    "TokenCounter",
    "build_prompt",
    "make_generator",
    "render_context",
    "render_passage",
]

_FORMS = (
    "'extractive', 'gguf:PATH', 'hf:ID_OR_PATH', 'openai:URL#MODEL' (options after '?', for instance "
    "'openai:http://127.0.0.1:8080/v1#name?tokenizer=PATH&window=8192') or 'scripted:FILE.json'"
)


def make_generator(spec: str, **options: Any) -> Generator:
    """The generator that a specification names.

    Parameters
    ----------
    spec : str
        ``extractive``, ``gguf:PATH``, ``hf:ID_OR_PATH``, ``openai:URL#MODEL[?OPTIONS]`` or ``scripted:FILE.json``
        (an object of question id or text -> answer).
    **options
        Keyword parameters of the back end's class, for instance ``n_ctx`` for ``gguf``. They win over options
        inside the specification.

    Raises
    ------
    InputError
        For a specification of another form, an option that the back end does not have, or a missing file.
    MissingExtraError
        If the back end's package is not installed; the message is the install command.
    GenerationError
        If the model cannot be loaded.
    """
    kind, colon, target = spec.strip().partition(":")
    if kind == "extractive" and not colon:
        return ExtractiveGenerator(**_accepted(ExtractiveGenerator, spec, options))
    if target:
        if kind == "gguf":
            return GGUFGenerator(target, **_accepted(GGUFGenerator, spec, options))
        if kind == "hf":
            return HuggingFaceGenerator(target, **_accepted(HuggingFaceGenerator, spec, options))
        if kind == "openai":
            return OpenAIGenerator.from_spec(target, **_accepted(OpenAIGenerator, spec, options))
        if kind == "scripted":
            return ScriptedGenerator.from_file(
                target, **_accepted(ScriptedGenerator.from_file, spec, options)
            )
    raise InputError(f"generator '{spec}' is not known: give {_FORMS}")


def _accepted(target: Any, spec: str, options: dict[str, Any]) -> dict[str, Any]:
    # A misspelt option must not pass as a default, nor end in a TypeError from deep inside.
    known = [
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY or name in ("window",)
    ]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InputError(
            f"generator '{spec}' has no option {', '.join(sorted(unknown))}: it has {', '.join(known) or 'none'}"
        )
    return options
