"""What --policy, --set and other options ask for: a policy, and what of it each command needs."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, choose, collect, refuse
from mio_rag.policy import DECISIONS, PRESETS, READER, Model, Policy
from mio_rag.settings import Settings, field_help

if TYPE_CHECKING:
    from mio_rag.allocation.money import Rate
    from mio_rag.policies.setup import Controller, ControlSettings
    from mio_rag.retrieval import Retriever
    from mio_rag.selection.selector import Selector
    from mio_rag.session.cache import CacheSettings

#: Option -> key of the policy that it sets.
_KEYS = {
    "budget": "limits.budget",
    "answer": "limits.max_tokens",
    "units": "selection.units",
    "seed": "selection.options.seed",
    "total": "price.total",
}


# -- keys -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A setting of a policy; of: the variants (``by``) with which it has an effect."""

    name: str
    help: str
    default: Any
    kind: Any
    of: str = ""


def keys() -> dict[str, Key]:
    """Return every key of a policy file, in the order of its tables."""
    from mio_rag.selection.constraints import SideConstraints
    from mio_rag.selection.selector import Selector
    from mio_rag.service.settings import ConnectionLimits, ServiceLimits

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
        if table in ("name", "about", "models", "server", "measured"):
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
        found[key] = Key(key, text, getattr(_options(), name), float, "program")
    add("models.NAME", Model)
    for part in (ServiceLimits, ConnectionLimits):
        add("server", part)
    return found


def _options() -> Any:
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


def changes_of(given: Sequence[str]) -> dict[str, Any]:
    """Return key -> value of texts "KEY=VALUE", as in TOML or plain text; raises `InputError`."""
    known, found, problems = keys() if given else {}, dict[str, Any](), []
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        key = _known(name, known)
        if not equals:
            problems.append(f"--set {text}: write KEY=VALUE, for instance price.token=0.0005")
        elif key is None:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "`mio-rag policy show --keys` lists them"
            problems.append(f"--set {name} is not a key of a policy: {hint}")
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
    if _holds(kind, Sequence) and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    only_text = _parts(kind) == [str] or set(_parts(kind)) == {str, type(None)}
    return text if only_text and not isinstance(value, str) else value


