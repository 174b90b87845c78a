"""Files of learned models: arrays and plain data in one safetensors file, never a pickle.

The header holds the format, its version, the kind of model, what it is used with and where it comes from. A
digest of everything that decisions rest on shows damage to the bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import DataError, InputError, require
from mio_rag.settings import plain
from mio_rag.storage import make_parent, parse_json, replaced

FORMAT = "mio-rag-weights"
_DIGEST = f"{FORMAT}-sha256"


def json_text(data: Any) -> str:
    """Return plain data as JSON with sorted keys; `TypeError, ValueError` for what is none, or not finite."""

    def converted(value: Any) -> Any:
        if (made := plain(value)) is value:
            raise TypeError(f"{value!r:.40} is no plain data")
        return made

    return json.dumps(data, allow_nan=False, sort_keys=True, default=converted)


@dataclass(frozen=True, eq=False)
class Weights:
    """What a learned model consists of.

    kind, version: for instance "router", and of its layout; a reader asks for both.
    about: plain data that the model needs: actions, features, embedder, settings.
    provenance: plain data on its origin: hash of the training data, seed, versions, date.

    Raises `InputError` for arrays that are no finite numbers.
    """

    kind: str
    version: int
    arrays: Mapping[str, NDArray[Any]]
    about: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, array in self.arrays.items():
            if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
                raise InputError(f"array '{name}' must hold finite numbers, got {array.dtype}")

    @property
    def sha256(self) -> str:
        """Digest of what decisions rest on: everything but the provenance."""
        digest = sha256(json_text([self.kind, self.version, dict(self.about)]).encode())
        for name in sorted(self.arrays):
            array = np.ascontiguousarray(self.arrays[name])
            digest.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
        return digest.hexdigest()


def write_weights(weights: Weights, path: Path) -> None:
    """Write a file, whole or not at all; `InputError` if it cannot be written."""
    safetensors: Any = require("safetensors.numpy", "retrieval", "files of learned models")
    arrays = {name: np.ascontiguousarray(array) for name, array in weights.arrays.items()}
    header = {"format": FORMAT, "kind": weights.kind, "version": weights.version}
    header |= {"about": dict(weights.about), "provenance": dict(weights.provenance)}
    made = safetensors.save(arrays, metadata={FORMAT: json_text(header), _DIGEST: weights.sha256})
    make_parent(path)
    with replaced(path) as partial:
        partial.write_bytes(made)


def read_weights(path: str | Path, kind: str, version: int) -> Weights:
    """Read what `write_weights` wrote.

    Raises `DataError` for a file that is missing, damaged, foreign, or of another kind or version.
    """
    safetensors: Any = require("safetensors", "retrieval", "files of learned models")
    if not Path(path).is_file():
        fit = {"planner": "policy fit planner", "router": "policy fit router"}.get(kind, "policy fit")
        raise DataError(f"'{path}' does not exist: give a file of a {kind}; mio-rag {fit} makes one")
    try:
        with safetensors.safe_open(str(path), framework="numpy") as file:
            marks = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(
            f"'{path}' cannot be read, it is damaged or not of the kind '{kind}': {error}"
        ) from error
    header = parse_json(marks.get(FORMAT, "null"), f"'{path}'", DataError)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(f"'{path}' is not a file of a learned model: it lacks the mark '{FORMAT}'")
    if header.get("kind") != kind:
        raise DataError(f"'{path}' is of the kind '{header.get('kind')}': the kind '{kind}' is needed")
    if header.get("version") != version:
        raise DataError(
            f"'{path}' has version {header.get('version')!r} of its layout, this release reads {version}: "
            "train it anew"
        )
    try:
        found = Weights(kind, version, arrays, header["about"], header["provenance"])
    except (KeyError, InputError) as error:
        raise DataError(f"'{path}' is damaged: {error}") from error
    if marks.get(_DIGEST) != found.sha256:
        raise DataError(f"'{path}' is damaged: its numbers are not those that were written; copy it anew")
    return found
