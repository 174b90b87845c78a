"""A policy: who decides each of the five questions of every question asked, at one price, with one ledger.

    [price]
    token = 0.0005            # or worth (dollars), or a total that a pacer holds

    [order]                   # which steps:            a workflow, or a planner chooses one
    [search]                  # by which strategies:    named ones, or a bandit chooses
    [amount]                  # how much:               as mu says, a tier, or a router chooses one
    [reading]                 # what is read:           the exact program, a ranking, or a tier's rule
    [repetition]              # again, or stop:         never, by the price, or a decision process

mu, the price of a token, is what one more token must add to the probability that the evidence is complete.
Every controller sees the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from mio_rag.control.composed.parts import (
    READER,
    Amount,
    Bounds,
    Model,
    Order,
    Price,
    Reading,
    Repetition,
    Search,
)
from mio_rag.deciders.workflow import find_workflow
from mio_rag.errors import InputError, choose
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits
from mio_rag.session.costs import Prices

__all__ = ["DECISIONS", "FILES", "Policy", "policy_of", "rough_policy"]

#: The five questions, and the class that answers each.
DECISIONS: Mapping[str, type[Any]] = {
    "order": Order,
    "search": Search,
    "amount": Amount,
    "reading": Reading,
    "repetition": Repetition,
}
_TABLES: Mapping[str, type[Any]] = {"price": Price, **DECISIONS, "limits": Bounds}
#: Settings that name a file, which lies where the policy's own does.
FILES = (
    ("order", "file"),
    ("amount", "file"),
    ("amount", "tiers"),
    ("search", "state"),
    ("price", "state"),
    ("repetition", "calibration"),
)


@dataclass(frozen=True)
class Policy:
    """Who decides what; see the module. Everything that can be told without opening a file is checked.

    Parameters
    ----------
    name : str
        As traces and ledgers show it.
    about : str
        A sentence for people.
    price : Price
    order : Order
    search : Search
    amount : Amount
    reading : Reading
    repetition : Repetition
    models : mapping of str to Model
        Those that workflows name, and "reader", who answers.
    limits : Bounds

    Raises
    ------
    InputError
        With every contradiction.
    """

    name: str = "policy"
    about: str = ""
    price: Price = field(default_factory=lambda: Price(token=0.0005))
    order: Order = field(default_factory=Order)
    search: Search = field(default_factory=Search)
    amount: Amount = field(default_factory=Amount)
    reading: Reading = field(default_factory=Reading)
    repetition: Repetition = field(default_factory=Repetition)
    models: Mapping[str, Model] = field(default_factory=dict)
    limits: Bounds = field(default_factory=Bounds)

    def __post_init__(self) -> None:
        problems = [problem for name, model in self.models.items() for problem in model.problems(name)]
        reader = self.models.get(READER)
        if self.price.worth is not None and (reader is None or not reader.is_priced):
            problems.append(
                "price: worth is in dollars, and the reader has no price: give [models.reader] input, output"
            )
        least = self.limits.evidence_tokens + self.limits.answer_tokens
        if self.price.total is not None and self.price.total < least:
            problems.append(
                f"price: total = {self.price.total} is below one question, whose evidence and answer may "
                f"take {least} tokens, with its prompt on top: raise it, or lower limits.evidence_tokens"
            )
        if self.reading.by == "tier" and self.amount.by == "price":
            problems.append('reading: by = "tier" needs a tier: let amount be by tier or router')
        if self.reading.by == "ranking" and self.amount.by != "price":
            problems.append(
                f'reading: by = "ranking" reads until limits.evidence_tokens, and amount is by '
                f"{self.amount.by}: read by the program or by the tier"
            )
        if self.reading.by == "tier" and self.repetition.by != "never":
            problems.append(
                "repetition: what a tier has compressed cannot be chosen from again: read by the program, or "
                'set by = "never"'
            )
        if self.reading.preset == "raw":
            problems.append(
                'reading: preset = "raw" takes relevance as it is, and the price is one of probabilities: '
                "choose default, frugal or thorough"
            )
        else:
            problems += _program_problems(self.reading.preset, self.reading.settings)
        if self.order.by == "workflow":
            problems += self._workflow_problems()
        if problems:
            raise InputError(problems)

    def _workflow_problems(self) -> list[str]:
        try:
            workflow = find_workflow(self.order.workflow)
        except InputError as error:
            return [f"order: {problem}" for problem in error.problems]
        reads = any(node.do == "select" for node in workflow.nodes)
        if not reads and (self.repetition.by != "never" or self.amount.by != "price"):
            return [
                f"order: workflow '{workflow.name}' reads nothing, so neither amount nor repetition has an "
                "effect: leave them out, or choose one that retrieves and selects"
            ]
        return []

    @property
    def prices(self) -> Prices:
        """What tokens cost in dollars, of models that have a price."""
        return Prices(
            {
                name: (model.input, model.output)
                for name, model in self.models.items()
                if model.input is not None and model.output is not None
            }
        )

    @property
    def fixed_price(self) -> float | None:
        """mu, where it is the same for every question; None where a pacer sets it."""
        if self.price.worth is not None:
            return self.prices.dollars[READER][0] / 1e6 / self.price.worth
        return None if self.price.token is None else float(self.price.token)

    @property
    def ends(self) -> Limits:
        """The limits of one question."""
        return Limits(self.limits.steps, self.limits.tokens, self.limits.seconds)

    def selector(self, token_price: float, base: Selector) -> Selector:
        """The program at a price; solver and its limits are those of `base`."""
        known: tuple[float, Selector, Selector] | None = self.__dict__.get("_selector")
        if known is None or known[0] != token_price or known[1] is not base:
            preset = Selector.preset(self.reading.preset, **self.reading.settings)
            made = preset.replace(token_price=token_price, solver=base.solver, options=base.options)
            # A question asks more than once, and checking settings takes longer than many a program.
            known = self.__dict__["_selector"] = (token_price, base, made)
        return known[2]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the file says it; what is None is left out."""
        data = {"name": self.name, "about": self.about} if self.about else {"name": self.name}
        tables = {name: _kept(asdict(getattr(self, name))) for name in _TABLES}
        models = {name: _kept(asdict(model)) for name, model in self.models.items()}
        return {**data, **tables, **({"models": models} if models else {})}

    @property
    def sha256(self) -> str:
        """Of all that it says, names of files among it; `States.sha256` knows files by what they hold."""
        said = {key: value for key, value in self.to_dict().items() if key not in ("name", "about")}
        return sha256(dumps(said, sort_keys=True).encode()).hexdigest()


