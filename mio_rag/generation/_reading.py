"""Weighing the sentences of a context against a question, by inverse document frequency."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mio_rag.generation import _spans
from mio_rag.generation._spans import Span
from mio_rag.types import Passage

__all__ = ["Evidence", "Reading"]


@dataclass(frozen=True)
class Evidence:
    """A sentence of the context, with its support for the question (>= 0) and whose passage it is from."""

    text: str
    support: float
    passage: int


class Reading:
    """The context of one question, weighed."""

    def __init__(self, question: str, passages: Sequence[Passage]) -> None:
        self.passages = passages
        found = [(text, i) for i, p in enumerate(passages) for text in _spans.sentences(p.text)]
        titles = [_spans.stems(p.title) for p in passages]
        self.bags = [(_spans.stems(text), titles[i]) for text, i in found]
        held = Counter(w for own, title in self.bags for w in own | title)
        self.idf = {w: math.log(1 + len(found) / n) for w, n in held.items()}
        self.unseen = math.log(1 + len(found))
        self.asked = _spans.stems(question)
        self.sentences = [Evidence(text, self.support(k, self.asked), i) for k, (text, i) in enumerate(found)]
        self.ordinary = frozenset(re.findall(r"\b[a-z]+\b", " ".join(text for text, _ in found)))

    def support(self, k: int, asked: set[str]) -> float:
        """Idf of the stems of `asked` that sentence k holds; half where only its title does."""
        own, title = self.bags[k]
        whole = math.fsum(self.idf[w] for w in asked & own)
        return whole + 0.5 * math.fsum(self.idf[w] for w in asked & (title - own))

    def covered(self, k: int, asked: set[str]) -> float:
        """Share of the idf of `asked` that sentence k and its title hold, in [0, 1]; 1 if none is asked."""
        total = math.fsum(self.idf.get(w, self.unseen) for w in asked)
        own, title = self.bags[k]
        return math.fsum(self.idf[w] for w in asked & (own | title)) / total if total else 1.0

    def ranked(self) -> list[Evidence]:
        """Sentences with at least half the best support, best first, ties in prompt order."""
        best = max(s.support for s in self.sentences)
        return sorted((s for s in self.sentences if s.support >= best / 2), key=lambda s: -s.support)

    def nearest(self, sentence: str, spans: Sequence[Span]) -> Span:
        """The span closest to the question's words; the earliest of equals."""
        tokens = list(re.finditer(r"[^\W_]+", sentence))
        marks = [(t, _spans.stem(t.group().lower())) for t in tokens]

        def closeness(span: Span) -> float:
            inside = [i for i, (t, _) in enumerate(marks) if t.start() < span.end and t.end() > span.start]
            if not inside:
                return 0.0
            return math.fsum(
                self.idf[w] / max(1, inside[0] - i, i - inside[-1])
                for i, (_, w) in enumerate(marks)
                if w in self.asked and w in self.idf and i not in inside
            )

        return max(spans, key=lambda span: (closeness(span), -span.start))
