"""One question through choice, search and selection; what was added is measured for who wants to know it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mio_rag.context import TokenCounter
from mio_rag.control.bandit.chooser import Choice, Chooser, Seen
from mio_rag.errors import InfeasibleError
from mio_rag.generation import Generator
from mio_rag.learning.contribution import Contributions, Values, contributions, sets_to_compare
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Budget, Limits
from mio_rag.session.costs import Costs
from mio_rag.session.search import Searched, SearchSettings, check_search, search
from mio_rag.session.state import State
from mio_rag.session.strategies import make_strategies
from mio_rag.types import Question


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
        branch = None
        if self.generator is not None:
            limits = Limits(tokens=self.settings.tokens * len(choice.strategies))
            branch = Budget(self.generator, limits).branch()
            branch.costs = account
        searched = search(
            question,
            self.retriever,
            self.generator,
            choice.strategies,
            self.settings,
            weights=choice.weights,
            branch=branch,
            alone=sets_to_compare(choice.strategies, choice.base) if self.chooser.learns else (),
        )
        with account.part("select"):
            selection = self.selector.select(searched.pool, budget_tokens, counter)
        if self.chooser.learns:
            with account.part("learn"):
                added = None
                if selection.result.x is not None:
                    added = measured(self.selector, searched, choice, budget_tokens, counter)
                read = None if selection.result.x is None else selection
                spent = {one.strategy: one.amount for one in searched.tried}
                self.chooser.learn(choice, Seen(searched, read, added, spent))
        if selection.result.x is None:
            raise InfeasibleError(selection.explain())
        return PipelineResult(choice, searched, selection)


def measured(
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
    values = Values(selector, pool, searched.alone, budget_tokens, counter)
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


@dataclass(frozen=True, eq=False)
class StrategyLearner:
    """Tells a bandit what came of the strategies that it chose; as `mio_rag.session.state.Learner`."""

    chooser: Chooser
    selector: Selector

    def learn(self, state: State) -> None:
        """Record what each strategy added to what was read, once a question."""
        found = next((r for r in state.results.values() if "searched" in r.facts), None)
        read = next((r.value for r in state.results.values() if r.action.do == "select"), None)
        if found is None or not isinstance(read, Selection):
            return
        choice: Choice = state.once("search", lambda: Choice("", ()))
        searched: Searched = found.facts["searched"]
        counter = None if state.retriever is None else state.retriever.counter
        program = self.selector.replace(token_price=max(state.price, self.selector.token_price))
        added = measured(program, searched, choice, state.budget, counter)
        spent = {one.strategy: one.amount for one in searched.tried}
        self.chooser.learn(choice, Seen(searched, read, added, spent))

    def close(self) -> None:
        """Close the log of the bandit."""
        close = getattr(self.chooser, "close", None)
        if close is not None:
            close()
