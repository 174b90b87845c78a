"""Selector: settings -> the passages of a question, with a certificate.

    maximise   sum_i (r_i - lambda_2 - lambda_3 c_i) x_i  -  lambda_1 sum_{i<j} s_ij x_i x_j
    subject to sum_i c_i x_i <= budget_tokens, and the side rows (`mio_rag.selection.constraints`)

with relevance r, similarity s (inner products of the embeddings), token costs c; under embedding uncertainty
the termwise or the joint robust counterpart of it (`mio_rag.selection.program`). Relevance may be a
calibrated probability (`mio_rag.relevance`). Choosing related passages (one mentions the other, or both are
of one short document) can add a benefit of `link_benefit * max(r_i, r_j)`, times how close the relation is.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, InstanceOf, model_validator

from mio_rag.context import PromptOrder, RegexCounter, TokenCounter, block_tokens, in_prompt_order
from mio_rag.errors import InputError, SolverError, choose
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.rows import count_problem
from mio_rag.formulations.uncertainty import Norm, UncertaintySet
from mio_rag.pool import Candidates
from mio_rag.relevance.documents import DocumentModel, is_document_pool, is_read, surely_elsewhere
from mio_rag.relevance.model import RelevanceModel, model_from, relevance_of
from mio_rag.selection.constraints import Amount, Count, Name, Names, SideConstraints
from mio_rag.selection.program import Formulation, Read, resolved_benefit
from mio_rag.selection.result import Selection
from mio_rag.selection.solving import Choice, Run, concluded, nothing_of, solved
from mio_rag.selection.units import units_for
from mio_rag.settings import Settings
from mio_rag.solvers.paths import path_solver
from mio_rag.solvers.result import SolveOptions, SolveResult, Status

#: termwise: each term at its own worst (closed, conservative). joint: one perturbation for all, by cuts.
Counterpart = Literal["termwise", "joint"]
#: How many of passages that are nearly copies of each other may be read.
NearDuplicates = Literal["one", "all"]
#: What is chosen: whole passages, their sentences, or either, depending on the budget.
Units = Literal["passages", "sentences", "auto"]
#: lambda_2: a number, or how each pool determines it.
Penalty = Amount | Literal["auto", "adaptive"]

_ADAPTIVE = 0.1  # lambda_2 of a pool whose best passage is surely needed; measured there as well
_DOCUMENTS = 0.02  # of documents, as a share of the best: what surely holds no evidence is not read
_DOUBTED = 0.1  # of documents that may not answer: less that is unlikely is read
_BEST_ALONE = 0.7  # of documents that surely do not answer: units near the best are read alone
_ELSEWHERE = 0.2  # and where the collection surely holds no answer
#: Programs of one question at most, where what passages share leaves room for more of them.
_MOST_ROUNDS = 5
_SHOWN = 5  # unknown ids, of possibly thousands

#: Settings by name, from which your own are a few changes. frugal: fewer tokens, some evidence less.
#: thorough: whatever fits and may be needed. raw: the bare program, for relevance on any scale.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default": {},
        "frugal": {"passage_penalty": 0.1},
        "thorough": {"passage_penalty": 0.0},
        "raw": {
            "redundancy_weight": 0.1,
            "passage_penalty": 0.02,
            "relevance_model": "given",
            "link_benefit": 0.0,
        },
    }
)


def _relevance(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value == "cosine"):
        return "given"  # one value for one meaning, which plain data can hold too
    if isinstance(value, Mapping):
        return model_from(value)
    if isinstance(value, (RelevanceModel, DocumentModel)) or (
        isinstance(value, str) and value in ("auto", "given")
    ):
        return value
    raise ValueError(
        f"must be auto, given, or a RelevanceModel (mio_rag.relevance.load_model reads one), got {value!r}"
    )


def _options(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    known = [field.name for field in dataclasses.fields(SolveOptions)]
    if problems := [f"{name} is not a setting: {choose(name, known)}" for name in value if name not in known]:
        raise InputError(problems)
    return SolveOptions(**value)


def _uncertainty(value: Any) -> Any:
    from mio_rag.formulations.uncertainty import uncertainty_from_dict

    return uncertainty_from_dict(value) if isinstance(value, Mapping) else value


class Selector(Settings):
    """Choose passages under a token budget, with a certificate of optimality.

    The defaults are what measured best on questions of sets that nothing was fitted on; `preset` gives others
    by name.

    Raises `InputError` with every problem found.
    """

    redundancy_weight: Amount = 0.0
    """lambda_1: price of similarity between two chosen passages. Above 0 the candidates need embeddings, or
    similarities."""
    passage_penalty: Penalty = "adaptive"
    """lambda_2: minimum value that a passage must add, in units of relevance. "adaptive": 0.1 r^2, with r the
    best relevance from 0 to 1 among the passages that fit the budget, and at least 0.2 (1 - a), where the
    cosines of a known embedder give the probability a that the collection holds an answer. "auto": the median
    relevance of the pool, for raw scores of a deep pool, whose middle is background."""
    token_price: Amount = 0.0
    """lambda_3: price of each token, in units of relevance."""
    radius: Amount = 0.0
    """Embedding uncertainty: how far each embedding may be off. Relevance must then be the inner product of
    question and passage (or fall no faster), or come from a `relevance_model`. `Candidates.radius`, where
    given, takes precedence."""
    norm: Norm = "l2"
    """Norm of the radius."""
    min_passages: Count | None = None
    """Minimum number of passages."""
    max_passages: Count | None = None
    """Maximum number of passages."""
    max_per_source: Count | Mapping[Name, Count] | None = None
    """Maximum passages from one source: for all sources, or by name."""
    must_include: Names = ()
    """Ids of passages that must be chosen."""
    must_exclude: Names = ()
    """Ids of passages that must not be chosen."""
    solver: str = "auto"
    """See `mio_rag.solvers.solve`."""
    options: Annotated[InstanceOf[SolveOptions], BeforeValidator(_options)] = SolveOptions()
    """Limits and tolerances of the solver."""
    relevance_model: Annotated[Any, BeforeValidator(_relevance)] = "auto"
    """Replaces the candidates' relevance by the probability that each passage is needed. A `RelevanceModel`;
    "auto": by what the candidates bring (`mio_rag.relevance.model`); "given": relevance stays as it is."""
    link_benefit: Amount | Literal["auto"] = "auto"
    """w: choosing two passages of which one mentions the other gains w max(r_i, r_j) times the weight of the
    link; so does choosing two of the m passages that a source has in the pool, times 1 / (m - 1). "auto": 0.2
    where the candidates have links or sources and relevance is a probability, else 0."""
    redundancy_by_relevance: bool = False
    """Weigh the similarity of two passages by sqrt(r_i r_j), so that only relevant passages compete."""
    prompt_order: PromptOrder = "best_first"
    """Order of the chosen passages in the prompt."""
    uncertainty: Annotated[InstanceOf[UncertaintySet] | None, BeforeValidator(_uncertainty)] = None
    """Instead of `radius` and `norm`: any set of `mio_rag.formulations`. `Candidates.radius`, where given,
    replaces its radii."""
    passage_radii: Mapping[Name, Amount] = Field(default_factory=dict)
    """Id -> radius of that passage's embedding: instead of `radius`, or of the radii of `uncertainty`."""
    counterpart: Counterpart = "termwise"
    """Robust counterpart. termwise: each term is charged its own worst perturbation; one program,
    conservative. joint: one perturbation of each embedding serves all terms; a few programs, certified from
    both sides."""
    side: SideConstraints = Field(default_factory=SideConstraints)
    """Shares, coverage, conflicts, needs, changes, and prices for what may be broken."""
    merge: bool = True
    """Read passages of one document as one text where their spans are known: shared text once, the title
    once. Where a tokenizer counts the block, the program pays for it once, too."""
    shared_text_weight: Amount = 0.0
    """v: choosing two passages that share text loses v s min(r_i, r_j), s being the share of the shorter
    text that both hold. Not charged under embedding uncertainty."""
    near_duplicates: NearDuplicates = "one"
    """Of near-duplicates, read at most one (the newest where they are dated), or all."""
    units: Units = "auto"
    """What is chosen. Sentences need the reader's tokenizer, and exclude what is about whole passages:
    counts, caps by source, side constraints, uncertainty, reading apart. "auto": sentences where they may be
    chosen and whole passages leave little room, see `mio_rag.selection.units.units_for`."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = []
        if self.units == "sentences" and (named := ", ".join(self.about_passages())):
            problems.append(
                f"units='sentences' excludes {named}: that is about whole passages, leave one of them out"
            )
        if self.counterpart == "joint" and self.redundancy_by_relevance:
            problems.append(
                "counterpart='joint' has no redundancy_by_relevance: use termwise, or leave one of them out"
            )
        if self.uncertainty is not None and self.radius > 0:
            problems.append("uncertainty and radius exclude each other: the set has its own radii")
        if self.passage_radii and self.radius > 0:
            problems.append("passage_radii and radius exclude each other: there is one for each passage")
        priced = self.side.prices
        if "passages" in priced and self.min_passages is None and self.max_passages is None:
            problems.append(
                "prices: 'passages' needs min_passages or max_passages: give one, or leave it out"
            )
        if "sources" in priced and self.max_per_source is None:
            problems.append("prices: 'sources' needs max_per_source: give it, or leave the price out")
        both = set(self.must_include) & set(self.must_exclude)
        problems += [
            f"'{i}' is in both must_include and must_exclude: keep one" for i in sorted(both, key=str)
        ]
        low, high = self.min_passages, self.max_passages
        if low is not None and high is not None and low > high:
            problems.append(f"min_passages={low} is above max_passages={high}: no selection can satisfy both")
        if problems:
            raise InputError(problems)
        return self

    @classmethod
    def preset(cls, name: str, **settings: Any) -> Self:
        """Return the selector of a preset, changed by your own settings.

        name: one of default, frugal, thorough, raw; see `PRESETS`.
        **settings: parameters of `Selector`; those that the preset decides itself are refused.

        Raises `InputError` if there is no such preset, or it excludes a setting.
        """
        if name not in PRESETS:
            raise InputError(f"preset '{name}' is unknown: {choose(name, PRESETS)}")
        if name == "raw" and settings.get("relevance_model") not in (None, "given"):
            raise InputError(
                "preset 'raw' excludes relevance_model: it takes relevance as it is given: leave one of them "
                "out"
            )
        return cls(**{**PRESETS[name], **settings})

    @classmethod
    def raw(cls, **settings: Any) -> Self:
        """Return the bare program, for relevance on your own scale: ``preset("raw", **settings)``."""
        return cls.preset("raw", **settings)

    def about_passages(self) -> list[str]:
        """Return names of settings that hold for whole passages alone."""
        given = {
            "min_passages": self.min_passages is not None,
            "max_passages": self.max_passages is not None,
            "max_per_source": self.max_per_source is not None,
            "side": self.side.is_given,
            "radius": self.radius != 0,
            "uncertainty": self.uncertainty is not None,
            "passage_radii": bool(self.passage_radii),
            "counterpart": self.counterpart != "termwise",
            "merge=False": not self.merge,
        }
        return [name for name, is_given in given.items() if is_given]

    def whole(self) -> Self:
        """Return these settings with whole passages where they leave units open."""
        return self.replace(units="passages") if self.units == "auto" else self

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return the settings as plain data for JSON; radii of passages as a digest."""
        data = super().to_dict(defaults=defaults)
        if self.passage_radii:  # one for every passage of a corpus: their digest distinguishes runs
            listed = json.dumps(sorted(self.passage_radii.items()))
            data["passage_radii"] = hashlib.sha256(listed.encode()).hexdigest()[:16]
        if isinstance(self.relevance_model, (RelevanceModel, DocumentModel)):
            data["relevance_model"] = dataclasses.asdict(self.relevance_model)
        return data

    # -- what settings make of a pool ---------------------------------------------------------------------

    def read(self, candidates: Candidates) -> Read:
        """Return the candidates with the relevance that these settings give them, and where it comes from.

        Raises `InputError` if the candidates lack what the model needs.
        """
        model, source = relevance_of(self.relevance_model, candidates)
        if source.formula is not None:
            units = source.formula.unit_relevance(candidates)
            return Read(source.formula.valued(candidates, units), model, source, units)
        return Read(candidates if model is None else model.valued(candidates), model, source)

    def resolved(self, candidates: Candidates) -> Self:
        """Return these settings with a model and a number where they say "auto"."""
        model, _ = relevance_of(self.relevance_model, candidates)
        benefit = resolved_benefit(self.link_benefit, candidates, model)
        return self.replace(relevance_model=model, link_benefit=benefit)

    def valued(self, candidates: Candidates) -> Candidates:
        """Return the candidates with the relevance that these settings give them."""
        return self.read(candidates).candidates

    def penalty(
        self, candidates: Candidates, budget_tokens: int | None = None, known: Read | None = None
    ) -> float:
        """Return lambda_2 for a pool: the number that was set, or what its relevance determines.

        candidates: with the relevance that these settings give them, see `valued`.
        budget_tokens: longer passages do not count for "adaptive", except with ``units="sentences"``.
        known: these candidates as `read`.
        """
        if not isinstance(self.passage_penalty, str):
            return float(self.passage_penalty)
        relevance = candidates.relevance
        if self.passage_penalty == "auto":
            ranked = np.sort(relevance)  # np.median takes ten times as long on so few
            return max(0.0, float((ranked[(ranked.size - 1) // 2] + ranked[ranked.size // 2]) / 2))
        pool = known or Read(candidates, *relevance_of(self.relevance_model, candidates))
        if pool.source.kind == "documents":
            if surely_elsewhere(candidates, likely := pool.answerable):
                return _BEST_ALONE
            doubted = likely is not None and likely < 0.5 and self.units != "passages" and is_read(candidates)
            return _DOUBTED if doubted else _DOCUMENTS
        if budget_tokens is not None and self.units != "sentences":
            relevance = relevance[candidates.tokens <= budget_tokens]
        price = _ADAPTIVE * min(1.0, max(0.0, float(relevance.max(initial=0.0)))) ** 2
        if pool.model is None or pool.model.answerable is None or not pool.model.answerable.by_cosine:
            return price
        likely = pool.answerable
        if likely is None or not is_read(candidates):
            return price
        return max(price, _ELSEWHERE * (1.0 - likely))

    def answerable(self, candidates: Candidates) -> float | None:
        """Return the probability that the collection holds an answer; None where the model does not say.

        candidates: a pool of passages, as for `penalty`.
        """
        return Read(candidates, *relevance_of(self.relevance_model, candidates)).answerable

    def program(
        self, candidates: Candidates, budget_tokens: int, counter: TokenCounter | None = None
    ) -> SelectionProgram:
        """Return the program for a pool: nominal, or the termwise counterpart where a radius is above 0.

        The candidates are taken as they are: with a `relevance_model`, pass what `valued` made of them. With
        the reader's tokenizer, what passages share is paid once.

        Raises `InputError` if the candidates lack what the settings need.
        """
        model, _ = relevance_of(self.relevance_model, candidates)
        units = units_for(self, candidates, model, budget_tokens, counter)
        return Formulation(self.replace(units=units), candidates, counter).program(budget_tokens)

    # -- choosing -----------------------------------------------------------------------------------------

    def select(
        self, candidates: Candidates, budget_tokens: int, counter: TokenCounter | None = None
    ) -> Selection:
        """Choose passages.

        budget_tokens: largest size of the context block, >= 1.
        counter: the reader's tokenizer; for units of documents an approximation by default. With it
            `tokens_used` is the measured size of the assembled block rather than the sum of single passages;
            should the block come out larger than the budget (a tokenizer may count a whole higher than its
            parts), the program is solved again with a budget that is smaller in proportion, by one passage at
            most, until the block fits. The certificate is then one for that smaller budget, `program.budget`.
            Text that passages share is read and paid once (`merge`). Under embedding uncertainty the program
            pays for it twice; it is then solved again with a budget that is larger by what that saves, as
            long as the block fits.

        Returns with an empty choice where the constraints are infeasible or the solver found nothing
        (`result.status` says which), or where no passage fits or is above its price (`notes` say why).

        Of an empty pool, too. Raises `SolverError` if the solver broke.
        """
        if len(candidates) == 0:
            return nothing_of(candidates, budget_tokens)
        return concluded(self.choose(candidates, budget_tokens, counter))

    def choose(
        self,
        candidates: Candidates,
        budget_tokens: int,
        counter: TokenCounter | None = None,
        *,
        known: Formulation | None = None,
        run: Run | None = None,
    ) -> Choice:
        """Return what `select` decides, before notes and reasons are made.

        Parameters, and what is raised, are those of `select`.

        known: `Choice.formulation` of the same selector, candidates and counter at another budget: what does
            not depend on the budget is not built again.
        run: (program, seconds spent) -> result; by default `solver` with `options`.
        """
        if len(candidates) == 0:
            raise InputError("there are no candidates to select from: retrieve a pool first")
        if problem := count_problem("budget_tokens", budget_tokens):
            raise InputError(problem)
        if counter is None and self.units != "passages" and is_document_pool(candidates):
            counter = RegexCounter()  # units share lines, whose tokens nobody counted
        budget, solve = int(budget_tokens), _Solve(run or path_solver(self.solver, self.options))
        pool = known.pool if known is not None else self.read(candidates)
        units = units_for(self, pool.candidates, pool.model, budget, counter)
        settings = self if units == self.units else self.model_copy(update={"units": units})
        if self.units != "auto" or units == "passages" or is_document_pool(candidates):
            return _choose(_formulation(settings, pool, counter, known), budget, counter, solve)
        # Sentences where little fits and a passage that is above its price does not.
        whole = _formulation(settings.model_copy(update={"units": "passages"}), pool, counter, known)
        whole.program(budget)  # what another passage would add is judged at the prices of this budget
        wanted = solve(whole.program(max(budget, int(pool.candidates.tokens.sum()))))
        chosen = [i for i in wanted.selected if i < len(candidates)]
        least = _LEAST_OF_PARTS * whole.program(budget).cost(wanted.x) if wanted.x is not None else 0
        if least <= budget or (whole.is_merged and whole.shared is None):
            choice = _choose(whole, budget, counter, solve)
            if choice.result.x is not None and set(chosen) == set(choice.chosen):
                return choice
        parts = _choose(_formulation(settings, pool, counter, known), budget, counter, solve)
        return dataclasses.replace(parts, by_room=True)

    def check_ids(self, ids: Collection[str]) -> None:
        """Find what no question could be asked with: ids of no passage, and changes against nothing.

        ids: all passages of the index.

        Raises `InputError` with every problem found.
        """
        lacking = self.side.lacking()
        problems = [lacking] if lacking else []
        named: list[tuple[str, Any]] = [("must_include", i) for i in self.must_include]
        named += [("must_exclude", i) for i in self.must_exclude] + self.side.named()
        known = frozenset(ids) if named else frozenset()
        unknown = [(name, i) for name, i in named if i not in known]
        problems += [_unknown(name, str(i), known) for name, i in unknown[:_SHOWN]]
        if len(unknown) > _SHOWN:
            problems.append(f"{len(unknown) - _SHOWN} more ids are not in the index")
        if problems:
            raise InputError(problems)


def _unknown(setting: str, given: str, known: frozenset[str]) -> str:
    parts = [part.strip() for part in given.split(",")]
    if len(parts) > 1 and known.issuperset(parts):
        return f"{setting} names '{given}', which are {len(parts)} ids: give each on its own"
    near = difflib.get_close_matches(given, sorted(known), 3, 0.4)
    close = ", ".join(f"'{i}'" for i in near)
    hint = f"the closest ids are {close}" if near else f"its ids look like '{min(known, default='')}'"
    return f"{setting} names '{given}', which is not in the index: {hint}"


# -- one question -----------------------------------------------------------------------------------------


#: A block of passages takes at least so much of the tokens of its parts, where what these share is known.
_LEAST_OF_PARTS = 0.8


class _Solve:
    """Solves the programs of one question; the time limit is the question's, however many these are."""

    def __init__(self, run: Run) -> None:
        self._run, self._spent = run, 0.0
        self._last: tuple[SelectionProgram, SolveResult] | None = None

    def __call__(self, program: SelectionProgram) -> SolveResult:
        if self._last is not None:
            before, result = self._last
            same = before.linear is program.linear and before.pairwise is program.pairwise
            if same and result.is_optimal and program.budget <= before.budget:
                assert result.x is not None
                if program.cost(result.x) <= program.most_cost:  # best within more, and fits
                    return result
        result = self._run(program, self._spent)
        self._spent += result.wall_seconds
        self._last = program, result
        return result


def _formulation(
    settings: Selector, pool: Read, counter: TokenCounter | None, known: Formulation | None
) -> Formulation:
    if known is not None and known.settings.units == settings.units:
        return known.again()
    return Formulation(settings, pool, counter)


def _choose(formulation: Formulation, budget: int, counter: TokenCounter | None, solve: _Solve) -> Choice:
    """Solve programs of one pool until the assembled block fits the budget, and uses what is saved."""
    candidates, merge = formulation.candidates, formulation.is_merged
    order = formulation.settings.prompt_order
    best: Choice | None = None
    allowed, rounds, more_room = budget, 0, counter is not None and merge
    while True:
        rounds += 1
        outcome = solved(formulation, allowed, solve)
        program, result = outcome.program, outcome.result
        if result.status is Status.ERROR:
            raise SolverError(result.message)
        if result.status is Status.INFEASIBLE and more_room and counter is not None:
            more_room = False
            required = [int(i) for i in np.flatnonzero(program.fixed == 1) if i < len(candidates)]
            alone = np.isin(np.arange(program.n), required).astype(np.int8)
            laid_out = in_prompt_order(candidates, required, order)
            read, summed = block_tokens(candidates, laid_out, counter, merge), round(program.cost(alone))
            if read <= budget < summed:  # together they are shorter than one by one
                allowed = budget + summed - read
                continue
        # Behind the passages stand items that buy broken rows: nobody reads them.
        chosen = in_prompt_order(candidates, [i for i in result.selected if i < len(candidates)], order)
        used = summed = round(program.cost(result.x)) if result.x is not None else 0
        if counter is not None:
            used = block_tokens(candidates, chosen, counter, merge)
        if used > budget and best is None:
            # In proportion, but by no more than one passage: what is asked for must not drop out with it.
            optional = [round(program.alone[i]) for i in chosen if i in program.free]
            allowed = max(summed * budget // used, summed - max(optional, default=summed))
            continue
        now = Choice(
            formulation, outcome, result, chosen, used, budget, allowed, merge,
            counter="" if counter is None else counter.name,
        )  # fmt: skip
        before = best
        same = best is not None and set(now.chosen) == set(best.chosen) and used <= budget
        if best is None or _is_better(now, best) or (same and now.allowed > best.allowed):
            best = now
        # What is shared is read once: so many tokens more may be read; half as many where that failed.
        allowed = budget + summed - used if best is now else (allowed + best.allowed) // 2
        settled = before is not None and set(chosen) == set(before.chosen)
        least = 1 if candidates.lines is None else 1 + budget // 100  # of documents, parts add up well
        if not merge or settled or rounds >= _MOST_ROUNDS or allowed < best.allowed + least:
            break
    if best.result.status is Status.INFEASIBLE and best.allowed < budget:
        message = (
            f"no selection satisfies the constraints within {best.allowed} tokens, all that is left "
            f"of {budget} where the assembled block counts more than its passages"
        )
        return dataclasses.replace(best, result=dataclasses.replace(best.result, message=message))
    return best


def _is_better(choice: Choice, other: Choice) -> bool:
    """Whether a choice fits and is worth more; with a larger budget a heuristic may find less."""
    one, two = choice.result.objective, other.result.objective
    return choice.used <= choice.budget_tokens and (two is None or (one is not None and one > two))


# -- a conversation ---------------------------------------------------------------------------------------


class Conversation:
    """Carries the previous selection from turn to turn.

    selector: its `side.max_changes` or `side.change_price` says how near each selection must stay to the
        last; the first turn is free, unless `side.previous` names one. Without either the turns are
        independent.

    Examples
    --------
    >>> from mio_rag import Conversation, Selector, SideConstraints
    >>> talk = Conversation(Selector(side=SideConstraints(change_price=0.05)))
    """

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self.turns: list[Selection] = []

    def select(
        self, candidates: Candidates, budget_tokens: int, counter: TokenCounter | None = None
    ) -> Selection:
        """Choose for the next turn; see `Selector.select`. A turn without a selection leaves the last one."""
        selector, side = self.selector, self.selector.side
        if side.lacking():
            # Changes are about whole passages: so are all turns, not only those after the first.
            units = "passages" if selector.units == "auto" else selector.units
            selector = selector.replace(side=side.replace(max_changes=None, change_price=0.0), units=units)
        selection = selector.select(candidates, budget_tokens, counter)
        self.turns.append(selection)
        if selection.result.x is not None:
            self.selector = self.selector.replace(side=side.replace(previous=selection.ids))
        return selection
