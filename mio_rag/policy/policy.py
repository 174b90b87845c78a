"""A policy: who takes each of the five decisions of every question, at one price and within limits.

    [price]
    token = 0.0005            # or worth (dollars), or a total over all questions

    [order]                   # which steps:           a workflow, or a planner chooses one
    [search]                  # by which strategies:   named ones, or a bandit chooses
    [depth]                   # how much:              by the price, a tier, or a router chooses one
    [selection]               # what is read:          the exact program, a ranking, or a tier's rule
    [repeat]                  # search again, or stop: never, by the price, or a decision process

The price of a token is what one more token must add to the probability that the evidence is complete. All
decisions use the same. In each table `by` names the variant, which has only settings with an effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mio_rag.errors import InputError, choose
from mio_rag.policy.tables import (
    PROGRAM_FILES,
    READER,
    Answers,
    BanditSearch,
    ByGain,
    DollarPrice,
    FixedPrice,
    Limits,
    Model,
    ModelOrder,
    Never,
    PlannerOrder,
    PriceDepth,
    Process,
    ProgramSelection,
    RankingSelection,
    RouterDepth,
    Rule,
    StrategySearch,
    TierDepth,
    TierSelection,
    Total,
    WorkflowOrder,
    is_file_name,
    known_models,
)
from mio_rag.settings import Settings
from mio_rag.storage import parse_toml, read_text

if TYPE_CHECKING:
    from mio_rag.selection.selector import Selector
    from mio_rag.session.budget import Limits as QuestionLimits
    from mio_rag.session.budget import Prices

_DATA = Path(__file__).parents[1] / "data"

#: Policies that ship, from the cheapest. All run without anything learned, and without a paid model.
PRESETS: Mapping[str, str] = {
    "frugal": "few tokens: only what is surely worth them is read",
    "balanced": "one price for everything",
    "thorough": "most evidence: nearly free tokens",
    "default": "whatever helps within the budget: what select and ask do by themselves",
    # Published systems, and the same as they would be run here; each file says what it is.
    **{
        f"{of}/{file.stem}": ""
        for of in ("published", "ours")
        for file in sorted((_DATA / of).glob("*.toml"))
    },
}

#: Settings that name a file. Relative names are relative to the folder of the policy's own file.
FILES = (("order", "file"), ("depth", "file"), ("depth", "tiers"), ("search", "state"), ("search", "graph"),
         ("price", "state"), ("repeat", "calibration"), ("repeat", "process"))  # fmt: skip
LOCATED = (*FILES, ("order", "model"), ("answers", "refusal"), ("answers", "cache"))

DECISIONS = ("price", "order", "search", "depth", "selection", "repeat")
_PRICED_BY = {"token": "fixed", "worth": "dollars", "total": "total"}


# -- the policy -------------------------------------------------------------------------------------------


def _tagged(usual: str) -> BeforeValidator:
    """Name the variant of a table that names none."""
    return BeforeValidator(lambda given: {"by": usual, **given} if isinstance(given, Mapping) else given)


def _priced(given: Any) -> Any:
    """Name the variant of a price by the one setting that only it has."""
    if not isinstance(given, Mapping) or "by" in given:
        return given
    named = [key for key in _PRICED_BY if given.get(key) is not None]
    if not named and not set(given) <= FixedPrice._of_others():
        return {"by": "fixed", **given}  # an unknown name is reported as such
    if len(named) != 1:
        raise InputError(f"give one of token, worth and total, not {' and '.join(named) or 'nothing'}")
    return {"by": _PRICED_BY[named[0]], **given}


def _repeated(given: Any) -> Any:
    """Take the name of a rule as by = "rule"."""
    if not isinstance(given, Mapping):
        return given
    by = given.get("by", "never")
    known = not isinstance(by, str) or by in ("never", "price", "process", "rule")
    return {**given, "by": by} if known else {**given, "by": "rule", "rule": by}


_BY = Field(discriminator="by")


class Policy(Settings):
    """Who takes each decision. Everything that can be seen without opening a learned file is checked."""

    name: Annotated[str, Field(min_length=1)] = "policy"
    """Name in traces and ledgers."""
    about: str = ""
    """A sentence for people."""
    price: Annotated[FixedPrice | DollarPrice | Total, _BY, BeforeValidator(_priced)] = FixedPrice()
    """What one more token must add."""
    order: Annotated[WorkflowOrder | PlannerOrder | ModelOrder, _BY, _tagged("workflow")] = WorkflowOrder()
    """Which steps, in which order."""
    search: Annotated[StrategySearch | BanditSearch, _BY, _tagged("strategies")] = StrategySearch()
    """By which strategies is searched."""
    depth: Annotated[PriceDepth | TierDepth | RouterDepth, _BY, _tagged("price")] = PriceDepth()
    """How much a question may take."""
    selection: Annotated[ProgramSelection | RankingSelection | TierSelection, _BY, _tagged("program")] = (
        ProgramSelection()
    )
    """What is read of what was found."""
    repeat: Annotated[Never | ByGain | Process | Rule, _BY, BeforeValidator(_repeated)] = Never()
    """Whether to search again."""
    models: Annotated[dict[str, Model], AfterValidator(known_models)] = Field(default_factory=dict)
    """Models that workflows name, and the reader's price."""
    limits: Limits = Limits()
    """Limits of one question."""
    answers: Answers = Answers()
    """Refusals, and answers that are kept."""
    server: dict[str, Any] = Field(default_factory=dict)
    """Settings of `mio-rag serve`, which checks them."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Settings of `mio-rag policy fit planner`, which checks them."""
    measured: dict[str, Any] = Field(default_factory=dict)
    """What was measured when the file was fitted."""

    @classmethod
    def load(
        cls, source: str | Path, change: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    ) -> Policy:
        """Return a preset by its name, or the policy of a TOML file.

        change: changes the settings before they are checked: plain data, with files as absolute paths.

        Raises `InputError` if there is none of that name, and with every problem of the file.
        """
        text, path = str(source), Path(source).expanduser()
        if text in PRESETS:
            data, where, folder = (
                parse_toml(preset_text(text), f"policy '{text}'"),
                "",
                preset_file(text).parent,
            )
        elif path.is_file():
            data, where, folder = (
                parse_toml(read_text(path), f"'{text}'"),
                f"'{text}'",
                path.absolute().parent,
            )
        else:
            looks = path.suffix.lower() == ".toml" or "/" in text or "\\" in text
            what = ": no such file, nor a preset" if looks else " is neither a file nor a preset"
            raise InputError(
                f"policy '{text}'{what}: {choose(text, presets_like(text), more=', or give a TOML file')}"
            )
        data = {key: _located(key, value, folder) for key, value in data.items()}
        named = text if text in PRESETS else path.stem
        return cls.from_dict({"name": named, **(data if change is None else change(data))}, where)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if problems := self._contradictions():
            raise InputError(problems)
        return self

    def _contradictions(self) -> list[str]:
        problems: list[str] = []
        reader, depth, reads = self.models.get(READER), self.depth.by, self.selection.by
        if self.price.by == "dollars" and (reader is None or not reader.is_priced):
            problems.append(
                "price: worth is in dollars, and the reader has no price: give [models.reader] input, output"
            )
        least = self.limits.budget + self.limits.max_tokens
        if self.price.by == "total" and self.price.total < least:
            problems.append(
                f"price: total = {self.price.total} is below one question, whose evidence and answer may "
                f"take {least} tokens, with its prompt on top: raise it, or lower limits.budget"
            )
        if reads == "program" and (self.price.by != "fixed" or self.price.token > 0):
            problems += _unscaled(self.selection)
        if reads == "tier" and depth == "price":
            problems.append('selection: by = "tier" needs a tier: set depth.by to "tier" or "router"')
        if reads == "ranking" and depth != "price":
            problems.append(
                f'selection: by = "ranking" reads until limits.budget, and depth is by "{depth}": read by '
                "the program or by the tier"
            )
        if reads == "tier" and self.repeat.by != "never":
            problems.append(
                "repeat: what a tier has compressed cannot be chosen from again: read by the program, or set "
                'by = "never"'
            )
        changed = self.order, depth, self.repeat.by
        if self.order.by == "workflow" and changed != (WorkflowOrder(), "price", "never"):
            problems += self._workflow_problems()
        return problems

    def _workflow_problems(self) -> list[str]:
        from mio_rag.session.workflow import find_workflow

        try:
            workflow = find_workflow(self.order.workflow)
        except InputError as error:
            return [f"order: {problem}" for problem in error.problems]
        reads, starts = any(node.do == "select" for node in workflow.nodes), self.repeat.from_start
        if reads and starts:
            return [
                f"order: workflow '{workflow.name}' reads by itself, and repeat.from_start decides what is "
                "read: set order.workflow to no-retrieval"
            ]
        if not reads and not starts and (self.repeat.by != "never" or self.depth.by != "price"):
            return [
                f"order: workflow '{workflow.name}' reads nothing, so neither depth nor repeat has an "
                "effect: leave them out, or choose one that retrieves and selects"
            ]
        return []

    @property
    def files(self) -> dict[tuple[str, str], str]:
        """(Table, setting) -> file that it names."""
        found = {(table, key): getattr(getattr(self, table), key) for table, key in LOCATED}
        if self.order.by == "workflow" and self.order.workflow.endswith(".json"):
            found["order", "workflow"] = self.order.workflow
        if self.selection.by == "program":
            found |= {("selection", key): file for key, file in self.selection.files.items()}
        return {place: file for place, file in found.items() if isinstance(file, str)}

    @cached_property
    def is_plain(self) -> bool:
        """Whether one search and one program decide everything; a decision that is not known here is more."""
        usual, known = _usual(type(self)), (*_NO_DECISION, "models", "limits", "price", "search", "selection")
        return (
            self.price.by != "total"
            and (self.search.by, self.search.strategies) == ("strategies", ("raw",))
            and self.selection.by == "program"
            and not any(self.temperatures.values())
            and all(getattr(self, t) == getattr(usual, t) for t in type(self).model_fields if t not in known)
        )

    @property
    def prices(self) -> Prices:
        """What tokens cost in dollars, of models that have a price."""
        from mio_rag.session.budget import Prices

        return Prices({name: (one.input, one.output) for name, one in self.models.items() if one.is_priced})  # type: ignore[misc]

    @property
    def temperatures(self) -> dict[str, float]:
        """Of answers, by name of a model."""
        return {name: one.temperature for name, one in self.models.items()}

    @property
    def fixed_price(self) -> float | None:
        """The price of a token, where it is the same for every question; None where a pacer sets it."""
        if self.price.by == "dollars":
            return self.prices.dollars[READER][0] / 1e6 / self.price.worth
        return float(self.price.token) if self.price.by == "fixed" else None

    @property
    def ends(self) -> QuestionLimits:
        """The limits of one question, as a session takes them."""
        from mio_rag.session.budget import Limits as QuestionLimits

        return QuestionLimits(
            steps=self.limits.max_steps, tokens=self.limits.max_total_tokens, seconds=self.limits.timeout
        )

    def selector(self, token_price: float, base: Selector) -> Selector:
        """Return the program at a price; solver and limits that it does not set are those of `base`."""
        from mio_rag.selection.selector import Selector

        known: tuple[float, Selector, Selector] | None = self.__dict__.get("_selector")
        if known is None or known[0] != token_price or known[1] is not base:
            own = self.selection.settings or {} if self.selection.by == "program" else {}
            made = self.selection.program() if self.selection.by == "program" else Selector()
            given = {key: value for key, value in own.get("options", {}).items() if value is not None}
            made = made.replace(
                token_price=token_price,
                solver=own.get("solver", base.solver),
                options=replace(base.options, **given),
            )
            # A question asks more than once, and checking settings takes longer than many a program.
            known = self.__dict__["_selector"] = (token_price, base, made)
        return known[2]

    def content(self) -> dict[str, Any]:
        """Return its settings as plain data, without what changes no decision: name, answers, server."""
        return {key: value for key, value in self.to_dict().items() if key not in _NO_DECISION}

    @property
    def sha256(self) -> str:
        """Of its settings, file names among them; `Resolved.sha256` has the content of the files instead."""
        return sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()


