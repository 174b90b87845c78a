"""`mio-rag measures`: what is measured, and where each measure is defined."""

from __future__ import annotations

from mio_rag.cli.options.shared import Json
from mio_rag.cli.output import open_output

__all__ = ["measures"]


def measures(json_output: Json = False) -> None:
    """List the measures of results and reports. With meaning, direction, unit and source."""
    from mio_rag.cli.show.measures import print_measures
    from mio_rag.measures import measures as all_measures

    output = open_output(json_output)
    found = all_measures()
    if not json_output:
        print_measures(output.console, found)
        return
    fields = ("name", "label", "meaning", "of", "better", "unit", "source")
    output.json({"measures": [{field: getattr(measure, field) for field in fields} for measure in found]})
