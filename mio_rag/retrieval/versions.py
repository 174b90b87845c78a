"""Which passages of a pool are older versions of others: the same section of the same document, later.

Two documents are versions of one another if their dates differ, else marks such as "v2" or "old", and titles
and file names are equal but for these. Invoices, minutes and whatever else comes out for each case or
period are none (`mio_rag.sentences.are_versions`). What is under the same headings in both is then compared
by its words, numbers counting as equal: an amount is what changes.

The newest is read; for a question on an earlier time ("before 2025", "in 2023") the one then in force.
"""

from __future__ import annotations

import calendar
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from mio_rag.documents.dates import in_force, is_ordered, time_asked
from mio_rag.retrieval.words import Words
from mio_rag.sentences import (
    Names,
    are_versions,
    asks_for_changes,
    bare_name,
    is_replaced_kind,
    names_of,
    pattern,
)
from mio_rag.types import Passage, moment

#: So much of the words of a passage must stand under the same headings of a newer document that replaces it.
LEAST_SHARED = 0.6

#: What compares or sums; it asks for every document that nothing but its name makes a version.
_ALL = pattern(
    r"\b(?:(?:high|low|larg|small|great|bigg|long|short|cheap|old|earli)est|(?<!at )(?:most|least)|total|sum"
    r"|overall|altogether|together|combined|each|every|all|how many|how often|average|median|maximum|minimum"
    r"|differ(?:s|ed|ences?)?|rank(?:ing)?|insgesamt|gesamt\w*|summe|alle[nmrs]?|jede[nmrs]?|wie ?viele"
    r"|wie oft|durchschnitt\w*|unterschied\w*|höchste\w*|niedrigste\w*|größte\w*|kleinste\w*|total[es]+"
    r"|chaque|tou(?:s|tes)|combien de|moyenne|cada|todos|todas|cuánt[oa]s|promedio)\b"
    "|違い|毎月|毎年|各月|各年|区别|差別|合計|総額|全て|すべて|平均|最も|最大|最小|最高|最低|いくつ|何回|总共|總共|總計|总计|合计|全部|所有|每|平均|多少",
    re.IGNORECASE,
)


def told_apart(older: Sequence[Passage], newer: Sequence[Passage], question: str, words: Words) -> bool:
    """Whether a question has a word that the older passages, or their names, have and the newer ones lack.

    What was not there yet at the time asked of is not told apart: "Was it required in 2023?"
    """
    if in_force(_names(older[0]), question)[0] != in_force(_names(newer[0]), question)[0]:
        return False
    question = asked.rest if (asked := time_asked(question)) else question
    mine, others = (
        {
            word
            for p in side
            for word in words(" ".join((p.text, p.title, p.source, _said(p.date), *p.section)))
        }
        for side in (older, newer)
    )
    return bool((mine - others).intersection(words(question)))


def older_versions(passages: Sequence[Passage], question: str) -> Iterator[tuple[int, int, float]]:
    """Yield each passage that is replaced, the nearest of the version that is read, and what they share.

    That is the part, in (0, 1], of the words of the older passage that the newer document has under the same
    headings. A passage that has a word of the question which the newer document lacks is none. "Older" is
    also the version that was not in force at the time that the question asks of.
    """
    documents: dict[str, list[int]] = {}
    for k, passage in enumerate(passages):
        if passage.source:
            documents.setdefault(passage.source, []).append(k)
    alike: dict[frozenset[str], list[str]] = {}
    for source, rows in documents.items():
        for words_of_name in names_of(passages[rows[0]].title, source):
            alike.setdefault(words_of_name, []).append(source)
    pairs = [
        (documents[a], documents[b])
        for a, b in dict.fromkeys(
            pair for each in alike.values() for pair in combinations(each, 2) if pair[0] != pair[1]
        )
        if is_replaced(passages[documents[a][0]], passages[documents[b][0]], question)
    ]
    if not pairs:
        return
    words = Words.of([passage.text for passage in passages])
    counts: dict[int, Counter[str]] = {}
    for k in {k for pair in pairs for side in pair for k in side}:
        counts[k] = Counter(re.sub(r".*\d.*", "0", word) for word in words(passages[k].text))
    for pair in pairs:
        older, newer = sorted(pair, key=lambda rows: in_force(_names(passages[rows[0]]), question))
        for a in older:
            same = [b for b in newer if not _sections(passages[a]).isdisjoint(_sections(passages[b]))]
            # Passages of two versions do not begin at the same place: what one holds may be in two.
            same = sorted(same, key=lambda b: (counts[a] & counts[b]).total(), reverse=True)[:2]
            there: Counter[str] = sum((counts[b] for b in same), Counter())
            share = (counts[a] & there).total() / max(1, counts[a].total())
            if share >= LEAST_SHARED and not told_apart(
                [passages[a]], [passages[b] for b in newer], question, words
            ):
                yield a, same[0], share


def is_replaced(one: Passage, other: Passage, question: str) -> bool:
    """Whether of two documents only one is read for a question.

    Both are read where the question compares versions, or asks of a time within which the newer came; also
    where it compares or sums anything, unless names say that the newer replaces the older (a policy, a price
    list, "v2").
    """
    names = [(p.title, p.source) for p in (one, other)]
    if (
        asks_for_changes(question)
        or not is_ordered(_names(one), _names(other))
        or not are_versions(*names[0], *names[1])
    ):
        return False
    asked, newer = time_asked(question), max(moment(one.date), moment(other.date))
    if asked is not None and asked.start < newer < asked.end:
        return False
    return not _ALL.search(question) or any(is_replaced_kind(*name) for name in names)


def _names(passage: Passage) -> Names:
    return passage.title, passage.source, passage.date


def _said(date: str) -> str:
    """A date with the name of its month, as questions have it."""
    month = re.match(r"\d{4}-(\d\d)", date)
    return f"{date} {calendar.month_name[int(month[1])]}" if month else date


def _sections(passage: Passage) -> set[tuple[frozenset[str], ...]]:
    """The headings under which a passage stands, as `bare_name` reads them."""
    paths = {unit.section or passage.section for unit in passage.units} or {passage.section}
    return {tuple(map(bare_name, path)) for path in paths}
