"""A workflow: a small graph of tools, in JSON, checked before it runs; and those with a name.

    {"name": "rewrite-first",
     "nodes": {"query": {"do": "rewrite"},
               "found": {"do": "retrieve", "from": ["query"]},
               "read": {"do": "select", "from": ["found"], "token_price": 0.0005},
               "answer": {"do": "answer", "from": ["read"], "model": "strong"}},
     "answer": "answer"}

A node takes what the nodes in "from" give; which of it is what follows from the types. "after" names nodes
that run before it and give it nothing. "model" names a generator, "seconds" a time limit. Everything else is
a setting of the tool; see `mio_rag.session.tools`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from mio_rag.errors import InputError, choose
from mio_rag.generation import check_generator
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Prices
from mio_rag.session.search import strategies_of
from mio_rag.session.state import Action
from mio_rag.session.tools import EVERY, TOOLS, asks, number
from mio_rag.session.trace import Step
from mio_rag.settings import Settings
from mio_rag.storage import read_json

#: Settings that hold another workflow.
NESTED = ("workflow", "otherwise")
_OWN = ("do", "from", "after", "model", "seconds")
_QUESTION = "question"

READER = "reader"
_Dollars = Annotated[float, Field(ge=0)]


class WorkflowSettings(Settings):
    """What `ControlSettings.kinds["workflow"]` holds."""

    models: dict[str, str] = Field(default_factory=dict)
    """Name -> generator, as `make_generator` takes it; "reader" is the answering model, and no name here."""
    prices: dict[str, tuple[_Dollars, _Dollars]] = Field(default_factory=dict)
    """Name -> dollars per million tokens into it and out of it; "reader" has one too."""
    depth: Annotated[int, Field(ge=0)] = 2
    """Workflows within each other."""
    threads: Annotated[int, Field(ge=1)] = 4
    """Branches that run in parallel."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Longest time of a step that sets none itself."""

    @field_validator("models")
    @classmethod
    def _known(cls, models: dict[str, str]) -> dict[str, str]:
        problems = [f"'{READER}' is the answering model: choose another name"] * (READER in models)
        for name, spec in models.items():
            try:
                check_generator(spec)
            except InputError as error:
                problems += [f"'{name}': {problem}" for problem in error.problems]
        if problems:
            raise InputError(problems)
        return models


def workflow_settings(kinds: Mapping[str, Any]) -> WorkflowSettings:
    """Those of workflows in `ControlSettings.kinds`; raises as `WorkflowSettings`."""
    return WorkflowSettings.from_dict(dict(kinds.get("workflow") or {}))


def dollars(steps: Iterable[Step], settings: WorkflowSettings) -> float | None:
    """What the tokens of steps cost; None where a model that was asked has no price."""
    prices = Prices(settings.prices)
    calls = ((step.model or READER, call) for step in steps for call in step.calls)
    each = [prices.of(model, call.prompt_tokens, call.completion_tokens) for model, call in calls]
    known = [price for price in each if price is not None]
    return sum(known) if settings.prices and len(known) == len(each) else None