def _applied(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
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


# -- what is chosen ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """A policy with the changes of a command line.

    name: as --policy names it.
    controller: the name, where it is one of `mio_rag.policies.make` and not a preset or file.
    given: keys that were changed.
    """

    policy: Policy
    name: str
    controller: str | None
    given: frozenset[str]

    @classmethod
    def of(cls, name: str, sets: Sequence[str] | None = None, **options: Any) -> Chosen:
        """Read a policy, and change it by --set and by options that have a key; None is not given.

        Raises `InputError` with everything that is wrong with any of them.
        """
        changes = changes_of(sets or ())
        given = {option: value for option, value in options.items() if value is not None}
        changes |= {_KEYS[option]: value for option, value in given.items()}
        controller = None
        if name not in PRESETS and not name.endswith(".toml") and not Path(name).is_file():
            from mio_rag.policies.make import find_kind, kind_names

            if find_kind(name) is None:
                known = (*PRESETS, *kind_names())
                raise InputError(
                    f"--policy {name} is neither a file nor a known policy: {choose(name, known)}"
                )
            controller = name
            if name.startswith("policy:"):
                return cls.of(name.removeprefix("policy:"), sets, **options)
            if "depth.tiers" in changes and name.startswith("tier:"):
                changes.setdefault("depth.tier", name.removeprefix("tier:"))
        least = changes.get("limits.budget", 0), changes.get("limits.max_tokens", DEFAULTS.answer)
        if all(isinstance(one, int) for one in least) and sum(least) > 19_000:
            changes.setdefault("limits.max_total_tokens", sum(least) + 1000)
        try:
            policy = Policy.load(
                DEFAULTS.policy if controller else name, lambda data: _applied(data, changes)
            )
        except InputError as error:
            raise InputError([_as_typed(problem, given) for problem in error.problems]) from None
        chosen = cls(policy, name, controller, frozenset(changes))
        return chosen.whole() if chosen._reads_whole else chosen

    def whole(self) -> Chosen:
        """The same, reading whole passages where nothing is said about units."""
        if _KEYS["units"] in self.given or self.policy.selection.by != "program":
            return self
        own = {**self.policy.selection.settings, "units": "passages"}
        return replace(
            self, policy=self.policy.replace(selection=self.policy.selection.replace(settings=own))
        )

    @property
    def _reads_whole(self) -> bool:
        """Whether something decides that was fitted on whole passages."""
        by_default = self.controller is not None or self.name == DEFAULTS.policy
        return by_default and (not self.is_plain or self.policy.answers.refusal is not None)

    @cached_property
    def is_plain(self) -> bool:
        """Whether one search and one program decide everything."""
        return self.controller is None and self.policy.is_plain

    @property
    def has_steps(self) -> bool:
        """Whether a question goes through a `Session`, which reports its steps."""
        answers = self.policy.answers
        alone = self.name == DEFAULTS.policy or answers.refusal or answers.cache
        return not (self.is_plain and alone)

    @property
    def token_price(self) -> float:
        """The price of a token; 0 where a total sets it."""
        return self.policy.fixed_price or 0.0

    @cached_property
    def base(self) -> Selector:
        """Solver and limits of programs that a policy leaves open."""
        from mio_rag.selection.selector import Selector

        return Selector(options=_options())

    @cached_property
    def selector(self) -> Selector:
        """The program."""
        return self.policy.selector(self.token_price, self.base)

    @property
    def seed(self) -> int:
        """Seed of whatever is drawn."""
        return self.selector.options.seed

    @cached_property
    def control(self) -> ControlSettings:
        """Settings of policies that are known by name alone."""
        from mio_rag.formulations.mdp import RetrievalMDP
        from mio_rag.learning.router_model import KEY, TOKEN_PRICE, RouterSettings
        from mio_rag.policies.setup import ControlSettings
        from mio_rag.session.budget import Limits
        from mio_rag.session.tiers import PUBLISHED, read_tiers
        from mio_rag.session.workflow import WorkflowSettings

        policy, kinds, given = self.policy, dict[str, Any](), self.given
        model = policy.repeat.model if policy.repeat.by == "rule" else RetrievalMDP()
        limits = policy.limits
        steps = limits.max_steps if "limits.max_steps" in given else model.horizon or Limits().steps
        models = {name: str(one.spec) for name, one in policy.models.items() if name != READER}
        prices = {n: (one.input, one.output) for n, one in policy.models.items() if one.is_priced}
        if models or prices:
            kinds["workflow"] = WorkflowSettings(models=models, prices=prices).to_dict()  # type: ignore[arg-type]
        if policy.depth.by != "price":
            price = self.token_price if "price.token" in given else TOKEN_PRICE
            file = policy.depth.file
            tiers = PUBLISHED if policy.depth.tiers is None else read_tiers(Path(policy.depth.tiers))
            routing = RouterSettings(
                tiers=tiers, router=file, token_price=price, unsure=policy.depth.unsure or "stay"
            )
            kinds[KEY] = routing.to_dict()
        if policy.order.by == "planner":
            path = Path(policy.order.file)
            content = path.read_bytes() if path.is_file() else b""  # another content is another run
            kinds["planner"] = {
                "file": str(path), "alpha": None, "model": policy.order.model,
                "sha256": sha256(content).hexdigest(),
            }  # fmt: skip
        if policy.search.by == "bandit":
            kinds["strategies"] = {"state": policy.search.state}
            if policy.search.strategies != ("raw",):
                kinds["strategies"]["possible"] = policy.search.strategies
            if "price.token" in given:
                kinds["strategies"]["bandit"] = {"token_price": self.token_price}
        ends = Limits(steps=steps, tokens=limits.max_total_tokens, seconds=limits.timeout)
        return ControlSettings(model=model, limits=ends, kinds=kinds)

    def check(self) -> Chosen:
        """Check it with the files that it names; no model is loaded."""
        from mio_rag.policy_files import resolve

        if self.controller is not None:
            from mio_rag.policies.make import check_controllers

            check_controllers([self.controller], self.control, closed_book=False)
        elif not self.is_plain or self.name != DEFAULTS.policy:
            resolve(self.policy)
        else:
            assert self.selector
        return self

    def session(self, retriever: Retriever) -> Controller:
        """What answers questions step by step."""
        from mio_rag.policies.compose import compose
        from mio_rag.policies.make import make_controller
        from mio_rag.policies.setup import Setup

        longest = self.policy.limits.max_tokens
        if self.controller is not None:
            setup = Setup(self.control, retriever, self.selector, longest, self.seed)
            return make_controller(self.controller, setup)
        setup = Setup(retriever=retriever, selector=self.base, max_tokens=longest, seed=self.seed)
        return compose(self.policy, setup, f"policy:{self.name}")

    def rate(self, reader: str) -> Rate | None:
        """What the tokens of the model that answers cost; None where no price is given."""
        from mio_rag.allocation.money import Rate

        model = self.policy.models.get(READER)
        if model is None or model.input is None or model.output is None:
            return None
        return Rate(reader, model.input, model.output, self.policy.price.worth)

    def cache(self) -> CacheSettings | None:
        """How many answers are kept, and how long; None where none are."""
        from mio_rag.session.cache import CacheSettings

        answers = self.policy.answers
        if answers.cache is None:
            return None
        return CacheSettings(entries=answers.cache_entries, days=answers.cache_days)


def _as_typed(problem: str, given: Iterable[str]) -> str:
    """Replace the keys that options set by the options."""
    for option in given:
        key = _KEYS[option]
        table, _, name = key.rpartition(".")
        problem = problem.replace(f"{key} must", f"--{option} must").replace(
            f"{table}: {name} must", f"--{option} must"
        )
    return problem


def policy_names(names: Sequence[str]) -> list[str]:
    """Return names with "policy:" before presets and files, as `mio_rag.policies.make` has them."""
    return [f"policy:{name}" if name in PRESETS or name.endswith(".toml") else name for name in names]


def kinds_of(names: Sequence[str]) -> dict[str, Any]:
    """Return what policies hold, by hash: a run that is resumed with other contents must not go on."""
    from mio_rag.policy_files import resolve

    own = [name.removeprefix("policy:") for name in names if name.startswith("policy:")]
    found = collect(*((lambda name=name: resolve(Policy.load(name)).sha256) for name in own))
    return {"policy": dict(zip(own, found, strict=True))} if own else {}


def server_settings(policy: Policy) -> list[Any]:
    """Return the `ServiceLimits` and `ConnectionLimits` of the table [server].

    Raises `InputError` with everything that is wrong with it, unknown names among it.
    """
    from mio_rag.service.settings import ConnectionLimits, ServiceLimits

    kinds: tuple[type[Settings], ...] = (ServiceLimits, ConnectionLimits)
    known = {name: kind for kind in kinds for name in kind.model_fields}
    told = "is not a key: see `mio-rag policy show --keys`"
    unknown = [f"server.{key} {told}" for key in policy.server if key not in known]
    given = [{k: v for k, v in policy.server.items() if known.get(k) is kind} for kind in kinds]
    made = [lambda k=k, own=own: k.from_dict(own, "server") for k, own in zip(kinds, given, strict=True)]
    return collect(*made, lambda: refuse(unknown))[:-1]
