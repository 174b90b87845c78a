"""The frontier: the selections for each budget, penalty, weight and radius, each with its certificate."""

from mio_rag.frontier.paths import QueryFrontier, budget_path, penalty_path, query_frontier, weight_grid

__all__ = ["QueryFrontier", "budget_path", "penalty_path", "query_frontier", "weight_grid"]
