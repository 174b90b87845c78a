"""Causal language models of the Hugging Face format, run in this process by transformers.

The tokenizer's chat template is applied if it has one; a base model gets instructions and question as text.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError, require
from mio_rag.generation.base import BaseGenerator, Chosen, Replies, one_by_one, option_logprobs, spoken
from mio_rag.generation.counters import chat_text, expanded, first_line, load_tokenizer
from mio_rag.generation.protocol import LETTERS, Prompt, disarmed
from mio_rag.storage import sha256_of
from mio_rag.types import Answer, GenerationError

# Tokenizers without a limit of their own report a huge number instead of none.
_NO_LIMIT = 10**9


class HuggingFaceGenerator(BaseGenerator):
    """A causal language model from the hub or from a folder.

    name_or_path: hub id, or folder with the model and its tokenizer.
    window: context window in tokens, >= 1; the model's own is the upper limit. None: the model's own.
    batch_size: prompts per batch of `generate_many`, >= 1.
    device: for instance "cpu" or "cuda:0"; None: the first GPU if there is one, else the CPU.

    Raises `InputError` if model or tokenizer cannot be loaded, or a parameter is out of range;
    `MissingExtraError` without transformers and torch.

    In a batch the latency of each answer is the batch's wall time divided by its size. Completion tokens and
    log-probabilities include the end-of-sequence token where the model produced it.
    """

    def __init__(
        self, name_or_path: str, *, window: int | None = None, batch_size: int = 8, device: str | None = None
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}: give at least 1")
        self._torch = require("torch", "torch", "running a Hugging Face model")
        transformers = require("transformers", "torch", "running a Hugging Face model")
        self._tokenizer = load_tokenizer(name_or_path)
        self._tokenizer.padding_side = "left"
        if self._tokenizer.pad_token_id is None:
            # Padding is masked, so any token will do; the end-of-sequence token is one that every model has.
            self._tokenizer.pad_token = self._tokenizer.eos_token or self._tokenizer.unk_token
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(expanded(name_or_path))
        except (OSError, ValueError) as error:
            raise InputError(
                f"hf:{name_or_path}: no causal language model can be loaded from there ({first_line(error)})"
            ) from error
        self._device = device or ("cuda" if self._torch.cuda.is_available() else "cpu")
        self._model: Any = model.to(self._device).eval()
        self._batch_size, self._source = batch_size, name_or_path
        own = sorted(filter(None, map(str.strip, self._tokenizer.all_special_tokens)), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, own)) or "(?!)")
        limits = [one for one in (window, _own_window(model.config, self._tokenizer)) if one is not None]
        super().__init__(f"hf:{Path(name_or_path).name}", min(limits) if limits else None)

    @cached_property
    def content(self) -> str | None:
        """The model by the files of its folder, or by its commit on the hub; versions, device and batches.

        No `identity`: in a batch a reply also depends, in the last digits, on what it is padded to.
        """
        folder = Path(expanded(self._source))
        if folder.is_dir():
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            model: Any = [[path.relative_to(folder).as_posix(), sha256_of(path)] for path in files]
        elif (model := getattr(self._model.config, "_commit_hash", None)) is None:
            return None
        told = {"model": model, "device": self._device, "batch_size": self._batch_size}
        return json.dumps(told | {name: version(name) for name in ("torch", "transformers")}, sort_keys=True)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt: chat template, or begin-of-sequence and plain text."""
        self._check_open()
        return len(self._ids(prompt))

    def _ids(self, prompt: Prompt) -> list[int]:
        # No text is a control token of this tokenizer either.
        own = [{**one, "content": disarmed(one["content"], self._control)} for one in prompt.messages]
        text, special = chat_text(self._tokenizer, own)
        with self._counting:
            return list(self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    def _count(self, texts: list[str]) -> list[int]:
        texts = [disarmed(text, self._control) for text in texts]
        encoded = self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [len(ids) for ids in encoded]

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        return spoken(self._batch([prompt], max_tokens)[0])

    def _generate_many(self, prompts: list[Prompt], max_tokens: int) -> Replies:
        results: Replies = []
        for at in range(0, len(prompts), self._batch_size):
            batch = prompts[at : at + self._batch_size]
            try:
                said = iter(self._batch(batch, max_tokens))
            except GenerationError:  # one prompt may have broken the batch (memory): ask one by one
                results += super()._generate_many(batch, max_tokens)
            else:
                results += one_by_one(lambda _, said=said: spoken(next(said)), batch)  # type: ignore[misc]
        return results

    def _batch(self, prompts: list[Prompt], max_tokens: int) -> list[Answer]:
        start = time.perf_counter()
        ids = [self._ids(prompt) for prompt in prompts]
        inputs = self._tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(self._device)
        heat = max(prompt.temperature for prompt in prompts) or None
        self._torch.manual_seed(0)
        try:
            with self._torch.inference_mode():
                output = self._model.generate(
                    **inputs,
                    max_new_tokens=max_tokens,
                    do_sample=heat is not None,
                    # The model's own settings may ask for sampling; under greedy decoding these would warn.
                    temperature=heat,
                    top_p=None,
                    top_k=None,
                    pad_token_id=self._tokenizer.pad_token_id,
                    return_dict_in_generate=True,
                    output_logits=True,
                )
        except RuntimeError as error:
            raise GenerationError(
                f"{self.name} failed on {len(prompts)} prompts: {first_line(error)}"
            ) from error
        new = output.sequences[:, inputs["input_ids"].shape[1] :]
        chosen = [
            self._torch.log_softmax(step.float(), dim=-1).gather(1, new[:, [t]])[:, 0].tolist()
            for t, step in enumerate(output.logits)
        ]
        seconds = (time.perf_counter() - start) / len(prompts)
        declared = self._model.generation_config.eos_token_id
        stops = {self._tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])}
        answers = []
        for row, (tokens, read) in enumerate(zip(new.tolist(), ids, strict=True)):
            # What follows the end-of-sequence token is padding of the batch, not part of this answer.
            length = next((t + 1 for t, token in enumerate(tokens) if token in stops), len(tokens))
            text = self._tokenizer.decode(tokens[:length], skip_special_tokens=True).strip()
            scored = tuple(chosen[t][row] for t in range(length))
            answers.append(Answer(text, len(read), length, seconds, self.name, scored))
        return answers

    def _choose(self, prompt: Prompt, choices: Sequence[str]) -> Chosen:
        """The letter to which the model gives the largest log-probability as continuation."""
        _, plain = chat_text(self._tokenizer, prompt.messages)
        ids = self._ids(prompt)
        scores = []
        for letter in LETTERS[: len(choices)]:
            # Plain text goes on after "...option:", where a word begins with its space.
            ending = self._tokenizer(f" {letter}" if plain else letter, add_special_tokens=False)["input_ids"]
            tokens = self._torch.tensor([ids + ending], device=self._device)
            with self._torch.inference_mode():
                logits = self._model(tokens).logits[0, len(ids) - 1 : -1].float()
            target = self._torch.tensor(ending, device=self._device)[:, None]
            scores.append(float(self._torch.log_softmax(logits, dim=-1).gather(1, target).sum()))
        best = max(scores)
        return scores.index(best), 1 / sum(math.exp(score - best) for score in scores), None

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> tuple[float, ...]:
        """Natural-log probability that the reply begins with each option, upper and lower case alike.

        Summed over the 100 most likely first tokens; an option that is none of them gets the probability of
        the last of these, which bounds it from above.
        """
        self._check_fits(prompt, 1)
        tokens = self._torch.tensor([self._ids(prompt)], device=self._device)
        with self._torch.inference_mode():
            logits = self._model(tokens, logits_to_keep=1).logits[0, -1].float()
        best = self._torch.log_softmax(logits, dim=-1).topk(min(100, logits.numel()))
        texts = [self._tokenizer.decode([token]) for token in best.indices.tolist()]
        return option_logprobs(list(zip(texts, best.values.tolist(), strict=True)), options)

    def _close(self) -> None:
        self._model = None


def _own_window(config: Any, tokenizer: Any) -> int | None:
    """The smaller of what the model's positions and its tokenizer allow; None where neither says."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    limits = [n for n in (positions, tokenizer.model_max_length) if n is not None and n < _NO_LIMIT]
    return int(min(limits)) if limits else None
