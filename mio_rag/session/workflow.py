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
from mio_rag.session.costs import Prices
from mio_rag.session.search import needs_links
from mio_rag.session.tools import TOOLS, asks
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


#: What costs may be counted in.
COSTS = ("tokens", "dollars")


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
    do: the tool.
    takes, after: nodes whose results it takes; nodes that merely come before it.
    model: which generator is asked; None: the reader.
    seconds: it is given up after so long.
    settings: of the tool.
    """

    id: str
    do: str
    takes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    model: str | None = None
    seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the name."""
        data: dict[str, Any] = {"do": self.do}
        for name, value in (("from", list(self.takes)), ("after", list(self.after))):
            if value:
                data[name] = value
        for name, one in (("model", self.model), ("seconds", self.seconds)):
            if one is not None:
                data[name] = one
        for name, setting in self.settings.items():
            data[name] = setting.to_dict() if isinstance(setting, Workflow) else setting
        return data


@dataclass(frozen=True)
class Workflow:
    """A graph of tools without cycles, whose every edge is well-typed.

    answer: the node that gives the answer.

    Raises `InputError` with everything that is wrong with it: unknown tools, nodes and settings, edges of the
    wrong type, cycles, nodes that nothing comes of.
    """

    name: str
    nodes: tuple[Node, ...]
    answer: str

    def __post_init__(self) -> None:
        problems = [f"workflow '{self.name}': {problem}" for problem in self._problems()]
        if problems:
            raise InputError(problems)
        order = {node_id: place for place, node_id in enumerate(self._sorted())}
        object.__setattr__(self, "nodes", tuple(sorted(self.nodes, key=lambda node: order[node.id])))

    def _sorted(self) -> list[str]:
        """Names of the nodes, each after what it needs; of what could be either way, as they are written."""
        sorter = TopologicalSorter({node.id: (*node.takes, *node.after) for node in self.nodes})
        sorter.prepare()
        order: list[str] = []
        ready: list[str] = []
        places = [node.id for node in self.nodes]
        while sorter.is_active():
            ready = sorted([*ready, *sorter.get_ready()], key=places.index)
            order.append(ready.pop(0))
            sorter.done(order[-1])
        return order

    def _problems(self) -> list[str]:
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
            tuple(TopologicalSorter({n.id: (*n.takes, *n.after) for n in self.nodes}).static_order())
        except CycleError as error:
            problems.append(f"nodes wait for each other: {' -> '.join(reversed(error.args[1]))}")
        used = self._used(known)
        problems += [
            f"node '{i}' leads nowhere: take it from another node, name it in 'after', or remove it"
            for i in known
            if self.answer in known and i not in used
        ]
        return problems

    def _used(self, known: Mapping[str, Node]) -> set[str]:
        used, open_ = set[str](), [self.answer]
        while open_:
            if (name := open_.pop()) in known and name not in used:
                used.add(name)
                open_ += [*known[name].takes, *known[name].after]
        return used

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
        """Names of the generators that it asks beside the reader, those of workflows inside it included."""
        own = [node.model for node in self.nodes if node.model is not None]
        return tuple(dict.fromkeys([*own, *(m for inner in self.inner for m in inner.models)]))

    @property
    def inner(self) -> tuple[Workflow, ...]:
        """Workflows written inside it; those that it names are not among them."""
        settings = [value for node in self.nodes for value in node.settings.values()]
        return tuple(value for value in settings if isinstance(value, Workflow))

    def signatures(self) -> tuple[str, ...]:
        """Of each node what its result depends on: equal ones of two workflows give equal results."""
        signed: dict[str, str] = {}
        for node in self.nodes:
            told = {**node.to_dict(), "from": [signed[name] for name in node.takes]}
            told.pop("after", None)
            for name in NESTED:
                if isinstance(told.get(name), dict):
                    told[name] = {k: v for k, v in told[name].items() if k != "name"}
            signed[node.id] = sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        return tuple(signed[node.id] for node in self.nodes)

    @property
    def sha256(self) -> str:
        """Of everything but its name."""
        data = {key: value for key, value in self.to_dict().items() if key != "name"}
        return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _node(name: str, told: Any) -> Node:
    """A node of plain data; only its form is checked here."""
    if not isinstance(told, Mapping):
        raise InputError(f"node '{name}' is {told!r:.60}, not an object with 'do'")
    problems, lists = [], {}
    if not isinstance(told.get("do"), str):
        problems.append(f"node '{name}' says not what to do: give 'do', one of {', '.join(TOOLS)}")
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
        f"waits for '{name}', which is no node"
        for name in dict.fromkeys((*node.takes, *node.after))
        if name not in known
    ]
    if node.model is not None and (not isinstance(node.model, str) or not node.model.strip()):
        problems.append(f"has model {node.model!r}: give the name of a generator")
    if node.seconds is not None and not (
        isinstance(node.seconds, (int, float)) and not isinstance(node.seconds, bool)
        and 0 < node.seconds < math.inf
    ):  # fmt: skip
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


def read_workflow(path: str | Path) -> Workflow:
    """The workflow of a JSON file.

    Raises `InputError` if there is no such file, it is no JSON, or no workflow; with everything that is
    wrong.
    """
    return Workflow.from_dict(read_json(path), Path(path).stem)


def _named() -> dict[str, Workflow]:
    found = read_json(Path(__file__).parents[1] / "data" / "workflows.json")
    return {name: Workflow.from_dict(data, name) for name, data in found.items()}


#: More than a dozen to choose from, those that ask the model once first.
NAMED: Mapping[str, Workflow] = _named()


