"""Compare methods and policies, and fit settings on labelled questions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mio_rag.evaluation.harness import Report
    from mio_rag.evaluation.python import evaluate

__all__ = ["Report", "evaluate"]


def __getattr__(name: str) -> Any:  # loaded on first use: the service needs nothing of it but markup
    if name not in __all__:
        raise AttributeError(f"module 'mio_rag.evaluation' has no attribute '{name}'")
    module = import_module(f"mio_rag.evaluation.{'harness' if name == 'Report' else 'python'}")
    return getattr(module, name)
