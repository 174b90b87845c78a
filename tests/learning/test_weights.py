"""Files of learned controllers: whole and of the right kind, or refused."""

from pathlib import Path

import numpy as np
import pytest

from mio_rag.errors import DataError
from mio_rag.learning.weights import Weights, read_weights, write_weights


@pytest.fixture
def weights() -> Weights:
    arrays = {"first": np.arange(6, dtype=np.float32).reshape(2, 3), "counts": np.array([1, 2])}
    return Weights("router", 2, arrays, {"tiers": ["easy", "hard"]}, {"seed": 7})


def test_written_and_read_back(weights: Weights, tmp_path: Path) -> None:
    path = tmp_path / "new" / "router.safetensors"
    write_weights(weights, path)
    back = read_weights(path, "router", 2)
    assert back.about == weights.about
    assert back.provenance == {"seed": 7}
    assert back.sha256 == weights.sha256
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array)
        assert back.arrays[name].dtype == array.dtype


def test_hash_is_of_what_decisions_rest_on(weights: Weights) -> None:
    def made(**changed: object) -> str:
        given = {"kind": "router", "version": 2, "arrays": weights.arrays, "about": weights.about} | changed
        return Weights(**given, provenance={"seed": 8}).sha256  # type: ignore[arg-type]

    assert made() == weights.sha256
    moved = {"first": np.zeros((2, 3), np.float32), "counts": weights.arrays["counts"]}
    others = [made(kind="planner"), made(version=3), made(about={}), made(arrays=moved)]
    assert len({weights.sha256, *others}) == 5


def test_other_kinds_versions_and_damaged_files_are_refused(weights: Weights, tmp_path: Path) -> None:
    path = tmp_path / "router.safetensors"
    with pytest.raises(DataError, match="does not exist"):
        read_weights(path, "router", 2)
    write_weights(weights, path)
    with pytest.raises(DataError, match="is of the kind 'router': the kind 'planner' is needed"):
        read_weights(path, "planner", 2)
    with pytest.raises(DataError, match="has version 2 of its layout, this release reads 3"):
        read_weights(path, "router", 3)
    whole = path.read_bytes()
    for cut in (0, 4, 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match="damaged"):
            read_weights(path, "router", 2)
    for place in (-1, whole.index(b"hard") + 1):  # a bit of a number, a letter of what is said
        flipped = bytearray(whole)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(DataError, match="damaged: its numbers are not those that were written"):
            read_weights(path, "router", 2)
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(2)}, str(path))
    with pytest.raises(DataError, match="not a file of a learned model"):
        read_weights(path, "router", 2)
