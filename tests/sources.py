"""Source files of the project as syntax trees, for tests that read them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

__all__ = ["tree_of"]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once for all tests, which only read it."""
    return ast.parse(path.read_text(encoding="utf-8"))
