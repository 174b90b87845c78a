"""A selector for tests; in a file of its own, since worker processes import it, and need nothing else."""

import os
import signal
from typing import Any

from mio_rag import Candidates, Selector

__all__ = ["Deadly"]


class Deadly(Selector):
    """Takes its process down at one question."""

    def choose(self, candidates: Candidates, *given: Any) -> Any:
        """As any selector, with one exception."""
        if candidates.ids[0] == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().choose(candidates, *given)
