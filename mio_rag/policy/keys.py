"""Keys of a policy, what a command line says of them, and names with settings: NAME[KEY=VALUE,...]."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError
from mio_rag.policy.policy import DECISIONS, PRESETS, Policy
from mio_rag.policy.tables import Model, opened
from mio_rag.settings import field_help

if TYPE_CHECKING:
    from mio_rag.selection.selector import Selector
    from mio_rag.solvers.result import SolveOptions


@dataclass(frozen=True)
class Key:
    """A setting of a policy; of: the variants (``by``) with which it has an effect."""

    name: str
    help: str
    default: Any
    kind: Any
    of: str = ""


def keys(more: Mapping[str, Sequence[type[Any]]] | None = None) -> dict[str, Key]:
    """Return every key of a policy file, in the order of its tables; more: of further tables, by name."""
    from mio_rag.selection.constraints import SideConstraints
    from mio_rag.selection.selector import Selector

    found: dict[str, Key] = {}

    def add(table: str, settings: type[Any], of: str = "", skip: Iterable[str] = ()) -> None:
        texts = field_help(settings)
        for name, info in settings.model_fields.items():
            if name in skip:
                continue
            default = info.get_default(call_default_factory=True)
            key = Key(
                f"{table}.{name}", texts.get(name, ""), None if default is PydanticUndefined else default,
                info.annotation, of,
            )  # fmt: skip
            known = found.get(key.name)
            found[key.name] = replace(known, of=f"{known.of}, {of}") if known and known.of else key

    for table, info in Policy.model_fields.items():
        if table in ("name", "about", "models", "server", "training", "measured"):
            continue
        if table not in DECISIONS:
            add(table, _parts(info.annotation)[0])
            continue
        variants, usual = _variants(table), info.get_default().by
        found[f"{table}.by"] = Key(f"{table}.by", f"Who decides: {', '.join(variants)}.", usual, str)
        for tag, one in variants.items():
            add(table, one, tag, ("by", "settings"))
    add("selection", Selector, "program", ("token_price", "side", "options"))
    add("selection.side", SideConstraints, "program")
    texts = {"time_limit_seconds": "Time limit of one program.", "relative_gap": "Stop at this proven gap.",
             "threads": "Threads of the solver.", "seed": "Seed of whatever is drawn."}  # fmt: skip
    for name, text in texts.items():
        key = f"selection.options.{name}"
        found[key] = Key(key, text, getattr(usual_options(), name), float, "program")
    add("models.NAME", Model)
    for table, parts in (more or {}).items():
        for part in parts:
            add(table, part)
    return found


def usual_options() -> SolveOptions:
    """Return the limits of a program that neither a policy nor a command line sets."""
    from mio_rag.solvers.result import SolveOptions

    return SolveOptions(time_limit_seconds=DEFAULTS.seconds, relative_gap=DEFAULTS.gap)


def _parts(annotation: Any) -> list[Any]:
    """Return the members of a union, without annotations."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [part for one in get_args(annotation) for part in _parts(one)]
    return [annotation]


def _variants(table: str) -> dict[str, Any]:
    """Return the variants of a decision by their ``by``; none of a table that is no decision."""
    info = Policy.model_fields[table]
    return {one.model_fields["by"].default: one for one in _parts(info.annotation) if table in DECISIONS}


def changes_of(
    given: Sequence[str], known: Mapping[str, Key] | None = None, said: str = "--set "
) -> dict[str, Any]:
    """Return key -> value of texts "KEY=VALUE", as in TOML or plain text; raises `InputError`.

    known: keys that there are; by default all of a policy.
    said: begins each problem.
    """
    known = keys() if given and known is None else known or {}
    found, problems = dict[str, Any](), []
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        key = _known(name, known)
        if not equals:
            problems.append(f"{said}{text}: write KEY=VALUE, for instance price.token=0.0005")
        elif key is None:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "`mio-rag policy show --keys` lists them"
            problems.append(f"{said}{name} is not a key of a policy: {hint}")
        else:
            found[name] = _value(value.strip(), key.kind)
    if problems:
        raise InputError(problems)
    return found


def _known(name: str, known: Mapping[str, Key]) -> Key | None:
    """Return the key of a name, also below a table of the user's own names."""
    form = re.sub(r"^models\.[^.]+\.", "models.NAME.", name)
    while form:
        key = known.get(form)
        if key is not None and (form == name or form.startswith("models.") or _holds(key.kind, Mapping)):
            return key
        form = form.rpartition(".")[0]
    return None


def _holds(kind: Any, of: type) -> bool:
    origins = (get_origin(part) or part for part in _parts(kind))
    return any(isinstance(one, type) and issubclass(one, of) and one is not str for one in origins)


