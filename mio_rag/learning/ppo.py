"""Proximal policy optimisation of a small network over the tree of decisions.

Clipped, with generalised advantages, an entropy bonus, a value head and minibatches [1]. Executors take
differing time: the discount over a step of cost t is gamma ** t, as in semi-Markov decision processes [2],
with t in the unit of costs. Training ends early where the reward on questions set aside no longer rises.

The network is a correction to what the regression thinks of every step, and begins at none [3]: what a table
tells by least squares need not be found again by trial. It counts only where its reward on the questions set
aside is clearly above the regression's, and at no price below it; otherwise the outcome is the regression,
learned from all questions. Few questions teach a network their noise.
torch trains; `mio_rag.learning.planner.Network` decides with numpy.

[1] Schulman et al., Proximal policy optimization algorithms, arXiv 1707.06347.
[2] Sutton, Precup, Singh, Between MDPs and semi-MDPs, Artificial Intelligence 112, 1999.
[3] Silver et al., Residual policy learning, arXiv 1812.06298.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from mio_rag.errors import InputError, require
from mio_rag.learning.planner import Network, Planner, QuestionFeatures, RegressionScorer, network_input
from mio_rag.learning.planner_regression import Experience, fit_regression
from mio_rag.learning.weights import Weights, read_weights, write_weights
from mio_rag.settings import Settings

# -- settings -----------------------------------------------------------------------------------------------


def _rising(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(float(value) for value in values))


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]


class PPOSettings(Settings):
    """How a network is trained."""

    alphas: Annotated[tuple[NotNegative, ...], Field(min_length=1), AfterValidator(_rising)] = (0.1,)
    """Prices; each episode draws one, and the network sees it."""
    hidden: Count = 64
    """Units of each hidden layer."""
    updates: Count = 150
    """Most rounds of collecting and learning."""
    episodes: Count = 512
    """Episodes of a round."""
    epochs: Count = 4
    """Times that a round's steps are learned from."""
    minibatch: Count = 256
    """Steps of a minibatch."""
    rate: Positive = 3e-3
    """Learning rate."""
    clip: Positive = 0.2
    """Largest change of a step's probability, as a ratio."""
    entropy: NotNegative = 0.02
    """Weight of the entropy bonus."""
    value: NotNegative = 0.5
    """Weight of the value loss."""
    gamma: Share = 0.995
    """Discount over a cost of 1."""
    lam: Share = 0.95
    """Discount of advantages."""
    patience: Count = 40
    """Rounds without a better held-out reward after which training ends."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the questions that rewards are checked on."""
    decay: NotNegative = 0.1
    """Weight decay."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of everything drawn."""
    start: Literal["regression", "nothing"] = "regression"
    """What training begins with: the regression's decisions, or every workflow alike."""


# -- training -----------------------------------------------------------------------------------------------

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_KIND, _VERSION = "planner training", 1
_CHANCE = 0.005  # of taking a network that is no better for one that is; small, since every round looks again


@dataclass(frozen=True, eq=False)
class Trained:
    """A network, with its learning curve."""

    network: Network
    curve: list[tuple[int, float, float, float]] = field(default_factory=list)
    best: float = -math.inf