def find_workflow(name: str) -> Workflow:
    """The workflow of a name, or of a JSON file.

    Raises `InputError` if it is neither; with everything that is wrong with the file.
    """
    if name in NAMED:
        return NAMED[name]
    if name.endswith(".json") or Path(name).is_file():
        return read_workflow(name)
    more = ", or give a JSON file"
    raise InputError(f"workflow '{name}' is unknown: {choose(name, NAMED, more=more)}")


def nested(workflow: Workflow) -> Iterator[tuple[str, Workflow | InputError]]:
    """The workflows that nodes of it run, by node; the error of one that there is none of."""
    for node in workflow.nodes:
        for found in _nested(node):
            yield node.id, found


def _nested(node: Node) -> Iterator[Workflow | InputError]:
    for key in NESTED:
        if (given := node.settings.get(key)) is None:
            continue
        try:
            yield given if isinstance(given, Workflow) else find_workflow(str(given))
        except InputError as error:
            yield error


def _every(workflows: Iterable[Workflow]) -> Iterator[Workflow]:
    """Workflows and all that they run, each once: one may run itself, as deep as is allowed."""
    waiting, known = list(workflows), set[str]()
    while waiting:
        workflow = waiting.pop()
        if workflow.name not in known:
            known.add(workflow.name)
            yield workflow
            waiting += _inner(workflow.nodes)


def _inner(nodes: Iterable[Node]) -> list[Workflow]:
    return [found for node in nodes for found in _nested(node) if isinstance(found, Workflow)]


def inner_hashes(workflows: Sequence[Workflow]) -> dict[str, str]:
    """Named workflows that others run, and what they are: part of what is learned, and of what a run is."""
    return {one.name: one.sha256 for one in _every(found for w in workflows for found in _inner(w.nodes))}


def searches_within(node: Node) -> bool:
    """Whether a workflow that a node runs, or one within that, searches."""
    return any(one.do == "retrieve" for workflow in _every(_inner([node])) for one in workflow.nodes)


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
    asked = _walk(workflow, (), depth, closed_book, problems)
    for name in asked:
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


def misfits(workflows: Sequence[Workflow], index: CorpusIndex, selector: Selector) -> list[str]:
    """What workflows, or those that they run, ask of index or selector that these cannot do, in words."""
    problems = []
    for workflow in _every(workflows):
        for node in workflow.nodes:
            where = f"workflow '{workflow.name}', node '{node.id}': "
            if index.links is None and (names := needs_links(node.settings)):
                problems.append(
                    f"{where}{', '.join(names)} needs an index with evidence links: build it again with "
                    "`mio-rag index DATA --out INDEX --overwrite`"
                )
            if (units := node.settings.get("units")) is not None:
                try:
                    selector.replace(units=units)
                except InputError as error:
                    problems += [where + problem for problem in error.problems]
    return problems


def _walk(
    workflow: Workflow, above: tuple[str, ...], depth: int, closed_book: bool, problems: list[str]
) -> list[str]:
    """Names of models asked anywhere inside; problems are added to the list."""
    if workflow.name in above:
        problems.append(f"workflows run each other for ever: {' -> '.join((*above, workflow.name))}")
        return []
    if len(above) > depth:
        path = " -> ".join((*above, workflow.name))
        problems.append(f"workflows lie {len(above)} deep within each other, {depth} are allowed: {path}")
        return []
    if closed_book and (searching := [n.id for n in workflow.nodes if n.do == "retrieve"]):
        problems.append(
            f"workflow '{workflow.name}' searches ({', '.join(searching)}), but there is no corpus: give an "
            "index, or choose no-retrieval or recall-parts"
        )
    asked = [node.model for node in workflow.nodes if node.model is not None]
    for node, inner in nested(workflow):
        if isinstance(inner, InputError):
            problems += [f"workflow '{workflow.name}', node '{node}': {p}" for p in inner.problems]
        else:
            asked += _walk(inner, (*above, workflow.name), depth, closed_book, problems)
    return list(dict.fromkeys(asked))


def levels(workflow: Workflow) -> list[list[Node]]:
    """The nodes in rows: those of one row wait for nothing but earlier rows, and may run side by side."""
    depth: dict[str, int] = {}
    for node in workflow.nodes:
        depth[node.id] = 1 + max((depth[name] for name in (*node.takes, *node.after)), default=-1)
    rows: list[list[Node]] = [[] for _ in range(1 + max(depth.values()))]
    for node in workflow.nodes:
        rows[depth[node.id]].append(node)
    return rows


def _details(node: Node) -> str:
    told = [f"by {node.model}"] if node.model else []
    told += [f"at most {node.seconds:g} s"] if node.seconds else []
    for name, value in node.settings.items():
        shown = value.name if isinstance(value, Workflow) else value
        told.append(f"{name} {shown}")
    return ", ".join(told)


def workflow_text(workflow: Workflow, indent: str = "") -> str:
    """A workflow line by line, in the order in which it runs, with the workflows that its nodes run."""
    lines = [f"{indent}{workflow.name}"]
    inner = dict(nested(workflow))
    for row in levels(workflow):
        for node in row:
            mark = "|" if len(row) > 1 else "-"
            takes = ", ".join(node.takes) or "question"
            order = f" after {', '.join(node.after)}" if node.after else ""
            said = f" ({details})" if (details := _details(node)) else ""
            kind = TOOLS[node.do]
            end = " = the answer" if node.id == workflow.answer else ""
            lines.append(f"{indent}  {mark} {node.id}: {node.do}{said} [{takes} -> {kind.gives}]{order}{end}")
            below = inner.get(node.id)
            if isinstance(below, Workflow) and len(indent) < 12:
                lines.append(workflow_text(below, indent + "      "))
            elif isinstance(below, InputError):
                lines.append(f"{indent}      {below}")
    return "\n".join(lines)
