"""Mathematical programs as arrays. Imports no solver."""

from mio_rag.formulations.linearize import MilpArrays, linearize
from mio_rag.formulations.mdp import FiniteMDP, RetrievalMDP
from mio_rag.formulations.program import (
    LinearConstraint,
    Segments,
    SelectionProgram,
    precedence_program,
    with_token_price,
)
from mio_rag.formulations.robust import nominal_program, termwise_program, worst_similarity
from mio_rag.formulations.rows import fixed_values, passage_count, source_caps
from mio_rag.formulations.uncertainty import (
    DeviationBudget,
    Ellipsoid,
    NormBall,
    OwnSet,
    SparseBox,
    UncertaintySet,
    uncertainty_from_dict,
)

__all__ = [
    "DeviationBudget",
    "Ellipsoid",
    "FiniteMDP",
    "LinearConstraint",
    "MilpArrays",
    "NormBall",
    "OwnSet",
    "RetrievalMDP",
    "Segments",
    "SelectionProgram",
    "SparseBox",
    "UncertaintySet",
    "fixed_values",
    "linearize",
    "nominal_program",
    "passage_count",
    "precedence_program",
    "source_caps",
    "termwise_program",
    "uncertainty_from_dict",
    "with_token_price",
    "worst_similarity",
]
