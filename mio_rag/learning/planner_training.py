"""Train a planner on a table of outcomes, and judge it against the fixed workflows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mio_rag import __version__
from mio_rag.errors import InputError
from mio_rag.learning.outcomes import Outcomes, mixtures, read_collected
from mio_rag.learning.planner_tree import Tree

if TYPE_CHECKING:
    from mio_rag.learning.planner import Planner
    from mio_rag.learning.planner_tree import Encoder, QuestionFeatures
    from mio_rag.learning.ppo import PPOSettings
    from mio_rag.session.workflow import Workflow

from mio_rag.learning.experience import Experience, FloatArray, IntArray, experience_of, fit_regression

# -- comparison with fixed workflows ------------------------------------------------------------------------

_CELLS = 500_000  # of an array of draws by questions


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
        """Plain data."""
        return asdict(self)


def judged(
    name: str, experience: Experience, chosen: IntArray, alpha: float, *, draws: int = 2000, seed: int = 0
) -> Point:
    """A choice of a workflow for each question, against the best mixture of fixed ones at equal cost.

    The interval is a bootstrap over questions: each draw has a mixture of its own.
    """
    rows = np.arange(len(experience))
    quality, cost = experience.quality[rows, chosen], experience.cost[rows, chosen]
    means = experience.quality.mean(axis=0), experience.cost.mean(axis=0)
    fixed = float(mixtures(means[0][None], means[1][None], cost.mean(keepdims=True))[0])
    rng = np.random.default_rng(seed)
    gains = np.concatenate(
        [
            _gains(experience, quality, cost, rng.integers(len(rows), size=(some, len(rows))))
            for some in _portions(draws, len(rows))
        ]
    )
    low, high = np.quantile(gains, [0.025, 0.975])
    names = [workflow.name for workflow in experience.tree.workflows]
    shares = {n: float((chosen == k).mean()) for k, n in enumerate(names) if (chosen == k).any()}
    return Point(
        name, alpha, float(quality.mean()), float(cost.mean()), float((quality - alpha * cost).mean()),
        fixed, float(quality.mean()) - fixed, float(low), float(high), shares,
    )  # fmt: skip


def _portions(draws: int, questions: int) -> list[int]:
    """How many draws at a time: as many as some megabytes hold."""
    most = max(1, _CELLS // max(1, questions))
    return [min(most, draws - start) for start in range(0, draws, most)]


def _gains(experience: Experience, quality: FloatArray, cost: FloatArray, at: IntArray) -> FloatArray:
    """Quality less that of the mixture, on every draw of questions; `at` has shape (draws, n)."""
    draws, n = at.shape
    cells = (at + n * np.arange(draws)[:, None]).ravel()
    weights = np.bincount(cells, minlength=draws * n).reshape(draws, n) / n
    mixed = mixtures(weights @ experience.quality, weights @ experience.cost, weights @ cost)
    return np.asarray(weights @ quality - mixed, dtype=np.float64)


def frontier(planner: Planner, experience: Experience, alphas: Sequence[float]) -> list[Point]:
    """A planner at every price that it may be asked for."""
    allowed = [a for a in alphas if not planner.alphas or planner.alphas[0] <= a <= planner.alphas[-1]]
    return [judged("planner", experience, planner.replay(experience, alpha), alpha) for alpha in allowed]


def fixed_points(experience: Experience, alpha: float) -> list[Point]:
    """Every workflow on every question, and whoever knows each question's best."""
    points = [
        judged(workflow.name, experience, np.full(len(experience), k, dtype=np.intp), alpha, draws=200)
        for k, workflow in enumerate(experience.tree.workflows)
    ]
    oracle = np.argmax(experience.quality - alpha * experience.cost, axis=1).astype(np.intp)
    return [*points, judged("oracle", experience, oracle, alpha, draws=200)]


# -- training -----------------------------------------------------------------------------------------------

#: How a planner may learn.
METHODS = ("regression", "ppo")


@dataclass(frozen=True, eq=False)
class Table:
    """Outcomes with all that policies look at.

    rows: with every workflow's steps.
    workflows: in the order of the actions.
    vectors: shape (n, d); embeddings of the questions.
    embedder: fingerprint of what made them.
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

    files: of workflows that are not named ones.

    Raises `InputError` if the folder holds no table, or workflows that are not known here or have changed
    since.
    """
    from mio_rag.session.workflow import find_workflow

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

    Raises `InputError` if it does not say which these are.
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

    Raises `InputError` for unknown methods, modes and costs, and too few questions.
    """
    from mio_rag.learning.planner import Planner, RegressionScorer
    from mio_rag.learning.planner_tree import QuestionFeatures
    from mio_rag.learning.ppo import PPOSettings, train_ppo
    from mio_rag.session.models import COSTS

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
