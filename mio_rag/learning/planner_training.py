"""Train a planner on a table of outcomes, and compare it with the fixed workflows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mio_rag.defaults import __version__
from mio_rag.errors import InputError
from mio_rag.learning.outcomes import Outcomes, gain_over_mixtures, read_collected
from mio_rag.learning.planner import (
    CostWeights,
    Encoder,
    IntArray,
    Network,
    Planner,
    QuestionFeatures,
    Regression,
    Tree,
)
from mio_rag.learning.planner_regression import Experience, experience_of, fit_regression
from mio_rag.learning.ppo import PPOSettings, train_ppo
from mio_rag.session.workflow import Workflow, find_workflow
from mio_rag.settings import Settings

Curve = list[tuple[int, float, float, float, float]]


class Training(Settings):
    """How a planner learns: the table [training] of a policy."""

    workflows: tuple[str, ...] = ()
    """Names or JSON files of what it chooses among; by default all named ones."""
    method: Literal["regression", "ppo"] = "regression"
    """By regression on a table of outcomes, or by proximal policy optimisation."""
    mode: Literal["once", "again"] = "once"
    """Choose a workflow once, or look after every step."""
    cost: Literal["tokens", "dollars"] = "tokens"
    """What is counted."""
    weights: CostWeights = CostWeights()
    """What a cost is made of."""
    ppo: PPOSettings = PPOSettings()
    """With ppo: how."""


# -- comparison with fixed workflows ------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A policy at a price, on n questions.

    quality, cost, reward: means; cost in its unit, reward = quality - alpha * cost.
    fixed: quality of the best mixture of fixed workflows at this cost.
    gain: quality less that; `low` and `high` are its 95 % interval over questions.
    shares: how often each workflow was chosen.
    """

    name: str
    alpha: float
    quality: float
    cost: float
    reward: float
    fixed: float
    gain: float
    low: float
    high: float
    shares: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def judged(name: str, experience: Experience, chosen: IntArray, alpha: float, *, draws: int = 2000) -> Point:
    """Compare a choice of a workflow for each question with the best mixture of fixed ones at equal cost."""
    rows, names = np.arange(len(experience)), [workflow.name for workflow in experience.tree.workflows]
    quality, cost = (float(a[rows, chosen].mean()) for a in (experience.quality, experience.cost))
    gain, low, high = gain_over_mixtures(experience.quality, experience.cost, chosen, draws=draws)
    shares = {name: float((chosen == k).mean()) for k, name in enumerate(names) if (chosen == k).any()}
    reward = float(experience.reward(chosen, alpha).mean())
    return Point(name, alpha, quality, cost, reward, quality - gain, gain, low, high, shares)


def frontier(planner: Planner, experience: Experience, alphas: Sequence[float]) -> list[Point]:
    """Return a planner at every price that it may be asked for."""
    asked = [a for a in alphas if not planner.alphas or planner.alphas[0] <= a <= planner.alphas[-1]]
    return [judged("planner", experience, planner.choices(experience.observed, a), a) for a in asked]


def fixed_points(experience: Experience, alpha: float) -> list[Point]:
    """Return every workflow on every question, and the oracle that knows each question's best."""
    n, rewards = len(experience), experience.quality - alpha * experience.cost
    choices = {one.name: np.full(n, k) for k, one in enumerate(experience.tree.workflows)}
    choices["oracle"] = np.argmax(rewards, axis=1)
    return [judged(name, experience, chosen, alpha, draws=200) for name, chosen in choices.items()]


