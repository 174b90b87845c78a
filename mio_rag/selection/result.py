"""What was chosen: the decision on each passage, the certificate, the worst case."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mio_rag.context import Block, documents, merged, render_context
from mio_rag.errors import InputError
from mio_rag.formulations.numbers import plural
from mio_rag.pool import Candidates
from mio_rag.relevance.complete import complete
from mio_rag.selection.explain import Attack, Decision, attack
from mio_rag.types import Passage, one_line

if TYPE_CHECKING:
    from mio_rag.formulations.program import SelectionProgram
    from mio_rag.formulations.robust import JointProblem
    from mio_rag.formulations.uncertainty import UncertaintySet
    from mio_rag.relevance.model import RelevanceSource
    from mio_rag.solvers.paths import Conflict
    from mio_rag.solvers.result import SolveResult


class Note(str):
    """A sentence for people, with a code for programs, and the documents that it is about."""

    code: str
    sources: tuple[str, ...]

    def __new__(cls, code: str, text: str, sources: Iterable[str] = ()) -> Note:
        """Make a note."""
        made = super().__new__(cls, text)
        made.code, made.sources = code, tuple(sources)
        return made


#: Methods that solve the program; all others rank, which proves nothing.
_PROGRAMS = ("mio", "exact", "program", "greedy", "local_search", "allocated", "paced")
_RANKINGS = ("topk", "mmr", "density")  # solvers


@dataclass(frozen=True)
class WorstCase:
    """The value of a selection for the worst embeddings in the uncertainty set.

    counterpart: which counterpart was maximised: "termwise" or "joint".
    lower: certified: no perturbation of the set makes the selection worth less. Where relevance comes from a
        model, ranks, best scores and spreads of the pool stay as the search observed them.
    upper: reached: some perturbation makes it worth no more; None where none was looked for.
    programs: solved to find the selection.
    """

    counterpart: str
    lower: float
    upper: float | None
    programs: int = 1

    def explain(self) -> str:
        """One line for a person."""
        if self.upper is None:
            return f"worst case ({self.counterpart}): at least {self.lower:.6g}"
        return f"worst case ({self.counterpart}): between {self.lower:.6g} and {self.upper:.6g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "counterpart": self.counterpart,
            "lower": self.lower,
            "upper": self.upper,
            "programs": self.programs,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """The chosen passages in prompt order, with reasons and certificate.

    chosen: indices into `candidates`, in prompt order.
    tokens_used: of the context block, where the reader's tokenizer counted it; otherwise the sum of the
        chosen passages' token costs. Never above `budget_tokens`.
    result: status, objective, certified bound and gap of the program that was solved.
    reasons: nothing -> the `decisions`, made when they are first asked for.
    worst_case: under embedding uncertainty.
    remarks: nothing -> the `notes`, made when they are first asked for.
    conflict: where nothing is feasible: requirements that cannot hold together, and the budget that would do.
    problem: uncertainty set (None: the selector's own) -> the robust problem, for `attack`.
    relevance_source: where the candidates' relevance comes from, and why from there.
    answerable: an estimate that the collection holds an answer at all, see `mio_rag.relevance.model`: good at
        questions about something else, weak where documents nearly answer; None where nothing tells.
    is_merged: whether passages of one document are read as one text (`mio_rag.context`).
    retrieved: the passages, where `candidates` are their sentences.
    counter: name of the counter of the context's tokens; empty: tokens are those that candidates came with.
    method: name of the method that chose, as in `evaluate`.

    Where constraints may be broken at a price, `program` and `result.x` hold an item behind the passages for
    each size of a violation, and one, always selected, for the objective's constant.
    """

    candidates: Candidates
    chosen: tuple[int, ...]
    tokens_used: int
    budget_tokens: int
    result: SolveResult
    program: SelectionProgram
    reasons: Callable[[], tuple[Decision, ...]]
    worst_case: WorstCase | None = None
    remarks: Callable[[], tuple[Note, ...]] = tuple
    conflict: Conflict | None = None
    problem: Callable[[UncertaintySet | None], JointProblem] | None = None
    relevance_source: RelevanceSource | None = None
    answerable: float | None = None
    is_merged: bool = False
    retrieved: Candidates | None = None
    counter: str = ""
    method: str = "mio"

    def __repr__(self) -> str:
        """What was chosen, on a line; all of it would be pages."""
        return (
            f"<Selection: {plural(len(self.chosen), self.unit)}, {self.tokens_used} of {self.budget_tokens} "
            f"tokens, {self.result.status.value}; {', '.join(self.ids) or 'nothing'}>"
        )

    def attack(
        self,
        uncertainty: UncertaintySet | None = None,
        *,
        restarts: int = 8,
        random: int = 100,
        seed: int = 0,
    ) -> Attack:
        """Perturb the embeddings to make this selection as bad as possible.

        uncertainty: where the perturbations lie; the set that the selection was made for by default.
        restarts: random starts of the block-coordinate descent, beside the first-order worst case.
        random: random perturbations, for comparison.

        Returns `.worst` (reached) never lies below `.certified`.

        Raises `InputError` if there is no selection, the candidates have no embeddings, or they are
        sentences.
        """
        if self.problem is None or self.result.x is None:
            raise InputError("there is no selection to attack")
        if self.retrieved is not None:
            raise InputError(
                "a selection of sentences has no worst case, since their probabilities are those of passages "
                "as embedded: attack a selection with units='passages'"
            )
        return attack(self.problem(uncertainty), self.result.x, restarts=restarts, random=random, seed=seed)

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """Constraints that were broken at their price, what holds for those that name passages outside the
        pool, why nothing or little was chosen, and what else to know of the question and the documents."""
        return self.remarks()

    def with_notes(self, *notes: Note, **changes: Any) -> Selection:
        """Return the same with more notes, and changed fields."""
        return replace(self, remarks=lambda: (*self.notes, *notes), **changes)

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """One for each candidate, in candidate order."""
        return self.reasons()

    @property
    def certified_tokens(self) -> int | None:
        """Tokens of the choice by the program's own count, which its certificate holds for; None without one.

        A tokenizer may count a merged text lower than its parts: then this lies above `tokens_used`, and no
        choice of at most `program.budget` tokens by this count is worth more.
        """
        return None if self.result.x is None else round(self.program.cost(self.result.x))

    @cached_property
    def counts_parts(self) -> str | None:
        """What the certificate is about, in words, where that is not what is read; otherwise None.

        The program adds up the tokens of parts. Where passages of one document are read as one text, a
        tokenizer may count that lower, and a choice that fits only so counted may have been passed over.
        """
        number = documents(self.candidates)
        together = self.is_merged and bool(np.any(np.bincount(number[number >= 0]) > 1))
        if self.result.x is None or not (together or self.certified_tokens != self.tokens_used):
            return None
        return f"of at most {plural(round(self.program.budget), 'token')}, counted part by part"

    @property
    def pool(self) -> Candidates:
        """The passages that were chosen from, or whose sentences were, best first."""
        return self.candidates if self.retrieved is None else self.retrieved

    @property
    def unit(self) -> Literal["passage", "sentence"]:
        """What is chosen."""
        return self.candidates.unit

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the chosen passages, in prompt order; of chosen sentences, the passages that they are of."""
        names = self.candidates.passage_ids
        return tuple(dict.fromkeys(names[i] for i in self.chosen))

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where in `pool` the passages of `ids` stand."""
        if self.retrieved is None:
            return self.chosen
        place = {name: i for i, name in enumerate(self.retrieved.ids)}
        return tuple(place[name] for name in self.ids)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """What is read, in prompt order, and where in it each chosen passage lies."""
        if self.is_merged:
            return merged(self.candidates, self.chosen)
        return tuple(block for i in self.chosen for block in merged(self.candidates, [i]))

    @property
    def passages(self) -> tuple[Passage, ...]:
        """What is read, in prompt order: the chosen passages, those of one document as one where merged."""
        return tuple(block.passage for block in self.blocks)

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of what is read, in prompt order."""
        return tuple(block.passage.text for block in self.blocks)

    @property
    def tokens(self) -> int:
        """Tokens of the context."""
        return self.tokens_used

    @property
    def budget(self) -> int:
        """Largest size of the context, in tokens."""
        return self.budget_tokens

    def why(self) -> str:
        """Return why each passage was chosen or left out; see `explain`."""
        return self.explain()

    def proof(self) -> str:
        """Return the certificate in one line."""
        return self.result.certificate()

    @cached_property
    def complete(self) -> float | None:
        """The probability that all passages which the answer needs are among the chosen ones, in [0, 1].

        None where relevance is no probability; of sentences, as if all of their passages were read. Never
        above `answerable`: what is not in the collection cannot be read. See `mio_rag.relevance.complete`.
        """
        if self.relevance_source is None or self.relevance_source.kind in ("given", "documents"):
            return None
        level = complete(self.pool.relevance, self.places, self.pool.question)
        return level if self.answerable is None else min(level, self.answerable)

    def explain(self) -> str:
        """A plain-text account: the certificate first, then one line per candidate, chosen ones first."""
        result = self.result
        assert self.program.fixed is not None
        lines = [
            f"{len(self.chosen)} of {len(self.candidates)} {self.unit}s, "
            f"{self.tokens_used} of {plural(self.budget_tokens, 'token')}",
            result.certificate(),
            *([] if self.counts_parts is None else [f"the certificate is for choices {self.counts_parts}"]),
            *([] if self.relevance_source is None else [f"relevance: {self.relevance_source.why}"]),
            *([] if self.worst_case is None else [self.worst_case.explain()]),
            *self.notes,
        ]
        if self.conflict is not None:
            return "\n".join([*lines, self.conflict.explain()])
        if result.x is None:  # there is nothing to say about single passages
            asked = [
                f"at most {plural(self.program.budget, 'token')}",
                *(row.name for row in self.program.rows),
            ]
            ids = zip(self.candidates.ids, self.program.fixed, strict=False)  # prices stand behind them
            asked += [f"'{i}' in" for i, value in ids if value == 1]
            return "\n".join([*lines, "asked for, together: " + "; ".join(asked)])
        order = [*self.chosen, *(i for i in range(len(self.candidates)) if i not in set(self.chosen))]
        for i in order:
            d = self.decisions[i]
            lines.append(f"{'+' if d.selected else '-'} {d.id} ({plural(d.tokens, 'token')}): {d.reason}")
        return "\n".join(lines)

    @property
    def is_ranking(self) -> bool:
        """Whether a ranking chose: its order is no program, and nothing about it is proven."""
        named = self.method.partition("[")[0].partition(":")[0]
        return named not in _PROGRAMS or self.result.solver in _RANKINGS

    @property
    def context(self) -> str:
        """What is read, as it stands in a prompt."""
        return render_context(self.passages)

    @cached_property
    def parts(self) -> tuple[dict[str, Any], ...]:
        """Where each text of `passages` comes from, its share of `tokens_used`, and how likely it is."""
        names, source = self.candidates.passage_ids, self.relevance_source
        place = {name: i for i, name in enumerate(self.candidates.ids)}
        given = source is None or source.kind == "given"
        found = []
        members = [[place[part.id] for part in block.parts] for block in self.blocks]
        ends = np.cumsum([0, *(self.candidates.tokens[rows].sum() for rows in members)])
        shares = np.diff(np.rint(ends * (self.tokens_used / max(1, ends[-1]))).astype(int))
        for n, (block, rows, tokens) in enumerate(zip(self.blocks, members, shares.tolist(), strict=True), 1):
            sections = [part.section for part in block.parts]
            pages = list(dict.fromkeys(part.page for part in block.parts if part.page is not None))
            shared = [one[0] for one in zip(*sections, strict=False) if len(set(one)) == 1]
            found.append(
                {
                    "n": n,
                    "source": block.passage.source,
                    "date": block.passage.date or None,
                    "section": [*filter(None, [block.passage.title]), *shared],
                    "page": pages[0] if pages else None,
                    **({"pages": pages} if len(pages) > 1 else {}),
                    "ids": list(dict.fromkeys(names[i] for i in rows)),
                    "tokens": tokens,
                    "probability": None if given else float(self.candidates.relevance[rows].max()),
                }
            )
        return tuple(found)

    @property
    def labels(self) -> list[str]:
        """Where each text of `passages` comes from: its source, its pages and the headings above it."""
        found = []
        for part, block in zip(self.parts, self.blocks, strict=True):
            pages = sorted({one.page for one in block.parts if one.page is not None})
            sources, numbers = [part["source"]], ", ".join(map(str, pages))
            sources += [f"{'p.' if len(pages) == 1 else 'pp.'} {numbers}"] if pages else []
            place = ", ".join(filter(None, [*sources, " > ".join(part["section"])]))
            found.append(one_line(place or part["ids"][0]))
        return found

    def cited(self, answer: str) -> list[int]:
        """Numbers of `parts` that an answer cites as [n]; otherwise of those that have its words."""
        numbers = [int(n) for n in re.findall(r"\[(\d{1,4})\]", answer)]
        if known := [n for n in dict.fromkeys(numbers) if 1 <= n <= len(self.texts)]:
            return known
        words = " ".join(answer.casefold().split())
        return [
            n for n, text in enumerate(self.texts, 1) if words and words in " ".join(text.casefold().split())
        ]

    def to_dict(
        self, *, question: str | None = None, why: bool = False, proof: bool = False
    ) -> dict[str, Any]:
        """Plain data for JSON, the same at every door.

        question: as it was asked, where it is not that of the candidates.
        why: also a reason for every candidate; chosen ones first.
        proof: also the certificate.
        """
        result, notes = self.result, self.notes
        if self.conflict is not None:
            notes = (*notes, Note("conflict", self.conflict.explain()))
        data: dict[str, Any] = {
            "version": 1,
            "question": self.pool.question if question is None else question,
            "context": self.context,
            "tokens": self.tokens_used,
            "budget": self.budget_tokens,
            "counter": {"": "given", "regex": "approximate"}.get(self.counter, self.counter),
            "parts": list(self.parts),
            "read": [
                {
                    "title": block.passage.title,
                    "source": block.passage.source,
                    "text": block.passage.text,
                    "parts": [part.to_dict() for part in block.parts],
                }
                for block in self.blocks
            ],
            "answerable": self.answerable,
            "units": f"{self.unit}s",
            "method": self.method,
            "status": "ranked" if self.is_ranking and result.x is not None else result.status.value,
            "gap": None if self.is_ranking else result.gap,
            "seconds": result.wall_seconds,
            "left_out": len(self.pool) - len(self.ids),
            "notes": [{"code": note.code, "text": str(note)} for note in notes],
        }
        if why:
            data["reasons"] = self._reasons()
        if proof:
            data["certificate"] = self._certificate()
        return data

    def _certificate(self) -> dict[str, Any]:
        worst, conflict, source = self.worst_case, self.conflict, self.relevance_source
        return {
            "text": self.result.certificate(),
            **self.result.to_dict(),
            "tokens": self.certified_tokens,
            "budget": round(self.program.budget),
            "relevance": None if source is None else source.to_dict(),
            "worst_case": None if worst is None else worst.to_dict(),
            "conflict": conflict
            and {"parts": list(conflict.parts), "smallest_budget": conflict.smallest_budget},
        }

    def _reasons(self) -> list[dict[str, Any]]:
        order = [*self.chosen, *(i for i in range(len(self.candidates)) if i not in set(self.chosen))]
        return [
            {
                "id": d.id,
                "title": passage.title,
                "source": passage.source,
                "selected": d.selected,
                "tokens": d.tokens,
                "relevance": d.relevance,
                "value": d.value,
                "reason": d.reason,
                "redundant_with": d.redundant_with,
                "text": self.candidates.texts[i],
            }
            for i, d, passage in ((i, self.decisions[i], self.candidates.passage(i)) for i in order)
        ]