def _program_problems(preset: str, settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with the settings of the program: those that it has not, and the values of the others."""
    known = list(Selector.model_fields)
    strange = [name for name in settings if name not in known]
    problems = [f"reading: {name} is unknown: {choose(name, known)}" for name in strange]
    relevance = settings.get("relevance_model", "auto")
    if relevance is None or relevance in ("given", "cosine"):
        problems.append(
            f'reading: relevance_model = "{relevance or "given"}" takes relevance as it is, and the price is '
            "one of probabilities: leave it out, or give auto"
        )
    try:
        Selector.preset(preset, **{name: settings[name] for name in settings if name not in strange})
    except InputError as error:
        problems += [f"reading: {problem}" for problem in error.problems]
    return problems


def _kept(data: Mapping[str, Any]) -> dict[str, Any]:
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}
    return {k: v for k, v in plain.items() if v is not None and v != {}}


def policy_of(data: Mapping[str, Any], name: str, folder: Path | None = None) -> Policy:
    """The policy of plain data, such as a TOML file holds.

    Parameters
    ----------
    name : str
        Where the data names none.
    folder : path, optional
        Where files lie that are named without a folder.

    Raises
    ------
    InputError
        With every problem of every part, and every contradiction between them.
    """
    made, problems = _parts(data, folder)
    try:
        policy = Policy(str(data.get("name", name)), str(data.get("about", "")), **made)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return policy


def rough_policy(data: Mapping[str, Any], name: str, folder: Path | None = None) -> Policy:
    """What stands of a policy that contradicts itself: to see what else is wrong with it, never to be run.

    Parts that are none are those of a policy that says nothing.
    """
    made, _ = _parts(data, folder)
    reader = made["models"].get(READER)
    if "price" in made and made["price"].worth is not None and (reader is None or not reader.is_priced):
        del made["price"]  # nobody knows what it comes to
    rough = object.__new__(Policy)
    for part in fields(Policy):
        value = made.get(part.name)
        if value is None:
            value = name if part.name == "name" else getattr(_PLAIN, part.name)
        object.__setattr__(rough, part.name, value)
    return rough


def _parts(data: Mapping[str, Any], folder: Path | None) -> tuple[dict[str, Any], list[str]]:
    """The parts that are whole, by name, and what is wrong with the others."""
    known = ("name", "about", "models", *_TABLES)
    problems = [f"'{key}' is unknown: {choose(key, known)}" for key in data if key not in known]
    made: dict[str, Any] = {}
    for key in ("name", "about"):
        if key in data and not (isinstance(data[key], str) and data[key].strip()):
            problems.append(f"{key} = {data[key]!r} must be text")
    for key, form in _TABLES.items():
        if key in data:
            made[key] = _part(key, form, data[key], problems, folder)
    models = data.get("models", {})
    if not isinstance(models, Mapping):
        problems.append(f"models = {models!r:.60} must be tables, for instance [models.reader]")
        models = {}
    made["models"] = {
        str(key): _part(f"models.{key}", Model, one, problems, None) for key, one in models.items()
    }
    # The parts that are whole are still held against each other.
    whole = {key: part for key, part in made.items() if part is not None}
    whole["models"] = {key: one for key, one in made["models"].items() if one is not None}
    return whole, problems


def _part(name: str, form: type[Any], given: Any, problems: list[str], folder: Path | None) -> Any | None:
    """A table as its class; None where it is none, and why is among the problems."""
    if not isinstance(given, Mapping):
        problems.append(f"{name} = {given!r:.60} must be a table: [{name}]")
        return None
    known = {f.name for f in fields(form)}
    told, more = dict(given), {}
    if form is Reading:  # further settings of the program stand beside its own
        more = {key: told.pop(key) for key in list(told) if key not in known}
        inner = told.get("settings", {})
        if not isinstance(inner, Mapping):
            problems.append(f"{name}: settings = {inner!r:.60} must be a table: [{name}.settings]")
            inner = {}
        told["settings"] = {**inner, **more}
    if unknown := [key for key in told if key not in known]:
        problems += [f"{name}: {key} is unknown: {choose(key, sorted(known))}" for key in unknown]
        told = {key: value for key, value in told.items() if key in known}
    if folder is not None:
        for table, key in FILES:
            if table == name and isinstance(told.get(key), str):
                told[key] = str(folder / Path(told[key]).expanduser())
        workflow = told.get("workflow")
        if name == "order" and isinstance(workflow, str) and workflow.endswith(".json"):
            told["workflow"] = str(folder / workflow)
    try:
        return form(**told)
    except InputError as error:
        problems += error.problems
    except TypeError as error:
        problems.append(f"{name}: {error}")
    if form is Reading:
        settings = told["settings"]
        preset = told.get("preset")
        usual = preset if preset in ("frugal", "thorough") else Reading.preset
        problems += _program_problems(usual, {k: settings[k] for k in settings if k != "token_price"})
    for table, key in FILES:  # of a table that is none nobody opens the files
        file = told.get(key)
        if table == name and key != "state" and isinstance(file, str) and not Path(file).is_file():
            problems.append(f"{name}: {key} = '{file}' does not exist")
    return None


_PLAIN = Policy()