@dataclass(frozen=True)
class Node:
    """One use of a tool.

    id: its name in the workflow.
    do: the tool; settings: of the tool.
    takes, after: nodes whose results it takes; nodes that merely come before it.
    model: which generator is asked; None: the reader.
    seconds: it is given up after so long.
    """

    id: str
    do: str
    takes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    model: str | None = None
    seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """Nodes that come before it."""
        return (*self.takes, *self.after)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the name."""
        own = {"from": list(self.takes), "after": list(self.after), "model": self.model}
        data: dict[str, Any] = {"do": self.do, **{name: value for name, value in own.items() if value}}
        if self.seconds is not None:
            data["seconds"] = self.seconds
        for name, setting in self.settings.items():
            data[name] = setting.to_dict() if isinstance(setting, Workflow) else setting
        return data


@dataclass(frozen=True)
class Workflow:
    """A graph of tools without cycles, whose every edge is well-typed.

    nodes: each after what it needs; of what could be either way, as they were written.
    answer: the node that gives the answer.

    Raises `InputError` with everything that is wrong with it: unknown tools, nodes and settings, edges of the
    wrong type, cycles, nodes that nothing comes of.
    """

    name: str
    nodes: tuple[Node, ...]
    answer: str

    def __post_init__(self) -> None:
        known = {node.id: node for node in self.nodes}
        problems = [f"node '{i}' is there twice" for i in known if sum(n.id == i for n in self.nodes) > 1]
        if not self.nodes:
            problems.append("it has no nodes: give at least one that answers")
        if self.answer not in known:
            problems.append(f"its answer is '{self.answer}', which is no node: name the node that answers")
        elif (last := known[self.answer]).do in TOOLS and TOOLS[last.do].gives != "answer":
            problems.append(
                f"its answer is node '{last.id}', which gives {_a(TOOLS[last.do].gives)}: name one that "
                "gives an answer"
            )
        for node in self.nodes:
            problems += [f"node '{node.id}' {problem}" for problem in _node_problems(node, known)]
        try:
            tuple(TopologicalSorter({node.id: node.needs for node in self.nodes}).static_order())
        except CycleError as error:
            problems.append(f"nodes wait for each other: {' -> '.join(reversed(error.args[1]))}")
        used = [self.answer]
        for name in used:
            used += [one for one in known[name].needs if one not in used] if name in known else []
        problems += [
            f"node '{i}' leads nowhere: take it from another node, name it in 'after', or remove it"
            for i in known
            if self.answer in known and i not in used
        ]
        if problems:
            raise InputError([f"workflow '{self.name}': {problem}" for problem in problems])
        ordered: list[Node] = []
        left = list(self.nodes)
        while left:
            placed = {node.id for node in ordered}
            ordered.append(next(node for node in left if placed.issuperset(node.needs)))
            left.remove(ordered[-1])
        object.__setattr__(self, "nodes", tuple(ordered))

    @classmethod
    def from_dict(cls, data: Any, name: str = "") -> Workflow:
        """The workflow of plain data.

        Raises `InputError` with everything that is wrong with it, nested workflows included.
        """
        if not isinstance(data, Mapping):
            raise InputError(f"a workflow is a JSON object with 'nodes' and 'answer', not {data!r:.80}")
        called = str(data.get("name") or name or "unnamed")
        nodes, problems = [], []
        if unknown := sorted(set(data) - {"name", "nodes", "answer"}):
            problems.append(f"workflow '{called}' has {', '.join(unknown)}: it has name, nodes and answer")
        given = data.get("nodes")
        if not isinstance(given, Mapping):
            raise InputError([*problems, f"workflow '{called}' has no object 'nodes': name -> what it does"])
        for key, told in given.items():
            try:
                nodes.append(_node(str(key), told))
            except InputError as error:
                problems += [f"workflow '{called}': {problem}" for problem in error.problems]
        try:
            made = cls(called, tuple(nodes), str(data.get("answer", "answer")))
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(problems)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        nodes = {node.id: node.to_dict() for node in self.nodes}
        return {"name": self.name, "nodes": nodes, "answer": self.answer}

    def node(self, name: str) -> Node:
        """The node of a name."""
        return next(node for node in self.nodes if node.id == name)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the generators that it asks besides the reader, those of workflows inside it included."""
        found = [node.model for node in self.nodes if node.model is not None]
        for value in (value for node in self.nodes for value in node.settings.values()):
            found += value.models if isinstance(value, Workflow) else ()
        return tuple(dict.fromkeys(found))

    def signatures(self) -> tuple[str, ...]:
        """Of each node what its result depends on: equal ones of two workflows give equal results."""
        signed: dict[str, str] = {}
        for node in self.nodes:
            told = {**node.to_dict(), "from": [signed[name] for name in node.takes]}
            told.pop("after", None)
            for name in NESTED:
                if isinstance(told.get(name), dict):
                    told[name] = {k: v for k, v in told[name].items() if k != "name"}
            signed[node.id] = _digest(told)[:16]
        return tuple(signed.values())

    @property
    def sha256(self) -> str:
        """Of everything but its name."""
        return _digest({key: value for key, value in self.to_dict().items() if key != "name"})


