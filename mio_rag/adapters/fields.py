"""Fields that the adapters to pydantic frameworks (LangChain, LlamaIndex) share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, PrivateAttr, field_serializer

from mio_rag.adapters.core import Choice, Documents, Vectors, as_counter, check_budget, choose
from mio_rag.adapters.plain import check_names, from_plain, make_selector, to_plain
from mio_rag.errors import InputError
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector


class SelectionFields(BaseModel):
    """Budget, settings, embedder and counter of an adapter.

    budget_tokens: largest size of what is chosen, >= 1.
    selector: settings to start from.
    embedder: embeds what comes without a vector: the framework's own kind, one of mio-rag, or the name of one
        ("minilm", or a sentence-transformers id or folder).
    counter: the reader's tokenizer, or a function from a text to its tokens. By default an approximation.
    on_selection: called with every `Selection`, whose `explain()` says why each document is in or out.
    **rest: `preset`, any parameter of `Selector`, and fields of the framework's base class.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    budget_tokens: int
    selector: InstanceOf[Selector] = Field(default_factory=Selector)
    embedder: Any = None
    counter: Any = None
    on_selection: Callable[[Selection], None] | None = Field(default=None, exclude=True)

    _remembered: Vectors | None = PrivateAttr(default=None)

    def __init__(
        self,
        *,
        budget_tokens: int,
        selector: Selector | Mapping[str, Any] | None = None,
        embedder: Any = None,
        counter: Any = None,
        **rest: Any,
    ) -> None:
        check_budget(budget_tokens)
        if isinstance(selector, Mapping):
            selector = from_plain(selector)
        names = ("preset", *Selector.model_fields)
        check_names("setting", rest, [*type(self).model_fields, *names])
        settings = {name: rest.pop(name) for name in names if name in rest}
        named("embedder", embedder)
        named("counter", counter)
        if counter is not None:
            as_counter(counter)
        super().__init__(
            budget_tokens=budget_tokens,
            selector=make_selector(selector, settings),
            embedder=embedder,
            counter=counter,
            **rest,
        )

    @field_serializer("selector")
    def _write_selector(self, selector: Selector) -> dict[str, Any]:
        return to_plain(selector)

    @field_serializer("embedder", "counter")
    def _write_named(self, value: Any) -> Any:
        return name_only(value)

    def _vectors_of(self, embedder: Any) -> Vectors:
        """Those of the framework's own kind of embedder; adapters refine it."""
        return Vectors.of(embedder)

    def _default_embedder(self) -> Any:
        """The framework's own, where it has one."""
        return None

    def _vectors(self) -> Vectors | None:
        embedder = self._default_embedder() if self.embedder is None else self.embedder
        if embedder is None:
            return None
        if self._remembered is None or self._remembered.owner is not embedder:
            self._remembered = self._vectors_of(embedder)
        return self._remembered

    def _choose(self, query: str, documents: Documents, query_embedding: ArrayLike | None = None) -> Choice:
        choice = choose(
            query,
            documents,
            budget_tokens=self.budget_tokens,
            selector=self.selector,
            vectors=self._vectors,
            counter=self.counter,
            query_embedding=query_embedding,
        )
        if self.on_selection is not None and choice.selection is not None:
            self.on_selection(choice.selection)
        return choice


def name_only(value: Any) -> Any:
    """A name as it is; for an object, a note that it has to be given again."""
    return value if value is None or isinstance(value, str) else {"not_saved": type(value).__qualname__}


def named(what: str, value: Any) -> None:
    """Refuse what `name_only` could not save.

    Raises `InputError` for such a note.
    """
    if isinstance(value, Mapping):
        raise InputError(
            f"the {what} was an object ({value.get('not_saved', value)}), which is not saved: give it again"
        )
