"""Selections for many questions: Parquet in, Parquet out, each row exactly once."""

from __future__ import annotations

from mio_rag.batch.job import BatchSummary, Engine
from mio_rag.batch.run import select_batch

__all__ = ["BatchSummary", "Engine", "select_batch"]
