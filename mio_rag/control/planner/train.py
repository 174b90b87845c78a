"""From a folder of outcomes to a planner: which questions teach, which test, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag import __version__
from mio_rag.control.outcomes import Outcomes
from mio_rag.control.planner.collect import read_collected
from mio_rag.control.planner.experience import Experience, experience_of
from mio_rag.control.planner.features import Encoder, QuestionFeatures
from mio_rag.control.planner.money import COSTS
from mio_rag.control.planner.named import find_workflow
from mio_rag.control.planner.policy import Planner, RegressionScorer
from mio_rag.control.planner.ppo import PPOSettings, train_ppo
from mio_rag.control.planner.regression import fit_regression
from mio_rag.control.planner.tree import Tree
from mio_rag.control.planner.workflow import Workflow
from mio_rag.errors import InputError

__all__ = ["METHODS", "Table", "never_seen", "read_table", "split_of", "train_planner"]

#: How a planner may learn.
METHODS = ("regression", "ppo")


@dataclass(frozen=True, eq=False)
class Table:
    """Outcomes with all that policies look at.

    Parameters
    ----------
    outcomes : Outcomes
    rows : list of dict
        With every workflow's steps.
    workflows : tuple of Workflow
        In the order of the actions.
    vectors : array, shape (n, d)
        Embeddings of the questions.
    embedder : str
        Fingerprint of what made them.
    """

    outcomes: Outcomes
    rows: Sequence[Mapping[str, Any]]
    workflows: tuple[Workflow, ...]
    vectors: NDArray[np.float32]
    embedder: str

    def experience(
        self, tree: Tree, features: QuestionFeatures, places: NDArray[np.intp], unit: float, cost: str
    ) -> Experience:
        """The experience of the questions at these places."""
        ids = [self.outcomes.ids[i] for i in places]
        texts = [self.outcomes.questions[i] for i in places]
        seen = features.of(texts, self.vectors[places])
        return experience_of(tree, self.rows, ids, seen, cost=cost, unit=unit)

    def where(self, places: NDArray[np.intp]) -> Table:
        """The table of the questions at these places."""
        return replace(self, outcomes=self.outcomes.where(places), vectors=self.vectors[places])


def read_table(folder: Path, embedder: Encoder, files: Sequence[str] = ()) -> Table:
    """What `collect_outcomes` wrote, with the embeddings of its questions.

    Parameters
    ----------
    files : sequence of str
        Of workflows that are not named ones.

    Raises
    ------
    InputError
        If the folder holds no table, or workflows that are not known here or have changed since.
    """
    outcomes, rows = read_collected(folder)
    given = {workflow.name: workflow for workflow in map(find_workflow, files)}
    hashes = outcomes.provenance.get("workflows", {})
    workflows, problems = [], []
    for name in outcomes.actions:
        try:
            workflow = given[name] if name in given else find_workflow(name)
        except InputError as error:
            problems.append(f"{error} (--workflow-file)")
            continue
        if hashes.get(name) != workflow.sha256:
            problems.append(f"workflow '{name}' is not what it was when '{folder}' was made: make it anew")
        workflows.append(workflow)
    if problems:
        raise InputError(problems)
    vectors = np.asarray(embedder.encode(list(outcomes.questions)), dtype=np.float32)
    return Table(outcomes, rows, tuple(workflows), vectors, embedder.fingerprint)


def split_of(outcomes: Outcomes, test: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of questions to learn from and of questions held out; of every set the same share.

    A question goes by a hash of its id, so that it stays on its side as the table grows.
    """
    drawn = np.array([_share(name, seed) for name in outcomes.ids])
    sets = np.array(outcomes.sets or ("",) * len(outcomes))
    held = np.zeros(len(outcomes), dtype=bool)
    for name in np.unique(sets):
        held |= (sets == name) & (drawn < test)
    return np.flatnonzero(~held), np.flatnonzero(held)


def never_seen(outcomes: Outcomes, planner: Planner) -> NDArray[np.intp]:
    """Places of the questions that a planner has not learned from, by their ids.

    Raises
    ------
    InputError
        If it does not say which these are.
    """
    if "learned_from" not in planner.about:
        raise InputError("the planner does not say which questions it has learned from: give --all")
    known = set(planner.about["learned_from"])
    return np.flatnonzero([_short(name) not in known for name in outcomes.ids])


def _short(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:16]


def _share(name: str, seed: int) -> float:
    return int(sha256(f"{seed}:{name}".encode()).hexdigest()[:12], 16) / 16**12


@dataclass(frozen=True, eq=False)
class Made:
    """A planner, and how its training went."""

    planner: Planner
    curve: list[tuple[int, float, float, float]] = field(default_factory=list)


def train_planner(
    table: Table,
    places: NDArray[np.intp],
    *,
    method: str = "regression",
    mode: str = "once",
    cost: str = "tokens",
    ppo: PPOSettings | None = None,
    checkpoint: Path | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Made:
    """Learn from the questions at these places.

    A cost of 1 is what `plain` costs on average there; of tables without `plain`, what the dearest workflow
    costs.

    Raises
    ------
    InputError
        For unknown methods, modes and costs, and too few questions.
    """
    problems = [
        f"{what} '{given}' is unknown: choose {', '.join(known)}"
        for what, given, known in (("method", method, METHODS), ("cost", cost, COSTS))
        if given not in known
    ]
    if problems:
        raise InputError(problems)
    outcomes = table.outcomes.where(places)
    means = outcomes.of(cost).mean(axis=0)
    names = list(outcomes.actions)
    unit = float(means[names.index("plain")] if "plain" in names else means.max())
    if unit <= 0:
        raise InputError(f"no workflow costs any {cost}: there is nothing to trade against quality")
    features = QuestionFeatures.fit(outcomes.questions, table.vectors[places])
    tree = Tree(table.workflows, mode)
    experience = table.experience(tree, features, places, unit, cost)
    about = {
        "questions": len(places),
        "learned_from": sorted(_short(name) for name in outcomes.ids),
        "rows_sha256": str(table.outcomes.provenance.get("rows_sha256", "")),
        "generator": str(table.outcomes.provenance.get("generator", "")),
        "budget_tokens": table.outcomes.provenance.get("budget_tokens"),
        "versions": {"mio-rag": __version__, "numpy": np.__version__},
    }
    curve: list[tuple[int, float, float, float]] = []
    alphas: tuple[float, ...] = ()
    if method == "regression":
        fitted = fit_regression(experience)
        scorer: Any = RegressionScorer(fitted)
        about |= {"report": fitted.report}
    else:
        settings = ppo or PPOSettings()
        trained = train_ppo(experience, settings, checkpoint=checkpoint, progress=progress)
        scorer, curve, alphas = trained.network, trained.curve, settings.alphas
        about |= {"seed": settings.seed, "updates": len(curve), "held_out_reward": trained.best}
    planner = Planner(tree, features, scorer, method, unit, alphas, table.embedder, cost, about)
    return Made(planner, curve)
