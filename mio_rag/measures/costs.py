"""What a row cost and how it was proven: recorded on the way, never computed from question and answer."""

from __future__ import annotations

from typing import Literal

from mio_rag.measures.measure import LAST, Column, Frontier, Measure, Page, Use


def _recorded(
    name: str,
    label: str,
    meaning: str,
    unit: str,
    source: str,
    *,
    better: Literal["lower", "none"] = "lower",
    whole: bool = False,
    place: int = LAST,
    compared: bool = False,
    console: Column | None = None,
    page: Page | None = None,
    at_points: bool = False,
) -> Measure:
    """A cost, shown only where it says so."""
    return Measure(
        name,
        label,
        meaning,
        of="cost",
        better=better,
        unit=unit,
        source=source,
        whole=whole,
        place=place,
        compared=compared,
        console=console,
        page=page,
        frontier=Frontier(Use.POINT if at_points else Use.NONE),
    )


def _stage(name: str, doing: str, place: int = LAST) -> Measure:
    """Wall time of a stage."""
    return _recorded(
        f"{name}_seconds",
        f"{name.capitalize()} seconds",
        f"wall time of {doing}",
        "seconds",
        _CLOCK,
        place=place,
        console=None if place == LAST else Column(f"{name} s"),
    )


_CLOCK = "wall clock of the machine that ran it"
_READER = "counted by the reader's tokenizer"
_RUN = "counted by the run"


def _shown(place: int) -> Page:
    return Page(place, judged=False, card=False)


#: In the order of the summary.
COSTS = (
    _recorded(
        "tokens_used",
        "Context tokens",
        "tokens of the selected passages, as the reader counts them",
        "tokens",
        _READER,
        whole=True,
        place=70,
        compared=True,
        console=Column("context tokens", always=True),
        page=Page(70, core=True, judged=False, card=False),
        at_points=True,
    ),
    _recorded(
        "passages_selected",
        "Passages",
        "passages selected",
        "passages",
        _RUN,
        better="none",
        whole=True,
        page=_shown(170),
        at_points=True,
    ),
    _recorded(
        "prompt_tokens",
        "Prompt tokens",
        "tokens into the model, over all calls",
        "tokens",
        _READER,
        whole=True,
        place=110,
        console=Column(),
        page=_shown(180),
    ),
    _recorded(
        "completion_tokens",
        "Completion tokens",
        "tokens of the answer",
        "tokens",
        _READER,
        whole=True,
        page=_shown(190),
    ),
    _recorded(
        "gap",
        "Certified gap",
        "distance from the proven bound, relative to the objective",
        "0 to 1",
        "bound of the solver over the objective that is recomputed from the decision",
        page=_shown(195),
    ),
    _recorded(
        "solve_seconds",
        "Solve seconds",
        "wall time of the solver",
        "seconds",
        _CLOCK,
        at_points=True,
    ),
    _stage("retrieve", "the retriever"),
    _stage("select", "building and solving the program", 150),
    _stage("generate", "writing the answer", 160),
    _stage("decompose", "asking for a query"),
    _stage("reason", "reasoning steps"),
    _stage("measure", "measuring uncertainty"),
    _recorded(
        "total_seconds",
        "Total time",
        "wall time of the question, all stages",
        "seconds",
        _CLOCK,
        place=120,
        console=Column("seconds", "{:.2f}"),
        page=_shown(240),
    ),
    _recorded(
        "retrieval_calls",
        "Retrievals",
        "calls of the retriever",
        "calls",
        _RUN,
        whole=True,
        place=90,
        console=Column(),
        page=_shown(220),
    ),
    _recorded(
        "lm_calls",
        "Model calls",
        "calls of the language model",
        "calls",
        _RUN,
        whole=True,
        place=100,
        console=Column("LM calls"),
        page=_shown(210),
    ),
    _recorded(
        "steps",
        "Steps",
        "actions that a controller took before the answer",
        "steps",
        _RUN,
        whole=True,
        place=80,
        console=Column(always=True),
        page=_shown(200),
    ),
    _recorded(
        "uncertainty",
        "Uncertainty",
        "of a controller when it stopped: 0 is certain",
        "0 to 1",
        "tracked or measured by the controller",
        better="none",
        page=_shown(230),
    ),
    _recorded(
        "dollars",
        "Dollars",
        "price of the tokens in and out, where prices are given",
        "dollars",
        "tokens of each model times its price",
        console=Column(form="{:.3g}", always=True),
        page=_shown(250),
    ),
    Measure(
        "tokens_per_correct",
        "Tokens per correct",
        "tokens in and out per right answer",
        of="run",
        better="lower",
        unit="tokens",
        source="ratio of the sums over all questions with a known answer",
        place=130,
        compared=False,
        console=Column("tokens / correct"),
        page=Page(80, core=True, card=False),
        frontier=Frontier(Use.NONE),
    ),
)
