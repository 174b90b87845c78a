"""What steps a question takes where a planner decides: a workflow as a whole, or executor by executor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mio_rag.control.composed.states import alpha_of
from mio_rag.control.composed.trace import per_token, share
from mio_rag.control.composed.walk import Walk
from mio_rag.control.meter import Meter, Reply
from mio_rag.control.planner.money import spent_on
from mio_rag.control.planner.planning import PlannerController
from mio_rag.control.planner.tree import Branch
from mio_rag.control.planner.work import Work, signals
from mio_rag.control.planner.workflow import Node, Workflow
from mio_rag.control.steps.executors import Value
from mio_rag.learning.planner import FloatArray, observation, seen

__all__ = ["PlannedWalk"]


@dataclass(eq=False)
class PlannedWalk(Walk):
    """A walk whose workflow a planner chooses, where the policy has one.

    Parameters
    ----------
    worth : dict of str to float
        What was chosen among -> what the planner expects of it, costs taken off.
    features : array or None
        What the planner sees of the question, once it was looked at.
    """

    worth: dict[str, float] = field(default_factory=dict)
    features: FloatArray | None = None

    def answer(self) -> tuple[Reply, Workflow]:
        """Take the question to its answer; as `Run.workflow`."""
        controller = self.equipment.planner
        if controller is None:
            return super().answer()
        if controller.planner.tree.mode == "once":
            return self.answer_by(self._whole(controller))
        return self._step_by_step(controller)

    def _whole(self, controller: PlannerController) -> Workflow:
        tree, found = controller.planner.tree, list[Workflow]()

        def plan(meter: Meter) -> tuple[None, str]:
            with meter.timed("plan"):
                looked = observation(self._seen_of(controller), seen([]), 0.0)
                child, scores = self._scored(controller, looked, 0)
            found.append(tree.workflows[tree.branches[child].leaves[0]])
            for place, score in zip(tree.branches[0].children, scores, strict=True):
                self.worth[tree.workflows[tree.branches[place].leaves[0]].name] = float(score)
            others = sorted(self.worth, key=lambda name: -self.worth[name])
            named = [f"{name} {share(self.worth[name])}" for name in others if name != found[0].name][:1]
            told = f"planned {found[0].name}: worth {share(self.worth[found[0].name])} after its costs at "
            return None, f"{told}{per_token(self.price)} a token" + (f", next {named[0]}" if named else "")

        self.step(Node("plan", "plan"), plan)
        return found[0] if found else self.equipment.states.workflows[0]

    def _scored(
        self, controller: PlannerController, looked: FloatArray, place: int
    ) -> tuple[int, FloatArray]:
        planner = controller.planner
        return planner.choose(looked, place, alpha_of(self.equipment.policy, planner, self.price))

    def _step_by_step(self, controller: PlannerController) -> tuple[Reply, Workflow]:
        """Decide again after every executor, by what those before it gave and what they took."""
        tree = controller.planner.tree
        done: dict[str, Value | None] = {}
        works: dict[str, Work] = {}
        told: list[tuple[str, dict[str, float], bool]] = []
        branch = tree.branches[0]
        while branch.ends is None:
            branch = self._next(controller, branch, told, len(done))
            if branch.node is None:
                continue
            leaf, depth = branch.node
            workflow, signed = tree.workflows[leaf], tree.signatures[leaf]
            node = workflow.nodes[depth]
            places = {one.id: k for k, one in enumerate(workflow.nodes)}
            given = [done[signed[places[name]]] for name in node.takes]
            leaves = [tree.workflows[k] for k in branch.leaves]
            final = any(one.nodes[depth].id == one.answer for one in leaves)
            # Two workflows may use one name for different nodes.
            named = replace(node, id=self._free(node.id, len(done)))
            work, value = self.take(named, given, workflow.name, final=final)
            works[signed[depth]], done[signed[depth]] = work, value
            told.append((node.do, {} if value is None else signals(value), work.dropped is not None))
        chosen = tree.workflows[branch.ends]
        last = dict(zip((one.id for one in chosen.nodes), tree.signatures[branch.ends], strict=True))
        return self.run.concluded(works[last[chosen.answer]]), chosen

    def _free(self, name: str, done: int) -> str:
        return name if name not in {work.path for work in self.run.works} else f"{name}-{done + 1}"

    def _next(
        self,
        controller: PlannerController,
        branch: Branch,
        told: list[tuple[str, dict[str, float], bool]],
        done: int,
    ) -> Branch:
        """Where it goes from here; where nothing may be decided any more, the first way."""
        tree, planner = controller.planner.tree, controller.planner
        found = [branch.children[0]]
        if len(branch.children) == 1:
            return tree.branches[found[0]]

        def plan(meter: Meter) -> tuple[None, str]:
            with meter.timed("plan"):
                spent = spent_on(self.run.steps(), planner.cost, self.run.kit.settings) / planner.unit
                looked = observation(self._seen_of(controller), seen(told), spent)
                found[0], scores = self._scored(controller, looked, branch.place)
            ways = [self._way(tree.branches[child], tree.workflows) for child in branch.children]
            worth = dict(zip(ways, map(float, scores), strict=True))
            self.worth |= {f"{done}: {way}": value for way, value in worth.items()}
            best = ways[branch.children.index(found[0])]
            other = max((way for way in ways if way != best), key=lambda way: worth[way])
            return None, (
                f"planned {best} next: worth {share(worth[best])} after its costs at "
                f"{per_token(self.price)} a token, {other} {share(worth[other])}"
            )

        self.step(Node(self._free("plan", done), "plan"), plan)
        return tree.branches[found[0]]

    def _seen_of(self, controller: PlannerController) -> FloatArray:
        """What the planner sees of the question; made once."""
        if self.features is None:
            self.features = controller.features(self.run.question.text)
        return self.features

    @staticmethod
    def _way(branch: Branch, workflows: tuple[Workflow, ...]) -> str:
        """A way as sentences name it: the executor, and where others begin alike, its settings."""
        if branch.node is None:
            return "to end here"
        leaf, depth = branch.node
        node = workflows[leaf].nodes[depth]
        set_ = ", ".join(f"{key} {value}" for key, value in node.settings.items())
        named = [workflows[k].name for k in branch.leaves]
        more = " or others" if named[2:] else ""
        return f"{node.do}{f' ({set_})' if set_ else ''} of {' or '.join(named[:2])}{more}"
