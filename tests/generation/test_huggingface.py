"""transformers, on a tiny random model and a tokenizer trained here."""

from pathlib import Path
from typing import Any

import pytest

from mio_rag.generation import HuggingFaceGenerator, build_prompt
from mio_rag.generation.protocol import LETTERS
from mio_rag.types import Answer, Passage, Question

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
PASSAGES = [Passage("a", "The tower stands in Paris. 東京 🎉", "Tower"), Passage("b", "Rome has {braces}.")]
PROMPTS = [
    build_prompt(Question("q1", "Where is the tower?"), PASSAGES),
    build_prompt(Question("q2", "Why?")),
    build_prompt(Question("q3", "Which of these two towns is the larger one?"), PASSAGES[:1]),
]


def save(folder: Path, template: str | None, positions: int = 512) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    core.train_from_iterator(["The tower stands in Paris. Where is the tower? Which answer?"] * 5, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=positions,
        bos_token_id=0, eos_token_id=1, initializer_range=0.5,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["chat", "plain"])
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp(request.param), TEMPLATE if request.param == "chat" else None)


@pytest.fixture(scope="module")
def generator(folder: Path) -> HuggingFaceGenerator:
    return HuggingFaceGenerator(str(folder), batch_size=2, device="cpu")


def test_generation_is_greedy_with_the_log_probabilities_of_a_plain_loop(
    generator: HuggingFaceGenerator,
) -> None:
    answer = generator.generate(PROMPTS[0], max_tokens=6)
    ids = generator._ids(PROMPTS[0])
    assert answer.prompt_tokens == len(ids) == generator.prompt_tokens(PROMPTS[0])
    tokens: list[int] = []
    expected: list[float] = []
    with torch.inference_mode():
        for _ in range(6):
            scores = torch.log_softmax(generator._model(torch.tensor([ids + tokens])).logits[0, -1], dim=-1)
            tokens.append(int(scores.argmax()))
            expected.append(float(scores.max()))
            if tokens[-1] == 1:
                break
    assert answer.completion_tokens == len(tokens)
    assert answer.logprobs == pytest.approx(expected, abs=1e-3)
    assert answer.text == generator._tokenizer.decode(tokens, skip_special_tokens=True).strip()


def test_a_batch_answers_as_its_members_do(generator: HuggingFaceGenerator) -> None:
    alone = [generator.generate(prompt, max_tokens=5) for prompt in PROMPTS]
    # batches of two: lengths differ, padding on the left
    together = generator.generate_many(PROMPTS, max_tokens=5)
    for one, other in zip(alone, together, strict=True):
        assert isinstance(other, Answer)
        assert (other.text, other.prompt_tokens) == (one.text, one.prompt_tokens)
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)


def test_choose_takes_the_likeliest_letter(generator: HuggingFaceGenerator, folder: Path) -> None:
    question = Question("q", "Which?", choices=("red", "blue", "green"))
    prompt = build_prompt(question, PASSAGES)
    plain = generator._tokenizer.chat_template is None
    ids = generator._ids(prompt)
    scores = []
    for letter in LETTERS[:3]:
        tail = generator._tokenizer.encode((" " if plain else "") + letter, add_special_tokens=False)
        with torch.inference_mode():
            logits = torch.log_softmax(generator._model(torch.tensor([ids + tail])).logits[0], dim=-1)
        scores.append(sum(float(logits[len(ids) - 1 + i, token]) for i, token in enumerate(tail)))
    assert generator.choose_scored(prompt, question.choices).index == scores.index(max(scores))


def test_a_template_without_system_role_still_sees_the_instructions(tmp_path: Path) -> None:
    generator = HuggingFaceGenerator(str(save(tmp_path, STRICT)), device="cpu", window=300)
    assert generator.context_window == 300
    assert HuggingFaceGenerator(str(tmp_path), device="cpu", window=9999).context_window == 512
    text = generator._tokenizer.decode(generator._ids(PROMPTS[0]))
    assert "<|system|>" not in text
    assert PROMPTS[0].system in text
    assert PROMPTS[0].user in text


def test_weigh_gives_the_probabilities_of_first_tokens(generator: HuggingFaceGenerator) -> None:
    ids = generator._ids(PROMPTS[1])
    with torch.inference_mode():
        scores = torch.log_softmax(generator._model(torch.tensor([ids])).logits[0, -1], dim=-1)
    best = scores.topk(100)
    spelt = [generator._tokenizer.decode([t]).strip() for t in best.indices.tolist()]
    word = next(w for w in spelt if w.isalpha() and [s.lower() for s in spelt].count(w.lower()) == 1)
    found, missing = generator.weigh(PROMPTS[1], [word.upper(), "no such token"])
    assert found == pytest.approx(float(best.values[spelt.index(word)]), abs=1e-4)
    assert missing == pytest.approx(float(best.values[-1]), abs=1e-4)
