"""Named workflows, and what has to hold before one runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mio_rag.control.planner.workflow import NESTED, Node, Workflow, chain, read_workflow
from mio_rag.control.steps.side_by_side import needs_links
from mio_rag.errors import InputError, choose
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.selection.selector import Selector

__all__ = [
    "NAMED",
    "find_workflow",
    "inner_hashes",
    "misfits",
    "nested",
    "searches_within",
    "workflow_problems",
]

_PLAIN = ("retrieve", "select", "answer")
_PRICED_SENTENCES = {"do": "select", "units": "sentences", "token_price": 0.001}
_SERIAL = ({"do": "decompose", "order": "serial"}, {"do": "each", "workflow": "plain"})
_PARALLEL = ({"do": "decompose", "order": "parallel"}, {"do": "each", "workflow": "plain"})


def _dag(name: str, answer: str, /, **nodes: Mapping[str, Any]) -> Workflow:
    return Workflow.from_dict({"name": name, "nodes": nodes, "answer": answer})


#: More than a dozen to choose from, those that ask the model once first.
NAMED: Mapping[str, Workflow] = {
    workflow.name: workflow
    for workflow in (
        chain("no-retrieval", "answer"),
        chain("brief", "retrieve", {"do": "select", "share": 0.4}, "answer"),
        chain("plain", *_PLAIN),
        chain("priced", "retrieve", {"do": "select", "token_price": 0.001}, "answer"),
        chain("brief-sentences", "retrieve", {"do": "select", "units": "sentences", "share": 0.5}, "answer"),
        chain("priced-sentences", "retrieve", _PRICED_SENTENCES, "answer"),
        chain("sentences", "retrieve", {"do": "select", "units": "sentences"}, "answer"),
        chain("rewrite-first", "rewrite", *_PLAIN),
        _dag(
            "two-queries",
            "answer",
            query={"do": "rewrite"},
            found={"do": "retrieve"},
            also={"do": "retrieve", "from": ["query"]},
            read={"do": "select", "from": ["found", "also"]},
            answer={"do": "answer", "from": ["read"]},
        ),
        chain("search-parts", {"do": "decompose", "order": "parallel"}, *_PLAIN),
        chain("verify-or-parts", *_PLAIN, {"do": "verify", "otherwise": "search-parts"}),
        chain("recall-parts", {"do": "decompose", "order": "serial"},
              {"do": "each", "workflow": "no-retrieval"}, "summarise"),
        chain("decompose-parallel", *_PARALLEL, "summarise"),
        chain("decompose-serial", *_SERIAL, "summarise"),
        _dag(
            "read-and-decompose",
            "answer",
            found={"do": "retrieve"},
            read={"do": "select", "from": ["found"]},
            parts={"do": "decompose", "order": "serial"},
            facts={"do": "each", "from": ["parts"], "workflow": "plain"},
            answer={"do": "summarise", "from": ["facts", "read"]},
        ),
        _dag(
            "plain-then-serial",
            "answer",
            found={"do": "retrieve"},
            read={"do": "select", "from": ["found"]},
            first={"do": "answer", "from": ["read"]},
            parts={"do": "decompose", "order": "serial", "after": ["first"]},
            facts={"do": "each", "from": ["parts"], "workflow": "plain"},
            answer={"do": "summarise", "from": ["facts", "read", "first"]},
        ),
    )
}  # fmt: skip


def find_workflow(name: str) -> Workflow:
    """The workflow of a name, or of a JSON file.

    Raises
    ------
    InputError
        If it is neither; with everything that is wrong with the file.
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
        for key in NESTED:
            if (given := node.settings.get(key)) is None:
                continue
            try:
                yield node.id, given if isinstance(given, Workflow) else find_workflow(str(given))
            except InputError as error:
                yield node.id, error


def inner_hashes(workflows: Sequence[Workflow]) -> dict[str, str]:
    """Named workflows that others run, and what they are: part of what is learned, and of what a run is."""
    found: dict[str, str] = {}
    open_ = list(workflows)
    while open_:
        for _, inner in nested(open_.pop()):
            if isinstance(inner, Workflow) and inner.name not in found:
                found[inner.name] = inner.sha256
                open_.append(inner)
    return found


def searches_within(node: Node) -> bool:
    """Whether a workflow that a node runs, or one within that, searches."""
    waiting, known = _named_by(node), set[str]()
    while waiting:
        workflow = waiting.pop()
        if workflow.name in known:  # one may run itself, as deep as is allowed
            continue
        known.add(workflow.name)
        if any(inner.do == "retrieve" for inner in workflow.nodes):
            return True
        waiting += [one for inner in workflow.nodes for one in _named_by(inner)]
    return False


def _named_by(node: Node) -> list[Workflow]:
    given = [node.settings[key] for key in NESTED if key in node.settings]
    return [one if isinstance(one, Workflow) else find_workflow(str(one)) for one in given]


def workflow_problems(
    workflow: Workflow,
    *,
    models: Sequence[str] = (),
    prices: Sequence[str] | None = None,
    depth: int = 2,
    closed_book: bool = False,
) -> list[str]:
    """What stands in the way of running a workflow, in words.

    Parameters
    ----------
    models : sequence of str
        Names of the generators that there are, beside the reader.
    prices : sequence of str, optional
        Names that have a price. None: tokens are counted alike, which only holds for a single model.
    depth : int
        How many workflows may lie within each other.
    closed_book : bool
        There is no corpus.
    """
    problems: list[str] = []
    asked = _walk(workflow, (), depth, closed_book, problems)
    for name in asked:
        if name not in models:
            known = f"known are {', '.join(models)}" if models else "none are known"
            problems.append(
                f"workflow '{workflow.name}' asks model '{name}': {known}; give --model {name}=SPEC"
            )
        elif name not in (prices or ()):
            problems.append(
                f"model '{name}' has no price, and tokens of different models do not add up: give "
                f"--model-price {name}=IN,OUT, dollars per million tokens"
            )
    return list(dict.fromkeys(problems))


def misfits(workflows: Sequence[Workflow], index: CorpusIndex, selector: Selector) -> list[str]:
    """What workflows, or those that they run, ask of index or selector that these cannot do, in words."""
    problems, known = [], set[str]()
    open_ = list(workflows)
    while open_:
        workflow = open_.pop()
        known.add(workflow.name)
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
        inner = [found for _, found in nested(workflow)]
        open_ += [found for found in inner if isinstance(found, Workflow) and found.name not in known]
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
