"""Re-rankers: slower models that score question and passage together; the score is one more feature.

    maxsim[:ID_OR_PATH]          late interaction over token embeddings, the packaged MiniLM's or another's
    cross-encoder:ID_OR_PATH     a sentence-transformers CrossEncoder
    yes-no:GENERATOR             log-odds of Yes against No when a language model is asked whether it helps;
                                 GENERATOR as elsewhere, for instance yes-no:gguf:PATH

Scores are kept on disk by content (the model, the question, the passage as a reader sees it).
`Candidates.scores` holds them under the re-ranker's name: a relevance model sees them as the features
score:NAME and gap:NAME, and rankings can go by them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import render_passage
from mio_rag.errors import InputError, require
from mio_rag.generation.protocol import ChoiceWeigher, Generator, relevance_prompt
from mio_rag.pool import Candidates
from mio_rag.retrieval.cached import EmbeddingCache, cache_folder
from mio_rag.retrieval.embedders import load_sentence_model, sampled_digest
from mio_rag.retrieval.minilm import packaged_minilm

FloatArray = NDArray[np.float64]
Pair = tuple[str, str]  # question, passage
Progress = Callable[[int], None]  # called with the number of pairs just finished

#: What a specification may begin with, and the name of the scores.
KINDS = ("maxsim", "cross-encoder", "yes-no")


@runtime_checkable
class Reranker(Protocol):
    """Scores pairs of question and passage; larger is better, on any scale."""

    @property
    def name(self) -> str:
        """Key of `Candidates.scores`, one of `KINDS` or one's own."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever scores could: model, weights, prompt."""
        ...

    def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
        """One finite score a pair, shape (len(pairs),)."""
        ...


_LONGEST_FIRST = 64  # passages embedded together


class MaxSim:
    """Late interaction: the mean over the question's tokens of the best cosine with a token of the passage.

    model: a sentence-transformers model by hub id or folder; None: the packaged MiniLM. Its token embeddings
        serve as they are; a model trained for late interaction is better at it.

    Khattab and Zaharia (ColBERT, SIGIR 2020), with the mean in place of the sum, so that scores of long and
    short questions are alike. Special tokens do not take part. In [-1, 1].
    """

    name = "maxsim"

    def __init__(self, model: str | None = None) -> None:
        library = require("sentence_transformers", "torch", "re-ranker 'maxsim'").SentenceTransformer
        folder = str(packaged_minilm()) if model is None else model
        self._model = load_sentence_model("re-ranker 'maxsim'", library, folder)
        self._digest = sampled_digest(self._model, str(self._model.max_seq_length))

    @property
    def fingerprint(self) -> str:
        """Method and weights."""
        return f"maxsim-mean:{self._digest}"

    def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
        """See `Reranker`; every text is embedded once."""
        questions = list(dict.fromkeys(question for question, _ in pairs))
        asked = dict(zip(questions, self._tokens(questions), strict=True))
        by_passage: dict[str, list[int]] = {}
        for k, (_, passage) in enumerate(pairs):
            by_passage.setdefault(passage, []).append(k)
        found = np.zeros(len(pairs))
        order = sorted(by_passage, key=len, reverse=True)  # batches of like length
        for first in range(0, len(order), _LONGEST_FIRST):
            part = order[first : first + _LONGEST_FIRST]
            for passage, tokens in zip(part, self._tokens(part), strict=True):
                for k in by_passage[passage]:
                    query = asked[pairs[k][0]]
                    if len(query) and len(tokens):
                        found[k] = float((query @ tokens.T).max(axis=1).mean())
                if progress:
                    progress(len(by_passage[passage]))
        return found

    def _tokens(self, texts: Sequence[str]) -> list[Any]:
        """Unit rows of the tokens of each text, without special ones."""
        encoded = self._model.encode(
            list(texts), output_value=None, batch_size=32, show_progress_bar=False, convert_to_numpy=False
        )
        special = set(self._model.tokenizer.all_special_ids)
        rows = []
        for one in encoded:
            kept = [k for k, token in enumerate(one["input_ids"].tolist()) if token not in special]
            matrix = one["token_embeddings"][kept].float().cpu().numpy()
            rows.append(matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12))
        return rows


