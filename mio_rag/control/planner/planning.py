"""The planner as a controller: it looks at a question, and chooses a workflow, or its next executor."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.control.controller import Failure, Outcome, Setup
from mio_rag.control.costs import Costs
from mio_rag.control.meter import Replies, Reply
from mio_rag.control.planner.controller import attempted, kit_of, workflow_settings
from mio_rag.control.planner.features import Encoder
from mio_rag.control.planner.money import spent_on
from mio_rag.control.planner.named import misfits, workflow_problems
from mio_rag.control.planner.policy import Planner, read_planner
from mio_rag.control.planner.run import Kit, Run
from mio_rag.control.planner.work import Work, signals
from mio_rag.control.planner.workflow import Workflow
from mio_rag.control.settings import ControlSettings
from mio_rag.errors import InputError
from mio_rag.generation import Generator
from mio_rag.generation.hidden import PREFIX, HiddenStates
from mio_rag.learning.planner import FloatArray, observation, seen
from mio_rag.types import Question

__all__ = ["PlannerController", "check_planner", "make_planner"]


@dataclass(frozen=True, eq=False)
class PlannerController:
    """Chooses among workflows by a learned policy, once or after every executor.

    Parameters
    ----------
    name : str
        As the ledger shows it.
    alpha : float
        What a cost of 1 must be worth in quality.
    encoder : Encoder or None
        Makes the vectors of questions; None: none are looked at.
    settings : dict
        As traces hold them.
    """

    name: str
    planner: Planner
    alpha: float
    kit: Kit
    encoder: Encoder | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        """Answer a question; see `mio_rag.control.controller.Controller`."""
        if budget_tokens < 1:
            raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
        run = Run(self.kit, question, generator, int(budget_tokens), {} if replies is None else replies)
        worth: dict[str, float] = {}
        act = self._once if self.planner.tree.mode == "once" else self._again
        return attempted(run, lambda run: act(run, worth), self.name, self.settings, worth)

    def features(self, question: str) -> FloatArray:
        """What the policy sees of a question, shape (k,)."""
        vectors = np.zeros((1, len(self.planner.features.center)))
        if self.encoder is not None:
            vectors = np.asarray(self.encoder.encode([question]), dtype=np.float64)
        return np.asarray(self.planner.features.of([question], vectors)[0], dtype=np.float64)

    def _looked(self, run: Run) -> FloatArray:
        costs = Costs()
        with costs.part("plan"):
            found = self.features(run.question.text)
        run.opening += costs.spent
        return found

    def _once(self, run: Run, worth: dict[str, float]) -> tuple[Reply, Workflow]:
        seen_ = observation(self._looked(run), seen([]), 0.0)
        child, scores = self.planner.choose(seen_, 0, self.alpha)
        tree = self.planner.tree
        for place, score in zip(tree.branches[0].children, scores, strict=True):
            worth[tree.workflows[tree.branches[place].leaves[0]].name] = float(score)
        chosen = tree.workflows[tree.branches[child].leaves[0]]
        return run.workflow(chosen), chosen

    def _again(self, run: Run, worth: dict[str, float]) -> tuple[Reply, Workflow]:
        tree, question = self.planner.tree, self._looked(run)
        works: dict[str, Work] = {}
        told: list[tuple[str, dict[str, float], bool]] = []
        place = 0
        while (ended := tree.branches[place].ends) is None:
            spent = spent_on(run.steps(), self.planner.cost, self.kit.settings) / self.planner.unit
            place, scores = self.planner.choose(observation(question, seen(told), spent), place, self.alpha)
            if len(scores) > 1:
                names = {tree.workflows[leaf].name for leaf in tree.branches[place].leaves}
                worth[f"{len(works)}: {', '.join(sorted(names))}"] = float(np.max(scores))
            if (at := tree.branches[place].node) is None:
                continue
            leaf, depth = at
            workflow, signed = tree.workflows[leaf], tree.signatures[leaf]
            node, signature = workflow.nodes[depth], signed[depth]
            places = {n.id: k for k, n in enumerate(workflow.nodes)}
            values = [works[signed[places[name]]].value for name in node.takes]
            taken = {work.path for work in run.works}
            path = node.id if node.id not in taken else f"{node.id}-{len(works) + 1}"
            final = any(
                tree.workflows[k].nodes[depth].id == tree.workflows[k].answer
                for k in tree.branches[place].leaves
            )
            works[signature] = work = run.node(node, path, values, final=final)
            given = {} if work.value is None else signals(work.value)
            told.append((node.do, given, work.dropped is not None))
        chosen = tree.workflows[ended]
        last = dict(zip((n.id for n in chosen.nodes), tree.signatures[ended], strict=True))[chosen.answer]
        return run.concluded(works[last]), chosen


@functools.lru_cache(maxsize=4)
def _read(path: str, changed: int) -> Planner:
    return read_planner(path)


@functools.lru_cache(maxsize=2)
def _hidden(path: str) -> HiddenStates:
    return HiddenStates(path)


def _given(name: str, settings: ControlSettings) -> tuple[Planner, float]:
    """Planner and price: of the name "planner@ALPHA" or of the settings."""
    told = dict(settings.kinds.get("planner") or {})
    if unknown := sorted(set(told) - {"file", "alpha", "model", "sha256"}):
        raise InputError(f"planner settings {', '.join(unknown)} are unknown: known are file, alpha, model")
    if not told.get("file"):
        raise InputError(f"controller '{name}' needs a file: give --planner, made by `mio-rag plan train`")
    path = Path(str(told["file"]))
    planner = _read(str(path), path.stat().st_mtime_ns if path.is_file() else 0)
    _, at, text = name.partition("@")
    alpha = told.get("alpha")
    if at:
        try:
            alpha = float(text)
        except ValueError as error:
            raise InputError(f"controller '{name}': '{text}' is no price; for instance planner@.1") from error
    return planner, planner.checked_alpha(alpha)


def check_planner(name: str, settings: ControlSettings, closed_book: bool) -> None:
    """Raise `InputError` where there is no such planner, or its workflows could not run here."""
    if name.partition("@")[0] != "planner":
        raise InputError(f"controller '{name}' is unknown: say planner, or planner@ALPHA")
    planner, _ = _given(name, settings)
    given = workflow_settings(settings)
    problems = [
        problem
        for workflow in planner.tree.workflows
        for problem in workflow_problems(
            workflow,
            models=tuple(given.models),
            prices=tuple(given.prices),
            depth=given.depth,
            closed_book=closed_book,
        )
    ]
    hidden = planner.embedder.startswith(PREFIX)
    if hidden and not (settings.kinds.get("planner") or {}).get("model"):
        problems.append("this planner looks at the hidden state of a model: give its file by --planner-model")
    if closed_book and planner.embedder and not hidden:
        problems.append("this planner looks at a question's embedding, which comes from an index: give one")
    if planner.cost == "dollars" and "reader" not in given.prices:
        problems.append("this planner counts dollars: give --model-price reader=IN,OUT")
    if problems:
        raise InputError(list(dict.fromkeys(problems)))


def make_planner(name: str, setup: Setup) -> PlannerController:
    """The controller of "planner" or "planner@ALPHA".

    Raises
    ------
    InputError
        As `check_planner`; also if the index was built by another embedder than the planner was trained with.
    """
    check_planner(name, setup.settings, setup.retriever is None)
    planner, alpha = _given(name, setup.settings)
    if setup.retriever is not None and (
        problems := misfits(planner.tree.workflows, setup.retriever.index, setup.selector)
    ):
        raise InputError(problems)
    encoder: Encoder | None = None
    if planner.embedder.startswith(PREFIX):
        encoder = _hidden(str((setup.settings.kinds.get("planner") or {})["model"]))
    elif planner.embedder and setup.retriever is not None:
        encoder = setup.retriever.index.embedder
    if encoder is not None and encoder.fingerprint != planner.embedder:
        raise InputError(
            f"the planner was trained with the embedder {planner.embedder}, here is {encoder.fingerprint}: "
            "train one for this"
        )
    told = {
        "limits": setup.settings.to_dict()["limits"],
        "seed": int(setup.seed),
        "closed_book": setup.retriever is None,
        "max_tokens": int(setup.max_tokens),
        "workflow": workflow_settings(setup.settings).to_dict(),
        "planner": {"method": planner.method, "mode": planner.tree.mode, "alpha": alpha},
    }
    return PlannerController(name, planner, alpha, kit_of(setup), encoder, told)
