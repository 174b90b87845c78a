"""Compare methods and policies, and fit settings on labelled questions."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mio_rag.evaluation.harness import Report
    from mio_rag.evaluation.python import evaluate

__all__ = ["Report", "evaluate"]


def __getattr__(name: str) -> Any:  # loaded on first use: the service needs nothing of it but markup
    if name == "Report":
        from mio_rag.evaluation.harness import Report

        return Report
    if name == "evaluate":
        from mio_rag.evaluation.python import evaluate

        return evaluate
    raise AttributeError(f"module 'mio_rag.evaluation' has no attribute '{name}'")
