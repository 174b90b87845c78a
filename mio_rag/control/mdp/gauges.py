"""How uncertain is the agent? Tracked by the model's own dynamics, or measured after every action.

tracked      U follows the model: reasoning lowers it by delta_p; retrieving by delta_r with chance p_s
             (drawn, seeded), and only if something is read that was not read before
confidence   U = 1 - the geometric mean probability of the tokens of a draft answer. Of n options U is
             (1 - p) n / (n - 1) with p the probability of the one chosen: 1 where all are equally probable. A
             draft after every action, whose cost counts
evidence     U = 1 - the largest relevance among what is read; reasoning does not change it
complete     U = 1 - the probability that the evidence is complete, by what is read and by what is not
             (`mio_rag.relevance.complete`); neither does reasoning change it
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mio_rag.control.memory import Memory
from mio_rag.control.meter import LimitReached, Meter, Reply
from mio_rag.control.settings import GAUGES
from mio_rag.control.steps.base import AnswerSynthesizer
from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.types import GenerationError

__all__ = ["Complete", "Confidence", "Evidence", "Gauge", "Tracked", "draw", "make_gauge", "tracked_next"]


class Gauge(Protocol):
    """Says how uncertain the agent is: 1 knows nothing, 0 is certain."""

    @property
    def name(self) -> str:
        """One of `GAUGES`, or a name of its own."""
        ...

    def start(self, memory: Memory, meter: Meter) -> float:
        """U before the first action."""
        ...

    def after(self, action: str, doubt: float, new: int, step: int, memory: Memory, meter: Meter) -> float:
        """U after an action at a `doubt` that brought so many `new` passages, or notes."""
        ...


def draw(seed: int, question_id: str, step: int, what: int) -> float:
    """A number in [0, 1) that depends on these alone, so that a run can be replayed."""
    return float(np.random.default_rng([seed, zlib.crc32(question_id.encode()), step, what]).random())


def tracked_next(model: RetrievalMDP, action: str, doubt: float, new: int, luck: float) -> float:
    """U after an action by the model's dynamics; `luck` in [0, 1) below p_s is a success."""
    if new == 0 or (action == "retrieve" and luck >= float(model.at("success", doubt))):
        return doubt
    return float(model.lowered(action, doubt))


@dataclass(frozen=True)
class Tracked:
    """U by the model's own dynamics, from 1."""

    model: RetrievalMDP
    seed: int = 0
    name: str = "tracked"

    def start(self, memory: Memory, meter: Meter) -> float:
        """Nothing is known."""
        return 1.0

    def after(self, action: str, doubt: float, new: int, step: int, memory: Memory, meter: Meter) -> float:
        """The level that the model says."""
        luck = draw(self.seed, memory.question.id, step, 1)
        return tracked_next(self.model, action, doubt, new, luck)


class _OfWhatIsRead(ABC):
    """U from what is read, whatever was done."""

    def start(self, memory: Memory, meter: Meter) -> float:
        """Nothing is read."""
        return self.level(memory)

    def after(self, action: str, doubt: float, new: int, step: int, memory: Memory, meter: Meter) -> float:
        """The level of what is read now."""
        return self.level(memory)

    @staticmethod
    @abstractmethod
    def level(memory: Memory) -> float:
        """U of what is read; 1 where nothing is."""


@dataclass(frozen=True)
class Evidence(_OfWhatIsRead):
    """U from the relevance of what is read; for probabilities and cosines alike, cut to [0, 1]."""

    name: str = "evidence"

    @staticmethod
    def level(memory: Memory) -> float:
        """1 - the largest relevance; 1 where nothing is read."""
        chosen = memory.selection
        if chosen is None or not chosen.chosen:
            return 1.0
        strongest = max(float(chosen.candidates.relevance[i]) for i in chosen.chosen)
        return 1.0 - min(1.0, max(0.0, strongest))


@dataclass(frozen=True)
class Complete(_OfWhatIsRead):
    """U from what the chosen passages' probabilities cover; free of charge."""

    name: str = "complete"

    @staticmethod
    def level(memory: Memory) -> float:
        """1 - the probability that the evidence is complete; 1 where nothing is read.

        Raises
        ------
        InputError
            If relevance is no probability.
        """
        if memory.selection is None:
            return 1.0
        found = memory.selection.complete
        if found is None:
            raise InputError(
                "whether the evidence is complete is told from probabilities, and relevance is as the "
                "candidates have it: leave relevance at auto, or measure U by evidence"
            )
        return 1.0 - found


@dataclass(frozen=True)
class Confidence:
    """U from the probabilities of a draft answer, which is kept: without further actions it is the answer."""

    synthesizer: AnswerSynthesizer
    max_tokens: int = 32
    name: str = "confidence"

    def start(self, memory: Memory, meter: Meter) -> float:
        """What the model knows by itself."""
        return self._level(memory, meter)

    def after(self, action: str, doubt: float, new: int, step: int, memory: Memory, meter: Meter) -> float:
        """What it makes of evidence and notes; unchanged where these are, or no draft is affordable."""
        if not new and memory.draft is not None:  # what is read may change without anything new
            return doubt
        try:
            return self._level(memory, meter)
        except LimitReached:
            return doubt

    def _level(self, memory: Memory, meter: Meter) -> float:
        prompt = self.synthesizer.prompt(memory)
        options = len(memory.question.choices)
        if options:
            try:
                chosen = meter.choose("measure", prompt)
            except GenerationError:
                return 1.0  # it named no option; a model that is out of order fails at the next call as well
            if chosen.probability is None or math.isnan(chosen.probability):
                raise _unmeasured(chosen.answer.generator)
            memory.draft = chosen
            return min(1.0, max(0.0, 1.0 - chosen.probability) * options / (options - 1))
        answer = meter.generate("measure", prompt, self.max_tokens)
        if answer.logprobs is None or any(map(math.isnan, answer.logprobs)):
            raise _unmeasured(answer.generator)
        memory.draft = Reply(answer)
        if not answer.logprobs:
            return 1.0  # it said nothing
        return 1.0 - math.exp(min(0.0, sum(answer.logprobs) / len(answer.logprobs)))


def _unmeasured(generator: str) -> InputError:
    return InputError(
        f"{generator} gives no probabilities, or invalid ones, and confidence needs them: use another "
        "generator (gguf:, hf:, openai: with logprobs=1), or --uncertainty tracked or evidence"
    )


def make_gauge(
    name: str, model: RetrievalMDP, synthesizer: AnswerSynthesizer, seed: int, max_tokens: int
) -> Gauge:
    """The gauge of that name.

    Raises
    ------
    InputError
        If there is none.
    """
    if name == "tracked":
        return Tracked(model, seed)
    if name == "evidence":
        return Evidence()
    if name == "complete":
        return Complete()
    if name == "confidence":
        return Confidence(synthesizer, max_tokens)
    raise InputError(f"uncertainty '{name}' is unknown: choose {', '.join(GAUGES)}")