@cache
def _usual(kind: type[Policy]) -> Policy:
    return kind()


_NO_DECISION = ("name", "about", "answers", "server", "training", "measured")


def _unscaled(selection: Any) -> list[str]:
    """Return what does not go with a price of a token: it is one of probabilities."""
    relevance = selection.settings.get("relevance_model", "auto")
    problems = []
    if selection.preset == "raw":
        problems.append(
            'selection: preset = "raw" takes relevance as it is, and the price is one of probabilities: '
            "choose default, frugal or thorough, or set price.token = 0"
        )
    if relevance is None or (isinstance(relevance, str) and relevance in ("given", "cosine")):
        problems.append(
            f'selection: relevance_model = "{relevance or "given"}" takes relevance as it is, and the price '
            "is one of probabilities: leave it out, or give auto; or set price.token = 0"
        )
    return problems


def _located(table: str, given: Any, folder: Path | None) -> Any:
    """Return the settings of a table with the files that they name in a folder."""
    if folder is None or not isinstance(given, Mapping):
        return given
    named = {key for of, key in LOCATED if of == table and isinstance(given.get(key), str)}
    if table == "selection":
        named |= {key for key in PROGRAM_FILES if is_file_name(given.get(key))}
    if table == "order" and str(given.get("workflow")).endswith(".json"):
        named.add("workflow")
    places = {key: folder / Path(given[key]).expanduser() for key in named}
    shipped = _DATA in (folder, *folder.parents)  # others of a preset's files are the user's own
    return {
        **given,
        **{key: str(given[key] if shipped and not one.is_file() else one) for key, one in places.items()},
    }


def policy_of(data: Mapping[str, Any], name: str, folder: Path | None = None) -> Policy:
    """Return the policy of plain data, such as a TOML file holds.

    name: name, where the data has none.
    folder: folder of files that are named without one.

    Raises `InputError` with every problem of every part, or every contradiction between them.
    """
    return Policy.from_dict({"name": name, **{key: _located(key, data[key], folder) for key in data}})


def preset_text(name: str) -> str:
    """Return the file of a preset, to begin your own with; `InputError` if there is none of that name."""
    if name not in PRESETS:
        raise InputError(f"policy '{name}' is unknown: {choose(name, presets_like(name))}")
    return read_text(preset_file(name))


def presets_like(name: str) -> list[str]:
    """Return what a message proposes for an unknown name: published systems only for one with a slash."""
    return [one for one in PRESETS if ("/" in one) == ("/" in name and not name.endswith(".toml"))]


def preset_file(name: str) -> Path:
    """Return where a preset lies."""
    return _DATA / f"{name}.toml" if "/" in name else _DATA / "policies" / f"{name}.toml"
