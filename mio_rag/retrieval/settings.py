"""How a pool is found: its size, what ranks it, what links and re-rankers add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mio_rag.errors import InputError
from mio_rag.retrieval.rerank import spec_problems

Mode = Literal["fused", "dense", "bm25"]

_MOST_HOPS = 3


@dataclass(frozen=True)
class RetrievalSettings:
    """Settings of a `Retriever`, as plain data.

    pool: candidates per question, >= 1.
    mode ("fused", "dense", "bm25"): what ranks the pool.
    link_hops: links in a row that are followed out of the pool, from 0 (none) to 3. None: one where the index
        has links.
    rerankers: specifications; see `mio_rag.retrieval.rerank`. No model is loaded here.

    Raises `InputError` with every problem found.
    """

    pool: int = 50
    mode: Mode = "fused"
    link_hops: int | None = None
    rerankers: Sequence[str] = ()

    def __post_init__(self) -> None:
        problems = spec_problems(self.rerankers)
        if self.link_hops is not None and not 0 <= self.link_hops <= _MOST_HOPS:
            problems.append(
                f"link_hops={self.link_hops} must be between 0 (no expansion of the pool) and {_MOST_HOPS}"
            )
        if self.pool < 1:
            problems.append(f"pool={self.pool} must be >= 1")
        if self.mode not in get_args(Mode):
            problems.append(f"retrieval mode '{self.mode}' is unknown: choose fused, dense or bm25")
        if problems:
            raise InputError(problems)
