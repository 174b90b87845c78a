#!/usr/bin/env bash
# pandas: read_html reads the number 1,5 as 15 and 0,25 as 25.
#
# Unless told otherwise, read_html takes each comma as a sign between thousands and leaves it out,
# also where no three digits follow it. In a table from a country that writes decimals with a comma
# all values are whole numbers, ten or a hundred times too large, each by its own factor. read_csv,
# for comparison, keeps such cells as text. With decimal="," and thousands="." they are read right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check pandas==3.1.1 lxml==6.1.1 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import io
import sys
from importlib.metadata import version

import pandas

ROWS = [("first", "1,5"), ("second", "0,25"), ("third", "12")]
cells = "".join(f"<tr><td>{name}</td><td>{dose}</td></tr>" for name, dose in ROWS)
page = f"<table><tr><th>day</th><th>dose</th></tr>{cells}</table>"
lines = "day;dose\n" + "\n".join(";".join(row) for row in ROWS)


def doses(**settings):
    return pandas.read_html(io.StringIO(page), **settings)[0]["dose"].tolist()


seen, told = doses(), doses(decimal=",", thousands=".")
csv = pandas.read_csv(io.StringIO(lines), sep=";")["dose"].tolist()
print("pandas", version("pandas"))
print("the table shows:         ", [dose for _, dose in ROWS])
print("read_html:               ", seen)
print("read_html, decimal comma:", told)
print("read_csv:                ", csv)
same = seen == [15, 25, 12] and told == [1.5, 0.25, 12.0] and csv == ["1,5", "0,25", "12"]
sys.exit(0 if same else "this version behaves otherwise")
PY
