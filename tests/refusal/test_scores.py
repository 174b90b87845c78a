"""SQuAD 2.0's measures by hand, and the best threshold against trying all of them."""

import numpy as np
import pytest

from mio_rag.measures import token_f1
from mio_rag.refusal.fitting import best_threshold, squad_scores

ACCEPTED = [("the Po", "Po"), ("red wine",), (), (), ("Ada",)]
ANSWERS = ["po", "wine", "Arno", "", "Bert"]
CHANCES = [0.1, 0.6, 0.7, 0.2, 0.9]


def test_scores_by_hand() -> None:
    found = squad_scores(ACCEPTED, ANSWERS, CHANCES, 0.65)
    # refused: the third and fifth by probability, the fourth by its blank answer
    assert found.has_answer == 3
    assert found.has_answer_exact == pytest.approx(1 / 3)
    assert found.has_answer_f1 == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert (found.no_answers, found.no_answer) == (2, 1.0)
    assert found.exact == pytest.approx(3 / 5)
    assert found.f1 == pytest.approx((1 + 2 / 3 + 0 + 1 + 1) / 5)
    assert found.refused == 3 / 5
    # from .6 on (and below .7) the second is answered and the third is refused: nothing is better
    assert found.best_f1 == pytest.approx(found.f1)
    assert found.best_threshold == 0.6


def test_a_threshold_is_exceeded_not_reached() -> None:
    assert squad_scores([("a",)], ["a"], [0.5], 0.5).f1 == 1
    assert squad_scores([("a",)], ["a"], [0.5], 0.4999).f1 == 0
    assert squad_scores([("a",)], ["a"], [0.5], 0.5).no_answer is None
    assert squad_scores([()], ["a"], [0.5], 0.4).has_answer_f1 is None


@pytest.mark.parametrize("seed", range(12))
def test_the_best_threshold_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    words = ["Po", "Arno", "red wine", "wine", ""]
    accepted = [() if rng.random() < 0.5 else (str(rng.choice(words[:4])),) for _ in range(n)]
    answers = [str(rng.choice(words)) for _ in range(n)]
    chances = (rng.integers(0, 5, n) / 4).tolist()  # many are the same, some 0 and 1

    def f1(threshold: float) -> float:
        said = ["" if c > threshold else a for a, c in zip(answers, chances, strict=True)]
        return float(np.mean([token_f1(a, keys) for a, keys in zip(said, accepted, strict=True)]))

    tried = {t: f1(t) for t in sorted({0.0, *chances})}
    best, threshold = best_threshold(accepted, answers, chances)
    assert best == pytest.approx(max(tried.values()))
    assert threshold == min(t for t, value in tried.items() if value >= max(tried.values()) - 1e-12)
    assert squad_scores(accepted, answers, chances, threshold).f1 == pytest.approx(best)
