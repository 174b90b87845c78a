"""What relevance means: the calibrated probability that a passage holds evidence which the answer needs."""

from typing import TYPE_CHECKING, Any

from mio_rag.relevance.documents import DocumentModel
from mio_rag.relevance.features import BASE_FEATURES, LINK_FEATURES, available_features, feature_matrix
from mio_rag.relevance.model import RelevanceModel, Stage, load_model

if TYPE_CHECKING:
    from mio_rag.relevance.fitting import (
        Labelled,
        calibration_measures,
        fit,
        fit_documents,
        reliability,
        reliability_plot,
    )

__all__ = [
    "BASE_FEATURES",
    "LINK_FEATURES",
    "DocumentModel",
    "Labelled",
    "RelevanceModel",
    "Stage",
    "available_features",
    "calibration_measures",
    "feature_matrix",
    "fit",
    "fit_documents",
    "load_model",
    "reliability",
    "reliability_plot",
]


def __getattr__(name: str) -> Any:  # only fitting needs scipy
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from mio_rag.relevance import fitting

    return getattr(fitting, name)
