"""Fill the tables of the guide's pages from benchmarks/published: `python -m benchmarks.pages`.

`<!-- study: RESULT "TITLE" "COLUMN,COLUMN+" "ROW;ROW" -->` stands above each; a plus takes differences, too.
"""

import json
import re
import shlex
from pathlib import Path

PAGES, RESULTS = Path("docs/pages"), Path(__file__).parent / "published"
_PLACE = re.compile(r"(<!-- study: (.*?) -->\n\n)(?:\|.*\n)*\n*")


def table(result: str, title: str, columns: str = "", rows: str = "") -> str:
    """Return a table of a result as Markdown."""
    made = json.loads((RESULTS / f"{result}.json").read_text(encoding="utf-8"))
    found = next(one["columns"] for one in made if one["title"] == title)
    heads = [head for head, _ in found]
    kept = list(range(len(heads)))
    if columns:
        kept = [0, 1][: 1 + (heads[1] == "budget")]
        for name in columns.split(","):
            place = heads.index(name.rstrip("+"))
            kept += [place, place + 1][: 1 + name.endswith("+")]
    cells = zip(*(found[k][1] for k in kept), strict=True)
    lines = [line for line in cells if not rows or line[0] in rows.split(";")]
    shown = [heads[k] for k in kept], ["---"] * len(kept), *lines
    return "".join(f"| {' | '.join(line)} |\n" for line in shown)


def filled(text: str) -> str:
    """Return a page with its tables as the results have them."""
    return _PLACE.sub(lambda m: f"{m[1]}{table(*shlex.split(m[2]))}\n", text)


if __name__ == "__main__":
    for page in PAGES.glob("published-*.md"):
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
