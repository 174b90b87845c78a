"""Mathematical programs as arrays. Imports no solver."""

from mio_rag.formulations.constraints import fixed_values, passage_count, source_caps
from mio_rag.formulations.linear_constraint import LinearConstraint
from mio_rag.formulations.linearize import MilpArrays, linearize
from mio_rag.formulations.mdp import FiniteMDP
from mio_rag.formulations.precedence import precedence_program, with_token_price
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.retrieval_mdp import RetrievalMDP
from mio_rag.formulations.robust import nominal_program, termwise_program, worst_similarity
from mio_rag.formulations.segments import Segments
from mio_rag.formulations.uncertainty import NormBall, UncertaintySet
from mio_rag.formulations.uncertainty_json import uncertainty_from_dict
from mio_rag.formulations.uncertainty_sets import DeviationBudget, Ellipsoid, OwnSet, SparseBox

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
