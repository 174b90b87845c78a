"""What the service's pages show: example questions, the curve over prices, the HTTP reference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from mio_rag.corpora.load import load_dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.markup import escape
from mio_rag.formulations.numbers import is_setting
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.sentences import leading_name
from mio_rag.storage import read_json, read_toml
from mio_rag.types import clean

#: Price of the example if the operator sets none.
EXAMPLE_PRICE = 5e-4
#: How an operator gets a curve.
HOW = (
    "No curve of this index was found next to it. Measure one on your own questions: `mio-rag lab frontier "
    "INDEX --questions DATA --out INDEX-curve --token-prices 0.005,0.002,0.001,0.0005,0.0002`. The "
    "service finds "
    "it when it starts; give one from elsewhere with `mio-rag serve INDEX --curve INDEX-curve/frontier.json`."
)
_PASSAGE = 100  # tokens of the passage in the example
_LOOKED_AT = 100  # files next to an index
_PROPOSED = 3
_LONGEST_TITLE = 60  # characters: longer ones are sentences, or paths


# -- examples ---------------------------------------------------------------------------------------------


def example_questions(index: CorpusIndex, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the questions to propose: the given ones, else some of the bundled set, else some about titles.

    Without the bundled passages they ask about titles, or about the names that texts open with, from all over
    the collection. Empty if there are none.
    """
    if given:
        return tuple(clean(example).strip() for example in given)
    if index.name == "demo":
        demo = load_dataset("demo")
        if {p.id: p.text for p in demo.passages} == {p.id: p.text for p in index.passages}:
            return _spread([question.text for question in demo.questions])
    names = dict.fromkeys(" ".join(clean(p.title or leading_name(p.text)).split()) for p in index.passages)
    short = [name for name in names if name and len(name) <= _LONGEST_TITLE]
    return tuple(f"What does the collection say about {name}?" for name in _spread(short))


def _spread(items: Sequence[str]) -> tuple[str, ...]:
    count = min(_PROPOSED, len(items))
    return tuple(items[k * len(items) // count] for k in range(count))


# -- curve over prices ------------------------------------------------------------------------------------


def example_of(token_price: float) -> str:
    """Describe a token price by what it requires of a passage."""
    share = _PASSAGE * token_price
    least = f"{100 * share:.3g} %" if share < 1 else "all"
    return f"{token_price:.3g} a token, {_PASSAGE} tokens must add more than {least} of a needed passage."


@dataclass(frozen=True)
class CurvePoint:
    """One token price; `evidence`: mean share of the evidence found, in [0, 1], None if not labelled."""

    token_price: float
    mean_tokens: float
    evidence: float | None = None


@dataclass(frozen=True)
class Curve:
    """Points by falling price, and the number of questions they were measured on."""

    points: tuple[CurvePoint, ...]
    questions: int


def read_curve(path: Path) -> Curve:
    """Read ``frontier.json`` of ``mio-rag lab frontier``, or the file of ``mio-rag policy fit price``.

    Raises `DataError` if the file cannot be read; `InputError` if it contains no curve.
    """
    data = _data(path)
    try:
        points, questions = (_tuned if path.suffix == ".toml" else _measured)(data)
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"'{path}' holds no curve over prices: give frontier.json of `mio-rag lab frontier "
            "--token-prices ...`, or the TOML file of `mio-rag policy fit price`"
        ) from error
    wrong = [
        one
        for one in points
        if not is_setting(one.token_price)
        or not is_setting(one.mean_tokens)
        or not (one.evidence is None or (is_setting(one.evidence) and one.evidence <= 1))
    ]
    if wrong or not points or questions < 1:
        raise DataError(f"'{path}' holds a curve that cannot be: {wrong[0] if wrong else 'no points'}")
    return Curve(tuple(sorted(points, key=lambda one: -one.token_price)), questions)


def curve_beside(index: Path) -> Path | None:
    """Return the newest file with a curve of this index next to it, or in a folder next to it; or None.

    Files name the number of passages and the embedder of their index; those of other indexes are skipped.
    """
    around = index.resolve().parent
    try:
        manifest = read_json(index / "manifest.json")
        here = manifest["passages"], manifest["fingerprint"]
        found = [*around.glob("*.toml"), *around.glob("frontier.json"), *around.glob("*/frontier.json")]
        newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_LOOKED_AT]
    except (InputError, LookupError, TypeError, OSError):
        return None
    for path in newest:
        try:
            about = _data(path)["measured" if path.suffix == ".toml" else "run"]
            if (about["passages"], about["embedder_fingerprint"]) == here:
                read_curve(path)
                return path
        except (InputError, LookupError, TypeError, OSError):
            continue
    return None


