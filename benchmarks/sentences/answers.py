"""What a language model answers from passages, from sentences, and at a tier compressed by either rule.

    fused, passages, sentences    within 256 tokens; the program at a price of .0005 a token
    by words                      sentences that nobody has embedded
    ..., at 128                   the same within 128 tokens
    published rule, program       the five best passages brought to 600 characters: sentences nearest to the
                                  question, or those that the program chooses

Replies are kept by content in the work folder, so that more questions cost their own replies only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.repetition.study import answered
from benchmarks.repetition.summary import interval
from mio_rag.evaluation.contenders import make_methods
from mio_rag.generation import Generator, build_prompt, make_generator
from mio_rag.generation.replies import RememberingGenerator
from mio_rag.measures.answers import token_f1
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Budget, Limits
from mio_rag.session.tiers import Tier, TierReader
from mio_rag.types import Question

_BUDGETS, _ANSWER = (256, 128), 24
_RULES = {"published rule": "sentences", "program": "program"}


def answers_of(
    generator: str,
    work: Path,
    index: CorpusIndex,
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    seed: int,
) -> dict[str, Any]:
    """Token F1, whether the answer is in what is read, and prompt tokens; paired differences in F1.

    Parameters
    ----------
    generator : str
        As `mio_rag ask --generator`.
    """  # fmt: skip
    reader = RememberingGenerator(make_generator(generator), work / "replies.sqlite")
    ways = _ways(index, reader)
    columns: dict[str, dict[str, list[float]]] = {
        name: {"f1": [], "answer": [], "prompt_tokens": []} for name in ways
    }
    for question, pool in zip(questions, pools, strict=True):
        for name, way in ways.items():
            read = way(pool).passages
            answer = reader.generate(build_prompt(question, read), max_tokens=_ANSWER)
            columns[name]["f1"].append(token_f1(answer.text, question.answers))
            columns[name]["answer"].append(float(answered(question, [f"{p.title} {p.text}" for p in read])))
            columns[name]["prompt_tokens"].append(float(answer.prompt_tokens))
    draws = np.random.default_rng(seed).integers(0, len(questions), (2000, len(questions)))
    means = {
        name: {key: interval(np.array(column), draws) for key, column in found.items()}
        for name, found in columns.items()
    }
    f1 = {name: found["f1"] for name, found in columns.items()}
    differences = {name: interval(each, draws) for name, each in _differences(f1).items()}
    return {
        "questions": len(questions),
        "generator": reader.name,
        "means": means,
        "f1": differences,
        "f1_by_question": {name: [round(value, 4) for value in values] for name, values in f1.items()},
    }


def _differences(f1: dict[str, list[float]]) -> dict[str, NDArray[np.float64]]:
    pairs = [("program", "published rule")]
    for at in map(_at, _BUDGETS):
        pairs += [(f"sentences{at}", f"fused{at}"), (f"sentences{at}", f"passages{at}")]
        pairs += [(f"by words{at}", f"fused{at}"), (f"by words{at}", f"passages{at}")]
    return {f"{one} - {other}": np.array(f1[one]) - np.array(f1[other]) for one, other in pairs}


def of_all_sets(answers: Mapping[str, Mapping[str, Any]], seed: int) -> dict[str, Any]:
    """Means over sets: F1, and paired differences with 95 % intervals (questions are drawn within sets)."""
    ways = list(next(iter(answers.values()))["means"])
    means = {
        way: float(np.mean([one["means"][way]["f1"]["mean"] for one in answers.values()])) for way in ways
    }
    rng, drawn = np.random.default_rng(seed), dict[str, list[NDArray[np.float64]]]()
    for one in answers.values():
        rows = rng.integers(0, one["questions"], (2000, one["questions"]))
        for name, each in _differences(one["f1_by_question"]).items():
            drawn.setdefault(name, []).append(np.append(each[rows].mean(axis=1), each.mean()))
    told = {}
    for name, sets in drawn.items():
        *resampled, mean = np.mean(sets, axis=0)
        low, high = np.quantile(resampled, (0.025, 0.975))
        told[name] = {
            "mean": round(float(mean), 4),
            "low": round(float(low), 4),
            "high": round(float(high), 4),
        }
    return {"means": {way: round(value, 4) for way, value in means.items()}, "f1": told}


def _ways(index: CorpusIndex, reader: Generator) -> dict[str, Callable[[Candidates], Selection]]:
    priced = Selector(token_price=0.0005)
    fused = make_methods(["fused"], priced)[0]
    retriever = Retriever(index, counter=reader)

    def tier(rule: str) -> Callable[[Candidates], Selection]:
        reads = TierReader(Tier(rule.split()[0], 5, 600, _ANSWER, compress=_RULES[rule]), retriever)
        return lambda pool: reads.read(
            pool, 2048, reader, Budget(reader, Limits(tokens=10**6), _ANSWER).branch()
        )

    sentences = priced.replace(units="sentences")
    ways: dict[str, Callable[[Candidates], Selection]] = {rule: tier(rule) for rule in _RULES}
    for budget in _BUDGETS:
        at = _at(budget)
        ways[f"fused{at}"] = partial(fused.select, budget_tokens=budget, counter=reader)
        ways[f"passages{at}"] = partial(priced.select, budget_tokens=budget, counter=reader)
        ways[f"sentences{at}"] = partial(sentences.select, budget_tokens=budget, counter=reader)
        ways[f"by words{at}"] = partial(_by_words, sentences, budget, reader)
    return ways


def _at(budget: int) -> str:
    return "" if budget == _BUDGETS[0] else f", at {budget}"


def _by_words(selector: Selector, budget: int, reader: Generator, pool: Candidates) -> Selection:
    return selector.select(replace(pool, sentences=None), budget, reader)
