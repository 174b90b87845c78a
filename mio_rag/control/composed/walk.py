"""One question on its way under a policy: plan, search, decide how much, read, look again, answer.

The steps are nodes of a workflow, run one after another by the runner of workflows, with its shared
limits, its fallbacks and its accounts; what a policy decides itself (search by
strategies, what is read, searching again) is a node like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mio_rag.candidates import Candidates
from mio_rag.control.bandit.chooser import Choice, Chooser, Seen
from mio_rag.control.bandit.pipeline import measured
from mio_rag.control.composed.policy import Policy
from mio_rag.control.composed.states import States
from mio_rag.control.composed.trace import per_token, share
from mio_rag.control.meter import LimitReached, Meter, OutOfSteps, Reply
from mio_rag.control.planner.named import searches_within
from mio_rag.control.planner.planning import PlannerController
from mio_rag.control.planner.run import Run
from mio_rag.control.planner.shared_limits import BranchMeter
from mio_rag.control.planner.work import Work
from mio_rag.control.planner.workflow import Node, Workflow
from mio_rag.control.router.controller import Choice as TierChoice
from mio_rag.control.router.model import Deciding
from mio_rag.control.router.reader import TierReader, top_score
from mio_rag.control.router.settings import Utility
from mio_rag.control.router.tier import Tier
from mio_rag.control.steps.executors import Facts, Nothing, Queries, Value
from mio_rag.control.steps.pools import merge_pools
from mio_rag.control.steps.search import Searched, SearchSettings, search
from mio_rag.control.steps.strategies import make_strategies
from mio_rag.control.steps.wording import Fact
from mio_rag.errors import InfeasibleError, MioRagError
from mio_rag.formulations.numbers import plural
from mio_rag.learning.contribution import sets_to_compare
from mio_rag.relevance.complete import shipped
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["Equipment", "Walk"]

_RANKED = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, solver="topk")


@dataclass(frozen=True, eq=False)
class Equipment:
    """What a policy runs with, the same for every question.

    Parameters
    ----------
    chooser : Chooser or None
        Of search strategies; None: the question is searched for as it is.
    planner : PlannerController or None
        None: one workflow for every question.
    base : Selector
        Whose solver and time limit the program takes.
    """

    policy: Policy
    states: States
    retriever: Retriever | None
    chooser: Chooser | None
    planner: PlannerController | None
    base: Selector
    seed: int = 0


@dataclass(eq=False)
class Walk:
    """One question on its way.

    Parameters
    ----------
    price : float
        mu.
    said : dict of str to str
        Path of a step -> why, in a sentence.
    levels : dict of str to float
        Path of a step -> the probability that the evidence is complete, after it.
    found_by : dict of str to dict of str to int
        Passage -> strategy -> rank, of all that strategies found.
    left_out : list of str
        Strategies that were, and why.
    nothing : str
        Why nothing is read, where that is so.
    """

    equipment: Equipment
    run: Run
    price: float
    said: dict[str, str] = field(default_factory=dict)
    levels: dict[str, float] = field(default_factory=dict)
    tier: Tier | None = None
    corrected: bool = False
    choice: Choice | None = None
    searched: Searched | None = None
    found_by: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    nothing: str = "nothing was worth reading"

    @cached_property
    def program(self) -> Selector:
        """The selection program at the price."""
        return self.equipment.policy.selector(self.price, self.equipment.base)

    def answer(self) -> tuple[Reply, Workflow]:
        """Take the question to its answer; as `Run.workflow`."""
        return self.answer_by(self.equipment.states.workflows[0])

    def answer_by(self, workflow: Workflow) -> tuple[Reply, Workflow]:
        """Take the question through a workflow."""
        values: dict[str, Value | None] = {}
        last: Work | None = None
        for node in workflow.nodes:
            given = [values[name] for name in node.takes]
            last, values[node.id] = self.take(node, given, workflow.name, final=node.id == workflow.answer)
        return self.run.concluded(last), workflow

    def take(
        self, node: Node, given: Sequence[Value | None], workflow: str, *, final: bool
    ) -> tuple[Work, Value | None]:
        """One node of a workflow on what it takes, and what comes of it in the end."""
        if node.do == "retrieve" and self.equipment.chooser is not None:
            work = self._search(node, given)
            return work, work.value
        if node.do == "select":
            work = self._read(node, given)
            if isinstance(work.value, Selection):
                return work, self.look_again(node, self._joined(given), work.value)
            return work, work.value
        if searches_within(node):
            self._prepare_others(node)
        notes = Facts(tuple(Fact("", note) for note in self.notes))
        more = [notes] if final and self.notes else []
        work = self.run.node(node, node.id, [*given, *more], final=final)
        self._explain(node, workflow, work, final=final)
        return work, work.value

    def _prepare_others(self, node: Node) -> None:
        """Sub-questions are searched for by the strategies of their question."""
        chooser, retriever = self.equipment.chooser, self.equipment.retriever
        if chooser is None or retriever is None:
            return
        if self.choice is None:

            def choose(meter: Meter) -> tuple[None, str]:
                with meter.timed("choose"):
                    self.choice = made = chooser.choose(self.run.question, retriever)
                why = f" ({made.why})" if made.why else ""
                return None, f"chose {' + '.join(made.strategies)} to search for sub-questions{why}"

            self.step(Node(f"{node.id}-search", "choose"), choose)
        if self.choice is not None:
            self.run.kit = replace(self.run.kit, strategies=self.choice.strategies)

    def step(self, node: Node, act: Callable[[Meter], tuple[Value | None, str]]) -> Work:
        """One step of the policy's own: what it came to, and why, with what it took on the books."""
        work = Work(node, node.id)
        self.run.works.append(work)
        meter = work.meter = BranchMeter(self.run.reader, self.run.shared, self.run.replies)
        work.begun = time.perf_counter()
        try:
            self.run.shared.check()
            value, self.said[node.id] = act(meter)
            work.end(value)
        except LimitReached as limit:
            work.end(None, f"limit of {limit}")
        except MioRagError as error:
            work.end(None, str(error), error)
        if work.dropped is not None:
            self.said[node.id] = f"{node.do}: {work.dropped}"
        return work

    def _search(self, node: Node, given: Sequence[Value | None]) -> Work:
        texts = [text for value in given if isinstance(value, Queries) for text in value.texts]
        texts += [value for value in given if isinstance(value, str)]
        asked = list(dict.fromkeys(texts)) or [self.run.question.text]

        def find(meter: Meter) -> tuple[Candidates, str]:
            meters = self._meters(meter)
            pools = [self._found(text, meter, meters) for text in asked]
            assert self.choice is not None
            spent = sum(call.prompt_tokens + call.completion_tokens for call in meter.costs.calls)
            cost = self._cost_in_words(spent)
            why = f" ({self.choice.why})" if self.choice.why else ""
            return self._joined(pools), f"searched by {' + '.join(self.choice.strategies)}{cost}{why}"

        return self.step(node, find)

    def _meters(self, meter: Meter) -> Callable[[], Meter] | None:
        """Choose the strategies, where that was not done; None: they may ask a model, which is a step."""
        equipment, run = self.equipment, self.run
        assert equipment.retriever is not None
        assert equipment.chooser is not None
        if self.choice is None:
            with meter.timed("choose"):
                self.choice = equipment.chooser.choose(run.question, equipment.retriever)
        if any(strategy.needs_model for strategy in make_strategies(self.choice.strategies)):
            try:
                run.shared.step()
            except LimitReached:
                return lambda: OutOfSteps(run.reader, run.shared.limits, 0)
        return None

    def _found(self, text: str, meter: Meter, meters: Callable[[], Meter] | None) -> Candidates:
        """The pool of a query, by the strategies that were chosen for the question."""
        equipment, run = self.equipment, self.run
        assert equipment.retriever is not None
        assert equipment.chooser is not None
        assert self.choice is not None
        shared = run.shared
        left = shared.limits.tokens - shared.reserve - shared.spent - shared.held
        if left < 1:
            raise LimitReached(f"{shared.limits.tokens} tokens")
        each = SearchSettings(tokens=max(1, left // len(self.choice.strategies)))
        each = each.within(meter.seconds_left)
        shared.hold(left, False)
        before = len(meter.costs.spent)
        try:
            asked = run.question if text == run.question.text else Question(run.question.id, text)
            found = search(
                asked,
                equipment.retriever,
                run.reader,
                self.choice.strategies,
                each,
                weights=self.choice.weights,
                replies=run.replies,
                costs=meter.costs,
                meters=meters,
                alone=sets_to_compare(self.choice.strategies, self.choice.base)
                if equipment.chooser.learns
                else (),
            )
        finally:
            calls = [spent.call for spent in meter.costs.spent[before:]]
            shared.settle(left, sum(call.prompt_tokens + call.completion_tokens for call in calls), 0.0)
        if self.searched is None and text == run.question.text:
            self.searched = found
        self.left_out += [note for note in found.notes if note not in self.left_out]
        for identity, ranks in found.found.items():  # of several queries, the rank in the first
            self.found_by[identity] = {**ranks, **self.found_by.get(identity, {})}
        return found.pool

    def look_again(self, node: Node, pool: Candidates, selection: Selection) -> Selection:
        """What is read in the end, once something was; here that."""
        return selection

    @staticmethod
    def _joined(given: Sequence[Value | None]) -> Candidates:
        pools = [value for value in given if isinstance(value, Candidates)]
        if not pools or not any(map(len, pools)):
            raise Nothing("nothing was found")
        joined = pools[0]
        for other in pools[1:]:
            joined = merge_pools(joined, other, max(len(joined), len(other)), set())
        return joined

    def _read(self, node: Node, given: Sequence[Value | None]) -> Work:
        def read(meter: Meter) -> tuple[Selection, str]:
            pool = self._joined(given)
            amount = self._amount(pool, meter)
            selection = self.selected(pool, node, meter)
            self._learn(selection, meter)
            level = self.levels[node.id] = self.complete(pool, selection)
            return selection, f"{amount}{self.read_in_words(selection, level)}"

        return self.step(node, read)

    def read_in_words(self, selection: Selection, level: float) -> str:
        """What is read, in a sentence."""
        read = plural(len(selection.ids), "passage")
        if selection.unit == "sentence":
            read = f"{plural(len(selection.chosen), 'sentence')} of {read}"
        priced = f"; a token had to add {per_token(self.price)}" if self.priced else ""
        return (
            f"read {read}, {selection.tokens_used} tokens: the evidence is complete with "
            f"{share(level)}{priced}"
        )

    def _cost_in_words(self, tokens: int, lead: str = ": ") -> str:
        return (
            f"{lead}{tokens} tokens, {share(tokens * self.price)} at {per_token(self.price)} each"
            if tokens
            else ""
        )

    @property
    def priced(self) -> bool:
        """Whether the price decides what is read."""
        return self.equipment.policy.reading.by == "program"

    def _amount(self, pool: Candidates, meter: Meter) -> str:
        """Settle how much is read, once; what spoke for it, in words."""
        policy, states, run = self.equipment.policy, self.equipment.states, self.run
        if self.tier is not None or policy.amount.by == "price":
            return ""
        choice = TierChoice(0)
        said = ""
        if states.router is not None:
            with meter.timed("route"):
                utility = Utility(1.0, self.price)
                choice = Deciding(states.router, utility, policy.amount.unsure).choose(run.question, pool)
            correction = states.router.correction
            weak = correction is not None and top_score(pool) < correction.below
            self.corrected = weak and choice.place < len(states.tiers) - 1
            scores = ", ".join(f"{name} {share(score)}" for name, score in (choice.scores or {}).items())
            said = f" ({scores}{', one up: unsure' if choice.unsure else ''})"
            said += ", more since the search was weak" if self.corrected else ""
        tier = self.tier = states.tiers[choice.place]
        if tier.unit == "tokens":
            run.budget_tokens = min(run.budget_tokens, tier.context)
        run.kit = replace(run.kit, max_tokens=tier.new_tokens)
        return f"tier {tier.name}{said}; "

    def selected(self, pool: Candidates, node: Node, meter: Meter, tokens: int | None = None) -> Selection:
        """What is read of a pool, of so many tokens at most; None: as many as the question may read."""
        equipment, run = self.equipment, self.run
        retriever = equipment.retriever
        assert retriever is not None
        price = max(self.price, float(node.settings.get("token_price", 0.0)))
        program = self.program if price == self.price else self.program.replace(token_price=price)
        budget = max(1, int((tokens or run.budget_tokens) * float(node.settings.get("share", 1.0))))
        if self.tier is not None:
            tier = self.tier
            if equipment.policy.reading.by == "program" or tier.token_price is not None:
                tier = replace(tier, token_price=price)
            correction = None if equipment.states.router is None else equipment.states.router.correction
            more = correction.more if self.corrected and correction is not None else 0
            return TierReader(tier, retriever, program).read(pool, budget, run.reader, meter, more)
        with meter.timed("select"):
            if equipment.policy.reading.by == "ranking":
                fused = replace(pool, relevance=pool.scores["fused"])
                chosen = _RANKED.replace(options=program.options).select(fused, budget, retriever.counter)
            else:
                chosen = program.select(pool, budget, retriever.counter)
        if chosen.result.x is None:
            raise InfeasibleError(chosen.explain())
        return chosen

    def complete(self, pool: Candidates, selection: Selection) -> float:
        """The probability that the evidence is complete; never above that of there being an answer at all."""
        valued = selection.pool
        if not self.priced or len(valued) != len(pool):
            valued = self.program.valued(pool)
        place = {name: i for i, name in enumerate(valued.ids)}
        chosen = [place[name] for name in selection.ids]
        model = self.equipment.states.completeness or shipped()
        level = model.probability(valued.relevance, chosen, self.run.question.text)
        likely = self.program.answerable(pool)
        return level if likely is None else min(level, likely)

    def _learn(self, selection: Selection, meter: Meter) -> None:
        """Tell who chose the strategies what came of them, once."""
        chooser, searched, choice = self.equipment.chooser, self.searched, self.choice
        if chooser is None or not chooser.learns or searched is None or choice is None:
            return
        self.searched = None
        with meter.timed("learn"):
            retriever = self.equipment.retriever
            counter = None if retriever is None else retriever.counter
            added = measured(chooser, self.program, searched, choice, self.run.budget_tokens, counter)
            spent = {one.strategy: one.amount for one in searched.tried}
            chooser.learn(choice, Seen(searched, selection, added, spent))

    def search_told(self, read: Sequence[str]) -> dict[str, Any]:
        """What a trace says of strategies and who found what is read; nothing where none were chosen.

        Nor where they searched for sub-questions alone: nobody learns from that, and no rating is for them.
        """
        if self.choice is None or not self.found_by:
            return {}
        found = {identity: self.found_by.get(identity, {}) for identity in read}
        names = list(self.choice.strategies)
        said = {"why": self.choice.why, "notes": list(self.left_out)}
        return {"id": self.choice.id, "strategies": names, **said, **self.choice.about, "found_by": found}

    def _explain(self, node: Node, workflow: str, work: Work, *, final: bool) -> None:
        spent = sum(s.call.prompt_tokens + s.call.completion_tokens for s in work.spent())
        cost = self._cost_in_words(spent)
        if work.dropped is not None:
            self.said[node.id] = f"{node.do}: {work.dropped}"
        elif final and isinstance(work.value, Reply) and not (work.value.answer.text or work.spent()):
            self.said[node.id] = f"no model was asked: {self.nothing}"
        elif final:
            cost = self._cost_in_words(spent, "; with the prompt ")
            self.said[node.id] = f"answered in at most {self.run.kit.max_tokens} tokens{cost}"
        else:
            done = {"retrieve": "searched for the question", "decompose": "broke the question into parts"}
            known = done.get(node.do, f"did the step {node.id}, {node.do}, of {workflow}")
            self.said[node.id] = f"{known}{cost}"
