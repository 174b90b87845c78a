"""Options about measures that take a model of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.measures import Instruments
    from mio_rag.retrieval.embedders import Embedder

__all__ = ["MeasuringOptions"]

_OF_INDEX = "index"


@dataclass(frozen=True)
class MeasuringOptions:
    """What an evaluation measures beside what needs no model."""

    judge: Annotated[
        str | None,
        typer.Option(
            "--judge",
            help="Measure faithfulness and context recall by this judge: words, embedding, nli:MODEL or "
            "yes-no:GENERATOR (also answer relevance).",
        ),
    ] = None
    cosine: Annotated[
        str | None,
        typer.Option(
            "--cosine",
            help="Measure cosines of answers by this embedder: index (that of the index), minilm, or a "
            "sentence-transformers id or folder.",
        ),
    ] = None
    bert_score: Annotated[
        str | None,
        typer.Option(
            "--bert-score",
            help="Measure BERTScore by this encoder: minilm, or an id or folder; MODEL@LAYER takes that "
            "layer. [the last]",
        ),
    ] = None

    def check(self, closed_book: bool, answered: bool) -> None:
        """Raise `InputError` for what plainly cannot be measured; nothing is loaded."""
        from mio_rag.measures.judges import check_judge
        from mio_rag.retrieval.embedders import check_embedder

        problems = []
        if self.cosine == _OF_INDEX and closed_book:
            problems.append("--cosine=index: a closed-book run has no index; name an embedder")
        if self.cosine == "tfidf":
            problems.append(
                "--cosine=tfidf: it is fitted to a corpus; give --cosine index for that of an index"
            )
        given = {"--cosine": self.cosine, "--bert-score": self.bert_score}
        if not answered:
            problems += [
                f"{name}={value}: without a reader there are no answers to measure; give --generator"
                for name, value in given.items()
                if value is not None
            ]
        try:
            collect(
                lambda: None if self.judge is None else check_judge(self.judge),
                lambda: (
                    None if self.cosine in (None, _OF_INDEX, "tfidf") else check_embedder(self.cosine or "")
                ),
                self._encoder,
            )
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(problems)

    def _encoder(self) -> tuple[str, int | None]:
        """Model and layer of BERTScore."""
        model, at, layer = (self.bert_score or "").rpartition("@")
        if at and not layer.isdecimal():
            raise InputError(f"--bert-score={self.bert_score}: '{layer}' behind @ is no number of a layer")
        return (model, int(layer)) if at else (layer, None)

    def load(self) -> Instruments:
        """The instruments, without the embedder of the index."""
        from mio_rag.measures import Instruments
        from mio_rag.measures.bert_score import TokenVectors
        from mio_rag.measures.judges import YesNoJudge, make_judge
        from mio_rag.retrieval.embedders import make_embedder

        tokens, judge, embedder = collect(
            lambda: None if self.bert_score is None else TokenVectors(*self._encoder()),
            lambda: None if self.judge is None else make_judge(self.judge),
            lambda: None if self.cosine in (None, _OF_INDEX) else make_embedder(self.cosine or ""),
        )
        writer = judge.writer if isinstance(judge, YesNoJudge) else None
        return Instruments(embedder, tokens, judge, writer)

    def of_index(self, instruments: Instruments, embedder: Embedder) -> Instruments:
        """The instruments with the embedder of the index, where that is asked for."""
        return replace(instruments, embedder=embedder) if self.cosine == _OF_INDEX else instruments
