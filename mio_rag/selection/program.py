"""What settings make of a pool: terms, programs, and the robust counterpart that is solved.

A selection asks for several programs of one pool: for a smaller budget where the assembled block came out too
large, for the scenarios of the joint counterpart, for the worst case of what was chosen. `Formulation` builds
what they share once.

What passages of one document share is a segment of the program, which is paid once: the document's title, and
pieces of its text. The text is cut where a passage begins or ends; a passage needs the pieces that it covers,
and its document's heading. What only one passage needs is that passage's own cost. So the costs of a choice
add up to what `mio_rag.context` makes of it, as far as a tokenizer counts a whole like the sum of its parts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import (
    SEPARATOR,
    RegexCounter,
    TokenCounter,
    apart,
    counted,
    documents,
    shared_characters,
)
from mio_rag.errors import InputError
from mio_rag.formulations.program import Segments, SelectionProgram
from mio_rag.formulations.robust import (
    CurveValue,
    InnerProductValue,
    ItemValue,
    JointProblem,
    nominal_program,
    worst_similarity,
)
from mio_rag.formulations.rows import fixed_values
from mio_rag.formulations.uncertainty import DeviationBudget, NormBall, ScaledSet, UncertaintySet
from mio_rag.pool import Candidates
from mio_rag.relevance.documents import is_known
from mio_rag.relevance.model import RelevanceModel, RelevanceSource, answerable_for
from mio_rag.selection.constraints import Side, side_of
from mio_rag.selection.units import PASSAGE, Cut, cut_into_sentences, outdated
from mio_rag.types import clean

if TYPE_CHECKING:
    from mio_rag.selection.selector import Selector

FloatArray = NDArray[np.float64]
#: w where `link_benefit` is "auto" and passages are related.
LINK_BENEFIT = 0.2


@dataclass(frozen=True, eq=False)
class Read:
    """A pool with the relevance that a selector gives it, the model that gave it, and why that one.

    units: relevance of the units of documents.
    """

    candidates: Candidates
    model: RelevanceModel | None
    source: RelevanceSource
    units: FloatArray | None = None

    @cached_property
    def answerable(self) -> float | None:
        """The probability that the collection holds an answer; None where the model does not say."""
        if self.source.kind == "documents":
            by_cover = answerable_for(self.candidates.embedder)
            likely = None if by_cover is None else by_cover.probability(self.candidates)
            return max(likely, 0.5) if likely is not None and is_known(self.candidates) else likely
        if self.model is None or self.model.answerable is None:
            return None
        return self.model.answerable.probability(self.candidates)


def resolved_benefit(benefit: float | str, candidates: Candidates, model: RelevanceModel | None) -> float:
    """Return w: the number that was set, or for "auto" what the candidates and their relevance allow."""
    if not isinstance(benefit, str):
        return float(benefit)
    is_known = candidates.links is not None or candidates.sources is not None
    return LINK_BENEFIT if model is not None and is_known else 0.0


#: Places apart of documents, so that those of two of them never meet; units without a place lie far apart.
_DOCUMENT = 2**44


class SharedCosts(NamedTuple):
    """Token costs of a pool whose passages share text.

    own: shape (n,); what each passage costs by itself, whatever else is read.
    segments: what several passages need, in tokens.
    """

    own: NDArray[np.float64]
    segments: Segments


class Formulation:
    """What settings make of one pool; every part is built when it is first asked for, and kept.

    settings: with units "passages" or "sentences".
    pool: what `Selector.read`, or `Selector.valued`, made of the candidates.
    counter: the reader's tokenizer. With it, text that passages share is a segment of the program, which is
        paid once; without, and under embedding uncertainty, each passage pays for all of its text.
    penalty: the price of a passage. Without it, what the settings make of the pool at the budget that the
        first program is built for: a block that is assembled within less, or within more, keeps its price.
    leads: whether the most likely unit of documents is read wherever it fits, at any price.

    candidates: those given, or with ``units="sentences"`` their sentences.
    passages: those given.
    """

    def __init__(
        self,
        settings: Selector,
        pool: Read | Candidates,
        counter: TokenCounter | None = None,
        penalty: float | None = None,
        *,
        leads: bool = True,
    ) -> None:
        if isinstance(pool, Candidates):
            from mio_rag.relevance.model import relevance_of

            pool = Read(pool, *relevance_of(settings.relevance_model, pool))
        self.settings, self.pool, self.counter = settings, pool, counter
        self.passages = pool.candidates
        self._cut = self._sentences() if settings.units == "sentences" else None
        self.candidates = self.passages if self._cut is None else self._cut.candidates
        self._program: SelectionProgram | None = None
        self._joint: tuple[int, JointProblem] | None = None
        self._given_penalty = self._penalty = penalty
        self._leads = leads

    def again(self) -> Formulation:
        """Return the same before its first program, for another budget; other parts are shared."""
        other = copy.copy(self)
        other._program, other._joint, other._penalty = None, None, self._given_penalty
        return other

    @property
    def source(self) -> RelevanceSource:
        """Where relevance comes from."""
        return self.pool.source

    def _sentences(self) -> Cut:
        settings, model = self.settings, self.pool.model
        fixed = fixed_values(self.passages.ids, settings.must_include, settings.must_exclude)
        one, alike = settings.near_duplicates == "one", settings.redundancy_weight > 0
        related, own = self._related(), model.sentences if model else None
        formula = self.source.formula
        return cut_into_sentences(
            self.passages, self.counter, fixed, related, one, alike, own, formula, self.pool.units
        )

    @property
    def not_cut(self) -> dict[int, int]:
        """Of the passages whose sentences are chosen, those not cut -> the near-duplicate that is."""
        return {} if self._cut is None else self._cut.not_cut

    @cached_property
    def side(self) -> Side:
        """Counts, caps and side constraints."""
        return side_of(self.settings, self.candidates)

    # -- tokens -------------------------------------------------------------------------------------------

    @property
    def is_merged(self) -> bool:
        """Whether passages of one document are read as one text, and a tokenizer counts it."""
        return self.settings.merge and self.counter is not None and self.candidates.spans is not None

    @cached_property
    def shared(self) -> SharedCosts | None:
        """What passages cost by themselves and what they share; None where each pays for all of its text."""
        if self.counter is None or not self.is_merged or self.uncertainty is not None:
            return None
        return shared_costs(self.candidates, self.counter)

    @property
    def _own_tokens(self) -> FloatArray:
        return self.candidates.tokens.astype(np.float64) if self.shared is None else self.shared.own

    @property
    def _priced_segments(self) -> Segments | None:
        segments = None if self.shared is None else self.shared.segments
        if self.settings.token_price == 0:
            return segments
        return segments and replace(segments, prices=self.settings.token_price * segments.costs)

    # -- worth --------------------------------------------------------------------------------------------

    def penalty(self, budget_tokens: int) -> float:
        """Return the price of a passage in this pool; the budget matters until it is known."""
        if self._penalty is None:
            self._penalty = self.settings.penalty(self.passages, budget_tokens, self.pool)
        return self._penalty

    def _related(self) -> FloatArray | None:
        """Return w times how far two passages belong together, shape (n, n); None where nothing is gained.

        They do where one mentions the other, or both are of one short document.

        Raises `InputError` if a benefit is asked for, and the candidates know neither links nor sources.
        """
        passages, benefit = self.passages, self.settings.link_benefit
        benefit = resolved_benefit(benefit, passages, self.pool.model)
        if benefit == 0:
            return None
        if passages.links is None and passages.sources is None:
            raise InputError(
                f"link_benefit={benefit:g} needs candidates with evidence links or sources: retrieve them "
                "from an index that holds links, pass links or sources, or set link_benefit=0"
            )
        weights = _siblings(passages)
        if passages.links is not None:
            weights = np.maximum(weights, np.maximum(passages.links, passages.links.T))
        return np.asarray(benefit * weights) if weights.any() else None

    @cached_property
    def _weights(self) -> FloatArray | None:
        return self._related() if self._cut is None else self._cut.related

    @cached_property
    def _repeated(self) -> FloatArray | None:
        """What two passages lose because they share text; None where nothing is lost."""
        weight = self.settings.shared_text_weight
        if weight == 0 or self.candidates.spans is None or self.uncertainty is not None:
            return None
        shared = shared_characters(self.candidates)
        if not shared.any():
            return None
        lengths = np.array([len(text) for text in self.candidates.texts], dtype=np.float64)
        worth = np.maximum(self.candidates.relevance, 0.0)
        share = shared / np.minimum.outer(lengths, lengths)
        return np.asarray(weight * share * np.minimum.outer(worth, worth))

    @cached_property
    def _asked(self) -> NDArray[np.int8]:
        """What the settings say must, or must not, be read."""
        if self._cut is not None:
            return self._cut.fixed
        settings = self.settings
        return fixed_values(self.candidates.ids, settings.must_include, settings.must_exclude)

    @cached_property
    def outdated(self) -> frozenset[int]:
        """Candidates that are not read because the pool holds a newer version."""
        if self.settings.near_duplicates == "all":
            return frozenset()
        return frozenset(outdated(self.candidates, self._asked))

    @cached_property
    def _fixed(self) -> NDArray[np.int8]:
        fixed = self._asked.copy()
        fixed[list(self.outdated)] = 0
        return fixed

    # -- uncertainty --------------------------------------------------------------------------------------

    @property
    def can_deviate(self) -> bool:
        """Whether anything says how far embeddings may be off, even if it is 0."""
        settings = self.settings
        given = settings.uncertainty is not None or settings.radius > 0 or bool(settings.passage_radii)
        return given or self.candidates.radius is not None

    @cached_property
    def uncertainty(self) -> UncertaintySet | None:
        """Where the embeddings may really lie; None where nothing can deviate."""
        if not self.can_deviate:
            return None
        settings, candidates = self.settings, self.candidates
        given = settings.uncertainty or NormBall(settings.radius, settings.norm)
        radius = candidates.radius
        if radius is None and settings.passage_radii:
            missing = [i for i in candidates.ids if i not in settings.passage_radii]
            if missing:
                raise InputError(
                    f"passage_radii lacks {len(missing)} of {len(candidates)} candidates ('{missing[0]}' is "
                    "one): measure every passage (mio-rag lab radius INDEX --method sq8 or pq:M), or "
                    "give one "
                    "radius for all"
                )
            radius = np.array([settings.passage_radii[i] for i in candidates.ids], dtype=np.float64)
        if radius is not None:
            if isinstance(given, ScaledSet):
                given = replace(given, radius=np.asarray(radius))
            elif isinstance(given, DeviationBudget) and isinstance(given.base, ScaledSet):
                given = replace(given, base=replace(given.base, radius=np.asarray(radius)))
            else:
                raise InputError(
                    f"{type(given).__name__} has no radius, so it cannot take one for each passage: leave "
                    "passage_radii and Candidates.radius out, or give a set with a radius"
                )
        return None if given.is_exact else given

    # -- programs -----------------------------------------------------------------------------------------

    def program(self, budget_tokens: int) -> SelectionProgram:
        """Return the program for a budget: nominal, or termwise robust where embeddings may be off.

        Raises `InputError` if the candidates lack what the settings need.
        """
        if self._program is None:
            self._program = self._led(self._built(budget_tokens))
        elif self._program.budget != budget_tokens:
            self._program = self._led(self._program.within(budget_tokens))
        return self._program

    def _led(self, program: SelectionProgram) -> SelectionProgram:
        """Fix the most likely unit of documents where it fits: longer ones never crowd it out."""
        if not self._leads or self._cut is None or self.source.formula is None or (self._fixed > 0).any():
            return program
        worth = self.candidates.relevance
        best = int(worth.argmax())
        if self._fixed[best] < 0 < worth[best]:
            program = program.fixing(best, 1 if program.alone[best] <= program.budget else -1)
        return program

    def _built(self, budget_tokens: int) -> SelectionProgram:
        side = self.side
        value, similarity = self._terms()
        weights = self._weights
        worth = np.maximum(value, 0.0)
        penalty = self.penalty(budget_tokens)
        if self._cut is not None:  # each sentence pays its share of the price of a passage
            value, penalty = value * self._cut.sizes - penalty * self._cut.shares, 0.0
        elif self.source.kind == "documents":
            value = value * self.candidates.tokens / (PASSAGE * max(value.max(), 1e-9))
        program = nominal_program(
            value,
            similarity,
            self._own_tokens,
            budget_tokens,
            redundancy_weight=self.settings.redundancy_weight,
            passage_penalty=penalty,
            token_price=self.settings.token_price,
            benefit=None if weights is None else weights * np.maximum.outer(worth, worth),
            fixed=self._fixed,
            segments=self._priced_segments,
        )
        if (repeated := self._repeated) is not None:
            program = replace(program, pairwise=program.pairwise + repeated)
        return side.applied(program)

    def _terms(self) -> tuple[FloatArray, FloatArray | None]:
        """Return relevance and similarity as the program charges them: nominal, or each at its own worst."""
        candidates, uncertainty, model = self.candidates, self.uncertainty, self.pool.model
        vectors, query = candidates.embeddings, candidates.query_embedding
        has_price = self.settings.redundancy_weight > 0
        if uncertainty is None:
            value = candidates.relevance
            similarity = candidates.similarity
            if similarity is None and has_price and vectors is not None:
                mu = vectors.astype(np.float64)
                similarity = mu @ mu.T
            if not has_price or similarity is None:
                return value, None
            if self.source.kind == "documents":  # worth is below a passage's, and unlike texts gain nothing
                worth = value if self._cut is None else value * self._cut.sizes
                return value, np.maximum(similarity, 0.0) * np.sqrt(np.outer(worth, worth))
            return value, self._weighed(similarity, value, value)
        if vectors is None or query is None:
            raise InputError("radius > 0 needs embeddings and query_embedding: pass them, or set radius=0")
        loss = uncertainty.support(query, len(candidates))
        if model is None:
            low, high = candidates.relevance - loss, candidates.relevance + loss
        else:
            low, high = (model.probabilities(candidates, sign * loss) for sign in (1, -1))
        if not has_price:
            return low, None
        return low, self._weighed(worst_similarity(vectors, uncertainty), low, high)

    def _weighed(self, similarity: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """Return similarity by sqrt(r_i r_j), at whichever end of the relevances costs most."""
        if not self.settings.redundancy_by_relevance:
            return similarity
        least, most = (np.sqrt(np.maximum(r, 0.0)) for r in (low, high))
        return np.where(similarity >= 0, np.outer(most, most), np.outer(least, least)) * similarity

    def joint(self, budget_tokens: int, uncertainty: UncertaintySet | None = None) -> JointProblem:
        """Return the robust problem for a budget, in which one perturbation serves all terms.

        uncertainty: instead of the one that the settings give.

        Raises `InputError` without embeddings, or where redundancy is weighed by relevance.
        """
        if uncertainty is not None:
            return self._joint_problem(budget_tokens, uncertainty)
        if self._joint is None:
            problem = self._joint_problem(budget_tokens, None)
        elif self._joint[0] != budget_tokens:
            problem = self._joint[1].reassembled(self._assembler(budget_tokens))
        else:
            return self._joint[1]
        self._joint = budget_tokens, problem
        return problem

    def _joint_problem(self, budget_tokens: int, uncertainty: UncertaintySet | None) -> JointProblem:
        settings, candidates, model = self.settings, self.candidates, self.pool.model
        vectors, query = candidates.embeddings, candidates.query_embedding
        if vectors is None or query is None:
            raise InputError("a worst case needs candidates with embeddings and query_embedding: pass them")
        if settings.redundancy_by_relevance:
            raise InputError(
                "redundancy weighed by relevance has no joint worst case here: use counterpart='termwise', "
                "or redundancy_by_relevance=False"
            )
        given = uncertainty or self.uncertainty or NormBall(0.0)
        value: ItemValue = InnerProductValue(candidates.relevance)
        if model is not None:
            value = CurveValue(
                lambda loss: model.probabilities(candidates, loss),
                model.alone(candidates, given.support(query, len(candidates))),
            )
        return JointProblem(
            value=value,
            rest=-self.penalty(budget_tokens) - settings.token_price * self._own_tokens,
            embeddings=vectors.astype(np.float64),
            query=query.astype(np.float64),
            uncertainty=given,
            redundancy_weight=settings.redundancy_weight,
            benefit=self._weights,
            assemble=self._assembler(budget_tokens),
        )

    def _assembler(self, budget_tokens: int) -> Callable[[FloatArray, FloatArray], SelectionProgram]:
        """Return terms -> the program with this budget, what passages share, and the side constraints."""
        side, fixed, costs = self.side, self._fixed, self._own_tokens
        segments, repeated = self._priced_segments, self._repeated

        return lambda linear, pairwise: side.applied(
            SelectionProgram(
                linear,
                pairwise if repeated is None else pairwise + repeated,
                costs,
                budget_tokens,
                fixed=fixed,
                segments=segments,
            )
        )


def joint_problem(
    settings: Selector,
    pool: Read | Candidates,
    budget_tokens: int,
    uncertainty: UncertaintySet | None = None,
    *,
    penalty: float | None = None,
    shared: SharedCosts | None = None,
) -> JointProblem:
    """Return `Formulation.joint` of a pool, where nothing else of it is needed.

    shared: what the passages share (`Formulation.shared`), in place of a counter.
    """
    formulation = Formulation(settings, pool, penalty=penalty)
    if shared is not None:
        formulation.shared = shared
    return formulation.joint(budget_tokens, uncertainty)


@lru_cache(maxsize=8)  # whole passages are weighed, and their sentences
def _siblings(candidates: Candidates) -> FloatArray:
    """Return 1 / (m - 1) for two of the m passages that a source has in the pool, else 0; shape (n, n).

    A short document often says one thing in a few passages; of a long one, the other passages are mostly
    about something else. A blank source is no source.
    """
    number: dict[str, int] = {}
    names = [str(source).strip() for source in candidates.sources or [""] * len(candidates)]
    source = np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int64)
    count = np.bincount(source)[source]
    named = np.array([bool(name) for name in names]) & (count > 1)
    weights: FloatArray = (source[:, None] == source) * np.where(named, 1.0 / np.maximum(count - 1, 1), 0.0)
    np.fill_diagonal(weights, 0.0)
    weights.flags.writeable = False
    return weights


def shared_costs(candidates: Candidates, counter: TokenCounter) -> SharedCosts | None:
    """Return costs of the passages and of what they share; None where no two are of one document.

    counter: the reader's tokenizer.
    """
    number, spans, lines = documents(candidates), candidates.spans, candidates.lines
    own, between = candidates.tokens.astype(np.float64), apart(candidates)
    several = np.bincount(number + 1)[number + 1] > 1
    if lines is not None:
        several |= np.fromiter(map(bool, lines), dtype=bool, count=len(lines))
    items = np.flatnonzero(several & (number >= 0))
    if spans is None or not items.size:
        return None
    own[items] = 0.0
    # Texts and who needs each; every document has a range of places of its own.
    listed = items.tolist()
    texts, users, starts = [candidates.texts[i] for i in listed], items, spans[items, 0]
    if lines is not None:
        of_items = [lines[i] for i in listed]
        needed = list(chain.from_iterable(of_items))
        texts += [text for _, text in needed]
        users = np.concatenate([items, np.repeat(items, list(map(len, of_items)))])
        starts = np.concatenate([starts, np.array([start for start, _ in needed], dtype=np.int64)])
    starts = starts + number[users] * _DOCUMENT
    ends = starts + np.array(list(map(len, texts)), dtype=np.int64)
    # A piece lies between two borders; a text is all pieces from its start to its end.
    borders = np.sort(np.concatenate([starts, ends]))
    borders = borders[np.append(True, borders[1:] != borders[:-1])]
    low, high = borders.searchsorted(starts), borders.searchsorted(ends)
    sizes = high - low
    text_of = np.repeat(np.arange(len(texts)), sizes)
    piece = np.arange(text_of.size) + np.repeat(low - np.cumsum(sizes) + sizes, sizes)
    first = np.full(borders.size, -1)  # a text that has each piece; the last border begins none
    first[piece[::-1]] = text_of[::-1]
    covered = first >= 0
    begins, is_last = covered.copy(), covered.copy()  # of what has no gap
    begins[1:] &= ~covered[:-1]
    is_last[:-1] &= ~covered[1:]
    document = borders // _DOCUMENT
    heads = begins.copy()
    heads[1:] &= document[1:] != document[:-1]
    # Without headings, a mark that nobody reads before the first run parts the runs of a document.
    marks = begins & (lines is None)
    marks &= np.bincount(document, marks)[document] > 1
    column = np.cumsum(covered.astype(np.int64) + heads + marks) - 1
    pieces = [between] * int(column[-1] + 1)
    # Most tokenizers count a new line with the sign before it; for the approximate one it is free.
    seam = "" if lines is None or type(counter) is RegexCounter else between
    at = np.flatnonzero(covered)
    text, begin, end = first[at], borders[at], borders[at + 1]
    ranges = (one.tolist() for one in (column[at], text, begin - starts[text], end - starts[text]))
    for k, one, low_, high_ in zip(*ranges, strict=True):
        pieces[k] = texts[one][low_:high_]
    for k in column[is_last].tolist() if seam else ():
        pieces[k] += seam
    heading = np.flatnonzero(heads)
    of_heading = column[heading] - marks[heading] - 1
    of_document = document[heading].searchsorted(number[items])
    top = np.empty(heading.size, dtype=np.int64)
    top[of_document[::-1]] = items[::-1]
    for k, i in zip(of_heading.tolist(), top.tolist(), strict=True):
        title = "" if candidates.titles is None else clean(candidates.titles[i]).strip()
        pieces[k] = f"{SEPARATOR}{title}\n" if title else SEPARATOR
    costs = counted(counter, pieces).astype(np.float64)
    for k in column[heads & marks].tolist():
        costs[k - 2] = max(0.0, costs[k - 2] - costs[k - 1])
    needs = np.zeros((len(candidates), len(pieces)), dtype=bool)
    needs[users[text_of], column[piece]] = True
    needs[items, of_heading[of_document]] = True
    if marks.any():
        run = np.maximum.accumulate(np.where(begins, np.arange(borders.size), 0))[piece]
        needs[users[text_of][marks[run]], column[run[marks[run]]] - 1] = True
    count = needs.sum(axis=0)
    single = count == 1
    own += np.bincount(needs.argmax(axis=0)[single], costs[single], own.size)
    several = (count > 1) & (costs > 0)
    shared = needs[:, several]
    shared.flags.writeable = False
    segments = Segments(costs[several], shared)
    own[own + segments.alone < 1] = 1.0  # as alone: nothing is read at no cost
    return SharedCosts(own, segments)
