"""Scripts without blanks between words, and how Chinese and Japanese documents mark their parts."""

from __future__ import annotations

import re

from mio_rag.sentences import pattern

#: Characters of scripts that put no blanks between words.
NO_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
PER_WORD = 1.7  # characters of them
_ALONE = pattern(f"[{NO_SPACES}]")
#: The end of a line between characters that no blank parts; full-width signs are such characters, too.
_WIDE = f"{NO_SPACES}\u2018-\u201d\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff65"
_LINE_END = pattern(rf"(?<=[{_WIDE}])[^\S\n]*\n\s*(?=[{_WIDE}\d])|(?<=\d)[^\S\n]*\n\s*(?=[{_WIDE}])")
_COUNT = "\\d〇零一二三四五六七八九十百千壹貳參肆伍陸柒捌玖拾"
#: Marks of list items; they need no blank behind them.
ITEM_MARKS = (
    r"[\u30fb\uff65\u2027\u25cf\u25cb\u25a0\u25a1\u25c6\u25c7\u25ce\u25b6\u25bc\u2605\u2606\u203b]\s*(?=\S)"
    r"|[\u25b2\u25b3]\s*(?=[^\s\d])"
    r"|[\u2460-\u249b\u24ea\u2776-\u277f\u3220-\u3229]\s*(?=\S)"
    rf"|[(\uff08](?:[{_COUNT}]{{1,3}}|[\u30a2-\u30f3\u3042-\u3093])[)\uff09]\s*(?=\S)"
    rf"|[{_COUNT}]{{1,3}}[\u3001\uff0e](?![{_COUNT}])\s*(?=\S)"
    r"|[一二三四五六七八九十]{1,3}[\u3000 ]\s*(?=\S)"
)
#: Kinds of these marks, outermost first.
MARK_KINDS = (
    r"(?P<square>[\u25a0\u25a1\u25c6\u25c7\u25ce\u25b6\u25bc\u2605\u2606])"
    r"|(?P<han>[一二三四五六七八九十壹貳參肆伍陸柒捌玖拾]{1,3}[\u3001\uff0e\u3000 ])"
    r"|(?P<hanround>[(\uff08][一二三四五六七八九十]{1,3}[)\uff09])"
    r"|(?P<wide>\d{1,3}[\u3001\uff0e])"
    r"|(?P<round>\uff08\d{1,3}\uff09)"
    r"|(?P<circle>[\u2460-\u2473\u24ea\u2776-\u277f])"
    r"|(?P<dot>[\u30fb\uff65\u2027\u25cf\u25cb\u203b])"
)
_SENTENCE = pattern("[\u3002\uff0c\u3001\uff1b\uff1f\uff01;!?|]|[\uff1a:].")
_CHAPTER = pattern(
    rf"第\s?[{_COUNT}]{{1,4}}\s?(?P<kind>[章節节款編编篇部條条回課课講讲])(?:の[{_COUNT}]{{1,2}})?(?:\s|[(\uff08]|$)"
)
_RANGE = pattern(f"[(\uff08]第[{_COUNT}]+[條条].{{0,3}}第[{_COUNT}]+[條条].{{0,3}}[)\uff09]$")
_LEVELS = {**dict.fromkeys("編编篇部章", 1), **dict.fromkeys("條条", 3)}  # of others 2
_ENDS = "\u3011\u3015\uff3d\u300b\u3009"
_BRACKETS = pattern(f"[\u3010\u3014\uff3b\u300a\u3008]([^{_ENDS}]+)[{_ENDS}]")
_ROUND = pattern("[(\uff08][^()\uff08\uff09\u3001\u3002\uff1a:\\d]{2,20}[)\uff09]")
_HEADS = {"han": 2, "square": 3, "hanround": 3, "wide": 4}  # kinds of marks -> levels
_LONGEST = 30  # characters of a heading, without its number
#: Ends of what leads into a list.
LEADS = (
    "(?:以下|次|下記|左)の(?:とおり|通り|もの|各号)[^\u3002]{0,12}[\u3002]?"
    "|次(?:に掲げる|の各号)[^\u3002]{0,40}\u3002?"
    "|(?:如下|下列[^\u3002]{0,8})[\uff1a:\u3002]?"
)
#: A day with the signs for year, month and day; also of an era.
DAY = (
    r"(?:(?P<y6>(?:19|20)\d\d)|(?P<era>令和|平成|昭和|中華民國|中华民国|民國|民国)\s?(?P<n>\d{1,3}|元))\s?年\s?"
    r"(?P<m6>\d\d?)\s?月(?:\s?(?P<d6>\d\d?)\s?日)?"
)
#: The year before the first of each era.
ERAS = {
    "令和": 2018,
    "平成": 1988,
    "昭和": 1925,
    **dict.fromkeys(("中華民國", "中华民国", "民國", "民国"), 1911),
}
#: What says that a day is that of the document.
STATED = (
    "(?:更新|改定|改正|改訂|修訂|修订|修正|制定|訂定|發布|发布|発行|發行|公布|公告|公開|掲載|施行|生效|作成)"
    "(?:年月)?(?:日期|日|時間|时间)?"
)
_NUMERALS = "[〇零一二三四五六七八九十百]+"
_HAN = pattern(_NUMERALS)
_HAN_PART = pattern(f"(?<=第){_NUMERALS}(?=[条條章項项号號节節款])")
_HAN_DAY = pattern(f"(?:元|{_NUMERALS})年{_NUMERALS}月(?:{_NUMERALS}日)?")
_DIGITS = {0xFF10 + k: str(k) for k in range(10)} | {0xFF0D: "-", 0xFF0F: "/", 0xFF0E: "."}


