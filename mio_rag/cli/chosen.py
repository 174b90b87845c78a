"""What --policy, --set and other options ask for: a policy, and what of it each command needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, choose, collect, refuse
from mio_rag.policy import PRESETS, Policy, presets_like
from mio_rag.policy.keys import Key, applied, changes_of, load_policy, split_name, usual_options
from mio_rag.policy.keys import keys as keys_of
from mio_rag.policy.tables import READER, FixedPrice
from mio_rag.settings import Settings

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


def keys() -> dict[str, Key]:
    """Return every key of a policy file, in the order of its tables."""
    from mio_rag.service.settings import ConnectionLimits, ServiceLimits

    return keys_of({"server": (ServiceLimits, ConnectionLimits)})


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
        name, own = split_name(name)
        changes = own | changes_of(sets or (), keys() if sets else {})
        given = {option: value for option, value in options.items() if value is not None}
        changes |= {_KEYS[option]: value for option, value in given.items()}
        controller = None
        if name not in PRESETS and not name.endswith(".toml") and not Path(name).is_file():
            from mio_rag.policies.make import find_kind, kind_names

            if find_kind(name) is None:
                known = (*presets_like(name), *kind_names())
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
            policy = Policy.load(DEFAULTS.policy if controller else name, lambda data: applied(data, changes))
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
        if self.controller is None and self.name != DEFAULTS.policy:
            return False
        unpriced = self.policy.replace(price=FixedPrice(token=0.0))  # a total alone was fitted on nothing
        is_plain = self.controller is None and unpriced.is_plain
        return not is_plain or self.policy.answers.refusal is not None

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

        return Selector(options=usual_options())

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
            ladder = policy.depth.tiers
            tiers = read_tiers(Path(ladder)) if isinstance(ladder, str) else ladder or PUBLISHED
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
            kinds["strategies"] = {"state": policy.search.state, "bandit": dict(policy.search.bandit)}
            if policy.search.strategies != ("raw",):
                kinds["strategies"]["possible"] = policy.search.strategies
            if "price.token" in given:
                kinds["strategies"]["bandit"]["token_price"] = self.token_price
        if policy.search.graph is not None:
            writing = {"writing": {"graph": policy.search.graph}}
            kinds["strategies"] = {**kinds.get("strategies", {}), "search": writing}
        ends = Limits(steps=steps, tokens=limits.max_total_tokens, seconds=limits.timeout)
        return ControlSettings(model=model, limits=ends, kinds=kinds)

    def check(self) -> Chosen:
        """Check it with the files that it names; no model is loaded."""
        from mio_rag.policy.files import resolve

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
        model = self.policy.models.get(READER)
        if model is None or model.input is None or model.output is None:
            return None
        from mio_rag.allocation.money import Rate

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


def kinds_of(names: Sequence[str]) -> dict[str, Any]:
    """Return what policies hold, by hash: a run that is resumed with other contents must not go on."""
    from mio_rag.policy.files import resolve

    own = [name.removeprefix("policy:") for name in names if name.startswith("policy:")]
    found = collect(*((lambda name=name: resolve(load_policy(name)).sha256) for name in own))
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
