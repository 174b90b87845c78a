"""What a bandit knows: a fold over the events of its log, in their order, in memory that does not grow.

The same events give the same state to the last bit, whoever folds them and wherever a snapshot was taken.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.control.bandit.change import PageHinkley
from mio_rag.control.bandit.context import SLOTS, Context, ridges
from mio_rag.control.bandit.passages import PassageMemory
from mio_rag.control.bandit.regions import forget, net, observe, region
from mio_rag.control.bandit.ridge import Ridge
from mio_rag.control.bandit.settings import BanditSettings
from mio_rag.control.bandit.store import Event
from mio_rag.errors import DataError

__all__ = ["Learned", "context_in", "tally"]

FloatArray = NDArray[np.float64]

_REMEMBERED = 500  # past questions among which similar ones are looked for
_ADDED = 1e-3  # what counts as having contributed
_SETTLED = 20  # questions before anything is said of how what is found deviates from the usual
_FADED = 50  # changes of which is known what they left: before these nothing to speak of is left
_HALF = 0.99  # what a question leaves of the weight of those before it, in the entropy of choices
_NUMBERS = ("ran", "explored", "added", "own", "reward", "tokens", "seconds", "rated", "credit")


def context_in(event: Event) -> FloatArray:
    """The context that a question's event holds."""
    return np.frombuffer(event.x, dtype=np.float32).astype(np.float64)


def tally() -> dict[str, float]:
    """What is counted of a strategy, at its start."""
    return dict.fromkeys(_NUMBERS, 0.0)


def rewarded(own: float) -> float:
    """A contribution as a reward, in [-1, 1]: below 0 where a strategy pushed out what was worth more."""
    return min(1.0, max(-1.0, own))