def _digest(data: Mapping[str, Any]) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _node(name: str, told: Any) -> Node:
    """A node of plain data; only its form is checked here."""
    if not isinstance(told, Mapping):
        raise InputError(f"node '{name}' is {told!r:.60}, not an object with 'do'")
    problems, lists = [], {}
    if not isinstance(told.get("do"), str):
        problems.append(f"node '{name}' is missing 'do': give one of {', '.join(TOOLS)}")
    for key in ("from", "after"):
        value = told.get(key, [])
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
            problems.append(f"node '{name}': '{key}' is {value!r:.60}, not a list of names of nodes")
            value = []
        lists[key] = tuple(one for one in value if key == "after" or one != _QUESTION)
    settings = {key: value for key, value in told.items() if key not in _OWN}
    for key in NESTED:
        if isinstance(settings.get(key), Mapping):
            try:
                settings[key] = Workflow.from_dict(settings[key], f"{name}.{key}")
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(problems)
    return Node(
        name, told["do"], lists["from"], lists["after"], told.get("model"), told.get("seconds"), settings
    )


def _node_problems(node: Node, known: Mapping[str, Node]) -> list[str]:
    problems = [
        f"waits for '{name}', which is no node" for name in dict.fromkeys(node.needs) if name not in known
    ]
    if node.model is not None and (not isinstance(node.model, str) or not node.model.strip()):
        problems.append(f"has model {node.model!r}: give the name of a generator")
    if node.seconds is not None and (number(0, math.inf)(node.seconds) or not node.seconds):
        problems.append(f"has seconds={node.seconds!r}: it must be > 0")
    if node.do not in TOOLS:
        return [*problems, f"is to do '{node.do}', which is unknown: {choose(node.do, TOOLS)}"]
    tool = TOOLS[node.do]
    if node.model is not None and not asks(node.do, node.settings):
        problems.append(f"has a model, but {node.do} asks none: remove it")
    counts = dict.fromkeys(tool.takes, 0)
    for name in node.takes:
        given = TOOLS[known[name].do].gives if name in known and known[name].do in TOOLS else None
        if given is not None and given not in counts:
            accepted = ", ".join(tool.takes)
            problems.append(f"takes {_a(given)} from '{name}', but {node.do} takes only {accepted}")
        elif given is not None:
            counts[given] += 1
    for kind, (least, most) in tool.takes.items():
        if counts[kind] < least:
            problems.append(f"needs {_a(kind)}: {node.do} cannot do without; add a node that gives it")
        if counts[kind] > most:
            problems.append(f"takes {counts[kind]} of type {kind}: {node.do} takes at most {most}")
    for name, value in node.settings.items():
        if name not in tool.settings:
            said = ", ".join(tool.settings) or "none"
            problems.append(f"has a setting '{name}': settings of {node.do} are {said}")
        elif not isinstance(value, Workflow) and (wrong := tool.settings[name](value)) is not None:
            problems.append(f"has {name}={value!r}: it {wrong}")
    missing = [name for name in tool.needs if name not in node.settings]
    return problems + [f"lacks '{name}': {node.do} cannot do without" for name in missing]


def _a(kind: str) -> str:
    plural = {"questions", "facts", "passages"}
    return kind if kind in plural else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def chain(name: str, *steps: str | Mapping[str, Any]) -> Workflow:
    """A workflow of steps in a row: each takes the last result of every type that it can take.

    *steps: a tool, or one with settings, as nodes are written without "from".

    Raises `InputError` as `Workflow`.

    Examples
    --------
    >>> chain("plain", "retrieve", "select", "answer").answer
    'answer'
    """
    nodes: dict[str, dict[str, Any]] = {}
    last: dict[str, str] = {}
    for step in steps:
        told = {"do": step} if isinstance(step, str) else dict(step)
        do = str(told.get("do"))
        key = do if do not in nodes else f"{do}-{sum(n['do'] == do for n in nodes.values()) + 1}"
        tool = TOOLS.get(do)
        takes = [last[kind] for kind in tool.takes if kind in last] if tool is not None else []
        nodes[key] = {**told, "from": takes}
        if tool is not None:
            last[tool.gives] = key
    answer = last.get("answer", next(reversed(nodes), ""))
    return Workflow.from_dict({"name": name, "nodes": nodes, "answer": answer})


