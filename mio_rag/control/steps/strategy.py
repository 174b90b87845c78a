"""What a search strategy is: from a question to passages in order, with what it searched for and spent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from mio_rag.control.costs import Call, Costs
from mio_rag.control.meter import Limits, Meter, Replies
from mio_rag.errors import InputError
from mio_rag.generation import Generator, Prompt
from mio_rag.retrieval.retriever import Retriever
from mio_rag.text import clean
from mio_rag.types import Question

__all__ = ["Found", "SearchTask", "Strategy", "lines_of", "strategy_prompt"]

_BULLET = re.compile(
    r"^\s*(?:[-*\u2022]|\(?\d{1,2}[.):]|(?:question|query|rewording)\s*\d*:)\s*", re.IGNORECASE
)


@dataclass(frozen=True)
class Found:
    """What one strategy found.

    Parameters
    ----------
    rows : tuple of int
        Rows of the index, best first; may go deeper than a pool. Empty: it has nothing to say, see `note`.
    queries : tuple of str
        What was searched for, in order.
    dropped : int
        Names that the model gave and that are not in what it was given: nothing was searched for by them.
    note : str
        Why there is nothing, or what was left out; empty where there is nothing to say.
    """

    rows: tuple[int, ...] = ()
    queries: tuple[str, ...] = ()
    dropped: int = 0
    note: str = ""


class SearchTask:
    """Where one strategy works: the index, the model, and an account of its own.

    Parameters
    ----------
    generator : Generator or None
        None: strategies that need a model cannot be used.
    tokens : int
        Most tokens into and out of the model.
    replies : dict, optional
        What the model said to others; taken from there, and added to.
    meter : Meter, optional
        Asks and counts in the place of one that is made here from `tokens` and `replies`.
    """

    def __init__(
        self,
        question: Question,
        retriever: Retriever,
        generator: Generator | None,
        *,
        tokens: int = 20_000,
        replies: Replies | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.question, self.retriever = question, retriever
        self.costs = Costs() if meter is None else meter.costs
        if meter is None and generator is not None:
            meter = Meter(generator, Limits(tokens=tokens), 0, replies, self.costs)
        self._meter = meter
        self._asked: tuple[Call, str] | None = None

    def write(self, template: str, max_tokens: int, fields: Mapping[str, str] | None = None) -> str:
        """What the model replies to a prompt of `prompts/`, without white space around it.

        Raises
        ------
        InputError
            Without a model.
        GenerationError
            As the model does.
        LimitReached
            Where the reply could go beyond the limit on tokens; it is then not asked for.
        """
        if self._meter is None:
            raise InputError("this strategy needs a language model: give --generator")
        prompt = strategy_prompt(template, self.question, fields or {})
        generator = self._meter.generator
        open_ = Call("decompose", 0.0, 1, 0, generator.prompt_tokens(prompt), max_tokens)
        self._asked = open_, generator.name
        said = self._meter.generate("decompose", prompt, max_tokens).text.strip()
        self._asked = None
        return said

    def searching(self) -> AbstractContextManager[None]:
        """Count what happens inside as one retrieval call."""
        return self.costs.part("retrieve", retrieval_calls=1)

    def abandoned(self, seconds: float) -> Costs:
        """What is to be charged where nobody waits any longer.

        What was spent so far, and of a reply that is under way all that it may still take: nobody will hear
        what it took.
        """
        spent, asked = Costs(), self._asked
        known = list(self.costs.spent)
        spent.spent += known
        left = max(0.0, seconds - sum(one.call.seconds for one in known))
        if asked is None:
            spent.add(Call("decompose", left))
        else:
            call, model = asked
            spent.add(Call(call.part, left, 1, 0, call.prompt_tokens, call.completion_tokens), model=model)
        return spent


class Strategy(Protocol):
    """A way to search for a question.

    `needs_model` and `needs_links` say what it cannot do without: `mio_rag.control.steps.search` refuses it
    before anything is done.
    """

    @property
    def name(self) -> str:
        """As it is called on the command line."""
        ...

    @property
    def needs_model(self) -> bool:
        """Whether it asks a language model."""
        ...

    @property
    def needs_links(self) -> bool:
        """Whether it follows the evidence links of the index."""
        ...

    def find(self, task: SearchTask) -> Found:
        """Search for the question of a task; what it takes is counted on the task, also where it fails.

        Raises
        ------
        MioRagError
            As model and index do.
        """
        ...


@cache
def _template(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def strategy_prompt(name: str, question: Question, fields: Mapping[str, str]) -> Prompt:
    """The prompt of `prompts/NAME_system.txt` and `prompts/NAME_user.txt`.

    One pass over the template fills it in, so that braces in texts are never looked at.
    """
    known = {"question": clean(question.text).strip(), **fields}

    def filled(template: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: known.get(match.group(1), match.group(0)), template)

    # Without options and labels: a generator that is given options would choose one instead of writing.
    asked = Question(question.id, question.text)
    return Prompt(asked, (), filled(_template(f"{name}_system")), filled(_template(f"{name}_user")))


def lines_of(reply: str) -> list[str]:
    """The lines of a list that a model wrote, without bullets, numbers and quotation marks."""
    lines = (_BULLET.sub("", line).strip().strip("\"'`*").strip() for line in reply.splitlines())
    return [line for line in lines if re.search(r"\w", line)]
