"""Uncertainty radii of embeddings from data: how far those of an index are off, in the l2 norm.

    pq:M, pq:MxBITS    product quantisation with M sub-vectors (of BITS bits, 8 by default): the exact error
    sq8                8 bits a coordinate: the exact error |mu - decode(encode(mu))| of every passage
    chunks             passages of two sentences or more: the larger distance of their two halves' embeddings
                       from the passage's own
    encoder            distance between two encoders' embeddings after the best orthogonal alignment
                       (Procrustes), fitted on nine tenths of the sample and measured on the rest, in turn
    paraphrases        texts that mean the same: distance of each one's embedding from their mean direction

Compression errors are what they are; the others stand for an uncertainty that nobody can observe, and are
sampled. Source of the alignment: Schoenemann, Psychometrika 31 (1966).

Files of radii: an .npz archive with `ids`, `errors`, and `measured` (False: the stated default).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from mio_rag.errors import DataError, InputError, require
from mio_rag.retrieval.embedders import Embedder, make_embedder
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.texts import embedded_text
from mio_rag.storage import parse_json, read_text, replaced

FloatArray = NDArray[np.float64]
Progress = Callable[[int], None]

_FOLDS = 10
_MOST_BITS = 12

_MEANINGS = {
    "pq": "exact: this index compressed by product quantisation",
    "sq8": "exact: this index compressed to 8 bits a coordinate",
    "chunks": "how far half of a passage lies from the whole",
    "encoder": "how far a second encoder disagrees, after alignment",
    "paraphrases": "how far wordings of the same meaning lie apart",
}


@dataclass(frozen=True, eq=False)
class MeasuredRadius:
    """Errors of single embeddings.

    errors (k,): l2 norms.
    ids: whose errors they are: passages, or lines of the paraphrase file.
    """

    method: str
    errors: FloatArray
    ids: tuple[str, ...]

    @property
    def meaning(self) -> str:
        """What the errors are, in a few words."""
        return _MEANINGS[self.method.split(":")[0]]

    def radius(self, quantile: float) -> float:
        """The smallest radius that covers this share of the errors."""
        return float(np.quantile(self.errors, quantile, method="higher"))

    def to_dict(self, quantile: float) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "method": self.method,
            "meaning": self.meaning,
            "count": int(self.errors.size),
            "quantile": quantile,
            "radius": self.radius(quantile),
            "median": float(np.median(self.errors)),
            "mean": float(self.errors.mean()),
            "largest": float(self.errors.max()),
        }


def check_method(
    method: str, other: str | None, file: Path | None, quantile: float, limit: int, out: Path | None
) -> None:
    """Raise `InputError` with everything that is wrong with what was asked."""
    problems = []
    kind = "pq" if _product(method) else method
    if kind not in _MEANINGS:
        problems.append(
            f"--method={method!r} is unknown: choose sq8, pq:M, pq:MxBITS (pq:8x4, for instance), chunks, "
            "encoder or paraphrases"
        )
    if (kind == "encoder") != (other is not None):
        problems.append("--other names the second embedder, for --method encoder and for it alone")
    if (kind == "paraphrases") != (file is not None):
        problems.append("--file holds the texts, for --method paraphrases and for it alone")
    if not 0 < quantile <= 1:
        problems.append(f"--quantile={quantile} must be in (0, 1]")
    if limit < 4:
        problems.append(f"--limit={limit} must be >= 4")
    if kind == "paraphrases" and out is not None:
        problems.append(
            "--out holds a radius for each passage, and paraphrases measure none: use selection.radius"
        )
    if out is not None and (out.suffix != ".npz" or not out.absolute().parent.is_dir()):
        problems.append(f"--out={out} must be a file that ends in .npz, in a folder that exists")
    if problems:
        raise InputError(problems)


def _product(method: str) -> tuple[int, int] | None:
    """(M, bits) of a product code, (0, 0) for "pq" alone; None where it is none."""
    found = re.fullmatch(r"pq(?::([1-9]\d{0,5})(?:x([1-9]\d?))?)?", method)
    if found is None:
        return None
    return (int(found[1]), int(found[2] or 8)) if found[1] else (0, 0)


def measure_radius(
    index: CorpusIndex,
    method: str,
    *,
    other: str | Embedder | None = None,
    file: Path | None = None,
    limit: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
) -> MeasuredRadius:
    """Errors of an index's embeddings by one method; see the module.

    other: the second encoder of "encoder".
    file: texts of "paraphrases".
    limit: passages that "chunks" and "encoder" sample.
    progress: called with the number of texts just embedded.

    Raises `InputError` if the method cannot be used with this index.
    """
    if method == "sq8" or _product(method):
        return _compressed(index, method)
    if method == "paraphrases":
        assert file is not None
        return _paraphrases(index, file, progress)
    rows = np.sort(np.random.default_rng(seed).permutation(len(index))[:limit])
    if method == "chunks":
        return _chunks(index, rows, progress)
    if method != "encoder" or other is None:
        raise InputError(f"method {method!r} is unknown, or lacks its second embedder")
    return _encoder(index, rows, other, progress)


def _compressed(index: CorpusIndex, method: str) -> MeasuredRadius:
    faiss = require("faiss", "retrieval", "compressed indexes")
    vectors, d = index.embeddings(range(len(index))), index.dimensions
    if method == "sq8":
        codec = faiss.IndexScalarQuantizer(d, faiss.ScalarQuantizer.QT_8bit)
    else:
        parts, bits = _product(method) or (0, 0)
        _check_product(method, parts, bits, d, len(index))
        codec = faiss.IndexPQ(d, parts, bits)
        codec.pq.cp.min_points_per_centroid = 1  # the small ones warn on stderr
    codec.train(vectors)
    decoded = np.asarray(codec.sa_decode(codec.sa_encode(vectors)), dtype=np.float64)
    return MeasuredRadius(method, np.linalg.norm(vectors - decoded, axis=1), _ids(index, range(len(index))))


def _check_product(method: str, parts: int, bits: int, d: int, n: int) -> None:
    """Raise `InputError` unless product codes of `parts` x `bits` can be trained, with what could be."""
    fine = [m for m in range(1, d + 1) if d % m == 0]
    most = min(_MOST_BITS, n.bit_length() - 1)
    problems = []
    if not parts:
        problems.append("the number of parts is missing")
    elif parts not in fine:
        problems.append(f"{d} dimensions cannot be cut into {parts}")
    if parts and bits > _MOST_BITS:
        problems.append(f"{bits} bits are more than {_MOST_BITS}")
    elif parts and bits > most:
        problems.append(f"{2**bits} centroids ({bits} bits) need at least as many passages, not {n}")
    if problems and most < 1:
        raise InputError(f"{method}: product codes need two passages or more; sq8 works with any index")
    if problems:
        near = min(fine, key=lambda m: abs(m - (parts or 8)))
        raise InputError(
            f"{method}: {', and '.join(problems)}. This index takes pq:MxBITS, M may be {fine} and BITS 1 to "
            f"{most} (8 where none is given): try pq:{near}x{min(bits or 8, most)}, or sq8"
        )


def _ids(index: CorpusIndex, rows: Sequence[int] | range | NDArray[Any]) -> tuple[str, ...]:
    return tuple(index.passages[int(k)].id for k in rows)


def _chunks(index: CorpusIndex, rows: NDArray[np.int64], progress: Progress | None) -> MeasuredRadius:
    halves, kept = [], []
    for k in rows:
        passage = index.passages[int(k)]
        sentences = re.split(r"(?<=[.!?])\s+", passage.text.strip())
        if len(sentences) < 2:
            continue
        middle = len(sentences) // 2
        kept.append(int(k))
        for part in (sentences[:middle], sentences[middle:]):
            text = " ".join(part)
            halves.append(f"{passage.title}\n{text}" if passage.title else text)
    if not kept:
        raise InputError("method 'chunks' needs passages of two sentences or more: there are none")
    parts = index.embedder.encode(halves, progress).astype(np.float64).reshape(len(kept), 2, -1)
    whole = index.embeddings(kept).astype(np.float64)
    errors = np.linalg.norm(parts - whole[:, None, :], axis=2).max(axis=1)
    return MeasuredRadius("chunks", errors, _ids(index, kept))


def _encoder(
    index: CorpusIndex, rows: NDArray[np.int64], other: str | Embedder, progress: Progress | None
) -> MeasuredRadius:
    second = make_embedder(other) if isinstance(other, str) else other
    texts = [embedded_text(index.passages[int(k)]) for k in rows]
    if second.name == "tfidf":
        second.fit(texts)
    ours = index.embeddings(rows.tolist()).astype(np.float64)
    theirs = second.encode(texts, progress).astype(np.float64)
    width = max(ours.shape[1], theirs.shape[1])
    # With fewer points than dimensions anything can be turned onto anything, and says nothing of the rest.
    needed = -(-2 * min(ours.shape[1], theirs.shape[1]) * _FOLDS // (_FOLDS - 1))
    if rows.size < needed:
        raise InputError(
            f"method 'encoder' needs {needed} passages to align these dimensions, {rows.size} are sampled: "
            f"raise --limit, or use a larger index (this one has {len(index)})"
        )
    ours, theirs = (np.pad(v, ((0, 0), (0, width - v.shape[1]))) for v in (ours, theirs))
    errors = np.empty(rows.size)
    for fold in range(_FOLDS):
        measured = np.arange(rows.size) % _FOLDS == fold
        turn, _ = scipy.linalg.orthogonal_procrustes(theirs[~measured], ours[~measured])
        errors[measured] = np.linalg.norm(theirs[measured] @ turn - ours[measured], axis=1)
    return MeasuredRadius("encoder", errors, _ids(index, rows))


def _paraphrases(index: CorpusIndex, file: Path, progress: Progress | None) -> MeasuredRadius:
    texts: list[str] = []
    groups: list[list[int]] = []
    problems: list[str] = []
    # Only "\n" ends a line: texts may hold the other separators.
    for number, line in enumerate(read_text(file, DataError).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"'{file}', line {number}"
        try:
            row = parse_json(line, where)
        except InputError as error:
            problems += error.problems
            continue
        given: Any = row.get("texts") if isinstance(row, dict) else None
        fine = isinstance(given, list) and all(isinstance(text, str) and text.strip() for text in given)
        if not fine or len(given) < 2:
            problems.append(f'{where}: expected {{"texts": [two or more strings]}}')
            continue
        groups.append(list(range(len(texts), len(texts) + len(given))))
        texts += given
    if problems or not groups:
        raise DataError(problems or [f"'{file}' holds no texts"])
    vectors = index.embedder.encode(texts, progress).astype(np.float64)
    errors, ids = [], []
    for k, group in enumerate(groups, start=1):
        mean = vectors[group].mean(axis=0)
        mean /= max(float(np.linalg.norm(mean)), 1e-12)
        errors += np.linalg.norm(vectors[group] - mean, axis=1).tolist()
        ids += [f"{k}.{j}" for j in range(1, len(group) + 1)]
    return MeasuredRadius("paraphrases", np.array(errors), tuple(ids))


def write_radii(path: Path, found: MeasuredRadius, ids: Sequence[str], default: float) -> int:
    """Write a radius for every passage, all or nothing.

    ids: the passages of the index, in order.
    default: radius of those that were not measured.

    Returns how many got it.
    Raises `InputError` if the errors are not those of passages, or the file cannot be written.
    """
    known = dict(zip(found.ids, found.errors.tolist(), strict=True))
    if not known.keys() <= set(ids):
        raise InputError(
            f"{found.method} measures no passages, so there is no file of radii: use one radius for all"
        )
    measured = np.array([i in known for i in ids])
    errors = np.array([known.get(i, default) for i in ids], dtype=np.float64)
    with replaced(path) as partial, partial.open("wb") as file:
        np.savez(file, ids=np.array(ids), errors=errors, measured=measured)
    return int((~measured).sum())


def read_radii(path: Path) -> dict[str, float]:
    """Id -> radius, as `write_radii` wrote them.

    Raises `DataError` if the file cannot be read, or holds something else.
    """

    def refused(why: object) -> DataError:
        how = f"write one with mio-rag lab radius INDEX --out {path.with_suffix('.npz').name}"
        return DataError(f"'{path}' cannot be read as radii: {why}; {how}")

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            ids, errors = stored["ids"], np.asarray(stored["errors"], dtype=np.float64)
    except OSError as error:
        raise refused(error.strerror or error) from error
    except Exception as error:  # what is wrong with a file of another kind says nothing to its user
        raise refused("it is no .npz archive of 'ids' and numbers 'errors'") from error
    fine = ids.ndim == 1 and ids.shape == errors.shape and bool(np.all(np.isfinite(errors) & (errors >= 0)))
    if not fine or np.unique(ids).size < ids.size:
        raise refused("it must hold one finite radius >= 0 for each id")
    return dict(zip(map(str, ids.tolist()), errors.tolist(), strict=True))
