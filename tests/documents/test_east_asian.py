"""Chinese and Japanese documents: headings, items, lines without blanks between words, days."""

from pathlib import Path

import pytest

from mio_rag.documents.files import read_document, read_file
from mio_rag.types import Passage
from tests.documents.made import Piece, pdf, read, units

RULES = """第一章　総則

（目的）
第一条　この規則は、従業員の労働条件、服務規律その他の就業に関する事項を定め
るものである。この規則に定めのない事項は、法令の定めるところによる。

第二章　勤務

次の各号に掲げる者は対象としない。ただし、次のとおりとする。
　一　パートタイム従業員
　二　嘱託従業員

■年次有給休暇
・入社６か月経過後：１０日
・入社１年６か月経過後：１１日
①申請書を提出する。
"""


def _units(tmp_path: Path, name: str, text: str) -> list[tuple[str, tuple[str, ...]]]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")

    def path_of(passage: Passage, k: int) -> tuple[str, ...]:
        return passage.units[k].section or passage.section

    return [
        (p.text[u.start : u.end].strip(), path_of(p, k))
        for p in read_file(path).passages
        for k, u in enumerate(p.units)
    ]


REGULATION = """一、請假規定
（一）事假：一年內合計不得超過十四日。
（二）病假：一年內合計不得超過三十日。

二、加班費
1、延長工作時間在二小時以內者，加給三分之一以上。
2、再延長工作時間者，加給三分之二以上。
"""


def test_japanese_rules(tmp_path: Path) -> None:
    found = dict(_units(tmp_path, "rules.txt", RULES))
    first = "第一条 この規則は、従業員の労働条件、服務規律その他の就業に関する事項を定めるものである。"
    assert found[first] == ("第一章 総則", "（目的）")
    assert found["この規則に定めのない事項は、法令の定めるところによる。"] == ("第一章 総則", "（目的）")
    assert found["二 嘱託従業員"] == ("第二章 勤務",)
    assert found["・入社６か月経過後：１０日"] == ("第二章 勤務", "■年次有給休暇")
    assert "①申請書を提出する。" in found
    assert not [said for said in found if said.startswith(("第一章", "（目的", "■"))]


def test_marks_that_markdown_does_not_know_are_items(tmp_path: Path) -> None:
    text = "# 案内\n\n次のものは収集しません。\n・パソコン（本体、画面）\n・消火器\n\n以上です。\n"
    found = [said for said, _ in _units(tmp_path, "guide.md", text)]
    assert found[1:3] == ["・パソコン（本体、画面）", "・消火器"]


def test_items_under_a_counted_line_stand_under_its_heading(tmp_path: Path) -> None:
    found = dict(_units(tmp_path, "regulation.txt", REGULATION))
    assert found["（二）病假：一年內合計不得超過三十日。"] == ("一、請假規定",)
    assert found["2、再延長工作時間者，加給三分之二以上。"] == ("二、加班費",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.txt",
            "電源コードを抜くときは、必ずプラグを持って\n抜いてください。本体に水をかけないでください。",
        ),
        (
            "a.md",
            "電源コードを抜くときは、必ずプラグを持って\n抜いてください。本体に水をかけないでください。",
        ),
        (
            "a.html",
            "<p>電源コードを抜くときは、<ruby>必<rp>(</rp><rt>かなら</rt></ruby>ずプラグを持って\n"
            "  抜いてください。本体に水をかけないでください。</p>",
        ),
    ],
)
def test_the_end_of_a_line_is_no_blank(tmp_path: Path, name: str, text: str) -> None:
    assert [said for said, _ in _units(tmp_path, name, text)] == [
        "電源コードを抜くときは、必ずプラグを持って抜いてください。",
        "本体に水をかけないでください。",
    ]


@pytest.mark.parametrize(
    ("said", "day"),
    [
        ("改定日：２０２４年４月１日", "2024-04-01"),
        ("令和6年4月1日改定", "2024-04-01"),
        ("最終更新：令和元年5月", "2019-05"),
        ("修訂日期：中華民國113年5月20日", "2024-05-20"),
        ("發布日期：2023年12月31日", "2023-12-31"),
        ("中華民國一百一十三年五月二十日訂定", "2024-05-20"),
        ("令和元年十二月一日改正", "2019-12-01"),
        ("本辦法自2023年起三年內有效", ""),
    ],
)
def test_days(tmp_path: Path, said: str, day: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(
        f"就業規則\n\n{said}\n\n第一条　この規則は、従業員の労働条件を定める。\n", encoding="utf-8"
    )
    assert read_document(path).date == day


def test_lists_and_tables_hold_no_headings(tmp_path: Path) -> None:
    rows = "科目|前期|当期\n売上高|4,067|4,567\n営業損失|△120|▲98\n"
    said = "一、東京\n二、大阪\n当社は、東京と大阪に事務所を置き、平日の午前九時から午後五時まで受け付ける。"
    found = _units(tmp_path, "list.txt", f"連絡先\n\n{said}\n\n（単位：百万円）\n\n{rows}")
    assert {("一、東京", ()), ("二、大阪", ()), ("営業損失 | △120 | ▲98", ())} <= set(found)


def test_a_japanese_ordinance(tmp_path: Path) -> None:
    (tmp_path / "ordinance.txt").write_text(
        """みなと市条例
令和５年３月２４日
条例第８号

目次
　第１章　総則（第１条―第３条）
　第２章　開示（第４条―第６条）

　　　第１章　総則
　（登録簿）
第１条　市長は、次に掲げる事項を登録簿に記載しなければならない。
　（１）事務の名称
　（２）保存期間
　　　附　則
　この条例は、令和５年４月１日から施行する。
""",
        encoding="utf-8",
    )
    passages = read_file(tmp_path / "ordinance.txt").passages
    assert {p.date for p in passages} == {"2023-03-24"}
    lead = "第１条 市長は、次に掲げる事項を登録簿に記載しなければならない。"
    lines = {p.text[u.start : u.end]: [p.lines[n].text for n in u.needs] for p in passages for u in p.units}
    assert lines["（２）保存期間"] == ["（登録簿）", lead]
    assert lines["この条例は、令和５年４月１日から施行する。"] == ["附 則"]


def test_items_and_articles_begin_though_the_line_before_is_long(tmp_path: Path) -> None:
    lines = [
        "この規則は従業員の労働条件と服務規律その他の就業に関する事項を定めるものであり全員",
        "に適用する。",
        "第二条　会社は、次の書類を求める：",
        "（一）申請書及び本人確認の書類、写しを含む二通のもの",
        "（二）写真四枚",
    ]
    pieces = [Piece(60, 700 - 16 * k, line, 10.5, "J") for k, line in enumerate(lines)]
    found = [said.strip() for said in units(read(tmp_path, "rules.pdf", pdf(pieces)))]
    assert found == [lines[0] + lines[1], lines[2].replace("\u3000", " "), lines[3], lines[4]]
