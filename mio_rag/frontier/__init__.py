"""The frontier: the selections for each budget, penalty, weight and radius, each with its certificate."""

from mio_rag.frontier.paths import budget_path, penalty_path
from mio_rag.frontier.query import QueryFrontier, query_frontier, weight_grid

__all__ = ["QueryFrontier", "budget_path", "penalty_path", "query_frontier", "weight_grid"]
