"""Questions over a Ray cluster: workers answer, one actor beside the ledger counts.

Every worker opens index and generator itself, so that both must lie where its node sees them. What is counted
lies on the driver's machine alone: claims are made by the driver; calls that never told what they took, the
pacer, and replies that were paid for go through an actor on its node.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mio_rag.allocation.pacer import Reservation
from mio_rag.batch.answering import Answered, Answering, Died, Job, make_reader
from mio_rag.batch.ledger import Claim, Ledger
from mio_rag.batch.on_ray import joined
from mio_rag.errors import InputError, SolverError, StateError, require
from mio_rag.generation import Generator
from mio_rag.generation.replies import ReplyFile
from mio_rag.policy import Policy
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.types import Question

_TRIES = 5


def ray_problems(policy: Policy) -> list[str]:
    """What a policy cannot do on several machines."""
    if policy.search.by != "bandit":
        return []
    return [
        f"engine='ray': a bandit learns in one file ('{policy.search.state}'), which several machines cannot "
        "share: use engine='local', or name the strategies"
    ]


class _LedgerActor:
    """Holds ledger, pacer and replies for all workers, on the driver's machine."""

    def __init__(self, job: Job) -> None:
        self._total = job.total
        path = job.folder / "ledger.sqlite"
        if not path.is_file():
            raise SolverError(f"'{path}' is not seen by the node that this program runs on")
        self._ledger, self._pacer = Ledger(path), job.pacer()
        self._replies = ReplyFile(job.folder / "replies.sqlite")

    def ready(self) -> None:
        """Nothing: it is."""

    def lose(self, claim: Claim, cost: int) -> bool:
        """As `Ledger.lose`."""
        return self._ledger.lose(claim, cost, self._total)

    def pacer(self, name: str, *given: Any) -> Any:
        """What the pacer says."""
        return getattr(self._pacer, name)(*given)

    def replies(self, name: str, *given: Any) -> Any:
        """What the file of replies says."""
        return getattr(self._replies, name)(*given)


class _Asked:
    """Calls the actor at the ledger, and raises what it raises."""

    def __init__(self, ledger_actor: Any) -> None:
        self._actor = ledger_actor

    def __call__(self, method: str, *given: Any) -> Any:
        ray: Any = require("ray", "ray", "engine='ray'")
        try:
            return ray.get(getattr(self._actor, method).remote(*given))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise StateError("the actor that counts has died: run the same again to go on") from error


class _RemotePacer:
    """The pacer at the ledger."""

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked

    def ask(self, tokens: int | None = None, least: int | None = None) -> Reservation:
        """As `Pacer.ask`."""
        held: Reservation = self._asked("pacer", "ask", tokens, least)
        return held

    def spent(self, reservation: Reservation, tokens: int) -> None:
        """As `Pacer.spent`."""
        self._asked("pacer", "spent", reservation, tokens)

    def release(self, reservation: Reservation) -> None:
        """As `Pacer.release`."""
        self._asked("pacer", "release", reservation)

    def close(self) -> None:
        """Nothing: it is the actor's at the ledger."""


class _RemoteReplies(ReplyFile):
    """The file of replies at the ledger."""

    def __init__(self, path: Path, asked: _Asked) -> None:
        super().__init__(path)
        self._asked = asked

    def get(self, key: bytes) -> dict[str, Any] | None:
        """As `ReplyFile.get`."""
        found: dict[str, Any] | None = self._asked("replies", "get", key)
        return found

    def put(self, key: bytes, reply: dict[str, Any]) -> None:
        """As `ReplyFile.put`."""
        self._asked("replies", "put", key, reply)


class _Worker:
    """An actor that answers."""

    def __init__(self, index: str, reader: str, job: Job, ledger_actor: Any) -> None:
        asked = _Asked(ledger_actor)
        pacer = None if job.policy.price.total is None else _RemotePacer(asked)

        def make(spec: str) -> Generator:
            return make_reader(spec, _RemoteReplies(job.folder / "replies.sqlite", asked))

        def lose(claim: Claim, cost: int) -> bool:
            return bool(asked("lose", claim, cost))

        self._answering = Answering(CorpusIndex.load(index), make(reader), job, lose, pacer, make)

    def about(self) -> dict[str, str]:
        """What answers depend on."""
        return self._answering.about

    def most(self, question: Question) -> int:
        """As `Answering.most`."""
        return self._answering.most(question)

    def least(self, question: Question) -> int | None:
        """As `Answering.least`."""
        return self._answering.least(question)

    def answer(self, claim: Claim) -> Answered:
        """As `Answering.answer`."""
        return self._answering.answer(claim)


class RayTeam:
    """Workers of a cluster, each with several questions under way.

    Parameters
    ----------
    hire : callable
        Makes a worker; one that died is replaced.
    each : int
        Questions under way at a worker.
    """

    def __init__(self, ray: Any, hire: Callable[[], Any], workers: int, each: int) -> None:
        self._ray, self._hire, self._lock = ray, hire, threading.Lock()
        self._workers = [hire() for _ in range(workers)]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(workers * each):
            self._free.put(place % workers)

    @property
    def about(self) -> dict[str, str]:
        """What answers depend on.

        Raises
        ------
        InputError
            Where workers see different things.
        """
        found: list[dict[str, str]] = self._all("about")
        if any(one != found[0] for one in found[1:]):
            raise InputError("engine='ray': workers see different indexes or models: share one folder")
        return found[0]

    def most(self, question: Question) -> int:
        """The most that a question may cost; nothing is spent on that, so whoever lives may say."""
        return int(self._said("most", question))

    def least(self, question: Question) -> int | None:
        """With how little it can be asked."""
        found: int | None = self._said("least", question)
        return found

    def _said(self, method: str, question: Question) -> Any:
        for _ in range(_TRIES):
            with suppress(Died):
                return self._one(method, question)
        raise SolverError(f"{_TRIES} workers died one after another: look at Ray's logs")

    def answer(self, claim: Claim) -> Answered:
        """What came of a question.

        Raises
        ------
        Died
        """
        found: Answered = self._one("answer", claim)
        return found

    def _one(self, method: str, given: Any) -> Any:
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

    def _all(self, method: str) -> Any:
        try:
            return self._ray.get([getattr(worker, method).remote() for worker in self._workers])
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def dismiss(self) -> None:
        """End all workers."""
        for worker in self._workers:
            self._ray.kill(worker)


@contextmanager
def ray_team(index: str, reader: str, job: Job, workers: int, concurrency: int) -> Iterator[RayTeam]:
    """Workers for a batch whose ledger has been begun.

    Parameters
    ----------
    index, reader : str
        Folder of the index; generator, as `mio_rag.generation.make_generator` takes it.
    concurrency : int
        Questions under way at a time, of all workers.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    SolverError
        If the cluster or its actors cannot be started, or its actor does not see the ledger.
    """
    each = -(-concurrency // workers)
    with joined(workers) as ray:
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        ledger_actor = (
            ray.remote(_LedgerActor)
            .options(num_cpus=0, max_concurrency=max(8, concurrency), scheduling_strategy=here)
            .remote(job)
        )
        actor = ray.remote(_Worker).options(num_cpus=1, max_concurrency=each)
        team = RayTeam(ray, lambda: actor.remote(index, reader, job, ledger_actor), workers, each)
        try:
            ray.get(ledger_actor.ready.remote())
            yield team
        except ray.exceptions.RayActorError as error:
            last = next(iter(reversed(str(error).strip().splitlines())), "no reason given")
            raise SolverError(f"Ray could not start the workers: {last}") from error
        finally:
            team.dismiss()
            ray.kill(ledger_actor)
