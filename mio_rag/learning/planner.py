"""A learned planner: what it chooses among and sees, how it decides; its file, and replays of its traces.

Workflows that begin with the same steps form a tree, which parts where they differ. *Plan once* decides at
the root for a whole workflow. *Plan again after every step* goes down step by step, and sees what the steps
before gave. Deciding takes numpy alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import DataError, InputError
from mio_rag.learning.weights import Weights, read_weights, write_weights
from mio_rag.session.models import dollars, workflow_settings
from mio_rag.session.trace import Step, Trace, wrong_totals
from mio_rag.session.workflow import Workflow, inner_hashes

if TYPE_CHECKING:
    from mio_rag.learning.planner_regression import Experience

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

KIND, VERSION = "planner", 2
MODES = ("once", "again")

#: The price without another: a plain answer's cost must bring a tenth of a point of F1 or more.
DEFAULT_ALPHA = 0.1
_SHARPNESS = 20.0  # logits for a predicted utility of 1: of two steps .05 apart the better is taken by 73 %
_TIE = 1e-9  # price that chooses the cheapest of workflows that are alike
_SAME = 1e-6


# -- what it sees --------------------------------------------------------------------------------------------

_KINDS = ("who", "what", "when", "where", "which", "how many", "how", "why")
_YES_NO = re.compile(r"^(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b", re.I)
_COMPARED = re.compile(
    r"\b(?:both|either|same|older|younger|earlier|later|longer|larger|more|less|first|than|between)\b", re.I
)
_NESTED = re.compile(r"\bof\b|'s\b|\bthat\b|\bwho\b|\bwhose\b|\bwhere\b|\bin which\b", re.I)
#: Names of what `wording` counts, in order.
WORDING = (
    "words",
    "names",
    "digits",
    "commas",
    "quotes",
    "compared",
    "nested",
    "yes_no",
    *(f"asks {kind}" for kind in _KINDS),
)


def wording(question: str) -> FloatArray:
    """Return cheap signals of a question's text, shape (len(WORDING),), each roughly in [0, 3]."""
    words = question.split()
    lower = question.lower()
    names = sum(word[:1].isupper() for word in words[1:])
    first = next((kind for kind in _KINDS if re.search(rf"\b{kind}\b", lower)), None)
    return np.array(
        [
            len(words) / 10,
            names / 3,
            sum(any(c.isdigit() for c in word) for word in words) / 2,
            question.count(",") / 2,
            (question.count('"') + question.count("\u201c")) / 2,
            float(bool(_COMPARED.search(lower))),
            len(_NESTED.findall(lower)) / 2,
            float(bool(_YES_NO.search(lower))),
            *(float(kind == first) for kind in _KINDS),
        ]
    )


class Encoder(Protocol):
    """What makes vectors of questions: an index's embedder, or `mio_rag.generation.gguf.HiddenStates`."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the vectors could."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit rows, shape (len(texts), d)."""
        ...


