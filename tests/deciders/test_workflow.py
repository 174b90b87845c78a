"""What a workflow may be: every mistake is named, and what is named runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.session.workflow import (
    NAMED,
    Node,
    Workflow,
    chain,
    find_workflow,
    workflow_problems,
)


def made(nodes: Any, answer: str = "answer") -> Workflow:
    return Workflow.from_dict({"name": "w", "nodes": nodes, "answer": answer})


def wrong(nodes: Any, answer: str = "answer") -> str:
    with pytest.raises(InputError) as error:
        made(nodes, answer)
    return str(error.value)


def test_named_workflows_run_anywhere() -> None:
    assert len(NAMED) >= 12
    for name, workflow in NAMED.items():
        assert workflow.name == name
        assert workflow_problems(workflow) == []
        again = Workflow.from_dict(json.loads(json.dumps(workflow.to_dict())))
        assert again == workflow
        assert again.sha256 == workflow.sha256
    assert len({workflow.sha256 for workflow in NAMED.values()}) == len(NAMED)
    books = {name for name, w in NAMED.items() if not workflow_problems(w, closed_book=True)}
    assert books == {"no-retrieval", "every-order", "recall-parts"}


def test_all_problems_are_told_at_once() -> None:
    said = wrong(
        {
            "a": {"do": "fly"},
            "b": {"do": "select", "from": ["answer"], "token_price": -1, "wings": 2},
            "c": {"do": "retrieve", "model": "m", "from": ["nobody"], "seconds": 0},
            "answer": {"do": "answer", "from": ["b", "c"]},
        }
    )
    for part in (
        "'a' is to do 'fly', which is unknown: choose rewrite",
        "'a' leads nowhere",
        "'b' takes an answer from 'answer', but select takes only pool",
        "'b' needs a pool",
        "token_price=-1: it must be a number in [0, 1]",
        "a setting 'wings': settings of select are token_price, share",
        "has a model, but retrieve asks none",
        "waits for 'nobody', which is no node",
        "seconds=0: it must be > 0",
        "'answer' takes a pool from 'c', but answer takes only passages, facts",
    ):
        assert part in said, part


def test_cycles_ends_and_counts() -> None:
    said = wrong({"a": {"do": "rewrite", "from": ["b"]}, "b": {"do": "rewrite", "from": ["a"]}}, "a")
    assert "nodes wait for each other: " in said
    assert "gives a question: name one that gives an answer" in said
    loop = {"answer": {"do": "verify", "from": ["answer"]}}
    assert "nodes wait for each other" in wrong(loop)
    two = {
        "r": {"do": "retrieve"},
        "s": {"do": "select", "from": ["r"]},
        "t": {"do": "select", "from": ["r"]},
        "answer": {"do": "answer", "from": ["s", "t"]},
    }
    assert "takes 2 of type passages: answer takes at most 1" in wrong(two)
    assert "its answer is 'answer', which is no node" in wrong({"a": {"do": "answer"}})
    assert "has no nodes" in wrong({})
    assert "lacks 'workflow'" in wrong(
        {
            "q": {"do": "decompose"},
            "f": {"do": "each", "from": ["q"]},
            "answer": {"do": "summarise", "from": ["f"]},
        }
    )
    with pytest.raises(InputError, match="node 'a' is there twice"):
        Workflow("w", (Node("a", "answer"), Node("a", "answer")), "a")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"nodes": {"answer": {"do": "answer"}}}))
    assert find_workflow(path).name == "mine"
    assert find_workflow(str(path)).nodes[0].do == "answer"
    path.write_text("{")
    with pytest.raises(InputError, match=r"mine\.json"):
        find_workflow(path)
    with pytest.raises(InputError, match="did you mean 'plain'"):
        find_workflow("plane")


def test_a_chain_connects_by_type() -> None:
    workflow = chain("c", "rewrite", "retrieve", "select", "answer", {"do": "verify", "model": "m"})
    assert [node.takes for node in workflow.nodes] == [
        (), ("rewrite",), ("retrieve",), ("select",), ("answer", "select"),
    ]  # fmt: skip
    assert (workflow.answer, workflow.models) == ("verify", ("m",))
    with pytest.raises(InputError, match="needs a pool"):
        chain("c", "select", "answer")


def test_workflows_within_workflows_have_a_depth() -> None:
    inner = chain("i", "answer", {"do": "verify", "otherwise": "decompose-parallel"})
    outer = chain("o", "decompose", {"do": "each", "workflow": inner.to_dict()}, "summarise")
    assert (
        "3 deep within each other, 2 are allowed: o -> i -> decompose-parallel -> plain"
        in (workflow_problems(outer)[0])
    )
    assert workflow_problems(outer, depth=3) == []
    unknown = chain("o", "answer", {"do": "verify", "otherwise": "nonsense"})
    assert "workflow 'nonsense' is unknown" in workflow_problems(unknown)[0]
