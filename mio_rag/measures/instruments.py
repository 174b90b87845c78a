"""What some measures are taken with: an embedder, token vectors, a judge, a writer of questions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from mio_rag.generation.protocol import Generator
from mio_rag.measures.bert_score import TokenVectors
from mio_rag.retrieval.embedders import Embedder
from mio_rag.types import Passage

__all__ = ["Instruments", "Judge", "Reading"]


class Judge(Protocol):
    """Says whether passages support a sentence that was said in answer to a question."""

    @property
    def name(self) -> str:
        """What it is and which model it is made of, for the record of a run."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever a verdict could."""
        ...

    def supports(self, question: str, sentence: str, passages: tuple[Passage, ...]) -> bool:
        """The verdict; never called without passages."""
        ...


@dataclass(frozen=True, eq=False)
class Instruments:
    """What a run measures with, beside what it needs anyway. A measure without its instrument is not taken.

    Parameters
    ----------
    embedder : Embedder, optional
        For cosines of texts.
    tokens : TokenVectors, optional
        For BERTScore.
    judge : Judge, optional
        For faithfulness and context recall; see `mio_rag.measures.judges`.
    writer : Generator, optional
        For answer relevance: it writes the question that an answer seems to be given to.
    """

    embedder: Embedder | None = None
    tokens: TokenVectors | None = None
    judge: Judge | None = None
    writer: Generator | None = None

    @property
    def given(self) -> frozenset[str]:
        """Names of those that there are."""
        names = ("embedder", "tokens", "judge", "writer")
        return frozenset(name for name in names if getattr(self, name) is not None)

    def record(self) -> dict[str, dict[str, str]] | None:
        """Names and fingerprints, for the record of a run; None where there are none."""
        found: dict[str, dict[str, str]] = {}
        for name in ("embedder", "tokens", "judge"):
            if (one := getattr(self, name)) is not None:
                found[name] = {"name": one.name, "fingerprint": one.fingerprint}
        if self.writer is not None:
            found["writer"] = {"name": self.writer.name, "fingerprint": self.writer.identity or ""}
        return found or None


@dataclass(frozen=True, eq=False)
class Reading:
    """What was read and said, and what it is measured with.

    Parameters
    ----------
    passages : tuple of Passage
        In the order of the prompt; empty where nothing was read.
    answer : str or None
        None: there is none.
    known : dict
        What was found out about the question so far: methods often read and say the same.
    """

    instruments: Instruments
    passages: tuple[Passage, ...] = ()
    answer: str | None = None
    known: dict[object, object] = field(default_factory=dict)