# -- training -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """Outcomes with all that policies look at.

    rows: with every workflow's steps.
    vectors: shape (n, d); embeddings of the questions, by the embedder of that fingerprint.
    """

    outcomes: Outcomes
    rows: Sequence[Mapping[str, Any]]
    workflows: tuple[Workflow, ...]
    vectors: NDArray[np.float32]
    embedder: str

    def experience(
        self,
        tree: Tree,
        features: QuestionFeatures,
        places: IntArray,
        unit: float,
        cost: str,
        weights: CostWeights | None = None,
    ) -> Experience:
        """Return the experience of the questions at these places."""
        ids = [self.outcomes.ids[i] for i in places]
        looked = features.of([self.outcomes.questions[i] for i in places], self.vectors[places])
        return experience_of(tree, self.rows, ids, looked, cost=cost, unit=unit, weights=weights)


def read_table(folder: Path, embedder: Encoder, files: Sequence[str] = ()) -> Table:
    """Return what `collect_outcomes` wrote, with the embeddings of its questions.

    files: of workflows that are not named ones.

    Raises `InputError` if the folder holds no table, or workflows that are unknown here or have changed.
    """
    outcomes, rows = read_collected(folder)
    given = {workflow.name: workflow for workflow in map(find_workflow, files)}
    workflows, problems = [], []
    for name in outcomes.actions:
        try:
            workflow = given[name] if name in given else find_workflow(name)
        except InputError as error:
            problems.append(f"{error} (--workflows)")
            continue
        if outcomes.provenance["workflows"].get(name) != workflow.sha256:
            problems.append(f"workflow '{name}' is not what it was when '{folder}' was made: make it anew")
        workflows.append(workflow)
    if problems:
        raise InputError(problems)
    vectors = np.asarray(embedder.encode(list(outcomes.questions)), dtype=np.float32)
    return Table(outcomes, rows, tuple(workflows), vectors, embedder.fingerprint)


def split_of(outcomes: Outcomes, test: float, seed: int) -> tuple[IntArray, IntArray]:
    """Return places of questions to learn from and of a share `test` that is held out.

    A question goes by a hash of its id, so that it stays on its side as the table grows.
    """
    held = np.array([int(_short(f"{seed}:{name}")[:12], 16) / 16**12 for name in outcomes.ids]) < test
    return np.flatnonzero(~held), np.flatnonzero(held)


def never_seen(outcomes: Outcomes, planner: Planner) -> IntArray:
    """Return places of the questions that a planner has not learned from, by their ids.

    Raises `InputError` if its file does not list them.
    """
    if "learned_from" not in planner.about:
        raise InputError("the planner does not list the questions that it has learned from: give --all")
    known = set(planner.about["learned_from"])
    return np.flatnonzero([_short(name) not in known for name in outcomes.ids])


def _short(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:16]


def train_planner(
    table: Table,
    places: IntArray,
    how: Training,
    progress: Callable[[int, float], None] | None = None,
) -> tuple[Planner, Curve]:
    """Learn from the questions at these places; of PPO return its curve, too.

    A cost of 1 is what `plain` costs on average there; of tables without `plain`, what the most expensive
    workflow costs.

    Raises `InputError` for too few questions.
    """
    cost = how.cost
    outcomes, about = table.outcomes.where(places), table.outcomes.provenance
    means = dict(zip(outcomes.actions, outcomes.of(cost).mean(axis=0).tolist(), strict=True))
    unit = means.get("plain", max(means.values()))
    if unit <= 0:
        raise InputError(f"no workflow costs any {cost}: there is nothing to trade against quality")
    features = QuestionFeatures.fit(outcomes.questions, table.vectors[places])
    tree = Tree(table.workflows, how.mode)
    experience = table.experience(tree, features, places, unit, cost, how.weights)
    origin: dict[str, Any] = {
        "questions": len(places),
        "learned_from": sorted(map(_short, outcomes.ids)),
        "rows_sha256": str(about.get("rows_sha256", "")),
        "generator": str(about.get("generator", "")),
        "budget_tokens": about.get("budget_tokens"),
        "versions": {"mio-rag": __version__, "numpy": np.__version__},
    }
    curve, alphas = Curve(), tuple[float, ...]()
    scorer: Regression | Network
    if how.method == "regression":
        scorer = fit_regression(experience)
        origin["report"] = scorer.report
    else:
        settings = how.ppo
        trained = train_ppo(experience, settings, progress)
        scorer, curve, alphas = trained.network, trained.curve, settings.alphas
        origin |= {"seed": settings.seed, "updates": len(curve), "held_out_reward": trained.best}
    made = (tree, features, scorer, how.method, unit, alphas, table.embedder, cost, origin, how.weights)
    return Planner(*made), curve
