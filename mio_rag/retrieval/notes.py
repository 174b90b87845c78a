"""What a selection is noted with, beside what the solver knows: names that no document has, documents that a
filter left out, files that were not read, and a question in another language than the documents.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from mio_rag.documents.dates import age, day_in, in_force, is_ordered, time_asked
from mio_rag.documents.east_asian import NO_SPACES
from mio_rag.filters import Lacking
from mio_rag.formulations.numbers import plural
from mio_rag.relevance.documents import is_known
from mio_rag.relevance.features import asked_words, is_common
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.minilm import FINGERPRINT
from mio_rag.retrieval.numbered import parts_asked
from mio_rag.retrieval.words import STOP_WORDS, language_of, tokens_of
from mio_rag.selection.result import Note, Selection
from mio_rag.selection.solving import MAY_BE, likely_sources
from mio_rag.sentences import (
    Names,
    are_versions,
    bare_name,
    called_alike,
    is_replaced_kind,
    marks_of,
    may_compare,
)
from mio_rag.types import moment

ENGLISH = (
    "the embedder reads English, and finds little where question and document differ in language; --embedder "
    "takes a multilingual model"
)
_PIECE = re.compile(r"[^\W_]+(?:[-.,:/&’'][^\W_]+)*")
_UNSPACED = re.compile(f"[{NO_SPACES}]")
_MEASURED = re.compile(r"(\d(?:[\d.,]*\d)?)[^\W\d_]{1,3}")  # a number with its unit
_GROUPED = re.compile(r"\d+|\d{1,3}(?:[.,'’]\d{3})+")  # a whole number, perhaps with its thousands apart
_APART = re.compile(r"(?<![\w.,])(\d{1,3})[ \u00a0\u202f](?=\d{3}(?!\w))")
_SIGN = r"[-_./,’' \u00a0\u202f]?"  # that one writer puts within a name, and another does not
_A_YEAR = re.compile(r"(?:19|20)\d\d")
_MARKED_YEAR = re.compile(r"(?<![\w.,])((?:19|20)\d\d)\.\d\d?(?![\d.])")  # "2024.1": the 1 is a footnote
_LOOKED_AT = 50  # passages
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th|s)")
_WRITTEN_OUT = 13  # numbers below it are often words in documents
_OFTEN = 0.2  # of passages: a name there need not stand in what is read
#: Words that ask, add up or compare, and name nothing.
_ASKING = frozenset((
    "alike", "already", "altogether", "anything", "average", "biggest", "both", "cheapest", "compare",
    "count", "describe", "differ", "difference", "different", "enumerate", "equal", "every",
    "everything", "explain", "fewer", "fewest", "greatest", "happen", "heaviest", "highest", "identify",
    "largest", "less", "longest", "lowest", "mention", "more", "most", "newest", "nothing", "oldest",
    "outline", "overall", "same", "say", "shortest", "smallest", "something", "state", "sum", "summarise",
    "summarize", "tell", "together", "total", "totals", "youngest",
))  # fmt: skip
_USUAL = frozenset[str]().union(*STOP_WORDS.values())
#: Kinds of texts, of their parts and of what is asked for, which texts seldom name.
_KINDS = frozenset((
    "aim", "aims", "allowance", "allowances", "annex", "appendix", "chapter", "clause", "clauses",
    "criteria", "deadline",
    "duration", "entitlement", "footnote", "handbook", "item", "items",
    "memo", "paragraph", "paragraphs", "pdf",
    "prerequisite", "prerequisites", "spreadsheet", "subsection", "surcharge", "threshold", "webpage",
    "worksheet",
))  # fmt: skip
_BEFORE_NAMES = frozenset((
    "Mr", "Mrs", "Ms", "Mx", "Miss", "Dr", "Prof", "Sir", "Herr", "Herrn", "Frau", "Mme", "Mlle", "Madame",
    "Monsieur", "Se\u00f1or", "Se\u00f1ora", "Sra",
))  # fmt: skip
_ENDINGS = ("s", "es", "ed", "d", "er", "ers", "ing", "ly")  # of words whose stem may be usual
#: Usual words that ask, and that texts say otherwise: "How often?" is answered by "each week".
_ASKED_BY = frozenset((
    "again", "allowed", "always", "called", "early", "ever", "far", "find", "get", "gets", "give",
    "given", "happen", "happened", "happens", "late", "long", "made", "make", "mean", "means", "need",
    "needed", "needs", "never", "often", "once", "please", "soon", "still", "take", "takes", "tell",
    "twice", "use", "used", "want", "yet",
))  # fmt: skip
#: Drawings beside documents: unlike photographs of text they seldom hold an answer.
_PICTURES = (".png", ".gif", ".svg", ".webp", ".ico", ".bmp")
_MOST = 5  # names in a note
_SURE = 0.8  # estimate below which usual words that no document has are named, too, unless it is below 1/2


def noted(
    selection: Selection,
    index: CorpusIndex | None = None,
    lacking: Iterable[Lacking] | None = None,
    *,
    given: bool = False,
) -> Selection:
    """Return the selection with what a user should know about its question and the documents.

    lacking: documents that a filter left out; by default those of the index.
    given: the index is of passages that were retrieved elsewhere.

    An estimate below 1/2 of how likely the documents answer is 1/2 where one text that is read has all
    telling words of the question.
    """
    made = selection
    if index is not None and _doubted(selection) and _holds_all(selection, index):
        made = replace(
            selection,
            answerable=0.5,
            remarks=lambda: tuple(one for one in selection.notes if one.code != "answerable"),
        )
    return replace(made, remarks=partial(_remarks, made, index, lacking, given))


def _remarks(
    selection: Selection, index: CorpusIndex | None, lacking: Iterable[Lacking] | None, given: bool
) -> tuple[Note, ...]:
    if lacking is None:
        lacking = () if index is None else _best_first(selection, index)
    found = [Note(one.code, str(one)) for one in lacking]
    if index is not None:
        found += [Note("not_named", text) for text in _not_named(selection, index, given)]
        unread = {one.source for one in index.unread if not one.source.lower().endswith(_PICTURES)}
        if (files := len(unread)) and _doubted(selection):
            text = (
                f"{plural(files, 'file')} could not be read in full, and may hold the answer: "
                "mio-rag index PATH --check lists them"
            )
            found.append(Note("unread_files", text))
        found += _of_other_versions(selection, index)
        if text := _foreign(selection.pool.question, index):
            found.append(Note("language", text))
    return (*selection.notes, *found)


def _best_first(selection: Selection, index: CorpusIndex) -> Iterator[Lacking]:
    """Documents that a filter left out, those first that have most of the question."""
    if not index.lacking or index.is_store:
        yield from index.lacking
        return
    best: dict[str, float] = {}
    scores = replace(index, allowed=None).scores_bm25(selection.pool.question)
    for passage, score in zip(index.passages, scores.tolist(), strict=True):
        best[passage.source or passage.id] = max(score, best.get(passage.source or passage.id, 0.0))
    for one in index.lacking:
        yield one._replace(names=tuple(sorted(one.names, key=lambda name: -best.get(name, 0.0))))


def _doubted(selection: Selection) -> bool:
    return not selection.chosen or (selection.answerable is not None and selection.answerable < 0.5)


def _holds_all(selection: Selection, index: CorpusIndex) -> bool:
    asked = set(index.words(" ".join(asked_words(selection.pool.question))))
    return bool(asked) and any(asked <= set(index.words(text)) for text in selection.texts)


def _of_other_versions(selection: Selection, index: CorpusIndex) -> Iterator[Note]:
    """That what is read came after the time asked of, or that there is something newer than it."""
    pool, question = selection.candidates, selection.pool.question
    names, sections = pool.names, pool.sections or [()] * len(pool)
    asked, likely = time_asked(question), likely_sources(pool, selection.chosen)
    replaced = {name for note in selection.notes if note.code == "older_version" for name in note.sources}
    chosen = [k for k in selection.chosen if (names[k][1] or pool.ids[k]) in likely]
    read, known = {names[k][1] for k in selection.chosen}, dict.fromkeys(selection.pool.names)
    for one in dict.fromkeys(names[k] for k in chosen):
        title, source, date = one
        if asked is None and (may_compare(question) or marks_of(question) or _in_its_month(date, question)):
            continue
        if asked and (moment(date) < asked.end or any(asked.end[:4] in text for text in selection.texts)):
            continue
        if asked and not index.is_store:  # before it says that none is of that time
            known = dict.fromkeys((p.title, p.source, p.date) for p in index.passages)
        versions = [v for v in known if v[1] != source and is_ordered(v, one) and called_alike(v, one)]
        series = [v for v in versions if not are_versions(*v[:2], *one[:2])]
        best = max({*versions} - {*series}, key=lambda v: in_force(v, question), default=None)
        if asked:
            when = f"'{source}' is dated {date}, after the time that the question asks of"
            if best and best[2] and in_force(best, question)[0]:
                if best[1] not in read:
                    yield Note("not_in_force", f"{when}; '{best[1]}' ({best[2]}) held then, and is not read")
            elif (best is None or best[2]) and (source in replaced or is_replaced_kind(title, source)):
                yield Note("not_in_force", f"{when}; no version of that time was found")
            continue
        if best and age(best) > age(one) and best[1] not in likely:
            text = f"'{source}' is an older version of '{best[1]}', which may not say this"
            yield Note("older_read", text)
        own, telling = [k for k in chosen if names[k] == one], index.words(" ".join(asked_words(question)))
        under = {tuple(map(bare_name, sections[k])) for k in own}
        told = set(index.words("\n".join(pool.texts[k] for k in own))).intersection(telling)
        newer, least = set[Names](), MAY_BE * pool.relevance.max()
        for k in np.flatnonzero(pool.relevance >= least / 4).tolist():
            is_newer = names[k] in series and age(names[k]) > age(one)
            if is_newer and tuple(map(bare_name, sections[k])) in under:
                shared = told.intersection(index.words(pool.texts[k]))
                if pool.relevance[k] >= least or 2 * len(shared) > len(told):
                    newer.add(names[k])
        if newer and not read & {name[1] for name in newer}:
            last = max(newer, key=age)
            text = f"'{last[1]}' ({last[2]}) is newer than '{source}' and speaks of the same"
            yield Note("newer_not_read", f"{text}: raise the budget")


def _in_its_month(date: str, question: str) -> bool:
    return len(date) > len("2026") and calendar.month_abbr[int(date[5:7])] in question


def _not_named(selection: Selection, index: CorpusIndex, given: bool) -> Iterator[str]:
    """Names, numbers, codes and rare words of the question that no document has, or nothing that is read."""
    question, own = selection.pool.question, _own(index)
    language = language_of(question, own)
    named, rare = list(_names(question, language)), list[str]()
    common = getattr(index.embedder, "is_common", None)
    if common is not None and {language, own} <= {"english", None}:
        begin = question.lstrip()[:1].isupper()  # "Compare" asks, and names nothing
        pieces = [one[0] for one in _PIECE.finditer(question)][begin:]
        pieces = [one for one in pieces if one.isalpha() and one.islower() and one not in _KINDS | _USUAL]
        unusual = [
            one for one in pieces if not any(map(common, (one, *(one.removesuffix(end) for end in _ENDINGS))))
        ]
        likely = selection.answerable
        unsure = likely is not None and 0.5 <= likely < _SURE  # nothing else is said
        rare = [one for one in pieces if one in unusual or (unsure and not _is_empty(one))]
    asked, versions = time_asked(question), [one for one in selection.notes if one.code == "older_version"]
    if asked and (asked.start == asked.end or any(", a newer version" in one for one in versions)):
        named = [name for name in named if not name.startswith(asked.start[:4])]  # it only bounds
    if is_known(selection.pool):
        numbers = {".".join(part.numbers) for part in parts_asked(question)}
        named = [name for name in named if name not in numbers]
    absent, elsewhere, texts = list[str](), list[str](), dict[bool, set[str]]()
    for name in dict.fromkeys([*named, *rare]):
        words = [one for one in tokens_of(name) if index.words(one)]
        shares = [] if index.is_store else list(map(index.share_with, words))
        is_absent, is_often = not all(shares), any(share > _OFTEN for share in shares)
        unsaid = name in named and bool(selection.chosen) and not is_often
        if not words or name in _ASKING or not (is_absent or unsaid):
            continue
        if is_absent and shares and _written_otherwise(name, index):
            continue
        stems = set(index.words(name))
        is_word = not _A_YEAR.fullmatch(name)
        if (read := texts.get(is_word)) is None:
            read = texts[is_word] = _read(selection, index, is_word)
        if not stems <= read and not (name in rare and all(_has_kin(one, read) for one in stems)):
            (absent if is_absent and not stems <= _titled(question, index) else elsewhere).append(name)
    among = "" if index.allowed is None else " that meets the filter"
    whole = "No passage given" if given else f"No document{among}"
    for who, names in ((whole, absent), ("Nothing that was read", elsewhere)):
        if names:
            yield f"{who} has {' or '.join(repr(name) for name in names[:_MOST])}."


def _is_empty(word: str) -> bool:
    """Whether a usual word says nothing of what is asked for."""
    return is_common(word) or word in _ASKED_BY or word.endswith("ly")


def _has_kin(stem: str, words: Iterable[str]) -> bool:
    """Whether one of some words begins as this one does, as "repayment" and "repaid"."""
    lengths = ((one, max(4, round(0.75 * min(len(one), len(stem))))) for one in words)
    return any(len(one) >= size and stem.startswith(one[:size]) for one, size in lengths)


def _written_otherwise(name: str, index: CorpusIndex) -> bool:
    """Whether a passage has in another form what none has as it is written: "check-in" for "checkin",
    "ISO 9001" for "ISO9001", "12.500" for "12,500", "1920s" for "1920", or perhaps a date.
    """
    if day_in(name, whole=True) or re.fullmatch(r"(?:19|20)\d\d[-/.]\d\d", name):
        return True
    bare = re.sub(r"[\W_]", "", name)
    if bare.isdecimal():
        if not _GROUPED.fullmatch(name):  # 12.50 is not 1,250
            whole = re.sub(r"(?<=\d)([.,]\d*?)0+$", r"\1", name).rstrip(".,")
            return whole != name and bool(index.scores_bm25(whole).any())
        others = [bare, f"{bare}s", f"{int(bare):,}", f"{int(bare):,}".replace(",", ".")]
    else:
        others = [bare, f"{bare}s"]
    others += [f"{bare[:k]} {bare[k:]}" for k in range(1, len(bare))]
    for other in others:
        if (words := index.words(other)) and all(map(index.share_with, words)):
            rows = np.flatnonzero(np.all([index.scores_bm25(one) > 0 for one in words], axis=0))
            form = rf"(?<![^\W_]){_SIGN.join(bare)}s?(?![^\W_])"
            found = (index.passages[k].text for k in rows[:_LOOKED_AT].tolist())
            if any(re.search(form, text, re.IGNORECASE) for text in found):
                return True
    return False


def _titled(question: str, index: CorpusIndex) -> set[str]:
    """The words of a question that stand in a title, a file's name or the beginning of a document."""
    rows = np.arange(len(index)) if index.allowed is None else np.flatnonzero(index.allowed)
    return set() if index.identities is None else index.identities.having(index.words(question), rows)


