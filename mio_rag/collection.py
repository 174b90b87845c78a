"""The front door in Python: `select` among passages of your own, and `Collection` for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import cache
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mio_rag.adapters.plain import (
    DEFAULT,
    Counter,
    as_counter,
    as_passages,
    check_budget,
    check_names,
    checked_scores,
    encoded,
    pool_of,
    unit_vectors,
)
from mio_rag.context import RegexCounter, TokenCounter
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError
from mio_rag.filters import Filter, Lacking, Unread
from mio_rag.generation import Generator, as_generator, make_generator, reader_spec
from mio_rag.generation.base import Streamed
from mio_rag.policy import PRESETS, Policy
from mio_rag.pool import Candidates
from mio_rag.retrieval.embedders import Embedder, TfidfEmbedder, as_embedder, make_embedder
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.notes import noted
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.session.ask import answer_from
from mio_rag.sources import Building, Changes, Opened, kind_of, open_source
from mio_rag.types import Answer, Passage, Question

if TYPE_CHECKING:
    from mio_rag.methods import Order
    from mio_rag.session.loop import Session
    from mio_rag.stores.base import Store

#: Anything that answers: a name as --model takes it, a generator, or a function (prompt, max_tokens) -> text.
Model = str | Generator | Callable[[str, int], str]


def select(
    question: str,
    passages: Sequence[str | Passage | Mapping[str, Any]],
    *,
    budget: int = DEFAULTS.budget,
    scores: ArrayLike | None = None,
    distances: ArrayLike | None = None,
    embeddings: ArrayLike | None = None,
    question_embedding: ArrayLike | None = None,
    embedder: Embedder | str | None = None,
    tokens: ArrayLike | None = None,
    counter: Counter | None = None,
    where: Mapping[str, Any] | str | None = None,
    method: str | Order = "mio",
    policy: str | Path | Policy = DEFAULTS.policy,
    selector: Selector | None = None,
    budget_tokens: int | None = None,
    **settings: Any,
) -> Selection:
    """Choose among passages that you already retrieved.

    passages: mappings have "text" and perhaps id, title, source, start, date, section and page; further keys
        are metadata. What has no id gets its position, from 0.
    budget: largest size of the context, in tokens.
    scores: relevance of each passage, larger is better: a re-ranker's, a retriever's, a probability.
    distances: distance of each passage, smaller is better; instead of `scores`.
    embeddings, question_embedding: A row for each passage, and one vector. Without scores or distances,
        passages are ranked as those of an index: by vectors, words, and the names by which they mention each
        other.
    embedder: makes the embeddings that are missing: "minilm", a sentence-transformers id or folder, an object
        with ``encode(texts) -> array``, or a function of that kind. Nothing but texts: "minilm".
    tokens: cost of each passage. Otherwise `counter` counts: your model's tokenizer, or a function from a
        text to its tokens; by default an approximation.
    where: only passages that meet it; see `mio_rag.filters`.
    method: "mio", another method of `evaluate`, as "topk", or a function (pool, budget) -> ids, best first.
    policy: where the settings come from; or a `selector`.
    budget_tokens: another name of `budget`.
    **settings: any parameter of `Selector`: ``max_per_source=2``, ``redundancy_weight=0.3`` and so on.

    Returns: empty for no passages.

    Raises `InputError` for input that does not fit, and where embeddings come without the question's.

    Examples
    --------
    >>> chosen = select("who?", ["a b c", "d e", "f"], scores=[0.9, 0.8, 0.1], budget=4,
    ...                 redundancy_weight=0, passage_penalty=0)
    >>> chosen.ids, chosen.tokens
    (('0', '2'), 4)
    """
    allowed = check_budget(budget if budget_tokens is None else budget_tokens)
    question = _text(question)
    if scores is not None and distances is not None:
        raise InputError("scores and distances exclude each other: give one of them")
    chooser = _selector(_policy(policy), selector, settings)
    given = as_passages(passages)
    count = as_counter(counter) if counter is not None else RegexCounter()
    columns = {"scores": scores, "distances": distances, "tokens": tokens}
    arrays = {k: checked_scores(v, len(given), k) for k, v in columns.items() if v is not None}
    if "distances" in arrays:
        arrays["scores"] = 1 - arrays.pop("distances")
    if embeddings is not None and given:
        rows = unit_vectors("embeddings", embeddings)
        if rows.ndim != 2 or len(rows) != len(given):
            raise InputError(
                f"embeddings has shape {rows.shape}, expected ({len(given)}, d): a row a passage"
            )
        given = [replace(one, vector=row) for one, row in zip(given, rows, strict=True)]
    lacking: tuple[Lacking, ...] = ()
    if kept := Filter(where):
        at, lacking = kept.applied(given)
        given, arrays = [given[k] for k in at], {name: values[at] for name, values in arrays.items()}
    if not given:
        nothing = Candidates([], [], np.zeros(0), np.zeros(0, np.int64), question=question)
        return noted(chooser.select(nothing, allowed), lacking=lacking)
    if "scores" not in arrays and embedder is None and all(one.vector is None for one in given):
        own = [one.score for one in given]
        arrays |= {} if None in own else {"scores": checked_scores(own, len(own))}  # type: ignore[arg-type]
    query, model = question_embedding, _model(embedder, given)
    if model is not None and (query is None or "scores" not in arrays):
        query = encoded(model, [question])[0] if query is None else query
        missing = [k for k, one in enumerate(given) if one.vector is None]
        if missing and "scores" in arrays:
            made = encoded(model, [given[k].text for k in missing])
            for k, row in zip(missing, made, strict=True):
                given[k] = replace(given[k], vector=row)
    costs = arrays.get("tokens")
    if costs is None and all(one.tokens is not None for one in given):
        costs = np.array([one.tokens for one in given], dtype=np.float64)
    pool, index = pool_of(
        question,
        given,
        count,
        query=query,
        embedder=model,
        scores=arrays.get("scores"),
        whole=costs is not None,
    )
    if costs is not None:
        place = {one.id: k for k, one in enumerate(given)}
        costs = costs[[place[name] for name in pool.ids]]
        pool = replace(pool, tokens=costs)  # type: ignore[arg-type]
    chosen = _by_method(method, chooser)(pool, allowed, count if costs is None else None)
    return noted(chosen, index, lacking, given=True)


class Collection:
    """Documents, passages, an index or a store, ready for questions. Safe to use from several threads.

    source: A folder or file of documents, a JSONL file of passages, an index, a question set, the URL of a
        store such as "qdrant://HOST/COLLECTION", or an object with `search`. What is not indexed is indexed
        in the cache, and again when files changed; see `refresh`. Of a list of paths, documents are named
        FOLDER/NAME, with as many folders above it as tell the paths apart.
    embedder: for what is not indexed yet, and of a store or an index, the one that made its vectors: a name,
        an object with ``encode(texts) -> array``, or a function of that kind.
    policy: what decides what is searched, read and answered.
    cache: folder of the index; by default one of the cache.

    Raises `InputError` if there is nothing, or it cannot be read.
    """

    def __init__(
        self,
        source: str | Path | Store | CorpusIndex | Sequence[str | Path],
        *,
        embedder: str | Embedder = DEFAULTS.embedder,
        policy: str | Path | Policy = DEFAULTS.policy,
        cache: str | Path | None = None,
    ) -> None:
        self.policy = _policy(policy)
        self._lock = Lock()
        self._usual: Retriever | None = None
        self._cache = None if cache is None else Path(cache)
        self._models: dict[str, Generator] = {}
        self._building = Building(embedder) if isinstance(embedder, str) else None
        self._embedder = None if isinstance(embedder, str) else as_embedder(embedder)
        self.opened: Opened | None = None
        self._parts: list[tuple[str, Collection]] = []
        if isinstance(source, (list, tuple)) and len(source) == 1:
            source = source[0]
        if isinstance(source, (list, tuple)):
            folders = None if cache is None else Path(cache)
            for name, one in zip(_names(source), source, strict=True):
                own = folders and folders / str(len(self._parts))
                made = Collection(one, embedder=embedder, policy=self.policy, cache=own)
                self._parts.append((name, made))
            self.source = ", ".join(map(str, source))
            self.index = _joined(self._parts, self.source)
        elif isinstance(source, CorpusIndex):
            self.source, self.index = source.name, source
        elif isinstance(source, (str, Path)):
            if isinstance(embedder, TfidfEmbedder):
                raise InputError("a TfidfEmbedder learns from the documents: give embedder='tfidf'")
            self.source = str(source)
            self.opened = self._open()
            self.index = self.opened.index
        else:
            model = make_embedder(embedder) if isinstance(embedder, str) else as_embedder(embedder)
            self.source = type(source).__name__
            from mio_rag.stores.base import StoreIndex

            self.index = StoreIndex.of(source, model, self.source)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<Collection: {self.source}, {len(self.index)} passages>"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the source, such as documents that changed."""
        of_parts = (note for _, one in self._parts for note in one.notes)
        return tuple(of_parts) if self.opened is None else self.opened.notes

    def refresh(self) -> Changes:
        """Read files again that changed, and return their names."""
        if self._parts:
            found: list[tuple[str, ...]] = [(), (), ()]
            with self._lock:
                for name, one in self._parts:
                    each = one.refresh()
                    files = (each.added, each.changed, each.removed)
                    found = [
                        (*old, *(name + file for file in new)) for old, new in zip(found, files, strict=True)
                    ]
                if any(found):
                    self.index = _joined(self._parts, self.source)
            return Changes(*found)
        if self.opened is None or self.opened.kind in ("index", "store"):
            return Changes()
        with self._lock:
            self.opened = self._open()
            self.index = self.opened.index
        return self.opened.changes if self.opened.built else Changes()

    def retriever(self, counter: TokenCounter | None = None, where: Any = None) -> Retriever:
        """Return what searches this collection."""
        if counter is not None or where is not None:
            return Retriever.of(self.index.only(where), self.policy.search.retrieval, counter)
        index, known = self.index, self._usual
        if known is None or known.index is not index:
            known = self._usual = Retriever.of(index, self.policy.search.retrieval)
        return known

    def select(
        self,
        question: str,
        *,
        budget: int = DEFAULTS.budget,
        where: Mapping[str, Any] | str | None = None,
        method: str | Order = "mio",
        counter: Counter | None = None,
        **settings: Any,
    ) -> Selection:
        """Choose what is read for a question; parameters as of `mio_rag.select` (no policy, no selector).

        Raises `InputError` for settings that are unknown, and a filter that nothing meets.
        """
        allowed, question = check_budget(budget), _text(question)
        retriever = self.retriever(None if counter is None else as_counter(counter), where)
        chooser = self._chooser(retriever.index, settings)
        if method == "mio" and not self.policy.is_plain:
            session = self._session(retriever, chooser, settings, allowed)
            outcome = session.select(Question("question", question), None, allowed).check()
            assert outcome.selection is not None
            return noted(outcome.selection, retriever.index)
        found = _by_method(method, chooser)(retriever.retrieve(question), allowed, retriever.counter)
        return noted(found, retriever.index)

    def ask(
        self,
        question: str,
        *,
        model: Model = DEFAULTS.model,
        budget: int = DEFAULTS.budget,
        where: Mapping[str, Any] | str | None = None,
        answer_tokens: int = DEFAULTS.answer,
        **settings: Any,
    ) -> Answer:
        """Answer a question from the selected passages.

        model: "openai:NAME[@URL]", "gguf:FILE", "hf:ID", "extract", or a function (prompt, max_tokens) ->
            text.
        answer_tokens: longest answer.

        Returns: `refused` where nothing was selected: the model is then not called. Its tokens are those of
            all calls.

        Raises `GenerationError` if the model fails; its `spent` is what that cost.
        """
        allowed, question, reader = check_budget(budget), _text(question), self._reader(model)
        retriever = self.retriever(reader, where)
        chooser = self._chooser(retriever.index, settings)
        if self.policy.is_plain:
            selection, answer = answer_from(
                retriever, question, reader, chooser, budget_tokens=allowed, max_tokens=answer_tokens
            )
            return replace(answer, selection=noted(selection, retriever.index))
        session = replace(self._session(retriever, chooser, settings, allowed), max_tokens=answer_tokens)
        outcome = session.attempt(Question("question", question), reader, allowed).check()
        assert outcome.reply is not None
        selected = outcome.selection
        made, total = None if selected is None else noted(selected, retriever.index), outcome.costs.total()
        into, out = total.prompt_tokens, total.completion_tokens
        return replace(outcome.reply.answer, selection=made, prompt_tokens=into, completion_tokens=out)

    async def aselect(self, question: str, **options: Any) -> Selection:
        """`select` in a worker thread."""
        from asyncio import to_thread

        return await to_thread(self.select, question, **options)

    async def aask(self, question: str, **options: Any) -> Answer:
        """`ask` in a worker thread."""
        from asyncio import to_thread

        return await to_thread(self.ask, question, **options)

    def stream(self, question: str, *, model: Model = DEFAULTS.model, **options: Any) -> Iterator[str]:
        """Yield the answer of `ask` as it is written, where the model can stream; else at once.

        openai: and gguf: can, and a generator of your own that calls `mio_rag.generation.base.told_pieces`.
        Under a policy that asks a model more than once, the answer comes at once. Whoever stops early waits
        for the rest of the answer, which is paid for.
        """
        told: Queue[str | None] = Queue()

        def work() -> Answer:
            try:
                return self.ask(question, model=Streamed(self._reader(model), told.put), **options)
            finally:
                told.put(None)

        if not self.policy.is_plain:
            yield self.ask(question, model=model, **options).text
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as threads:
            answer, written = threads.submit(copy_context().run, work), False
            while (piece := told.get()) is not None:
                written = True
                yield piece
            whole = answer.result().text
            if whole and not written:
                yield whole

    def close(self) -> None:
        """Close models that were opened by name."""
        with self._lock:
            for one in self._models.values():
                one.close()
            self._models.clear()

    def _open(self) -> Opened:
        building = self._building
        if building == Building():
            building = None  # an index has its own embedder
        known = self._cache is not None and self._cache.exists()
        return open_source(self.source, building, out=self._cache, overwrite=known, embedder=self._embedder)

    def _chooser(self, index: CorpusIndex, settings: Mapping[str, Any]) -> Selector:
        if given := [name for name in ("policy", "selector") if name in settings]:
            raise InputError(
                f"a {given[0]} belongs to the collection: Collection(source, policy=...); a question takes "
                "single settings, as max_passages=3"
            )
        made = _selector(self.policy, None, settings)
        made.check_ids(index.ids)
        return made

    def _session(
        self, retriever: Retriever, chooser: Selector, settings: Mapping[str, Any], budget: int
    ) -> Session:
        from mio_rag.policies.compose import compose
        from mio_rag.policies.setup import Setup

        limits = self.policy.limits
        most = max(limits.max_total_tokens, budget + 2000)
        policy = self.policy.replace(limits=limits.replace(budget=budget, max_total_tokens=most))
        session = compose(policy, Setup(retriever=retriever, selector=DEFAULT, max_tokens=limits.max_tokens))
        if not settings:
            return session
        return replace(session, kit=replace(session.kit, selector=chooser), priced=None)

    def _reader(self, model: Model) -> Generator:
        if not isinstance(model, str):
            return as_generator(model)
        spec = reader_spec(model)
        with self._lock:
            if spec not in self._models:
                self._models[spec] = make_generator(spec)
            return self._models[spec]


