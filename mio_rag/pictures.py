"""Pictures: a title that fits, labels beside points that stay inside the frame, files written whole."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError
from mio_rag.storage import replaced

_FORMATS = (".png", ".svg", ".pdf")
_PLACES = tuple(
    (x, y) for far in (4, 12, 22) for x, y in ((far, far), (-far, far), (far, -far), (-far, -far))
)


def set_title(figure: Any, text: str) -> None:
    """Put a title above a figure, in as many lines as it needs, three at most.

    It may come from outside: dollar signs are dollar signs, no formulas.
    """
    letters = int(figure.get_figwidth() * 9)  # as many as surely fit at the size of titles
    lines = textwrap.wrap(text, letters, max_lines=3, placeholder=" \u2026")
    figure.suptitle("\n".join(lines), parse_math=False)


def label_points(axes: Any, labels: Iterable[tuple[tuple[float, float], str]]) -> int:
    """Write labels beside points of finished axes, where they neither leave the frame nor meet each other.

    `labels` are ((x, y), text) in data coordinates. A label that fits nowhere around its point is left away;
    earlier ones go first. Returns how many were left away.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    # A canvas that keeps what it measures texts with: a figure's first one makes it anew for every label.
    measure = FigureCanvasAgg(axes.figure).get_renderer()
    axes.figure.draw_without_rendering()
    frame = axes.get_window_extent()
    taken: list[Any] = []
    left_away = 0
    for spot, text in labels:
        for x, y in _PLACES:
            label = axes.annotate(
                text,
                spot,
                xytext=(x, y),
                textcoords="offset points",
                ha="left" if x > 0 else "right",
                va="bottom" if y > 0 else "top",
                fontsize=7,
                parse_math=False,
            )
            label.set_in_layout(False)  # the frame stands
            box = label.get_window_extent(measure).padded(1)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()
        else:
            left_away += 1
    return left_away


def check_figure(path: Path) -> None:
    """Raise `InputError` for another format, or a folder that is not there."""
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"'{path}' must end with {', '.join(_FORMATS)}: the ending names the format")
    if not path.absolute().parent.is_dir():
        raise InputError(f"'{path}' could not be written: there is no folder '{path.parent}'")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure all or nothing, as .png, .svg or .pdf."""
    check_figure(path)
    with replaced(path) as partial:
        figure.savefig(partial, format=path.suffix.lower()[1:], dpi=150)