class CrossEncoderReranker:
    """A sentence-transformers CrossEncoder with one output; its raw score (a logit, for most models).

    model: Hub id ("cross-encoder/ms-marco-MiniLM-L6-v2") or folder.

    Raises `InputError` if it cannot be loaded, or has several outputs.
    """

    name = "cross-encoder"

    def __init__(self, model: str) -> None:
        library = require("sentence_transformers", "torch", "re-ranker 'cross-encoder'").CrossEncoder
        self._model = load_sentence_model("re-ranker 'cross-encoder'", library, model)
        if self._model.num_labels != 1:
            raise InputError(
                f"cross-encoder '{model}' has {self._model.num_labels} outputs: a re-ranker has one"
            )
        self._identity = require("torch", "torch", "re-ranker 'cross-encoder'").nn.Identity()
        longest = getattr(self._model, "max_seq_length", None) or self._model.max_length  # its older name
        self._digest = sampled_digest(self._model, str(longest))

    @property
    def fingerprint(self) -> str:
        """Method and weights."""
        return f"cross-encoder:{self._digest}"

    def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
        """See `Reranker`."""
        if not pairs:
            return np.zeros(0)
        scores = self._model.predict(
            list(pairs), batch_size=32, show_progress_bar=False, activation_fn=self._identity
        )
        if progress:
            progress(len(pairs))
        return np.asarray(scores, dtype=np.float64)


class YesNo:
    """A language model is asked whether the passage helps to answer; log-odds of Yes against No.

    generator: one that can weigh options (`ChoiceWeigher`): gguf and hf.

    Raises `InputError` if it cannot.
    Nogueira et al. (2020) rank by such a probability.
    """

    name = "yes-no"
    OPTIONS = ("Yes", "No")

    def __init__(self, generator: Generator) -> None:
        if not isinstance(generator, ChoiceWeigher):
            raise InputError(
                f"re-ranker 'yes-no' needs a model that weighs options, and {generator.name} cannot: "
                "give yes-no:gguf:PATH or yes-no:hf:ID_OR_PATH"
            )
        self._generator: ChoiceWeigher = generator
        # A name is no proof of the weights behind it; what they say to a fixed question is.
        wording = relevance_prompt("Who baked the bread?", "The bread was baked by Ada.")
        said = generator.weigh(wording, self.OPTIONS)
        digest = hashlib.sha256(f"{wording.system}\0{wording.user}\0{said}".encode()).hexdigest()[:16]
        self._fingerprint = f"yes-no:{generator.name}:{digest}"

    @property
    def fingerprint(self) -> str:
        """The generator's name, the wording, and what the model says to a fixed question."""
        return self._fingerprint

    def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
        """See `Reranker`; one prompt a pair."""
        scores = []
        for question, passage in pairs:
            yes, no = self._generator.weigh(relevance_prompt(question, passage), self.OPTIONS)
            scores.append(float(np.clip(yes - no, -50.0, 50.0)) if math.isfinite(yes - no) else 0.0)
            if progress:
                progress(1)
        return np.array(scores)


_SLICE = 256  # pairs between two writes to the cache: what an interrupt can lose