_DAY_LINE = pattern(f"[(\uff08]?{DAY}[)\uff09]?(?P<kind>[^\u3002\u3001\uff0c\u304b]{{0,16}})")


def is_day(line: str) -> bool:
    """Whether a line says a day, and at most of what, as "令和６年４月１日条例第８号"."""
    return not line.isascii() and _DAY_LINE.fullmatch(narrow_digits(line)) is not None


def is_wide(text: str) -> bool:
    """Whether a text has characters of a script without blanks between words."""
    return not text.isascii() and _ALONE.search(text) is not None


def count_words(text: str) -> float:
    """Words, whatever the script; what is no language counts by its length."""
    if text.isascii():
        return max(len(text.split()), len(text) / 40)
    rest, alone = _ALONE.subn(" ", text)
    return alone / PER_WORD + max(len(rest.split()), (len(text) - alone) / 40)


def without_line_ends(text: str) -> str:
    """A text without the ends of lines that stand where no blank does."""
    return text if text.isascii() or "\n" not in text else _LINE_END.sub("", text)


def narrow_digits(text: str) -> str:
    """A text with its full-width digits, and the numbers of its days, as usual digits."""
    if text.isascii():
        return text
    return _HAN_DAY.sub(lambda found: _HAN.sub(_counted, found[0]), text.translate(_DIGITS))


def _counted(found: re.Match[str]) -> str:
    """A number in Chinese characters, to 999, in digits."""
    total = digit = 0
    for sign in found[0]:
        if scale := {"十": 10, "百": 100}.get(sign):
            total, digit = total + (digit or 1) * scale, 0
        else:
            digit = 10 * digit + "〇一二三四五六七八九".find(sign.replace("零", "〇"))
    return str(total + digit)


def plain_numbers(text: str) -> str:
    """`narrow_digits`, with brackets and the numbers of parts ("第三条") as usual, too."""
    if text.isascii():
        return text
    text = narrow_digits(text).translate({0xFF08: "(", 0xFF09: ")"})
    return _HAN_PART.sub(_counted, text)


def heading_level(line: str, after: str = "", before: str = "") -> int:
    """The level, 1 to 4, of a line that reads as a heading of a Chinese or Japanese text; 0 for others.

    after, before: the lines around it.
    """
    if line.isascii() or len(line) > _LONGEST + 8 or not _ALONE.search(line):
        return 0
    if _RANGE.search(line):
        return 0  # of a list of contents
    if re.fullmatch(r"附\s?[則则]", line):
        return 1
    if found := _CHAPTER.match(line):
        level = _LEVELS.get(found["kind"], 2)
        article = level == 3 and len(line) - found.end() > 12 and line[-1] not in ")\uff09"  # its text
        return 0 if article or _SENTENCE.search(line) else level
    if _ROUND.fullmatch(line):
        return 3 if after and re.match(f"第[{_COUNT}]|\\d", after) else 0
    if found := _BRACKETS.fullmatch(line):
        return 0 if _SENTENCE.search(found[1]) else 3
    mark = re.match(f"(?:{ITEM_MARKS})", line)
    if mark is not None and len(line) - mark.end() <= _LONGEST and not _SENTENCE.search(line[mark.end() :]):
        kind = mark_kind(line)
        # One of a list stands beside another of its kind, or leads into one.
        beside = kind in map(mark_kind, (after, before))
        if kind in _HEADS and after and not beside and line[-1] not in "\uff1a:":
            return _HEADS[kind]
    return 0


_KIND = pattern(MARK_KINDS)


def mark_kind(text: str) -> str:
    """What kind of mark a line begins with; blank for none of these."""
    found = _KIND.match(text)
    return (found.lastgroup or "") if found else ""


def may_head(line: str, after: str) -> bool:
    """Whether a short line that stands alone before a longer text reads as its heading: a name."""
    return (
        is_wide(line)
        and 2 <= len(line) <= 20
        and not _SENTENCE.search(line)
        and not re.search(r"\d{3}|[\d%\uff05円元]$|[\uff1a:]$|です$|ます$|した$", line)
        and len(after) > max(30, 2 * len(line))
    )
