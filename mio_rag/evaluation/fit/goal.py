"""What is tuned, and what a setting is worth on labelled questions; `mio_rag.evaluation.fit.search` searches.

A setting is worth, by the stated goal, either

    at a budget      mean evidence found  -  0.01 * mean tokens / budget
    at a recall      -mean tokens / budget  -  10 * what is missing to the stated mean recall

so that at a budget tokens settle what recall leaves open, and at a recall the fewest tokens win among the
settings that reach it. Evidence is the gold passages, or the gold documents where only these are known;
recall is the share of it that was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError, SolverError
from mio_rag.measures import evidence_found
from mio_rag.relevance import Labelled, RelevanceModel, fit
from mio_rag.relevance.model import Kind
from mio_rag.relevance.source import Relevance
from mio_rag.selection.selector import Penalty, Selector
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import Status
from mio_rag.types import Question

__all__ = ["VARIED", "Goal", "Reading", "Setting", "readings", "valued_pools"]

FloatArray = NDArray[np.float64]
_INNER_FOLDS = 3
_TIE = 0.01
_MISSING = 10.0


@dataclass(frozen=True)
class Goal:
    """What a good setting is.

    Parameters
    ----------
    budget_tokens : int
        >= 1: the budget, or the largest one where a recall is the goal.
    recall : float or None
        In (0, 1]: the mean evidence to find with the fewest tokens; the budget is then tuned as well.
    """

    budget_tokens: int = 256
    recall: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.budget_tokens < 1:
            problems.append(f"budget_tokens={self.budget_tokens} must be >= 1")
        if self.recall is not None and not 0 < self.recall <= 1:
            problems.append(f"recall={self.recall} must be in (0, 1]")
        if problems:
            raise InputError(problems)

    def worth(self, recall: float, tokens: float) -> float:
        """Of mean recall and mean tokens; larger is better."""
        share = tokens / self.budget_tokens
        if self.recall is None:
            return recall - _TIE * share
        return -share - _MISSING * max(0.0, self.recall - recall)


@dataclass(frozen=True)
class Setting:
    """What tuning may change of a selector; fields as there."""

    redundancy_weight: float
    passage_penalty: Penalty
    token_price: float
    link_benefit: float
    redundancy_by_relevance: bool
    max_per_source: int | None
    budget_tokens: int

    @classmethod
    def of(cls, selector: Selector, budget_tokens: int) -> Setting:
        """As a selector has it."""
        cap = selector.max_per_source
        if cap is not None and not isinstance(cap, int):
            raise InputError("max_per_source must be one number here, the same for every source")
        return cls(
            selector.redundancy_weight,
            selector.passage_penalty,
            selector.token_price,
            selector.link_benefit if not isinstance(selector.link_benefit, str) else 0.0,
            selector.redundancy_by_relevance,
            cap,
            int(budget_tokens),
        )

    def applied(self, selector: Selector) -> Selector:
        """The selector with this setting."""
        return selector.replace(
            redundancy_weight=self.redundancy_weight,
            passage_penalty=self.passage_penalty,
            token_price=self.token_price,
            link_benefit=self.link_benefit,
            redundancy_by_relevance=self.redundancy_by_relevance,
            max_per_source=self.max_per_source,
        )


#: name -> how optuna is asked for it. Zero is a choice of its own: switched off.
_DRAWN: Mapping[str, Callable[[Any], Any]] = {
    "redundancy_weight": lambda t: _on(t, "redundancy_weight", 0.005, 0.5),
    "passage_penalty": lambda t: _on(t, "passage_penalty", 0.002, 0.3),
    "token_price": lambda t: _on(t, "token_price", 1e-5, 1e-3),
    "link_benefit": lambda t: _on(t, "link_benefit", 0.02, 1.0),
    "redundancy_by_relevance": lambda t: t.suggest_categorical("redundancy_by_relevance", [False, True]),
    "max_per_source": lambda t: t.suggest_categorical("max_per_source", [None, 1, 2, 3]),
}
VARIED = tuple(_DRAWN)


def _on(trial: Any, name: str, low: float, high: float) -> float:
    if not trial.suggest_categorical(f"{name}_on", [False, True]):
        return 0.0
    return float(trial.suggest_float(name, low, high, log=True))


def drawn(trial: Any, start: Setting, vary: Sequence[str], goal: Goal) -> Setting:
    """The setting of an optuna trial: what is not varied stays as it was at the start."""
    setting = replace(start, **{name: _DRAWN[name](trial) for name in vary})
    if goal.recall is None:
        return setting
    least = min(32, goal.budget_tokens)
    return replace(
        setting, budget_tokens=trial.suggest_int("budget_tokens", least, goal.budget_tokens, log=True)
    )


def parameters(setting: Setting, vary: Sequence[str], goal: Goal) -> dict[str, Any]:
    """What optuna would have drawn for a setting, for those parts of it that lie in the space."""
    found: dict[str, Any] = {}
    for name in vary:
        value = getattr(setting, name)
        if name in ("redundancy_by_relevance", "max_per_source"):
            found[name] = value
        elif not isinstance(value, str):  # else each pool decides
            found[f"{name}_on"] = value > 0
            if value > 0:
                found[name] = value
    return found if goal.recall is None else found | {"budget_tokens": setting.budget_tokens}


@dataclass(frozen=True)
class Reading:
    """What one question got: the share of its evidence, and what it cost."""

    recall: float
    tokens: float


def readings(
    setting: Setting,
    selector: Selector,
    questions: Sequence[Question],
    pools: Sequence[Candidates],
) -> list[Reading]:
    """What a setting makes of pools that carry their relevance.

    A budget below every passage reads nothing, and so does an infeasible program.

    Raises
    ------
    SolverError
        If the solver broke.
    """
    chooser = setting.applied(selector)
    found = []
    for question, pool in zip(questions, pools, strict=True):
        chosen: list[int] = []
        if len(pool):
            result = solve(chooser.program(pool, setting.budget_tokens), chooser.solver, chooser.options)
            if result.status is Status.ERROR:
                raise SolverError(result.message)
            chosen = [i for i in result.selected if i < len(pool)]
        found.append(Reading(evidence_found(question, pool, chosen), float(pool.tokens[chosen].sum())))
    return found


def valued_pools(
    relevance: Relevance | Kind,
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    train: Sequence[int],
    test: Sequence[int],
    seed: int,
) -> dict[int, Candidates]:
    """Pools with their relevance, by position; a model that is fitted here never values what it saw.

    Parameters
    ----------
    relevance : RelevanceModel, "logistic", "isotonic", "auto", "given" or None
        A kind to be fitted on `train`, or what `Settings.relevance_model` may be.
    train, test : sequences of int
        Positions. Pools of `train` get the predictions of models fitted on the other parts of `train`; those
        of `test`, of the one fitted on all of it.
    """

    def model_of(part: Sequence[int]) -> RelevanceModel:
        assert relevance in ("logistic", "isotonic")
        labelled = [Labelled(pools[i], frozenset(questions[i].gold_ids)) for i in part]
        return fit(labelled, kind=relevance, seed=seed)

    def valued(model: RelevanceModel, part: Sequence[int]) -> dict[int, Candidates]:
        return {i: model.valued(pools[i]) for i in part}

    if relevance != "logistic" and relevance != "isotonic":
        settings = Selector(relevance_model=relevance)
        return {i: settings.valued(pools[i]) for i in (*train, *test)}
    found = valued(model_of(train), test) if len(test) else {}
    for part in np.array_split(np.random.default_rng(seed).permutation(list(train)), _INNER_FOLDS):
        inside = {int(i) for i in part}
        found |= valued(model_of([i for i in train if i not in inside]), sorted(inside))
    return found
