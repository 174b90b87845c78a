"""A learned planner: what it chooses among and sees, how it decides; its file, and replays of its traces.

Workflows that begin with the same steps form a tree, which parts where they differ. *Plan once* decides at
the root for a whole workflow. *Plan again after every step* goes down step by step, and sees what the steps
before gave. Deciding takes numpy alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from mio_rag.errors import DataError, InputError
from mio_rag.learning.weights import Weights, read_weights, write_weights
from mio_rag.session.trace import Trace, wrong_totals
from mio_rag.session.workflow import Workflow, dollars, inner_hashes, workflow_settings
from mio_rag.settings import Settings

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

KIND, VERSION = "planner", 2
MODES = ("once", "again")

#: The price without another: a plain answer's cost must bring a tenth of a point of F1 or more.
DEFAULT_ALPHA = 0.1
_SHARPNESS = 20.0  # logits for a predicted utility of 1: of two steps .05 apart the better is taken by 73 %
_TIE = 1e-9  # price that chooses the cheapest of workflows that are alike
_SAME = 1e-6


class CostWeights(Settings):
    """What a cost is made of."""

    tokens: Annotated[float, Field(ge=0)] = 1.0
    """Weight of tokens (or dollars), in units of a plain answer."""
    turns: Annotated[float, Field(ge=0)] = 0.0
    """Of rounds of sub-questions: each that waits for another one, and one for those side by side."""
    retrieval_calls: Annotated[float, Field(ge=0)] = 0.0
    """Of searches."""

    def total(self, spent: float, turns: float, calls: float, unit: float) -> float:
        """Return the cost, as so many tokens or dollars; of these `unit` count as 1."""
        return self.tokens * spent + unit * (self.turns * turns + self.retrieval_calls * calls)


NO_PRICE = "a model that was asked has no price: set models.NAME.input and output for each, and for reader"


# -- what it sees -------------------------------------------------------------------------------------------

_KINDS = ("who", "what", "when", "where", "which", "how many", "how", "why")
_YES_NO = re.compile(r"^(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b", re.I)
_COMPARED = re.compile(
    r"\b(?:both|either|same|older|younger|earlier|later|longer|larger|more|less|first|than|between)\b", re.I
)
_NESTED = re.compile(r"\bof\b|'s\b|\bthat\b|\bwho\b|\bwhose\b|\bwhere\b|\bin which\b", re.I)
#: Names of what `wording` counts, in order.
WORDING = (
    "words", "names", "digits", "commas", "quotes", "compared", "nested", "yes_no",
    *(f"asks {kind}" for kind in _KINDS),
)  # fmt: skip


def wording(question: str) -> FloatArray:
    """Return cheap signals of a question's text, shape (len(WORDING),), each roughly in [0, 3]."""
    words, lower = question.split(), question.lower()
    first = next((kind for kind in _KINDS if re.search(rf"\b{kind}\b", lower)), None)
    return np.array(
        [
            len(words) / 10,
            sum(word[:1].isupper() for word in words[1:]) / 3,
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
        """Fit on training questions, with their embeddings, shape (n, d), and at most n / 4 axes of these."""
        given = np.asarray(vectors, dtype=np.float64)
        center = given.mean(axis=0)
        _, _, rows = np.linalg.svd(given - center, full_matrices=False)
        found = cls(center, rows[: max(0, min(axes, len(texts) // 4))].T, np.zeros(0), np.ones(0))
        raw = found._raw(texts, given)
        scale = raw.std(axis=0)
        return cls(center, found.axes, raw.mean(axis=0), np.where(scale > 1e-9, scale, 1.0))

    def _raw(self, texts: Sequence[str], vectors: ArrayLike) -> FloatArray:
        parts = (np.asarray(vectors, dtype=np.float64) - self.center) @ self.axes
        return np.hstack([np.array([wording(text) for text in texts]), parts])

    def __len__(self) -> int:
        return len(self.mean)

    def of(self, texts: Sequence[str], vectors: ArrayLike) -> FloatArray:
        """Return features, shape (n, len(self)), cut at four deviations."""
        standard = (self._raw(texts, vectors) - self.mean) / self.scale
        return np.asarray(np.clip(standard, -4, 4), dtype=np.float64)


#: What is seen of the steps so far: tool.signal -> divided by.
SEEN: Mapping[str, float] = {
    "retrieve.top": 1.0, "retrieve.gap": 0.2, "retrieve.fall": 0.5,
    "select.best": 1.0, "select.expected": 2.0, "select.read": 4.0,
    "answer.logprob": 1.0, "answer.lowest": 3.0, "answer.first": 1.0, "answer.unknown": 1.0,
    "answer.words": 10.0, "decompose.parts": 3.0, "each.unknown": 1.0, "summarise.logprob": 1.0,
}  # fmt: skip


#: A step that has run: its tool, signals, whether it was dropped, and its cost.
Ran = tuple[str, Mapping[str, float], bool, float]


def observation(question: FloatArray, ran: Sequence[Ran], unit: float) -> FloatArray:
    """Return what a policy is given besides the price, shape (len(question) + len(SEEN) + 2,).

    The question, the last signals of steps, how many steps failed, and the cost so far in a unit.
    """
    found = {f"{do}.{name}": value for do, signals, *_ in ran for name, value in signals.items()}
    signals = [float(np.clip(found.get(name, 0.0) / scale, -4, 4)) for name, scale in SEEN.items()]
    failed, spent = sum(step[2] for step in ran), sum(step[3] for step in ran)
    return np.concatenate([question, signals, [float(failed), min(spent / unit, 8.0) / 2]])


# -- what it chooses among ----------------------------------------------------------------------------------


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
        #: Places where there is something to decide.
        self.decisions = [branch.place for branch in self.branches if len(branch.children) > 1]

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

    def names(self, place: int) -> list[str]:
        """Return the workflows that can still be reached from a place, sorted."""
        return sorted({self.workflows[leaf].name for leaf in self.branches[place].leaves})

    def mask(self) -> NDArray[np.bool_]:
        """Return which workflows can still be reached from each place, shape (places, workflows)."""
        return np.array([np.isin(np.arange(len(self.workflows)), b.leaves) for b in self.branches])


# -- how it decides -----------------------------------------------------------------------------------------


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

    def worth(self, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Return quality less alpha times cost, shape (..., m); -inf for what can no longer be reached."""
        x = (observed - self.mean[place]) / self.scale[place]
        quality, cost = (x @ self.weights[k, place] + self.bias[k, place] for k in (0, 1))
        likely = np.argmax(x @ self.gates[place, :-1] + self.gates[place, -1], axis=-1)
        net = quality + self.experts[place, likely] - max(alpha, _TIE) * np.maximum(cost, 0.0)
        return np.where(self.mask[place], net, -np.inf)

    def scores(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Return how much the best workflow behind every child of a place is worth, shape (n, children)."""
        worth = self.worth(observed, place, alpha)
        children = [tree.branches[child].leaves for child in tree.branches[place].children]
        return np.stack([worth[:, leaves].max(axis=1) for leaves in children], axis=1)


@dataclass(frozen=True, eq=False)
class Network:
    """A small network with tanh layers; its outputs are places of the tree.

    layers: of shapes (d_in, d_out) and (d_out,); the first takes what is seen, the place and alpha.
    prior: what the outputs are a correction of.
    """

    layers: Sequence[tuple[FloatArray, FloatArray]]
    prior: Regression

    def scores(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Return probabilities of the children of a place, shape (n, children)."""
        x = network_input(tree, observed, np.full(len(observed), place), alpha)
        for weights, bias in self.layers[:-1]:
            x = np.tanh(x @ weights + bias)
        weights, bias = self.layers[-1]
        logits = (x @ weights + bias)[:, tree.branches[place].children]
        logits = logits + prior_logits(self.prior, tree, observed, place, alpha)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float64)


def prior_logits(prior: Regression, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray:
    """Return what is added to a network's outputs for the children of a place."""
    return _SHARPNESS * prior.scores(tree, observed, place, alpha)


def network_input(
    tree: Tree, observed: FloatArray, places: IntArray, alpha: float | FloatArray
) -> FloatArray:
    """Return what a network is given: what is seen, where in the tree, and the price."""
    where = np.zeros((len(observed), len(tree.branches)))
    where[np.arange(len(observed)), places] = 1.0
    price = np.broadcast_to(np.asarray(alpha, dtype=np.float64), (len(observed),))
    return np.hstack([observed, where, np.sqrt(price)[:, None] * 2])


@dataclass(frozen=True, eq=False)
class Decision:
    """A decision at a place for one of its children, by their scores, after so many steps."""

    place: int
    chosen: int
    scores: FloatArray
    after: int


@dataclass(frozen=True, eq=False)
class Planner:
    """A policy over workflows.

    alphas: prices that it was trained for, rising; between them it may be asked too. Empty: any price.
    unit: how much of `cost`, "tokens" or "dollars", counts as 1; weights: what else a cost is made of.
    embedder: fingerprint of what embeds questions; blank: none is needed.
    about: origin of the planner.
    """

    tree: Tree
    features: QuestionFeatures
    scorer: Regression | Network
    method: str
    unit: float
    alphas: tuple[float, ...] = ()
    embedder: str = ""
    cost: str = "tokens"
    about: Mapping[str, Any] = field(default_factory=dict)
    weights: CostWeights = field(default_factory=CostWeights)

    def checked_alpha(self, alpha: float | None) -> float:
        """Return the price to decide at; by default the one it was trained for, or else `DEFAULT_ALPHA`.

        Raises `InputError` for a wrong price, or one that it was not trained for.
        """
        low, high = (self.alphas[0], self.alphas[-1]) if self.alphas else (0.0, math.inf)
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        if alpha is None:
            if low == high or low <= DEFAULT_ALPHA <= high:
                return low if low == high else DEFAULT_ALPHA
            raise InputError(f"this planner was trained for prices from {span}: give a price")
        if not 0 <= alpha < math.inf:
            raise InputError(f"alpha={alpha!r} must be finite and >= 0")
        if not low - 1e-9 <= alpha <= high + 1e-9:
            raise InputError(f"alpha={alpha:g}: this planner was trained for {span}; train one for it")
        return float(alpha)

    def question(self, text: str, encoder: Encoder | None) -> FloatArray:
        """Return the features of a question, shape (k,)."""
        vectors = np.zeros((1, len(self.features.center)))
        if self.embedder and encoder is not None:
            vectors = np.asarray(encoder.encode([text]), dtype=np.float64)
        return np.asarray(self.features.of([text], vectors)[0], dtype=np.float64)

    def walk(
        self, question: FloatArray, alpha: float, ran: Callable[[Branch], Ran | None]
    ) -> tuple[Branch, list[Decision]]:
        """Go down the tree to the end of a workflow, or to a step that has not run (`ran` gives None)."""
        branch, decisions, steps = self.tree.branches[0], list[Decision](), list[Ran]()
        while branch.ends is None:
            children, chosen = branch.children, branch.children[0]
            if len(children) > 1:
                observed = observation(question, steps, self.unit)[None]
                scores = self.scorer.scores(self.tree, observed, branch.place, alpha)[0]
                chosen = children[int(np.argmax(scores))]
                decisions.append(Decision(branch.place, chosen, scores, len(steps)))
            branch = self.tree.branches[chosen]
            if branch.node is None:
                continue
            if (step := ran(branch)) is None:
                break
            steps.append(step)
        return branch, decisions

    def scores(self, decisions: Sequence[Decision]) -> dict[str, float]:
        """Return decisions as traces hold them.

        Once: workflow -> score. Again: steps that had run, and the workflows behind what was chosen -> its
        score.
        """
        if self.tree.mode == "again":
            names = [f"{one.after}: {', '.join(self.tree.names(one.chosen))}" for one in decisions]
            return {name: float(np.max(one.scores)) for name, one in zip(names, decisions, strict=True)}
        return {
            self.tree.names(child)[0]: float(score)
            for one in decisions
            for child, score in zip(self.tree.branches[one.place].children, one.scores, strict=True)
        }

    def choices(self, observed: FloatArray, alpha: float) -> IntArray:
        """Return the workflow that it comes to on each of n questions, by what is seen there, (n, p, d)."""
        at, ended = np.zeros(len(observed), dtype=np.intp), np.full(len(observed), -1, dtype=np.intp)
        for branch in self.tree.branches:  # parents come before their children
            here = np.flatnonzero(at == branch.place)
            if branch.ends is not None:
                ended[here] = branch.ends
            elif len(branch.children) == 1:
                at[here] = branch.children[0]
            elif len(here):
                scores = self.scorer.scores(self.tree, observed[here, branch.place], branch.place, alpha)
                at[here] = np.array(branch.children)[np.argmax(scores, axis=1)]
        return ended


# -- files --------------------------------------------------------------------------------------------------

_FEATURES = ("center", "axes", "mean", "scale")
_FITTED = ("mean", "scale", "weights", "bias", "gates", "experts")


def _settings(planner: Planner) -> dict[str, Any]:
    names = ("method", "alphas", "unit", "cost", "embedder")
    own = {name: getattr(planner, name) for name in names}
    return {"mode": planner.tree.mode, **own, "weights": planner.weights.to_dict()}


def planner_about(planner: Planner) -> dict[str, Any]:
    """Return what a planner is and what it learned from, as plain data."""
    return {
        **_settings(planner),
        "workflows": [workflow.name for workflow in planner.tree.workflows],
        "network": isinstance(planner.scorer, Network),
        **{name: value for name, value in planner.about.items() if name != "learned_from"},
    }


def write_planner(planner: Planner, path: Path) -> None:
    """Write a planner to a file, whole or not at all; `InputError` if it cannot be written."""
    arrays: dict[str, NDArray[Any]] = {f"features.{n}": getattr(planner.features, n) for n in _FEATURES}
    scorer = planner.scorer
    if isinstance(scorer, Network):
        for k, (weights, bias) in enumerate(scorer.layers):
            arrays |= {f"network.{k}.weights": weights, f"network.{k}.bias": bias}
        scorer = scorer.prior
    arrays |= {f"regression.{name}": getattr(scorer, name) for name in _FITTED}
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
        tree = Tree([Workflow.from_dict(data) for data in about["workflows"]], about["mode"])
        now = inner_hashes(tree.workflows)
        changed = [name for name, digest in about["inner"].items() if now.get(name) != digest]
        if changed or about["seen"] != list(SEEN) or about["wording"] != list(WORDING):
            raise DataError(
                f"'{path}' was trained for other workflows or signals ({', '.join(changed) or 'signals'} "
                "changed since): train it anew"
            )
        depth = sum(name.startswith("network.") for name in arrays) // 2
        fitted: dict[str, Any] = {name: arrays[f"regression.{name}"] for name in _FITTED}
        prior = Regression(**fitted, mask=tree.mask())
        layers = [(arrays[f"network.{k}.weights"], arrays[f"network.{k}.bias"]) for k in range(depth)]
        names = ("method", "unit", "embedder", "cost")
        return Planner(
            tree,
            QuestionFeatures(*(arrays[f"features.{name}"] for name in _FEATURES)),
            Network(layers, prior) if layers else prior,
            alphas=tuple(about["alphas"]),
            about=given.provenance,
            weights=CostWeights.from_dict(about.get("weights", {}), "weights"),
            **{name: about[name] for name in names},
        )
    except DataError:
        raise
    except (KeyError, TypeError, InputError) as error:
        raise DataError(f"'{path}' is damaged: {error}") from error


# -- replay of traces ---------------------------------------------------------------------------------------


def replay(trace: Trace, planner: Planner | None = None, encoder: Encoder | None = None) -> list[str]:
    """Make the decisions of a trace again; return what comes out differently.

    No model is asked, but for the embedding of the question. Without a planner only workflow, nodes and
    totals are checked.

    Raises `InputError` if the planner is not the one that decided: another method, mode or embedder.
    """
    wrong = [*_wrong_nodes(trace), *wrong_totals(trace)]
    if planner is None:
        return wrong
    settings = trace.settings.get("planner")
    if settings is None:
        raise InputError(f"'{trace.policy}' followed a workflow that was not chosen: there is no planner")
    if (settings["method"], settings["mode"]) != (planner.method, planner.tree.mode):
        raise InputError(
            f"the trace is of a planner by {settings['method']}, {settings['mode']}; this one is by "
            f"{planner.method}, {planner.tree.mode}"
        )
    if planner.embedder and (encoder is None or encoder.fingerprint != planner.embedder):
        raise InputError(
            f"the planner looks at embeddings of {planner.embedder}: give an index or embedder of it"
        )
    if trace.error is not None and not trace.workflow:
        return wrong  # it failed before it came to a workflow
    alpha = float(settings["alpha"])
    try:
        planner.checked_alpha(alpha)
    except InputError as error:
        wrong += error.problems
    return wrong + _wrong_decisions(trace, planner, planner.question(trace.question, encoder), alpha)


def _wrong_nodes(trace: Trace) -> list[str]:
    """Nodes that ran and are none of the workflow's."""
    mode = (trace.settings.get("planner") or {}).get("mode")
    if not trace.workflow or mode == "again":  # there a node goes by the name that it first had
        return []
    try:
        workflow = Workflow.from_dict(trace.workflow)
    except InputError as error:
        return [f"the workflow: {problem}" for problem in error.problems]
    known = {node.id: node.do for node in workflow.nodes}
    top = [step for step in trace.steps if "/" not in step.id and not step.id.startswith("fallback")]
    return [
        f"step '{step.id}' did {step.do}, which is none of workflow '{workflow.name}'"
        for step in top
        if known.get(step.id) != step.do
    ]


def _wrong_decisions(trace: Trace, planner: Planner, question: FloatArray, alpha: float) -> list[str]:
    tree, wrong = planner.tree, list[str]()
    starts = [k for k, step in enumerate(trace.steps) if "/" not in step.id]
    parts = [trace.steps[a:b] for a, b in zip(starts, [*starts[1:], len(trace.steps)], strict=True)]
    left = iter([part for part in parts if not part[0].id.startswith("fallback")])

    def next_step(branch: Branch) -> Ran | None:
        assert branch.node is not None
        node = tree.workflows[branch.node[0]].nodes[branch.node[1]]
        steps = next(left, ())
        if not steps or steps[0].do != node.do:
            did = steps[0].do if steps else "nothing"
            wrong.append(f"the planner gives {node.do} in step {branch.node[1] + 1}, and {did} was done")
            return None
        spent: float | None = sum(one.tokens for one in steps)
        if planner.cost == "dollars":
            spent = dollars(steps, workflow_settings(trace.settings))
        if spent is None:
            raise InputError(NO_PRICE)
        calls, turns = (
            sum(c.retrieval_calls for s in steps for c in s.calls),
            steps[0].signals.get("turns", 0.0),
        )
        cost = planner.weights.total(spent, turns, calls, planner.unit)
        return steps[0].do, steps[0].signals, steps[0].dropped is not None, cost

    branch, decisions = planner.walk(question, alpha, next_step)
    wrong += [
        f"'{key}' had the score {trace.scores.get(key)}, the planner gives {value:.6g}"
        for key, value in planner.scores(decisions).items()
        if key not in trace.scores or abs(trace.scores[key] - value) > _SAME * max(1.0, abs(value))
    ]
    name = str(trace.workflow.get("name", ""))
    if branch.ends is not None and tree.workflows[branch.ends].name != name:
        wrong.append(f"the planner comes to '{tree.workflows[branch.ends].name}', and '{name}' was run")
    return wrong