def _data(path: Path) -> Any:
    return read_toml(path) if path.suffix == ".toml" else read_json(path)


def _measured(data: Any) -> tuple[list[CurvePoint], int]:
    points = [
        CurvePoint(p["token_price"], p["tokens"]["mean"], p["evidence"] and p["evidence"]["mean"])
        for p in data["price"]["prices"]
    ]
    return points, int(data["run"]["questions"])


def _tuned(data: Any) -> tuple[list[CurvePoint], int]:
    measured = data["measured"]
    pairs = zip(measured["curve_token_prices"], measured["curve_mean_tokens"], strict=True)
    return [CurvePoint(price, tokens) for price, tokens in pairs], int(measured["questions"])


# -- HTTP reference ---------------------------------------------------------------------------------------


def render_reference(document: Mapping[str, Any]) -> str:
    """Return the OpenAPI document as plain HTML: every operation, its fields, an example for the shell."""
    parts = document.get("components", {}).get("schemas", {})
    operations = "".join(
        _operation(path, method, operation, parts)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    page = resources.files("mio_rag.service").joinpath("reference.html").read_text(encoding="utf-8")
    return Template(page).substitute(
        title=escape(document["info"]["title"]),
        version=escape(document["info"]["version"]),
        operations=operations,
    )


def _operation(path: str, method: str, operation: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    name = f"<b>{method.upper()}</b> {escape(path)}"
    text = f"<section><h2>{name}</h2><p>{escape(operation.get('description', ''))}</p>"
    if body is not None:
        text += f"<h3>Request</h3>{_table(_schema(body, parts), parts)}"
        example: dict[str, Any] = {"question": "Where was the director of Lone Wolf McQuade born?"}
        example = {"id": "ID", "helpful": True} if path == "/feedback" else {**example, "budget_tokens": 256}
        call = f"curl -s localhost:8000{path} -H 'Content-Type: application/json' -d '{json.dumps(example)}'"
        text += f"<pre>{escape(call)}</pre>"
    for status, response in operation["responses"].items():
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        text += f"<h3>{escape(status)}</h3><p>{escape(response['description'])}</p>"
        if schema is not None and status == "200":
            text += _table(_schema(schema, parts), parts)
    return text + "</section>"


def _schema(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else parts[reference.rpartition("/")[2]]


def _table(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    rows = "".join(_rows(schema, parts, ""))
    return f"<div class='scroll'><table><tbody>{rows}</tbody></table></div>"


def _rows(schema: Mapping[str, Any], parts: Mapping[str, Any], above: str) -> Iterator[str]:
    """A row for each field, and for each field of those that contain fields themselves."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        given = "required" if name in required else f"default {json.dumps(field.get('default'))}"
        yield (
            f"<tr><th scope='row'><code>{escape(above + name)}</code></th>"
            f"<td>{escape(' or '.join(_types(field)))}</td><td>{escape(given)}</td>"
            f"<td>{escape(field.get('description', ''))}</td></tr>"
        )
        for option in field.get("anyOf", [field]):
            inner = option.get("items", option)
            if "$ref" in inner:
                yield from _rows(_schema(inner, parts), parts, f"{above}{name}{'[]' * ('items' in option)}.")


def _types(field: Mapping[str, Any]) -> Iterator[str]:
    for option in field.get("anyOf", [field]):
        if "$ref" in option:
            yield "object"
        elif "enum" in option or "const" in option:
            yield " | ".join(map(str, option.get("enum", [option.get("const")])))
        elif option.get("type") == "array":
            yield f"list of {' or '.join(_types(option.get('items', {}))) or 'anything'}"
        else:
            low = option.get("minimum", option.get("exclusiveMinimum", option.get("minLength")))
            high = option.get("maximum", option.get("maxLength"))
            span = "" if low is None or high is None else f", {low:g} to {high:g}"
            yield f"{option.get('type', 'anything')}{span}"
