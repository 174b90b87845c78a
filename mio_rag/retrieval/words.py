"""The words of texts in any script, as BM25 counts them: of the corpus and of questions alike.

Words are in lower case, stemmed (Snowball) and without stop words, by the languages that the corpus is in. A
number is one word: "1,200" is 1200, and so is a year: "FY2023" is 2023. Chinese, Japanese and Korean, which
do not always put white space between words, are cut into pairs of characters and single Chinese ones; Thai,
Lao, Khmer and Burmese into three characters in a row.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError
from mio_rag.sentences import pattern

#: Frequent words of each language that say nothing by themselves, and by which it is known.
STOP_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in json.loads(
        Path(__file__).with_name("stop_words.json").read_text(encoding="utf-8")
    ).items()
}
#: Further words by which the language of a short question is known.
_ASKING = {
    "german": "darf dürfen gibt kostet lange man muss müssen soll viel viele wieviel wieso warum wofür woher",
    "french": "chaque combien coûte dois doit faut peut puis quoi tous toutes",
    "spanish": "cuesta cuánta cuántas cuánto cuántos cuándo cómo debe dónde hay puede puedo qué quién",
    "italian": "chi come costa deve dove perché può posso quando quanta quante quanti quanto",
    "portuguese": "como custa deve onde pode posso quando quanto quantos",
    "dutch": "hoe hoelang hoeveel kost mag moet wanneer waar wie",
}
_TELLING = {name: words | {*_ASKING.get(name, "").split()} for name, words in STOP_WORDS.items()}
_LATIN = (
    *("english", "german", "french", "spanish", "italian", "portuguese", "dutch", "swedish", "norwegian"),
    *("danish", "finnish", "hungarian", "romanian", "turkish", "polish", "czech", "catalan", "indonesian"),
)
#: Languages of a script, and its characters; those of one script are told apart by their stop words.
_SCRIPTS = (
    (_LATIN, "a-zß-öø-ÿ\u0100-\u024f\u1e00-\u1eff"),
    (("russian",), "\u0400-\u052f"),
    (("arabic", "persian"), "\u0600-\u06ff\u0750-\u077f"),
    (("greek",), "\u0370-\u03ff\u1f00-\u1fff"),
    (("hindi",), "\u0900-\u097f"),
)
_OF_SCRIPT = tuple((languages, re.compile(f"[{span}]")) for languages, span in _SCRIPTS)
_LEAST_SHARE = 0.05  # stop words among the words of a language that is known by them
_FEW = 200  # words of Latin script: so few are taken for English
_SAMPLE, _SAMPLE_LENGTH = 1000, 600  # texts and characters that languages are known by

#: Marks that stand above, below or between letters; Python does not count them among the letters.
_MARKS = (
    "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u0e01-\u0e3a\u0e40-\u0ecd\u0f18-\u0fbc\u1000-\u1049\u1050-\u109f\u1780-\u17d3"
)
#: A full stop or comma between digits is part of a number.
_TOKEN = pattern(rf"[\w{_MARKS}]+(?:(?<=\d)[.,](?=\d)[\w{_MARKS}]+)*")
_ASCII_TOKEN = pattern(r"[a-z0-9]+(?:(?<=\d)[.,](?=\d)[a-z0-9]+)*", re.ASCII)
_THOUSANDS = pattern(r",(?=\d{3}(?!\d))")
_UNSEEN = {ord(c): None for c in "\u00ad\u200b\u200c\u200d\u2060\ufeff\u0640"} | {ord("_"): " "}
_HAN = "\u3005\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUNS = pattern(
    rf"(?P<pairs>[{_HAN}\u3040-\u30ff\uac00-\ud7af]+)|(?P<threes>[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+)"
    rf"|[^{_HAN}\u3040-\u30ff\uac00-\ud7af\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+"
)
_ONE_HAN = pattern(f"[{_HAN}]")
_ACCENTS = pattern("[\u0300-\u036f\u064b-\u065f\u0670]")
#: Years and quarters as companies write them: "FY2023", "FY23", "2023Q4", "Q22023".
_FISCAL = pattern(
    r"(?:fy)?((?:19|20)\d\d)(q[1-4]|h[12])|fy((?:19|20)?\d\d)|((?:19|20)\d\d)fy|(q[1-4]|h[12])(?:fy)?((?:19|20)?\d\d)"
)
#: Numbers from two on, and ordinals, as questions write them out.
_NUMBERS = {
    language: {word: str(k) for k, word in enumerate(words.split(), 2)}
    for language, words in {
        "english": "two three four five six seven eight nine ten eleven twelve",
        "german": "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
        "french": "deux trois quatre cinq six sept huit neuf dix onze douze",
        "spanish": "dos tres cuatro cinco seis siete ocho nueve diez once doce",
    }.items()
}
_ORDINALS = {"1st": "first", "2nd": "second", "3rd": "third", "4th": "fourth", "5th": "fifth"}
_MOST_KNOWN = 500_000  # words whose stems are remembered


class Words:
    """Finds the words of a text.

    languages: at most one of each script, by its name in Snowball. Words of other scripts are not stemmed.

    Raises `InputError` for a language that is not known here.
    """

    def __init__(self, languages: Sequence[str] = ("english",)) -> None:
        unknown = sorted(set(languages) - set(STOP_WORDS))
        if unknown:
            raise InputError(f"words of {', '.join(unknown)} are not known: build the index again")
        self.languages = tuple(languages)
        self._stop = frozenset[str]().union(*(STOP_WORDS[language] for language in languages))
        self._stemmers: dict[str, Any] = {}
        self._known: dict[str, tuple[str, ...]] = {}

    @classmethod
    def of(cls, texts: Sequence[str]) -> Words:
        """Those for the languages of a corpus: of each script the one with most stop words."""
        return cls(_languages(texts)[0])

    @classmethod
    def foreign(cls, texts: Sequence[str]) -> Words | None:
        """`of` a corpus that is mainly in other languages than English; None for others."""
        languages, other = _languages(texts)
        return cls(languages) if other else None

    def __call__(self, text: str) -> list[str]:
        """The words in their order, as often as they stand there."""
        found: list[str] = []
        known = self._known
        for token in tokens_of(text):
            words = known.get(token)
            if words is None:
                if len(known) > _MOST_KNOWN:
                    known.clear()
                words = known[token] = tuple(self._words(token))
            found += words
        return found

    def asked(self, question: str) -> list[str]:
        """The words of a question, each once, and the other forms of its numbers: "3" for "three"."""
        found, said = self(question), tokens_of(question)
        numbers = [_NUMBERS[language] for language in self.languages if language in _NUMBERS]
        found += [known[token] for token in said for known in numbers if token in known]
        forms = _ORDINALS | {word: number for number, word in _ORDINALS.items()}
        found += self(" ".join(forms[token] for token in said if token in forms))
        return [*dict.fromkeys(found)]

    def _words(self, token: str) -> Iterable[str]:
        if token.isascii():
            yield from self._word(token)
            return
        for run in _RUNS.finditer(token):
            piece = run.group()
            if run.lastgroup is None:
                yield from self._word(piece)
            elif run.lastgroup == "threes":
                yield from (piece[k : k + 3] for k in range(max(1, len(piece) - 2)))
            else:
                yield from (piece[k : k + 2] for k in range(len(piece) - 1))
                yield from _ONE_HAN.findall(piece) if len(piece) > 1 else (piece,)

    def _word(self, token: str) -> Iterable[str]:
        if token in self._stop or (len(token) == 1 and not token.isdigit()):
            return
        if token.isdigit():
            yield token
        elif (token[:1].isdigit() or token[0] in "fqh") and (found := _FISCAL.fullmatch(token)):
            yield from (
                f"20{part}" if len(part) == 2 and part.isdigit() else part
                for part in filter(None, found.groups())
            )
        elif "," in token or "." in token:
            yield from _THOUSANDS.sub("", token).split(",")
        else:
            bare = _ACCENTS.sub("", token) if "\u0600" <= token[0] <= "\u06ff" else token
            stem = self._stem(bare)
            if not stem.isascii() and _OF_SCRIPT[0][1].match(stem):
                stem = _ACCENTS.sub("", unicodedata.normalize("NFD", stem))
            yield stem or token

    def _stem(self, word: str) -> str:
        for languages, letter in _OF_SCRIPT:
            if letter.match(word):
                language = next((name for name in self.languages if name in languages), None)
                if language is None:
                    return word
                if language not in self._stemmers:
                    from snowballstemmer import stemmer

                    self._stemmers[language] = stemmer(language)
                return str(self._stemmers[language].stemWord(word))
        return word


def _languages(texts: Sequence[str]) -> tuple[list[str], bool]:
    """The languages of a corpus, one of each script, and whether it is mainly in others than English."""
    counts: Counter[str] = Counter()
    for text in texts[:: max(1, len(texts) // _SAMPLE)]:
        counts.update(tokens_of(text[:_SAMPLE_LENGTH]))
    found, other = [], False
    unusual = {word: count for word, count in counts.items() if not word.isascii()}
    for languages, letter in _OF_SCRIPT:
        given = counts if languages is _LATIN else unusual
        words = {word: count for word, count in given.items() if letter.match(word)}
        total = sum(words.values())
        told = {name: sum(words[word] for word in words.keys() & STOP_WORDS[name]) for name in languages}
        best = max(languages, key=lambda name: told[name])
        known = told[best] >= _LEAST_SHARE * max(1, total)
        if languages is _LATIN:
            numbers = sum(count for word, count in counts.items() if word[0].isdigit())
            few = 2 * total < counts.total() - numbers
            if few or not known:  # names, or too little to tell
                known, best = few or total < _FEW, "english"
            other = few or (known and best != "english")
        if known:
            found.append(best)
    return found, other


@lru_cache(maxsize=64)
def language_of(text: str, usual: str | None = None, least: int = 2) -> str | None:
    """The language of a text by its stop words, "another script" where none is known, None for too few words.

    usual: the language that it is in unless another has twice as many stop words in it; English otherwise.
    least: so many stop words tell a language.
    """
    words = [word for word in tokens_of(text[:_SAMPLE_LENGTH]) if not word[0].isdigit()]
    for languages, letter in _OF_SCRIPT:
        own = [word for word in words if letter.match(word)]
        if 2 * len(own) < len(words) or not words:
            continue
        told = {name: sum(map(_TELLING[name].__contains__, own)) for name in languages}
        likely = usual if usual in told else languages[0]
        best = max(told, key=lambda name: told[name])
        best = best if told[best] > 2 * told[likely] else likely
        return best if told[best] >= (1 if best == usual else least) else None
    return "another script" if words else None


def tokens_of(text: str) -> list[str]:
    """The words of a text in lower case, with stop words and unstemmed."""
    if text.isascii():
        return _ASCII_TOKEN.findall(text.lower())
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).lower().translate(_UNSEEN))
