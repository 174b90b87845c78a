"""Settings: one frozen model for Python, TOML, JSON and the command line, with messages in our own words."""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, is_dataclass
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
        return {
            name: _to_data(getattr(self, name), defaults)
            for name, info in type(self).model_fields.items()
            if defaults
            or _is_tag(info.annotation)
            or getattr(self, name) != info.get_default(call_default_factory=True)
        }

    def to_toml(self) -> str:
        """Return the settings as TOML, without those at their defaults."""
        return toml_text(self.to_dict(defaults=False))

    def replace(self, **changes: Any) -> Self:
        """Return the settings with changes; checked as when settings are made."""
        given = {
            name: getattr(self, name) for name in type(self).model_fields
        }  # not what is computed of them
        return type(self)(**{**given, **changes})


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
        for named, below in pairwise(part.body):
            match named, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found.setdefault(part.name, {})[name] = " ".join(text.split())
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
    problems: list[str | _Wrong] = []
    wrong: dict[str, _Wrong] = {}
    for each in errors:
        names, holder = _resolve(each["loc"], model)
        path, kind, context, got = _path(names), each["type"], each.get("ctx") or {}, each.get("input")
        if kind.startswith("union_tag"):
            path = _path((*names, _quoted(context["discriminator"])[0]))
            got = context.get("tag")
        if kind in ("value_error", "assertion_error"):
            cause = context.get("error")
            texts = cause.problems if isinstance(cause, InputError) else [str(cause or "cannot be used")]
            problems += [f"{path}{_joint(text)}{text}" if path else text for text in texts]
        elif kind in ("extra_forbidden", "unexpected_keyword_argument"):
            advice = f": {choose(names[-1], holder.model_fields)}" if holder else ""
            problems.append(f"{path} is not a setting{advice}")
        elif kind in ("missing", "missing_argument", "union_tag_not_found"):
            problems.append(f"{path} is missing")
        else:
            if path not in wrong:
                problems.append(wrong.setdefault(path, _Wrong(path, got)))
            if kind in ("literal_error", "enum", "union_tag_invalid"):
                expected = context.get("expected_tags" if kind == "union_tag_invalid" else "expected", "")
                wrong[path].choices += _quoted(expected) or [expected]
            else:
                wrong[path].expected.append(_expected(kind, context))
    for one in wrong.values():  # a part that is wrong stands for the whole
        inner = any(other.startswith((f"{one.path}.", f"{one.path}[")) for other in wrong)
        if inner and isinstance(one.got, (Mapping, tuple)):
            problems.remove(one)
    return list(dict.fromkeys(map(str, problems)))


@dataclass(eq=False)
class _Wrong:
    """A value that is none of the types that it may be."""

    path: str
    got: Any
    expected: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        *some, last = dict.fromkeys([*self.expected, *self.choices])
        expected = f"{', '.join(some)} or {last}" if some else last
        advice = choose(self.got, self.choices) if isinstance(self.got, str) and self.choices else ""
        near = f"; {advice}" if advice.startswith("did") else ""
        return (
            f"{f'{self.path} must be' if self.path else 'expected'} {expected}, got {shown(self.got)}{near}"
        )


#: What a value must be, by the kind of pydantic's error, without its ending.
_TYPES = {
    kind: text
    for text, kinds in {
        "a whole number": "int", "a smaller whole number": "int_parsing_size", "a number": "float decimal",
        "a finite number": "finite_number", "a text": "string", "bytes": "bytes", "True or False": "bool",
        "None": "none", "a list": "list tuple set frozen_set iterable", "a table": "dict mapping",
        "a table of settings": "model model_attributes dataclass", "a path": "path", "callable": "callable",
        "a date (YYYY-MM-DD)": "date date_from_datetime", "a date and time (ISO 8601)": "datetime",
        "a URL": "url", "a UUID": "uuid", "valid JSON": "json",
    }.items()
    for kind in kinds.split()
}  # fmt: skip
_BOUNDS = {"greater_than": (">", "gt"), "greater_than_equal": (">=", "ge"),
           "less_than": ("<", "lt"), "less_than_equal": ("<=", "le")}  # fmt: skip


def _expected(kind: str, context: Mapping[str, Any]) -> str:
    """Return what a value must be, to follow "must be"."""
    what = "characters" if kind.startswith("string") else "entries"
    if kind in _BOUNDS:
        sign, key = _BOUNDS[kind]
        return f"{sign} {_number(context[key])}"
    if kind.endswith("too_short"):
        least = context["min_length"]
        return "not empty" if least == 1 else f"at least {least} {what} long"
    if kind.endswith("too_long"):
        return f"at most {context['max_length']} {what} long"
    if kind in ("is_instance_of", "is_subclass_of"):
        return f"of type {context['class']}"
    if kind == "string_pattern_mismatch":
        return f"of the form {context['pattern']}"
    if kind == "multiple_of":
        return f"a multiple of {_number(context['multiple_of'])}"
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
        one = options[0]
        if len(options) > 1:  # the part names one of them
            here = _variant(options, part)
        elif isinstance(one, type) and issubclass(one, BaseModel):
            names.append(part)
            known = one.model_fields.get(str(part))
            holder, here = one, known and known.annotation
        elif get_origin(one) not in (None, Literal) and part != "[key]" and not _is_kind(part, one):
            names.append(part)
            here = get_args(one)[-1 if isinstance(part, str) else 0]
        # what remains names a type of a union, or a validator
    return tuple(names), holder


def _is_kind(part: str | int, container: Any) -> bool:
    """Return whether a part of a location names the type of a container."""
    name = get_origin(container).__name__.lower()
    return str(part).partition("[")[0] in ({name, "dict"} if name == "mapping" else {name})


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
        elif get_origin(each) not in (None, Literal) and _is_kind(part, each):
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
