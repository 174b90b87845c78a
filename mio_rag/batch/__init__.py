"""Many questions: Parquet in, Parquet out, each row exactly once, under budgets or one total for all."""

from __future__ import annotations

from mio_rag.batch.allocate import AllocationSummary, allocate_batch
from mio_rag.batch.job import BatchSummary, Engine
from mio_rag.batch.run import select_batch

__all__ = ["AllocationSummary", "BatchSummary", "Engine", "allocate_batch", "select_batch"]
