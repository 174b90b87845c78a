"""Questions that a service proposes to people who do not know its collection yet."""

from __future__ import annotations

from collections.abc import Sequence

from mio_rag.corpora.load import load_dataset
from mio_rag.names import leading_name
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.text import clean, is_text

__all__ = ["MOST_EXAMPLES", "PROPOSED", "check_examples", "example_questions"]

#: How many questions are proposed, unless the operator gives more.
PROPOSED = 3
#: Of an operator: more would fill the page.
MOST_EXAMPLES = 12
_LONGEST_TITLE = 60  # characters: what is longer is a sentence, or a path


def check_examples(examples: Sequence[str], max_question: int) -> list[str]:
    """What is wrong with an operator's questions, in words."""
    problems = [f"{len(examples)} examples: give at most {MOST_EXAMPLES}"] * (len(examples) > MOST_EXAMPLES)
    for example in examples:
        if not is_text(example) or not example.strip():
            problems.append(f"the example {example!r} is empty or no valid text: give a question")
        elif len(example) > max_question:
            problems.append(
                f"the example '{example[:40]} ...' has {len(example)} characters, and questions may have "
                f"{max_question}: shorten it"
            )
    return problems


def example_questions(index: CorpusIndex, given: Sequence[str] = ()) -> tuple[str, ...]:
    """The questions to propose.

    Parameters
    ----------
    given : sequence of str
        By the operator: these and no others, where there are any.

    Returns
    -------
    tuple of str
        Otherwise those of the bundled set, where the index holds its passages; otherwise about titles, or the
        names that texts open with, from all over the collection. Empty where there are none of these.
    """
    if given:
        return tuple(clean(example).strip() for example in given)
    bundled = _bundled(index)
    if bundled:
        return _spread(bundled, PROPOSED)
    names = dict.fromkeys(
        " ".join(clean(passage.title or leading_name(passage.text)).split()) for passage in index.passages
    )
    short = [name for name in names if name and len(name) <= _LONGEST_TITLE]
    return tuple(f"What does the collection say about {name}?" for name in _spread(short, PROPOSED))


def _bundled(index: CorpusIndex) -> list[str]:
    """The questions of the bundled set, if the index is one of its passages."""
    if index.name != "demo":
        return []
    demo = load_dataset("demo")
    if {p.id: p.text for p in demo.passages} != {p.id: p.text for p in index.passages}:
        return []
    return [question.text for question in demo.questions]


def _spread(items: Sequence[str], count: int) -> tuple[str, ...]:
    """So many of the items, at equal distances."""
    count = min(count, len(items))
    return tuple(items[k * len(items) // count] for k in range(count))
