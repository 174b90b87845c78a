"""A data set's frontier, from questions to files; resumable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mio_rag.context import RegexCounter, render_context
from mio_rag.corpora.dataset import NEEDS_QUESTIONS, Dataset
from mio_rag.errors import DataError, MioRagError
from mio_rag.evaluation.harness import Progress, check_corpus
from mio_rag.evaluation.ledger import Ledger, environment, opened_run, record_of
from mio_rag.evaluation.rows import answers_of
from mio_rag.frontier.dataset import FrontierSettings, price_curve, question_rows
from mio_rag.frontier.page import render_page
from mio_rag.frontier.plot import plot_data, plot_price
from mio_rag.frontier.summary import operating_point, summarize_grid
from mio_rag.generation import Generator, build_prompt
from mio_rag.measures import answer_measures, failed_measures
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.storage import write_atomically
from mio_rag.types import Question


@dataclass(frozen=True, eq=False)
class FrontierResult:
    """The folder, the points, the operating point, the record of the run, and the curve over prices."""

    folder: Path
    points: list[dict[str, Any]]
    chosen: dict[str, Any] | None
    run: dict[str, Any]
    price: dict[str, Any] | None = None


def data_frontier(
    dataset: Dataset,
    index: CorpusIndex,
    settings: FrontierSettings,
    out: str | Path,
    *,
    generator: Generator | None = None,
    slack: float = 0.02,
    resume: bool = False,
    progress: Progress | None = None,
) -> FrontierResult:
    """Measure every setting on every question; write frontier.json, frontier.png and frontier.html.

    Where the settings have token prices, also price.png.

    out, resume, progress, and what is raised: see `mio_rag.evaluation.harness.evaluate`.
    generator: answers from every selection and counts the tokens; answers are then scored too.
    slack: see `operating_point`.
    """
    questions = dataset.questions[: settings.limit]
    if not questions:
        raise DataError(f"'{dataset.name}' has no questions: {NEEDS_QUESTIONS}")
    check_corpus(dataset, index)
    run = _record(dataset, index, generator, settings, len(questions))
    folder = Path(out)
    retriever = Retriever.of(index, settings.retrieval, generator or RegexCounter())
    keys = {q.id: [(q.id, s.name, s.budget_tokens) for s in settings.grid] for q in questions}
    asked = [key for own in keys.values() for key in own]
    with opened_run(folder, run, asked, resume) as ledger:
        done = {Ledger.key(row) for row in ledger.rows}

        def made() -> Iterator[list[dict[str, Any]]]:
            for count, question in enumerate(questions, start=1):
                if not done.issuperset(keys[question.id]):
                    found = question_rows(question, retriever, settings)
                    if generator is not None:
                        _answer(generator, question, found, settings.max_tokens)
                    yield [row for row, _ in found if Ledger.key(row) not in done]
                if progress:
                    progress(1, f"{count} of {len(questions)} questions")

        ledger.fill(made(), lambda rows: all(row["error"] for row in rows))
        rows = ledger.sort(asked)
        points = summarize_grid(rows, settings)
        chosen = operating_point(rows, points, settings, slack)
        data: dict[str, Any] = {"run": run, "points": points, "operating_point": chosen}
        if settings.token_prices:
            pools = retriever.retrieve_many([question.text for question in questions])
            selector, prices = settings.selector, settings.token_prices
            data["price"] = price_curve(
                questions, pools, selector, prices, settings.budgets, settings.seed, retriever.counter
            )
            plot_price(data["price"], f"{dataset.name}: {len(questions)} questions", folder / "price.png")
        write_atomically(folder / "frontier.json", json.dumps(data, indent=1, allow_nan=False))
        plot_data(data, folder / "frontier.png")
        picture = (folder / "price.png").read_bytes() if "price" in data else None
        page = render_page(data, rows, dataset, questions, picture)
        write_atomically(folder / "frontier.html", page)
        return FrontierResult(folder, points, chosen, run, data.get("price"))


def _answer(
    generator: Generator,
    question: Question,
    found: Sequence[tuple[dict[str, Any], Selection]],
    max_tokens: int,
) -> None:
    """Answer each distinct prompt once, and score the answer in every row of that prompt."""
    prompts = [build_prompt(question, selection.passages) for _, selection in found]
    replies = answers_of(generator, prompts, max_tokens)
    for (row, selection), prompt in zip(found, prompts, strict=True):
        # What the reader's tokenizer counts for the block as a whole, not the sum over its passages.
        block = render_context(selection.passages)
        row["tokens_used"] = generator.count([block])[0] if block else 0
        row["over_budget"] = row["tokens_used"] > row["budget_tokens"]
        reply = replies[prompt.system, prompt.user]
        if isinstance(reply, MioRagError):
            row |= {"error": str(reply), **failed_measures(question, selection=False, answer=True)}
        else:
            text = reply.answer.text
            row |= {"answer": text, **answer_measures(question, text, reply.choice)}


def _record(
    dataset: Dataset,
    index: CorpusIndex,
    generator: Generator | None,
    settings: FrontierSettings,
    questions: int,
) -> dict[str, Any]:
    """Describe the run; `opened_run` compares it before rows are added to those of an earlier one."""
    kept: dict[str, Any] = {}
    for name, value in dataclasses.asdict(settings).items():
        if name == "retrieval":  # its other parts are keys of the record
            kept["rerankers"] = list(value["rerankers"]) or None
        elif name not in ("seed", "limit", "token_prices"):  # prices are no rows: any run may add them
            kept[name] = value
    kept["selector"] = settings.selector.to_dict()
    record = {
        "kind": "frontier",
        **record_of([dataset], [index], generator, settings.retrieval),
        "questions": questions,
        "seed": settings.seed,
        "settings": {"kind": "frontier", **kept},
        **environment(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(record))
    return plain
