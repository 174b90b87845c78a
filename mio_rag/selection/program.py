"""What settings make of a pool: terms, programs, and the robust counterpart that is solved.

A selection asks for several programs of one pool: for a smaller budget where the assembled block came out too
large, for the scenarios of the joint counterpart, for the worst case of what was chosen. `Formulation` builds
what they share once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
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
from mio_rag.merging import shared_characters
from mio_rag.relevance.model import RelevanceModel
from mio_rag.selection.near_duplicates import outdated
from mio_rag.selection.pool_constraints import Side, side_of
from mio_rag.selection.related import related_weights
from mio_rag.selection.segments import SharedCosts, shared_costs
from mio_rag.selection.settings import Settings
from mio_rag.selection.units import Cut, cut_into_sentences, may_cut

__all__ = ["Formulation", "joint_problem"]

FloatArray = NDArray[np.float64]


class Formulation:
    """What settings make of one pool; every part is built when it is first asked for, and kept.

    Parameters
    ----------
    settings : Settings
    candidates : Candidates
        Taken as they are: with a `relevance_model`, what `Settings.valued` made of them.
    counter : TokenCounter, optional
        The reader's tokenizer. With it, text that passages share is a segment of the program, which is paid
        once; without, and under embedding uncertainty, each passage pays for all of its text.
    penalty : float, optional
        The price of a passage. Without it, what the settings make of the pool at the budget that the first
        program is built for: a block that is assembled within less, or within more, keeps its price.

    Attributes
    ----------
    settings : Settings
        Those given, with a model and a number where they say "auto".
    candidates : Candidates
        Those given, or with ``units="sentences"`` their sentences.
    passages : Candidates
        Those given.
    source : RelevanceSource
        Where relevance comes from.
    """

    def __init__(
        self,
        settings: Settings,
        candidates: Candidates,
        counter: TokenCounter | None = None,
        penalty: float | None = None,
    ) -> None:
        resolved = settings.resolved(candidates)
        self.settings, self.source = resolved.settings, resolved.source
        self._model, self._counter, self.passages = resolved.model, counter, candidates
        self._cut = self._sentences() if settings.units == "sentences" else None
        self.candidates = candidates if self._cut is None else self._cut.candidates
        self._program: SelectionProgram | None = None
        self._joint: tuple[int, JointProblem] | None = None
        self._given_penalty = self._penalty = penalty

    def again(self) -> Formulation:
        """The same, before its first program: for another budget. What needs no budget is shared."""
        other = copy.copy(self)
        other._program, other._joint, other._penalty = None, None, self._given_penalty
        return other

    def _sentences(self) -> Cut:
        settings, passages = self.settings, self.passages
        fixed = fixed_values(passages.ids, settings.must_include, settings.must_exclude)
        related = related_weights(settings, passages)
        one, alike = settings.near_duplicates == "one", settings.redundancy_weight > 0
        own = self._model.sentences if self._model else None
        return cut_into_sentences(passages, self._counter, fixed, related, one, alike, own)

    @property
    def may_be_cut(self) -> bool:
        """Whether sentences could be chosen instead."""
        return may_cut(self.settings, self.passages, self._counter) and self._cut is None

    @cached_property
    def side(self) -> Side:
        """Counts, caps and side constraints."""
        return side_of(self.settings, self.candidates)

    @cached_property
    def uncertainty(self) -> UncertaintySet | None:
        """Where the embeddings may really lie; None where nothing can deviate."""
        return _uncertainty(self.settings, self.candidates)

    @property
    def not_cut(self) -> dict[int, int]:
        """Of the passages whose sentences are chosen, those not cut -> the near-duplicate that is."""
        return {} if self._cut is None else self._cut.not_cut

    @property
    def can_deviate(self) -> bool:
        """Whether anything says how far embeddings may be off, be it 0."""
        return _can_deviate(self.settings, self.candidates)

    @property
    def is_merged(self) -> bool:
        """Whether passages of one document are read as one text, and somebody counts it."""
        return self.settings.merge and self._counter is not None and self.candidates.spans is not None

    @cached_property
    def shared(self) -> SharedCosts | None:
        """What passages cost by themselves and what they share; None where each pays for all of its text."""
        if self._counter is None or not self.is_merged or self.uncertainty is not None:
            return None
        return shared_costs(self.candidates, self._counter)

    @property
    def _own_tokens(self) -> FloatArray:
        return self.candidates.tokens.astype(np.float64) if self.shared is None else self.shared.own

    @property
    def _priced_segments(self) -> Segments | None:
        segments = None if self.shared is None else self.shared.segments
        return segments and replace(segments, prices=self.settings.token_price * segments.costs)

    def penalty(self, budget_tokens: int) -> float:
        """The price of a passage in this pool; the budget matters until it is known."""
        if self._penalty is None:
            self._penalty = self.settings.penalty(self.passages, budget_tokens)
        return self._penalty

    @cached_property
    def _weights(self) -> FloatArray | None:
        if self._cut is not None:
            return self._cut.related if self._cut.related.any() else None
        return related_weights(self.settings, self.candidates)

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
    def _told(self) -> NDArray[np.int8]:
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
        return frozenset(outdated(self.candidates, self._told))

    @cached_property
    def _fixed(self) -> NDArray[np.int8]:
        fixed = self._told.copy()
        fixed[list(self.outdated)] = 0
        return fixed

    def program(self, budget_tokens: int) -> SelectionProgram:
        """The program for a budget: nominal, or the termwise counterpart where embeddings may be off.

        Raises
        ------
        InputError
            If the candidates lack what the settings need.
        """
        if self._program is None:
            self._program = self._built(budget_tokens)
        elif self._program.budget != budget_tokens:
            self._program = replace(self._program, budget=budget_tokens)
        return self._program

    def _built(self, budget_tokens: int) -> SelectionProgram:
        side = self.side
        value, similarity = _terms(self.settings, self._model, self.candidates, self.uncertainty)
        weights = self._weights
        worth = np.maximum(value, 0.0)
        penalty = self.penalty(budget_tokens)
        if self._cut is not None:  # each sentence pays its share of the price of a passage
            value, penalty = value - penalty * self._cut.shares, 0.0
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
        )
        if (repeated := self._repeated) is not None:
            program = replace(program, pairwise=program.pairwise + repeated)
        if (segments := self._priced_segments) is not None:
            program = replace(program, segments=segments)
        return side.applied(program)

    def joint(self, budget_tokens: int, uncertainty: UncertaintySet | None = None) -> JointProblem:
        """The robust problem for a budget, in which one perturbation serves all terms.

        Parameters
        ----------
        uncertainty : UncertaintySet, optional
            Instead of the one that the settings give.

        Text that passages share is paid once here, too, where no embedding is uncertain by the settings; what
        it loses in value is charged by relevance as embedded.

        Raises
        ------
        InputError
            Without embeddings, or where redundancy is weighed by relevance.
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
        settings, candidates = self.settings, self.candidates
        vectors, query = candidates.embeddings, candidates.query_embedding
        if vectors is None or query is None:
            raise InputError("a worst case needs candidates with embeddings and query_embedding: pass them")
        if settings.redundancy_by_relevance:
            raise InputError(
                "redundancy weighed by relevance has no joint worst case here: use counterpart='termwise', "
                "or redundancy_by_relevance=False"
            )
        assemble = self._assembler(budget_tokens)
        given = uncertainty or self.uncertainty or NormBall(0.0)
        model = self._model
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
            assemble=assemble,
        )

    def _assembler(self, budget_tokens: int) -> Callable[[FloatArray, FloatArray], SelectionProgram]:
        """Terms -> the program with this budget, what passages share, and the side constraints."""
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
    settings: Settings,
    candidates: Candidates,
    budget_tokens: int,
    uncertainty: UncertaintySet | None = None,
    *,
    penalty: float | None = None,
    shared: SharedCosts | None = None,
) -> JointProblem:
    """`Formulation.joint` of a pool, where nothing else of it is needed.

    Parameters
    ----------
    shared : SharedCosts, optional
        What the passages share (`Formulation.shared`), in place of a counter.
    """
    formulation = Formulation(settings, candidates, penalty=penalty)
    if shared is not None:
        formulation.shared = shared
    return formulation.joint(budget_tokens, uncertainty)


