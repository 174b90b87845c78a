"""Workflows that a language model writes: under a grammar that allows valid ones alone, or freely.

The grammar lists every chain of steps that makes a workflow, so nothing else can be said. The published way
[1] is free text with a penalty for what is no workflow; it is here as a rival: what cannot be read becomes
`plain`, and the trace says so.

[1] MAO-ARAG: multi-agent orchestration for adaptive retrieval-augmented generation, arXiv 2508.01005.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from mio_rag.errors import InputError
from mio_rag.session.tools import TOOLS
from mio_rag.session.workflow import Workflow, chain

#: What may be written, and which step it is.
STEPS: dict[str, dict[str, Any]] = {
    "rewrite": {"do": "rewrite"},
    "decompose-serial": {"do": "decompose", "order": "serial"},
    "decompose-parallel": {"do": "decompose", "order": "parallel"},
    "each": {"do": "each", "workflow": "plain"},
    "retrieve": {"do": "retrieve"},
    "select": {"do": "select"},
    "answer": {"do": "answer"},
    "summarise": {"do": "summarise"},
    "verify": {"do": "verify", "otherwise": "search-parts"},
}
_ARROW = " > "
_LONGEST = 6


@functools.cache
def plans() -> tuple[tuple[str, ...], ...]:
    """Every chain of at most six different steps that is a workflow."""
    found: list[tuple[str, ...]] = []

    def grow(path: tuple[str, ...], types: frozenset[str]) -> None:
        if path and "answer" in types and _workflow(path) is not None:
            found.append(path)
        if len(path) == _LONGEST:
            return
        for name, step in STEPS.items():
            tool = TOOLS[step["do"]]
            again = any(STEPS[before]["do"] == step["do"] for before in path)
            if not again and all(kind in types for kind, (least, _) in tool.takes.items() if least):
                grow((*path, name), types | {tool.gives})

    grow((), frozenset())
    return tuple(found)


def _workflow(path: Sequence[str]) -> Workflow | None:
    try:
        return chain(_ARROW.join(path), *(STEPS[name] for name in path))
    except InputError:
        return None


@functools.cache
def grammar() -> str:
    """The plans as GBNF, for llama.cpp."""
    tree: dict[str, Any] = {}
    for path in plans():
        at = tree
        for name in path:
            at = at.setdefault(name, {})
        at[""] = {}
    rules: list[str] = []

    def rule(node: dict[str, Any]) -> str:
        options = []
        for name, below in node.items():
            if not name:
                options.append('""')
                continue
            ends = "" in below
            on = {key: value for key, value in below.items() if key}
            rest = f' (" > " {rule(on)})' + "?" * ends if on else ""
            options.append(f'"{name}"{rest}')
        rules.append(" | ".join(options))
        return f"r{len(rules)}"

    root = rule(tree)
    return "\n".join([f"root ::= {root}", *(f"r{k} ::= {text}" for k, text in enumerate(rules, 1))])


def parse_plan(text: str) -> Workflow:
    """The workflow that was written: names of steps with anything between them.

    Raises `InputError` if it names no step, unknown ones, or none that make a workflow.
    """
    names = re.findall(r"[a-z]+(?:-[a-z]+)?", text.strip().splitlines()[0].lower()) if text.strip() else []
    if unknown := [name for name in names if name not in STEPS]:
        raise InputError(f"the plan names {', '.join(unknown[:3])}: steps are {', '.join(STEPS)}")
    if not names:
        raise InputError("the plan is empty")
    return chain(_ARROW.join(names), *(STEPS[name] for name in names))
