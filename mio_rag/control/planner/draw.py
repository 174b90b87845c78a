"""A workflow as text."""

from __future__ import annotations

from mio_rag.deciders.workflow import Node, Workflow, nested
from mio_rag.errors import InputError
from mio_rag.session.tools import TOOLS


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
