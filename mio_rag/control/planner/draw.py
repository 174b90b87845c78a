"""A workflow as text and as a picture."""

from __future__ import annotations

from pathlib import Path

from mio_rag.deciders.workflow import NESTED, Node, Workflow, nested
from mio_rag.errors import InputError, require
from mio_rag.pictures import draw_arrow, draw_box, save_figure, set_title
from mio_rag.session.tools import TOOLS

__all__ = ["draw_workflow", "levels", "workflow_text"]

_COLOURS = {
    "question": "#e8eef7",
    "questions": "#e8eef7",
    "pool": "#e9f4ec",
    "passages": "#cfe8d6",
    "facts": "#fdf0d5",
    "answer": "#f8d9c4",
}
_WIDTH, _HEIGHT, _ACROSS, _DOWN = 1.9, 0.62, 2.3, 1.15


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


def draw_workflow(workflow: Workflow, path: Path) -> None:
    """Draw a workflow into a .png, .svg or .pdf file: nodes of one row may run side by side.

    Raises
    ------
    InputError
        For another format, or if the file cannot be written.
    MissingExtraError
        Without matplotlib.
    """
    require("matplotlib", "evaluation", "drawing a workflow")
    from matplotlib.figure import Figure

    rows = levels(workflow)
    widest = max(len(row) for row in rows)
    places: dict[str, tuple[float, float]] = {"": (0.0, 0.0)}
    for y, row in enumerate(rows, 1):
        for x, node in enumerate(row):
            places[node.id] = ((x - (len(row) - 1) / 2) * _ACROSS, -y * _DOWN)
    figure = Figure(figsize=(max(4.0, widest * _ACROSS), (len(rows) + 1) * _DOWN), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-max(widest * _ACROSS, 3.8) / 2, max(widest * _ACROSS, 3.8) / 2)
    axes.set_ylim(-len(rows) * _DOWN - _DOWN / 2, _DOWN / 2)

    def box(name: str, title: str, details: str, colour: str, edge: str) -> None:
        draw_box(axes, places[name], (_WIDTH, _HEIGHT), title, details, colour=colour, edge=edge)

    def arrow(start: str, end: str, dashed: bool) -> None:
        (a, b), (c, d) = places[start], places[end]
        if b - d > 1.5 * _DOWN and abs(a - c) < 0.1:  # around the boxes that lie between
            bend = -(0.3 + 0.1 * (b - d)) / (b - d)
            draw_arrow(axes, (a + _WIDTH / 2, b), (c + _WIDTH / 2, d), dashed=dashed, bend=bend)
        else:
            draw_arrow(axes, (a, b - _HEIGHT / 2), (c, d + _HEIGHT / 2), dashed=dashed)

    box("", "question", "", "white", "#666666")
    for node in workflow.nodes:
        title = node.id if node.id.partition("-")[0] == node.do else f"{node.id}: {node.do}"
        edge = "black" if node.id == workflow.answer else "#999999"
        details = ", ".join(
            f"{name} {value.name if isinstance(value, Workflow) else value}" if name in NESTED else str(value)
            for name, value in node.settings.items()
        )
        details = ", ".join(filter(None, [details, node.model or ""]))
        box(node.id, title, details, _COLOURS[TOOLS[node.do].gives], edge)
        for name in node.takes or ("",):
            arrow(name, node.id, dashed=False)
        for name in node.after:
            arrow(name, node.id, dashed=True)
    set_title(figure, workflow.name)
    save_figure(figure, path)
