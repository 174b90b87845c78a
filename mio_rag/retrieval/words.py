"""The words of texts in any script, as BM25 counts them: of the corpus and of questions alike.

Words are in lower case, stemmed (Snowball) and without stop words, by the languages that the corpus is in. A
number is one word: "1,200" is 1200. Chinese, Japanese and Korean, which do not always put white space between
words, are cut into pairs of characters and single Chinese ones; Thai, Lao, Khmer and Burmese into three
characters in a row.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from mio_rag.errors import InputError

#: Frequent words of each language that say nothing by themselves, and by which it is known.
STOP_WORDS = {
    language: frozenset(words.split())
    for language, words in {
        "english": "a about all also am an and any are as at be been being but by can could did do does doing don "
        "doesn for from had has have he her his how i if in into is isn it its ll may me might more my no not of "
        "on or our re she should so some such than that the their them then there these they this those to us "
        "ve was we were what when where which while who whom whose why will with would you your",
        "german": "aber alle als am an auch auf aus bei bis da das dass dem den der des die diese dieser dieses "
        "durch ein eine einem einen einer eines er es für haben hat hatte ich ihr ihre im in ist kann mit nach "
        "nicht noch nur oder sein seine sich sie sind so über um und uns unter vom von vor war waren was welche "
        "welcher welches wenn wer werden wie wird wir wo wurde wurden zu zum zur",
        "french": "a ai au aux avec avait ce ces cet cette comment dans de des du elle en est et étaient était "
        "être eu il ils je la le les leur leurs lui mais ne nous on ont ou où par pas pour pourquoi qu quand que "
        "quel quelle quelles quels qui sa sans se ses si son sont sur un une vous y à",
        "spanish": "a al como cómo con cual cuál cuáles cuando cuándo de del desde donde dónde el ella en entre "
        "era es esta está este esto fue ha han hay la las le les lo los más me mi muy no nos o para pero por qué "
        "que quien quién se ser si sin sobre son su sus también un una uno y ya",
        "italian": "a ai al alla alle anche che chi ci come con cosa da dal dalla dei del della delle di dove è e "
        "ed era fu gli ha hanno i il in io la le lo ma nel nella non o per perché più quale quali quando quanto "
        "questa questo se si sono su sua sul sulla suo tra un una uno",
        "portuguese": "a ao aos as até com como da das de do dos e é ela ele em entre era essa esse esta este eu "
        "foi há isso já mais mas na não nas no nos o os ou para pela pelo por qual quais quando que quem se sem "
        "ser seu sua são também um uma onde",
        "dutch": "aan als bij dan dat de deze die dit door een en er had heb heeft het hij hoe hun ik in is je "
        "kan maar me met naar niet nog of om ook op over te tot uit van voor waar waarom wanneer was wat we welke "
        "werd wie wij wordt worden ze zich zij zijn zo",
        "swedish": "alla att av de den det detta dig du där efter ej eller en ett från för ha hade han har hon "
        "hur i inte jag kan man med men mot mycket när och om på sedan sig sin som så till under upp ut vad var "
        "vem vi vid vilka vilken vilket är",
        "norwegian": "alle at av bare da de den der det dette du eller en er et etter for fra ha hadde han har "
        "hun hva hvem hvilke hvilken hvor hvordan hvorfor i ikke jeg kan man med men mot når og også om på seg "
        "sin skal som til ut var ved vi vil være",
        "danish": "af alle at blev da de den der deres det dette du efter eller en er et for fra ham han har "
        "havde hun hvad hvem hvilke hvilken hvor hvordan hvorfor i ikke jeg kan man med men mod når og også om op "
        "på sig skal som til ud var ved vi vil være",
        "finnish": "ei eivät että hän he ja jo joka jonka jos jotka kanssa kuin kuka kun kuten mikä milloin minä "
        "missä miten mitä mukaan mutta myös ne niin niitä oli olivat olla on ovat se sekä sen siitä sitä tai "
        "tämä tämän vain voi",
        "hungarian": "a az egy és hogy nem is ez azt de van volt mint csak meg már ki mi mit hogyan hol mikor "
        "miért melyik vagy ha el fel még amely ami aki voltak lehet sem után között által ezt ennek",
        "romanian": "a acest această ai al ale am ar are au ca care ce cel cine cu cum când de din după este ei "
        "era fi fost în între la lui mai nu o pe pentru prin sau se sunt să și unde un una unei unui",
        "turkish": "ama bir bu da daha de değil en gibi hangi her için ile ise kadar ki kim mi mı nasıl ne neden "
        "nerede olan olarak oldu olduğu olup o sonra şu ve veya ya",
        "polish": "a ale aby był była być co czy dla do gdzie go i ich ile jak jako jaki jest jego jej kiedy kto "
        "która które który ma może na nie o od oraz po pod przez przy się są ta tak także tego ten to tym w we z "
        "za ze że",
        "czech": "a aby ale by byl byla bylo co do i jak jako je jeho jejich jen jsou k kde kdo kdy která které "
        "který má na nebo o od po pro proč při s se si tak také to v ve z za ze že",
        "catalan": "a al amb aquest aquesta com de del dels des el els en entre era és ha han i la les li mes més "
        "no o on pel per perquè què quan qui quin quina se seu seva si són també un una va",
        "indonesian": "ada adalah akan apa atau bagaimana bahwa bisa dalam dan dapat dari dengan di ini itu juga "
        "kapan karena ke lebih mana mereka oleh pada sebagai siapa tidak untuk yang",
        "russian": "а без бы был была были было быть в вы где для до его ее её если есть же за и из или им их к "
        "как какая какие какой какое когда кто ли мы на не него но о об он она они от по под почему при с со так "
        "также то того у что чтобы это этого эта этот я",
        "arabic": "أن إلى التي الذي الذين أو أي أين إن به بها ثم حتى حيث ذلك عن على عند في فيه قد كان كانت كل كما "
        "كم كيف لا لكن لم لماذا له لها ما ماذا متى مع من منها هذا هذه هل هم هو هي و وقد",
        "persian": "آن آنها از است اما او این با باید بر برای بود به تا چه چرا چگونه خود در را شد شده کجا کدام کرد "
        "که کی ما می نیز ها های هر هم همه و یا یک",
        "greek": "αλλά από αυτό αυτή για δεν είναι εκ ένα ένας ή η ήταν θα και κατά με μετά μια να ο οι όπως ότι "
        "πού που πως πώς πότε ποια ποιος προς σε στα στη στην στις στο στον τα της τη την τι τις το του τον τους "
        "των ως",
        "hindi": "अपने आदि इस इसके उस उसके एक और कब कर करने करते का कि किस किसी की के को कौन क्या क्यों गया जा जैसे "
        "जो तक तथा तो था थी थे द्वारा नहीं ने पर भी में यह या ये रहा लिए वह वे से हुआ है हैं हो होता होती कहाँ कैसे",
    }.items()
}
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
_TOKEN = re.compile(rf"[\w{_MARKS}]+(?:(?<=\d)[.,](?=\d)[\w{_MARKS}]+)*")
_ASCII_TOKEN = re.compile(r"[a-z0-9]+(?:(?<=\d)[.,](?=\d)[a-z0-9]+)*", re.ASCII)
_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")
_UNSEEN = {ord(c): None for c in "\u00ad\u200b\u200c\u200d\u2060\ufeff\u0640"} | {ord("_"): " "}
_HAN = "\u3005\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUNS = re.compile(
    rf"(?P<pairs>[{_HAN}\u3040-\u30ff\uac00-\ud7af]+)|(?P<threes>[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+)"
    rf"|[^{_HAN}\u3040-\u30ff\uac00-\ud7af\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+"
)
_ONE_HAN = re.compile(f"[{_HAN}]")
_ACCENTS = re.compile("[\u0300-\u036f\u064b-\u065f\u0670]")
_MOST_KNOWN = 500_000  # words whose stems are remembered


class Words:
    """Finds the words of a text.

    Parameters
    ----------
    languages : sequence of str
        At most one of each script, by its name in Snowball. Words of other scripts are not stemmed.

    Raises
    ------
    InputError
        For a language that is not known here.
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
        for token in _tokens(text):
            words = known.get(token)
            if words is None:
                if len(known) > _MOST_KNOWN:
                    known.clear()
                words = known[token] = tuple(self._words(token))
            found += words
        return found

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
        counts.update(_tokens(text[:_SAMPLE_LENGTH]))
    found, other = [], False
    for languages, letter in _OF_SCRIPT:
        words = {word: count for word, count in counts.items() if letter.match(word)}
        total = sum(words.values())
        told = {name: sum(words.get(word, 0) for word in STOP_WORDS[name]) for name in languages}
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


def _tokens(text: str) -> list[str]:
    if text.isascii():
        return _ASCII_TOKEN.findall(text.lower())
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).lower().translate(_UNSEEN))
