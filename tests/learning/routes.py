"""Tables of questions that say by themselves which tier they need."""

import numpy as np

from mio_rag.learning.outcomes import Outcomes
from mio_rag.learning.router import LABEL, WORKED, Table
from mio_rag.learning.router_model import SEARCH
from mio_rag.session.tiers import Tier

TIERS = (
    Tier(name="easy", depth=1, context=100, new_tokens=8),
    Tier(name="medium", depth=2, context=200, new_tokens=16),
    Tier(name="hard", depth=4, context=400, new_tokens=24),
)
WORDS = ("when where was", "who which is", "compare both of them")
TOKENS = (100.0, 250.0, 500.0)


def table(n: int = 90, noise: float = 0.3, seed: int = 0, embedder: str = "tfidf:made") -> Table:
    """n questions, a third for each tier; what a tier answers, all dearer ones do."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    vectors = np.eye(8)[labels] + noise * rng.standard_normal((n, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    search = rng.standard_normal((n, len(SEARCH)))
    search[:, 0] = np.linspace(0.1, 0.9, n)
    texts = [f"{WORDS[label]} thing{k}" for k, label in enumerate(labels)]
    worked = (labels[:, None] <= np.arange(3)).astype(float)
    outcomes = Outcomes(
        tuple(f"q{k}" for k in range(n)),
        tuple(tier.name for tier in TIERS),
        {
            WORKED: worked,
            LABEL: np.eye(3)[labels],
            "prompt_tokens": np.tile(TOKENS, (n, 1)),
            "completion_tokens": np.full((n, 3), 10.0),
            "total_seconds": np.tile([0.1, 0.2, 0.3], (n, 1)),
        },
        tuple(texts),
        tuple("made" for _ in range(n)),
        {
            "tiers": [tier.to_dict() for tier in TIERS],
            "embedder": embedder,
            "search": list(SEARCH),
            "by": "evidence",
            "generator": None,
        },
        {"embedding": vectors, "search": search},
    )
    return Table(outcomes)
