"""Files that are written all or nothing, in folders that are made where they are missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mio_rag import storage as files


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A partial file that takes the place of `path` when the block ends well: none sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replaced(path) as partial:
        yield partial


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a report."""
    with replaced(path) as partial:
        partial.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
