"""`evaluate` in Python: methods compared on a collection, in one call."""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_questions, questions_of, source_name
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, Notice, choose, refuse
from mio_rag.evaluation.contenders import DEFAULT_METHODS
from mio_rag.evaluation.harness import EvaluationSettings, Report, evaluate_and_report
from mio_rag.evaluation.harness import evaluate as run
from mio_rag.filters import Filter
from mio_rag.generation import Generator, make_generator
from mio_rag.measures import Measure, find_measure, register, unregister
from mio_rag.policies.make import find_kind
from mio_rag.policy import Policy
from mio_rag.policy.keys import load_policy, policy_names
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.selection.selector import Selector
from mio_rag.solvers.result import SolveOptions
from mio_rag.sources import Building, open_source
from mio_rag.stores.base import StoreIndex
from mio_rag.types import Question


def evaluate(
    collection: Any,
    questions: str | Path | Sequence[Question | Mapping[str, Any] | str] | None = None,
    *,
    methods: Sequence[str] = DEFAULT_METHODS,
    budgets: int | Sequence[int] = (256, 1024),
    budget: int | Sequence[int] | None = None,
    model: str | Generator | None = None,
    measures: Sequence[Measure] = (),
    baseline: str | None = None,
    embedder: str = DEFAULTS.embedder,
    policy: str | Path | Policy | None = None,
    where: Mapping[str, Any] | str | None = None,
    limit: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    **unknown: Any,
) -> Report:
    """Compare selection methods and policies on questions, as `mio-rag evaluate` does.

    collection: a `mio_rag.Collection`, an index, or a path or name that a collection can be made of.
    questions: a path or name of a question set, or questions, also as mappings or texts; default: those of
        the collection.
    methods: names of `mio_rag.methods`, those of `register_method`, and policies (with a model); each may
        have settings of its own, "exact[radius=0.1]".
    budgets: largest contexts, in tokens; budget: the same.
    model: also answers, and answers are scored: a generator or its specification, "openai:NAME" for instance.
    measures: measures of your own, known during this call.
    baseline: what the others are compared with. Default: fused, topk, or the first.
    embedder: for what is not indexed yet.
    policy: settings of the program and of retrieval. Default: those of the collection.
    where: only passages that meet it are found; see `mio_rag.filters`.
    limit: only the first questions.
    out: folder for ledger, summary and page; by default nothing is kept.

    Of a store, what it returns for each question is the pool; gold ids are not checked.

    Raises `InputError` for what is unknown, `DataError` without questions.
    """
    arguments = [name for name in inspect.signature(evaluate).parameters if name != "unknown"]
    refuse([f"evaluate has no argument '{name}': {choose(name, arguments)}" for name in unknown])
    sizes = budgets if budget is None else budget
    chosen = policy or getattr(collection, "policy", None) or DEFAULTS.policy
    found = chosen if isinstance(chosen, Policy) else load_policy(str(chosen))
    kept = Filter(where)
    index, dataset = _opened(collection, questions, embedder)
    if functions := [repr(one) for one in methods if callable(one)]:
        raise InputError(f"methods has {functions[0]}: give it a name by register_method, and that name")
    given = policy_names([str(name) for name in methods])
    controllers = tuple(name for name in given if find_kind(name) is not None)
    base = Selector(options=SolveOptions(time_limit_seconds=DEFAULTS.seconds, seed=seed))
    settings = EvaluationSettings(
        methods=tuple(name for name in given if name not in controllers),
        controllers=controllers,
        budgets=tuple(sizes) if isinstance(sizes, Iterable) and not isinstance(sizes, str) else (sizes,),
        baseline=baseline,
        selector=found.selector(found.fixed_price or 0.0, base),
        retrieval=found.search.retrieval,
        limit=limit,
        max_tokens=DEFAULTS.answer,
        seed=seed,
        where=kept,
    )
    with ExitStack() as stack:
        for measure in measures:
            if find_measure(measure.name) is not measure:
                register(measure)
                stack.callback(unregister, measure.name)
        reader = make_generator(model) if isinstance(model, str) else model
        if isinstance(model, str) and reader is not None:
            stack.callback(reader.close)
        index = index.only(kept)
        for one in index.lacking:
            warnings.warn(str(one), Notice, stacklevel=2)
        if out is not None:
            return evaluate_and_report(dataset, index, reader, settings, out)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        return replace(run(dataset, index, reader, settings, folder), folder=None)


def _opened(
    collection: Any,
    questions: str | Path | Sequence[Question | Mapping[str, Any] | str] | None,
    embedder: str,
) -> tuple[CorpusIndex, Dataset]:
    source: Any
    if isinstance(collection, (str, Path)):
        building = None if embedder == DEFAULTS.embedder else Building(embedder)
        source, index = collection, open_source(collection, building).index
    else:
        index, source = getattr(collection, "index", collection), getattr(collection, "source", None)
    if not isinstance(index, CorpusIndex):
        raise InputError(f"{collection!r} is no collection: give a Collection, an index, or a path")
    is_store = isinstance(index, StoreIndex)
    if questions is None and (source is None or is_store):
        raise InputError(f"{'a store' if is_store else 'an index'} has no questions: give questions")
    if questions is None or isinstance(questions, (str, Path)):
        named = source if questions is None else questions
        name, asked = source_name(named), load_questions(named)
    else:
        name, asked = index.name, questions_of(questions)
    return index, Dataset(name, tuple(index.passages), asked, unlisted=is_store)
