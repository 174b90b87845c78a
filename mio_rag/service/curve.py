"""What the operator's own questions spend and find at each price of a token, for the service's page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mio_rag.errors import DataError, InputError
from mio_rag.formulations.numbers import is_setting
from mio_rag.reading import read_json, read_toml

__all__ = ["EXAMPLE_PRICE", "HOW", "Curve", "CurvePoint", "curve_beside", "example_of", "read_curve"]

#: Where nobody has set a price.
EXAMPLE_PRICE = 5e-4
#: How an operator gets a curve.
HOW = (
    "No curve of this index was found beside it. Measure one on questions of yours, into a folder beside the "
    "index: `mio-rag frontier data DATA --index INDEX --out INDEX-curve --token-prices "
    "0.005,0.002,0.001,0.0005,0.0002`. The service finds it when it starts; one that lies elsewhere is given "
    "with `mio-rag serve INDEX --curve INDEX-curve/frontier.json`."
)
_PASSAGE = 100
_LOOKED_AT = 100  # files beside an index


def example_of(token_price: float) -> str:
    """A price of a token, by what it asks of a passage."""
    share = _PASSAGE * token_price
    least = f"{100 * share:.3g} %" if share < 1 else "all"
    return f"{token_price:.3g} a token, {_PASSAGE} tokens must add more than {least} of a needed passage."


@dataclass(frozen=True)
class CurvePoint:
    """One price of a token.

    Parameters
    ----------
    evidence : float or None
        Mean share of the evidence found, in [0, 1]; None where nobody has labelled it.
    """

    token_price: float
    mean_tokens: float
    evidence: float | None = None


@dataclass(frozen=True)
class Curve:
    """Points by falling price, and what they were measured on."""

    points: tuple[CurvePoint, ...]
    questions: int


def read_curve(path: Path) -> Curve:
    """The curve in a file.

    Parameters
    ----------
    path : Path
        ``frontier.json`` of ``mio-rag frontier data --token-prices``, or the TOML file of ``mio-rag tune
        --mean-tokens``.

    Raises
    ------
    DataError
        If the file cannot be read.
    InputError
        If it holds no curve.
    """
    data = _data(path)
    try:
        points, questions = (_tuned if path.suffix == ".toml" else _measured)(data)
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"'{path}' holds no curve over prices: give frontier.json of `mio-rag frontier data "
            "--token-prices ...`, or the TOML file of `mio-rag tune --mean-tokens N`"
        ) from error
    wrong = [
        one
        for one in points
        if not is_setting(one.token_price)
        or not is_setting(one.mean_tokens)
        or not (one.evidence is None or (is_setting(one.evidence) and one.evidence <= 1))
    ]
    if wrong or not points or questions < 1:
        raise DataError(f"'{path}' holds a curve that cannot be: {wrong[0] if wrong else 'no points'}")
    return Curve(tuple(sorted(points, key=lambda one: -one.token_price)), questions)


def curve_beside(index: Path) -> Path | None:
    """The newest file with a curve of this index that lies beside it, or in a folder beside it; or None.

    Files say how many passages their index has and who embedded them; those of other indexes are passed over.
    """
    around = index.resolve().parent
    try:
        manifest = read_json(index / "manifest.json")
        here = manifest["passages"], manifest["fingerprint"]
        found = [*around.glob("*.toml"), *around.glob("frontier.json"), *around.glob("*/frontier.json")]
        newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_LOOKED_AT]
    except (InputError, LookupError, TypeError, OSError):
        return None
    for path in newest:
        try:
            data = _data(path)
            said = data["measured" if path.suffix == ".toml" else "run"]
            if (said["passages"], said["embedder_fingerprint"]) == here:
                read_curve(path)
                return path
        except (InputError, LookupError, TypeError, OSError):
            continue
    return None


def _data(path: Path) -> Any:
    return read_toml(path) if path.suffix == ".toml" else read_json(path)


def _measured(data: Any) -> tuple[list[CurvePoint], int]:
    points = [
        CurvePoint(
            one["token_price"],
            one["tokens"]["mean"],
            None if one["evidence"] is None else one["evidence"]["mean"],
        )
        for one in data["price"]["prices"]
    ]
    return points, int(data["run"]["questions"])


def _tuned(data: Any) -> tuple[list[CurvePoint], int]:
    held = data["measured"]
    pairs = zip(held["curve_token_prices"], held["curve_mean_tokens"], strict=True)
    return [CurvePoint(price, tokens) for price, tokens in pairs], int(held["questions"])
