"""Settings: one frozen model for Python, TOML, JSON and the command line, with messages in our own words."""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, ErrorDetails

from mio_rag.errors import InputError, choose
from mio_rag.types import is_text


class Settings(BaseModel):
    """Base class of settings: frozen, no unknown names, no silent conversions, no NaN and no infinity.

    A text is never taken for a number, 2.0 never for a whole number, True never for 1. Lists become tuples,
    numpy numbers and arrays become plain ones, and sets are sorted, so that all settings can be written as
    JSON. The docstring below a field is its help on the command line and its description in the JSON schema.

    Raises `InputError` with every problem found, when settings are made.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        strict=True,
        defer_build=True,
        ser_json_inf_nan="null",
    )

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InputError(explain(error, type(self))) from None

    # pydantic then builds nested settings itself, and so reports where in the whole a problem lies.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any) -> Any:
        return {name: plain(value) for name, value in data.items()} if isinstance(data, Mapping) else data

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        made = handler(schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        for name, text in field_help(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return made

    @classmethod
    def from_dict(cls, data: Any, name: str = "", kind: type[InputError] = InputError) -> Self:
        """Return the settings that plain data from JSON or TOML describes.

        Every problem found is raised as `kind`, each beginning with `name`: what was read, for instance a
        file.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            begin = f"{name}: " if name else ""
            raise kind([f"{begin}{problem}" for problem in explain(error, cls)]) from None

    @classmethod
    def from_toml(cls, path: str | Path, kind: type[InputError] = InputError) -> Self:
        """Read a TOML file ("-": stdin); raises as `from_dict`, and where the file cannot be read."""
        from mio_rag.storage import read_toml

        return cls.from_dict(read_toml(path, kind), f"'{path}'", kind)

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return the settings as plain data for JSON; without `defaults` only what differs, and names of
        variants.
        """
        data: dict[str, Any] = {}
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if (
                not defaults
                and not _is_tag(info.annotation)
                and value == info.get_default(call_default_factory=True)
            ):
                continue
            data[name] = _to_data(value, defaults)
        return data

    def to_toml(self) -> str:
        """Return the settings as TOML, without those at their defaults."""
        return toml_text(self.to_dict(defaults=False))

    def replace(self, **changes: Any) -> Self:
        """Return the settings with changes; checked as when settings are made."""
        return type(self)(**{**dict(self), **changes})


_SIMPLE = frozenset((str, int, float, bool, type(None)))


def plain(value: Any) -> Any:
    """Return numpy values as plain ones, lists as tuples, and sets as sorted tuples; all at any depth."""
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        simple = _SIMPLE.issuperset(map(type, value.values()))
        return dict(value) if simple else {key: plain(each) for key, each in value.items()}
    if isinstance(value, Set):
        value = sorted(value, key=str)
    if type(value) in (list, tuple):
        return tuple(value) if _SIMPLE.issuperset(map(type, value)) else tuple(map(plain, value))
    return value


def _to_data(value: Any, defaults: bool) -> Any:
    if isinstance(value, Settings):
        return value.to_dict(defaults=defaults)
    if isinstance(value, Mapping):
        return {str(key): _to_data(each, defaults) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_data(each, defaults) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return None
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    is_instance = is_dataclass(value) and not isinstance(value, type)
    return _to_data(asdict(value), defaults) if is_instance else plain(value)


def _is_tag(annotation: Any) -> bool:
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def field_help(settings: type[Any]) -> Mapping[str, str]:
    """Return the docstring below each field of a class and its bases, as one line each."""
    texts: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        texts.update(_docstrings(base.__module__).get(base.__qualname__, {}))
    fields = getattr(settings, "model_fields", {})
    return {**texts, **{name: info.description for name, info in fields.items() if info.description}}


@cache
def _docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return class -> field -> docstring below it, for the classes at the top of a module."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None or module.partition(".")[0] in ("builtins", "pydantic"):
        return {}
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):  # made in a shell, or without its source
        return {}
    found: dict[str, dict[str, str]] = {}
    for part in tree.body:
        if not isinstance(part, ast.ClassDef):
            continue
        for field, below in pairwise(part.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                text = " ".join(below.value.value.split())
                found.setdefault(part.name, {})[field.target.id] = text
    return found


# -- messages ---------------------------------------------------------------------------------------------


def explain(
    error: ValidationError | Sequence[ErrorDetails] | Sequence[dict[str, Any]],
    model: type[BaseModel] | None = None,
) -> list[str]:
    """Turn pydantic's errors into sentences of this project, such as "limits.budget must be >= 1, got 0".

    With `model`, the class that was validated, unknown names are compared with the known ones, and only names
    of fields are shown.
    """
    errors: Iterable[Any] = error.errors(include_url=False) if isinstance(error, ValidationError) else error
    problems: list[str] = []
    wrong: dict[str, _Wrong] = {}
    for each in errors:
        names, holder = _resolve(each["loc"], model)
        path, kind, context = _path(names), each["type"], each.get("ctx") or {}
        if kind in ("value_error", "assertion_error"):
            cause = context.get("error")
            texts = cause.problems if isinstance(cause, InputError) else [str(cause or "cannot be used")]
            problems += [f"{path}{_joint(text)}{text}" if path else text for text in texts]
        elif kind in ("extra_forbidden", "unexpected_keyword_argument"):
            advice = f": {choose(names[-1], holder.model_fields)}" if holder else ""
            problems.append(f"{path} is not a setting{advice}")
        elif kind in ("missing", "missing_argument"):
            problems.append(f"{path} is missing")
        elif kind == "union_tag_not_found":
            problems.append(f"{_path((*names, _quoted(context['discriminator'])[0]))} is missing")
        else:
            got = each.get("input")
            if kind == "union_tag_invalid":
                path, got = _path((*names, _quoted(context["discriminator"])[0])), context["tag"]
            if path not in wrong:
                wrong[path] = _Wrong(len(problems), path, got)
                problems.append("")
            wrong[path].add(kind, context)
    for path, value in wrong.items():
        inner = any(other != path and other.startswith((f"{path}.", f"{path}[")) for other in wrong)
        problems[value.place] = "" if inner and isinstance(value.got, (Mapping, tuple)) else value.problem()
    return list(dict.fromkeys(filter(None, problems)))


class _Wrong:
    """A value that is none of the types that it may be."""

    def __init__(self, place: int, path: str, got: Any) -> None:
        self.place, self.path, self.got = place, path, got
        self.expected: list[str] = []
        self.choices: list[str] = []

    def add(self, kind: str, context: Mapping[str, Any]) -> None:
        """Add one of the types."""
        if kind in ("literal_error", "enum", "union_tag_invalid"):
            expected = context.get("expected_tags" if kind == "union_tag_invalid" else "expected", "")
            self.choices += _quoted(expected) or [expected]
        else:
            self.expected.append(_expected(kind, context))

    def problem(self) -> str:
        """Return what is wrong, in a sentence."""
        *some, last = dict.fromkeys([*self.expected, *self.choices])
        expected = f"{', '.join(some)} or {last}" if some else last
        advice = choose(self.got, self.choices) if isinstance(self.got, str) and self.choices else ""
        near = f"; {advice}" if advice.startswith("did") else ""
        return (
            f"{f'{self.path} must be' if self.path else 'expected'} {expected}, got {shown(self.got)}{near}"
        )


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "finite_number": "a finite number",
    "string": "a text",
    "bytes": "bytes",
    "bool": "True or False",
    "none": "None",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen_set": "a list",
    "iterable": "a list",
    "dict": "a table",
    "mapping": "a table",
    "model": "a table of settings",
    "model_attributes": "a table of settings",
    "dataclass": "a table of settings",
    "path": "a path",
    "callable": "callable",
    "date": "a date (YYYY-MM-DD)",
    "datetime": "a date and time (ISO 8601)",
    "date_from_datetime": "a date (YYYY-MM-DD)",
    "url": "a URL",
    "uuid": "a UUID",
    "json": "JSON",
}
_BOUNDS = {"greater_than": (">", "gt"), "greater_than_equal": (">=", "ge")}
_BOUNDS |= {"less_than": ("<", "lt"), "less_than_equal": ("<=", "le")}


def _expected(kind: str, context: Mapping[str, Any]) -> str:
    """Return what a value must be, to follow "must be"."""
    if kind in _BOUNDS:
        sign, key = _BOUNDS[kind]
        return f"{sign} {_number(context[key])}"
    if kind in ("is_instance_of", "is_subclass_of"):
        return f"of type {context['class']}"
    if kind in ("too_short", "string_too_short", "bytes_too_short"):
        least, what = context["min_length"], "characters" if kind.startswith("string") else "entries"
        return "not empty" if least == 1 else f"at least {least} {what} long"
    if kind in ("too_long", "string_too_long", "bytes_too_long"):
        what = "characters" if kind.startswith("string") else "entries"
        return f"at most {context['max_length']} {what} long"
    if kind == "string_pattern_mismatch":
        return f"of the form {context['pattern']}"
    if kind == "multiple_of":
        return f"a multiple of {_number(context['multiple_of'])}"
    if kind == "int_parsing_size":
        return "a smaller whole number"
    if kind == "json_invalid":
        return f"valid JSON ({context.get('error', 'it is not')})"
    stem = re.sub(r"_(type|parsing|from_float|exact|size|invalid|inclusion|key)$", "", kind)
    return _TYPES.get(kind, _TYPES.get(stem, f"another value ({kind.replace('_', ' ')})"))


def _joint(text: str) -> str:
    return "" if text.startswith(".") else " " if text.startswith(("must ", "is ", "has ")) else ": "


def _number(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def shown(value: Any) -> str:
    """Return a value for a message: short, and on one line."""
    if isinstance(value, tuple):
        value = list(value)
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({type(value).__name__})"


def _path(names: Sequence[str | int]) -> str:
    text = ""
    for name in names:
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else str(name)
    return text


def _resolve(
    location: Sequence[str | int], model: type[BaseModel] | None
) -> tuple[tuple[str | int, ...], type[BaseModel] | None]:
    """Return the names of a location without tags and types of unions, and the class that holds the last."""
    if model is None:
        dropped = re.compile(
            r"literal\[.*\]|(constrained-)?(int|float|str|bool|tuple|list|dict).*\[?.*|function-.*"
        )
        return tuple(n for n in location if isinstance(n, int) or not dropped.fullmatch(n)), None
    names: list[str | int] = []
    here: Any = model
    holder: type[BaseModel] | None = None
    for part in location:
        options = _alternatives(here)
        models = [each for each in options if isinstance(each, type) and issubclass(each, BaseModel)]
        fields = [each for each in models if part in each.model_fields]
        containers = [
            each for each in options if get_origin(each) is not None and get_origin(each) is not Literal
        ]
        if len(options) > 1:  # the part names one of them
            here = _variant(options, part)
        elif fields:
            names.append(part)
            holder, here = fields[0], fields[0].model_fields[str(part)].annotation
        elif models:  # a name that no field has
            names.append(part)
            holder, here = models[0], None
        elif containers and part != "[key]" and not (isinstance(part, str) and _is_kind(part, containers)):
            names.append(part)
            here = get_args(containers[0])[-1 if part.__class__ is str else 0]
        # what remains names a type of a union, or a validator
    return tuple(names), holder


def _is_kind(part: str, containers: Sequence[Any]) -> bool:
    names = {get_origin(each).__name__.lower() for each in containers}
    return part.partition("[")[0] in names | ({"dict"} if "mapping" in names else set())


def _alternatives(annotation: Any) -> list[Any]:
    """Return the types of a union, else the type itself."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [each for one in get_args(annotation) for each in _alternatives(one) if each is not type(None)]
    return [annotation]


def _variant(options: Sequence[Any], part: str | int) -> Any:
    """Return the member of a union that a tag or the name of a type stands for; None if there is none."""
    for each in options:
        if isinstance(each, type) and issubclass(each, BaseModel):
            tags = (info.annotation for info in each.model_fields.values() if _is_tag(info.annotation))
            if part == each.__name__ or any(part in get_args(tag) for tag in tags):
                return each
        elif get_origin(each) not in (None, Literal) and _is_kind(str(part), [each]):
            return each
    return None


# -- TOML -------------------------------------------------------------------------------------------------


def toml_text(data: Mapping[str, Any]) -> str:
    """Return plain data as TOML: numpy values as plain ones, without what is None. `InputError` for half a
    surrogate pair.
    """
    import tomli_w  # here: reading settings does not need it

    text = tomli_w.dumps(_without_none(data))
    if not is_text(text):
        raise InputError(f"{text[:200]!r} holds characters that are no text, and cannot be written as TOML")
    return text


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_none(each) for key, each in value.items() if each is not None}
    value = plain(value)
    return [_without_none(each) for each in value] if isinstance(value, (list, tuple)) else value
