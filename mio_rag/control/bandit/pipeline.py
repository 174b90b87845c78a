"""One question through choice, search and selection; what was added is measured for who wants to know it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mio_rag.context import TokenCounter
from mio_rag.control.bandit.chooser import Choice, Chooser, Seen
from mio_rag.control.costs import Costs
from mio_rag.control.meter import Replies
from mio_rag.control.steps.search import Searched, SearchSettings, check_search, search
from mio_rag.control.steps.strategies import make_strategies
from mio_rag.errors import InfeasibleError
from mio_rag.generation import Generator
from mio_rag.learning.contribution import Contributions, Values, contributions, sets_to_compare
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["PipelineResult", "SearchPipeline", "measured", "searched_json"]


@dataclass(frozen=True, eq=False)
class PipelineResult:
    """What was chosen, found and selected."""

    choice: Choice
    searched: Searched
    selection: Selection

    def found_by(self, identity: str) -> dict[str, int]:
        """Strategy -> rank, for a passage; rank 0 where only a link leads to it."""
        return dict(self.searched.found.get(identity, {}))


@dataclass(frozen=True, eq=False)
class SearchPipeline:
    """Chooses strategies, searches by them, and selects from what they find.

    Raises
    ------
    InputError
        If a strategy that may be chosen lacks a model, or links.
    """

    chooser: Chooser
    retriever: Retriever
    generator: Generator | None
    selector: Selector
    settings: SearchSettings = field(default_factory=SearchSettings)

    def __post_init__(self) -> None:
        made = make_strategies(self.chooser.possible, self.settings.writing)
        check_search(made, self.retriever, self.generator)

    def run(
        self,
        question: Question,
        budget_tokens: int,
        counter: TokenCounter | None = None,
        *,
        costs: Costs | None = None,
        replies: Replies | None = None,
    ) -> PipelineResult:
        """Take a question to its selection.

        What was spent is in `costs`, also where this fails.

        Raises
        ------
        InfeasibleError
            If no selection satisfies the constraints.
        MioRagError
            As search and selection do.
        """
        account = Costs() if costs is None else costs
        with account.part("plan"):
            choice = self.chooser.choose(question, self.retriever)
        searched = search(
            question,
            self.retriever,
            self.generator,
            choice.strategies,
            self.settings,
            weights=choice.weights,
            replies=replies,
            costs=account,
            alone=sets_to_compare(choice.strategies, choice.base) if self.chooser.learns else (),
        )
        with account.part("select"):
            selector, pool = self.chooser.valued(self.selector, searched.pool)
            selection = selector.select(pool, budget_tokens, counter)
        if self.chooser.learns:
            with account.part("learn"):
                added = None
                if selection.result.x is not None:
                    added = measured(self.chooser, self.selector, searched, choice, budget_tokens, counter)
                read = None if selection.result.x is None else selection
                spent = {one.strategy: one.amount for one in searched.tried}
                self.chooser.learn(choice, Seen(searched, read, added, spent))
        if selection.result.x is None:
            raise InfeasibleError(selection.explain())
        return PipelineResult(choice, searched, selection)


def measured(
    chooser: Chooser,
    selector: Selector,
    searched: Searched,
    choice: Choice,
    budget_tokens: int,
    counter: TokenCounter | None = None,
) -> Contributions | None:
    """What each strategy of a choice added: `contributions` of a search that was asked for its sets.

    None where one that always runs has failed: there is nothing to hold the others against.
    """
    if any(one.failed and one.strategy in choice.base for one in searched.tried):
        return None
    pool = searched.pool if searched.every is None else searched.every
    valuing, valued = chooser.valued(selector, pool)
    values = Values(valuing, valued, searched.alone, budget_tokens, counter)
    return contributions(values, choice.strategies, choice.base)


def searched_json(result: PipelineResult) -> dict[str, Any]:
    """Plain data of a search: what each strategy did, and who found what is read."""
    choice, searched = result.choice, result.searched
    return {
        "strategies": [
            {
                "strategy": one.strategy,
                "queries": list(one.found.queries),
                "found": len(one.found.rows),
                "dropped_names": one.found.dropped,
                "note": one.found.note,
                "failed": one.failed,
                "prompt_tokens": one.amount.prompt_tokens,
                "completion_tokens": one.amount.completion_tokens,
                "lm_calls": one.amount.lm_calls,
                "retrieval_calls": one.amount.retrieval_calls,
                "seconds": one.amount.seconds,
            }
            for one in searched.tried
        ],
        "found_by": {i: result.found_by(i) for i in result.selection.ids},
        "choice": {"id": choice.id, "why": choice.why, **choice.about},
        "search_notes": list(searched.notes),
    }
