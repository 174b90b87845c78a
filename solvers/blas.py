"""One BLAS thread while a solver runs, however many Python threads run solvers.

On busy machines, small matrix products in multi-threaded BLAS libraries can stall for seconds. The limit is
process-wide, so users are counted: the first solver sets it, the last one restores the previous value.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread"]

_lock = threading.Lock()
_users = 0
_controller: ThreadpoolController | None = None
_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block."""
    global _controller, _limit, _users
    with _lock:
        if _controller is None:
            _controller = ThreadpoolController()
        if _users == 0:
            _limit = _controller.limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limit.restore_original_limits()
                _limit = None
