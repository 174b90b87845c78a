"""Options about side constraints and robustness, and what they make of a selector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mio_rag.cli.options.shared import ProgramOptions
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.evaluation.harness import EvaluationSettings
    from mio_rag.formulations.uncertainty import UncertaintySet
    from mio_rag.selection.constraints import SideConstraints
    from mio_rag.selection.selector import Counterpart, Selector

__all__ = ["SideOptions"]


@dataclass(frozen=True)
class SideOptions:
    """Constraints besides budget and counts, and embedding uncertainty."""

    max_source_share: Annotated[
        float | None,
        typer.Option("--max-source-share", help="Maximum share of the chosen passages from one source."),
    ] = None
    cover: Annotated[
        str | None,
        typer.Option(
            "--cover", help="At least one passage from every topic: kmeans:K or agglomerative:SIMILARITY."
        ),
    ] = None
    max_similarity: Annotated[
        float | None,
        typer.Option("--max-similarity", help="Never choose two passages that are more similar."),
    ] = None
    conflict: Annotated[
        list[str] | None, typer.Option("--conflict", help="ID,ID: never choose both. Repeatable.")
    ] = None
    needs: Annotated[
        list[str] | None,
        typer.Option("--needs", help="ID,ID: choose the first only with the second. Repeatable."),
    ] = None
    previous: Annotated[
        list[str] | None, typer.Option("--previous", help="Id in the previous selection. Repeatable.")
    ] = None
    max_changes: Annotated[
        int | None, typer.Option("--max-changes", help="Maximum changes from the previous selection.")
    ] = None
    change_price: Annotated[
        float | None,
        typer.Option(
            "--change-price", help="Price of a change from the previous selection, in units of relevance. [0]"
        ),
    ] = None
    soft: Annotated[
        list[str] | None,
        typer.Option(
            "--soft",
            help="KIND:PRICE per violation; passages, sources, clusters, conflicts or needs. Repeatable.",
        ),
    ] = None
    counterpart: Annotated[
        str | None,
        typer.Option(
            "--counterpart", help="Robust counterpart: termwise, or joint (tighter, slower). [termwise]"
        ),
    ] = None
    uncertainty_set: Annotated[
        str | None,
        typer.Option("--uncertainty-set", help="JSON file of an uncertainty set, instead of --radius."),
    ] = None
    radii: Annotated[
        Path | None,
        typer.Option("--radii", help="File from `mio-rag radius --out`: a radius for each passage."),
    ] = None
    deviations: Annotated[
        int | None,
        typer.Option(
            "--deviations", help="With joint: maximum number of chosen passages that deviate at once."
        ),
    ] = None

    def applied(
        self, make: Callable[[], Selector], program: ProgramOptions, pool_radii: bool = False
    ) -> Selector:
        """The selector that `make` gives, with these settings; the problems of all of them at once.

        Parameters
        ----------
        program : ProgramOptions
            What else was given.
        pool_radii : bool
            Whether pools may bring radii of their own.
        """

        from mio_rag.formulations import DeviationBudget, NormBall

        made, side, given, radii, _ = collect(
            make, self._side, self._set, self._radii, lambda: self._check(program, pool_radii)
        )
        selector = cast("Selector", made)
        if self.deviations is not None:
            given = DeviationBudget(given or NormBall(selector.radius, selector.norm), self.deviations)
            selector = selector.replace(radius=0.0)
        return selector.replace(
            side=cast("SideConstraints", side),
            uncertainty=cast("UncertaintySet | None", given),
            passage_radii=cast("dict[str, float]", radii),
            counterpart=cast("Counterpart", self.counterpart or "termwise"),
        )

    def in_settings(self, settings: EvaluationSettings, program: ProgramOptions) -> EvaluationSettings:
        """The settings of an evaluation, with these of its selector."""
        import dataclasses

        return dataclasses.replace(settings, selector=self.applied(lambda: settings.selector, program))

    def _check(self, program: ProgramOptions, pool_radii: bool) -> None:
        """Raise `InputError` for every option without effect."""
        problems = []
        ball = bool(program.radius) or self.radii is not None or pool_radii
        if not ball and self.uncertainty_set is None:
            how = "give --radius, --radii or --uncertainty-set, or leave it out"
            if self.deviations is not None:
                problems.append(f"--deviations={self.deviations}: no embedding can deviate; {how}")
            if self.counterpart is not None:
                problems.append(f"--counterpart={self.counterpart}: no embedding can deviate; {how}")
        elif self.deviations is not None and self.counterpart != "joint":
            problems.append(
                f"--deviations={self.deviations} needs --counterpart joint: termwise has every one deviate"
            )
        if program.norm is not None and self.uncertainty_set is not None:
            problems.append("--norm and --uncertainty-set exclude each other: the set has its own shape")
        elif program.norm is not None and not ball:
            problems.append(f"--norm={program.norm} is the norm of a radius: give --radius or --radii too")
        if program.radius and self.radii is not None:
            problems.append("--radius and --radii exclude each other: the file has a radius for each passage")
        changes = {"--max-changes": self.max_changes, "--change-price": self.change_price}
        given = [name for name, value in changes.items() if value is not None]
        if given and not self.previous:
            problems.append(
                f"{' and '.join(given)} compare with a previous selection: give --previous once for each id"
            )
        if self.previous and not given:
            problems.append("--previous has no effect alone: give --max-changes or --change-price")
        asked = {
            "passages": (program.min_passages, program.max_passages, "--min-passages or --max-passages"),
            "sources": (program.max_per_source, None, "--max-per-source"),
            "conflicts": (self.conflict, self.max_similarity, "--conflict or --max-similarity"),
            "needs": (self.needs, None, "--needs"),
        }
        kinds = [text.rpartition(":")[0] for text in self.soft or ()]
        problems += [
            f"--soft {kind} is given twice" for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1
        ]
        problems += [
            f"--soft {kind}: no such constraint is set; give {asked[kind][2]} too"
            for kind in dict.fromkeys(kinds)
            if kind in asked and asked[kind][:2] in ((None, None), ([], None))
        ]
        if problems:
            raise InputError(problems)

    def _side(self) -> SideConstraints:
        from mio_rag.selection.constraints import SideConstraints

        prices = {}
        for text in self.soft or ():
            kind, _, price = text.rpartition(":")
            try:
                prices[kind] = float(price)
            except ValueError as error:
                raise InputError(f"--soft={text!r} must be KIND:PRICE, for instance clusters:0.05") from error
        needs: dict[str, list[str]] = {}
        for child, parent in _pairs("--needs", self.needs):
            needs.setdefault(child, []).append(parent)
        return SideConstraints(
            max_source_share=self.max_source_share,
            cover=self.cover,
            previous=None if not self.previous else tuple(self.previous),
            max_changes=self.max_changes,
            change_price=0.0 if self.change_price is None else self.change_price,
            max_similarity=self.max_similarity,
            conflicts=_pairs("--conflict", self.conflict),
            needs=needs,
            prices=prices,
        )

    def _radii(self) -> dict[str, float]:
        from mio_rag.retrieval.radius_file import read_radii

        return {} if self.radii is None else read_radii(self.radii)

    def _set(self) -> UncertaintySet | None:
        from mio_rag.formulations import uncertainty_from_dict
        from mio_rag.reading import read_json

        return (
            None if self.uncertainty_set is None else uncertainty_from_dict(read_json(self.uncertainty_set))
        )


def _pairs(option: str, given: list[str] | None) -> list[tuple[str, str]]:
    """ID,ID as pairs; the last comma counts, since ids may hold some."""
    pairs = []
    for text in given or ():
        first, comma, second = text.rpartition(",")
        if not (comma and first and second):
            raise InputError(f"{option}={text!r} must be two ids with a comma between them")
        pairs.append((first.strip(), second.strip()))
    return pairs