def _names(paths: Sequence[str | Path]) -> list[str]:
    """What stands before the documents of each path: its end that no other one has."""
    if not paths:
        raise InputError("no path is given: name a folder of documents, an index or a store")
    parts = [Path(path).resolve().parts for path in paths]
    if twice := [str(path) for path, own in zip(paths, parts, strict=True) if parts.count(own) > 1]:
        raise InputError(f"{twice[0]} is named twice: name each path once")
    found = []
    for path, own in zip(paths, parts, strict=True):
        others = [one for one in parts if one != own]
        lengths = range(1, len(own))
        length = next((k for k in lengths if all(one[-k:] != own[-k:] for one in others)), len(own))
        end = own[-length:-1] if kind_of(path) == "file" else own[-length:]  # a file names itself
        found.append("/".join([*end, ""]).replace("//", "/"))
    return found


def _joined(parts: Sequence[tuple[str, Collection]], name: str) -> CorpusIndex:
    """One index of several, whose documents have a name before theirs."""
    passages, unread, indexes = list[Passage](), list[Unread](), [one.index for _, one in parts]
    if any(index.is_store for index in indexes):
        raise InputError("a store goes alone: open each by itself")
    if len({index.embedder.fingerprint for index in indexes}) > 1:
        raise InputError("the paths were indexed by different embedders: open each by itself")
    for (before, _), index in zip(parts, indexes, strict=True):
        passages += [
            replace(one, id=f"{before}{one.id}", source=f"{before}{one.source or one.id}")
            for one in index.passages
        ]
        unread += [Unread(before + one.source, before + one.path, one.reason) for one in index.unread]
    from mio_rag.stores.base import index_of

    vectors = np.concatenate([index.embeddings(range(len(index))) for index in indexes])
    return replace(index_of(passages, vectors, indexes[0].embedder, name), unread=tuple(unread))