def _names(question: str, language: str | None) -> Iterator[str]:
    """Pieces of a question with digits, and with capitals where these tell names."""
    question = _APART.sub(r"\1", question)  # 12 500
    pieces = [one for one in _PIECE.finditer(question) if not _UNSPACED.search(one[0])]
    capitals = [one[0] != one[0].lower() for one in pieces]
    told = language != "german" and (len(pieces) < 4 or 3 * sum(capitals[1:]) <= 2 * len(capitals[1:]))
    for piece, capital in zip(pieces, capitals, strict=True):
        text = piece[0]
        if any(letter.isdigit() for letter in text):
            text = match[1] if (match := _MEASURED.fullmatch(text)) else text
            if not _ORDINAL.fullmatch(piece[0]) and not (text.isdecimal() and int(text) < _WRITTEN_OUT):
                yield text
        elif told and capital:
            inside = re.search(r"[^\W_][^.?!:]*$", question[: piece.start()])
            if text in _BEFORE_NAMES:
                continue
            if inside or re.search(r"\w[A-Z]", text):  # any word begins a sentence with a capital
                yield text


def _read(selection: Selection, index: CorpusIndex, is_word: bool = True) -> set[str]:
    """The words of what is read, and of where it comes from.

    is_word: count all texts. Else, for a year, only lines that have another telling word of the question, or
        stand below one that has: years are in many dates.
    """
    asked = [word for word in asked_words(selection.pool.question) if word.isalpha()]
    telling = set(index.words(" ".join(asked)))
    texts = list(selection.texts)
    if telling and not is_word:
        lines = [one for text in texts for one in _lines(_MARKED_YEAR.sub(r"\1", text))]
        texts = [line for line, near in lines if telling & set(index.words(near))]
    for part in selection.parts:
        month = calendar.month_name[int(part["date"][5:7])] if len(part["date"] or "") > 6 else ""
        texts += [re.sub(r"[-_./]+", " ", f"{part['source']} {part['date'] or ''}"), month, *part["section"]]
    found, pool = set(index.words("\n".join(texts))), selection.pool
    if is_word and index.identities is not None and pool.positions is not None and pool.sources is not None:
        sources = {part["source"] for part in selection.parts}
        rows = pool.positions[[one in sources for one in pool.sources]]
        found |= index.identities.having(index.words(pool.question), rows)
    return found


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line with the head of its table, and the same with the line that leads to it."""
    lead, head = "", ""
    for line in text.split("\n"):
        head = (head or line) if " | " in line else ""
        yield f"{head}\n{line}", f"{lead}\n{head}\n{line}"
        lead = lead if head else line


def _foreign(question: str, index: CorpusIndex) -> str:
    """That the embedder does not read a question, which is in another language than the documents."""
    asked, own = language_of(question, own := _own(index)), own
    if index.embedder.fingerprint != FINGERPRINT or asked is None or own is None or asked == own:
        return ""
    return f"the question is in another language than most documents ({own.title()}): {ENGLISH}"


def mixed(index: CorpusIndex) -> tuple[str, ...]:
    """Say that documents are in several languages, which the embedder does not read."""
    if index.embedder.fingerprint != FINGERPRINT or len(index.languages) < 2:
        return ()
    listed = ", ".join(f"{name.title()} {count}" for name, count in index.languages.most_common())
    return (f"documents are in several languages ({listed}): {ENGLISH}",)


def _own(index: CorpusIndex) -> str | None:
    """The language of most documents."""
    return index.languages.most_common(1)[0][0] if index.languages else None
