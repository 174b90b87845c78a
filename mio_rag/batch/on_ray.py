"""Questions on a Ray cluster, answered by actors.

The index must lie where every node sees it. The ledger lies on the driver's machine alone: the driver makes
claims; calls that never reported a cost, the pacer and the cached replies go through an actor on its node.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mio_rag.batch.answering import Answered, Answering, Died
from mio_rag.batch.answering import Job as AskJob
from mio_rag.batch.ledger import Claim, Ledger
from mio_rag.batch.run import joined, last_line
from mio_rag.errors import InputError, SolverError, StateError, require
from mio_rag.generation.replies import ReplyFile
from mio_rag.policy import Policy
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.types import Question

_TRIES = 5  # workers, for what costs nothing


def check_ray(index: object, generator: object, policy: Policy) -> None:
    """Raise `InputError` for what cannot run on several machines."""
    problems = []
    if policy.search.by == "bandit":
        problems.append(
            f"engine='ray': a bandit learns in one file ('{policy.search.state}'), which several machines "
            "cannot share: use engine='local', or name the strategies"
        )
    if isinstance(index, CorpusIndex):
        problems.append(
            "engine='ray' takes the folder of an index, since every worker opens it: give its path"
        )
    if not isinstance(generator, str):
        problems.append(
            "engine='ray' takes the name of a generator, since every worker opens it, for instance "
            "openai:http://host/v1#MODEL"
        )
    if problems:
        raise InputError(problems)


class _LedgerActor:
    """Holds ledger, pacer and replies for all workers, on the driver's machine."""

    def __init__(self, job: AskJob) -> None:
        path = job.folder / "ledger.sqlite"
        if not path.is_file():
            raise SolverError(f"'{path}' is not seen by the node that this program runs on")
        replies = ReplyFile(job.folder / "replies.sqlite")
        self._parts = {"ledger": Ledger(path), "pacer": job.pacer(), "replies": replies}

    def ready(self) -> None:
        """Return when the actor has started."""

    def call(self, part: str, method: str, *given: Any) -> Any:
        """Call a method of a part."""
        return getattr(self._parts[part], method)(*given)


class _Remote:
    """A part of the ledger's actor; raises what its methods raise."""

    def __init__(self, actor: Any, part: str) -> None:
        self._actor, self._part = actor, part

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            ray: Any = require("ray", "ray", "engine='ray'")
            try:
                return ray.get(self._actor.call.remote(self._part, method, *given))
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise StateError("the actor of the ledger has died: run the same again to resume") from error

        return call


class _RemoteReplies(ReplyFile):
    """The file of replies of the ledger's actor."""

    def __init__(self, path: Path, actor: Any) -> None:
        super().__init__(path)
        self._remote = _Remote(actor, "replies")

    def get(self, key: bytes) -> dict[str, Any]:
        """As `ReplyFile.get`."""
        found: dict[str, Any] = self._remote.get(key)
        return found

    def put(self, key: bytes, reply: dict[str, Any]) -> None:
        """As `ReplyFile.put`."""
        self._remote.put(key, reply)


class _Worker(Answering):
    """An actor that answers."""

    def __init__(self, index: str, reader: str, job: AskJob, actor: Any) -> None:
        ledger, pacer = _Remote(actor, "ledger"), _Remote(actor, "pacer")

        def lose(claim: Claim, cost: int) -> bool:
            return bool(ledger.lose(claim, cost, job.total))

        replies = _RemoteReplies(job.folder / "replies.sqlite", actor)
        paced = job.policy.price.total is not None
        super().__init__(index, reader, job, lose, pacer if paced else None, replies)

    def depends_on(self) -> dict[str, str]:
        """Return what answers depend on."""
        return self.about


class RayTeam:
    """Workers of a cluster, each with several questions in progress.

    hire: makes a worker; one that died is replaced.
    each: questions in progress at a worker.
    """

    def __init__(self, ray: Any, hire: Callable[[], Any], workers: int, each: int) -> None:
        self._ray, self._hire, self._lock = ray, hire, threading.Lock()
        self._workers = [hire() for _ in range(workers)]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(workers * each):
            self._free.put(place % workers)

    @property
    def about(self) -> dict[str, str]:
        """Return what answers depend on; `InputError` if workers see different things."""
        try:
            found: list[dict[str, str]] = self._ray.get([w.depends_on.remote() for w in self._workers])
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        if any(one != found[0] for one in found[1:]):
            raise InputError("engine='ray': workers see different indexes or models: share one folder")
        return found[0]

    def most(self, question: Question) -> int:
        """As `Answering.most`."""
        return int(self._free_of_charge("most", question))

    def least(self, question: Question) -> int | None:
        """As `Answering.least`."""
        found: int | None = self._free_of_charge("least", question)
        return found

    def answer(self, claim: Claim) -> Answered:
        """As `Answering.answer`; `Died` if the worker died."""
        found: Answered = self._call("answer", claim)
        return found

    def _free_of_charge(self, method: str, question: Question) -> Any:
        for _ in range(_TRIES):
            with suppress(Died):
                return self._call(method, question)
        raise SolverError(f"{_TRIES} workers died one after another: see Ray's logs")

    def _call(self, method: str, given: Any) -> Any:
        place = self._free.get()
        worker = self._workers[place]
        try:
            return self._ray.get(getattr(worker, method).remote(given))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            with self._lock:
                if self._workers[place] is worker:
                    self._workers[place] = self._hire()
            raise Died(f"the worker died ({type(error).__name__})") from error
        finally:
            self._free.put(place)

    def dismiss(self) -> None:
        """End all workers."""
        for worker in self._workers:
            self._ray.kill(worker)


@contextmanager
def ray_team(index: str, reader: str, job: AskJob, workers: int, concurrency: int) -> Iterator[RayTeam]:
    """Start workers for a batch whose ledger has been begun.

    index, reader: folder of the index; generator, as `mio_rag.generation.make_generator` takes it.
    concurrency: questions in progress at a time, of all workers.

    Raises `SolverError` if the cluster or its actors cannot be started, or its actor does not see the ledger.
    """
    each = -(-concurrency // workers)
    with joined(workers) as ray:
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        options = {"num_cpus": 0, "max_concurrency": max(8, concurrency), "scheduling_strategy": here}
        ledger_actor = ray.remote(_LedgerActor).options(**options).remote(job)
        actor = ray.remote(_Worker).options(num_cpus=1, max_concurrency=each)
        team = RayTeam(ray, lambda: actor.remote(index, reader, job, ledger_actor), workers, each)
        try:
            ray.get(ledger_actor.ready.remote())
            yield team
        except ray.exceptions.RayActorError as error:
            raise SolverError(f"Ray could not start the workers: {last_line(error)}") from error
        finally:
            team.dismiss()
            ray.kill(ledger_actor)