def train_ppo(
    experience: Experience,
    settings: PPOSettings | None = None,
    *,
    checkpoint: Path | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Trained:
    """Train a network on a table.

    checkpoint: written every ten rounds; a later call with the same settings and table goes on there, and
        comes to the same network as one that was never interrupted.
    progress: called with the round and the held-out reward.

    Raises `InputError` for fewer than 10 questions, or a checkpoint of another training; `MissingExtraError`
    without torch.
    """
    if len(experience) < 10:
        raise InputError(f"{len(experience)} questions are too few to learn from: give at least 10")
    require("torch", "retrieval", "training by proximal policy optimisation")
    trainer = _Trainer(experience, settings or PPOSettings())
    if checkpoint is not None and checkpoint.exists():
        trainer.resume(checkpoint)
    while not trainer.finished:
        held = trainer.round()
        if progress is not None:
            progress(trainer.update, held)
        if checkpoint is not None and (trainer.update % 10 == 0 or trainer.finished):
            trainer.keep(checkpoint)
    return Trained(trainer.best_network, trainer.curve, trainer.best)


#: Steps of all episodes of a round: array name -> one row for each step.
_Batch = dict[str, NDArray[Any]]


class _Trainer:
    """The state of a training; everything that later rounds depend on can be kept and read."""

    def __init__(self, experience: Experience, settings: PPOSettings) -> None:
        import torch

        self.settings, self.tree, self.torch = settings, experience.tree, torch
        self.rng = np.random.default_rng(settings.seed)
        order = np.random.default_rng(settings.seed).permutation(len(experience))
        held = int(settings.held_out * len(experience))
        # Without questions set aside the reward of the training questions decides when to end.
        self.held = experience.where(order[:held]) if held else experience
        self.train = experience.where(order[held:]) if held else experience
        p, d = len(self.tree.branches), experience.observed.shape[2]
        self.children = np.zeros((p, p), dtype=bool)
        for branch in self.tree.branches:
            self.children[branch.place, branch.children] = True
        self.ends = np.array([-1 if b.ends is None else b.ends for b in self.tree.branches])
        wide = settings.hidden
        draw = np.random.default_rng([settings.seed, 1])
        self.parameters: list[Any] = []
        # The policy head begins near zero: every action is about as likely at first.
        for into, out, size in ((d + p + 1, wide, 1.0), (wide, wide, 1.0), (wide, p, 0.01), (wide, 1, 1.0)):
            weights = draw.normal(size=(into, out)) * size / math.sqrt(into)
            self.parameters += [self._tensor(weights), self._tensor(np.zeros(out))]
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=settings.rate, weight_decay=settings.decay)
        self.prior = None
        if settings.start == "regression":
            self.prior = RegressionScorer(fit_regression(self.train))
            rival = self.network(self._still())
            self.best_network = Network(self._still(), RegressionScorer(fit_regression(experience)))
        else:
            rival = self.best_network = Network(self._fixed(experience))
        # What a step of each training question is worth by the regression, at each price.
        self.prior_logits = np.zeros((len(settings.alphas), len(self.train), p))
        for k, alpha in enumerate(settings.alphas):
            for place in self.tree.decisions if self.prior else ():
                found = rival.prior_logits(self.tree, self.train.observed[:, place], place, alpha)
                self.prior_logits[k][:, self.tree.branches[place].children] = found
        self.rival = self.held_rewards(rival)
        self.update, self.best, self.best_at = 0, float(self.rival.mean()), 0
        self.curve: list[tuple[int, float, float, float]] = []

    def _tensor(self, array: FloatArray) -> Any:
        return self.torch.tensor(np.asarray(array), dtype=self.torch.float64)

    @property
    def finished(self) -> bool:
        return self.update >= self.settings.updates or self.update - self.best_at >= self.settings.patience

    def layers(self) -> list[tuple[FloatArray, FloatArray]]:
        """The policy, without the value head."""
        arrays = [parameter.detach().numpy().copy() for parameter in self.parameters[:6]]
        return [(arrays[0], arrays[1]), (arrays[2], arrays[3]), (arrays[4], arrays[5])]

    def network(self, layers: list[tuple[FloatArray, FloatArray]]) -> Network:
        """One that corrects the regression learned from the training questions."""
        return Network(layers, self.prior)

    def forward(self, x: Any) -> tuple[Any, Any]:
        """Logits, the regression's share apart, and values."""
        w1, b1, w2, b2, wp, bp, wv, bv = self.parameters
        hidden = self.torch.tanh(self.torch.tanh(x @ w1 + b1) @ w2 + b2)
        return hidden @ wp + bp, (hidden @ wv + bv)[:, 0]

    def round(self) -> float:
        """Collect episodes, learn from them, check on the questions set aside."""
        batch, reward = self.collect()
        entropy = self.learn(batch)
        self.update += 1
        network = self.network(self.layers())
        rewards = self.held_rewards(network)
        held = float(rewards.mean())
        if held > self.best + 1e-6 and _clearly_above(rewards - self.rival):
            self.best, self.best_at, self.best_network = held, self.update, network
        self.curve.append((self.update, reward, held, entropy))
        return held

    def _still(self) -> list[tuple[FloatArray, FloatArray]]:
        """Layers that correct nothing."""
        return [(np.zeros_like(weights), np.zeros_like(bias)) for weights, bias in self.layers()]

    def _fixed(self, experience: Experience) -> list[tuple[FloatArray, FloatArray]]:
        """The workflow of highest mean reward, as a network that looks at nothing."""
        rewards = experience.quality - np.mean(self.settings.alphas) * experience.cost
        leaf = int(np.argmax(rewards.mean(axis=0)))
        layers = self._still()
        for branch in self.tree.branches:
            if leaf in branch.leaves:
                layers[-1][1][branch.place] = 10.0
        return layers

    def held_rewards(self, network: Network) -> FloatArray:
        """Rewards of the likeliest actions on the questions set aside, shape (prices, questions)."""
        none = np.zeros(0)
        features = QuestionFeatures(none, np.zeros((0, 0)), none, none)
        planner = Planner(self.tree, features, network, "ppo", 1.0)
        return np.array(
            [self.held.reward(planner.replay(self.held, alpha), alpha) for alpha in self.settings.alphas]
        )

    def collect(self) -> tuple[_Batch, float]:
        """Episodes by the policy as it is, all at once, step by step."""
        s, n = self.settings, self.settings.episodes
        question = self.rng.integers(len(self.train), size=n)
        price = self.rng.integers(len(s.alphas), size=n)
        alpha = np.array(s.alphas)[price]
        at = np.zeros(n, dtype=np.intp)
        steps: list[dict[str, Any]] = []
        live = np.arange(n)
        total = np.zeros(n)
        while len(live):
            here, asked = at[live], question[live]
            mask = self.children[here]
            decided = mask.sum(axis=1) > 1
            x = network_input(self.tree, self.train.observed[asked, here], here, alpha[live])
            with self.torch.no_grad():
                logits, value = self.forward(self._tensor(x))
            prior = self.prior_logits[price[live], asked]
            logits, value = np.where(mask, logits.numpy() + prior, -np.inf), value.numpy()
            shifted = logits - logits.max(axis=1, keepdims=True)
            logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            action = np.argmax(logs + self.rng.gumbel(size=logs.shape), axis=1)
            took = self.train.step_cost[asked, action]
            reward = -alpha[live] * took
            ended = self.ends[action]
            over = ended >= 0
            reward[over] += self.train.quality[asked[over], ended[over]]
            total[live] += reward
            steps.append(
                {"live": live, "x": x, "prior": prior, "mask": mask, "action": action, "value": value,
                 "reward": reward,
                 "logprob": logs[np.arange(len(live)), action], "over": over, "decided": decided,
                 "discount": s.gamma ** np.maximum(took, 0.0)}
            )  # fmt: skip
            at[live] = action
            live = live[~over]
        return self._advantages(steps, n), float(total.mean())

    def _advantages(self, steps: list[dict[str, Any]], n: int) -> _Batch:
        """Generalised advantages from the end backwards; places with nothing to decide teach nothing."""
        following, next_value = np.zeros(n), np.zeros(n)
        for step in reversed(steps):
            live, on = step["live"], ~step["over"]
            later = step["discount"] * on
            delta = step["reward"] + later * next_value[live] - step["value"]
            step["advantage"] = delta + later * self.settings.lam * following[live]
            following[live], next_value[live] = step["advantage"], step["value"]
        names = ("x", "prior", "mask", "action", "logprob", "advantage", "value")
        kept = np.concatenate([step["decided"] for step in steps])
        return {name: np.concatenate([step[name] for step in steps])[kept] for name in names}

    def learn(self, batch: _Batch) -> float:
        """Several epochs of clipped steps over minibatches; the entropy that is left."""
        torch, s, n, advantage = self.torch, self.settings, len(batch["action"]), batch["advantage"]
        x, old, prior = (self._tensor(batch[name]) for name in ("x", "logprob", "prior"))
        gain = self._tensor((advantage - advantage.mean()) / (advantage.std() + 1e-8))
        target = self._tensor(advantage + batch["value"])
        closed, action = torch.tensor(~batch["mask"]), torch.tensor(batch["action"])
        left = 1 - self.update / s.updates
        for group in self.optimizer.param_groups:
            group["lr"] = s.rate * max(left, 0.05)
        entropies = []
        for _ in range(s.epochs):
            order = self.rng.permutation(n)
            for start in range(0, n, s.minibatch):
                rows = torch.tensor(order[start : start + s.minibatch])
                logits, value = self.forward(x[rows])
                logits = logits + prior[rows]
                logs = torch.log_softmax(logits.masked_fill(closed[rows], -1e9), dim=1)
                ratio = torch.exp(logs.gather(1, action[rows, None])[:, 0] - old[rows])
                clipped = torch.clamp(ratio, 1 - s.clip, 1 + s.clip)
                surrogate = torch.minimum(ratio * gain[rows], clipped * gain[rows]).mean()
                entropy = -(logs.exp() * logs.masked_fill(closed[rows], 0)).sum(dim=1).mean()
                error = ((value - target[rows]) ** 2).mean()
                loss = -surrogate - s.entropy * left * entropy + s.value * error
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
                self.optimizer.step()
                entropies.append(float(entropy.detach()))
        return float(np.mean(entropies))

    def keep(self, path: Path) -> None:
        """Write everything that later rounds depend on."""
        state = self.optimizer.state_dict()["state"]
        arrays: dict[str, NDArray[Any]] = {}
        for k, parameter in enumerate(self.parameters):
            arrays[f"parameter.{k}"] = parameter.detach().numpy().copy()
            for name in ("exp_avg", "exp_avg_sq", "step"):
                arrays[f"{name}.{k}"] = np.atleast_1d(state[k][name].numpy().copy())
        for k, (weights, bias) in enumerate(self.best_network.layers):
            arrays[f"best.{k}.weights"], arrays[f"best.{k}.bias"] = weights, bias
        about = {
            "settings": self.settings.to_dict(), "data": self._data(), "update": self.update,
            "best": self.best, "best_at": self.best_at, "curve": self.curve,
            "rng": self.rng.bit_generator.state,
        }  # fmt: skip
        write_weights(Weights(_KIND, _VERSION, arrays, about), path)

    def _data(self) -> str:
        digest = sha256()
        for part in (self.train, self.held):
            for array in (part.observed, part.step_cost, part.quality):
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def resume(self, path: Path) -> None:
        """Go on from what was kept."""
        given = read_weights(path, _KIND, _VERSION)
        about = given.about
        same = json.loads(json.dumps(self.settings.to_dict()))
        if about["settings"] != same or about["data"] != self._data():
            raise InputError(
                f"'{path}' was kept by a training with other settings or another table: remove it, or name "
                "another file"
            )
        tensors = {name: self.torch.tensor(array) for name, array in given.arrays.items()}
        state = self.optimizer.state_dict()
        for k, parameter in enumerate(self.parameters):
            parameter.data = tensors[f"parameter.{k}"]
            moments = {name: tensors[f"{name}.{k}"] for name in ("exp_avg", "exp_avg_sq")}
            state["state"][k] = {**moments, "step": tensors[f"step.{k}"][0]}
        self.optimizer.load_state_dict(state)
        self.update, self.best, self.best_at = about["update"], about["best"], about["best_at"]
        self.curve = [tuple(row) for row in about["curve"]]
        self.rng.bit_generator.state = about["rng"]
        if self.best_at:  # otherwise it is where training set out
            self.best_network = self.network(
                [(given.arrays[f"best.{k}.weights"], given.arrays[f"best.{k}.bias"]) for k in range(3)]
            )


def _clearly_above(gain: FloatArray) -> bool:
    """Whether gains of shape (prices, questions) are above 0 beyond chance, and at no price below."""
    from scipy.stats import ttest_1samp

    each = gain.mean(axis=0)
    if len(each) < 2 or (gain.mean(axis=1) < -1e-12).any() or each.mean() <= 0:
        return False
    if np.ptp(each) < 1e-12:
        return True
    return bool(ttest_1samp(each, 0.0, alternative="greater").pvalue < _CHANCE)