@dataclass(frozen=True, eq=False)
class QuestionFeatures:
    """From a question to numbers of mean 0 and deviation 1 over the questions that it was fitted on.

    center: shape (d,); mean embedding.
    axes: shape (d, k); principal axes of embeddings; k may be 0.
    mean, scale: shape (len(WORDING) + k,); of the raw features.
    """

    center: FloatArray
    axes: FloatArray
    mean: FloatArray
    scale: FloatArray

    @classmethod
    def fit(cls, texts: Sequence[str], vectors: ArrayLike, axes: int = 16) -> QuestionFeatures:
        """Fit on training questions.

        vectors: shape (n, d); their embeddings.
        axes: most principal axes that are kept; never more than a quarter of the questions.

        Raises `InputError` if texts and vectors do not fit together.
        """
        given = np.asarray(vectors, dtype=np.float64)
        if given.ndim != 2 or len(given) != len(texts) or not len(texts):
            raise InputError(
                f"{len(texts)} questions have embeddings of shape {given.shape}: give one row each"
            )
        center = given.mean(axis=0)
        _, _, rows = np.linalg.svd(given - center, full_matrices=False)
        kept = max(0, min(axes, len(texts) // 4, len(rows)))
        directions = rows[:kept].T
        raw = np.hstack([np.array([wording(text) for text in texts]), (given - center) @ directions])
        scale = raw.std(axis=0)
        return cls(center, directions, raw.mean(axis=0), np.where(scale > 1e-9, scale, 1.0))

    def __len__(self) -> int:
        return len(self.mean)

    def of(self, texts: Sequence[str], vectors: ArrayLike) -> FloatArray:
        """Return features, shape (n, len(self)), cut at four deviations."""
        given = np.asarray(vectors, dtype=np.float64)
        raw = np.hstack([np.array([wording(text) for text in texts]), (given - self.center) @ self.axes])
        return np.asarray(np.clip((raw - self.mean) / self.scale, -4, 4), dtype=np.float64)


#: What is seen of the executors so far: executor.signal -> divided by.
SEEN: Mapping[str, float] = {
    "retrieve.top": 1.0,
    "retrieve.gap": 0.2,
    "retrieve.fall": 0.5,
    "select.best": 1.0,
    "select.expected": 2.0,
    "select.read": 4.0,
    "answer.logprob": 1.0,
    "answer.lowest": 3.0,
    "answer.first": 1.0,
    "answer.unknown": 1.0,
    "answer.words": 10.0,
    "decompose.parts": 3.0,
    "each.unknown": 1.0,
    "summarise.logprob": 1.0,
}


def seen(steps: Sequence[tuple[str, Mapping[str, float], bool]]) -> FloatArray:
    """Return the last signals of executors and how many failed, shape (len(SEEN) + 1,)."""
    found = {f"{do}.{name}": value for do, signals, _ in steps for name, value in signals.items()}
    values = [float(np.clip(found.get(name, 0.0) / unit, -4, 4)) for name, unit in SEEN.items()]
    return np.array([*values, float(sum(dropped for *_, dropped in steps))])


def observation(question: FloatArray, seen_: FloatArray, spent: float) -> FloatArray:
    """Return what a policy is given besides the price: the question, signals so far, and cost so far."""
    return np.concatenate([question, seen_, [min(spent, 8.0) / 2]])


# -- what it chooses among -----------------------------------------------------------------------------------


@dataclass
class Branch:
    """A place in the tree.

    place: its number; the root is 0.
    node: workflow and position of the node that leads here; None: the root, or the end of a workflow.
    leaves: workflows that can still be reached.
    ends: the workflow that has ended here.
    """

    place: int
    parent: int
    node: tuple[int, int] | None
    leaves: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    ends: int | None = None


class Tree:
    """The decisions between workflows.

    workflows: all different.
    mode: "once", "again".

    Raises `InputError` for another mode, no workflows, or two that are the same.
    """

    def __init__(self, workflows: Sequence[Workflow], mode: str) -> None:
        if mode not in MODES:
            raise InputError(f"mode '{mode}' is unknown: choose {', '.join(MODES)}")
        if not workflows:
            raise InputError("there are no workflows to choose from: give at least one")
        self.workflows, self.mode = tuple(workflows), mode
        self.signatures = [workflow.signatures() for workflow in workflows]
        root = Branch(0, -1, None, list(range(len(workflows))))
        self.branches = [root]
        if mode == "once":
            for leaf in root.leaves:
                self._add(root, None, leaf).ends = leaf
        else:
            self._grow(root, 0)

    def _add(self, parent: Branch, node: tuple[int, int] | None, *leaves: int) -> Branch:
        child = Branch(len(self.branches), parent.place, node, list(leaves))
        self.branches.append(child)
        parent.children.append(child.place)
        return child

    def _grow(self, branch: Branch, depth: int) -> None:
        following: dict[str, list[int]] = {}
        for leaf in branch.leaves:
            signed = self.signatures[leaf]
            following.setdefault(signed[depth] if depth < len(signed) else "", []).append(leaf)
        for signature, leaves in following.items():
            if signature:
                self._grow(self._add(branch, (leaves[0], depth), *leaves), depth + 1)
            elif len(leaves) > 1:
                names = ", ".join(self.workflows[leaf].name for leaf in leaves)
                raise InputError(f"workflows {names} run the same nodes in the same order: keep one")
            else:
                self._add(branch, None, *leaves).ends = leaves[0]

    @property
    def decisions(self) -> list[int]:
        """Places where there is something to decide."""
        return [branch.place for branch in self.branches if len(branch.children) > 1]

    def mask(self) -> NDArray[np.bool_]:
        """Return which workflows can still be reached from each place, shape (places, workflows)."""
        found = np.zeros((len(self.branches), len(self.workflows)), dtype=bool)
        for branch in self.branches:
            found[branch.place, branch.leaves] = True
        return found


# -- how it decides ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Regression:
    """Predictions of quality and cost of whole workflows, at every place where there is something to decide.

    mean, scale: shape (p, d); of what is seen at each place.
    weights: shape (2, p, d, m); of quality and cost.
    bias: shape (2, p, m).
    gates: shape (p, d + 1, s); how much a question looks as if it came from each of s sets: weights, and a
        constant in the last row.
    experts: shape (p, s, m); what is added to the quality of every workflow for questions that look like
        those of a set.
    mask: shape (p, m); workflows that can still be reached.
    """

    mean: FloatArray
    scale: FloatArray
    weights: FloatArray
    bias: FloatArray
    gates: FloatArray
    experts: FloatArray
    mask: NDArray[np.bool_]
    report: dict[str, float] = field(default_factory=dict)

    def predicted(self, observed: FloatArray, place: int) -> tuple[FloatArray, FloatArray]:
        """Return quality and cost of every workflow, each of shape (..., m)."""
        x = (observed - self.mean[place]) / self.scale[place]
        quality, cost = (x @ self.weights[k, place] + self.bias[k, place] for k in (0, 1))
        likely = np.argmax(x @ self.gates[place, :-1] + self.gates[place, -1], axis=-1)
        return quality + self.experts[place, likely], np.maximum(cost, 0.0)

    def worth(self, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Return quality less alpha times cost, shape (..., m); -inf for what can no longer be reached."""
        quality, cost = self.predicted(observed, place)
        return np.where(self.mask[place], quality - max(alpha, _TIE) * cost, -np.inf)


class Scorer(Protocol):
    """Decides at the places of a tree."""

    def scores(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Return a score of every child of a place, shape (n, children)."""
        ...


@dataclass(frozen=True, eq=False)
class RegressionScorer:
    """Scores of a `Regression`: a child is worth as much as the best workflow behind it."""

    regression: Regression

    def scores(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Return the predicted utility of every child, shape (n, children)."""
        worth = self.regression.worth(observed, place, alpha)
        children = [tree.branches[child].leaves for child in tree.branches[place].children]
        return np.stack([worth[:, leaves].max(axis=1) for leaves in children], axis=1)


@dataclass(frozen=True, eq=False)
class Network:
    """A small network with tanh layers; its outputs are places of the tree.

    layers: of shapes (d_in, d_out) and (d_out,); the first takes what is seen, the place and alpha.
    prior: what the outputs are a correction of.
    """

    layers: Sequence[tuple[FloatArray, FloatArray]]
    prior: RegressionScorer | None = None

    def logits(self, x: FloatArray) -> FloatArray:
        """Return the outputs, shape (n, places)."""
        for weights, bias in self.layers[:-1]:
            x = np.tanh(x @ weights + bias)
        weights, bias = self.layers[-1]
        return x @ weights + bias

    def scores(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Return probabilities of the children of a place, shape (n, children)."""
        logits = self.logits(network_input(tree, observed, np.full(len(observed), place), alpha))
        chosen = logits[:, tree.branches[place].children]
        chosen = chosen + self.prior_logits(tree, observed, place, alpha)
        powers = np.exp(chosen - chosen.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float64)

    def prior_logits(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray | float:
        """Return what is added to the outputs for the children of a place; without a prior 0."""
        return 0.0 if self.prior is None else _SHARPNESS * self.prior.scores(tree, observed, place, alpha)


def network_input(
    tree: Tree, observed: FloatArray, places: IntArray, alpha: float | FloatArray
) -> FloatArray:
    """Return what a network is given: what is seen, where in the tree, and the price."""
    where = np.zeros((len(observed), len(tree.branches)))
    where[np.arange(len(observed)), places] = 1.0
    price = np.broadcast_to(np.asarray(alpha, dtype=np.float64), (len(observed),))
    return np.hstack([observed, where, np.sqrt(price)[:, None] * 2])


@dataclass(frozen=True, eq=False)
class Planner:
    """A policy over workflows.

    alphas: prices that it was trained for, rising; between them it may be asked too. Empty: any price.
    unit: how much of `cost` counts as 1.
    cost: what is counted.
    embedder: fingerprint of what embeds questions; blank: none is needed.
    about: where it comes from.
    """

    tree: Tree
    features: QuestionFeatures
    scorer: Scorer
    method: str
    unit: float
    alphas: tuple[float, ...] = ()
    embedder: str = ""
    cost: str = "tokens"
    about: Mapping[str, Any] = field(default_factory=dict)

    def checked_alpha(self, alpha: float | None) -> float:
        """Return the price to decide at; by default the one it was trained for, or else `DEFAULT_ALPHA`.

        Raises `InputError` for a wrong price, or one that it was not trained for.
        """
        if alpha is None:
            if len(self.alphas) == 1:
                return self.alphas[0]
            if not self.alphas or self.alphas[0] <= DEFAULT_ALPHA <= self.alphas[-1]:
                return DEFAULT_ALPHA
            span = f"{self.alphas[0]:g} to {self.alphas[-1]:g}"
            raise InputError(f"this planner was trained for prices from {span}: give a price")
        if not 0 <= alpha < math.inf:
            raise InputError(f"alpha={alpha!r} must be finite and >= 0")
        if self.alphas and not self.alphas[0] - 1e-9 <= alpha <= self.alphas[-1] + 1e-9:
            span = " to ".join(f"{a:g}" for a in dict.fromkeys((self.alphas[0], self.alphas[-1])))
            raise InputError(f"alpha={alpha:g}: this planner was trained for {span}; train one for it")
        return float(alpha)

    def choose(self, observed: FloatArray, place: int, alpha: float) -> tuple[int, FloatArray]:
        """Return the child to go to from a place, and the scores of all children."""
        children = self.tree.branches[place].children
        if len(children) == 1:
            return children[0], np.ones(1)
        scores = self.scorer.scores(self.tree, observed[None, :], place, alpha)[0]
        return children[int(np.argmax(scores))], scores

    def replay(self, experience: Experience, alpha: float) -> IntArray:
        """Return the workflow that it comes to on each question of a table, shape (n,).

        Raises `InputError` if the table is of other workflows.
        """
        if [w.sha256 for w in experience.tree.workflows] != [w.sha256 for w in self.tree.workflows]:
            raise InputError(
                "this planner was trained for other workflows "
                f"({', '.join(w.name for w in self.tree.workflows)}): train it on this table"
            )
        n = len(experience)
        at, ended = np.zeros(n, dtype=np.intp), np.full(n, -1, dtype=np.intp)
        for branch in self.tree.branches:  # parents come before their children
            here = np.flatnonzero(at == branch.place)
            if branch.ends is not None:
                ended[here] = branch.ends
            elif len(branch.children) == 1:
                at[here] = branch.children[0]
            elif len(here):
                observed = experience.observed[here, branch.place]
                scores = self.scorer.scores(self.tree, observed, branch.place, alpha)
                at[here] = np.array(branch.children)[np.argmax(scores, axis=1)]
        return ended


# -- files --------------------------------------------------------------------------------------------------

_FEATURES = ("center", "axes", "mean", "scale")
_FITTED = ("mean", "scale", "weights", "bias", "gates", "experts")


def _settings(planner: Planner) -> dict[str, Any]:
    return {
        "method": planner.method,
        "mode": planner.tree.mode,
        "alphas": list(planner.alphas),
        "unit": planner.unit,
        "cost": planner.cost,
        "embedder": planner.embedder,
    }


def planner_about(planner: Planner) -> dict[str, Any]:
    """Return what a planner is and what it learned from, as plain data."""
    network = planner.scorer if isinstance(planner.scorer, Network) else None
    return {
        **_settings(planner),
        "workflows": [workflow.name for workflow in planner.tree.workflows],
        "network": network is not None,
        "corrects_a_regression": network is not None and network.prior is not None,
        **{name: value for name, value in planner.about.items() if name != "learned_from"},
    }


def write_planner(planner: Planner, path: Path) -> None:
    """Write a planner to a file, whole or not at all; `InputError` if it cannot be written."""
    arrays: dict[str, NDArray[Any]] = {f"features.{n}": getattr(planner.features, n) for n in _FEATURES}
    scorer: Scorer | None = planner.scorer
    if isinstance(scorer, Network):
        for k, (weights, bias) in enumerate(scorer.layers):
            arrays[f"network.{k}.weights"], arrays[f"network.{k}.bias"] = weights, bias
        scorer = scorer.prior
    if isinstance(scorer, RegressionScorer):
        arrays |= {f"regression.{name}": getattr(scorer.regression, name) for name in _FITTED}
    elif scorer is not None:
        raise InputError(f"a planner that decides by {type(scorer).__name__} cannot be written")
    about = {
        **_settings(planner),
        "workflows": [workflow.to_dict() for workflow in planner.tree.workflows],
        "inner": inner_hashes(planner.tree.workflows),
        "seen": list(SEEN),
        "wording": list(WORDING),
    }
    write_weights(Weights(KIND, VERSION, arrays, about, dict(planner.about)), path)


def read_planner(path: str | Path) -> Planner:
    """Read what `write_planner` wrote.

    Raises `DataError` if there is no such file, it is none of a planner or damaged, or what it was trained
    for has changed.
    """
    given = read_weights(path, KIND, VERSION)
    about, arrays = given.about, given.arrays
    try:
        workflows = [Workflow.from_dict(data) for data in about["workflows"]]
        tree = Tree(workflows, about["mode"])
        prior: RegressionScorer | None = None
        if "regression.bias" in arrays:
            fitted: dict[str, Any] = {name: arrays[f"regression.{name}"] for name in _FITTED}
            prior = RegressionScorer(Regression(**fitted, mask=tree.mask()))
        scorer: Scorer | None = prior
        if about["method"] != "regression":
            depth = sum(name.startswith("network.") and name.endswith(".bias") for name in arrays)
            layers = [(arrays[f"network.{k}.weights"], arrays[f"network.{k}.bias"]) for k in range(depth)]
            scorer = Network(layers, prior)
        if scorer is None:
            raise DataError(f"'{path}' is damaged: its regression is missing")
        now = inner_hashes(workflows)
        changed = [name for name, digest in about["inner"].items() if now.get(name) != digest]
        if changed or about["seen"] != list(SEEN) or about["wording"] != list(WORDING):
            raise DataError(
                f"'{path}' was trained for other workflows or signals ({', '.join(changed) or 'signals'} "
                "changed since): train it anew"
            )
        planner = Planner(
            tree,
            QuestionFeatures(*(np.asarray(arrays[f"features.{n}"], np.float64) for n in _FEATURES)),
            scorer,
            str(about["method"]),
            float(about["unit"]),
            tuple(float(alpha) for alpha in about["alphas"]),
            str(about["embedder"]),
            str(about["cost"]),
            given.provenance,
        )
        _try(planner)
        return planner
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(f"'{path}' is damaged: {error}") from error


def _try(planner: Planner) -> None:
    """Decide once at every place, so that arrays that do not fit together are found when they are read."""
    rising = list(planner.alphas) == sorted(planner.alphas) and all(0 <= a < math.inf for a in planner.alphas)
    if not 0 < planner.unit < math.inf or planner.cost not in ("tokens", "dollars") or not rising:
        raise ValueError(f"unit {planner.unit}, cost '{planner.cost}' or alphas {planner.alphas} cannot be")
    question = planner.features.of(["?"], np.zeros((1, len(planner.features.center))))
    observed = np.hstack([question, np.zeros((1, len(SEEN) + 2))])
    for place in planner.tree.decisions:
        scores = planner.scorer.scores(planner.tree, observed, place, 0.1)
        children = len(planner.tree.branches[place].children)
        if scores.shape != (1, children) or np.isnan(scores).any():
            raise ValueError(f"scores of place {place} have shape {scores.shape}, not (1, {children})")


# -- replay of traces ---------------------------------------------------------------------------------------


def replay(trace: Trace, planner: Planner | None = None, encoder: Encoder | None = None) -> list[str]:
    """Make the decisions of a trace again; return what comes out differently.

    What a planner decided follows from its file, the question, and what executors gave and cost on the way,
    all of which a trace holds. No model is asked, but for the embedding of the question.

    planner: what decided; without it only workflow, nodes and totals are checked.
    encoder: what embeds questions for the planner.

    Raises `InputError` if the planner is not the one that decided: another method, mode or embedder.
    """
    wrong = [*_wrong_nodes(trace), *wrong_totals(trace)]
    if planner is None:
        return wrong
    told = trace.settings.get("planner")
    if told is None:
        raise InputError(f"'{trace.policy}' followed a workflow that was not chosen: there is no planner")
    mine = (planner.method, planner.tree.mode)
    if (told["method"], told["mode"]) != mine:
        raise InputError(
            f"the trace is of a planner by {told['method']}, {told['mode']}; this one is by {mine[0]}, "
            f"{mine[1]}"
        )
    if planner.embedder and (encoder is None or encoder.fingerprint != planner.embedder):
        raise InputError(
            f"the planner looks at embeddings of {planner.embedder}: give an index or embedder of it"
        )
    vectors = np.zeros((1, len(planner.features.center)))
    if planner.embedder and encoder is not None:
        vectors = np.asarray(encoder.encode([trace.question]), dtype=np.float64)
    question = planner.features.of([trace.question], vectors)[0]
    if trace.error is not None and not trace.workflow:
        return wrong  # it failed before it came to a workflow
    alpha = float(told["alpha"])
    try:
        planner.checked_alpha(alpha)
    except InputError as error:
        wrong += error.problems
    return wrong + _wrong_decisions(trace, planner, question, alpha)


def _wrong_nodes(trace: Trace) -> list[str]:
    """Nodes that ran and are none of the workflow's."""
    told = trace.settings.get("planner") or {}
    if not trace.workflow or told.get("mode") == "again":  # there a node goes by the name that it first had
        return []
    try:
        workflow = Workflow.from_dict(trace.workflow)
    except InputError as error:
        return [f"the workflow: {problem}" for problem in error.problems]
    known = {node.id: node for node in workflow.nodes}
    wrong = []
    for step in trace.steps:
        if "/" in step.id or step.id.startswith("fallback"):
            continue
        node = known.get(step.id)
        if node is None:
            wrong.append(f"node '{step.id}' ran, and workflow '{workflow.name}' has none of that name")
        elif node.do != step.do:
            wrong.append(f"node '{step.id}' is to do {node.do}, and did {step.do}")
    return wrong


def _wrong_decisions(trace: Trace, planner: Planner, question: FloatArray, alpha: float) -> list[str]:
    tree, name = planner.tree, str(trace.workflow.get("name", ""))
    starts = [k for k, step in enumerate(trace.steps) if "/" not in step.id]
    ran = [trace.steps[k] for k in starts if not trace.steps[k].id.startswith("fallback")]
    ends = [*starts, len(trace.steps)]  # of what had run before each node, with all inside them
    told: list[tuple[str, Mapping[str, float], bool]] = []
    place, wrong = 0, list[str]()
    while (ended := tree.branches[place].ends) is None:
        done = len(told)
        spent = _spent(trace.steps[: ends[min(done, len(starts))]], planner.cost, trace) / planner.unit
        place, scores = planner.choose(observation(question, seen(told), spent), place, alpha)
        if len(scores) > 1:
            wrong += _wrong_scores(trace, planner, place, scores, done)
        if (at := tree.branches[place].node) is None:
            continue
        node = tree.workflows[at[0]].nodes[at[1]]
        if done >= len(ran) or ran[done].do != node.do:
            did = ran[done].do if done < len(ran) else "nothing"
            return [*wrong, f"decision {done + 1}: the planner gives {node.do}, and {did} was done"]
        told.append((node.do, ran[done].signals, ran[done].dropped is not None))
    if tree.workflows[ended].name != name:
        wrong.append(f"the planner comes to '{tree.workflows[ended].name}', and '{name}' was run")
    return wrong


def _wrong_scores(trace: Trace, planner: Planner, place: int, scores: FloatArray, done: int) -> list[str]:
    tree, given = planner.tree, trace.scores
    if tree.mode == "once":
        names = [tree.workflows[tree.branches[child].leaves[0]].name for child in tree.branches[0].children]
        found = dict(zip(names, scores.tolist(), strict=True))
    else:
        reached = sorted({tree.workflows[leaf].name for leaf in tree.branches[place].leaves})
        found = {f"{done}: {', '.join(reached)}": float(np.max(scores))}
    return [
        f"'{key}' had the score {given.get(key)}, the planner gives {value:.6g}"
        for key, value in found.items()
        if key not in given or abs(given[key] - value) > _SAME * max(1.0, abs(value))
    ]


def _spent(steps: Sequence[Step], cost: str, trace: Trace) -> float:
    """What steps have cost, in the unit of a planner; `InputError` for dollars without a price."""
    if cost == "tokens":
        return float(sum(step.tokens for step in steps))
    found = dollars(steps, workflow_settings(trace.settings))
    if found is None:
        raise InputError(
            "a model that was asked has no price: set models.NAME.input and output for each, and for reader"
        )
    return found
