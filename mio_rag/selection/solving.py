"""From a pool's program to a selection: what is solved, what stands, and what people see of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Protocol

import numpy as np

from mio_rag.context import merged
from mio_rag.documents.dates import age_of, is_ordered
from mio_rag.errors import InputError
from mio_rag.formulations.numbers import plural
from mio_rag.formulations.program import SelectionProgram
from mio_rag.pool import Candidates
from mio_rag.relevance.documents import asks_for_changes_alone, surely_elsewhere
from mio_rag.selection.explain import Priced, decisions
from mio_rag.selection.program import Formulation, joint_problem
from mio_rag.selection.result import Note, Selection, WorstCase
from mio_rag.selection.units import may_cut
from mio_rag.sentences import are_versions, asks_for_older, may_compare, versions_asked
from mio_rag.solvers.paths import find_conflict, joint_steps
from mio_rag.solvers.result import SolveResult, Status
from mio_rag.types import Line


class Run(Protocol):
    """Solves one program."""

    def __call__(self, program: SelectionProgram, spent: float = 0.0) -> SolveResult:
        """Return the result; `spent` seconds of the time limit are gone."""


#: Below it the best passage of a pool is doubtful: of answerable questions of eight sets, 2 in 100 lie there.
_UNLIKELY = 0.2
#: Of the probability of a row that is read: another that has so much of it may answer as well.
_TIED = 0.98
MAY_BE = 0.4  # of the best probability of what is read: what may be what was asked for
#: Words of questions about all rows of a table, which may also name one of them: the most, a sum, a mean.
_OVER_ALL = re.compile(
    r"\b(?:(?<!at )(?:most|least)|fewest|(?:high|low|larg|small|bigg|long|short|cheap|fast|slow|old|young|"
    r"great|heavi)est|in total|total of|totals?|the sum|average|the mean|altogether|overall|meisten|"
    r"wenigsten|gr\u00f6\u00dfte\w?|kleinste\w?|h\u00f6chste\w?|niedrigste\w?|insgesamt|summe|durchschnitt\w*|"
    r"l[ea] plus|au total|en total)\b",
    re.IGNORECASE,
)
#: Words of questions about each row or item of a list.
_EACH = re.compile(
    r"\b(?:(?<!at )all|every|the (?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve) "
    r"(?:\w+ )?\w+s|alle|tou(?:te)?s les)\b|^(?:list|name|nenne)\b",
    re.IGNORECASE,
)
#: Words of questions about several of them.
_SEVERAL = re.compile(
    r"\b(?:how many|which (?!does)\w{2,}[^\Wsu]s|what are|more|fewer|wie viele|welche \w+n|combien de|"
    r"quel(?:le)?s)\b",
    re.IGNORECASE,
)
_ITEM = re.compile(r"(?:[-*\u2022]|\w{1,3}[.)])\s")


@dataclass(frozen=True, eq=False)
class Solved:
    """The program whose result stands, that result, and its worst case where that was what was maximised."""

    program: SelectionProgram
    result: SolveResult
    worst_case: WorstCase | None = None


@dataclass(frozen=True, eq=False)
class Choice:
    """What was decided, and by which program, before reasons are looked for.

    formulation: of the candidates, with the relevance that the settings gave them.
    result: that of `found`, in words for people.
    chosen: indices into the candidates, in prompt order.
    used, budget_tokens, allowed: tokens used; the budget; what the program was given: less where the
        assembled block counts more than its passages, more where they share text that is read once.
    is_merged: whether passages of one document are read as one text.
    by_room: whether sentences were chosen since passages that are worth their price do not fit.
    counter: name of what counted `used`.
    """

    formulation: Formulation
    found: Solved
    result: SolveResult
    chosen: tuple[int, ...]
    used: int
    budget_tokens: int
    allowed: int
    is_merged: bool = False
    by_room: bool = False
    counter: str = ""


def solved(
    formulation: Formulation, budget_tokens: int, solve: Callable[[SelectionProgram], SolveResult]
) -> Solved:
    """Solve what the settings ask for within a budget; one program, or those of the joint counterpart."""
    settings = formulation.settings
    program = formulation.program(budget_tokens)
    if settings.counterpart == "termwise" or formulation.uncertainty is None:
        if settings.counterpart == "joint" and not formulation.can_deviate:
            raise InputError(
                "counterpart='joint' needs uncertain embeddings, and these are exact: give radius > 0, "
                "uncertainty or passage_radii, or leave it at 'termwise'"
            )
        return Solved(program, solve(program))
    problem = formulation.joint(budget_tokens)
    steps = joint_steps(problem, settings.options, (program, problem.scenario()), certified=program)
    asked = next(steps)
    while True:
        try:
            asked = steps.send(solve(asked))
        except StopIteration as done:
            outcome = done.value
            break
    worst = None
    if outcome.result.objective is not None and outcome.result.x is not None:
        worst = WorstCase("joint", outcome.result.objective, outcome.upper, outcome.cuts)
    return Solved(outcome.program, outcome.result, worst)


def _worst_case(choice: Choice) -> WorstCase | None:
    """What is known of the worst case: what the cuts proved, or both ends for a termwise selection."""
    formulation, result = choice.formulation, choice.found.result
    settings, uncertainty = formulation.settings, formulation.uncertainty
    if uncertainty is None and settings.uncertainty is not None and result.objective is not None:
        return WorstCase(settings.counterpart, result.objective, result.objective)  # a set of one point
    if settings.counterpart == "joint" or uncertainty is None or result.x is None or result.objective is None:
        return choice.found.worst_case
    if settings.redundancy_by_relevance or not uncertainty.has_points:
        return WorstCase("termwise", result.objective, None)
    lower, upper = formulation.joint(choice.allowed).interval(result.x)
    return WorstCase("termwise", max(result.objective, lower), upper)


def _how_read(choice: Choice) -> list[str]:
    """That passages are read as one text, and what that saves; of documents that is what people expect."""
    candidates, chosen = choice.formulation.candidates, choice.chosen
    texts = len(merged(candidates, chosen)) if choice.is_merged and candidates.lines is None else len(chosen)
    if texts == len(chosen):
        return []
    saved = int(candidates.tokens[list(chosen)].sum()) - choice.used
    what = f"{plural(len(chosen), candidates.unit)} of the same documents joined into {plural(texts, 'text')}"
    return [f"{what}: {plural(saved, 'token')} saved" if saved > 0 else what]


def _why_units(choice: Choice) -> list[str]:
    """Where nobody asked for sentences, or for whole passages of documents, why they were chosen."""
    formulation = choice.formulation
    if formulation.source.formula is not None and formulation.passages is formulation.candidates:
        settings = formulation.settings
        named = settings.about_passages() + (["must_include"] if settings.must_include else [])
        if not named:
            return []
        return [f"whole passages, since {', '.join(named)} is about these (without, sentences may be read)"]
    if not (choice.by_room and choice.chosen):
        return []
    return [
        "sentences, since a passage that is worth its price does not fit (units 'passages' keeps them whole)"
    ]


def likely_sources(candidates: Candidates, chosen: Sequence[int]) -> set[str]:
    """Sources of what is read that may well be what was asked for."""
    best = max((candidates.relevance[k] for k in chosen), default=0.0)
    ids = candidates.cut_from or candidates.ids
    sources = candidates.sources or ids
    return {sources[k] or ids[k] for k in chosen if candidates.relevance[k] >= MAY_BE * best}


def _replaced(choice: Choice) -> dict[str, list[Note]]:
    """By code of the note, which documents and passages have no sentence among the candidates, since another
    that is read has."""
    if not choice.formulation.not_cut:
        return {}
    passages, cut_from = choice.formulation.passages, choice.formulation.candidates.cut_from
    read = {cut_from[k] for k in choice.chosen} if cut_from else set()
    ids, sections = passages.ids, passages.sections
    sources = [source or ids[k] for k, source in enumerate(passages.sources or [""] * len(ids))]
    read |= {sources[k] for k, name in enumerate(ids) if name in read}
    names, likely = passages.names, likely_sources(choice.formulation.candidates, choice.chosen)
    gone: dict[str, dict[str, str]] = {"older_version": {}, "near_duplicate": {}}
    for i, j in sorted(choice.formulation.not_cut.items()):
        if is_ordered(names[i], names[j]) and are_versions(*names[i][:2], *names[j][:2]):
            if sources[j] in likely and sources[i] not in read:
                text = f"'{sources[i]}', {age_of(names[i], names[j])} version of '{sources[j]}'"
                gone["older_version"][text] = sources[j]
        elif ids[j] in read and sources[j] in likely:
            where = [f" ({sections[k][-1]})" if sections and sections[k] else "" for k in (i, j)]
            text = f"'{sources[i]}'{where[0]}, nearly the same as '{sources[j]}'{where[1]}"
            gone["near_duplicate"][text] = sources[j]
    both = "(selection.near_duplicates=all reads both)"
    return {
        code: [Note(code, f"left out: {'; '.join(each)} {both}", each.values())]
        for code, each in gone.items()
        if each
    }


def _not_compared(choice: Choice) -> list[str]:
    """What is not read of versions that the question compares: one of them, or some of all that changed."""
    candidates = choice.formulation.candidates
    if not may_compare(candidates.question) or asks_for_older(candidates.question):
        return []
    names, best = candidates.names, dict[tuple[str, str, str], float]()
    for name, worth in zip(names, candidates.relevance.tolist(), strict=True):
        best[name] = max(worth, best.get(name, 0.0))
    read = sorted({names[k] for k in choice.chosen}, key=lambda name: -best[name])
    lacking = {
        name[1]: one[1]
        for one in read[:1]
        for name in versions_asked(candidates.question, one, best)
        if name not in read and 2 * best[name] >= best[one]
    }
    if not lacking and read and asks_for_changes_alone(candidates.question, read):
        worth = candidates.relevance
        unread = set(np.flatnonzero(worth >= _TIED * worth.max()).tolist()) - set(choice.chosen)
        changed = [k for k in unread if names[k] in versions_asked(candidates.question, read[0], best)]
        more = plural(len(changed), f"more {candidates.unit}")
        return [f"{more} that differ between the versions: raise the budget"] if changed else []
    return [
        f"the question compares versions, but of '{other}' and "
        f"'{source}' only the first is read: raise the budget"
        for source, other in lacking.items()
    ]


def _as_likely(choice: Choice) -> list[str]:
    """The most likely text that did not fit, and rows and list items that may be asked for, too."""
    candidates, chosen = choice.formulation.candidates, set(choice.chosen)
    likely, passages = choice.formulation.pool.answerable, choice.formulation.passages
    if candidates.lines is None or not candidates.sources or passages is candidates:
        return []
    doubted = likely is not None and likely < 0.5
    if doubted and surely_elsewhere(passages, likely):
        return []
    made, groups = list[str](), dict[tuple[str, tuple[Line, ...], bool], list[int]]()
    worth, program = candidates.relevance, choice.found.program
    likeliest = int(worth.argmax())
    best = max((worth[k] for k in chosen), default=np.inf)
    needed = program.alone[likeliest]
    if best < _TIED * worth[likeliest] and needed > choice.allowed and not doubted:
        text = shorten(candidates.texts[likeliest], 60, placeholder=" ...")
        made.append(f"the most likely text needs {needed:.0f} tokens and is not read: '{text}'")
    for k, (source, lines) in enumerate(zip(candidates.sources, candidates.lines, strict=True)):
        text = candidates.texts[k]
        if lines and ("|" in text or _ITEM.match(text)):
            groups.setdefault((source, lines, "|" in text), []).append(k)
    room, question = choice.budget_tokens - choice.used, candidates.question
    over, each, several = (words.search(question) for words in (_OVER_ALL, _EACH, _SEVERAL))
    for (source, lines, is_table), units in groups.items():
        read = [k for k in units if k in chosen]
        said = " ".join([*(line.text for line in lines), *(candidates.texts[k] for k in read)]).casefold()
        of_all = each or (over and over[0].casefold() not in said)
        asked = of_all or several
        best = max((worth[k] for k in read), default=0.0)
        if not read or best < worth.max() * (0.25 if is_table and asked else 0.5):
            continue
        least = 0.0 if of_all else 0.5 if several else _TIED
        unread = [k for k in units if k not in chosen and worth[k] >= least * best]
        fits = bool(unread) and min(candidates.tokens[unread]) <= room
        if not unread or not (asked or (is_table and not doubted and not fits)):
            continue
        kind, whole = ("row", "table") if is_table else ("item", "list")
        what = f"{plural(len(unread), kind)} of a {whole}"
        more = "more budget may not read them: open the document" if fits else "raise the budget"
        made.append(f"what is read leaves out {what} in '{source}' that the question may be about: {more}")
    return made


def _why_nothing(choice: Choice) -> list[str]:
    """Why no passage is chosen, and what would change it, where that is a proven answer."""
    is_answer = not choice.chosen and choice.result.x is not None
    return [f"nothing is chosen: {_lacking(choice)}"] if is_answer else []


def _lacking(choice: Choice) -> str:
    formulation, program, allowed = choice.formulation, choice.found.program, choice.allowed
    candidates, settings, source = formulation.candidates, formulation.settings, formulation.source
    unit = candidates.unit
    assert program.fixed is not None
    open_ = np.flatnonzero(program.fixed[: len(candidates)] != 0)
    if not open_.size:
        return f"every {unit} of the pool is excluded (must_exclude, or near-duplicates)"
    shortest = int(candidates.tokens[open_].min())
    if shortest > allowed:
        return (
            f"the shortest {unit} has {plural(shortest, 'token')}, the budget is {choice.budget_tokens}: "
            f"{_more_room(choice)}"
        )
    if blocked := _blocked(choice):
        return blocked
    if source.kind == "documents":
        return (
            f"no {unit} that fits is worth the tokens of its own and of the lines that it needs: "
            f"lower token_price or passage_penalty, or {_more_room(choice)}"
        )
    fitting = open_[candidates.tokens[open_] <= allowed]
    best = int(fitting[candidates.relevance[fitting].argmax()])
    value, tokens = float(candidates.relevance[best]), int(candidates.tokens[best])
    all_fit = float(candidates.relevance[open_].max()) <= value  # what is too long is worth no more
    where = "" if all_fit else " of those that fit the budget"
    why = f"no {unit} is worth its price (the highest relevance{where} is {value:.3g}"
    if unit == "sentence":
        nothing, alone = np.zeros(program.n, dtype=np.int8), np.eye(program.n, dtype=np.int8)[best]
        price = value - program.objective(alone) + program.objective(nothing)
        return f"{why}, its price {price:.3g})" + ("" if all_fit else f": {_more_room(choice)}")
    if value <= 0:
        return f"{why}): relevance must be above 0 for what is worth reading; larger is better"
    prices = {"passage_penalty": formulation.penalty(allowed), "radius": settings.radius}
    charged = [f"{name} {price:.3g}" for name, price in prices.items() if price > 0]
    if (price := settings.token_price) > 0:
        charged.append(f"{price * tokens:.3g} for its {tokens} tokens (token_price {price:.3g})")
    if not charged:
        return f"{why})"
    room = "" if all_fit else ", raise the budget"
    scale = ", or give relevance on the scale of a probability" if source.kind == "given" else ""
    return f"{why}; charged are {', '.join(charged)}): lower these prices{room}{scale}"


def _more_room(choice: Choice) -> str:
    """What to do where passages, or sentences, are too long."""
    formulation = choice.formulation
    is_cut = formulation.passages is not formulation.candidates
    if not is_cut and may_cut(formulation.settings, formulation.passages, formulation.counter):
        return "raise the budget, or choose sentences (units='sentences')"
    about = formulation.settings.about_passages()
    if about and not is_cut and formulation.source.kind == "documents":
        return f"raise the budget, or leave out {', '.join(about)}, which keeps passages whole"
    return "raise the budget" if is_cut else "raise the budget, or split passages"


def _blocked(choice: Choice) -> str:
    """Which constraints keep out the passage that alone is worth most, if it is worth more than nothing."""
    program = choice.found.program
    assert program.fixed is not None
    alone = np.eye(program.n, dtype=np.int8)
    nothing = program.objective(np.zeros(program.n, dtype=np.int8))
    worth = np.array([program.objective(x) - nothing for x in alone])
    fits = np.array([program.cost(x) <= program.most_cost for x in alone])
    worth[(program.fixed == 0) | ~fits] = -np.inf
    best = int(worth.argmax())
    broken = [row.name for row in program.rows if row.violation(float(row.coefficients[best])) > 0]
    if worth[best] <= 1e-9 or not broken:
        return ""
    return (
        f"'{choice.formulation.candidates.ids[best]}' is worth more than its price (by {worth[best]:.3g}), "
        f"and a constraint keeps it out ({', '.join(broken)}): loosen it"
    )


def _no_answer_here(choice: Choice) -> list[str]:
    """That the collection may not hold the answer: by the whole pool, or as no passage is likely needed."""
    formulation = choice.formulation
    source, candidates, model = formulation.source, formulation.candidates, formulation.pool.model
    likely, adaptive = formulation.pool.answerable, formulation.settings.passage_penalty == "adaptive"
    by_formula = source.kind == "documents"
    if likely is not None and likely < 0.5:
        why = (
            f"the collection may not hold the answer (estimate {likely:.2g}, by how much of the question "
            "its best passages hold)"
        )
        if adaptive and model is not None and model.answerable and model.answerable.by_cosine:
            price = formulation.penalty(choice.allowed)
            why += (
                f": passages are dearer for that (each must be worth {price:.2g}); a fixed passage_penalty "
                "does not go by it"
            )
        return [why]
    if source.kind not in ("documents", "fitted weights", "ranks") or not choice.chosen:
        return []
    are_sentences = formulation.passages is not candidates  # each of them is needed more seldom
    # What is read as a whole may count less than its parts, so what fits may be longer than the budget.
    excluded = set(formulation.settings.must_exclude)
    allowed = np.array([name not in excluded for name in candidates.ids])
    fitting = allowed & (candidates.tokens <= choice.allowed)
    likeliest = int(np.where(allowed, candidates.relevance, -np.inf).argmax())
    tokens, lines = int(candidates.tokens[likeliest]), ""
    if by_formula:
        program, own = choice.found.program, tokens
        tokens = max(own, int(program.cost(np.arange(program.n) == likeliest)))
        fitting[likeliest] &= tokens <= choice.allowed
        lines = f" with the lines that it needs (its own {own})" if tokens > own else ""
    best = float(candidates.relevance[fitting].max(initial=0.0))
    most = float(candidates.relevance[likeliest])
    least = best if are_sentences else max(best, _UNLIKELY)
    if most >= least and not fitting[likeliest] and likeliest not in choice.chosen:
        return [
            f"'{candidates.ids[likeliest]}', the most likely to be needed (probability {most:.2g}), has "
            f"{plural(tokens, 'token')}{lines}, more than the budget of "
            f"{choice.budget_tokens} (of those that fit it the best has {best:.2g}): {_more_room(choice)}"
        ]
    if best >= _UNLIKELY or are_sentences or by_formula:
        return []
    why = f"no passage stands out (the most likely one is needed with probability {best:.2g})"
    if likely is not None:
        return [why]
    less = "; a higher passage_penalty, as in preset 'frugal', reads less then" if adaptive else ""
    return [f"{why}: the collection may not hold the answer{less}"]


def nothing_of(candidates: Candidates, budget_tokens: int) -> Selection:
    """The selection from an empty pool."""
    none = np.zeros(0)
    result = SolveResult(Status.OPTIMAL, "none", none.astype(np.int8), 0.0, 0.0, 0.0)
    program = SelectionProgram(none, np.zeros((0, 0)), none, budget_tokens)
    made = Selection(candidates, (), 0, budget_tokens, result, program, tuple)
    return made.with_notes(Note("nothing", "Nothing is chosen: no passage was found."))


def _remarks(choice: Choice) -> tuple[Note, ...]:
    """What the program and its pool tell of the choice."""
    notes: dict[str, list[str] | list[Note]] = {
        "constraint": choice.formulation.side.notes(choice.result.x),
        "units": _why_units(choice),
        "merged": _how_read(choice),
        **_replaced(choice),
        "not_compared": _not_compared(choice),
        "as_likely": _as_likely(choice),
        "answerable": _no_answer_here(choice),
        "nothing_selected": _why_nothing(choice),
    }
    return tuple(Note(code, one, getattr(one, "sources", ())) for code in notes for one in notes[code])


def concluded(choice: Choice) -> Selection:
    """The selection that people see: without the items that buy broken rows, with what is known about it."""
    formulation, program, result = choice.formulation, choice.found.program, choice.result
    candidates, side = formulation.candidates, formulation.side
    bare, visible, priced = side.without(program), result, None
    if result.x is not None and side.is_priced:
        visible = replace(result, x=result.x[: len(candidates)])
        priced = Priced(side.marginal(result.x), side.paid)
    reasons = functools.partial(
        decisions,
        candidates,
        bare,
        visible,
        priced,
        robust=formulation.uncertainty is not None,
        is_merged=choice.is_merged,
        by_length=formulation.source.kind == "documents",
        outdated=formulation.outdated,
    )
    # From the settings, not from the formulation: a selection that is kept holds no matrices.
    problem = functools.partial(
        joint_problem,
        formulation.settings,
        formulation.pool,
        choice.allowed,
        penalty=formulation.penalty(choice.budget_tokens),
        shared=formulation.shared,
    )
    return Selection(
        candidates,
        choice.chosen,
        choice.used,
        choice.budget_tokens,
        result,
        program,
        reasons,
        worst_case=_worst_case(choice),
        remarks=functools.partial(_remarks, choice),
        conflict=find_conflict(bare, candidates.ids) if result.status is Status.INFEASIBLE else None,
        problem=problem,
        relevance_source=formulation.source,
        answerable=formulation.pool.answerable,
        is_merged=choice.is_merged,
        retrieved=None if formulation.passages is candidates else formulation.passages,
        counter=choice.counter,
    )
