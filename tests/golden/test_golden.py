"""The doors give what was recorded. `python -m tests.golden.record` records anew: read the diff."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from mio_rag import CorpusIndex, Dataset
from tests.golden.doors import DOORS

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize("door", DOORS)
def test_door_gives_what_was_recorded(
    door: str, demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    wanted = (RECORDED / f"{door}.tsv").read_text(encoding="utf-8").splitlines()
    found = list(DOORS[door](demo, demo_index, tmp_path))
    differing = [(old, new) for old, new in zip(wanted, found, strict=False) if old != new]
    shown = "\n\n".join(f"recorded {old}\nfound    {new}" for old, new in differing[:5])
    assert not differing, f"{len(differing)} of {len(wanted)} rows of {door} differ:\n{shown}"
    assert len(found) == len(wanted)
