"""The bundled set is what its README says: ids, gold passages, answers, counts, size."""

import re
from collections import Counter
from importlib import resources
from pathlib import Path

from mio_rag.corpora.dataset import Dataset
from mio_rag.measures import normalize_answer
from mio_rag.types import Passage

FOLDER = Path(str(resources.files("mio_rag"))) / "data" / "demo"
README = (FOLDER / "README.md").read_text(encoding="utf-8")

#: Kinds of question whose first answer stands in the last gold passage and nowhere else.
EXACT = ("single", "bridge", "duplicate", "conflict")


def words(text: str) -> str:
    """Normalised, with a space at both ends, so that whole words can be looked for."""
    return f" {normalize_answer(text)} "


def read(passage: Passage) -> str:
    return words(f"{passage.title} {passage.text}")


def kinds() -> dict[str, tuple[int, range]]:
    """What the README's table says: questions of a kind, and how many gold passages each has."""
    table = {}
    for kind, count, gold in re.findall(r"^\| `(\w+)` \| (\d+) \| ([^|]+) \|", README, flags=re.MULTILINE):
        numbers = [0] if gold == "none" else [int(n) for n in gold.split(" to ")]
        table[kind] = (int(count), range(numbers[0], numbers[-1] + 1))
    return table


def test_counts_are_those_of_the_readme(demo: Dataset) -> None:
    sizes = {unit: int(n) for n, unit in re.findall(r"\| (\d+) (passages|questions): ", README)}
    assert sizes == {"passages": len(demo.passages), "questions": len(demo.questions)}
    assert Counter(q.type for q in demo.questions) == {kind: n for kind, (n, _) in kinds().items()}
    for question in demo.questions:
        assert len(question.gold_ids) in kinds()[question.type][1], question.id
    gold = {i for q in demo.questions for i in q.gold_ids}
    known = {i for i in gold if i <= "demo-084"}
    assert (len(known), len(gold - known)) == (41, 78)
    assert f"{len(known)} are gold" in " ".join(README.split())
    assert f"{len(gold - known)} of the {len(demo.passages) - 84} passages are gold" in README


def test_answers_stand_in_the_gold_passages(demo: Dataset) -> None:
    texts = {p.id: read(p) for p in demo.passages}
    for question in demo.questions:
        assert len(set(question.gold_ids)) == len(question.gold_ids), question.id
        assert set(question.gold_ids) <= set(texts), question.id
        assert bool(question.answers) == bool(question.gold_ids) == (question.type != "unanswerable")
        if not question.answers or question.answers[0] in ("yes", "no"):
            continue
        answer = words(question.answers[0])
        holders = {i for i, text in texts.items() if answer in text}
        assert holders & set(question.gold_ids), question.id
        if question.type in EXACT:
            assert holders == {question.gold_ids[-1]}, question.id
            assert not any(words(a) in words(question.text) for a in question.answers), question.id


def test_a_bridge_names_its_second_passage(demo: Dataset) -> None:
    passages = {p.id: p for p in demo.passages}
    for question in demo.questions:
        if question.type == "bridge":
            first, second = (passages[i] for i in question.gold_ids)
            assert words(second.title) in words(first.text), question.id
