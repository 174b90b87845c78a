"""What a passage is about, by a named-entity model: names for evidence links where there are no titles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mio_rag.errors import InputError, require
from mio_rag.types import Passage

__all__ = ["entity_names"]

#: Labels of the usual models that name no thing that a passage could be about.
_NO_NAMES = frozenset({"DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL", "LANGUAGE"})
_READ = 400  # characters: what a passage is about is named where it begins


def entity_names(model: Any) -> Callable[[Passage], str]:
    """For `CorpusIndex.build` and `LinkIndex.build`: the first named entity of a passage, else its title.

    Parameters
    ----------
    model : str or spacy.Language
        "spacy:MODEL" with the name of an installed pipeline or its folder, or a pipeline itself; an entity
        ruler will do.

    Raises
    ------
    InputError
        For another form, a pipeline that cannot be loaded, or one that finds no entities.
    MissingExtraError
        Without spaCy.
    """
    pipeline = _loaded(model) if isinstance(model, str) else model
    if not {"ner", "entity_ruler"} & set(pipeline.pipe_names):
        raise InputError(
            f"the pipeline has {', '.join(pipeline.pipe_names) or 'no components'}: it needs one that finds "
            "named entities (ner or entity_ruler)"
        )

    def name(passage: Passage) -> str:
        for entity in pipeline(passage.text[:_READ]).ents:
            if entity.label_ not in _NO_NAMES and entity.text.strip():
                return str(entity.text).strip()
        return passage.title

    return name


def _loaded(spec: str) -> Any:
    kind, _, target = spec.strip().partition(":")
    if kind != "spacy" or not target:
        raise InputError(
            f"entities '{spec}' are not known: give spacy:MODEL, for instance spacy:en_core_web_sm"
        )
    spacy: Any = require("spacy", "entities", "finding named entities")
    try:
        return spacy.load(target)
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), "no reason given")
        raise InputError(
            f"spaCy's pipeline '{target}' cannot be loaded ({reason}): install it (python -m spacy download "
            f"{target}), or give the folder of one"
        ) from error
