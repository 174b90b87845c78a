"""Word: lists, formulas, ticks and changes as Word shows them."""

from pathlib import Path

import pytest

from mio_rag import Collection
from tests.documents.made import docx, paragraph, read, run, units

NUMBERING = (
    '<w:abstractNum w:abstractNumId="7"><w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/>'
    '<w:lvlText w:val="%1."/></w:lvl><w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="decimal"/>'
    '<w:lvlText w:val="%1.%2"/></w:lvl><w:lvl w:ilvl="2"><w:start w:val="1"/><w:numFmt w:val="lowerLetter"/>'
    '<w:lvlText w:val="(%3)"/></w:lvl></w:abstractNum><w:num w:numId="7"><w:abstractNumId w:val="7"/></w:num>'
    '<w:num w:numId="8"><w:abstractNumId w:val="7"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="9"/>'
    "</w:lvlOverride></w:num>"
)


def listed(text: str, level: int, number: int = 7) -> str:
    return paragraph(text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>')


def test_word_counts_its_lists_and_so_do_we(tmp_path: Path) -> None:
    body = [
        listed("Use", 0), listed("Six persons.", 1), listed("No dogs.", 1), listed("Large ones.", 2),
        listed("Small ones.", 2), listed("Costs", 0), paragraph("In between."),
        listed("Cleaning: 45 euros.", 1), listed("Annex", 0, 8),
    ]  # fmt: skip
    passages = read(tmp_path, "hire.docx", docx("".join(body), NUMBERING))
    assert [line.strip() for line in units(passages)] == [
        "1. Use", "1.1 Six persons.", "1.2 No dogs.", "(a) Large ones.", "(b) Small ones.", "2. Costs",
        "In between.", "2.1 Cleaning: 45 euros.", "9. Annex",
    ]  # fmt: skip


def text_of(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


X = text_of("x")
RAISED = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>{}</w:t></w:r>'
LEGACY = (
    '<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:checkBox><w:default w:val="0"/>{}</w:checkBox>'
    "</w:ffData></w:fldChar></w:r><w:r><w:instrText> FORMCHECKBOX </w:instrText></w:r>"
    '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
)
STRUCK = "<w:r><w:rPr><w:strike/></w:rPr><w:t>4</w:t></w:r>"
CONTROL = (
    '<w:sdt><w:sdtPr><w14:checkbox><w14:checked w14:val="{}"/></w14:checkbox></w:sdtPr><w:sdtContent>'
    "<w:r><w:t>x</w:t></w:r></w:sdtContent></w:sdt>"
)


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        (run("C = ") + f"<m:oMath>{text_of('1.85 × L')}</m:oMath>", "C = 1.85 × L"),
        (f"<m:oMath><m:f><m:num>{text_of('a+b')}</m:num><m:den>{X}</m:den></m:f></m:oMath>", "(a+b)/x"),
        (f"<m:oMath><m:sSup><m:e>{X}</m:e><m:sup>{text_of('2')}</m:sup></m:sSup></m:oMath>", "x^2"),
        (f"<m:oMath><m:rad><m:deg/><m:e>{text_of('y')}</m:e></m:rad></m:oMath>", "√(y)"),
        (LEGACY.format("<w:checked/>") + run("yes ") + LEGACY.format("") + run("no"), "☒ yes ☐ no"),
        (CONTROL.format(1) + run("yes ") + CONTROL.format(0) + run("no"), "☒ yes ☐ no"),
        ('<w:r><w:sym w:font="Wingdings" w:char="F0FE"/></w:r>' + run(" paid"), "☑ paid"),
        ('<w:r><w:sym w:font="Nobody" w:char="F0FE"/></w:r>' + run(" paid"), "[sign] paid"),
        (f"<w:ins>{run('In')}</w:ins><w:del><w:r><w:delText>out</w:delText></w:r></w:del>", "In"),
        (f"<w:moveFrom>{run('gone')}</w:moveFrom><w:fldSimple>{run('Field')}</w:fldSimple>", "Field"),
        ("<w:r><w:rPr><w:vanish/></w:rPr><w:t>hidden</w:t></w:r>" + run("Shown."), "Shown."),
        (run("It is ") + STRUCK + run("5"), "It is 5"),
        (run("10") + RAISED.format("-") + RAISED.format("6") + run(" m"), "10^-6 m"),
        (run("10") + RAISED.format("-6") + run(" m"), "10^-6 m"),
        (run("the 1") + RAISED.format("st") + run(" trip"), "the 1st trip"),
    ],
)  # fmt: skip
def test_a_paragraph_of_word_reads_as_it_is_shown(tmp_path: Path, runs: str, wanted: str) -> None:
    assert units(read(tmp_path, "a.docx", docx(f"<w:p>{runs}</w:p>"))) == [wanted]


def test_a_clause_that_word_counts_is_read_by_its_number(tmp_path: Path) -> None:
    body = [
        listed("Use", 0), listed("Six persons may stay.", 1), listed("These stay outside:", 1),
        listed("large dogs,", 2), listed("small dogs.", 2), listed("Costs", 0),
        listed("Cleaning: 45 euros.", 1),
    ]  # fmt: skip
    (tmp_path / "hire.docx").write_bytes(docx("".join(body), NUMBERING))
    docs = Collection(tmp_path, embedder="minilm")
    inner = docs.select("Clause 1.2(b)", budget=20).context
    assert "1.2 These stay outside:\n    (b) small dogs." in inner
    assert "2.1 Cleaning" in docs.select("What does clause 2.1 of the hire say?", budget=15).context
