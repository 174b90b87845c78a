"""What the service's pages show: example questions and the HTTP reference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from mio_rag.corpora.load import load_dataset
from mio_rag.evaluation.markup import escape
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.sentences import leading_name
from mio_rag.types import clean

_PROPOSED = 3
_LONGEST_TITLE = 60  # characters: longer ones are sentences, or paths


# -- examples ---------------------------------------------------------------------------------------------


def example_questions(index: CorpusIndex, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the questions to propose: the given ones, else some of the bundled set, else some about titles.

    Texts without a title have the name that they open with. Empty if there are none.
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
        example: dict[str, Any] = {"question": "Where was the director of Lone Wolf McQuade born?"}
        example = {"id": "ID", "helpful": True} if path == "/feedback" else {**example, "budget_tokens": 256}
        call = f"curl -s localhost:8000{path} -H 'Content-Type: application/json' -d '{json.dumps(example)}'"
        text += f"<h3>Request</h3>{_table(body, parts)}<pre>{escape(call)}</pre>"
    for status, response in operation["responses"].items():
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        text += f"<h3>{escape(status)}</h3><p>{escape(response['description'])}</p>"
        if schema is not None and status == "200":
            text += _table(schema, parts)
    return text + "</section>"


def _table(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    rows = "".join(_rows(schema, parts, ""))
    return f"<div class='scroll'><table><tbody>{rows}</tbody></table></div>"


def _rows(schema: Mapping[str, Any], parts: Mapping[str, Any], above: str) -> Iterator[str]:
    """A row for each field, and for each field of those that contain fields themselves."""
    if "$ref" in schema:
        schema = parts[schema["$ref"].rpartition("/")[2]]
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
                yield from _rows(inner, parts, f"{above}{name}{'[]' * ('items' in option)}.")


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