def _value(text: str, kind: Any) -> Any:
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        is_number = float in _parts(kind) and re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.I)
        value = float(text) if is_number else text  # .5 is no number in TOML
    if _holds(kind, Sequence) and isinstance(value, str) and str not in _parts(kind):
        return [part.strip() for part in value.split(",") if part.strip()]
    only_text = _parts(kind) == [str] or set(_parts(kind)) == {str, type(None)}
    return text if only_text and not isinstance(value, str) else value


def applied(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a policy with changes; what they imply about ``by`` follows them."""
    made = {key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items()}
    if "repeat.process" in changes and not {"repeat.by", "repeat.rule"} & set(changes):
        changes = {**changes, "repeat.rule": "mdp"}
    if "search.state" in changes and "search.strategies" not in changes:
        from mio_rag.session.search import STRATEGIES

        changes = {**changes, "search.strategies": ["raw", *(one for one in STRATEGIES if one != "raw")]}
    for key, value in changes.items():
        *path, last = key.split(".")
        if path[0] == "models" and len(path) > 1:
            path = ["models", ".".join(path[1:])]
        here = made
        for name in path:
            below = here.get(name)
            here[name] = dict(below) if isinstance(below, Mapping) else {}
            here = here[name]
        here[last] = value
    for table in {key.partition(".")[0] for key in changes} & set(DECISIONS):
        given = {key.split(".")[1] for key in changes if key.startswith(f"{table}.")}
        variants = _variants(table)
        fitting = [tag for tag, one in variants.items() if given <= set(one.model_fields)]
        now = made[table].get("by", Policy.model_fields[table].get_default().by)
        now = now if now in variants else "rule"
        by = changes.get(f"{table}.by")
        if by is None and table != "selection" and now not in fitting and len(fitting) == 1:
            by = made[table]["by"] = fitting[0]
            given = set()
        if by in variants and by != "program":  # settings of other variants go
            own = {*variants[by].model_fields, *given}
            made[table] = {name: value for name, value in made[table].items() if name in own}
    return made


#: Of names that have a policy behind them.
_PREFIXES = ("policy:", "program:")

# -- names with settings ----------------------------------------------------------------------------------


def parts_of(text: str) -> list[str]:
    """Return the parts of a text with commas; those within brackets and quotes do not part."""
    found, depth, quote = [""], 0, ""
    for letter in text:
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        elif letter in "[{(":
            depth += 1
        elif letter in ")}]":
            depth -= 1
        if letter == "," and depth == 0 and not quote:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found if part.strip()]


def split_name(name: str) -> tuple[str, dict[str, Any]]:
    """Return a name without its settings, and these by key: of NAME[KEY=VALUE,...].

    A key that begins with no table of a policy is one of the selection.

    Raises `InputError` for a key that there is not.
    """
    stem, bracket, rest = name.partition("[")
    if not bracket:
        return name, {}
    if not rest.endswith("]"):
        raise InputError(f"{name}: write NAME[KEY=VALUE,...]")
    parts = [(re.split(r"[.=]", part, maxsplit=1)[0], part) for part in parts_of(rest[:-1])]
    given = [part if table in Policy.model_fields else f"selection.{part}" for table, part in parts]
    return stem, changes_of(given, said=f"{stem}: ")


def load_policy(name: str) -> Policy:
    """Return the policy of a name: a preset or a TOML file, with settings in brackets."""
    stem, changes = split_name(name)
    return Policy.load(stem, (lambda data: applied(data, changes)) if changes else None)


def policy_names(names: Sequence[str]) -> list[str]:
    """Return names with "policy:" before presets and files, as `mio_rag.policies.make` has them."""
    stems = [name.partition("[")[0] for name in names]
    return [
        f"policy:{name}"
        if stem in PRESETS or (stem.endswith(".toml") and not stem.startswith(_PREFIXES))
        else name
        for name, stem in zip(names, stems, strict=True)
    ]


def changed(selector: Selector, name: str, changes: Mapping[str, Any]) -> Selector:
    """Return a selector with settings of a name; `InputError` for keys that are about more than a program."""
    top: dict[str, Any] = {}
    more: dict[str, dict[str, Any]] = {"side": {}, "options": {}}
    for key, value in changes.items():
        table, *path = key.split(".")
        if key == "price.token":
            top["token_price"] = value
        elif table != "selection":
            raise InputError(f"{name}: {key} is no setting of a method, only those of selection are")
        elif path[0] in more:
            more[path[0]][".".join(path[1:])] = value
        else:
            top[path[0]] = opened(path[0], value)
    if more["side"]:
        top["side"] = selector.side.replace(**more["side"])
    if more["options"]:
        top["options"] = replace(selector.options, **more["options"])
    return selector.replace(**top)
