"""Totals where passages share text that is read once: against every allocation, and as a reader counts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mio_rag import Candidates, InputError, Selector
from mio_rag.allocation import allocate, at_prices, price_for
from mio_rag.allocation.pacer import Pacer
from mio_rag.allocation.workload import usual_weight
from mio_rag.context import RegexCounter, block_tokens
from mio_rag.corpora.dataset import load_folder
from mio_rag.pool import Pool
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.program import Formulation
from mio_rag.types import Question
from tests.allocation.test_allocate import optimum
from tests.selection.test_documents import TABLE, document_pool

COUNTER = RegexCounter()
SELECTOR = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0)


def windows(seed: int, count: int = 5, size: int = 24) -> Candidates:
    """Windows of two documents, each sharing half of its words with the next."""
    rng = np.random.default_rng(seed)
    words = [f"w{k}" for k in range(size * (count + 1))]
    starts = np.concatenate([[0], np.cumsum([len(word) + 1 for word in words])])
    document = " ".join(words)
    step = size // 2
    spans = [(int(starts[k * step]), int(starts[k * step + size]) - 1) for k in range(count)]
    texts = [document[a:b] for a, b in spans]
    return Candidates(
        ids=[f"p{k}" for k in range(count)],
        texts=texts,
        relevance=rng.uniform(0.05, 1.0, count),
        tokens=np.array(COUNTER.count(texts)) + 2,
        titles=["Title"] * count,
        sources=["d" if k < count - 2 else "e" for k in range(count)],
        spans=spans,
    )


def every(candidates: Candidates) -> list[tuple[int, float]]:
    """Tokens and value of each selection of a pool, shared text once."""
    program = Formulation(SELECTOR, candidates, COUNTER).program(10**6)
    assert program.segments is not None
    vectors = [np.array(x) for x in product((0, 1), repeat=len(candidates))]
    return [(round(program.cost(x)), program.objective(x)) for x in vectors]


APART = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, merge=False)


@pytest.mark.parametrize("total", [60, 110, 200, 333])
def test_no_allocation_is_beyond_the_certified_gap(total: int) -> None:
    given = [windows(seed) for seed in range(3)]
    weights = [1.0, 0.5, 2.0]
    found = allocate(given, total, selector=SELECTOR, weights=weights, counter=COUNTER)
    best = optimum([every(pool) for pool in given], total, weights)
    assert found.bound is not None
    assert found.value <= best + 1e-6 <= found.bound + 2e-6
    counted = [
        block_tokens(pool, choice.chosen, COUNTER, True)
        for pool, choice in zip(given, found.choices, strict=True)
    ]
    assert counted == list(found.tokens)
    assert sum(counted) <= total
    assert all(selection.is_merged for selection in found.selections)


def test_the_price_is_that_at_which_a_selector_spends_as_much() -> None:
    given = [windows(seed, 8) for seed in range(12)]
    found = price_for(given, 70, selector=SELECTOR, ceilings=400, counter=COUNTER)
    priced = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, token_price=found.token_price)
    spent = [priced.choose(pool, 400, COUNTER) for pool in given]
    assert np.mean([round(one.found.program.cost(one.result.x)) for one in spent]) == pytest.approx(
        found.at.mean_tokens
    )
    assert [one.chosen for one in spent] != [SELECTOR.choose(pool, 400, COUNTER).chosen for pool in given]
    dear, free = at_prices(given, [10.0, 0.0], selector=SELECTOR, counter=COUNTER)
    assert dear.mean_tokens == 0
    assert free.mean_tokens == pytest.approx(np.mean([max(t for t, _ in every(pool)) for pool in given]))


def test_a_floor_needs_passages_that_are_read_apart() -> None:
    given = [windows(seed) for seed in range(8)]
    with pytest.raises(InputError, match=r"question 0: floor=30 .* share text .*merge=False") as told:
        allocate(given, 400, selector=SELECTOR, floors=30, counter=COUNTER)
    assert len(told.value.problems) == 6
    assert told.value.problems[-1] == "and 3 problems more, of other questions"
    apart = allocate(given, 500, selector=APART, floors=30, counter=COUNTER)
    assert min(apart.tokens) >= 30


# Documents: units, which share their headings and the headers of their tables


def units(seed: int) -> Pool:
    """Rows of a table in a document, of which each needs the heading and the header."""
    worth = np.random.default_rng(seed).uniform(0.1, 0.9, 4)
    names = ["Loen", "Olden", "Stryn", "Hellesylt"]
    text = "\n".join([*TABLE, *(f"{name} | {k} | 15" for k, name in enumerate(names))])
    rows = [(f"{name} | {k} | 15", TABLE, float(worth[k])) for k, name in enumerate(names)]
    return document_pool(rows, text)


@pytest.mark.parametrize("total", [14, 40, 75, 110])
def test_units_of_documents_share_a_total_within_the_certified_gap(total: int) -> None:
    given, weights = [units(seed) for seed in range(3)], [1.0, 0.5, 2.0]
    found = allocate(given, total, weights=weights, counter=COUNTER)
    each = []
    for pool in given:
        chooser = Selector(units="sentences")
        program = Formulation(chooser, chooser.read(pool), COUNTER).program(10**6)
        vectors = [np.array(x) for x in product((0, 1), repeat=program.n)]
        each.append([(round(program.cost(x)), program.objective(x)) for x in vectors])
    best = optimum(each, total, weights)
    assert found.bound is not None
    assert found.value <= best + 1e-6 <= found.bound + 2e-6
    assert {selection.unit for selection in found.selections} == {"sentence"}
    recounted = [sum(COUNTER.count([selection.context])) for selection in found.selections]
    assert recounted == list(found.tokens)
    assert sum(recounted) <= total


def test_without_a_tokenizer_units_are_counted_approximately_and_floors_keep_passages() -> None:
    given = [units(seed) for seed in range(3)]
    assert allocate(given, 75).tokens == allocate(given, 75, counter=COUNTER).tokens
    for changes in ({"floors": 4}, {"selector": Selector(max_per_source=2)}):
        kept = allocate(given, 75, **changes)
        assert {selection.unit for selection in kept.selections} == {"passage"}
    with pytest.raises(InputError, match="below the shortest sentence of all questions"):
        allocate(given, 1, counter=COUNTER)


@pytest.fixture(scope="module")
def handbook(tmp_path_factory: pytest.TempPathFactory) -> tuple[CorpusIndex, list[Question]]:
    """Long documents of which one row, or one sentence, answers."""
    folder = tmp_path_factory.mktemp("museums")
    questions = []
    for town, height in (("Loen", 41), ("Olden", 57), ("Stryn", 63), ("Askvoll", 77)):
        rows = "\n".join(f"| Room {k} | {k * 7} m | closed on day {k} |" for k in range(1, 25))
        talk = " ".join(f"The museum of {town} keeps room {k} for school classes." for k in range(1, 12))
        text = (
            f"# Museum of {town}\n\n{talk} Its tower is {height} metres high.\n\n"
            f"## Rooms\n\n| Room | Length | Closed |\n|---|---|---|\n{rows}\n"
        )
        (folder / f"{town}.md").write_text(text)
        asked = {
            f"How high is the tower of the museum of {town}?": f"{height} metres",
            f"How long is room 9 in the museum of {town}?": "63 m",
        }
        questions += [
            Question(f"{town}{k}", text, (answer,)) for k, (text, answer) in enumerate(asked.items())
        ]
    return CorpusIndex.build(load_folder(folder).passages, "minilm"), questions


@pytest.mark.parametrize("budget", [60, 120])
def test_totals_over_documents_are_kept_as_recounted_and_find_more_than_whole_passages(
    handbook: tuple[CorpusIndex, list[Question]], budget: int
) -> None:
    index, questions = handbook
    retriever, total = Retriever(index, counter=COUNTER), budget * len(questions)
    pools = [retriever.retrieve(question.text) for question in questions]
    found = {}
    for kind in ("auto", "passages"):
        selector, pacer = Selector(units=kind), Pacer(total, len(questions))
        ways = {
            "allocated": list(allocate(pools, total, selector=selector, counter=COUNTER).selections),
            "paced": [pacer.select(pool, selector, COUNTER) for pool in pools],
        }
        for way, read in ways.items():
            recounted = [sum(COUNTER.count([one.context])) for one in read]
            assert recounted == [one.tokens_used for one in read]
            assert sum(recounted) <= total
            assert kind == "passages" or "sentence" in {one.unit for one in read}
            pairs = zip(questions, read, strict=True)
            found[way, kind] = sum(question.answers[0] in one.context for question, one in pairs)
        assert pacer.account().spent <= total
    assert found["allocated", "auto"] > found["allocated", "passages"]


def test_questions_over_documents_count_less_where_many_units_are_alike() -> None:
    names = ("Loen", "Olden", "Stryn", "Hellesylt")
    rows = [f"{name} | 54 | 61" for name in names]
    text = "\n".join([*TABLE, *rows])
    clear, vague = (
        document_pool([(row, TABLE, 0.9 if k == 0 else other) for k, row in enumerate(rows)], text)
        for other in (0.1, 0.9)
    )
    chooser = Selector()
    assert usual_weight(chooser, clear) > usual_weight(chooser, vague)
    assert usual_weight(chooser, windows(1)) == 1
    plain = allocate([clear, vague], 40, weights=[1, 1], counter=COUNTER)
    usual = allocate([clear, vague], 40, counter=COUNTER)
    assert usual.tokens[1] <= plain.tokens[1]
    assert usual.bound is not None
    assert usual.value <= usual.bound
