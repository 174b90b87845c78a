"""Measures of costs and proofs: recorded on the way, never computed from question and answer."""

from __future__ import annotations

from functools import partial
from typing import Any

from mio_rag.measures.measure import Column, Frontier, Measure, Page, Use

_CLOCK = "wall clock of the machine that ran it"
_READER = "counted by the reader's tokenizer"
_RUN = "counted by the run"
_POINT = Frontier(Use.POINT)


def _recorded(name: str, label: str, meaning: str, unit: str, source: str, **more: Any) -> Measure:
    """Make a cost; it is shown only where `more` says so."""
    hidden: dict[str, Any] = {
        "of": "cost", "better": "lower", "compared": False, "console": None, "page": None,
        "frontier": Frontier(Use.NONE),
    }  # fmt: skip
    return Measure(name, label, meaning, unit=unit, source=source, **{**hidden, **more})


def _seconds(stage: str, doing: str, **more: Any) -> Measure:
    label = f"{stage.capitalize()} seconds"
    return _recorded(f"{stage}_seconds", label, f"wall time of {doing}", "seconds", _CLOCK, **more)


_page = partial(Page, judged=False, card=False)

#: In the order of the summary.
COSTS = (
    _recorded(
        "tokens_used", "Context tokens", "tokens of the selected passages, as the reader counts them",
        "tokens", _READER, whole=True, place=70, compared=True,
        console=Column("context tokens", always=True), page=_page(70, core=True), frontier=_POINT,
    ),
    _recorded(
        "passages_selected", "Passages", "passages selected", "passages", _RUN,
        better="none", whole=True, page=_page(170), frontier=_POINT,
    ),
    _recorded(
        "prompt_tokens", "Prompt tokens", "tokens into the model, over all calls", "tokens", _READER,
        whole=True, place=110, console=Column(), page=_page(180),
    ),
    _recorded(
        "completion_tokens", "Completion tokens", "tokens of the answer", "tokens", _READER,
        whole=True, page=_page(190),
    ),
    _recorded(
        "gap", "Certified gap", "distance from the proven bound, relative to the objective", "0 to 1",
        "bound of the solver over the objective that is recomputed from the decision", page=_page(195),
    ),
    _seconds("solve", "the solver", frontier=_POINT),
    _seconds("retrieve", "the retriever"),
    _seconds("select", "building and solving the program", place=150, console=Column("select s")),
    _seconds("generate", "writing the answer", place=160, console=Column("generate s")),
    _seconds("decompose", "asking for a query"),
    _seconds("reason", "reasoning steps"),
    _seconds("measure", "measuring uncertainty"),
    _recorded(
        "total_seconds", "Total time", "wall time of the question, all stages", "seconds", _CLOCK,
        place=120, console=Column("seconds", "{:.2f}"), page=_page(240),
    ),
    _recorded(
        "retrieval_calls", "Retrievals", "calls of the retriever", "calls", _RUN,
        whole=True, place=90, console=Column(), page=_page(220),
    ),
    _recorded(
        "lm_calls", "Model calls", "calls of the language model", "calls", _RUN,
        whole=True, place=100, console=Column("LM calls"), page=_page(210),
    ),
    _recorded(
        "steps", "Steps", "actions that a controller took before the answer", "steps", _RUN,
        whole=True, place=80, console=Column(always=True), page=_page(200),
    ),
    _recorded(
        "uncertainty", "Uncertainty", "of a controller when it stopped: 0 is certain", "0 to 1",
        "tracked or measured by the controller", better="none", page=_page(230),
    ),
    _recorded(
        "dollars", "Dollars", "price of the tokens in and out, where prices are given", "dollars",
        "tokens of each model times its price", console=Column(form="{:.3g}", always=True), page=_page(250),
    ),
    _recorded(
        "tokens_per_correct", "Tokens per correct", "tokens in and out per right answer", "tokens",
        "ratio of the sums over all questions with a known answer", of="run", place=130,
        console=Column("tokens / correct"), page=Page(80, core=True, card=False),
    ),
)  # fmt: skip