class Learned:
    """The state of a bandit.

    Parameters
    ----------
    settings : BanditSettings
    strategies : sequence of str
        Those that are chosen among, beside the ones that always run.

    Attributes
    ----------
    token_price : float
        At which is chosen, that of the settings at first. It may change with every question: nothing that is
        kept depends on it.
    """

    def __init__(self, settings: BanditSettings, strategies: Sequence[str]) -> None:
        self.settings, self.strategies = settings, list(strategies)
        self.token_price = settings.token_price
        self.seq = self.questions = self.since = self.changes = 0
        self.models = {name: self._model() for name in self.strategies}
        self.overlaps: dict[str, list[float]] = {}
        self.regions: dict[str, list[float]] = {}
        self.forced: list[str] = []
        self.tallies = {name: tally() for name in (*settings.base, *self.strategies)}
        self.sets: dict[str, float] = {}
        self.regret = 0.0
        self.watch = PageHinkley(settings.change_tolerance, settings.change_threshold)
        self.watch_base = PageHinkley(settings.change_tolerance, settings.change_threshold)
        self.level = [0.0, 0.0, 0.0]
        self.places: FloatArray = np.zeros((_REMEMBERED, 0))
        self.past: FloatArray = np.full((_REMEMBERED, SLOTS), np.nan)
        self.remembered = 0
        self.passages = PassageMemory()
        self.faded: list[list[float]] = []  # (seq, share): what is left of questions up to there

    def _model(self) -> Ridge:
        how = self.settings
        return Ridge(how.dimensions, ridges(how.dimensions, how.ridge, how.ridge_embedding), how.refresh)

    def add_strategy(self, name: str) -> None:
        """Begin to choose among one more, of which nothing is known."""
        if name not in self.strategies:
            self.strategies.append(name)
        self.models[name] = self._model()  # whoever knew the name beforehand has forgotten part of nothing
        self.tallies.setdefault(name, tally())

    # --- the fold ----------------------------------------------------------------------------------------

    def fold(self, event: Event, find: Callable[[str, str], Event | None]) -> None:
        """Take in the next event.

        Parameters
        ----------
        find : callable
            (kind, id) -> an earlier event: what feedback is about.

        Raises
        ------
        DataError
            For an event of an unknown kind: it was written by a later release.
        """
        if event.kind == "question":
            self._question(event)
        elif event.kind == "feedback":
            about = find("question", event.id)
            if about is not None:
                self._feedback(event, about)
        elif event.kind == "prior":
            for name, theta in event.data["theta"].items():
                if name in self.models:
                    self.models[name].start_from(np.array(theta), event.data["weight"])
        elif event.kind == "pruned":
            region = _key(event.data["type"], event.data["strategy"])
            self.forced = [r for r in self.forced if r != region] + ([region] if event.data["on"] else [])
        elif event.kind == "recalibrated":
            self._recalibrated(event)
        elif event.kind == "strategy":
            self.add_strategy(event.id)
        elif event.kind == "settings":
            pass  # with which others have opened it; this fold has its own
        else:
            raise DataError(
                f"event {event.seq} is of the kind '{event.kind}', which this release does not know"
            )
        self.seq = event.seq

    def _question(self, event: Event) -> None:
        x, data = context_in(event), event.data
        own: dict[str, float] = data["own"]
        errors = []
        for name, value in own.items():
            if name not in self.models:
                continue
            reward, model = rewarded(value), self.models[name]
            errors.append((reward - model.mean(x)) / max(model.noise, 1e-6))
            model.update(x, reward)
            timed = reward - self.settings.second_price * data["seconds"].get(name, 0.0)
            kept = self.regions.setdefault(_key(data["type"], name), region())
            observe(kept, timed, data["tokens"].get(name, 0))
        for a, b, value in data["overlap"]:
            sums = self.overlaps.setdefault(_pair(a, b), [0.0, 0.0])
            sums[0] += value
            sums[1] += max(0.0, min(own[a], own[b]))
        self._count(data)
        self._remember(x, own)
        self.questions += 1
        changed = bool(errors) and self.watch.change(float(np.mean(errors)))
        if self._base_changed(float(data["base"])) or changed:
            self._changed(event.seq)

    def _base_changed(self, value: float) -> bool:
        """Whether questions are of another kind, by what those that always run find: this is seen of each."""
        count, mean, squares = self.level
        deviation = float(np.sqrt(squares / (count - 1))) if count >= _SETTLED else 0.0
        _welford(self.level, value)
        return deviation > 0 and self.watch_base.change((value - mean) / deviation)

    def _count(self, data: dict[str, Any]) -> None:
        for name in data["strategies"]:
            kept = self.tallies.setdefault(name, tally())
            own = data["own"].get(name, 0.0)
            kept["ran"] += 1
            kept["explored"] += data["mode"] != "exploit"
            kept["added"] += own > _ADDED
            kept["own"] += own
            kept["reward"] += rewarded(own)
            kept["tokens"] += data["tokens"].get(name, 0)
            kept["seconds"] += data["seconds"].get(name, 0.0)
            kept["credit"] += data["credit"].get(name, 0.0)
        self.sets = {known: weight * _HALF for known, weight in self.sets.items() if weight > 1e-9}
        ran = "+".join(sorted(data["strategies"]))
        self.sets[ran] = self.sets.get(ran, 0.0) + 1.0
        self.regret += data.get("regret", 0.0)

    def _remember(self, x: FloatArray, own: dict[str, float]) -> None:
        place = Context(x, "").place
        if self.places.shape[1] != place.size:
            self.places = np.zeros((_REMEMBERED, place.size))
        row = self.remembered % _REMEMBERED
        self.places[row] = place
        self.past[row] = [own.get(name, np.nan) for name in (*self.strategies, *[""] * SLOTS)[:SLOTS]]
        self.remembered += 1

    def _changed(self, seq: int) -> None:
        """What is learned held for other questions: keep some of it, and start again."""
        self.changes += 1
        self.faded = [*self.faded, [seq, self.settings.forget]][-_FADED:]
        self.since = self.questions
        for model in self.models.values():
            model.forget(self.settings.forget)
        for kept in self.regions.values():  # who was on probation may be of use now
            forget(kept, self.settings.forget)
        self.watch.restart()
        self.watch_base.restart()
        self.level = [0.0, 0.0, 0.0]

    def _feedback(self, event: Event, about: Event) -> None:
        """Credit goes to who found what was read, in shares; not to all alike."""
        x = context_in(about)
        left = float(np.prod([share for seq, share in self.faded if about.seq <= seq]))
        self.passages.learn(about.data.get("read", ()), event.data["value"] > 0)
        for name, share in about.data["credit"].items():
            kept = self.tallies.setdefault(name, tally())
            kept["rated"] += event.data["value"] * share
            if name in self.models and name in about.data["own"]:
                own = about.data["own"][name]
                better = rewarded(own + self.settings.feedback * event.data["value"] * share)
                self.models[name].correct(x, left * (better - rewarded(own)))
                kept["reward"] += better - rewarded(own)

    def _recalibrated(self, event: Event) -> None:
        """Models that were fitted on a window take the place of those here."""
        self.faded = [[int(event.data["from"]), 0.0]]  # they know nothing from before it
        for name, arrays in event.data["models"].items():
            if name in self.models:
                model = self._model()
                model.matrix = np.array(arrays["matrix"])
                model.vector = np.array(arrays["vector"])
                model.count, model.squares = int(arrays["count"]), float(arrays["squares"])
                model.invert()
                model.theta = model.inverse @ model.vector
                self.models[name] = model

    # --- what is asked of it -----------------------------------------------------------------------------

    def price(self, tokens: float, seconds: float) -> float:
        """A cost in units of contribution."""
        return self.token_price * tokens + self.settings.second_price * seconds

    def costs(self) -> FloatArray:
        """Expected cost of each strategy; of one that never ran, the mean of the others."""
        means = [
            self.price(kept["tokens"] / kept["ran"], kept["seconds"] / kept["ran"]) if kept["ran"] else np.nan
            for kept in (self.tallies[name] for name in self.strategies)
        ]
        known = [cost for cost in means if np.isfinite(cost)]
        return np.array(
            [cost if np.isfinite(cost) else (sum(known) / len(known) if known else 0.0) for cost in means]
        )

    def overlap(self, means: FloatArray) -> FloatArray:
        """What every two strategies add twice: their learned share of the smaller contribution, (k, k)."""
        k = len(self.strategies)
        found = np.zeros((k, k))
        for i in range(k):
            for j in range(i):
                twice, smaller = self.overlaps.get(_pair(self.strategies[i], self.strategies[j]), (0.0, 0.0))
                # With nothing seen they are taken to find the same: a second one must show that it adds.
                share = (twice + _ADDED) / (smaller + _ADDED)
                found[i, j] = found[j, i] = min(1.0, max(-1.0, share)) * max(0.0, min(means[i], means[j]))
        return found

    def pruned(self, kind: str) -> NDArray[np.bool_]:
        """Strategies on probation for questions of a type: clearly not worth their cost there, so far."""
        return np.array([self._is_pruned(_key(kind, name)) for name in self.strategies], dtype=bool)

    def _is_pruned(self, key: str) -> bool:
        if key in self.forced:
            return True
        count, mean, squares = net(self.regions.get(key, region()), self.token_price)
        if count < self.settings.prune_after:
            return False
        error = np.sqrt(squares / (count - 1) / count)
        return bool(mean + self.settings.prune_confidence * error < 0)

    def similar(self, place: FloatArray) -> FloatArray:
        """What strategies added to the most similar past questions, shape (SLOTS,); 0 where unknown."""
        known = min(self.remembered, _REMEMBERED)
        if not known or self.places.shape[1] != place.size:
            return np.zeros(SLOTS)
        near = self.places[:known] @ place
        rows = np.argsort(-near, kind="stable")[: self.settings.neighbours]
        seen = self.past[rows]
        count = np.isfinite(seen).sum(axis=0)
        return np.where(count > 0, np.nansum(seen, axis=0) / np.maximum(count, 1), 0.0)

    def entropy(self) -> float:
        """Of the sets chosen lately, in bits; 0: always the same."""
        total = sum(self.sets.values())
        shares = [weight / total for weight in self.sets.values() if weight > 0] if total else []
        # Rebuilt from its events, the same log adds up the same shares in another order.
        return round(-math.fsum(share * math.log2(share) for share in shares), 12) + 0.0

    def convergence(self) -> float:
        """Share of the questions lately on which the most frequent set ran; 1: always the same."""
        return max(self.sets.values()) / sum(self.sets.values()) if self.sets else 0.0

    # --- snapshots ---------------------------------------------------------------------------------------

    def _shaping(self) -> dict[str, Any]:
        """Settings that the fold depends on; with others only the choices change."""
        return {name: getattr(self.settings, name) for name in _SHAPING}

    def dump(self) -> bytes:
        """All of it, without pickle; equal states give equal bytes."""
        arrays = {"places": self.places, "past": self.past}
        for name, model in self.models.items():
            arrays |= {f"model/{name}/{key}": value for key, value in model.arrays().items()}
        plain = {name: getattr(self, name) for name in _PLAIN}
        plain |= {"watch": self.watch.to_list(), "watch_base": self.watch_base.to_list()}
        plain |= {"form": _FORM, "settings": self._shaping(), "passages": self.passages.to_dict()}
        arrays["plain"] = np.frombuffer(json.dumps(plain, sort_keys=True).encode(), dtype=np.uint8)
        file = io.BytesIO()
        for name in sorted(arrays):
            label = name.encode()
            file.write(len(label).to_bytes(4, "little") + label)
            np.save(file, np.ascontiguousarray(arrays[name]), allow_pickle=False)
        return file.getvalue()

    def load(self, kept: bytes) -> bool:
        """Become what `dump` wrote; False, and nothing is done, where other settings or releases wrote it.

        Raises
        ------
        DataError
            If it is damaged.
        """
        file, arrays = io.BytesIO(kept), {}
        try:
            while size := file.read(4):
                name = file.read(int.from_bytes(size, "little")).decode()
                arrays[name] = np.load(file, allow_pickle=False)
            plain = json.loads(arrays["plain"].tobytes())
            if plain.get("form") != _FORM or plain["settings"] != self._shaping():
                return False
            for name in _PLAIN:
                setattr(self, name, plain[name])
            self.watch.set_list(plain["watch"])
            self.watch_base.set_list(plain["watch_base"])
            self.passages = PassageMemory(**plain["passages"])
            self.places, self.past = arrays["places"], arrays["past"]
            self.models = {
                name: Ridge.of(
                    {
                        part: arrays[f"model/{name}/{part}"]
                        for part in ("matrix", "inverse", "vector", "penalty", "numbers")
                    }
                )
                for name in self.strategies
            }
        except (KeyError, ValueError, OSError, EOFError) as error:
            raise DataError(f"the snapshot is damaged ({error}): run `mio-rag strategies rebuild`") from error
        return True


_FORM = 3  # of snapshots: those of another form are folded again
_SHAPING = (
    "dimensions", "ridge", "ridge_embedding", "refresh", "second_price", "feedback", "change_tolerance",
    "change_threshold", "forget",
)  # fmt: skip
_PLAIN = (
    "strategies", "seq", "questions", "since", "changes", "overlaps", "regions", "forced", "tallies", "sets",
    "regret", "remembered", "level", "faded",
)  # fmt: skip


def _key(kind: str, strategy: str) -> str:
    return f"{kind}/{strategy}"


def _pair(a: str, b: str) -> str:
    return "+".join(sorted((a, b)))


def _welford(kept: list[float], value: float) -> None:
    kept[0] += 1
    step = value - kept[1]
    kept[1] += step / kept[0]
    kept[2] += step * (value - kept[1])
