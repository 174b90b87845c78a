"""The frontier: the selections for each budget, penalty, weight and radius, each with its certificate."""

from mio_rag.frontier.budget import BudgetPath, BudgetStep, budget_path
from mio_rag.frontier.grid import GridPoint, weight_grid
from mio_rag.frontier.penalty import PenaltyPath, PenaltyPiece, penalty_path
from mio_rag.frontier.query import QueryFrontier, query_frontier

__all__ = [
    "BudgetPath",
    "BudgetStep",
    "GridPoint",
    "PenaltyPath",
    "PenaltyPiece",
    "QueryFrontier",
    "budget_path",
    "penalty_path",
    "query_frontier",
    "weight_grid",
]
