"""Proximal policy optimisation of a small network over the tree of decisions.

Clipped, with generalised advantages, an entropy bonus, a value head and minibatches [1]. Steps take
differing time: the discount over a step of cost t is gamma ** t, as in semi-Markov decision processes [2],
with t in the unit of costs. Training ends early where the reward on questions set aside no longer rises.

The network is a correction to what the regression thinks of every step, and begins at none [3]: what a table
shows by least squares need not be found again by trial. It counts only where its reward on the questions set
aside is clearly above the regression's, and at no price below it; otherwise the outcome is the regression,
learned from all questions. Few questions teach a network their noise.
torch trains; `mio_rag.learning.planner.Network` decides with numpy.

[1] Schulman et al., Proximal policy optimization algorithms, arXiv 1707.06347.
[2] Sutton, Precup, Singh, Between MDPs and semi-MDPs, Artificial Intelligence 112, 1999.
[3] Silver et al., Residual policy learning, arXiv 1812.06298.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from mio_rag.errors import InputError, require
from mio_rag.learning.planner import Network, Planner, QuestionFeatures, network_input, prior_logits
from mio_rag.learning.planner_regression import LEAST, Experience, fit_regression
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
Layers = list[tuple[FloatArray, FloatArray]]
Curve = list[tuple[int, float, float, float]]
#: Steps of all episodes of a round: array name -> one row for each step.
_Batch = dict[str, NDArray[Any]]

_CHANCE = 0.005  # of taking a network that is no better for one that is; small, since every round looks again


@dataclass(frozen=True, eq=False)
class Trained:
    """A network, its learning curve (round, reward, held-out reward, entropy) and best held-out reward."""

    network: Network
    curve: Curve = field(default_factory=list)
    best: float = -math.inf


def train_ppo(
    experience: Experience,
    settings: PPOSettings | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Trained:
    """Train a network on a table.

    progress: called with the round and the held-out reward.

    Raises `InputError` for fewer than 10 questions; `MissingExtraError` without torch.
    """
    if len(experience) < LEAST:
        raise InputError(f"{len(experience)} questions are too few to learn from: give at least {LEAST}")
    require("torch", "retrieval", "training by proximal policy optimisation")
    trainer = _Trainer(experience, settings or PPOSettings())
    while not trainer.finished:
        held = trainer.round()
        if progress is not None:
            progress(trainer.update, held)
    return Trained(trainer.best_network, trainer.curve, trainer.best)


class _Trainer:
    """The state of a training."""

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
        still = [(np.zeros_like(weights), np.zeros_like(bias)) for weights, bias in self.layers()]
        self.prior = None
        if settings.start == "regression":
            self.prior = fit_regression(self.train)
            rival, self.best_network = Network(still, self.prior), Network(still, fit_regression(experience))
        else:
            rival = self.best_network = Network(self._fixed(experience, still))
        # What a step of each training question is worth by the regression, at each price.
        self.prior_logits = np.zeros((len(settings.alphas), len(self.train), p))
        for k, alpha in enumerate(settings.alphas):
            for place in self.tree.decisions:
                found = prior_logits(self.prior, self.tree, self.train.observed[:, place], place, alpha)
                self.prior_logits[k][:, self.tree.branches[place].children] = found
        self.rival = self.held_rewards(rival)
        self.update, self.best, self.best_at = 0, float(self.rival.mean()), 0
        self.curve: Curve = []

    def _tensor(self, array: FloatArray) -> Any:
        return self.torch.tensor(np.asarray(array), dtype=self.torch.float64)

    def _fixed(self, experience: Experience, still: Layers) -> Layers:
        """The workflow of highest mean reward, as a network that looks at nothing."""
        rewards = experience.quality - np.mean(self.settings.alphas) * experience.cost
        leaf, bias = int(np.argmax(rewards.mean(axis=0))), still[-1][1].copy()
        bias[[branch.place for branch in self.tree.branches if leaf in branch.leaves]] = 10.0
        return [*still[:-1], (still[-1][0], bias)]

    @property
    def finished(self) -> bool:
        return self.update >= self.settings.updates or self.update - self.best_at >= self.settings.patience

    def layers(self) -> Layers:
        """The policy, without the value head."""
        arrays = [parameter.detach().numpy().copy() for parameter in self.parameters[:6]]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

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
        network = Network(self.layers(), self.prior)
        rewards = self.held_rewards(network)
        held = float(rewards.mean())
        if held > self.best + 1e-6 and _clearly_above(rewards - self.rival):
            self.best, self.best_at, self.best_network = held, self.update, network
        self.curve.append((self.update, reward, held, entropy))
        return held

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
                 "reward": reward, "logprob": logs[np.arange(len(live)), action], "over": over,
                 "discount": s.gamma ** np.maximum(took, 0.0)}
            )  # fmt: skip
            at[live] = action
            live = live[~over]
        return self._advantages(steps, n), float(total.mean())

    def _advantages(self, steps: list[dict[str, Any]], n: int) -> _Batch:
        """Generalised advantages from the end backwards; places with nothing to decide teach nothing."""
        following, next_value = np.zeros(n), np.zeros(n)
        for step in reversed(steps):
            live, later = step["live"], step["discount"] * ~step["over"]
            delta = step["reward"] + later * next_value[live] - step["value"]
            step["advantage"] = delta + later * self.settings.lam * following[live]
            following[live], next_value[live] = step["advantage"], step["value"]
        names = ("x", "prior", "mask", "action", "logprob", "advantage", "value")
        batch = {name: np.concatenate([step[name] for step in steps]) for name in names}
        decided = batch["mask"].sum(axis=1) > 1
        return {name: array[decided] for name, array in batch.items()}

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


def _clearly_above(gain: FloatArray) -> bool:
    """Whether gains of shape (prices, questions) are above 0 beyond chance, and at no price below."""
    from scipy.stats import ttest_1samp

    each = gain.mean(axis=0)
    if len(each) < 2 or (gain.mean(axis=1) < -1e-12).any() or each.mean() <= 0:
        return False
    if np.ptp(each) < 1e-12:
        return True
    return bool(ttest_1samp(each, 0.0, alternative="greater").pvalue < _CHANCE)