#: More than a dozen to choose from, those that ask the model once first.
NAMED: Mapping[str, Workflow] = {
    name: Workflow.from_dict(data, name)
    for name, data in read_json(Path(__file__).parents[1] / "data" / "workflows.json").items()
}


def find_workflow(name: str | Path) -> Workflow:
    """The workflow of a name, or of a JSON file.

    Raises `InputError` if it is neither; with everything that is wrong with the file.
    """
    if name in NAMED:
        return NAMED[str(name)]
    if str(name).endswith(".json") or Path(name).is_file():
        return Workflow.from_dict(read_json(name), Path(name).stem)
    more = ", or give a JSON file"
    raise InputError(f"workflow '{name}' is unknown: {choose(str(name), NAMED, more=more)}")


def _nested(node: Node) -> Iterator[Workflow | InputError]:
    """The workflows that a node runs; the error of one that there is none of."""
    for key in NESTED:
        if (given := node.settings.get(key)) is None:
            continue
        try:
            yield given if isinstance(given, Workflow) else find_workflow(str(given))
        except InputError as error:
            yield error


def _every(workflows: Iterable[Workflow | InputError]) -> list[Workflow]:
    """Workflows and all that they run, each once: one may run itself, as deep as is allowed."""
    found: dict[str, Workflow] = {}
    waiting = list(workflows)
    while waiting:
        workflow = waiting.pop()
        if isinstance(workflow, Workflow) and workflow.name not in found:
            found[workflow.name] = workflow
            waiting += [inner for node in workflow.nodes for inner in _nested(node)]
    return list(found.values())


def inner_hashes(workflows: Sequence[Workflow]) -> dict[str, str]:
    """Named workflows that others run, and what they are: part of what is learned, and of what a run is."""
    inner = (found for workflow in workflows for node in workflow.nodes for found in _nested(node))
    return {one.name: one.sha256 for one in _every(inner)}


def searches_within(node: Node) -> bool:
    """Whether a workflow that a node runs, or one within that, searches."""
    return any(one.do == "retrieve" for workflow in _every(_nested(node)) for one in workflow.nodes)


def workflow_problems(
    workflow: Workflow,
    *,
    models: Sequence[str] = (),
    prices: Sequence[str] | None = None,
    depth: int = 2,
    closed_book: bool = False,
) -> list[str]:
    """What stands in the way of running a workflow, in words.

    models: names of the generators that there are, beside the reader.
    prices: names that have a price. None: tokens are counted alike, which only holds for a single model.
    depth: how many workflows may lie within each other.
    closed_book: there is no corpus.
    """
    problems: list[str] = []
    for name in dict.fromkeys(_walk(workflow, (), depth, closed_book, problems)):
        if name not in models:
            known = f"known are {', '.join(models)}" if models else "none are known"
            problems.append(
                f"workflow '{workflow.name}' asks model '{name}': {known}; set models.{name}.spec"
            )
        elif name not in (prices or ()):
            problems.append(
                f"model '{name}' has no price, and tokens of different models do not add up: give "
                f"models.{name}.input and output, dollars per million tokens"
            )
    return list(dict.fromkeys(problems))


