"""Questions made from passages, to fit relevance where nobody has labelled any.

Each is made from one unit (a sentence, an item, a row), which is its only gold evidence. With a language
model, the model writes a question that the unit answers; without one, the question is the rarest words of the
unit and of the headings above it (an inverse cloze task: Lee, Chang and Toutanova, 2019). People ask in other
words than documents do, so what is fitted on these must be compared with what ships on real questions.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

from mio_rag.errors import DataError
from mio_rag.sentences import cut
from mio_rag.types import Passage, Question

_WORD = re.compile(r"[^\W_]{2,}")
_LEAST = 6  # words of a unit that a question is made from
_ASKED = 6  # words of a question that no model writes
_PROMPT = (
    "Write one short question that the following text answers, in the language of the text. Ask as somebody "
    "would who has not seen it. Reply with the question alone.\n\n{text}"
)


def made_questions(
    passages: Sequence[Passage],
    count: int,
    *,
    write: Callable[[str], str] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[Question, ...]:
    """Return questions made from passages, each of another passage.

    count: >= 1; fewer where fewer passages have a unit of six words.
    write: a prompt -> the reply of a language model. A reply without a question makes none.
    progress: called with 1 for each.

    Their one answer is the text of the unit, their gold the passage. Raises `DataError` if no passage has a
    unit that a question can be made from.
    """
    draw = random.Random(seed)
    held = [_words(passage) for passage in passages]
    known = Counter(word for words in held for word in words)
    made: list[Question] = []
    for at in draw.sample(range(len(passages)), len(passages)):
        if len(made) == count:
            break
        passage = passages[at]
        units = [text for text in _units(passage) if len(_WORD.findall(text)) >= _LEAST]
        if not units:
            continue
        unit = draw.choice(units)
        above = " > ".join(filter(None, (passage.title, *passage.section)))
        asked = _by_words(unit, above, known) if write is None else _asked(write(_prompt(unit, above)))
        if asked:
            made.append(Question(f"made-{len(made) + 1}", asked, (unit,), (passage.id,), type="synthetic"))
        if progress:
            progress(1)
    if not made:
        raise DataError(f"no question can be made: no passage has a sentence of {_LEAST} words")
    return tuple(made)


def _units(passage: Passage) -> list[str]:
    if passage.units:
        return [passage.text[unit.start : unit.end].strip() for unit in passage.units]
    return [passage.text[a:b].strip() for a, b in cut([passage.text]).spans.tolist()]


def _words(passage: Passage) -> set[str]:
    text = " ".join((passage.title, *passage.section, passage.text))
    return {word.casefold() for word in _WORD.findall(text)}


def _by_words(unit: str, above: str, known: Counter[str]) -> str:
    words = list(dict.fromkeys(word.casefold() for word in _WORD.findall(f"{above} {unit}")))
    rarest = sorted(words, key=lambda word: (known[word], word))[:_ASKED]
    return " ".join(word for word in words if word in rarest)


def _prompt(unit: str, above: str) -> str:
    return _PROMPT.replace("{text}", f"{above}\n{unit}" if above else unit)


def _asked(reply: str) -> str:
    lines = reply.strip().splitlines()
    first = lines[0].strip().strip('"') if lines else ""
    return first if first.endswith(("?", "\uff1f", "\u061f")) else ""