def _uncertainty(settings: Settings, candidates: Candidates) -> UncertaintySet | None:
    """The set that settings and a pool's radii make; None where nothing can deviate."""
    given = settings.uncertainty
    if given is None:
        if not _can_deviate(settings, candidates):
            return None
        given = NormBall(settings.radius, settings.norm)
    radius = candidates.radius
    if radius is None and settings.passage_radii:
        radius = _radii(settings, candidates)
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


def _can_deviate(settings: Settings, candidates: Candidates) -> bool:
    """Whether anything says how far embeddings may be off, be it 0."""
    given = settings.uncertainty is not None or settings.radius > 0 or bool(settings.passage_radii)
    return given or candidates.radius is not None


def _radii(settings: Settings, candidates: Candidates) -> FloatArray:
    """The radius of each candidate by its id."""
    known = settings.passage_radii
    missing = [i for i in candidates.ids if i not in known]
    if missing:
        raise InputError(
            f"passage_radii lacks {len(missing)} of {len(candidates)} candidates ('{missing[0]}' is one): "
            "measure every passage (mio-rag radius INDEX --method sq8 or pq:M), or give one radius for all"
        )
    return np.array([known[i] for i in candidates.ids], dtype=np.float64)


def _terms(
    settings: Settings,
    model: RelevanceModel | None,
    candidates: Candidates,
    uncertainty: UncertaintySet | None,
) -> tuple[FloatArray, FloatArray | None]:
    """Relevance and similarity as the program charges them: nominal, or each at its own worst."""
    n = len(candidates)
    vectors, query = candidates.embeddings, candidates.query_embedding
    if uncertainty is None:
        value = candidates.relevance
        if settings.redundancy_weight > 0 and candidates.similarity is not None:
            return value, _weighed(settings, candidates.similarity, value, value)
        if settings.redundancy_weight == 0 or vectors is None:
            return value, None
        mu = vectors.astype(np.float64)
        return value, _weighed(settings, mu @ mu.T, value, value)
    if vectors is None or query is None:
        raise InputError("radius > 0 needs embeddings and query_embedding: pass them, or set radius=0")
    loss = uncertainty.support(query, n)
    if model is None:
        low, high = candidates.relevance - loss, candidates.relevance + loss
    else:
        low, high = (model.probabilities(candidates, sign * loss) for sign in (1, -1))
    if settings.redundancy_weight == 0:
        return low, None
    return low, _weighed(settings, worst_similarity(vectors, uncertainty), low, high)


def _weighed(settings: Settings, similarity: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Similarity by sqrt(r_i r_j), at whichever end of the relevances costs most."""
    if not settings.redundancy_by_relevance:
        return similarity
    least, most = (np.sqrt(np.maximum(r, 0.0)) for r in (low, high))
    return np.where(similarity >= 0, np.outer(most, most), np.outer(least, least)) * similarity
