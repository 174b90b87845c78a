"""Candidates -> program -> solver -> Selection.

    maximise   sum_i (r_i - lambda_2 - lambda_3 c_i) x_i  -  lambda_1 sum_{i<j} s_ij x_i x_j
    subject to sum_i c_i x_i <= budget_tokens, and the side rows

with relevance r, similarity s (inner products of the embeddings), token costs c; under embedding uncertainty
the termwise robust counterpart of it (`mio_rag.formulations.robust`). Relevance may be a calibrated
probability (`mio_rag.relevance`), and passages of which one mentions the other may gain by each other's
company: `link_benefit * max(r_i, r_j)` for choosing both ends of an evidence link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.context import (
    PromptOrder,
    RegexCounter,
    TokenCounter,
    in_prompt_order,
    passage_tokens,
    render_context,
)
from mio_rag.errors import InputError, MioRagError, SolverError
from mio_rag.explain import decisions
from mio_rag.formulations.constraints import count_problem, fixed_values, passage_count, source_caps
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.robust import nominal_program, worst_similarity
from mio_rag.formulations.uncertainty import Norm, NormBall
from mio_rag.many import Steps, finish_many
from mio_rag.relevance.model import RelevanceModel
from mio_rag.solvers.batch import Executor
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import SolveOptions, Status
from mio_rag.types import Candidates, Passage, Selection

if TYPE_CHECKING:
    from mio_rag.retrieval.embedders import Embedder

__all__ = ["Selector", "select"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Selector:
    """Chooses passages under a token budget, with a proof.

    Parameters
    ----------
    redundancy_weight : float
        lambda_1 >= 0, per unit of similarity: what two overlapping passages lose together. 0: they do not
        compete. Above 0 the candidates need embeddings.
    passage_penalty : float or "auto"
        lambda_2 >= 0, in units of relevance: what one more passage must be worth. 0: fill the budget with
        whatever is relevant at all; large: few passages. "auto" takes the median relevance of the pool, so
        that the typical candidate is worth nothing: right for a deep pool of raw scores (some 20 or more),
        whose middle is background; wrong for a short list in which everything matters.
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
    relevance_model : RelevanceModel, optional
        Replaces the candidates' relevance by the probability that each passage is needed.
    link_benefit : float
        w >= 0: choosing two passages of which one mentions the other gains w * max(r_i, r_j). 0: links count
        for nothing in the program. Above 0 the candidates need evidence links.
    redundancy_by_relevance : bool
        Weigh the similarity of two passages by sqrt(r_i r_j), so that only relevant passages compete.
    prompt_order : {"best_first", "best_at_ends", "document"}
        How the chosen passages are laid out.

    Raises
    ------
    InputError
        With every problem found.
    """

    redundancy_weight: float = 0.1
    passage_penalty: float | Literal["auto"] = 0.02
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
    relevance_model: RelevanceModel | None = None
    link_benefit: float = 0.0
    redundancy_by_relevance: bool = False
    prompt_order: PromptOrder = "best_first"

    def __post_init__(self) -> None:
        problems = []
        for name in ("redundancy_weight", "passage_penalty", "token_price", "radius", "link_benefit"):
            value = getattr(self, name)
            if name == "passage_penalty" and value == "auto":
                continue
            if not (isinstance(value, (int, float, np.number)) and np.isfinite(value) and value >= 0):
                problems.append(f"{name}={value!r} must be a finite number >= 0")
        if self.norm not in get_args(Norm):
            problems.append(f"norm={self.norm!r} is unknown: choose l2, l1 or linf")
        if self.prompt_order not in get_args(PromptOrder):
            known = ", ".join(get_args(PromptOrder))
            problems.append(f"prompt_order={self.prompt_order!r} is unknown: choose {known}")
        for name in ("must_include", "must_exclude"):
            if isinstance(getattr(self, name), str):
                problems.append(f"{name}={getattr(self, name)!r} is a string: give a list of ids")
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

    def penalty(self, candidates: Candidates) -> float:
        """lambda_2 for a pool: the number that was set, or for "auto" the median relevance (at least 0)."""
        if self.passage_penalty == "auto":
            return max(0.0, float(np.median(candidates.relevance)))
        return float(self.passage_penalty)

    def program(self, candidates: Candidates, budget_tokens: int) -> SelectionProgram:
        """The program for a pool: nominal, or the termwise counterpart where a radius is above 0.

        The candidates are taken as they are: with a `relevance_model`, pass what `valued` made of them.

        Raises
        ------
        InputError
            If the candidates lack what the settings need.
        """
        n = len(candidates)
        rows = passage_count(n, self.min_passages, self.max_passages)
        if self.max_per_source is not None:
            if candidates.sources is None:
                raise InputError(
                    "max_per_source needs candidates with sources: pass sources, or leave it out"
                )
            rows += source_caps(candidates.sources, self.max_per_source)
        value, similarity = self._terms(candidates)
        return nominal_program(
            value,
            similarity,
            candidates.tokens,
            budget_tokens,
            redundancy_weight=self.redundancy_weight,
            passage_penalty=self.penalty(candidates),
            token_price=self.token_price,
            benefit=self._benefit(candidates, value),
            rows=rows,
            fixed=fixed_values(candidates.ids, self.must_include, self.must_exclude),
        )

    def valued(self, candidates: Candidates) -> Candidates:
        """The candidates with the relevance that this selector gives them: its model's, or their own."""
        if self.relevance_model is None:
            return candidates
        return replace(candidates, relevance=self.relevance_model.probabilities(candidates))

    def _terms(self, candidates: Candidates) -> tuple[FloatArray, FloatArray | None]:
        """Relevance and similarity as the program charges them: nominal, or each at its own worst."""
        n, model = len(candidates), self.relevance_model
        radius = self.radius if candidates.radius is None else np.asarray(candidates.radius)
        vectors, query = candidates.embeddings, candidates.query_embedding
        if not np.any(np.asarray(radius) > 0):
            value = candidates.relevance
            if self.redundancy_weight == 0 or vectors is None:
                return value, None
            mu = vectors.astype(np.float64)
            return value, self._weighed(mu @ mu.T, value, value)
        if vectors is None or query is None:
            raise InputError("radius > 0 needs embeddings and query_embedding: pass them, or set radius=0")
        ball = NormBall(radius, self.norm)
        loss = ball.support(query, n)
        if model is None:
            low, high = candidates.relevance - loss, candidates.relevance + loss
        else:
            low, high = (model.probabilities(candidates, sign * loss) for sign in (1, -1))
        if self.redundancy_weight == 0:
            return low, None
        return low, self._weighed(worst_similarity(vectors, ball), low, high)

    def _weighed(self, similarity: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """Similarity by sqrt(r_i r_j), at whichever end of the relevances costs most."""
        if not self.redundancy_by_relevance:
            return similarity
        least, most = (np.sqrt(np.maximum(r, 0.0)) for r in (low, high))
        return np.where(similarity >= 0, np.outer(most, most), np.outer(least, least)) * similarity

    def _benefit(self, candidates: Candidates, value: FloatArray) -> FloatArray | None:
        """w * max(r_i, r_j) * weight of the link, for every pair of which one mentions the other."""
        if self.link_benefit == 0:
            return None
        if candidates.links is None:
            raise InputError(
                f"link_benefit={self.link_benefit:g} needs candidates with evidence links: retrieve them "
                "from an index that holds links, pass links, or set link_benefit=0"
            )
        either = np.maximum(candidates.links, candidates.links.T)
        worth = np.maximum(value, 0.0)
        return np.asarray(self.link_benefit * either * np.maximum.outer(worth, worth), dtype=np.float64)

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
            proportion. The certificate is then one for that smaller budget, `program.budget`.

        Returns
        -------
        Selection
            With an empty choice where the constraints are infeasible or the solver found nothing;
            `result.status` says which.

        Raises
        ------
        InputError
            If the pool is empty, or no passage fits the budget.
        SolverError
            If the solver broke.
        """
        steps = self._steps(candidates, budget_tokens, counter)
        program = next(steps)
        while True:
            try:
                program = steps.send(solve(program, self.solver, self.options))
            except StopIteration as done:
                selection: Selection = done.value
                return selection

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

    def _steps(self, candidates: Candidates, budget_tokens: int, counter: TokenCounter | None) -> Steps:
        """What `select` does, handing out each program that is to be solved and waiting for its result."""
        if len(candidates) == 0:
            raise InputError("there are no candidates to select from: retrieve a pool first")
        if problem := count_problem("budget_tokens", budget_tokens):
            raise InputError(problem)
        shortest = int(candidates.tokens.min())
        if budget_tokens < shortest:
            raise InputError(
                f"budget_tokens={budget_tokens} is below the shortest passage ({shortest} tokens): "
                "raise the budget or split passages"
            )
        candidates = self.valued(candidates)
        allowed = int(budget_tokens)
        while True:
            program = self.program(candidates, allowed)
            result = yield program
            if result.status is Status.ERROR:
                raise SolverError(result.message)
            chosen = in_prompt_order(candidates, result.selected, self.prompt_order)
            used = summed = int(candidates.tokens[list(chosen)].sum())
            if counter is not None and chosen:
                used = counter.count([render_context(candidates.passage(i) for i in chosen)])[0]
            if used <= budget_tokens:
                break
            # In proportion, but by no more than one passage: what is asked for must not drop out with it.
            optional = [int(candidates.tokens[i]) for i in chosen if i in program.free]
            allowed = max(summed * int(budget_tokens) // used, summed - max(optional, default=summed))
        if result.status is Status.INFEASIBLE and allowed < budget_tokens:
            result = replace(
                result,
                message=f"no selection satisfies the constraints within {allowed} tokens, all that is left "
                f"of {int(budget_tokens)} where the assembled block counts more than its passages",
            )
        return Selection(
            candidates,
            chosen,
            used,
            int(budget_tokens),
            result,
            program,
            decisions(candidates, program, result),
        )


def select(
    query: str,
    texts: Sequence[str],
    *,
    budget_tokens: int,
    embeddings: ArrayLike | None = None,
    query_embedding: ArrayLike | None = None,
    scores: ArrayLike | None = None,
    tokens: ArrayLike | None = None,
    ids: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    embedder: Embedder | str | None = None,
    counter: TokenCounter | None = None,
    selector: Selector | None = None,
    redundancy_weight: float | None = None,
    passage_penalty: float | Literal["auto"] | None = None,
    token_price: float | None = None,
    radius: float | None = None,
    norm: Literal["l2", "l1", "linf"] | None = None,
    min_passages: int | None = None,
    max_passages: int | None = None,
    max_per_source: int | Mapping[str, int] | None = None,
    must_include: Sequence[str] | None = None,
    must_exclude: Sequence[str] | None = None,
    solver: str | None = None,
    options: SolveOptions | None = None,
) -> Selection:
    """Choose among texts that you already retrieved: the plain-Python door.

    Parameters
    ----------
    query : str
    texts : sequence of str, length n
    budget_tokens : int
        Largest total of `tokens`.
    embeddings : array_like, shape (n, d), optional
        One row per text; scaled to unit length here. Or give `embedder`.
    query_embedding : array_like, shape (d,), optional
        With `embeddings`, relevance is the cosine with it, unless `scores` are given.
    scores : array_like, shape (n,), optional
        Relevance of each text, larger is better: a re-ranker's, a retriever's, a probability.
    tokens : array_like of int, shape (n,), optional
        Cost of each text as your model counts it. Otherwise `counter` counts them, by default `RegexCounter`,
        an approximation.
    counter : TokenCounter, optional
        Your model's tokenizer. Where it prices the passages, `tokens_used` is its count of the whole block
        (titles, texts and a blank line between passages), and that block keeps the budget.
    embedder : Embedder or str, optional
        Embeds query and texts where no embeddings are given: "minilm", or a sentence-transformers id or
        folder. None is chosen for you.
    selector : Selector, optional
        Settings to start from; the keyword settings that are given override it. See `Selector` for their
        meaning.

    Returns
    -------
    Selection
        `.texts`, `.ids`, `.tokens_used`, `.result` (the certificate) and `.explain()`.

    Examples
    --------
    >>> chosen = select("who?", ["a b c", "d e", "f"], scores=[0.9, 0.8, 0.1], budget_tokens=4,
    ...                 redundancy_weight=0, passage_penalty=0)
    >>> chosen.ids, chosen.tokens_used
    (('0', '2'), 4)
    """
    n = len(texts)
    if embedder is not None and embeddings is None:
        from mio_rag.retrieval.embedders import make_embedder

        model = make_embedder(embedder) if isinstance(embedder, str) else embedder
        if model.name == "tfidf":
            model.fit(texts)
        vectors: NDArray[np.float32] | None = model.encode(list(texts))
        query_vector: NDArray[np.float32] | None = model.encode([query])[0]
    else:
        vectors = None if embeddings is None else _unit_rows("embeddings", embeddings)
        query_vector = None if query_embedding is None else _unit_rows("query_embedding", query_embedding)
    if scores is None:
        if vectors is None or query_vector is None:
            raise InputError(
                "relevance is unknown: give scores=, or embeddings= with query_embedding=, or embedder= "
                '("minilm", or a sentence-transformers id or folder)'
            )
        if vectors.ndim == 2 and query_vector.shape == (vectors.shape[1],):
            scores = vectors @ query_vector
        else:
            scores = np.zeros(n)  # Candidates reports the wrong shape
    # Only a counter that priced the passages can check the block that they make together.
    checked = counter if tokens is None else None
    labels = [str(k) for k in range(n)] if ids is None else [str(i) for i in ids]
    if tokens is None:
        heads = titles if titles is not None and len(titles) == n else [""] * n
        tokens = passage_tokens(
            [Passage(str(k), t, h) for k, (t, h) in enumerate(zip(texts, heads, strict=True))],
            counter or RegexCounter(),
        )
    pool = Candidates(
        ids=labels,
        texts=texts,
        relevance=scores,  # type: ignore[arg-type]
        tokens=tokens,  # type: ignore[arg-type]
        embeddings=vectors,
        query_embedding=query_vector,
        titles=titles,
        sources=sources,
        question=query,
    )
    given = {
        "redundancy_weight": redundancy_weight,
        "passage_penalty": passage_penalty,
        "token_price": token_price,
        "radius": radius,
        "norm": norm,
        "min_passages": min_passages,
        "max_passages": max_passages,
        "max_per_source": max_per_source,
        "must_include": must_include,
        "must_exclude": must_exclude,
        "solver": solver,
        "options": options,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    base = selector or Selector()
    settings = Selector(**{**base.__dict__, **changes})
    return settings.select(pool, budget_tokens, checked)


def _unit_rows(name: str, vectors: ArrayLike) -> NDArray[np.float32]:
    try:
        matrix = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of numbers ({error})") from error
    if matrix.ndim == 0:
        raise InputError(f"{name} has shape (), expected one vector or one row per text")
    norms = np.linalg.norm(matrix, axis=-1, keepdims=True)
    return np.asarray(np.where(norms > 0, matrix / np.where(norms > 0, norms, 1), matrix), dtype=np.float32)