def scored_pairs(
    reranker: Reranker, pairs: Sequence[Pair], progress: Progress | None = None, cache: bool = True
) -> FloatArray:
    """Scores of pairs, from the cache where they are there.

    Raises `InputError` if the re-ranker gives another number of scores, or one that is not finite.
    """
    store = EmbeddingCache(cache_folder() / "rerank.sqlite", "score") if cache else None
    keys = {pair: f"{len(pair[0])}\0{pair[0]}{pair[1]}" for pair in pairs}
    held = store.get(reranker.fingerprint, list(keys.values())) if store else {}
    known = {pair: float(held[key][0]) for pair, key in keys.items() if key in held and held[key].size == 1}
    if progress and known:
        progress(len(known))
    fresh = [pair for pair in keys if pair not in known]
    for first in range(0, len(fresh), _SLICE):
        part = fresh[first : first + _SLICE]
        # In the cache's precision at once, so that a second run gives the same numbers.
        values = np.asarray(reranker.score(part, progress), dtype=np.float32).astype(np.float64)
        if values.shape != (len(part),) or not np.all(np.isfinite(values)):
            raise InputError(
                f"re-ranker '{reranker.name}' gave scores of shape {values.shape} for {len(part)} pairs, or "
                "some that are not finite: it cannot be used"
            )
        known.update(zip(part, values.tolist(), strict=True))
        if store:
            store.put(reranker.fingerprint, {keys[p]: np.array([known[p]], dtype=np.float32) for p in part})
    return np.array([known[pair] for pair in pairs])


def rescored(
    pools: Sequence[Candidates], reranker: Reranker, progress: Progress | None = None, cache: bool = True
) -> list[Candidates]:
    """The pools with the scores of a re-ranker; all pairs at once, so that a passage is read once for all.

    Raises `InputError` if candidates do not know their question.
    """
    if any(len(pool) and not pool.question.strip() for pool in pools):
        raise InputError(
            f"re-ranker '{reranker.name}' needs candidates that know their question: pass question=..."
        )
    texts = [[render_passage(pool.passage(i)) for i in range(len(pool))] for pool in pools]
    pairs = [(pool.question, text) for pool, part in zip(pools, texts, strict=True) for text in part]
    values = scored_pairs(reranker, pairs, progress, cache)
    parts = np.split(values, np.cumsum([len(pool) for pool in pools])[:-1]) if pools else []
    return [
        replace(pool, scores={**pool.scores, reranker.name: part})
        for pool, part in zip(pools, parts, strict=True)
    ]


def spec_problems(specs: Sequence[str]) -> list[str]:
    """What is wrong with specifications by their form alone; no model is loaded."""
    problems = []
    kinds = [spec.strip().partition(":")[0] for spec in specs]
    problems += [f"re-ranker '{k}' is given twice" for k in dict.fromkeys(kinds) if kinds.count(k) > 1]
    for spec, kind in zip(specs, kinds, strict=True):
        if kind not in KINDS or (kind != "maxsim" and not spec.partition(":")[2].strip()):
            problems.append(
                f"re-ranker '{spec}' is not known: give maxsim, maxsim:ID_OR_PATH, cross-encoder:ID_OR_PATH "
                "or yes-no:GENERATOR (for instance yes-no:gguf:model.gguf)"
            )
    return problems


def make_reranker(spec: str) -> Reranker:
    """The re-ranker of a specification; see the head of this module.

    Raises `InputError` for another form, or a model that cannot be loaded.
    Raises `MissingExtraError` without the packages that it needs.
    """
    if problems := spec_problems([spec]):
        raise InputError(problems)

    kind, _, target = spec.strip().partition(":")
    if kind == "maxsim":
        return MaxSim(target or None)
    if kind == "cross-encoder":
        return CrossEncoderReranker(target)
    from mio_rag.generation import make_generator

    return YesNo(make_generator(target))


def make_rerankers(given: Sequence[str | Reranker]) -> tuple[Reranker, ...]:
    """The re-rankers of specifications, in order; what is one already stays.

    Raises `InputError` as `make_reranker`, and where two would write the same scores.
    """
    made = tuple(make_reranker(one) if isinstance(one, str) else one for one in given)
    names = [one.name for one in made]
    taken = {"dense", "bm25", "fused"} & set(names)
    if len(set(names)) < len(names) or taken:
        raise InputError(
            f"re-rankers {', '.join(names)}: each needs a name of its own, and none of dense, bm25, fused"
        )
    return made
