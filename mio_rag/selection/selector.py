"""Candidates -> program -> solver -> Selection.

    maximise   sum_i (r_i - lambda_2 - lambda_3 c_i) x_i  -  lambda_1 sum_{i<j} s_ij x_i x_j
    subject to sum_i c_i x_i <= budget_tokens, and the side rows (`mio_rag.selection.constraints`)

with relevance r, similarity s (inner products of the embeddings), token costs c; under embedding uncertainty
the termwise or the joint robust counterpart of it (`mio_rag.selection.program`). Relevance may be a
calibrated probability (`mio_rag.relevance`). Choosing related passages (one mentions the other, or both are
of one short document) can add a benefit of `link_benefit * max(r_i, r_j)`, times how close the relation is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter, in_prompt_order
from mio_rag.errors import InputError, MioRagError, SolverError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.rows import count_problem
from mio_rag.merging import block_tokens
from mio_rag.selection.many import Steps, finish_many
from mio_rag.selection.presets import preset_settings
from mio_rag.selection.program import Formulation
from mio_rag.selection.result import Selection
from mio_rag.selection.settings import Settings
from mio_rag.selection.solving import Choice, concluded, solved
from mio_rag.selection.units import units_for
from mio_rag.solvers.many import Executor
from mio_rag.solvers.paths import path_solver
from mio_rag.solvers.result import SolveResult, Status

__all__ = ["Selector"]

#: Programs of one question at most, where what passages share leaves room for more of them.
_MOST_ROUNDS = 5


@dataclass(frozen=True)
class Selector(Settings):
    """Chooses passages under a token budget, with a certificate of optimality.

    Its parameters, by position or by name, and what is checked of them, are those of
    `mio_rag.selection.settings.Settings`. Without any it is what measured best on questions of sets that
    nothing was fitted on; `preset` gives others by name.
    """

    @classmethod
    def preset(cls, name: str, **settings: Any) -> Selector:
        """The selector of a preset, changed by one's own settings.

        Parameters
        ----------
        name : {"default", "frugal", "thorough", "raw"}
            See `mio_rag.selection.presets`.
        **settings
            Parameters of `Selector`; those that the preset decides itself are refused.

        Raises
        ------
        InputError
            If there is no such preset, or it excludes a setting.
        """
        told = [setting for setting, value in settings.items() if value not in (None, "given")]
        return cls(**{**preset_settings(name, told), **settings})

    @classmethod
    def raw(cls, **settings: Any) -> Selector:
        """The bare program, for relevance on a scale of one's own: ``preset("raw", **settings)``."""
        return cls.preset("raw", **settings)

    def program(
        self, candidates: Candidates, budget_tokens: int, counter: TokenCounter | None = None
    ) -> SelectionProgram:
        """The program for a pool: nominal, or the termwise counterpart where a radius is above 0.

        The candidates are taken as they are: with a `relevance_model`, pass what `valued` made of them. With
        the reader's tokenizer, what passages share is paid once.

        Raises
        ------
        InputError
            If the candidates lack what the settings need.
        """
        own = self.decided(candidates, budget_tokens, counter)
        return Formulation(own, candidates, counter).program(budget_tokens)

    def decided(
        self, candidates: Candidates, budget_tokens: int, counter: TokenCounter | None = None
    ) -> Selector:
        """The same, with passages or sentences by the room there is, where ``units="auto"`` leaves it open.

        See `mio_rag.selection.units.units_for`. What `select` chooses is passages even so where all that are
        worth their price fit.

        Parameters
        ----------
        candidates : Candidates
            With the relevance that these settings give them, see `valued`.
        """
        units = units_for(self, candidates, budget_tokens, counter)
        if units == self.units:
            return self
        known: dict[str, Selector] = self.__dict__.setdefault("_variants", {})
        if units not in known:  # checking settings takes longer than many a program
            known[units] = replace(self, units=units)
        return known[units]

    def select(
        self, candidates: Candidates, budget_tokens: int, counter: TokenCounter | None = None
    ) -> Selection:
        """Choose passages.

        Parameters
        ----------
        candidates : Candidates
        budget_tokens : int
            Largest size of the context block, >= 1.
        counter : TokenCounter, optional
            The reader's tokenizer. With it `tokens_used` is the measured size of the assembled block rather
            than the sum of single passages; should the block come out larger than the budget (a tokenizer may
            count a whole higher than its parts), the program is solved again with a budget that is smaller in
            proportion, by one passage at most, until the block fits. The certificate is then one for that
            smaller budget, `program.budget`. Text that passages share is read and paid once (`merge`). Under
            embedding uncertainty the program pays for it twice; it is then solved again with a budget that is
            larger by what that saves, as long as the block fits.

        Returns
        -------
        Selection
            With an empty choice where the constraints are infeasible or the solver found nothing
            (`result.status` says which), or where no passage fits or is worth its price (`notes` say why).

        Raises
        ------
        InputError
            If the pool is empty.
        SolverError
            If the solver broke.
        """
        return concluded(self.choose(candidates, budget_tokens, counter))

    def choose(
        self,
        candidates: Candidates,
        budget_tokens: int,
        counter: TokenCounter | None = None,
        *,
        known: Formulation | None = None,
    ) -> Choice:
        """What `select` decides, before it is put for people: notes, reasons, where rules conflict.

        Parameters, and what is raised, are those of `select`.

        Parameters
        ----------
        known : Formulation, optional
            `Choice.formulation` of the same selector, candidates and counter at another budget: what does not
            depend on the budget is not built again.
        """
        steps = self._choices(candidates, budget_tokens, counter, known)
        program = next(steps)
        run, spent = path_solver(self.solver, self.options), 0.0
        while True:
            result = run(program, spent)
            spent += result.wall_seconds  # the time limit is the question's, however many programs it takes
            try:
                program = steps.send(result)
            except StopIteration as done:
                choice: Choice = done.value
                return choice

    def select_many(
        self,
        pools: Sequence[Candidates],
        budget_tokens: int | Sequence[int],
        counter: TokenCounter | None = None,
        *,
        workers: int = 1,
        executor: Executor = "threads",
        progress: Callable[[int], None] | None = None,
    ) -> list[Selection | MioRagError]:
        """`select` for many questions, side by side.

        Parameters
        ----------
        pools : sequence of Candidates
            One for each question.
        budget_tokens : int or sequence of int
            For every question, or one for each.
        counter : TokenCounter, optional
            As in `select`; used by the calling thread only.
        workers, executor
            As in `mio_rag.solvers.solve_many`. Programs are built, and blocks counted, by the calling thread;
            the solving is what the workers share.
        progress : callable, optional
            Called with 1 as each question is finished.

        Returns
        -------
        list of Selection or MioRagError
            In the order of the pools: what `select` returns for each question, or the error that it raises.

        Raises
        ------
        InputError
            For what would fail for every question: workers, executor, solver, the number of budgets.
        """
        if isinstance(budget_tokens, (int, float, np.number)):
            budget_tokens = [budget_tokens] * len(pools)
        if len(budget_tokens) != len(pools):
            raise InputError(f"budget_tokens has {len(budget_tokens)} values, expected one, or {len(pools)}")
        steps = [
            self._steps(pool, budget, counter) for pool, budget in zip(pools, budget_tokens, strict=True)
        ]
        return finish_many(
            steps, self.solver, self.options, workers=workers, executor=executor, progress=progress
        )

    def _by_room(
        self, candidates: Candidates, budget: int, counter: TokenCounter | None, known: Formulation | None
    ) -> Generator[SelectionProgram, SolveResult, Choice]:
        """Sentences where the budget has little room and a passage that is worth its price does not fit."""
        valued = self.valued(candidates)
        own = self.decided(valued, budget, counter)
        if own.units == "passages":
            return (yield from own._choices(candidates, budget, counter, known))
        whole = replace(own, units="passages")
        made = yield from whole._choices(candidates, budget, counter, known)
        # What another passage would add is judged at the same prices: they may depend on the budget.
        free = replace(whole, passage_penalty=made.formulation.penalty(budget))
        room = max(budget, int(valued.tokens.sum()))
        wanted = yield from free._choices(candidates, room, counter)
        if made.result.x is not None and set(wanted.chosen) == set(made.chosen):
            return made
        parts = yield from own._choices(candidates, budget, counter, known)
        return replace(parts, by_room=True)

    def _steps(self, candidates: Candidates, budget_tokens: int, counter: TokenCounter | None) -> Steps:
        """What `select` does, handing out each program that is to be solved and waiting for its result."""
        return concluded((yield from self._choices(candidates, budget_tokens, counter)))

    def _choices(
        self,
        candidates: Candidates,
        budget_tokens: int,
        counter: TokenCounter | None,
        known: Formulation | None = None,
    ) -> Generator[SelectionProgram, SolveResult, Choice]:
        if len(candidates) == 0:
            raise InputError("there are no candidates to select from: retrieve a pool first")
        if problem := count_problem("budget_tokens", budget_tokens):
            raise InputError(problem)
        budget = int(budget_tokens)
        if self.units == "auto":
            return (yield from self._by_room(candidates, budget, counter, known))
        if known is not None and known.settings.units == self.units:
            formulation = known.again()
        else:
            formulation = Formulation(self, self.valued(candidates), counter)
        candidates, merge, allowed = formulation.candidates, formulation.is_merged, budget
        best: Choice | None = None
        rounds, more_room = 0, counter is not None and merge
        while True:
            rounds += 1
            found = yield from solved(formulation, allowed)
            program, result = found.program, found.result
            if result.status is Status.ERROR:
                raise SolverError(result.message)
            if result.status is Status.INFEASIBLE and more_room and counter is not None:
                more_room = False
                required = [int(i) for i in np.flatnonzero(program.fixed == 1) if i < len(candidates)]
                alone = np.isin(np.arange(program.n), required).astype(np.int8)
                order = in_prompt_order(candidates, required, self.prompt_order)
                read, summed = block_tokens(candidates, order, counter, merge), round(program.cost(alone))
                if read <= budget < summed:  # together they are shorter than one by one
                    allowed = budget + summed - read
                    continue
            # Behind the passages stand items that buy broken rows: nobody reads them.
            picked = [i for i in result.selected if i < len(candidates)]
            chosen = in_prompt_order(candidates, picked, self.prompt_order)
            used = summed = round(program.cost(result.x)) if result.x is not None else 0
            if counter is not None:
                used = block_tokens(candidates, chosen, counter, merge)
            if used > budget and best is None:
                # In proportion, but by no more than one passage: what is asked for must not drop out with it.
                optional = [round(program.alone[i]) for i in chosen if i in program.free]
                allowed = max(summed * budget // used, summed - max(optional, default=summed))
                continue
            now = Choice(formulation, found, result, chosen, used, budget, allowed, merge)
            before = best
            same = best is not None and set(now.chosen) == set(best.chosen) and used <= budget
            if best is None or _is_better(now, best) or (same and now.allowed > best.allowed):
                best = now
            # What is shared is read once: so many tokens more may be read; half as many where that failed.
            allowed = budget + summed - used if best is now else (allowed + best.allowed) // 2
            settled = before is not None and set(chosen) == set(before.chosen)
            if not merge or settled or rounds >= _MOST_ROUNDS or allowed <= best.allowed:
                break
        if best.result.status is Status.INFEASIBLE and best.allowed < budget:
            message = (
                f"no selection satisfies the constraints within {best.allowed} tokens, all that is left "
                f"of {budget} where the assembled block counts more than its passages"
            )
            return replace(best, result=replace(best.result, message=message))
        return best


def _is_better(choice: Choice, other: Choice) -> bool:
    """Whether a choice fits and is worth more; with more room a heuristic may find less."""
    one, two = choice.result.objective, other.result.objective
    return choice.used <= choice.budget_tokens and (two is None or (one is not None and one > two))
