"""Readers that do what they are told, and agents that ask them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from mio_rag.generation import BaseGenerator, Prompt, ScriptedGenerator
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.types import Answer, Question

COMPARISON = Question("c", "Which river is longer, the Arno or the Tiber?", ("Tiber",), ("r1", "r3"))
CHOICE = Question("m", "Which river is longer?", ("The Tiber",), choices=("The Arno", "The Tiber", "The Po"))
SELECTOR = Selector.raw(passage_penalty=0.0)


def said(prompt: Prompt) -> str:
    """A model that asks, thinks and answers by what it is told to do."""
    if prompt.system.startswith("You write search queries"):
        return f"Tiber length {prompt.user.count('- ')}"
    if prompt.system.startswith("You think"):
        return f"Note {prompt.user.count('- ')}"
    return "B" if prompt.question.choices else "the Tiber"


def never(prompt: Prompt) -> str:
    """For runs of which nothing is left to be asked."""
    raise AssertionError(f"asked about '{prompt.question.id}'")


class Sure(BaseGenerator):
    """Scripted, with log-probabilities: the more is read or noted, the surer."""

    def __init__(self, confidence: Callable[[Prompt], float]) -> None:
        super().__init__("sure", None)
        self.inner = ScriptedGenerator(said)
        self.confidence = confidence

    def _count(self, texts: list[str]) -> list[int]:
        return self.inner.count(texts)

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        answer = self.inner.generate(prompt, max_tokens=max_tokens)
        return dataclasses.replace(answer, logprobs=(math.log(self.confidence(prompt)),) * 2)


def agent(name: str, index: CorpusIndex | None, **settings: Any) -> Any:
    retriever = None if index is None else Retriever(index, pool=4)
    return make_controller(name, Setup(ControlSettings(**settings), retriever, SELECTOR, seed=3))