def _walk(
    workflow: Workflow, above: tuple[str, ...], depth: int, closed_book: bool, problems: list[str]
) -> list[str]:
    """Names of models asked anywhere inside; problems are added to the list."""
    path = (*above, workflow.name)
    if workflow.name in above:
        problems.append(f"workflows run each other for ever: {' -> '.join(path)}")
        return []
    if len(above) > depth:
        problems.append(
            f"workflows lie {len(above)} deep within each other, {depth} are allowed: {' -> '.join(path)}"
        )
        return []
    if closed_book and (searching := [n.id for n in workflow.nodes if n.do == "retrieve"]):
        problems.append(
            f"workflow '{workflow.name}' searches ({', '.join(searching)}), but there is no corpus: give an "
            "index, or choose no-retrieval or recall-parts"
        )
    asked = [node.model for node in workflow.nodes if node.model is not None]
    for node in workflow.nodes:
        for inner in _nested(node):
            if isinstance(inner, InputError):
                problems += [f"workflow '{workflow.name}', node '{node.id}': {p}" for p in inner.problems]
            else:
                asked += _walk(inner, path, depth, closed_book, problems)
    return asked


def misfits(workflows: Sequence[Workflow], index: CorpusIndex, selector: Selector) -> list[str]:
    """What workflows, or those that they run, ask of index or selector that these cannot do, in words."""
    problems = []
    for workflow in _every(workflows):
        for node in workflow.nodes:
            where = f"workflow '{workflow.name}', node '{node.id}': "
            linked = [one.name for one in strategies_of(node.settings) if one.needs_links]
            if linked and index.links is None:
                problems.append(
                    f"{where}{', '.join(linked)} needs an index with evidence links: build it again with "
                    "`mio-rag index DATA --out INDEX --overwrite`"
                )
            if (units := node.settings.get("units")) is not None:
                try:
                    selector.replace(units=units)
                except InputError as error:
                    problems += [where + problem for problem in error.problems]
    return problems


def workflow_text(workflow: Workflow, indent: str = "") -> str:
    """A workflow line by line, in the order in which it runs, with the workflows that its nodes run."""
    lines, depth = [f"{indent}{workflow.name}"], dict[str, int]()
    for node in workflow.nodes:
        depth[node.id] = 1 + max((depth[name] for name in node.needs), default=-1)
    for node in sorted(workflow.nodes, key=lambda node: depth[node.id]):
        told = [f"by {node.model}"] if node.model else []
        told += [f"at most {node.seconds:g} s"] if node.seconds else []
        for name, value in node.settings.items():
            told.append(f"{name} {value.name if isinstance(value, Workflow) else value}")
        mark = "|" if list(depth.values()).count(depth[node.id]) > 1 else "-"
        said = f" ({', '.join(told)})" if told else ""
        order = f" after {', '.join(node.after)}" if node.after else ""
        end = " = the answer" if node.id == workflow.answer else ""
        way = f"[{', '.join(node.takes) or 'question'} -> {TOOLS[node.do].gives}]"
        lines.append(f"{indent}  {mark} {node.id}: {node.do}{said} {way}{order}{end}")
        for below in list(_nested(node))[-1:]:
            if isinstance(below, InputError):
                lines.append(f"{indent}      {below}")
            elif len(indent) < 12:
                lines.append(workflow_text(below, indent + "      "))
    return "\n".join(lines)


#: Settings of actions that only deciders give, next to those that workflows may give.
_BY_DECIDERS: Mapping[str, tuple[str, ...]] = {
    "retrieve": ("weights", "alone"),
    "select": ("tier", "more"),
    "answer": ("draft", "loop", "max_notes"),
}
_BY_ANY = ("notes", "max_tokens", "token_price")


def check_action(action: Action) -> None:
    """Raise `InputError` for an action of a decider that names no tool, or a setting without effect."""
    if action.do not in EVERY:
        raise InputError(f"action '{action.id}' is to do '{action.do}': {choose(action.do, EVERY)}")
    if action.do not in TOOLS:
        return
    known = (*TOOLS[action.do].settings, *_BY_DECIDERS.get(action.do, ()), *_BY_ANY)
    for name in action.settings:
        if name not in known:
            raise InputError(
                f"action '{action.id}' ({action.do}) has a setting '{name}': {choose(name, known)}"
            )
