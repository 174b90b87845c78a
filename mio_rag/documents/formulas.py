"""Formulas of Office files (m:oMath) -> a line of text."""

from __future__ import annotations

from typing import Any

_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"


def formula(element: Any) -> str:
    """A formula on one line: fractions with "/", powers with "^", indices with "_"."""
    return " ".join(_all(element).split())


def _all(element: Any) -> str:
    return "".join(_one(child) for child in element)


def _part(element: Any, name: str) -> str:
    found = element.find(_M + name)
    return "" if found is None else _all(found).strip()


def closed(text: str) -> str:
    """A part of a formula, in brackets unless it is one sign or word."""
    return text if len(text) == 1 or text.isalnum() else f"({text})"


def _sign(element: Any, settings: str, name: str, otherwise: str) -> str:
    found = element.find(f"{_M}{settings}/{_M}{name}")
    return otherwise if found is None else str(found.get(f"{_M}val") or "")


def _one(element: Any) -> str:
    tag = str(element.tag)
    name = tag.removeprefix(_M)
    if name == tag or name.endswith("Pr"):
        # Runs of text may stand in insertions and the like; deletions are not shown.
        return "" if tag.endswith(("}del", "}rPr", "}ctrlPr")) or name.endswith("Pr") else _all(element)
    if name == "t":
        return element.text or ""
    if name == "f":
        above, below = _part(element, "num"), _part(element, "den")
        return f"{closed(above)}/{closed(below)}"
    if name in ("sSup", "sSub", "sSubSup"):
        low, high = (_part(element, part) for part in ("sub", "sup"))
        ends = (f"_{closed(low)}" if low else "") + (f"^{closed(high)}" if high else "")
        return closed(_part(element, "e")) + ends
    if name == "sPre":
        return f"_{closed(_part(element, 'sub'))}^{closed(_part(element, 'sup'))}{_part(element, 'e')}"
    if name == "rad":
        degree = _part(element, "deg")
        return f"{degree + ' ' if degree else ''}\u221a({_part(element, 'e')})"
    if name == "nary":
        sign = _sign(element, "naryPr", "chr", "\u222b")
        below, above = _part(element, "sub"), _part(element, "sup")
        ends = (f"_{closed(below)}" if below else "") + (f"^{closed(above)}" if above else "")
        return f"{sign}{ends} {_part(element, 'e')}"
    if name == "d":
        parts = [_all(child).strip() for child in element.findall(f"{_M}e")]
        between = _sign(element, "dPr", "sepChr", "|")
        opens, closes = _sign(element, "dPr", "begChr", "("), _sign(element, "dPr", "endChr", ")")
        return f"{opens}{between.join(parts)}{closes}"
    if name == "func":
        return f"{_part(element, 'fName')} {closed(_part(element, 'e'))}"
    if name in ("limLow", "limUpp"):
        return f"{_part(element, 'e')}{'_' if name == 'limLow' else '^'}{closed(_part(element, 'lim'))}"
    if name == "m":
        rows = [
            ", ".join(_all(cell).strip() for cell in row.findall(f"{_M}e"))
            for row in element.findall(f"{_M}mr")
        ]
        return f"[{'; '.join(rows)}]"
    if name == "eqArr":
        return "; ".join(_all(row).strip() for row in element.findall(f"{_M}e"))
    if name == "acc":
        sign = _sign(element, "accPr", "chr", "\u0302")
        return f"{_part(element, 'e')}{sign}"
    return _all(element)
