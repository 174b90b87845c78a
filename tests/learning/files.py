"""Files of learned controllers in tests: small ones made by hand, and changes to them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mio_rag.learning.weights import read_weights, write_weights


def rewritten(
    path: Path, kind: str, version: int, change: Callable[[dict[str, Any], dict[str, Any]], object]
) -> None:
    """Change the data and arrays of a file."""
    held = read_weights(path, kind, version)
    about, arrays = json.loads(json.dumps(dict(held.about))), dict(held.arrays)
    change(about, arrays)
    write_weights(replace(held, about=about, arrays=arrays), path)
