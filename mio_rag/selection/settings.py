"""The settings of a selection, checked: what relevance, tokens and overlap are worth, and what must hold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, get_args

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.context import PromptOrder
from mio_rag.entries import listed, no_names
from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting
from mio_rag.formulations.rows import count_problem
from mio_rag.formulations.uncertainty import Norm, UncertaintySet
from mio_rag.relevance.answerable import Answerable
from mio_rag.relevance.model import RelevanceModel
from mio_rag.relevance.source import Relevance, RelevanceSource, relevance_of
from mio_rag.selection.constraints import SideConstraints
from mio_rag.solvers.result import SolveOptions

__all__ = ["LINK_BENEFIT", "Counterpart", "NearDuplicates", "Penalty", "Resolved", "Settings", "Units"]

#: termwise: each term at its own worst (closed, conservative). joint: one perturbation for all, by cuts.
Counterpart = Literal["termwise", "joint"]

#: How many of passages that are nearly copies of each other may be read.
NearDuplicates = Literal["one", "all"]

#: What is chosen: whole passages, their sentences, or what the budget is for.
Units = Literal["passages", "sentences", "auto"]

#: lambda_2: a number, or what makes one of each pool.
Penalty = float | Literal["auto", "adaptive"]

#: w where `link_benefit` is "auto" and passages are related; `python -m benchmarks default` measures it.
LINK_BENEFIT = 0.2
_ADAPTIVE = 0.1  # lambda_2 of a pool whose best passage is surely needed; measured there as well
_ELSEWHERE = 0.2  # and where the collection surely holds no answer

#: Words that stand for a number which each pool decides.
_WORDS: dict[str, tuple[str, ...]] = {"passage_penalty": ("adaptive", "auto"), "link_benefit": ("auto",)}

#: Settings that are no numbers: their types, in words.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "norm": ((str,), "l2, l1 or linf"),
    "counterpart": ((str,), "termwise or joint"),
    "prompt_order": ((str,), "the name of an order"),
    "solver": ((str,), "the name of a solver"),
    "options": ((SolveOptions,), "SolveOptions"),
    "relevance_model": ((RelevanceModel, str, type(None)), "a RelevanceModel, auto, given or None"),
    "uncertainty": ((UncertaintySet, type(None)), "an UncertaintySet or None"),
    "passage_radii": ((Mapping,), "a mapping of id to radius"),
    "redundancy_by_relevance": ((bool, np.bool_), "True or False"),
    "merge": ((bool, np.bool_), "True or False"),
    "near_duplicates": ((str,), "one or all"),
    "units": ((str,), "passages, sentences or auto"),
    "side": ((SideConstraints,), "SideConstraints"),
    "must_include": ((Collection,), "a list of ids"),
    "must_exclude": ((Collection,), "a list of ids"),
}


@dataclass(frozen=True)
class Settings:
    """How passages are chosen; `mio_rag.Selector` chooses by it.

    Parameters
    ----------
    redundancy_weight : float
        lambda_1 >= 0, per unit of similarity: what two overlapping passages lose together. 0: they do not
        compete. Above 0 the candidates need embeddings, or similarities.
    passage_penalty : float, "adaptive" or "auto"
        lambda_2 >= 0, in units of relevance: what one more passage must be worth. 0: fill the budget with
        whatever is relevant at all; large: few passages. "adaptive": 0.1 r^2, with r the best relevance from
        0 to 1 among the passages that fit the budget. Where one passage is surely needed, others must be
        likely to be read beside it; where none is, more is read. Where the cosines of a known embedder tell
        with which probability a the collection holds an answer at all (see `answerable`), it is at least
        0.2 (1 - a): little is read for a question about something else. "auto" takes the median relevance of
        the pool, so that the typical candidate is worth nothing: meant for raw scores of a deep pool (some 20
        or more), whose middle is background.
    token_price : float
        lambda_3 >= 0, in units of relevance per token.
    radius : float
        rho >= 0: how far each embedding may be off, in `norm`. 0: trust the embeddings. `Candidates.radius`,
        where given, takes precedence. Relevance must then be the inner product of question and passage (or
        fall no faster), or come from a `relevance_model`, which is then evaluated at the lowered cosines.
    norm : {"l2", "l1", "linf"}
    min_passages, max_passages : int, optional
    max_per_source : int or mapping of source to int, optional
    must_include, must_exclude : sequence of str
        Ids of candidates.
    solver : str
        See `mio_rag.solvers.solve`.
    options : SolveOptions
    relevance_model : RelevanceModel, "auto", "given" or None
        Replaces the candidates' relevance by the probability that each passage is needed. "auto": by what the
        candidates bring, see `mio_rag.relevance.source`. "given" or None: relevance stays what it is.
    link_benefit : float or "auto"
        w >= 0: choosing two passages of which one mentions the other gains w * max(r_i, r_j) times the weight
        of the link; so does choosing two of the m passages that a source has in the pool, times 1 / (m - 1).
        0: neither counts. Above 0 the candidates need evidence links or sources. "auto": 0.2 where they have
        either and relevance is a probability, else 0.
    redundancy_by_relevance : bool
        Weigh the similarity of two passages by sqrt(r_i r_j), so that only relevant passages compete.
    prompt_order : {"best_first", "best_at_ends", "document"}
        How the chosen passages are laid out.
    uncertainty : UncertaintySet, optional
        Instead of `radius` and `norm`: any set of `mio_rag.formulations`. `Candidates.radius`, where given,
        replaces its radii.
    passage_radii : mapping of str to float
        Id -> radius of that passage's embedding, >= 0: instead of `radius`, or of the radii of `uncertainty`.
        `Candidates.radius`, where given, takes precedence. Empty: not known.
    counterpart : {"termwise", "joint"}
        termwise: each term is charged its own worst perturbation; one program, conservative. joint: one
        perturbation of each embedding serves all terms; a few programs, `relative_gap` bounds how far they
        are driven, and the selection's worst case is certified from both sides. Needs a radius or a set.
    side : SideConstraints
        Shares, coverage, smoothness, conflicts, needs, and prices for what may be broken.
    merge : bool
        Read passages of one document as one text where their spans are known: what they share once, the title
        once (`mio_rag.merging`). Where a tokenizer counts the block, the program pays for it once, too.
    shared_text_weight : float
        v >= 0: choosing two passages that share text loses v s min(r_i, r_j), s being the share of the
        shorter text: at 1, what they have in common counts once. 0: it costs its tokens once, and nothing in
        value, which measured best (`python -m benchmarks repetition`). Not charged under embedding
        uncertainty.
    near_duplicates : {"one", "all"}
        How many of passages that are nearly copies of each other may be read, where the candidates know them:
        at most one, the newest where they are dated; or all.
    units : {"passages", "sentences", "auto"}
        What is chosen. Sentences need the reader's tokenizer, and exclude what is about whole passages: their
        number, caps by source, side constraints, embedding uncertainty, reading apart. See
        `mio_rag.selection.units`. "auto": sentences where the budget has no room for three passages, a
        passage that is worth its price does not fit, and nothing excludes them
        (`mio_rag.selection.units.units_for`); else passages.

    Raises
    ------
    InputError
        With every problem found.
    """

    redundancy_weight: float = 0.0
    passage_penalty: Penalty = "adaptive"
    token_price: float = 0.0
    radius: float = 0.0
    norm: Norm = "l2"
    min_passages: int | None = None
    max_passages: int | None = None
    max_per_source: int | Mapping[str, int] | None = None
    must_include: Sequence[str] = ()
    must_exclude: Sequence[str] = ()
    solver: str = "auto"
    options: SolveOptions = field(default_factory=SolveOptions)
    relevance_model: Relevance = "auto"
    link_benefit: float | Literal["auto"] = "auto"
    redundancy_by_relevance: bool = False
    prompt_order: PromptOrder = "best_first"
    uncertainty: UncertaintySet | None = None
    passage_radii: Mapping[str, float] = field(default_factory=dict)
    counterpart: Counterpart = "termwise"
    side: SideConstraints = field(default_factory=SideConstraints)
    merge: bool = True
    shared_text_weight: float = 0.0
    near_duplicates: NearDuplicates = "one"
    units: Units = "passages"

    def replace(self, **changes: Any) -> Self:
        """Return the settings with changes; checked as when settings are made."""
        return replace(self, **changes)

    def __post_init__(self) -> None:
        problems = [
            f"{name}={getattr(self, name)!r} is of type {type(getattr(self, name)).__name__}, expected {what}"
            for name, (kinds, what) in _KINDS.items()
            if not isinstance(getattr(self, name), kinds)
        ]
        if problems:
            raise InputError(problems)  # what follows relies on the types
        if self.relevance_model in (
            None,
            "cosine",
        ):  # one value for one meaning, which plain data can hold too
            object.__setattr__(self, "relevance_model", "given")
        charged = ("redundancy_weight", "passage_penalty", "token_price", "radius", "link_benefit")
        for name in (*charged, "shared_text_weight"):
            value = getattr(self, name)
            words = _WORDS.get(name, ())
            if isinstance(value, str) and value in words:
                continue
            if not is_setting(value):
                known = ", ".join((f"a number from 0 to {LARGEST_SETTING:g}", *(f"or {w}" for w in words)))
                problems.append(f"{name}={value!r} must be {known}")
        if isinstance(self.relevance_model, str) and self.relevance_model not in ("auto", "given"):
            problems.append(
                f"relevance_model={self.relevance_model!r} is unknown: give auto, given, or a RelevanceModel "
                "(mio_rag.relevance.load_model reads one from a file)"
            )
        if self.near_duplicates not in get_args(NearDuplicates):
            problems.append(f"near_duplicates={self.near_duplicates!r} is unknown: choose one or all")
        if self.units not in get_args(Units):
            problems.append(f"units={self.units!r} is unknown: choose passages, sentences or auto")
        elif self.units == "sentences":
            problems += self.about_passages()
        if self.norm not in get_args(Norm):
            problems.append(f"norm={self.norm!r} is unknown: choose l2, l1 or linf")
        if self.counterpart not in get_args(Counterpart):
            problems.append(f"counterpart={self.counterpart!r} is unknown: choose termwise or joint")
        if self.counterpart == "joint" and self.redundancy_by_relevance:
            problems.append(
                "counterpart='joint' has no redundancy_by_relevance: use termwise, or leave one of them out"
            )
        if self.uncertainty is not None and is_setting(self.radius) and self.radius > 0:
            problems.append("uncertainty and radius exclude each other: the set has its own radii")
        if self.passage_radii and is_setting(self.radius) and self.radius > 0:
            problems.append("passage_radii and radius exclude each other: there is one for each passage")
        problems += [
            f"passage_radii: '{i}' has {value!r}, must be a number from 0 to {LARGEST_SETTING:g}"
            for i, value in self.passage_radii.items()
            if not is_setting(value)
        ][:3]
        if self.prompt_order not in get_args(PromptOrder):
            known = ", ".join(get_args(PromptOrder))
            problems.append(f"prompt_order={self.prompt_order!r} is unknown: choose {known}")
        for name in ("must_include", "must_exclude"):
            given = getattr(self, name)
            try:
                ids = tuple(given) if isinstance(given, Set) else listed(name, given)
                problems += no_names(name, ids)
                if isinstance(given, np.ndarray):
                    object.__setattr__(self, name, ids)
            except InputError as error:
                problems += error.problems
        priced = self.side.prices
        if "passages" in priced and self.min_passages is None and self.max_passages is None:
            problems.append(
                "prices: 'passages' needs min_passages or max_passages: give one, or leave it out"
            )
        if "sources" in priced and self.max_per_source is None:
            problems.append("prices: 'sources' needs max_per_source: give it, or leave the price out")
        both = {} if problems else set(self.must_include) & set(self.must_exclude)
        problems += [f"'{i}' is in both must_include and must_exclude: keep one" for i in sorted(both)]
        caps = (
            self.max_per_source.values()
            if isinstance(self.max_per_source, Mapping)
            else [self.max_per_source]
        )
        for name, count in [
            ("min_passages", self.min_passages),
            ("max_passages", self.max_passages),
            *(("max_per_source", cap) for cap in caps),
        ]:
            if count is not None and (problem := count_problem(name, count)):
                problems.append(problem)
        low, high = self.min_passages, self.max_passages
        if not problems and low is not None and high is not None and low > high:
            problems.append(f"min_passages={low} is above max_passages={high}: no selection can satisfy both")
        if problems:
            raise InputError(problems)

    def about_passages(self) -> list[str]:
        """What holds for whole passages alone, where sentences are chosen."""
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
        named = ", ".join(name for name, is_given in given.items() if is_given)
        if not named:
            return []
        return [f"units='sentences' excludes {named}: that is about whole passages, leave one of them out"]

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the settings, without what was kept by the identity of objects of this process."""
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_resolved", "_variants")
        }

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data for JSON."""
        settings = asdict(replace(self, uncertainty=None, passage_radii={}))
        if self.passage_radii:  # one for every passage of a corpus: their digest tells runs apart
            listed = json.dumps(sorted(self.passage_radii.items()))
            settings["passage_radii"] = hashlib.sha256(listed.encode()).hexdigest()[:16]
        if self.uncertainty is not None:
            settings["uncertainty"] = self.uncertainty.to_dict()
        if settings["options"]["time_limit_seconds"] == math.inf:  # JSON has no infinity
            settings["options"]["time_limit_seconds"] = None
        return settings

    def penalty(self, candidates: Candidates, budget_tokens: int | None = None) -> float:
        """lambda_2 for a pool: the number that was set, or what "adaptive" or "auto" makes of its relevance.

        Parameters
        ----------
        candidates : Candidates
            With the relevance that these settings give them, see `valued`.
        budget_tokens : int, optional
            Longer passages do not count for "adaptive": beside one that cannot be read, the others would look
            too dear. With ``units="sentences"`` every passage counts, since its sentences may fit.
        """
        if self.passage_penalty == "adaptive":
            relevance = candidates.relevance
            if budget_tokens is not None and self.units != "sentences":
                relevance = relevance[candidates.tokens <= budget_tokens]
            price = _ADAPTIVE * min(1.0, max(0.0, float(relevance.max(initial=0.0)))) ** 2
            told = self._answers(candidates)
            likely = told.probability(candidates) if told is not None and told.by_cosine else None
            return price if likely is None else max(price, _ELSEWHERE * (1.0 - likely))
        if self.passage_penalty == "auto":
            ranked = np.sort(candidates.relevance)  # np.median takes ten times as long on so few
            return max(0.0, float((ranked[(ranked.size - 1) // 2] + ranked[ranked.size // 2]) / 2))
        return float(self.passage_penalty)

    def answerable(self, candidates: Candidates) -> float | None:
        """The probability that the collection holds an answer at all; None where the model does not tell.

        Parameters
        ----------
        candidates : Candidates
            A pool of passages, as for `penalty`.
        """
        told = self._answers(candidates)
        return None if told is None else told.probability(candidates)

    def _answers(self, candidates: Candidates) -> Answerable | None:
        model, _ = relevance_of(self.relevance_model, candidates)
        return None if model is None else model.answerable

    def resolved(self, candidates: Candidates) -> Resolved:
        """These settings for one pool, with a model and a number where they say "auto".

        Raises
        ------
        InputError
            If the candidates lack what the model needs.
        """
        model, source = relevance_of(self.relevance_model, candidates)
        benefit = self.link_benefit
        if isinstance(benefit, str):
            related = candidates.links is not None or candidates.sources is not None
            benefit = LINK_BENEFIT if model is not None and related else 0.0
        known: dict[Any, Settings] = self.__dict__.setdefault("_resolved", {})
        if (id(model), benefit) not in known:  # checking settings takes longer than many a program
            known[id(model), benefit] = replace(self, relevance_model=model, link_benefit=benefit)
        return Resolved(known[id(model), benefit], model, source)

    def valued(self, candidates: Candidates) -> Candidates:
        """The candidates with the relevance that these settings give them: a model's, or their own."""
        model, _ = relevance_of(self.relevance_model, candidates)
        return candidates if model is None else model.valued(candidates)


@dataclass(frozen=True)
class Resolved:
    """Settings without "auto" for relevance and links, and where relevance comes from."""

    settings: Settings
    model: RelevanceModel | None
    source: RelevanceSource
