"""Make the decisions of a planner's trace again, and check its books.

What a planner decided follows from its file, the question, and what executors gave and cost on the way, all
of which a trace holds. Nothing is searched for and no model is asked, but for the embedding of the question.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mio_rag.errors import InputError
from mio_rag.learning.experience import FloatArray, observation, seen
from mio_rag.learning.planner import Planner
from mio_rag.learning.planner_tree import Encoder
from mio_rag.session.models import WorkflowSettings, dollars
from mio_rag.session.trace import Step, Trace, wrong_totals
from mio_rag.session.workflow import Workflow

_SAME = 1e-6


def replay(trace: Trace, planner: Planner | None = None, encoder: Encoder | None = None) -> list[str]:
    """What comes out differently; nothing, if all is well.

    planner: who decided; without it only workflow, nodes and books are checked.
    encoder: what embeds questions for the planner.

    Raises `InputError` if the planner is not the one that decided: another method, mode or embedder.
    """
    wrong = [*_wrong_nodes(trace), *wrong_totals(trace)]
    told = trace.settings.get("planner")
    if planner is None:
        return wrong
    if told is None:
        raise InputError(f"'{trace.policy}' followed a workflow that nobody chose: there is no planner")
    said = (planner.method, planner.tree.mode)
    if (told["method"], told["mode"]) != said:
        raise InputError(
            f"the trace is of a planner by {told['method']}, {told['mode']}; this one is by {said[0]}, "
            f"{said[1]}"
        )
    if planner.embedder and (encoder is None or encoder.fingerprint != planner.embedder):
        raise InputError(
            f"the planner looks at embeddings of {planner.embedder}: give an index or embedder of it"
        )
    vectors = np.zeros((1, len(planner.features.center)))
    if planner.embedder and encoder is not None:
        vectors = np.asarray(encoder.encode([trace.question]), dtype=np.float64)
    question = np.asarray(planner.features.of([trace.question], vectors)[0], dtype=np.float64)
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
    for step in _outer(trace.steps):
        node = known.get(step.id)
        if node is None and not step.id.startswith("fallback"):
            wrong.append(f"node '{step.id}' ran, and workflow '{workflow.name}' has none of that name")
        elif node is not None and node.do != step.do:
            wrong.append(f"node '{step.id}' is to do {node.do}, and did {step.do}")
    return wrong


def _outer(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if "/" not in step.id]


def _wrong_decisions(trace: Trace, planner: Planner, question: FloatArray, alpha: float) -> list[str]:
    tree, name = planner.tree, str(trace.workflow.get("name", ""))
    prices = WorkflowSettings.of(trace.settings.get("workflow"))
    ran = [step for step in _outer(trace.steps) if not step.id.startswith("fallback")]
    told: list[tuple[str, dict[str, float], bool]] = []
    place, done = 0, 0
    wrong: list[str] = []
    while (ended := tree.branches[place].ends) is None:
        spent = _spent(_until(trace.steps, done), planner.cost, prices) / planner.unit
        place, scores = planner.choose(observation(question, seen(told), spent), place, alpha)
        if len(scores) > 1:
            wrong += _wrong_worth(trace, planner, place, scores, done)
        if (at := tree.branches[place].node) is None:
            continue
        node = tree.workflows[at[0]].nodes[at[1]]
        if done >= len(ran) or ran[done].do != node.do:
            did = ran[done].do if done < len(ran) else "nothing"
            return [*wrong, f"decision {done + 1}: the planner says {node.do}, and {did} was done"]
        told.append((node.do, dict(ran[done].signals), ran[done].dropped is not None))
        done += 1
    if tree.workflows[ended].name != name:
        wrong.append(f"the planner comes to '{tree.workflows[ended].name}', and '{name}' was run")
    return wrong


def _until(steps: Sequence[Step], done: int) -> list[Step]:
    """The steps of so many nodes, with all that ran inside them."""
    kept, outer = [], 0
    for step in steps:
        outer += "/" not in step.id
        if outer > done:
            break
        kept.append(step)
    return kept


def _wrong_worth(trace: Trace, planner: Planner, place: int, scores: FloatArray, done: int) -> list[str]:
    """What the trace says of the choice, where it says it otherwise."""
    tree, said = planner.tree, trace.scores
    if tree.mode == "once":
        names = [tree.workflows[tree.branches[child].leaves[0]].name for child in tree.branches[0].children]
        found = dict(zip(names, scores.tolist(), strict=True))
    else:
        names_ = sorted({tree.workflows[leaf].name for leaf in tree.branches[place].leaves})
        found = {f"{done}: {', '.join(names_)}": float(np.max(scores))}
    return [
        f"'{key}' was worth {said.get(key)}, the planner says {value:.6g}"
        for key, value in found.items()
        if key not in said or abs(said[key] - value) > _SAME * max(1.0, abs(value))
    ]


def _spent(steps: Sequence[Step], cost: str, settings: WorkflowSettings) -> float:
    """What steps have cost, in the unit of a planner; `InputError` for dollars without a price."""
    if cost == "tokens":
        return float(sum(step.tokens for step in steps))
    found = dollars(steps, settings)
    if found is None:
        raise InputError("a model that was asked has no price: give --model-price for each, and for reader")
    return found
