"""Generators are safe to use from several threads, and run as many calls at a time as they state."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mio_rag.generation import ExtractiveGenerator, ScriptedGenerator, build_prompt
from mio_rag.generation.base import BaseGenerator
from mio_rag.generation.prompts import Prompt
from mio_rag.types import Answer, Passage, Question

THREADS, CALLS = 16, 480


class Counted(BaseGenerator):
    """Records how many calls ran at the same time."""

    def __init__(self, concurrency: int) -> None:
        super().__init__("counted", None, concurrency)
        self.running = self.most = self.counting = self.most_counting = 0
        self.own = threading.Lock()
        self.full = threading.Event()

    def _count(self, texts: list[str]) -> list[int]:
        with self.own:
            self.counting += 1
            self.most_counting = max(self.most_counting, self.counting)
        counts = [len(text.split()) for text in texts]
        with self.own:
            self.counting -= 1
        return counts

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        with self.own:
            self.running += 1
            self.most = max(self.most, self.running)
            if self.running == self.concurrency:
                self.full.set()
        assert self.full.wait(30)  # goes on only once as many as are allowed have come
        with self.own:
            self.running -= 1
        return Answer("B", 1, 1, 0.0, self.name)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_calls_run_as_are_stated(concurrency: int) -> None:
    generator = Counted(concurrency)

    def work(k: int) -> str:
        prompt = build_prompt(Question(str(k), f"Which one of {k}?"), [Passage("a", f"It is {k}.")])
        generator.count([f"text {k % 7}", f"other {k}"])
        if k % 3:
            return generator.generate(prompt, max_tokens=4).text
        # a choice is read from a reply, within the same turn
        return generator.choose_scored(prompt, ["no", "yes"]).answer.text

    with ThreadPoolExecutor(THREADS) as pool:
        texts = list(pool.map(work, range(CALLS)))
    assert set(texts) == {"B", "yes"}
    assert generator.most == concurrency
    assert generator.most_counting == 1


def test_threads_get_what_one_thread_gets() -> None:
    prompts = [
        build_prompt(Question(str(k), f"How tall is tower {k}?"), [Passage("a", f"Tower {k} is {k} m tall.")])
        for k in range(CALLS)
    ]
    for make in (ExtractiveGenerator, lambda: ScriptedGenerator(_echo)):
        alone = make()
        with ThreadPoolExecutor(THREADS) as pool:
            many = list(pool.map(make().generate, prompts))
        for got, prompt in zip(many, prompts, strict=True):
            wanted = alone.generate(prompt)
            assert (got.text, got.prompt_tokens) == (wanted.text, wanted.prompt_tokens)


def _echo(prompt: Prompt) -> str:
    return prompt.question.text
