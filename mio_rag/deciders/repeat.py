"""Repeat: search again, think, or stop; by the price, by the decision process, or by a published rule.

A rule sees U, how uncertain the agent is, from 1 (knows nothing) to 0 (certain), as one of these signals:

tracked      U follows the model: reasoning lowers it by delta_p; retrieving by delta_r with chance p_s
             (drawn, seeded), and only if something is read that was not read before
confidence   U = 1 - the geometric mean probability of the tokens of a draft answer. Of n options U is
             (1 - p) n / (n - 1) with p the probability of the one chosen. Every draft counts as a cost
evidence     U = 1 - the largest relevance among what is read; reasoning does not change it
complete     U = 1 - the probability that the evidence is complete (`mio_rag.relevance.complete`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.learning.rules import Decision, Policy, ProcessStep, draw, open_actions, tracked_next
from mio_rag.learning.rules import State as View
from mio_rag.selection.result import Selection
from mio_rag.session.state import Action, Memory, Result, State
from mio_rag.session.tools import memory_of
from mio_rag.session.trace import per_token, share

_AHEAD = 64  # searches whose gain is computed; later ones change no decision


@dataclass(frozen=True)
class Looked:
    """What another search would take, and may bring.

    gain: expected rise of the probability that the evidence is complete.
    tokens: expected: to word the query, and to read what is found.
    price: of a token.
    """

    gain: float
    tokens: int
    price: float

    @property
    def cost(self) -> float:
        """What these tokens must add."""
        return self.tokens * self.price


#: Decides what to do next, and says why.
Rule = Callable[[View, Looked], Decision]


def _weighed(action: str, value: float, gain: float, looked: Looked, view: View, at: str = "") -> Decision:
    """A decision with what decided: a gain, `at` which U it was expected, and the cost."""
    scores = {"stop": 0.0, "retrieve": value}
    if "retrieve" not in view.open:
        return Decision(action, scores, "stopped: no further search would bring anything new")
    digits = 2
    # Rounded, close ones could contradict the action.
    while (round(gain, digits) > looked.cost) != (gain > looked.cost):
        digits += 1
    expected = f"+{share(gain, digits)}{at} for {looked.tokens} tokens at {per_token(looked.price)}"
    why = f"retrieved again: expected {expected}"
    if action == "stop":
        cost = share(looked.cost, digits)
        why = f"stopped: another search was expected to bring {expected}, which would cost {cost}"
    return Decision(action, scores, why)


def by_price(view: View, looked: Looked) -> Decision:
    """One step ahead: search while what it is expected to add is more than its tokens cost."""
    value = looked.gain - looked.cost
    action = "retrieve" if "retrieve" in view.open and value > 0 else "stop"
    return _weighed(action, value, looked.gain, looked, view)


def by_process(finds: float, most: int, signal: str = "complete") -> Rule:
    """Return the optimal policy of the decision process whose costs are the price times tokens.

    Every search is expected to find the same share of what is missing by then, at the same cost. None is thus
    worth more than the one before it, and a sum solves the process at any U: where the next search does not
    pay, no number of searches does.

    finds: share of U that a search is expected to take away.
    most: searches after the first.
    signal: how U is known.
    """

    def decide(view: View, looked: Looked) -> Decision:
        first = gain = finds * view.doubt
        value = gain - looked.cost
        for _ in range(view.step, min(most, view.step + _AHEAD)):
            gain *= 1 - finds
            value += max(0.0, gain - looked.cost)
        action = "retrieve" if "retrieve" in view.open and value > 0 else "stop"
        at = "" if signal == "complete" else f" at U = {share(view.doubt)} ({signal})"
        return _weighed(action, value, first, looked, view, at)

    return decide


def published(policy: Policy) -> Rule:
    """Return a rule with constants of its own; the price is not asked."""

    def decide(view: View, looked: Looked) -> Decision:
        found = policy.decide(view)
        did = {"retrieve": "retrieved again", "reason": "thought", "stop": "stopped"}[found.action]
        return replace(found, why=f"{did}: {policy.name} at U = {share(view.doubt)}")

    return decide


@dataclass(frozen=True)
class _History:
    """The steps of a loop so far, as rules look at them, and what is known after them."""

    steps: tuple[ProcessStep, ...]
    memory: Memory
    uncertainty: float | None  # None: a draft must tell
    closed: tuple[str, ...]
    draft: str | None
    complete: float | None
    ended: bool


@dataclass(frozen=True, eq=False)
class Repeat:
    """Before what was read is used: search again, think, or stop.

    signal: how U is known: tracked, confidence, evidence or complete.
    query: who words the next search: the question with the best passage that was read, or the model.
    finds: share of the missing probability that another search is expected to add, in [0, 1].
    most: searches after the first; None: as many as the rule wants.
    from_start: whether the rule also decides whether to search at all; the first query is then the question.
    closed_book: whether there is nothing to search in.
    model: whose dynamics "tracked" follows.
    note_tokens, max_notes: longest note; how many of the last ones the model sees.
    query_tokens, query_temperature: longest query of a model, and of sampling it.
    """

    rule: Rule
    signal: str = "complete"
    query: str = "feedback"
    finds: float = 0.15
    most: int | None = 2
    from_start: bool = False
    closed_book: bool = False
    seed: int = 0
    model: RetrievalMDP = field(default_factory=RetrievalMDP)
    note_tokens: int = 48
    max_notes: int = 4
    query_tokens: int = 32
    query_temperature: float = 0.0

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        """Hold back what uses a selection until its loop has ended, and propose the loop's next action."""
        if self.from_start:
            answers = [action for action in proposed if action.final]
            if not answers or state.running:
                return proposed
            return self._next(state, "", answers[0])
        kept: list[Action] = []
        for action in proposed:
            loops = [id for id in action.inputs if _is_read(state.results.get(id))]
            if not loops:
                kept.append(action)
                continue
            if state.running:
                continue
            for loop in loops:
                found = self._next(state, loop, action)
                if found != (action,):
                    kept += [one for one in found if one.id not in {k.id for k in kept}]
                    break
                action = replace(action, inputs=tuple(_last_of(state, loop, id) for id in action.inputs))
            else:
                kept.append(self._with_notes(state, loops, action))
        return tuple(kept)

    def _with_notes(self, state: State, loops: Sequence[str], action: Action) -> Action:
        notes = [note for loop in loops for note in memory_of(state, loop).notes] if action.final else []
        return replace(action, settings={**action.settings, "notes": tuple(notes)}) if notes else action

    def _next(self, state: State, loop: str, action: Action) -> tuple[Action, ...]:
        """The loop's next action; the action itself where the loop has ended."""
        history = self._history(state, loop)
        base = f"{loop}-again" if loop else "step"
        count = sum(r.action.settings.get("loop") == loop for r in state.results.values()) + bool(loop)
        if history.ended:
            return (action,) if loop else (self._answer(state, history, action, {}),)
        if self.signal == "confidence" and history.uncertainty is None:
            draft = Action(f"{base}-{count}", "draft", settings={"loop": loop, "max_notes": self.max_notes})
            return (draft,)
        level = 1.0 if history.uncertainty is None else history.uncertainty
        possible = open_actions(history.steps, self.closed_book, history.closed)
        if self._is_through(history):
            possible = tuple(name for name in possible if name != "retrieve")
        view = View(state.question.id, len(history.steps), level, possible)
        decision = self.rule(view, self._looked(state, history))
        why = "" if self.from_start else decision.why
        closed = list(history.closed)
        about: dict[str, Any] = {"uncertainty": level, "q_values": decision.q_values, "closed": closed}
        settings: dict[str, Any] = {"loop": loop, "max_notes": self.max_notes}
        if decision.action == "stop":
            if not loop:
                return (self._answer(state, history, action, about),)
            why = f"{why}; the evidence is complete with {share(history.complete or 0.0)}"
            return (Action(f"{base}-{count}", "stop", settings=settings, why=why, about=about),)
        if self.from_start and len(history.steps) >= state.limits.steps:
            return (self._answer(state, history, action, {**about, "ended": f"{state.limits.steps} steps"}),)
        if decision.action == "reason":
            settings["note_tokens"] = self.note_tokens
            return (Action(f"{base}-{count}", "reason", settings=settings, why=why, about=about),)
        settings |= {"query": self.query, "uncertainty": level, "asks": bool(loop)}
        settings |= {"query_tokens": self.query_tokens, "query_temperature": self.query_temperature}
        if loop:
            start = state.results[loop].action.settings
            settings = {**{k: v for k, v in start.items() if k in _READING}, **settings}
        return (Action(f"{base}-{count}", "search_again", settings=settings, why=why, about=about),)

    def _answer(self, state: State, history: _History, action: Action, about: dict[str, Any]) -> Action:
        """The answer of a rule that decides from the start: from what its loop has read and noted."""
        settings: dict[str, Any] = {**action.settings, "loop": "", "max_notes": self.max_notes}
        if history.draft is not None:
            settings["draft"] = history.draft
        told = {**about, "signal": self.signal}
        told.setdefault("uncertainty", 1.0 if history.uncertainty is None else history.uncertainty)
        return replace(action, settings=settings, about=told)

    def _is_through(self, history: _History) -> bool:
        """Whether no further search is allowed, or could be worded."""
        if self.from_start:
            return False
        searches = sum(step.action == "retrieve" for step in history.steps)
        read = history.memory.selection is not None and history.memory.selection.chosen
        return (self.most is not None and searches > self.most) or (self.query == "feedback" and not read)

    def _looked(self, state: State, history: _History) -> Looked:
        """What one more search may bring: a share of what is missing, for a passage and the words to ask."""
        pool, selection = history.memory.pool, history.memory.selection
        if pool is None or history.complete is None:
            return Looked(0.0, 0, state.price)
        tokens = int(np.median(pool.tokens))
        if self.query == "model":
            tokens += (0 if selection is None else selection.tokens_used) + self.query_tokens
        return Looked(self.finds * (1.0 - history.complete), tokens, state.price)

    def _history(self, state: State, loop: str) -> _History:
        """Replay the loop's results: the steps, and U after the last of them."""
        memory = memory_of(state, loop)
        steps: list[ProcessStep] = []
        seen = Memory(state.question)
        draft: str | None = None
        closed: tuple[str, ...] = ()
        level: float | None = None if self.signal == "confidence" else 1.0
        tracked, complete, ended = 1.0, None, False

        def add(did: str, query: str, note: str, new: tuple[str, ...]) -> None:
            nonlocal tracked, closed
            chance = draw(self.seed, state.question.id, len(steps), 1)
            tracked = tracked_next(self.model, did, tracked, len(new) + bool(note), chance)
            read = () if seen.selection is None else seen.selection.ids
            steps.append(ProcessStep(did, query, note, new, read, closed))
            closed = ()

        if loop:
            start = state.results[loop]
            seen.selection = start.value if isinstance(start.value, Selection) else None
            complete = start.facts.get("complete")
            add("retrieve", state.question.text, "", () if seen.selection is None else seen.selection.ids)
        for result in state.results.values():
            if result.action.settings.get("loop") != loop or result.action.final:
                continue
            do = result.action.do
            if result.dropped is not None:
                # An action that failed, or met a limit, ends the loop; a draft leaves U as it is.
                if do != "draft" or level is None:
                    ended = True
                continue
            if do == "stop":
                ended = True
            elif do == "draft":
                level = float(result.facts["uncertainty"])
                draft = result.action.id if result.value is not None else None
            elif do == "search_again" and result.facts.get("repeated"):
                closed = (*closed, "retrieve")
            elif do == "search_again" and isinstance(result.value, Selection):
                before = () if seen.selection is None else seen.selection.ids
                seen.selection = result.value
                complete = result.facts.get("complete", complete)
                new = tuple(result.facts["new"])
                add("retrieve", str(result.facts["query"]), "", new)
                if self.signal == "confidence" and (new or result.value.ids != before):
                    draft = None if result.value.ids != before else draft
                    level = None if new or draft is None else level
            elif do == "reason":
                note = str(result.value or "")
                add("reason", "", note, ())
                if self.signal == "confidence" and note:
                    draft, level = None, None
        if self.signal != "confidence":
            level = self._level(seen, tracked, complete)
        return _History(tuple(steps), memory, level, closed, draft, complete, ended)

    def _level(self, seen: Memory, tracked: float, complete: float | None) -> float:
        """U of what is read; raises `InputError` if relevance is no probability."""
        if self.signal == "tracked":
            return tracked
        read = seen.selection
        if self.signal == "evidence":
            if read is None or not read.chosen:
                return 1.0
            return 1.0 - min(1.0, max(0.0, *(float(read.candidates.relevance[i]) for i in read.chosen)))
        if not self.from_start:
            return 1.0 - (complete or 0.0)
        if read is not None and read.complete is None:
            raise InputError(
                "whether the evidence is complete is known from probabilities, and relevance is as the "
                "candidates have it: leave relevance at auto, or measure U by evidence"
            )
        return 1.0 - (0.0 if read is None or read.complete is None else read.complete)


_READING = ("token_price", "share", "units", "tier", "more")


def _is_read(result: Result | None) -> bool:
    return result is not None and result.action.do == "select" and isinstance(result.value, Selection)


def _last_of(state: State, loop: str, id: str) -> str:
    """What takes the place of a loop's first selection: its last one."""
    if id != loop:
        return id
    for result in reversed(state.results.values()):
        if result.action.settings.get("loop") == loop and isinstance(result.value, Selection):
            return result.action.id
    return id
