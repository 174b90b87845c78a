"""A language model that writes the workflow: under a grammar that allows valid ones alone, or freely.

The grammar lists every chain of steps that makes a workflow, so nothing else can be said. The published way
[1] is free text with a penalty for what is no workflow; it is here as a rival: what cannot be read becomes
`plain`, and the trace says so.

[1] MAO-ARAG: multi-agent orchestration for adaptive retrieval-augmented generation, arXiv 2508.01005.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mio_rag.control.controller import Failure, Outcome, Setup
from mio_rag.control.costs import Call, Costs
from mio_rag.control.meter import Replies, Reply
from mio_rag.control.planner.controller import attempted, kit_of, workflow_settings
from mio_rag.control.planner.named import NAMED
from mio_rag.control.planner.run import Kit, Run
from mio_rag.control.planner.workflow import Workflow, chain
from mio_rag.control.settings import ControlSettings
from mio_rag.control.steps.executors import EXECUTORS
from mio_rag.control.steps.wording import short_prompt
from mio_rag.errors import InputError
from mio_rag.generation import Generator
from mio_rag.generation.protocol import GrammarWriter
from mio_rag.types import Answer, Question

__all__ = ["STEPS", "LanguagePlanner", "check_language", "grammar", "make_language", "parse_plan", "plans"]

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
_PLAN_TOKENS = 48


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
            executor = EXECUTORS[step["do"]]
            again = any(STEPS[before]["do"] == step["do"] for before in path)
            if not again and all(kind in types for kind, (least, _) in executor.takes.items() if least):
                grow((*path, name), types | {executor.gives})

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

    Raises
    ------
    InputError
        If it names no step, unknown ones, or none that make a workflow.
    """
    names = re.findall(r"[a-z]+(?:-[a-z]+)?", text.strip().splitlines()[0].lower()) if text.strip() else []
    if unknown := [name for name in names if name not in STEPS]:
        raise InputError(f"the plan names {', '.join(unknown[:3])}: steps are {', '.join(STEPS)}")
    if not names:
        raise InputError("the plan is empty")
    return chain(_ARROW.join(names), *(STEPS[name] for name in names))


@dataclass(frozen=True, eq=False)
class LanguagePlanner:
    """Lets the reader write the workflow before it answers.

    Parameters
    ----------
    free : bool
        Without the grammar; what is no workflow becomes `plain`.
    """

    name: str
    kit: Kit
    free: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        """Answer a question; see `mio_rag.control.controller.Controller`.

        Raises
        ------
        InputError
            For a generator that cannot be held to a grammar.
        """
        if budget_tokens < 1:
            raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
        if not self.free and not isinstance(generator, GrammarWriter):
            raise InputError(
                f"{generator.name} cannot be held to a grammar: use a gguf: model, or planner-lm:free"
            )
        run = Run(self.kit, question, generator, int(budget_tokens), {} if replies is None else replies)
        return attempted(run, self._act, self.name, self.settings)

    def _act(self, run: Run) -> tuple[Reply, Workflow]:
        said = self._written(run)
        try:
            workflow = parse_plan(said)
        except InputError as error:
            if not self.free:
                raise
            workflow = NAMED["plain"]
            run.fallback = f"format: {error}"
        return run.workflow(workflow), workflow

    def _written(self, run: Run) -> str:
        prompt = short_prompt("plan", run.question, run.question.text)
        costs, reader = Costs(), run.reader
        held = reader.prompt_tokens(prompt) + _PLAN_TOKENS
        run.shared.hold(held, final=False)
        start, answer = time.perf_counter(), None
        try:
            if self.free or not isinstance(reader, GrammarWriter):
                answer = reader.generate(prompt, max_tokens=_PLAN_TOKENS)
            else:
                answer = reader.write(prompt, grammar(), max_tokens=_PLAN_TOKENS)
        finally:
            costs.add(_call(answer, time.perf_counter() - start), model=reader.name if answer else None)
            run.opening += costs.spent
            spent = 0 if answer is None else answer.prompt_tokens + answer.completion_tokens
            run.shared.settle(held, spent, 0.0)
        return answer.text


def _call(said: Answer | None, seconds: float) -> Call:
    if said is None:
        return Call("plan", seconds)
    return Call("plan", said.latency_seconds, 1, 0, said.prompt_tokens, said.completion_tokens)


def check_language(name: str, settings: ControlSettings, closed_book: bool) -> None:
    """Raise `InputError` for a name other than planner-lm and planner-lm:free, and without a corpus."""
    if name not in ("planner-lm", "planner-lm:free"):
        raise InputError(f"controller '{name}' is unknown: say planner-lm, or planner-lm:free")
    workflow_settings(settings)
    if closed_book:
        raise InputError(f"'{name}' plans searches, but there is no corpus: give an index")


def make_language(name: str, setup: Setup) -> LanguagePlanner:
    """The controller of planner-lm or planner-lm:free; raises as `check_language`."""
    check_language(name, setup.settings, setup.retriever is None)
    told = {
        "limits": setup.settings.to_dict()["limits"],
        "seed": int(setup.seed),
        "max_tokens": int(setup.max_tokens),
        "closed_book": False,
        "workflow": workflow_settings(setup.settings).to_dict(),
    }
    return LanguagePlanner(name, kit_of(setup), name.endswith(":free"), told)