def _by_method(method: str | Order, chooser: Selector) -> Callable[..., Selection]:
    if method == "mio":
        return chooser.select
    from mio_rag.methods import make_methods

    made: Callable[..., Selection] = make_methods([method], chooser)[0].select
    return made


@cache
def _preset(name: str) -> Policy:
    return Policy.load(name)


def _text(question: Any) -> str:
    if not isinstance(question, str):
        raise InputError(f"question is {question!r}, expected a string")
    return question


def _policy(given: str | Path | Policy) -> Policy:
    if isinstance(given, Policy):
        return given
    return _preset(str(given)) if str(given) in PRESETS else Policy.load(given)


def _selector(policy: Policy, selector: Selector | None, settings: Mapping[str, Any]) -> Selector:
    """The program of a policy, or a selector, with settings that are not None."""
    if selector is not None and not isinstance(selector, Selector):
        raise InputError(f"selector is {selector!r}, expected a Selector")
    if selector is None and not settings:
        return policy.selector(policy.fixed_price or 0.0, DEFAULT)
    check_names("setting", settings, ("preset", *Selector.model_fields), also=("budget", "where"))
    base = policy.selector(policy.fixed_price or 0.0, DEFAULT) if selector is None else selector
    changes = {name: value for name, value in settings.items() if value is not None}
    if (preset := changes.pop("preset", None)) is not None:
        if selector is not None:
            raise InputError("selector and preset exclude each other: both are what settings start from")
        return Selector.preset(preset, **{"options": base.options, **changes})
    return base.replace(**changes) if changes else base


def _model(embedder: Embedder | str | None, passages: Sequence[Passage]) -> Embedder | None:
    if not isinstance(embedder, str):
        return None if embedder is None else as_embedder(embedder)
    made = make_embedder(embedder)
    if embedder == "tfidf":
        made.fit([one.text for one in passages])
    return made
