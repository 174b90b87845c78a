"""The frontier: what each budget, penalty, weight and radius would choose, with the proof of each point."""

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
