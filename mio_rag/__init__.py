"""mio-rag chooses what a language model reads, by optimization, and proves the choice.

The names below are the public ones; they are loaded on first use, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mio_rag.defaults import __version__ as __version__

#: The ten names of the front door; further ones are those of their packages.
_DOOR = {
    "Answer": "types",
    "Collection": "collection",
    "MioRagError": "errors",
    "Passage": "types",
    "Policy": "policy",
    "Selection": "selection.result",
    "Store": "stores",
    "evaluate": "evaluation",
    "register_method": "methods",
    "select": "collection",
}
_HOME = {
    **_DOOR,
    "Candidates": "pool",
    "Conversation": "selection.selector",
    "CorpusIndex": "retrieval",
    "Dataset": "corpora.dataset",
    "InputError": "errors",
    "LinearConstraint": "formulations",
    "Pool": "pool",
    "Question": "types",
    "Retriever": "retrieval",
    "SelectionProgram": "formulations",
    "Selector": "selection.selector",
    "SideConstraints": "selection.constraints",
    "SolveOptions": "solvers",
    "SolveResult": "solvers",
    "Status": "solvers",
    "load_dataset": "corpora.load",
    "make_generator": "generation",
    "solve": "solvers",
}

__all__ = [
    "Answer",
    "Candidates",
    "Collection",
    "Conversation",
    "CorpusIndex",
    "Dataset",
    "InputError",
    "LinearConstraint",
    "MioRagError",
    "Passage",
    "Policy",
    "Pool",
    "Question",
    "Retriever",
    "Selection",
    "SelectionProgram",
    "Selector",
    "SideConstraints",
    "SolveOptions",
    "SolveResult",
    "Status",
    "Store",
    "load_dataset",
    "make_generator",
    "select",
    "solve",
]

if TYPE_CHECKING:
    from mio_rag.collection import Collection, select
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.corpora.load import load_dataset
    from mio_rag.errors import InputError, MioRagError
    from mio_rag.formulations import LinearConstraint, SelectionProgram
    from mio_rag.generation import make_generator
    from mio_rag.policy import Policy
    from mio_rag.pool import Candidates, Pool
    from mio_rag.retrieval import CorpusIndex, Retriever
    from mio_rag.selection.constraints import SideConstraints
    from mio_rag.selection.result import Selection
    from mio_rag.selection.selector import Conversation, Selector
    from mio_rag.solvers import SolveOptions, SolveResult, Status, solve
    from mio_rag.stores import Store
    from mio_rag.types import Answer, Passage, Question


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"mio_rag.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'mio_rag' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
