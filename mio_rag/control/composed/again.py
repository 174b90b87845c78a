"""After something was read: look at what may be missing, and search again, think, or stop."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.control.composed.planned import PlannedWalk
from mio_rag.control.composed.repeat import Looked, Rule, rule_of
from mio_rag.control.composed.trace import share
from mio_rag.control.mdp.gauges import Evidence, draw, tracked_next
from mio_rag.control.mdp.policies import State, open_actions
from mio_rag.control.mdp.trace import ProcessStep
from mio_rag.control.memory import Memory
from mio_rag.control.meter import Meter
from mio_rag.control.planner.workflow import Node
from mio_rag.control.steps.base import QueryDecomposer
from mio_rag.control.steps.executors import Value
from mio_rag.control.steps.feedback import FeedbackDecomposer
from mio_rag.control.steps.pools import merge_pools
from mio_rag.control.steps.write import LmDecomposer, LmReasoner
from mio_rag.errors import InfeasibleError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.formulations.numbers import plural
from mio_rag.retrieval.retriever import reciprocal_rank_fusion
from mio_rag.selection.result import Selection

__all__ = ["LoopingWalk"]

_QUERY_TOKENS = 32  # the longest query that a model writes


@dataclass(eq=False)
class LoopingWalk(PlannedWalk):
    """A walk that may search more than once.

    Parameters
    ----------
    narrow : bool
        Whether less may be read than the policy allows, as with the rest of a total.
    wanted : int
        Tokens of what was worth reading, where such a rest had no room for any of it; otherwise 0.
    """

    narrow: bool = False
    wanted: int = 0

    def selected(self, pool: Candidates, node: Node, meter: Meter, tokens: int | None = None) -> Selection:
        """What is read of a pool; where that is nothing, whether the price or too little room is why."""
        chosen = super().selected(pool, node, meter, tokens)
        self.wanted = 0
        if self.narrow and tokens is None and not chosen.chosen:
            with suppress(InfeasibleError):  # nobody can tell, and nothing is read either way
                self.wanted = self._wanted(pool, node, meter)
        if self.wanted:
            self.nothing = f"nothing worth reading fits in {plural(self.run.budget_tokens, 'token')}"
        return chosen

    def _wanted(self, pool: Candidates, node: Node, meter: Meter) -> int:
        """Tokens that the question would have to be allowed, to read what it would read with room; or 0."""
        room = self.equipment.policy.limits.evidence_tokens
        if self.tier is not None and self.tier.unit == "tokens":
            room = min(room, self.tier.context)
        used = super().selected(pool, node, meter, room).tokens_used
        wanted = math.ceil(used / float(node.settings.get("share", 1.0)))
        return wanted if wanted > self.run.budget_tokens else 0

    def look_again(self, node: Node, pool: Candidates, selection: Selection) -> Selection:
        """What is read in the end."""
        equipment = self.equipment
        rule = rule_of(equipment.policy.repetition, equipment.seed)
        if rule is None:
            return selection
        loop = _Loop(self, node, rule, Memory(self.run.question, self.run.budget_tokens, pool, selection))
        return loop.selection()


@dataclass(eq=False)
class _Loop:
    """The searches after the first."""

    walk: LoopingWalk
    node: Node
    rule: Rule
    memory: Memory
    tracked: float = 1.0

    def __post_init__(self) -> None:
        policy = self.walk.equipment.policy
        self.repetition = policy.repetition
        self.decomposer: QueryDecomposer = (
            LmDecomposer() if self.repetition.query == "model" else FeedbackDecomposer()
        )
        self.level = self.walk.levels[self.node.id]
        self.memory.queries.append(self.memory.question.text)
        ids = () if self.memory.selection is None else self.memory.selection.ids
        self.steps: list[ProcessStep] = []
        self._tell("retrieve", self.memory.question.text, "", ids, 1.0)

    def selection(self) -> Selection:
        """Search until the rule stops, or nothing new can come."""
        closed: tuple[str, ...] = ()
        while True:
            possible = open_actions(self.steps, False, closed)
            if self._is_through:
                possible = tuple(action for action in possible if action != "retrieve")
            looked = self._looked()
            state = State(self.memory.question.id, len(self.steps), self._doubt(), possible)
            decision = self.rule.decide(state, looked)
            why = self.rule.why(decision, state, looked)
            name = f"{self.node.id}-again-{len(self.steps)}"
            before = len(self.steps)
            act = {"stop": self._stop, "retrieve": self._retrieve, "reason": self._reason}[decision.action]
            work = self.walk.step(
                Node(name + ("-closed" if closed else ""), decision.action), partial(act, why)
            )
            if decision.action == "stop" or work.dropped is not None:
                break
            closed = () if len(self.steps) > before else (*closed, decision.action)
        assert self.memory.selection is not None
        return self.memory.selection

    @property
    def _is_through(self) -> bool:
        """Whether no further search is allowed, or could be worded."""
        searches = sum(step.action == "retrieve" for step in self.steps)
        read = self.memory.selection is not None and self.memory.selection.chosen
        return searches > self.repetition.most or (self.repetition.query == "feedback" and not read)

    def _stop(self, why: str, meter: Meter) -> tuple[Value | None, str]:
        return None, f"{why}; the evidence is complete with {share(self.level)}"

    def _doubt(self) -> float:
        if self.repetition.signal == "complete":
            return 1.0 - self.level
        if self.repetition.signal == "evidence":
            return Evidence.level(self.memory)
        return self.tracked

    def _looked(self) -> Looked:
        """What one more search may bring: a share of what is missing, for a passage and the words to ask."""
        pool, selection = self.memory.pool, self.memory.selection
        assert pool is not None
        tokens = int(np.median(pool.tokens))
        if self.repetition.query == "model":
            read = 0 if selection is None else selection.tokens_used
            tokens += read + _QUERY_TOKENS
        return Looked(self.repetition.finds * (1.0 - self.level), tokens, self.walk.price)

    def _retrieve(self, why: str, meter: Meter) -> tuple[Value | None, str]:
        memory, walk = self.memory, self.walk
        assert memory.pool is not None
        assert memory.selection is not None
        if self.repetition.query == "model":
            walk.run.shared.step()
        query = self.decomposer.next_query(memory, self._doubt(), meter)
        if query.lower() in {known.lower() for known in memory.queries}:
            return None, "wanted to search again, and had no new query"
        before = set(memory.selection.ids)
        pool = self._pool(query, before, meter)
        memory.queries.append(query)
        memory.selection = walk.selected(pool, self.node, meter)
        memory.pool = pool
        new = tuple(i for i in memory.selection.ids if i not in before)
        level, self.level = self.level, walk.complete(pool, memory.selection)
        self._tell("retrieve", query, "", new, 1.0 - level)
        walk.levels[f"{self.node.id}-again-{len(self.steps) - 1}"] = self.level
        found = "1 new passage" if len(new) == 1 else f"{len(new)} new passages"
        return (
            memory.selection,
            f"{why}; found {found}, and {walk.read_in_words(memory.selection, self.level)}",
        )

    def _pool(self, query: str, before: set[str], meter: Meter) -> Candidates:
        """What all queries so far have found.

        A query that a model wrote stands for itself: a passage counts with its best relevance over all
        queries. One that only adds words to the question does not: what it finds is held against the
        question.
        """
        memory, retriever = self.memory, self.walk.equipment.retriever
        assert memory.pool is not None
        assert retriever is not None
        with meter.timed("retrieve", retrieval_calls=1):
            if self.repetition.query == "model":
                found = retriever.retrieve(query)
                return merge_pools(memory.pool, found, max(len(memory.pool), len(found)), before)
            rankings = [retriever.ranked(text) for text in (*memory.queries, query)]
            fused = reciprocal_rank_fusion(rankings)
            found = retriever.pool_of(memory.question.text, sorted(fused, key=lambda row: -fused[row]), fused)
            return merge_pools(memory.pool, found, len(memory.pool) + len(found), before)

    def _reason(self, why: str, meter: Meter) -> tuple[Value | None, str]:
        memory = self.memory
        memory.notes = self.walk.notes
        self.walk.run.shared.step()
        note = LmReasoner().reason(memory, meter)
        if note:
            memory.notes.append(note)
        self._tell("reason", "", note, (), self._doubt())
        return None, f"{why}: {note}" if note else f"{why}, and nothing new came of it"

    def _tell(self, action: str, query: str, note: str, new: tuple[str, ...], doubt: float) -> None:
        """Note a step, as published rules look at it."""
        selection = self.memory.selection
        place, seed = len(self.steps), self.walk.equipment.seed
        luck = draw(seed, self.memory.question.id, place, 1)
        self.tracked = tracked_next(RetrievalMDP(), action, self.tracked, len(new) + bool(note), luck)
        self.steps.append(
            ProcessStep(
                step=place,
                uncertainty=doubt,
                action=action,
                q_values=None,
                query=query,
                note=note,
                new_ids=new,
                selected_ids=() if selection is None else selection.ids,
                next_uncertainty=self._doubt(),
                calls=(),
            )
        )
