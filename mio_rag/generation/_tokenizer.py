"""Tokenizers of the Hugging Face format: loading one, and laying a prompt into its chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mio_rag.errors import InputError, require
from mio_rag.generation.prompts import Prompt

__all__ = ["chat_text", "expanded", "first_line", "load_tokenizer"]


def load_tokenizer(name: str, what: str = "hf") -> Any:
    """The tokenizer of a hub id or a local folder.

    Raises
    ------
    InputError
        If it cannot be loaded: no such folder, no such id, or no network.
    """
    transformers = require("transformers", "retrieval", "reading a Hugging Face tokenizer")
    _check_path(name, what)
    try:
        return transformers.AutoTokenizer.from_pretrained(expanded(name))
    except (OSError, ValueError) as error:
        raise InputError(f"{what}: no tokenizer can be loaded from '{name}' ({first_line(error)})") from error


def chat_text(tokenizer: Any, prompt: Prompt) -> tuple[str, bool]:
    """The text that the model continues, and whether special tokens are still to be added to it."""
    if getattr(tokenizer, "chat_template", None) is None:
        return f"{prompt.system}\n\n{prompt.user}", True
    jinja2 = require("jinja2", "retrieval", "applying a chat template")
    system, user = {"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}
    merged = {"role": "user", "content": f"{prompt.system}\n\n{prompt.user}"}
    try:
        text = tokenizer.apply_chat_template([system, user], tokenize=False, add_generation_prompt=True)
    except jinja2.TemplateError:
        # Some templates (Gemma's, early Mistral's) refuse a system message.
        text = tokenizer.apply_chat_template([merged], tokenize=False, add_generation_prompt=True)
    return str(text), False


def expanded(name: str) -> str:
    """A leading ~ resolved; hub ids stay as they are."""
    return str(Path(name).expanduser()) if name.startswith("~") else name


def _check_path(name: str, what: str) -> None:
    # A hub id has at most one slash; asking the hub for a mistyped path would end in a confusing message.
    looks_local = name.startswith((".", "/", "~", "\\")) or name.count("/") > 1
    if looks_local and not Path(name).expanduser().is_dir():
        raise InputError(
            f"{what}: there is no folder '{name}': give a model folder or a hub id such as 'org/name'"
        )


def first_line(error: BaseException) -> str:
    """What an error says first; libraries append pages of advice."""
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]
