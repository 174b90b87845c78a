"""The bundled set is what its README says: ids, gold passages, answers, counts, size."""

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
