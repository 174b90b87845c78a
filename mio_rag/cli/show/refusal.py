"""The measures of SQuAD 2.0, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from mio_rag.cli.show.tables import Field, print_fields
from mio_rag.cli.terminal import Terminal
from mio_rag.refusal.scores import Scores

__all__ = ["print_scores"]


def print_scores(console: Terminal, title: str, names: Sequence[str], scores: Sequence[Scores]) -> None:
    """One row a name: percent of all questions, of the answerable ones and of the others."""

    def percent(value: float | None) -> str:
        return "\u2013" if value is None else f"{100 * value:.1f}"

    columns: dict[str, Sequence[float | None]] = {
        "F1": [s.f1 for s in scores],
        "exact": [s.exact for s in scores],
        "HasAns F1": [s.has_answer_f1 for s in scores],
        "HasAns exact": [s.has_answer_exact for s in scores],
        "NoAns": [s.no_answer for s in scores],
        "refused": [s.refused for s in scores],
        "best F1": [s.best_f1 for s in scores],
    }
    fields = [Field(head, [percent(value) for value in values]) for head, values in columns.items()]
    print_fields(console, [Field(title, list(names), "left")], fields)
