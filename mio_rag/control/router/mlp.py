"""The published network, trained exactly as published; torch is needed here alone.

384 -> 256 -> ReLU -> dropout .3 -> 64 -> ReLU -> tiers, on L2-normalised question embeddings. Cross-entropy
weighted by class, N / (C N_c); AdamW at 1e-3 with weight decay 1e-4; batches of 64; 60 epochs; 85 % of the
questions to learn from, and of all epochs the one that is right most often on the other 15 %.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, require

__all__ = ["History", "train_mlp"]

FloatArray = NDArray[np.float64]

_HIDDEN = (256, 64)
_DROPOUT = 0.3
_RATE, _DECAY = 1e-3, 1e-4
_BATCH, _EPOCHS = 64, 60
_HELD_OUT = 0.15
_LEAST = 10  # questions, so that there is something on both sides


@dataclass
class History:
    """A curve of training: a number for each epoch.

    Parameters
    ----------
    loss, held_out_loss : list of float
        Weighted cross-entropy while learning, and on the held-out questions.
    accuracy : list of float
        Share of the held-out questions whose tier is right.
    best : int
        The epoch that is kept, from 0.
    """

    loss: list[float] = field(default_factory=list)
    held_out_loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    best: int = 0


def train_mlp(
    rows: FloatArray, labels: NDArray[np.intp], tiers: int, seed: int = 0
) -> tuple[dict[str, NDArray[Any]], History]:
    """Train the network.

    Parameters
    ----------
    rows : array, shape (n, d)
        Of length 1 where they are embeddings; n >= 10.
    labels : array of int, shape (n,)
        From 0 to tiers - 1.

    Returns
    -------
    (dict, History)
        weights_0 .. bias_2 as `mio_rag.control.router.model` reads them, and the curve.

    Raises
    ------
    InputError
        For fewer than 10 questions.
    MissingExtraError
        Without torch.
    """
    if len(rows) < _LEAST:
        raise InputError(f"{len(rows)} questions are too few to train the network: give at least {_LEAST}")
    torch: Any = require("torch", "retrieval", "training the published router")
    torch.manual_seed(seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    held = max(1, round(_HELD_OUT * len(rows)))
    x, y = torch.tensor(rows, dtype=torch.float32), torch.tensor(labels, dtype=torch.long)
    kept_out, learned = order[:held], order[held:]
    counts = np.bincount(labels[learned], minlength=tiers)
    # A class that nobody needs has no questions to weigh.
    weights = len(learned) / (tiers * np.maximum(counts, 1))
    nn = torch.nn
    network = nn.Sequential(
        nn.Linear(rows.shape[1], _HIDDEN[0]),
        nn.ReLU(),
        nn.Dropout(_DROPOUT),
        nn.Linear(_HIDDEN[0], _HIDDEN[1]),
        nn.ReLU(),
        nn.Linear(_HIDDEN[1], tiers),
    )
    loss_of = nn.CrossEntropyLoss(weight=torch.tensor(weights, dtype=torch.float32))
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    history, best = History(), None
    x_kept, y_kept, x, y = x[kept_out], y[kept_out], x[learned], y[learned]
    shuffle = torch.Generator().manual_seed(seed)
    for epoch in range(_EPOCHS):
        network.train()
        losses = []
        for part in torch.randperm(len(learned), generator=shuffle).split(_BATCH):
            optimizer.zero_grad()
            loss = loss_of(network(x[part]), y[part])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()) * len(part))
        network.eval()
        with torch.no_grad():
            said = network(x_kept)
            history.held_out_loss.append(float(loss_of(said, y_kept)))
            history.accuracy.append(float((said.argmax(1) == y_kept).float().mean()))
        history.loss.append(sum(losses) / len(learned))
        if best is None or history.accuracy[-1] > history.accuracy[history.best]:
            history.best = epoch
            best = [p.detach().clone() for p in network.parameters()]
    assert best is not None
    arrays = {
        f"{name}_{layer}": best[2 * layer + side].numpy().T.copy()
        for layer in range(3)
        for side, name in enumerate(("weights", "bias"))
    }
    return arrays, history
