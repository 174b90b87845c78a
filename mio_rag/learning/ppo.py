"""Proximal policy optimisation of a small network over the tree of decisions.

Each episode draws a question and a price; the table of outcomes tells what every step gives and costs, so no
model is asked. PPO clips the ratio of probabilities [1]; advantages are generalised. The discount of a step
of cost t is gamma ** t, as in semi-Markov decision processes [2].

The network is a correction to what the regression thinks of every step, and begins at none [3]. It counts
only where its reward on questions set aside is clearly above the regression's, and at no price below it;
otherwise the outcome is the regression, learned from all questions. From nothing, as published [4], there is
no regression: every step is as likely at first, and the best network on the questions set aside is taken.
A format penalty lets the network choose among all steps, those too that make no workflow, and charges these.
torch trains; `mio_rag.learning.planner.Network` decides with numpy.

[1] Schulman et al., Proximal policy optimization algorithms, arXiv 1707.06347.
[2] Sutton, Precup, Singh, Between MDPs and semi-MDPs, Artificial Intelligence 112, 1999.
[3] Silver et al., Residual policy learning, arXiv 1812.06298.
[4] MAO-ARAG: multi-agent orchestration for adaptive retrieval-augmented generation, arXiv 2508.01005.
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
from mio_rag.learning.planner_regression import LEAST, Experience, fit_regression, no_regression
from mio_rag.settings import Settings

FloatArray = NDArray[np.float64]

_CHANCE = 0.005  # of taking a network that is no better for one that is; small, since every round looks again

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(ge=0)]
Prices = Annotated[
    tuple[Annotated[float, Field(ge=0)], ...],
    Field(min_length=1),
    AfterValidator(lambda values: tuple(sorted(values))),
]


class PPOSettings(Settings):
    """How a network is trained."""

    alphas: Prices = (0.1,)
    """Prices; each episode draws one, and the network sees it."""
    hidden: Count = 64
    """Units of each hidden layer."""
    updates: Count = 150
    """Most rounds of collecting and learning."""
    episodes: Count = 512
    """Episodes of a round."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the questions that rewards are checked on."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of everything drawn."""
    start: Literal["regression", "nothing"] = "regression"
    """What it begins at: the regression, or nothing."""
    format_penalty: Positive = 0.0
    """Charged for a step that makes no workflow; 0: only steps that make one can be chosen."""
    epochs: Count = 4
    """Times that a round's steps are learned from."""
    minibatch: Count = 256
    """Steps that are learned from at once."""
    rate: Annotated[float, Field(gt=0)] = 3e-3
    """Of learning."""
    decay: Positive = 0.1
    """Of weights."""
    clip: Annotated[float, Field(gt=0)] = 0.2
    """Largest change of a step's probability, as a ratio."""
    value_clip: Positive = 0.0
    """Largest change of a value; 0: any."""
    gradient: Annotated[float, Field(gt=0)] = 0.5
    """Largest norm of a gradient."""
    entropy: Positive = 0.02
    """Weight of the entropy bonus."""
    value: Positive = 0.5
    """Weight of the value loss."""
    kl: Positive = 0.0
    """Weight of the distance from the network as it began, in the reward."""
    discount: Annotated[float, Field(gt=0, le=1)] = 0.995
    """Of rewards, over a cost of 1."""
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Lambda of advantages."""
    annealed: bool = True
    """Whether rate and entropy bonus fall to nothing."""
    patience: Count = 40
    """Rounds without a better reward on the questions set aside after which training ends."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A network and its best reward on the questions set aside.

    curve: (round, reward, reward on the questions set aside, entropy, share of episodes that ended in no
        workflow).
    """

    network: Network
    curve: list[tuple[int, float, float, float, float]] = field(default_factory=list)
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
    require("torch", "torch", "training by proximal policy optimisation")
    how = settings or PPOSettings()
    trainer = _Trainer(experience, how)
    still = [(np.zeros_like(weights), np.zeros_like(bias)) for weights, bias in trainer.layers()]
    rival = trainer.rewards(Network(still, trainer.prior))
    learns = how.start == "regression"
    whole = fit_regression(experience) if learns else trainer.prior
    network, best, best_at = Network(still, whole), float(rival.mean()), 0
    curve = []
    for update in range(1, how.updates + 1):
        if update - 1 - best_at >= how.patience:
            break
        batch, reward, invalid = trainer.collect()
        entropy = trainer.learn(batch, 1 - (update - 1) / how.updates if how.annealed else 1.0)
        tried = Network(trainer.layers(), trainer.prior)
        rewards = trainer.rewards(tried)
        held = float(rewards.mean())
        if held > best + 1e-6 and (not learns or _clearly_above(rewards - rival)):
            best, best_at, network = held, update, tried
        curve.append((update, reward, held, entropy, invalid))
        if progress is not None:
            progress(update, held)
    return Trained(network, curve, best)


class _Trainer:
    """The network that is trained, on the questions that are not set aside."""

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
        wide, draw = settings.hidden, np.random.default_rng([settings.seed, 1])
        self.parameters: list[Any] = []
        # The policy head begins near zero: every action is about as likely at first.
        for into, out, size in ((d + p + 1, wide, 1.0), (wide, wide, 1.0), (wide, p, 0.01), (wide, 1, 1.0)):
            weights = draw.normal(size=(into, out)) * size / math.sqrt(into)
            self.parameters += [self._tensor(weights), self._tensor(np.zeros(out))]
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=settings.rate, weight_decay=settings.decay)
        self.first = [parameter.detach().clone() for parameter in self.parameters]
        learns = settings.start == "regression"
        self.prior = fit_regression(self.train) if learns else no_regression(experience)
        # What a step of each training question is worth by the regression, at each price.
        self.prior_logits = np.zeros((len(settings.alphas), len(self.train), p))
        for k, alpha in enumerate(settings.alphas):
            for place in self.tree.decisions:
                found = prior_logits(self.prior, self.tree, self.train.observed[:, place], place, alpha)
                self.prior_logits[k][:, self.tree.branches[place].children] = found

    def _tensor(self, array: FloatArray) -> Any:
        return self.torch.tensor(np.asarray(array), dtype=self.torch.float64)

    def layers(self) -> list[tuple[FloatArray, FloatArray]]:
        """The policy, without the value head."""
        arrays = [parameter.detach().numpy().copy() for parameter in self.parameters[:6]]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def forward(self, x: Any, parameters: Any = None) -> tuple[Any, Any]:
        """Logits, the regression's share apart, and values."""
        w1, b1, w2, b2, wp, bp, wv, bv = parameters or self.parameters
        hidden = self.torch.tanh(self.torch.tanh(x @ w1 + b1) @ w2 + b2)
        return hidden @ wp + bp, (hidden @ wv + bv)[:, 0]

    def rewards(self, network: Network) -> FloatArray:
        """Rewards of the likeliest actions on the questions set aside, shape (prices, questions)."""
        none, held = np.zeros(0), self.held
        planner = Planner(self.tree, QuestionFeatures(none, none, none, none), network, "ppo", 1.0)
        alphas = self.settings.alphas
        return np.array([held.reward(planner.choices(held.observed, alpha), alpha) for alpha in alphas])

    def collect(self) -> tuple[dict[str, NDArray[Any]], float, float]:
        """Episodes by the policy as it is, all at once.

        Returns a row for each step, the mean reward, and the share that ended in no workflow.
        """
        s, n = self.settings, self.settings.episodes
        question = self.rng.integers(len(self.train), size=n)
        price = self.rng.integers(len(s.alphas), size=n)
        alpha = np.array(s.alphas)[price]
        at, live, total, invalid = np.zeros(n, dtype=np.intp), np.arange(n), np.zeros(n), 0
        steps: list[dict[str, Any]] = []
        while len(live):
            here, asked = at[live], question[live]
            possible = self.children[here]
            mask = np.ones_like(possible) if s.format_penalty else possible
            x = network_input(self.tree, self.train.observed[asked, here], here, alpha[live])
            with self.torch.no_grad():
                logits, value = self.forward(self._tensor(x))
            prior = self.prior_logits[price[live], asked]
            logits, value = np.where(mask, logits.numpy() + prior, -np.inf), value.numpy()
            shifted = logits - logits.max(axis=1, keepdims=True)
            logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            action = np.argmax(logs + self.rng.gumbel(size=logs.shape), axis=1)
            wrong = ~possible[np.arange(len(live)), action]
            took = np.where(wrong, 0.0, self.train.step_cost[asked, action])
            reward, ended = np.where(wrong, -s.format_penalty, -alpha[live] * took), self.ends[action]
            done = (ended >= 0) & ~wrong
            over = done | wrong
            reward[done] += self.train.quality[asked[done], ended[done]]
            invalid += int(wrong.sum())
            total[live] += reward
            if s.kl:
                with self.torch.no_grad():
                    before = self.forward(self._tensor(x), self.first)[0].numpy() + prior
                before = np.where(mask, before, -np.inf)
                peak = before.max(axis=1, keepdims=True)
                before = before - peak - np.log(np.exp(before - peak).sum(axis=1, keepdims=True))
                rows = np.arange(len(live))
                reward = reward - s.kl * (logs[rows, action] - before[rows, action])
            steps.append(
                {"live": live, "x": x, "prior": prior, "mask": mask, "action": action, "value": value,
                 "reward": reward, "logprob": logs[np.arange(len(live)), action], "over": over,
                 "discount": s.discount ** np.maximum(took, 0.0)}
            )  # fmt: skip
            at[live] = action
            live = live[~over]
        # Generalised advantages from the end backwards.
        following, next_value = np.zeros(n), np.zeros(n)
        for step in reversed(steps):
            live, later = step["live"], step["discount"] * ~step["over"]
            delta = step["reward"] + later * next_value[live] - step["value"]
            step["advantage"] = delta + later * s.smoothing * following[live]
            following[live], next_value[live] = step["advantage"], step["value"]
        names = ("x", "prior", "mask", "action", "logprob", "advantage", "value")
        batch = {name: np.concatenate([step[name] for step in steps]) for name in names}
        decided = batch["mask"].sum(axis=1) > 1  # places with nothing to decide teach nothing
        steps_of = {name: array[decided] for name, array in batch.items()}
        return steps_of, float(total.mean()), invalid / n

    def learn(self, batch: dict[str, NDArray[Any]], left: float) -> float:
        """Several epochs of clipped steps over minibatches; return the entropy that is left.

        left: share of the rounds still to come.
        """
        torch, s, n, advantage = self.torch, self.settings, len(batch["action"]), batch["advantage"]
        x, old, prior, valued = (self._tensor(batch[name]) for name in ("x", "logprob", "prior", "value"))
        gain = self._tensor((advantage - advantage.mean()) / (advantage.std() + 1e-8))
        target = self._tensor(advantage + batch["value"])
        closed, action = torch.tensor(~batch["mask"]), torch.tensor(batch["action"])
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
                error = (value - target[rows]) ** 2
                if s.value_clip:
                    near = valued[rows] + torch.clamp(value - valued[rows], -s.value_clip, s.value_clip)
                    error = torch.maximum(error, (near - target[rows]) ** 2)
                loss = -surrogate - s.entropy * left * entropy + s.value * error.mean()
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.parameters, s.gradient)
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
